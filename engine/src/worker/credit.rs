//! Credit: how many messages a peer may send, so that each finds a posted receive.
//!
//! A worker promises each peer a *window* of its shared receives, and all windows add up to no more
//! than there are (see [`super::promises`]). Each peer has a base window all the time. A window
//! grows while its peer uses it, and shrinks when others need the receives.
//!
//! What a peer may send is counted from the beginning of the connection: the first window, and one
//! more for each of its messages whose block is free again. Where the window grows the receiver
//! counts more, and where it shrinks less. The receiver writes that count into a word of the
//! sender's memory, by an RDMA WRITE: for half of the window at a time, or for all there is when
//! nothing has come for a while. The sender reads the word when it has used up what it knew of.
//!
//! A peer that has a longer window and does not use it may be asked to give credit back, if others
//! are busy. A sender that is asked, and has sent nothing for a while, keeps [`LEAST`] and counts
//! the rest in its own word as given back. Until the receiver knows whether its peer has done so,
//! it tells the peer of each message, so that the peer never waits. It also grants again what the
//! peer gave back of its base window.
//!
//! A program may wait for room for several messages, and send nothing until then. If there is less
//! room than in the beginning, the sender's word says that it *wants* credit. Such a peer counts as
//! busy, gives nothing back, and gets its share at once.
//!
//! **Why nothing is stuck for ever.** A message in a block that its handler replies to in place
//! needs a receive at the other side to leave. If both sides' windows were full of such messages,
//! none could. So a fresh message may not take the last credit and a reply may: when the last fresh
//! message was taken, one receive was left over. Replies only move messages. A window shrinks only
//! by receives beyond one that the peer is told of at the same time, and a sender that gives credit
//! back keeps two. So one receive is always left over somewhere. Its owner
//! says so at once, not half a window later, when it has replies of its own that wait for this
//! peer.

use super::breach::Breach;
use super::handshake::Handshake;
use crate::remote::RESERVED_IMM;
use crate::wr::Remote;

/// The bit of a credit word that says goodbye: its writer has sent everything it accepted, and ends
/// the connection. The other bits mean the same with it.
pub(super) const GOODBYE: u64 = 1 << 63;

/// The bit that says that its writer sends no more messages, and still takes them. The write that
/// sets it carries [`FINISHED_IMM`], so its completion comes behind those of all messages, and
/// wakes a worker that sleeps.
pub(super) const FINISHED: u64 = 1 << 62;

/// The immediate data of that write. No request of a program carries it.
pub(super) const FINISHED_IMM: u32 = (RESERVED_IMM as u32) << 16 | 3;

/// Whether a peer counts what is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerCredit {
    /// It has not said.
    Unknown,
    /// No worker, or one that does not count.
    Free,
    /// It does, and this is its first window.
    Counted(u32),
}

/// One connection's credits, both ways. All counts wrap.
pub(super) struct Credit {
    pub(super) flow: PeerCredit,
    /// Messages of the peer that are left in this step. After a step the peer is told.
    pub(super) until_return: u32,
    /// The length of this step.
    step: u32,
    /// The usual length of a step: half a window.
    return_every: u32,
    /// The first window.
    first: u32,
    /// Messages that the peer may send beyond the first window, counted from the beginning.
    granted: u32,
    /// What the last word to the peer granted.
    told: u32,
    /// Messages of the peer that are done with.
    done: u32,
    /// Credit from the peer that this side has given back.
    given_back: u32,
    /// Credit from this side that the peer has given back, as of the last look at its word.
    taken_back: u32,
    /// `done` at the last review.
    done_before: u32,
    /// Messages sent at the last review.
    sent_before: u32,
    /// What the peer is told beside the count, see [`Credit::word`].
    says: u64,
    /// What the last word granted that asked the peer to give credit back.
    asked: u32,
    /// The peer was asked, and may still give credit back.
    may_give: bool,
    /// This side's program found less room than in the beginning, since the last review.
    lacks: bool,
    /// The word of its memory to write.
    pub(super) peer_word: Option<Remote>,
    /// It is to be told.
    pub(super) due: bool,
}

