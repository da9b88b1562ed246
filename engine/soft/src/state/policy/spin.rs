//! How long to leave the mailbox slot alone after a reply.
//!
//! After a reply the peer owns the slot's lines and will write its next message there. A look that
//! comes too early takes the lines away from it. So the first look waits for about as long as the
//! peer lately needed. A first look that finds nothing adds three steps to the budget, and one that
//! finds a message takes one away; so three of four find one. If the budget stays at its maximum
//! and still no first look finds a message, spinning is disabled for a while.
//!
//! Without the wait, half a round trip of 64 bytes between far cores takes 326 ns in place of 155.
//!
//! The wait helps only if the peer answers. Messages that come at random may come at any time, and
//! one that comes during a spin waits for its end. So a poll tells the policy when the next message
//! is *late*: it has not come long after the first look. If too many are late, spinning is disabled
//! for a while. (Polls of a shared domain do not tell it.) Near cores, with Poisson arrivals at a
//! tenth of the peak, medians of 5 rounds of 0.2 s in turn: the p50 of a round trip went from 310
//! to 282 ns, and the p90 from 574 to 448. Before, a message that was sent while another was on its
//! way took twice as long as one that was alone. In longer runs the gain is less: there spinning
//! had been disabled most of the time, because no first look found a message. In a ping-pong two
//! or three messages in a thousand came after 64 empty polls, and fewer come after 128.
//!
//! Work after the reply shortens the spin: the worker posts a list of receives after 32 messages,
//! and tells its peer of credit after 64. Before, this side took the next message late by that
//! work. Together with replies that no longer find their budget used up (`engine::worker`), the
//! 99th percentile between near cores went from 150 to 125 ns with 8 bytes, and from 165 to 140
//! with 64.
//!
//! A first look in vain is expensive: in a ping-pong of 64 bytes between near cores a round trip
//! takes 130 ns if the first look finds the answer, and 200 if not, mostly found by the second look
//! (medians; 72 % and 17 % of two million messages). Rules with fewer such looks were measured and
//! not kept: with 7, 15 and 30 steps, and messages that the second look does not find left out, the
//! p50 of half a round trip was 70, 75 and 98 ns in place of 65, the p90 98, 95 and 120 in place of
//! 100 (3 to 6 rounds), probably because each side then waits for the other's longer spin.
//!
//! Two changes were measured between two threads of one core and not kept. With seven steps in
//! place of three, the mean of 8 bytes is 85 ns in place of 91, but the median grows by 8 percent.
//! A poll without a budget can look before it prepares for the next message. Then 64 clients at
//! once take 12.9 us in place of 9.8, probably because preparing leaves the lines to the peer.
//!
//! Two more were measured with a message on each of several links at once, near cores, and not
//! kept. There the answers have often come when a poll begins to wait, and the wait takes some 250
//! of its 835 instructions. A poll that had found 16 messages in a row without a step looked before
//! it prepared, or fetched the slot and left the message to the next poll. With 8 links, the looks
//! changed nothing for certain, and the fetches took 990 ns in place of 915 (medians of 4 runs in
//! turn). With 64 links, they took 10.2 us in place of 8.6, probably because the peer had not yet
//! written all answers.

/// The longest spin in steps of a cycle or so: some 200 ns. A message for another queue pair of the
/// link may wait that long.
const BUDGET_MAX: u32 = 800;

/// Steps added by a first look that came too early.
const STEP: u32 = 3;

/// Spinning is disabled after 64 consecutive misses at the maximum.
const GIVE_UP: u32 = BUDGET_MAX + 64 * STEP;

/// What a late message adds to the count of late ones. Each first look takes one away.
const LATE: u32 = 8;

/// Spinning is disabled at this count: after six late messages in a row, or if more than one in
/// eight is late for long enough.
const LATE_MAX: u32 = 5 * LATE;

/// Replies left with spinning disabled.
const DISABLED_FOR: u32 = 1024;

/// Replies without a spin after a message on another link.
const PAUSE: u32 = 4;

/// A peer whose messages take no longer than this is on a near core.
const NEAR: u32 = BUDGET_MAX / 2;

/// Steps by which work after a reply shortens the spin: some 50 ns. The work is a post of a list of
/// receives, which took 45 ns with 32 of them, or of a request on the slow path, which took longer.
/// Other values were not tried. Work in each round is not work now and then: of two spins in a row
/// one is as long as the budget, and only that one teaches.
const WORK: u32 = 200;

