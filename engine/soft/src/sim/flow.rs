//! One direction of one connection, as a NIC runs it: packets are numbered, kept until they are
//! known to be taken, and resent from the first missing one (go-back-N).
//!
//! An acknowledgement says two things. *Received* stops the resending. *Taken* says that the far
//! domain has put the message into a receive, and only that completes a send.

use std_alloc::collections::VecDeque;

use super::super::wire::{Psn, Record};

/// The acknowledgement that a receiver sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// The next packet that it expects.
    pub(super) received: Psn,
    /// The first packet its domain has not taken.
    pub(super) taken: Psn,
    /// A packet came too early: the packets from `received` on are missing.
    pub(super) gap: bool,
    /// Its domain refused packet `taken`, with that status.
    pub(super) refused: Option<u8>,
}

/// Timeouts and limits, the same for every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time without an acknowledgement before packets are sent again, in nanoseconds.
    pub timeout_ns: u64,
    /// The number of resends before the queue pair fails with `RETRY_EXC` (`retry_cnt`).
    pub retry_cnt: u8,
    /// Packets on the way that the peer has not received.
    pub window: usize,
    /// Packets that a receiver keeps because its domain's ring has no space.
    pub kept: usize,
}

/// The news in an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// That many more packets are taken.
    pub(super) taken: u32,
    /// The packet after them is refused.
    pub(super) refused: Option<u8>,
    /// The rest must be sent again.
    pub(super) resend: bool,
}

/// The sending half.
pub(super) struct Sender {
    /// Number of the first packet in `kept`.
    oldest: Psn,
    /// All packets not known to be taken.
    kept: VecDeque<Record>,
    /// How many of them the peer has received.
    received: usize,
    /// When they are sent again.
    deadline: Option<u64>,
    tries: u8,
    /// The connection has failed in this direction: nothing more is sent.
    pub(super) dead: bool,
}

impl Sender {
    pub(super) fn new(first: Psn) -> Sender {
        let kept = VecDeque::new();
        Sender { oldest: first, kept, received: 0, deadline: None, tries: 0, dead: false }
    }

    /// Adds a packet and numbers it.
    pub(super) fn push(&mut self, record: Record, now: u64, patience: &Patience) -> Psn {
        let psn = self.oldest.plus(self.kept.len() as u32);
        self.kept.push_back(record);
        self.deadline.get_or_insert(now + patience.timeout_ns);
        psn
    }

    /// Packets on the way that the peer has not received.
    pub(super) fn flying(&self) -> usize {
        self.kept.len() - self.received
    }

    /// True if the far domain has not taken some packet.
    pub(super) fn has_untaken(&self) -> bool {
        !self.dead && !self.kept.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        if self.dead { None } else { self.deadline }
    }

    /// The oldest packet not taken.
    pub(super) fn oldest(&self) -> Psn {
        self.oldest
    }

    /// Handles an acknowledgement from the peer. Ignores an outdated one that was overtaken.
    pub(super) fn hear(&mut self, ack: &Ack, now: u64, patience: &Patience) -> Heard {
        let taken = ack.taken.past(self.oldest) as usize;
        let received = ack.received.past(self.oldest) as usize;
        if self.dead || taken > received || received > self.kept.len() {
            return Heard::default();
        }
        self.kept.drain(..taken);
        self.oldest = ack.taken;
        self.received = self.received.saturating_sub(taken).max(received - taken);
        self.tries = 0;
        self.deadline = (!self.kept.is_empty()).then_some(now + patience.timeout_ns);
        let refused = ack.refused.filter(|_| !self.kept.is_empty());
        self.dead |= refused.is_some();
        Heard { taken: taken as u32, refused, resend: ack.gap && self.flying() > 0 && !self.dead }
    }

    /// Handles a passed deadline. Returns false if that was the last try.
    pub(super) fn time_out(&mut self, now: u64, patience: &Patience) -> bool {
        if self.tries >= patience.retry_cnt {
            self.dead = true;
            return false;
        }
        self.tries += 1;
        self.deadline = Some(now + patience.timeout_ns);
        true
    }

