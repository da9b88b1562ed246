//! The handler of a rank's worker: answers those that call it, and takes the answers of those that
//! it calls.

use std::collections::VecDeque;

use doorbell::Fabric;
use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, Verdict};

use crate::meet::wire;
use crate::ranks::sizes::{Sizes, Stream};

/// What a caller says when it connects, in this order: its rank, its thread, and 1 if the link
/// stays idle.
const CALL_BYTES: usize = 12;

/// A link's caller, as private data.
pub(crate) fn call(rank: u32, thread: u32, is_idle: bool) -> [u8; CALL_BYTES] {
    let mut bytes = [0; CALL_BYTES];
    bytes[..4].copy_from_slice(&rank.to_le_bytes());
    bytes[4..8].copy_from_slice(&thread.to_le_bytes());
    bytes[8..].copy_from_slice(&u32::from(is_idle).to_le_bytes());
    bytes
}

/// The seed of the sizes of a link.
pub(crate) fn seed(from: u32, to: u32, thread: u32) -> u64 {
    (u64::from(from) << 40) ^ (u64::from(to) << 20) ^ u64::from(thread)
}

/// Reads what a caller said; `None` if it said nothing, as those do that were called.
fn read_call(bytes: &[u8]) -> Option<(u32, u32, bool)> {
    let mut words = bytes.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let mut next = || words.next().map(u32::from_le_bytes);
    Some((next()?, next()?, next()? == 1))
}

/// A link of this worker.
enum Link {
    /// No peer, or one that stays idle.
    Idle,
    /// It calls this rank.
    From(Caller),
    /// This rank calls it.
    To(Target),
}

/// One that calls this rank.
struct Caller {
    sizes: Stream,
    /// The number of the next message.
    next: u64,
    received: u64,
    wrong: u64,
}

/// One that this rank calls: the echoes that are due.
struct Target {
    /// Size and number of messages that are under way, the oldest first.
    due: VecDeque<(usize, u64)>,
}

/// The handler.
pub(crate) struct Party {
    /// This rank and its thread.
    is: (u32, u32),
    sizes: Sizes,
    is_echo: bool,
    links: Vec<Link>,
    /// The peers that this rank has dialed, in that order, idle ones too.
    pub(crate) dialed: Vec<PeerId>,
    /// Busy links that have come.
    pub(crate) came: u32,
    pub(crate) came_idle: u32,
    /// Busy links that have marked the begin, and the end.
    pub(crate) marks: u32,
    pub(crate) ends: u32,
    pub(crate) echoes: u64,
    pub(crate) wrong: u64,
    /// Answers to the words since [`Party::expect_answers`].
    pub(crate) acks: u32,
    /// What the answers say: messages received, and messages wrong.
    answers: (u64, u64),
    /// Answers to words that were not sent yet.
    pub(crate) owed: Vec<(PeerId, [u8; wire::WORD_BYTES])>,
    /// A peer is down, though this is not over.
    down: Option<DownReason>,
    pub(crate) is_over: bool,
}

impl Party {
    pub(crate) fn new(is: (u32, u32), sizes: &Sizes, is_echo: bool, peers: usize) -> Party {
        Party {
            is,
            sizes: sizes.clone(),
            is_echo,
            links: (0..peers).map(|_| Link::Idle).collect(),
            dialed: Vec::with_capacity(peers),
            came: 0,
            came_idle: 0,
            marks: 0,
            ends: 0,
            echoes: 0,
            wrong: 0,
            acks: 0,
            answers: (0, 0),
            owed: Vec::with_capacity(2 * peers),
            down: None,
            is_over: false,
        }
    }

    /// The answers from here on.
    pub(crate) fn expect_answers(&mut self) {
        (self.acks, self.answers) = (0, (0, 0));
    }

    /// Messages received and messages wrong, as the answers say.
    pub(crate) fn answers(&self) -> (u64, u64) {
        self.answers
    }

    /// Why a peer is down before the end.
    pub(crate) fn down(&self) -> Option<DownReason> {
        self.down.filter(|_| !self.is_over)
    }

    /// Messages of all callers so far.
    pub(crate) fn received(&self) -> u64 {
        let of = |link: &Link| if let Link::From(caller) = link { caller.received } else { 0 };
        self.links.iter().map(of).sum()
    }

    /// A message to a target is under way, whose echo must have that size and number.
    #[inline(always)]
    pub(crate) fn sent(&mut self, to: PeerId, size: usize, number: u64) {
        if let Link::To(target) = &mut self.links[to.index()] {
            target.due.push_back((size, number));
        }
    }

    #[cold]
    #[inline(never)]
    fn word(&mut self, message: &Message<'_>, imm: u32) -> Verdict {
        match (&self.links[message.peer().index()], imm) {
            (Link::From(caller), wire::MARK | wire::END) => {
                if imm == wire::MARK {
                    self.marks += 1
                } else {
                    self.ends += 1
                }
                // Sent after the turn: here there may be no room, beside what this rank sends.
                self.owed.push((message.peer(), wire::words(caller.received, caller.wrong)));
            }
            (Link::To(_), wire::ACK) => {
                let (received, wrong) = wire::read_words(message.bytes());
                self.acks += 1;
                self.answers.0 += received;
                self.answers.1 += wrong;
            }
            _ => self.wrong += 1,
        }
        Verdict::Done
    }
}

impl<F: Fabric> Handler<F> for Party {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, F>) -> Verdict {
        if let Some(imm) = message.imm() {
            return self.word(&message, imm);
        }
        match &mut self.links[message.peer().index()] {
            Link::From(caller) => {
                let size = caller.sizes.next();
                if !wire::is_stamped(message.bytes(), size, caller.next) {
                    caller.wrong += 1;
                }
                caller.next += 1;
                caller.received += 1;
                if self.is_echo {
                    return Verdict::Reply { len: message.len() };
                }
            }
            Link::To(target) => {
                let due = target.due.pop_front();
                let right = |(size, number)| wire::is_stamped(message.bytes(), size, number);
                if !due.is_some_and(right) {
                    self.wrong += 1;
                }
                self.echoes += 1;
            }
            Link::Idle => self.wrong += 1,
        }
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, F>) {
        let called = out.peer_info(peer).and_then(|info| read_call(info.data()));
        let (rank, thread) = self.is;
        let link = match called {
            Some((from, _, false)) => {
                self.came += 1;
                let sizes = self.sizes.stream(seed(from, rank, thread));
                Link::From(Caller { sizes, next: 0, received: 0, wrong: 0 })
            }
            Some((_, _, true)) => {
                self.came_idle += 1;
                Link::Idle
            }
            None => {
                self.dialed.push(peer);
                Link::To(Target { due: VecDeque::with_capacity(2) })
            }
        };
        if let Some(place) = self.links.get_mut(peer.index()) {
            *place = link;
        }
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.down = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_back_and_silence_is_none() {
        assert_eq!(read_call(&call(7, 2, true)), Some((7, 2, true)));
        assert_eq!(read_call(&call(1 << 20, 0, false)), Some((1 << 20, 0, false)));
        assert_eq!(read_call(&[]), None);
        assert_ne!(seed(0, 1, 0), seed(1, 0, 0));
    }
}