/// The spin budget of one link.
pub(crate) struct SpinPolicy {
    /// The number of steps that would lately have been enough. Misses at the maximum count on
    /// beyond it.
    budget: u32,
    /// Replies left with spinning disabled.
    disabled: u32,
    /// Steps by which work since the last look shortens the next spin; and whether work has
    /// shortened the last one.
    worked: u32,
    was_shortened: bool,
    /// The last first look found nothing, and the message has not come since.
    missed: bool,
    /// Counts late messages, and the others back.
    late: u32,
    /// The last first look found a message, and that is not noted yet.
    found: bool,
}

impl SpinPolicy {
    pub(crate) const fn new() -> SpinPolicy {
        SpinPolicy {
            budget: 0,
            disabled: 0,
            worked: 0,
            was_shortened: false,
            missed: false,
            late: 0,
            found: false,
        }
    }

    /// A reply was sent. False: look at once.
    pub(crate) fn may_spin(&mut self) -> bool {
        if self.disabled > 0 {
            self.disabled -= 1;
            self.worked = 0;
            return false;
        }
        true
    }

    /// A message has come on another link: the next ones probably come there, too.
    pub(crate) fn pause(&mut self) {
        self.disabled = self.disabled.max(PAUSE);
    }

    /// This side waits without having spun: the message behind the last spin has come.
    pub(crate) fn note_wait(&mut self) {
        self.missed = false;
    }

    /// Nothing has come for long. If this side has spun before, the message behind that spin is
    /// late. True if spinning is disabled from now on.
    pub(crate) fn note_late(&mut self) -> bool {
        if !core::mem::take(&mut self.missed) {
            return false;
        }
        self.late += LATE;
        let is_too_much = self.late >= LATE_MAX;
        if is_too_much {
            self.disable();
        }
        is_too_much
    }

    /// Lets some replies pass without a spin. Then it begins anew.
    fn disable(&mut self) {
        (self.budget, self.late, self.disabled) = (0, 0, DISABLED_FOR);
    }

    /// The first look found a message that the program waits for, so that this is noted later:
    /// before the next spin, by [`SpinPolicy::take_found`] and [`SpinPolicy::note_look`].
    #[inline(always)]
    pub(crate) fn note_found(&mut self) {
        self.found = true;
    }

    /// True once after [`SpinPolicy::note_found`].
    #[inline(always)]
    pub(crate) fn take_found(&mut self) -> bool {
        core::mem::take(&mut self.found)
    }

    /// Notes what the first look has found. Work behind a look is not work before it.
    #[cold]
    #[inline(never)]
    fn note_found_before(&mut self) {
        self.found = false;
        self.note_look(true);
    }

    /// This side has done other work since its last look.
    pub(crate) fn note_work(&mut self) {
        if self.found {
            self.note_found_before();
        }
        if !self.was_shortened {
            self.worked = self.worked.saturating_add(WORK);
        }
    }

    /// Steps to spin before the first look.
    pub(crate) fn steps(&self) -> u32 {
        self.budget.min(BUDGET_MAX).saturating_sub(self.worked)
    }

    /// Whether the first look after that spin found a message. True: the peer is on a near core.
    /// Nothing is learned from a spin that work has shortened.
    pub(crate) fn note_look(&mut self, found: bool) -> bool {
        (self.missed, self.late) = (!found, self.late.saturating_sub(1));
        self.was_shortened = core::mem::take(&mut self.worked) > 0;
        if !self.was_shortened {
            self.budget = match found {
                true => self.steps().saturating_sub(1),
                false => self.budget + STEP,
            };
        }
        let is_near = self.budget < NEAR;
        if self.budget > GIVE_UP {
            self.disable();
        }
        is_near
    }

    /// True if work has shortened the next spin.
    #[cfg(test)]
    pub(crate) fn is_shortened(&self) -> bool {
        self.worked > 0
    }

