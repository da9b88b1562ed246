//! Requests with a token: sends without a copy from registered memory, and everything one-sided.
//! Each ends once, with a call of [`super::Handler::on_send_done`], however it ended.

use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

use super::message::PeerId;
use super::regions::Piece;
use crate::room::Room;
use crate::wc::Status;
use crate::wr::SendOp;

/// What a peer's queue pair should do. The bytes of the pieces belong to the device until the
/// request has ended.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The operation with its operands.
    pub op: SendOp,
    /// The payload, gathered in order, or the memory for the result of a READ or an atomic. At most
    /// [`super::PIECES_MAX`].
    pub pieces: &'a [Piece],
    /// It starts only after earlier READs and atomics of this peer have finished (SQ-5).
    pub fence: bool,
    /// Comes back with the result.
    pub token: u64,
}

/// A request in flight.
#[derive(Clone, Copy)]
struct Pending {
    peer: PeerId,
    token: u64,
    status: Status,
}

/// Requests in flight, and ended ones for the handler.
pub(super) struct Requests {
    places: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// Ended requests, the oldest first.
    done: VecDeque<u32>,
}

/// How a request ended.
pub(super) struct Ended {
    pub(super) peer: PeerId,
    pub(super) token: u64,
    pub(super) result: Result<(), Status>,
}

impl Requests {
    pub(super) fn new(most: u32) -> Requests {
        Requests {
            places: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
            done: VecDeque::with_capacity(most as usize),
        }
    }

    pub(super) fn begin(&mut self, peer: PeerId, token: u64) -> Option<u32> {
        let index = self.free.pop()?;
        *self.places.get_mut(index as usize)? =
            Some(Pending { peer, token, status: Status::Success });
        Some(index)
    }

    /// The request was not posted after all: nobody is told.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = None;
            self.free.put(index);
        }
    }

    /// The request with that index has ended.
    #[cold]
    pub(super) fn end(&mut self, index: u32, status: Status) {
        if let Some(Some(pending)) = self.places.get_mut(index as usize) {
            pending.status = status;
            self.done.put(index);
        }
    }

    /// True if the handler is to be told something.
    #[inline(always)]
    pub(super) fn has_ended(&self) -> bool {
        !self.done.is_empty()
    }

    /// The next ended request.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        let index = self.done.pop_front()?;
        let Pending { peer, token, status } = self.places.get_mut(index as usize)?.take()?;
        self.free.put(index);
        let result = if status.is_ok() { Ok(()) } else { Err(status) };
        Some(Ended { peer, token, result })
    }

    /// The number of requests in flight, and of ended ones.
    pub(super) fn pending(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl Request<'_> {
    /// True if it uses a receive of the peer.
    pub(super) fn is_message(&self) -> bool {
        self.op.is_send() || matches!(self.op, SendOp::WriteWithImm(..))
    }
}
