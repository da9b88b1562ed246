//! Messages as a handler sees them, and its verdicts.

use core::fmt;

use super::breach::Breach;
use crate::wc::Status;

/// A peer: one connection of one worker. Valid only in the worker that gave it. The id of a peer
/// that is gone names no peer until its number was used for 65 536 later peers, because each use of
/// a number is a new generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerId {
    pub(super) slot: u32,
    pub(super) generation: u16,
}

impl PeerId {
    /// A number below `Config::peers`, unique among the worker's present peers: an index for
    /// tables.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}.{}", self.slot, self.generation)
    }
}

/// A message, lent to the handler for one call. Its block belongs to the worker. The verdict sends
/// it back to the shared queue or out as the reply.
pub struct Message<'a> {
    pub(super) peer: PeerId,
    pub(super) block: &'a mut [u8],
    pub(super) length: usize,
    pub(super) imm: Option<u32>,
    pub(super) written: Option<u32>,
}

impl Message<'_> {
    /// The peer that sent it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        self.block.get(..self.length).unwrap_or_default()
    }

    /// The whole block of the message, to write a reply in place. The reply may be as long as the
    /// block. Behind the message the block may hold bytes of older messages, also of other peers:
    /// write every byte that you send back.
    pub fn block(&mut self) -> &mut [u8] {
        self.block
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True for an empty message.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Immediate data, if the peer sent some.
    pub fn imm(&self) -> Option<u32> {
        self.imm
    }

    /// For a WRITE with immediate data: the number of bytes that the peer wrote to this side's
    /// memory. Such a message has no payload.
    pub fn written(&self) -> Option<u32> {
        self.written
    }
}

/// Names a kept message. The worker owns the block, and takes it back when its peer is gone at the
/// latest. A token that was used, or whose peer is gone, names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(
    // One number, so that a verdict fits two registers: 7 instructions a reply.
    u64,
);

impl Token {
    pub(super) fn new(index: u32, generation: u32) -> Token {
        Token(u64::from(generation) << 32 | u64::from(index))
    }

    pub(super) fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What a handler does with a message's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The block is free again.
    Done,
    /// The block's first `len` bytes go back to the sender, without a copy. Write all of them
    /// first, by [`Message::block`], because the block may hold bytes of older messages, also of
    /// other peers. A length beyond the block means the whole block. If the send queue is full the
    /// reply waits; it is not lost. A reply longer than the peer's blocks ends the connection
    /// ([`DownReason::ReplyTooLong`]). After [`super::Outbox::finish_sending`] this means
    /// [`Verdict::Done`].
    Reply {
        /// Bytes of the reply.
        len: usize,
    },
    /// The block stays with the handler, which later replies ([`super::Outbox::reply`]) or gives it
    /// back ([`super::Outbox::give_back`]) with this token. The token must come from
    /// [`super::Outbox::keep`] for this message, in this call; otherwise this means
    /// [`Verdict::Done`].
    Keep(Token),
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// This side closed it: its handler, [`super::Worker::drain`], or the end of a `Runtime`.
    #[error("this side closed it")]
    Closed,
    /// This side was ending the connection in order ([`super::Outbox::finish`],
    /// [`super::Worker::drain`], or both sides had finished sending). That took more than
    /// `Config::drain_turns` turns, so it closed the connection: the peer did not take everything,
    /// or the handler did not answer a message that it kept. What was accepted for the peer may not
    /// have arrived.
    #[error("its end took more than Config::drain_turns turns")]
    CutOff,
    /// The connection ended in order, in one of two ways:
    /// - The peer's worker ended it ([`super::Outbox::finish`], [`super::Worker::drain`]).
    ///   Everything that it had accepted for this side has arrived. Messages of this side that it
    ///   has not answered may or may not have arrived, and requests of this side that have not
    ///   ended end with [`Status::Flushed`] or another error.
    /// - Both sides finished sending ([`super::Outbox::finish_sending`]). Everything that either
    ///   had accepted has arrived.
    #[error("it ended in order")]
    Finished,
    /// The connection manager reports the end: the peer closed, or its process or worker ended. If
    /// requests are under way then, one of them may fail before that is seen: the reason is then
    /// [`DownReason::Failed`].
    #[error("the peer closed it, or its process or worker ended")]
    Disconnected,
    /// A request failed with this status. [`Status::RetryExceeded`] is a peer that does not answer:
    /// its process or host has died, or the network is broken. A worker notices that even if it
    /// only receives, if the peer is a worker: over a network it writes to a peer to which it has
    /// sent nothing for 2^28 turns (some 3 s) or 2048 idle sleeps (at most 205 s of
    /// `run_sleeping`). The write fails after the retries of
    /// [`Config::retry`](super::Config::retry), some 2 s by default.
    #[error("a request to the peer failed: {0}")]
    Failed(Status),
    /// The handler's reply was longer than the peer's blocks: see
    /// [`PeerInfo::message_max`](super::PeerInfo::message_max). It was not sent, and this side
    /// closed the connection.
    #[error(
        "the reply was longer than the peer's blocks (PeerInfo::message_max); reply with less, or \
         raise the peer's Config::block_bytes"
    )]
    ReplyTooLong,
    /// The peer broke the rules of credit, and this side closed the connection. Other peers are not
    /// affected.
    #[error("the peer broke the rules of credit: {0}")]
    BrokeProtocol(Breach),
}

impl DownReason {
    /// The reason, if the peer had said goodbye before this was noticed: a request that fails, or
    /// the connection manager, may be the first to show its end.
    pub(super) fn after_goodbye(self) -> DownReason {
        match self {
            DownReason::Disconnected | DownReason::Failed(_) => DownReason::Finished,
            why => why,
        }
    }
}