/// What a sender keeps when it gives credit back: one for a message, and one for a reply.
const LEAST: u32 = 2;

/// Bits of a word below [`GOODBYE`], see [`Credit::word`].
const ASKS: u64 = 1 << 32;
const WANTS: u64 = 1 << 33;
const GIVEN_BIT: u32 = 34;
const GIVEN_MASK: u32 = u32::MAX >> 4;

/// The longest window of receives for a peer.
pub(super) const WINDOW_MAX: u32 = u16::MAX as u32;

impl Credit {
    /// The credit of a new connection, with `window` as the peer's first window.
    pub(super) fn new(window: u32) -> Credit {
        let mut credit = Credit {
            flow: PeerCredit::Unknown,
            until_return: 0,
            step: 0,
            first: window,
            return_every: 0,
            granted: 0,
            told: 0,
            done: 0,
            given_back: 0,
            taken_back: 0,
            done_before: 0,
            sent_before: 0,
            says: 0,
            asked: 0,
            may_give: false,
            lacks: false,
            peer_word: None,
            due: false,
        };
        credit.begin_step(window, false);
        credit
    }

    /// Counts towards the next word for a window. With `eager` the peer is told of the next message
    /// at once.
    fn begin_step(&mut self, window: u32, eager: bool) {
        self.return_every = if window == 0 { u32::MAX } else { (window / 2).max(1) };
        self.step = if eager { 1 } else { self.return_every };
        self.until_return = self.step;
    }

    /// Grants one credit for each of the peer's messages whose block became free in this step. If
    /// several became free at once, that is more than a step.
    fn count_step(&mut self) -> u32 {
        let done = self.step.wrapping_sub(self.until_return);
        self.until_return = self.step;
        if self.return_every == u32::MAX {
            return 0;
        }
        self.granted = self.granted.wrapping_add(done);
        self.done = self.done.wrapping_add(done);
        if done > 0 {
            self.says &= !ASKS;
        }
        done
    }

    /// Ends a step: grants one credit for each of the step's messages. With `eager` the peer is
    /// told of the next message at once. True if the peer is to be told from now on, and was not
    /// before.
    pub(super) fn step(&mut self, eager: bool) -> bool {
        let done = self.count_step();
        self.step = if eager { self.return_every.min(1) } else { self.return_every };
        self.until_return = self.step;
        // Nothing is promised to it, or it is no worker.
        if done == 0 || self.peer_word.is_none() && self.flow != PeerCredit::Unknown {
            return false;
        }
        !core::mem::replace(&mut self.due, true)
    }

    /// Before a word is written: grants one credit for each of the peer's messages whose block is
    /// free. Returns how many of those the peer was not told of.
    pub(super) fn begin_return(&mut self) -> u32 {
        self.count_step();
        self.granted.wrapping_sub(self.told)
    }

    /// Sets the window, after the peer was granted `more` credits more or `less` fewer.
    pub(super) fn change_window(&mut self, window: u32, more: u32, less: u32, eager: bool) {
        self.granted = self.granted.wrapping_add(more).wrapping_sub(less);
        // The peer has used more than the last asking word allowed, so it has read a newer word.
        let used = self.done.wrapping_add(self.taken_back);
        let beyond = used.wrapping_sub(self.asked.wrapping_add(self.first)) as i32 > 0;
        self.may_give &= self.says & ASKS != 0 || !beyond;
        self.begin_step(if self.may_give { LEAST } else { window }, eager);
    }

    /// Asks the peer to give credit back, with the next word. False: it is asked already.
    pub(super) fn ask_back(&mut self) -> bool {
        self.may_give = true;
        self.says(ASKS, true)
    }

    /// The peer keeps what it has.
    pub(super) fn stop_asking(&mut self) {
        self.says(ASKS, false);
    }

    /// The peer is told from now on that this side has sent everything.
    pub(super) fn say_goodbye(&mut self) {
        self.says(GOODBYE, true);
    }

    /// The peer is told from now on that this side sends no more messages.
    pub(super) fn say_finished(&mut self) {
        self.says(FINISHED, true);
    }

    /// True if [`Credit::say_finished`] was called.
    pub(super) fn has_said_finished(&self) -> bool {
        self.says & FINISHED != 0
    }

