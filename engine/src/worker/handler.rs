//! What a user writes: a handler, called by the worker for each thing that happens.

use core::fmt;

use super::datagram::Datagram;
use super::outbox::Outbox;
use crate::provider::Provider;
use crate::wc::Status;

/// A peer: one connection of one worker. A number that is used again gets a new generation, so
/// an old `PeerId` never means a new peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerId {
    pub(super) slot: u32,
    pub(super) generation: u16,
}

impl PeerId {
    /// A small number, unique among the worker's present peers: an index for tables.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}.{}", self.slot, self.generation)
    }
}

/// A message, lent to the handler for one call. Its block belongs to the worker, and goes back
/// to the shared queue or out as the reply, as the verdict says.
pub struct Message<'a> {
    pub(super) peer: PeerId,
    pub(super) block: &'a mut [u8],
    pub(super) length: usize,
    pub(super) imm: Option<u32>,
    pub(super) written: Option<u32>,
}

impl Message<'_> {
    /// Who sent it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        self.block.get(..self.length).unwrap_or_default()
    }

    /// The whole block the message lies in, to write a reply in place, of any length up to it.
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

    /// For a WRITE with immediate data: how many bytes the peer wrote to this side's memory before.
    /// Such a message has no payload.
    pub fn written(&self) -> Option<u32> {
        self.written
    }
}

/// What becomes of a message's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It is free again.
    Done,
    /// Its first `len` bytes go back to the sender, without a copy. A length beyond the block
    /// means the whole block. If the send queue is full the reply waits; it is not lost.
    Reply {
        /// Bytes.
        len: usize,
    },
    /// It stays with the handler, who has asked [`Outbox::keep`] for a token in this call, and
    /// replies or gives it back later. Without such a token this means [`Verdict::Done`].
    Keep,
}

/// Why a peer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// This side asked for it.
    Closed,
    /// The connection manager says it has ended: the peer closed, or died.
    Disconnected,
    /// A request failed with this status.
    Failed(Status),
}

/// What the worker calls. Everything runs on the worker's thread, to completion; nothing here
/// should block.
pub trait Handler<P: Provider> {
    /// A message has come.
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict;

    /// A datagram has come, from whomever; see [`Outbox::sender_of`] and [`Outbox::send_to`] for an
    /// answer. Its bytes are lent for this call.
    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        let _ = (datagram, out);
    }

    /// A peer is connected: it may be sent to. Comes before its first message.
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let _ = (peer, out);
    }

    /// A peer is gone; comes once for each peer that was up. What was sent to it and not yet
    /// answered may or may not have arrived. Messages of it that were kept can be read in this
    /// call for the last time; after it their tokens name nothing.
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        let _ = (peer, why, out);
    }

    /// A request taken by [`Outbox::request`] is over: the bytes of its pieces are the handler's
    /// again, and what was read is there. Comes once for each, before its peer is down. After an
    /// error ([`Status::Flushed`]: with its peer) the peer may have carried it out or not.
    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        let _ = (peer, token, result, out);
    }

    /// Another thread has submitted this key: see [`super::Handle::submit`].
    fn on_work(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        let _ = (key, out);
    }

    /// A timer that was set with this key is due: see [`Outbox::set_timer`].
    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        let _ = (key, out);
    }

    /// A turn found nothing to do.
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        let _ = out;
    }
}
