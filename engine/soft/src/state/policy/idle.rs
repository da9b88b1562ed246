//! When polls stop serving a link.
//!
//! A domain has a link for each domain it talks to, and most of many are idle. So the cost of a
//! poll depends on how often something comes on a link:
//!
//! | link | a poll | becomes the next |
//! |---|---|---|
//! | busy | serves it | after [`REST_AFTER`] polls without an arrival |
//! | resting | looks at it, and takes a message that has come alone | after [`IDLE_AFTER`] looks |
//! | idle | looks at some in turn, and takes a message that has come alone | resting, after it |
//!
//! With several clients in turn, all links but one rest. The poll that sees a message takes it.
//! Then the link rests, unless something is left to do. The first message on an idle link
//! is seen after as many polls as there are idle links, divided by the looks of a poll. A poll that
//! serves one busy link alone also takes the shortest way, so links rest soon.
//!
//! Measured with 2, 8 and 64 clients in turn (p50 of half a round trip): 70, 80 and 130 ns on near
//! cores, and 215, 220 and 225 on far ones. Before polls took messages on resting links, it was 80,
//! 90 and 160 near, and 255, 220 and 250 far. If links rest after 8 polls, 8 in turn stay busy on
//! near cores, and half a round trip takes 90.
//!
//! With 63 idle links, half a round trip of the first message on one of them takes 656 ns on near
//! cores, and 866 without those looks; on far cores 802 and 1257. Most of the rest is not the
//! search: the memory of that link has left the near caches. With 1024 idle links, the looks cost
//! the busy one nothing.
//!
//! On a machine whose caches others share, the same takes 1200 to 1700 ns near and 2400 far. Time
//! stamps in both processes, which add some time themselves, show the parts. The other side's
//! worker has rested as well, and its post takes half of the round trip. This side sees the message
//! 270 ns after its publication near, and 420 far. Near, the handler runs another 900 ns later.
//! Prefetches of one resting queue pair in each 64 turns, on this side alone, changed no figure.
//! On both sides, and with the worker's own memory, they take away most of it
//! ([`crate::steps::fetch_ahead`]).
//!
//! If up to 64 links rest for ever, and none becomes idle, that first message takes 310 to 420 ns
//! in place of 450 to 530, but each message on the one busy link takes 115 to 125 in place of 90
//! (near cores).
//!
//! Since then a message that has come alone on an idle link is taken there. Before, it made the
//! link busy, and the whole poll that followed took 1000 instructions. A check of an idle link read
//! five of its lines: with 63 idle links a message cost 89 misses of a cache of 48 KiB. With one
//! check in 16 for answers it cost 34. Between two threads of one core, half a round trip then went
//! from 984 to 757 ns, and with 7 idle links from 395 to 325. With one in 4, on the same machine
//! with other work, it went from 1721 to 1012, and from 453 to 379. Glances at 16 links in place of
//! 8 gained nothing.
//!
//! A message on a quiet link that is like the predicted one then took the shortest poll as well.
//! With 8 clients in turn the serving side takes 770 instructions for it in place of 1056. Near
//! cores, on a machine with other work (p50 of half a round trip, a ping-pong 115 ns): 2 clients at
//! random 170 to 133 ns, 8 at random 230 to 190, the first of 2 after a rest 466 to 331; 8 at once
//! 2034 to 1794. With 64 clients nothing changed: there the lines of the links miss the caches.
//!
//! Two changes gained nothing with 8 and 64 clients in turn. One put the fields that each message
//! uses side by side. It is there nevertheless, since it helps the first message after a rest
//! ([`DomainState`](crate::state::domain_state::DomainState)). The other checked a resting link for
//! answers in each fourth poll only.
//!
//! A look that tests four slots with one branch was not kept: between near cores, with 64 clients
//! at random half a round trip went from 215 to 200 ns, but with 64 in turn from 155 to 172.
//!
//! With 64 clients at random, full polls take a third of the messages: a post for which nothing is
//! reserved makes a second link busy, and each message that a full poll finds makes one more. A
//! full poll that let such a link rest again at once changed the p50 of no row with 2, 8 or 64
//! clients by more than 6 % (Intel, family 6, model 207; nine rounds in turn).