    /// Sets one of those bits, or clears it. True if that changes it.
    fn says(&mut self, bit: u64, set: bool) -> bool {
        let before = self.says;
        self.says = if set { before | bit } else { before & !bit };
        self.says != before
    }

    /// What the peer is told: how many messages it may send beyond its first window, in 32 bits;
    /// whether it is asked to give credit back, and whether this side wants more, in one bit each;
    /// what this side has given back, in 28; that this side sends no more; and the goodbye.
    pub(super) fn word(&self) -> u64 {
        self.says | u64::from(self.granted)
    }

    /// A word that says that `count` credits were given back, and nothing else.
    #[cfg(test)]
    pub(super) fn says_given(count: u32) -> u64 {
        u64::from(count & GIVEN_MASK) << GIVEN_BIT
    }

    /// The peer is to be told, if that is possible. True if it was not to be already.
    pub(super) fn becomes_due(&mut self) -> bool {
        self.peer_word.is_some() && !core::mem::replace(&mut self.due, true)
    }

    /// The peer has been told, and nothing more is due.
    pub(super) fn was_told(&mut self) {
        self.due = false;
        self.word_was_written();
    }

    /// A word was written to the peer: it may use what the word grants.
    pub(super) fn word_was_written(&mut self) {
        self.told = self.granted;
        if self.says & ASKS != 0 {
            self.asked = self.granted;
        }
    }

    /// True if the peer has used half of `window` since the last review.
    pub(super) fn uses(&self, window: u32) -> bool {
        window > 0 && self.done.wrapping_sub(self.done_before) >= window.div_ceil(2)
    }

    /// Ends a review: use counts from now on.
    pub(super) fn end_review(&mut self) {
        self.done_before = self.done;
    }

    /// What the peer has given back since the last look at its word. A peer that says it gave back
    /// more than it had breaks the rules: else it could have the receives of all others promised to
    /// itself. `held` counts its messages that still have a block: they used credit, too.
    pub(super) fn take_back(
        &mut self,
        word: u64,
        held: impl FnOnce() -> u32,
    ) -> Result<u32, Breach> {
        let before = self.taken_back;
        let more = ((word >> GIVEN_BIT) as u32).wrapping_sub(before) & GIVEN_MASK;
        if more == 0 {
            return Ok(0);
        }
        let had = self.allowed().wrapping_sub(self.sent_by_peer(held()));
        // Beyond half of the range the peer has used more than it was told of.
        let had = if had > u32::MAX / 2 { 0 } else { had };
        if more > had {
            return Err(Breach::GaveBackTooMuch { said: more, allowed: had });
        }
        self.taken_back = before.wrapping_add(more);
        Ok(more)
    }

    /// Messages that the peer may have sent so far, from the beginning.
    fn allowed(&self) -> u32 {
        self.first.wrapping_add(self.told).wrapping_sub(self.taken_back)
    }

    /// Messages that the peer has sent, from the beginning, if `held` of them still have a block.
    fn sent_by_peer(&self, held: u32) -> u32 {
        // Some are done with and not counted yet.
        let done = self.done.wrapping_add(self.step.wrapping_sub(self.until_return));
        done.wrapping_add(held)
    }

    /// Checks that the peer has sent no more than it was granted. A peer that is not told, because
    /// it is no worker or receives are not counted, has no such limit.
    #[cold]
    #[inline(never)]
    pub(super) fn check_sent(&self, held: u32) -> Result<(), Breach> {
        let (sent, allowed) = (self.sent_by_peer(held), self.allowed());
        let is_counted = self.return_every != u32::MAX && self.peer_word.is_some();
        if is_counted && allowed.wrapping_sub(sent) > u32::MAX / 2 {
            return Err(Breach::SentTooMuch { sent, allowed });
        }
        Ok(())
    }

