//! Requests with a token: sends without a copy from registered memory, and everything one-sided.
//! Each ends once, with a call of [`super::Handler::on_send_done`], however it ended.

use arrayvec::ArrayVec;
use std_alloc::collections::VecDeque;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::config::PIECES_MAX;
use super::message::PeerId;
use super::piece::{Piece, Span};
use crate::remote::RequestOp;
use crate::room::FixedCapacity;
use crate::wc::Status;
use crate::wr::SendOp;

/// What a peer's queue pair should do. The bytes of the pieces belong to the device until the
/// request has ended.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The operation with its operands. [`RemoteMemory`](crate::remote::RemoteMemory) makes a
    /// WRITE, a READ or an atomic for the length of all pieces, and refuses what the peer does not
    /// allow. [`RequestOp::unchecked`] takes any other, which only the peer's device checks: its
    /// refusal ends the connection.
    pub op: RequestOp,
    /// The payload, gathered in order, or the memory for the result of a READ or an atomic. At most
    /// [`super::PIECES_MAX`].
    pub pieces: &'a [Piece],
    /// It starts only after earlier READs and atomics of this peer have finished (SQ-5).
    pub fence: bool,
    /// Comes back with the result.
    pub token: u64,
}

/// A request in flight.
struct Pending {
    peer: PeerId,
    token: u64,
    status: Status,
    /// The bytes that the device has.
    pieces: ArrayVec<Span, PIECES_MAX>,
    /// The device writes them.
    writes: bool,
}

/// What a request in flight may do with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// Write them, as a READ or an atomic does.
    Write,
    /// Read or write them.
    Any,
}

/// Requests in flight, and ended ones for the handler.
pub(super) struct Requests {
    places: Vec<Option<Pending>>,
    /// The first piece of the request in each place. They lie close together, because each loan
    /// looks at all of them.
    firsts: Vec<Span>,
    /// Requests with more than one piece.
    gathered: u32,
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
            firsts: vec![Span::NONE; most as usize],
            gathered: 0,
            free: (0..most).rev().collect(),
            done: VecDeque::with_capacity(most as usize),
        }
    }

    pub(super) fn begin(&mut self, peer: PeerId, request: &Request<'_>) -> Option<u32> {
        let index = self.free.pop()?;
        let (token, status, writes) = (request.token, Status::Success, request.writes_pieces());
        let place = self.places.get_mut(index as usize)?;
        let pieces = ArrayVec::new();
        let pending = place.insert(Pending { peer, token, status, pieces, writes });
        // The caller has checked that there are not more. They are made in place, from their
        // fields: a copy by wider loads waits until the stores that wrote them a moment ago have
        // left the store buffer, where they queue behind the last doorbell. That took a third of
        // the time of a stream of 4 KiB.
        for piece in request.pieces.iter().take(PIECES_MAX) {
            pending.pieces.put(Span::of(piece));
        }
        if let Some(first) = self.firsts.get_mut(index as usize) {
            *first = request.pieces.first().map_or(Span::NONE, Span::of);
        }
        self.gathered += u32::from(request.pieces.len() > 1);
        Some(index)
    }

    /// True if a request that is not answered yet touches some of these bytes. It looks at every
    /// request in flight: at most `Config::requests`.
    pub(super) fn touch(&self, piece: &Piece, touch: Touch) -> bool {
        let bytes = Span::of(piece);
        let no_first = || !self.firsts.iter().any(|first| first.overlaps(&bytes));
        if self.pending() == 0 || (self.gathered == 0 && no_first()) {
            return false;
        }
        let touches = |pending: &Pending| {
            (pending.writes || touch == Touch::Any)
                && pending.pieces.iter().any(|other| other.overlaps(&bytes))
        };
        self.places.iter().flatten().any(touches)
    }

    /// The request was not posted after all: nobody is told.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize) {
            let pieces = place.take().map_or(0, |pending| pending.pieces.len());
            self.release(index, pieces);
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
        let place = self.places.get_mut(index as usize)?;
        let Pending { peer, token, status, ref pieces, .. } = *place.as_ref()?;
        let pieces = pieces.len();
        *place = None;
        self.release(index, pieces);
        let result = if status.is_ok() { Ok(()) } else { Err(status) };
        Some(Ended { peer, token, result })
    }

    /// Frees the place of a request that had `pieces` pieces.
    fn release(&mut self, index: u32, pieces: usize) {
        if let Some(first) = self.firsts.get_mut(index as usize) {
            *first = Span::NONE;
        }
        self.gathered = self.gathered.saturating_sub(u32::from(pieces > 1));
        self.free.put(index);
    }

    /// The number of requests in flight, and of ended ones.
    pub(super) fn pending(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

impl Request<'_> {
    /// True if the device writes to its pieces.
    fn writes_pieces(&self) -> bool {
        let op = self.op.op();
        !op.is_send() && !matches!(op, SendOp::Write(..) | SendOp::WriteWithImm(..))
    }

    /// True if it uses a receive of the peer.
    pub(super) fn is_message(&self) -> bool {
        let op = self.op.op();
        op.is_send() || matches!(op, SendOp::WriteWithImm(..))
    }
}
