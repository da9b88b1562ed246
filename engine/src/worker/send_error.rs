//! Why a message or a request was not accepted.

use core::fmt;

/// Why a message was not accepted. No part of it was sent.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer is gone, or not yet up.
    #[error("the peer is not connected: send after on_peer_up and before on_peer_down")]
    NotConnected,
    /// This side has finished sending to the peer ([`super::Outbox::finish_sending`]). The peer may
    /// still send.
    #[error("this side has finished sending to the peer (Outbox::finish_sending)")]
    FinishedSending,
    /// Its send queue is full (`Config::send_queue`): back-pressure. Try again after a turn, as
    /// [`Outbox::send`](super::Outbox::send) explains.
    #[error("the peer's send queue (Config::send_queue) is full; try again after a turn")]
    Full,
    /// The peer has promised no receive for it (no credit): back-pressure. Try again after a turn,
    /// as [`Outbox::send`](super::Outbox::send) explains. How many it promises follows from the
    /// peer's `Config::recv_blocks` and `Config::window`.
    #[error(
        "the peer has promised no receive for another message: it is busy, or nobody turns its \
         worker; try again after a turn (its Config::recv_blocks and Config::window say how many \
         messages may be under way)"
    )]
    NoCredit,
    /// All send blocks (`Config::send_blocks`) are in flight: back-pressure. Try again after a
    /// turn.
    #[error("all send blocks (Config::send_blocks) are in flight; try again after a turn")]
    NoBlock,
    /// As many requests are pending as `Config::requests` says, or calls or transfers as
    /// `Calls::new` or `Large::new` was told: back-pressure.
    #[error(
        "as many requests, calls or transfers are pending as Config::requests, Calls::new or \
         Large::new allows; try again after one has ended"
    )]
    TooMany,
    /// All timers are set, and the call has a deadline: back-pressure.
    #[error("all timers (Config::timers) are set; try again after one is due")]
    NoTimer,
    /// A piece does not lie in the worker's memory, or there are too many.
    #[error("a piece is not in the worker's memory, or there are more than four")]
    OutOfBounds,
    /// Peers may not read a piece that is offered to them.
    #[error("peers may not read the region: register it with Access::REMOTE_READ")]
    NoRights,
    /// The operation and its pieces do not fit: the result of an atomic has eight bytes.
    #[error("the operation and its pieces do not go together")]
    Malformed,
    /// The pieces of a request have another length than [`crate::remote::RemoteMemory`] checked, so
    /// the request might reach past the end of the peer's memory.
    #[error(
        "the pieces have another length than was checked: make the operation by RemoteMemory with \
         the length of all pieces"
    )]
    OtherLength,
    /// A WRITE with immediate data that the worker reserves for itself: see
    /// [`crate::remote::RESERVED_IMM`].
    #[error("immediate data from 0xdb1c0000 to 0xdb1cffff of a WRITE is reserved: choose another")]
    ReservedImm,
    /// Longer than a block (`Config::block_bytes`), or than the device allows.
    #[error(
        "the message is longer than Config::block_bytes (a datagram: Config::datagram_bytes), or \
         than the device allows; raise that value on both sides, or send a message by \
         doorbell::large"
    )]
    TooLong,
    /// Longer than the peer's blocks, which are shorter than this side's: see
    /// [`PeerInfo::message_max`](super::PeerInfo::message_max).
    #[error(
        "the message is longer than the peer's blocks (PeerInfo::message_max); raise the peer's \
         Config::block_bytes, or send it by doorbell::large"
    )]
    TooLongForPeer,
}

impl SendError {
    /// True for back-pressure: there is no room now, so keep what you have and try it again after a
    /// turn. That is `Full`, `NoCredit`, `NoBlock`, `TooMany` and `NoTimer`. Any other error comes
    /// back however often you try, and so do the last two if the limit that they stand for is 0.
    #[inline]
    pub fn is_back_pressure(self) -> bool {
        matches!(
            self,
            SendError::Full
                | SendError::NoCredit
                | SendError::NoBlock
                | SendError::TooMany
                | SendError::NoTimer
        )
    }
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why bytes of a worker's own memory were not lent.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// The piece does not lie in an own region of this worker.
    #[error("the piece is not in the worker's own memory")]
    OutOfBounds,
    /// A request in flight uses some of these bytes. Its `on_send_done` gives them back.
    #[error("a request in flight uses these bytes; try again after on_send_done")]
    InFlight,
}

impl fmt::Debug for LendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Only part of a list of messages was accepted: those before the first that could not be.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{accepted} messages of the list were taken, and not the next: {cause}")]
pub struct ListError {
    /// The number accepted; they are sent as a shorter list would be.
    pub accepted: usize,
    /// Why the next one was not accepted.
    pub cause: SendError,
}

impl fmt::Debug for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