    /// Checks the peer's word: what it grants never gets less than `before`, its last look, and is
    /// never more than the longest window beyond the `sent` messages that were sent.
    #[cold]
    #[inline(never)]
    pub(super) fn check_word(&self, sent: u32, word: u64, before: &mut u32) -> Result<(), Breach> {
        let PeerCredit::Counted(base) = self.flow else { return Ok(()) };
        let said = word as u32;
        let used = sent.wrapping_add(self.given_back).wrapping_sub(base);
        let before = core::mem::replace(before, said);
        let left = said.wrapping_sub(used);
        if said.wrapping_sub(before) > u32::MAX / 2 {
            Err(Breach::WentBack { said, before })
        } else if left > u32::MAX / 2 {
            Err(Breach::WentBack { said, before: used })
        } else if left > WINDOW_MAX {
            Err(Breach::GrantedTooMuch { said: left, most: WINDOW_MAX })
        } else {
            Ok(())
        }
    }

    /// The peer says in its word that it waits for more credit.
    pub(super) fn is_wanted(word: u64) -> bool {
        word & WANTS != 0
    }

    /// The program was told that it has that much credit.
    pub(super) fn note_room(&mut self, left: u32) {
        if let PeerCredit::Counted(first) = self.flow {
            self.lacks |= left < first;
        }
    }

    /// True if the program was told of less than in the beginning, since the last review.
    pub(super) fn lacks_room(&self) -> bool {
        self.lacks
    }

    /// A review of what this side may send. If nothing was sent since the last one, it wants more
    /// if the program found less room than in the beginning. Otherwise it gives back what may be
    /// sent beyond [`LEAST`], if the peer asks for it. True if the peer is to be told.
    pub(super) fn review_room(&mut self, sent: u32, word: u64) -> bool {
        let is_quiet = core::mem::replace(&mut self.sent_before, sent) == sent;
        let lacks = core::mem::take(&mut self.lacks);
        if !matches!(self.flow, PeerCredit::Counted(_)) || self.peer_word.is_none() {
            return false;
        }
        // While it sends, what it said before stays: a busy sender is busy either way.
        let wants = if is_quiet { lacks } else { self.says & WANTS != 0 };
        let tell = self.says(WANTS, wants);
        let more = self.left(sent, word).saturating_sub(LEAST);
        let asks = word & ASKS != 0;
        if !asks || !is_quiet || wants || more == 0 {
            return tell;
        }
        self.given_back = self.given_back.wrapping_add(more);
        let others = self.says & (GOODBYE | FINISHED | WANTS | ASKS);
        self.says = u64::from(self.given_back & GIVEN_MASK) << GIVEN_BIT | others;
        true
    }

    /// Sets the peer's handshake; without one it is no worker. False: it was set before, and only
    /// the first counts.
    pub(super) fn set_handshake(&mut self, handshake: Option<Handshake>) -> bool {
        if self.flow != PeerCredit::Unknown {
            return false;
        }
        self.flow = match handshake {
            Some(Handshake { window: window @ 1.., .. }) => PeerCredit::Counted(window),
            _ => PeerCredit::Free,
        };
        self.peer_word = handshake.map(|handshake| handshake.word);
        true
    }

    /// Credit that a fresh message must leave for replies.
    pub(super) fn spare(&self) -> u32 {
        u32::from(self.flow != PeerCredit::Free)
    }