/// A busy link rests after this many polls without an arrival.
const REST_AFTER: u32 = 2;

/// A busy link becomes idle after this many polls without an arrival, if no more links may rest.
/// The next message on an idle link is seen late: of 200 links with messages now and then, those
/// that rest would get on faster than the others.
const IDLE_AT_ONCE: u32 = 64;

/// A resting link becomes idle after this many looks at it.
pub(crate) const IDLE_AFTER: u32 = 4096;

/// The most links that rest: a poll looks at all of them.
pub(crate) const RESTING_MAX: usize = 64;

/// Resting links at which a poll looks for records in the ring alone, each time at others. A lone
/// message is in the slot as well, which each poll reads.
pub(crate) const TAIL_LOOKS: usize = 16;

/// Resting links at which a poll that has found nothing looks once more at its end. By samples, the
/// checks of everything else take about a third of such a poll, and this look finds a message that
/// comes meanwhile. Near cores, medians of 4 or 5 rounds in turn, p50, p90 and p99 of half a round
/// trip: with 8 clients at random 95, 142 and 238 ns without it, 90, 132 and 198 with it; the first
/// message after a rest 165, 245 and 471, then 155, 215 and 478; 8 in turn 95, 140 and 225 both.
pub(crate) const LOOK_AGAIN_MAX: usize = 8;

/// Messages on quiet links that short polls take before one checks everything else as well.
pub(crate) const TAKEN_MAX: u32 = 8;

/// Idle links that a poll checks besides the busy ones it serves.
pub(crate) const IDLE_CHECKS: usize = 8;

/// One in this many checks of an idle link looks for an answer, too. It can only be the refusal of
/// a send that asked for no completion. Answers lie in three lines of their own, which have left
/// the near cache by the next check.
pub(crate) const ANSWERS_EVERY: usize = 4;

/// Idle links at whose tails a poll looks.
pub(crate) const IDLE_GLANCES: usize = 8;

/// Counts polls of a domain's links.
pub(crate) struct IdlePolicy {
    /// Polls since the busy links were last examined.
    polls: u32,
    /// Looks at all resting links.
    looks: u32,
}

impl IdlePolicy {
    pub(crate) const fn new() -> IdlePolicy {
        IdlePolicy { polls: 0, looks: 0 }
    }

    /// A poll has served the busy links. True once in [`REST_AFTER`] polls: examine them.
    pub(crate) fn is_due(&mut self) -> bool {
        self.polls += 1;
        let is_due = self.polls >= REST_AFTER;
        if is_due {
            self.polls = 0;
        }
        is_due
    }

    /// True if a link on which nothing came in that many polls may rest, or become idle if no more
    /// links may rest.
    pub(crate) fn is_quiet(empty_polls: u32, no_room: bool) -> bool {
        empty_polls >= if no_room { IDLE_AT_ONCE } else { REST_AFTER }
    }

    /// A poll has looked at the resting links. Returns how often that was.
    pub(crate) fn note_look(&mut self) -> u32 {
        self.looks = self.looks.wrapping_add(1);
        self.looks
    }

    /// The number of looks so far: when a link begins to rest.
    pub(crate) fn looks(&self) -> u32 {
        self.looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Busy links are examined once in every [`REST_AFTER`] polls.
    #[test]
    fn links_are_examined_once_in_every_few_polls() {
        let mut policy = IdlePolicy::new();
        let due: std::vec::Vec<bool> = (0..3 * REST_AFTER).map(|_| policy.is_due()).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 3);
        assert!(due[REST_AFTER as usize - 1] && !due[REST_AFTER as usize]);
    }

    /// One message per examination keeps a link busy.
    #[test]
    fn a_link_with_one_message_lately_stays_busy() {
        assert!(!IdlePolicy::is_quiet(REST_AFTER - 1, false));
        assert!(IdlePolicy::is_quiet(REST_AFTER, false));
        assert!(!IdlePolicy::is_quiet(IDLE_AT_ONCE - 1, true));
        assert!(IdlePolicy::is_quiet(IDLE_AT_ONCE, true));
    }
}
