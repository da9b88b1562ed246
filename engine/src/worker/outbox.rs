//! What a handler may do: send, close, look at the room there is.

use super::core::Core;
use super::handler::PeerId;
use crate::provider::Provider;
use crate::wr::SendOp;

/// Sends of one worker. They gather per peer and go out with one doorbell: when a batch is full,
/// and at the end of the turn.
pub struct Outbox<'a, P: Provider> {
    pub(super) core: &'a mut Core<P>,
}

/// Why a message was not taken. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// That peer is gone, or not yet up.
    #[error("the peer is not connected")]
    NotConnected,
    /// Its send queue is full: back-pressure. Try again after a turn.
    #[error("the peer's send queue is full; try again after a turn")]
    Full,
    /// All send blocks are in flight: back-pressure. Try again after a turn.
    #[error("all send blocks are in flight; try again after a turn")]
    NoBlock,
    /// Longer than a block.
    #[error("the message is longer than a block")]
    TooLong,
}

impl<P: Provider> Outbox<'_, P> {
    /// Sends a copy of `bytes`, at most a block long.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), SendError> {
        self.core.send_copy(peer, SendOp::Send, bytes)
    }

    /// Sends a copy of `bytes` with immediate data.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send_imm(&mut self, peer: PeerId, bytes: &[u8], imm: u32) -> Result<(), SendError> {
        self.core.send_copy(peer, SendOp::SendWithImm(imm), bytes)
    }

    /// Sends a copy of `bytes` now, with a doorbell of its own, after what waits for that peer: for
    /// a message whose latency counts. An inline one is read from `bytes` and copied once.
    ///
    /// # Errors
    /// See [`SendError`].
    #[inline(always)]
    pub fn send_now(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), SendError> {
        self.core.send_now(peer, SendOp::Send, bytes)
    }

    /// Messages that peer's send queue has room for now; 0 for one that is gone.
    pub fn room(&mut self, peer: PeerId) -> u32 {
        self.core.room(peer)
    }

    /// Rings every bell now, without waiting for the end of the turn.
    pub fn flush(&mut self) {
        self.core.flush();
    }

    /// Ends the connection to a peer. What was sent and not yet taken may be lost; its
    /// [`super::Handler::on_peer_down`] comes when it has drained.
    pub fn close(&mut self, peer: PeerId) {
        self.core.close(peer);
    }
}