    /// Messages that may be sent, when `sent` were, and the peer has written `word`.
    pub(super) fn left(&self, sent: u32, word: u64) -> u32 {
        match self.flow {
            PeerCredit::Unknown => 0,
            PeerCredit::Free => u32::MAX,
            PeerCredit::Counted(base) => {
                let gone = sent.wrapping_add(self.given_back);
                // A word that no worker writes gives nothing, or the longest window at most, which
                // is what an honest one never goes beyond. The next review ends its writer.
                let left = base.wrapping_add(word as u32).wrapping_sub(gone);
                if left > u32::MAX / 2 { 0 } else { left.min(WINDOW_MAX) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(base: u32) -> Credit {
        let mut credit = Credit::new(8);
        let handshake = Handshake { window: base, word: Remote::default(), block_bytes: 64 };
        credit.set_handshake(Some(handshake));
        credit
    }

    fn take_back(credit: &mut Credit, word: u64, held: impl FnOnce() -> u32) -> u32 {
        credit.take_back(word, held).unwrap_or(0)
    }

    /// The credit across the wrap of the count, and for words that make no sense.
    #[test]
    fn credit_follows_the_word_and_stays_in_bounds() {
        let mut credit = Credit::new(8);
        assert_eq!(credit.left(0, 0), 0, "it has not spoken");
        let handshake = Handshake { window: 20, word: Remote::default(), block_bytes: 64 };
        assert!(credit.set_handshake(Some(handshake)) && !credit.set_handshake(None));
        assert_eq!((credit.left(0, 0), credit.left(20, 0)), (20, 0));
        assert_eq!(credit.left(20, 5), 5);
        assert_eq!(credit.left(20, 5 | 7 << 32), 5, "the upper half is not for this");
        assert_eq!(credit.left(u32::MAX - 1, 0u32.wrapping_sub(17).into()), 5);
        assert_eq!(credit.left(30, 5), 0);
        assert_eq!(credit.left(0, 1 << 30), WINDOW_MAX, "the longest window at most");
        let mut plain = Credit::new(8);
        plain.set_handshake(None);
        assert_eq!((plain.left(1000, 0), plain.spare(), plain.peer_word), (u32::MAX, 0, None));
    }

    /// A sender that is asked and quiet gives back all but two, once; the receiver learns how much
    /// from the word, once.
    #[test]
    fn a_quiet_sender_gives_back_what_it_is_asked_for() {
        let (mut sender, mut receiver) = (counted(4), counted(4));
        let asked = 26 | ASKS;
        assert!(!sender.review_room(10, asked), "it has just sent");
        assert!(!sender.review_room(10, 26), "it is not asked");
        assert_eq!(sender.left(10, asked), 20);
        assert!(sender.review_room(10, asked));
        assert_eq!(sender.left(10, asked), 2);
        assert!(!sender.review_room(10, asked), "nothing is left to give");
        let word = sender.word();
        receiver.change_window(24, 16, 0, false);
        assert_eq!(take_back(&mut receiver, word, || 0), 0, "the peer was not told of so much");
        receiver.was_told();
        assert_eq!(
            (take_back(&mut receiver, word, || 0), take_back(&mut receiver, word, || 0)),
            (18, 0)
        );
        assert_eq!(sender.left(10, 30), 6, "what comes after counts as ever");
        let mut free = Credit::new(4);
        free.set_handshake(None);
        assert!(!free.review_room(0, asked));
    }

    /// What the peer has given back is never more than it had: what it was told of, less what it
    /// has used and given back.
    #[test]
    fn a_peer_gives_back_no_more_than_it_had() {
        let given = |count: u32| u64::from(count & GIVEN_MASK) << GIVEN_BIT;
        let mut receiver = counted(4);
        for lie in [9, 1 << 27, GIVEN_MASK] {
            assert_eq!(take_back(&mut receiver, given(lie), || 0), 0, "{lie}");
        }
        assert_eq!(take_back(&mut receiver, given(5), || 0), 5);
        assert_eq!(take_back(&mut receiver, given(9), || 0), 0, "three are left");
        receiver.until_return -= 2;
        receiver.begin_return();
        assert_eq!(take_back(&mut receiver, given(7), || 0), 0, "two more are used");
        assert_eq!(take_back(&mut receiver, given(6), || 0), 1);
        receiver.was_told();
        assert_eq!(take_back(&mut receiver, given(8), || 2), 0, "two are held, and none is left");
        receiver.until_return -= 2;
        assert_eq!(take_back(&mut receiver, given(8), || 0), 0, "done with, and not counted yet");
        receiver.until_return += 2;
        assert_eq!(take_back(&mut receiver, given(8), || 0), 2);
        // It sent more than it might.
        receiver.until_return -= 2;
        receiver.begin_return();
        assert_eq!(
            (take_back(&mut receiver, given(9), || 0), take_back(&mut receiver, given(8), || 0)),
            (0, 0)
        );
    }

    /// The last word of a side that finishes grants what its steps have counted: the peer may use
    /// that, and no more.
    #[test]
    fn any_word_that_is_written_grants() {
        let mut receiver = counted(4);
        receiver.until_return -= 4;
        assert!(receiver.step(false));
        receiver.word_was_written();
        assert!(receiver.due, "it is told again");
        assert_eq!(receiver.check_sent(8), Ok(()));
        let broke = Err(Breach::SentTooMuch { sent: 13, allowed: 12 });
        assert_eq!(receiver.check_sent(9), broke);
    }

    /// Words that an honest peer writes are fine across the wrap of the count.
    #[test]
    fn an_honest_word_never_goes_back() {
        let sender = counted(20);
        let near = u32::MAX - 5;
        let mut seen = near;
        let mut check = |sent: u32, word: u64| sender.check_word(sent, word, &mut seen);
        for (sent, word) in [(near, near), (near.wrapping_add(20), near), (3, 2), (22, 2)] {
            let word = u64::from(word) | GOODBYE | FINISHED | ASKS | WANTS;
            assert_eq!(check(sent, word), Ok(()), "{sent} {word}");
        }
        assert_eq!(check(23, 2), Err(Breach::WentBack { said: 2, before: 3 }));
        let mut plain = Credit::new(8);
        plain.set_handshake(None);
        assert_eq!(plain.check_word(100, 5, &mut 7), Ok(()), "it is no worker");
        assert_eq!(plain.check_sent(100), Ok(()));
    }

    /// A sender that waits for more than it has says so, once, and gives nothing back meanwhile.
    #[test]
    fn a_sender_that_waits_for_room_wants_credit() {
        let mut sender = counted(24);
        let asked = ASKS;
        for (found, told, wants) in [(24, true, false), (23, true, true), (2, false, true)] {
            let mut sender = counted(24);
            (sender.sent_before, sender.says) = (1, if found == 2 { WANTS } else { 0 });
            sender.note_room(found);
            assert_eq!(sender.review_room(1, asked), told, "{found}");
            assert_eq!((Credit::is_wanted(sender.word()), sender.given_back > 0), (wants, !wants));
        }
        // In a stream it says nothing. It says that it wants no more when it is quiet again.
        for (sent, found, told) in [(1, 3, false), (1, 3, true), (2, 3, false), (3, 24, false)] {
            sender.note_room(found);
            assert_eq!(sender.review_room(sent, asked), told, "{sent}");
        }
        assert!(Credit::is_wanted(sender.word()));
        assert!(sender.review_room(3, 0) && !Credit::is_wanted(sender.word()));
    }

    /// A side that has said its last word, or goodbye, still gives back, and goes on saying so.
    #[test]
    fn what_was_said_stays_in_the_word() {
        let mut sender = counted(4);
        sender.say_finished();
        assert!(!sender.review_room(10, 26 | ASKS) && sender.review_room(10, 26 | ASKS));
        assert!(sender.has_said_finished());
        sender.say_goodbye();
        assert!(sender.review_room(10, 30 | ASKS));
        let said = sender.word();
        assert_eq!(said & (FINISHED | GOODBYE), FINISHED | GOODBYE);
        let word = FINISHED | GOODBYE | WANTS;
        assert_eq!(take_back(&mut counted(4), word, || 0), 0, "it gives nothing back");
    }

    /// A peer that was asked to give credit back may have only two: it is told of each message,
    /// until it has sent more than it could without a later word.
    #[test]
    fn a_peer_that_may_have_given_back_is_told_often() {
        let mut receiver = Credit::new(4);
        receiver.change_window(20, 16, 0, false);
        receiver.was_told();
        assert_eq!(receiver.until_return, 10);
        assert!(receiver.ask_back() && !receiver.ask_back());
        receiver.change_window(20, 0, 0, false);
        assert_eq!((receiver.until_return, receiver.word() & ASKS != 0), (1, true));
        receiver.was_told();
        for done in 1..24 {
            receiver.until_return -= 1;
            assert_eq!(receiver.begin_return(), 1);
            receiver.change_window(20, 0, 0, false);
            receiver.was_told();
            assert_eq!(receiver.word(), 16 + done, "it is not asked any more");
            let most = if done > 20 { 10 } else { 1 };
            assert_eq!(receiver.until_return, most, "{done}");
            if done > 20 {
                return;
            }
        }
        panic!("it is told often for ever");
    }
}