    /// The budget.
    #[cfg(test)]
    pub(crate) fn budget(&self) -> u32 {
        self.budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a peer that always needs the same time, three of four first looks find its message.
    #[test]
    fn three_of_four_first_looks_find_the_message() {
        let mut spin = SpinPolicy::new();
        let (mut found, rounds) = (0, 1000);
        for round in 0..rounds + 200 {
            let finds = spin.steps() >= 300;
            spin.note_look(finds);
            found += u32::from(finds && round >= 200);
        }
        assert!((rounds * 74 / 100..=rounds * 76 / 100).contains(&found), "{found} of {rounds}");
    }

    /// Work is part of the time that the peer needs, and nothing is learned from that spin. The
    /// next spin is a whole one, so a side that works in each round learns too.
    #[test]
    fn work_shortens_one_spin_of_two_and_teaches_nothing() {
        let mut spin = SpinPolicy::new();
        while spin.steps() < 2 * WORK {
            spin.note_look(false);
        }
        let (steps, budget) = (spin.steps(), spin.budget());
        for finds in [true, false] {
            spin.note_work();
            assert_eq!(spin.steps(), steps - WORK);
            (0..9).for_each(|_| spin.note_work());
            assert_eq!(spin.steps(), 0);
            spin.note_look(finds);
            assert_eq!((spin.steps(), spin.budget()), (steps, budget), "finds: {finds}");
            spin.note_work();
            assert_eq!(spin.steps(), steps, "the next one is whole");
            spin.note_look(true);
            spin.note_look(false);
            spin.note_look(true);
            spin.note_look(true);
            assert_eq!(spin.budget(), budget);
        }
        for _ in 0..2000 {
            spin.note_work();
            spin.note_look(true);
        }
        assert_eq!(spin.steps(), 0, "work in each round");
        spin.pause();
        spin.note_work();
        assert!(!spin.may_spin() && !spin.is_shortened(), "work of an earlier round");
    }

    /// A message that is noted late teaches what it would have taught at once, also if this side
    /// has done other work meanwhile.
    #[test]
    fn a_message_that_is_noted_late_counts_before_the_work_behind_it() {
        let [mut at_once, mut late] = [SpinPolicy::new(), SpinPolicy::new()];
        for spin in [&mut at_once, &mut late] {
            (0..200).for_each(|_| _ = spin.note_look(false));
        }
        for works in [true, false, true, true, false, false] {
            at_once.note_look(true);
            late.note_found();
            if works {
                at_once.note_work();
                late.note_work();
            }
            if late.take_found() {
                late.note_look(true);
            }
            assert_eq!((late.steps(), late.budget()), (at_once.steps(), at_once.budget()));
        }
    }

    /// A near peer needs less than half of the maximum.
    #[test]
    fn a_peer_within_half_of_the_maximum_is_near() {
        let mut spin = SpinPolicy::new();
        let misses = (0..).take_while(|_| spin.note_look(false)).count();
        assert_eq!((misses as u32 + 1) * STEP, NEAR.next_multiple_of(STEP));
        assert!(!spin.note_look(false));
    }

    /// A message on another link stops the spin for four replies.
    #[test]
    fn a_message_on_another_link_stops_the_spin_for_four_replies() {
        let mut spin = SpinPolicy::new();
        spin.pause();
        assert_eq!((0..).take_while(|_| !spin.may_spin()).count(), 4);
        assert!(spin.may_spin());
    }

    /// Late messages disable spinning if all are late, or each seventh. Each ninth does not, and
    /// neither do waits after messages that have come.
    #[test]
    fn late_messages_disable_spinning_for_1024_replies() {
        fn spins_until_disabled(late: impl Fn(&mut SpinPolicy, u32)) -> Option<u32> {
            let mut spin = SpinPolicy::new();
            (1..10_000).find(|n| {
                late(&mut spin, *n);
                spin.disabled > 0
            })
        }
        let each = |every| {
            move |spin: &mut SpinPolicy, n: u32| {
                let is_late = n.is_multiple_of(every);
                spin.note_look(!is_late && n.is_multiple_of(2));
                if !is_late {
                    spin.note_wait();
                }
                // It has not come for long, whether or not it is the message behind the spin.
                spin.note_late();
            }
        };
        assert_eq!(spins_until_disabled(each(1)), Some(6));
        assert!(spins_until_disabled(each(7)).is_some_and(|n| n > 20));
        assert_eq!(spins_until_disabled(each(9)), None);
        let waits = |spin: &mut SpinPolicy, n: u32| {
            (0..n).for_each(|_| {
                spin.note_late();
            })
        };
        assert_eq!(spins_until_disabled(waits), None);

        let mut spin = SpinPolicy::new();
        while spin.disabled == 0 {
            each(1)(&mut spin, 1);
        }
        let disabled = (0..).take_while(|_| !spin.may_spin()).count();
        assert_eq!((disabled as u32, spin.steps()), (DISABLED_FOR, 0), "it begins small again");
    }

    /// 64 misses at the maximum disable spinning for 1024 replies. One hit among them does not.
    #[test]
    fn spinning_is_disabled_after_64_misses_at_the_maximum() {
        let mut spin = SpinPolicy::new();
        while spin.steps() < BUDGET_MAX {
            spin.note_look(false);
        }
        for _ in 0..50 {
            spin.note_look(false);
        }
        spin.note_look(true);
        assert_eq!(spin.steps(), BUDGET_MAX - 1, "a hit begins the count anew");
        let misses = (0..).take_while(|_| {
            spin.note_look(false);
            spin.budget() > 0
        });
        assert_eq!(misses.count(), 64);
        let disabled = (0..).take_while(|_| !spin.may_spin()).count();
        assert_eq!(disabled as u32, DISABLED_FOR);
        assert_eq!(spin.steps(), 0, "it begins small again");
    }
}