    /// The packets to send again: all that the peer lacks, or the oldest, to make the peer answer.
    pub(super) fn again(&self) -> impl Iterator<Item = (Psn, &Record)> {
        let (from, count) = match self.flying() {
            0 => (0, 1),
            flying => (self.received, flying),
        };
        let first = self.oldest.plus(from as u32);
        let rest = self.kept.iter().skip(from).take(count);
        rest.enumerate().map(move |(n, record)| (first.plus(n as u32), record))
    }
}

/// What a receiver did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// Next in order.
    New,
    /// A duplicate, or in a direction that has failed.
    Old,
    /// An earlier packet is missing.
    Early,
    /// No room now; the sender will try again.
    NoRoom,
}

/// The receiving half.
pub(super) struct Receiver {
    expected: Psn,
    taken: Psn,
    /// Received in order, and not yet in the domain's ring. A record without a number is not from
    /// the peer: nobody waits to hear its outcome.
    pub(super) ready: VecDeque<(Option<Psn>, Record)>,
    /// The gap was reported; one report is enough until it closes.
    gap_told: bool,
    refused: Option<u8>,
}

impl Receiver {
    pub(super) fn new(first: Psn) -> Receiver {
        let ready = VecDeque::new();
        Receiver { expected: first, taken: first, ready, gap_told: false, refused: None }
    }

    /// Handles a packet that has arrived, and returns the acknowledgement to send.
    pub(super) fn data(&mut self, psn: Psn, record: Record, patience: &Patience) -> (Got, Ack) {
        let ahead = psn.past(self.expected);
        let got = if self.refused.is_some() || ahead > u32::MAX >> 9 {
            Got::Old
        } else if ahead > 0 {
            Got::Early
        } else if self.ready.len() >= patience.kept {
            Got::NoRoom
        } else {
            self.ready.push_back((Some(psn), record));
            self.expected = psn.plus(1);
            self.gap_told = false;
            Got::New
        };
        let gap = got == Got::Early && !self.gap_told;
        self.gap_told |= gap;
        (got, self.ack(gap))
    }

    /// The acknowledgement to send now.
    pub(super) fn ack(&self, gap: bool) -> Ack {
        Ack { received: self.expected, taken: self.taken, gap, refused: self.refused }
    }

    /// The domain has refused a packet, and takes no more.
    pub(super) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// True unless the domain has refused that packet or one before it. It may report the refusal
    /// first.
    pub(super) fn serves(&self, psn: Psn) -> bool {
        self.refused.is_none() || psn.past(self.taken) > u32::MAX >> 9
    }

    /// Notes that the domain has taken that packet and all before it. Returns true if that is news.
    pub(super) fn take(&mut self, psn: Psn) -> bool {
        if self.refused.is_some() {
            return false;
        }
        self.taken = psn.plus(1);
        true
    }

    /// The domain has refused that packet, and has taken all before it.
    pub(super) fn refuse(&mut self, psn: Psn, status: u8) {
        if self.refused.is_none() {
            self.taken = psn;
            self.refused = Some(status);
            self.ready.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::layout::{Header, KIND_SEND, RecordFlags};
    use std::vec::Vec;
    use std_alloc::sync::Arc;

    const PATIENCE: Patience = Patience { timeout_ns: 100, retry_cnt: 2, window: 8, kept: 4 };

    fn record(n: u8) -> Record {
        let header = Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, 1, 9);
        Record { header, imm: 0, payload: Arc::from([n]) }
    }

    /// Numbers cross 2^24 like any other.
    #[test]
    fn numbers_wrap() {
        let first = Psn::new(0x00ff_fffe);
        assert_eq!(first.plus(3), Psn::new(1));
        assert_eq!(Psn::new(1).past(first), 3);
        let (mut sender, mut receiver) = (Sender::new(first), Receiver::new(first));
        for n in 0..6u8 {
            let psn = sender.push(record(n), 0, &PATIENCE);
            let (got, ack) = receiver.data(psn, record(n), &PATIENCE);
            assert_eq!(got, Got::New);
            assert!(receiver.take(psn));
            assert_eq!(sender.hear(&ack, 0, &PATIENCE).taken, 0);
            assert_eq!(sender.hear(&receiver.ack(false), 0, &PATIENCE).taken, 1);
            receiver.ready.clear();
        }
        assert_eq!(sender.oldest(), Psn::new(4));
        assert_eq!(sender.deadline(), None);
    }

    #[test]
    fn doubles_gaps_and_lack_of_room_are_told_apart() {
        let first = Psn::new(0);
        let mut receiver = Receiver::new(first);
        let (got, ack) = receiver.data(first.plus(1), record(1), &PATIENCE);
        assert!(got == Got::Early && ack.gap && ack.received == first);
        let (_, ack) = receiver.data(first.plus(2), record(2), &PATIENCE);
        assert!(!ack.gap, "told once");
        for n in 0..4u8 {
            assert_eq!(receiver.data(first.plus(n.into()), record(n), &PATIENCE).0, Got::New);
        }
        assert_eq!(receiver.data(first.plus(4), record(4), &PATIENCE).0, Got::NoRoom);
        assert_eq!(receiver.data(first.plus(3), record(3), &PATIENCE).0, Got::Old);
        assert_eq!(receiver.ack(false).received, first.plus(4));
        receiver.refuse(first.plus(2), 13);
        assert!(!receiver.take(first.plus(3)));
        assert!(receiver.serves(first.plus(1)), "it was taken, whenever the domain says so");
        assert!(!receiver.serves(first.plus(2)) && !receiver.serves(first.plus(3)));
        let ack = receiver.ack(false);
        assert!(ack.taken == first.plus(2) && ack.refused == Some(13));
    }

    #[test]
    fn missing_packets_are_resent_until_the_retries_end() {
        let first = Psn::new(0);
        let mut sender = Sender::new(first);
        for n in 0..3 {
            sender.push(record(n), 0, &PATIENCE);
        }
        let again =
            |sender: &Sender| sender.again().map(|(psn, _)| psn.number()).collect::<Vec<_>>();
        assert_eq!(again(&sender), [0, 1, 2]);
        let mut ack = Ack { received: Psn::new(2), taken: first, gap: false, refused: None };
        assert_eq!(sender.hear(&ack, 50, &PATIENCE), Heard::default());
        assert_eq!((again(&sender), sender.deadline()), (std::vec![2], Some(150)));
        ack.received = Psn::new(3);
        sender.hear(&ack, 60, &PATIENCE);
        assert_eq!(again(&sender), [0], "one, to make the peer speak");
        // Overtaken, or nonsense: no effect.
        let old = Ack { received: Psn::new(9), taken: Psn::new(8), gap: true, refused: Some(1) };
        assert_eq!(sender.hear(&old, 70, &PATIENCE), Heard::default());
        assert!(sender.time_out(160, &PATIENCE) && sender.time_out(260, &PATIENCE));
        assert!(!sender.time_out(360, &PATIENCE) && sender.dead);
        assert_eq!(sender.deadline(), None);
    }

    #[test]
    fn a_refusal_ends_the_direction() {
        let first = Psn::new(0);
        let mut sender = Sender::new(first);
        for n in 0..3 {
            sender.push(record(n), 0, &PATIENCE);
        }
        let ack = Ack { received: Psn::new(3), taken: Psn::new(1), gap: false, refused: Some(13) };
        let heard = sender.hear(&ack, 1, &PATIENCE);
        assert_eq!(heard, Heard { taken: 1, refused: Some(13), resend: false });
        assert!(sender.dead);
        assert_eq!(sender.hear(&ack, 2, &PATIENCE), Heard::default());
    }
}
