//! Requests with a token: sends without a copy from registered memory, and everything one-sided.
//! Each is answered once, by [`super::Handler::on_send_done`], however it ended.
#![expect(unsafe_code, reason = "memory of its own that devices read and write")]

use arrayvec::ArrayVec;
use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

use super::batch::{Admission, NO_BATCH, add};
use super::core::Core;
use super::handler::PeerId;
use super::outbox::SendError;
use super::peers::PeerState;
use crate::provider::{Provider, Region};
use crate::room::Room;
use crate::wc::Status;
use crate::wr::{Remote, SendFlags, SendOp, SendWr, Sge};

/// Pieces of one request at most.
pub const PIECES_MAX: usize = 4;

/// Marks what a send holds as a pending request, by its place in the table.
pub(super) const PENDING: u32 = 1 << 30;

/// Registered memory that a worker has: see [`super::Worker::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub(super) u32);

/// Some bytes of a worker's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which memory.
    pub region: RegionId,
    /// First byte.
    pub offset: usize,
    /// How many bytes.
    pub length: u32,
}

/// What a peer's queue pair is to do. The bytes of the pieces belong to the device until the
/// request is answered.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The operation with its operands.
    pub op: SendOp,
    /// The payload, gathered in order; or where what is read goes. At most [`PIECES_MAX`].
    pub pieces: &'a [Piece],
    /// It starts only after earlier READs and atomics of this peer have finished (SQ-5).
    pub fence: bool,
    /// Comes back with the answer.
    pub token: u64,
}

/// A request on its way.
#[derive(Clone, Copy)]
struct Pending {
    peer: PeerId,
    token: u64,
    status: Status,
}

/// Requests on their way, and answers on theirs to the handler.
pub(super) struct Requests {
    places: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// Over, the oldest first.
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

    fn begin(&mut self, peer: PeerId, token: u64) -> Option<u32> {
        let index = self.free.pop()?;
        *self.places.get_mut(index as usize)? =
            Some(Pending { peer, token, status: Status::Success });
        Some(index)
    }

    /// It was not taken after all: nobody is told.
    fn forget(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize) {
            *place = None;
            self.free.put(index);
        }
    }

    /// What a send held, without the mark, has ended.
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

    /// The next answer.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        let index = self.done.pop_front()?;
        let Pending { peer, token, status } = self.places.get_mut(index as usize)?.take()?;
        self.free.put(index);
        let result = if status.is_ok() { Ok(()) } else { Err(status) };
        Some(Ended { peer, token, result })
    }

    /// Requests on their way, and those whose answer is.
    pub(super) fn pending(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// True if a request uses a receive of the peer.
fn is_message(op: SendOp) -> bool {
    op.is_send() || matches!(op, SendOp::WriteWithImm(..))
}

impl<P: Provider> Core<P> {
    /// Takes a request, or nothing of it.
    pub(super) fn request(&mut self, id: PeerId, request: &Request<'_>) -> Result<(), SendError> {
        let sges = self.pieces(request)?;
        let (first, more) = match sges.split_first() {
            Some((first, more)) => (*first, more),
            None => (Sge::default(), &[][..]),
        };
        let flags = if request.fence { SendFlags::FENCE } else { SendFlags::empty() };
        let whole = SendWr { wr_id: 0, op: request.op, flags, sge: first, more };
        if !whole.is_well_formed() {
            return Err(SendError::Malformed);
        }
        let most = match request.op {
            op if op.is_send() => self.config.block_bytes,
            _ => self.message_max,
        };
        if whole.length() > u64::from(most) {
            return Err(SendError::TooLong);
        }
        self.may_post(id, is_message(request.op))?;
        let index = self.requests.begin(id, request.token).ok_or(SendError::TooMany)?;
        let result = if more.is_empty() {
            self.request_in_batch(id.slot, (request.op, flags), first, index)
        } else {
            self.request_alone(id.slot, whole, index)
        };
        match result {
            Ok(()) => self.note_request(id.slot, is_message(request.op)),
            Err(_) => self.requests.forget(index),
        }
        result
    }

    /// The pieces, as the device knows them.
    fn pieces(&self, request: &Request<'_>) -> Result<ArrayVec<Sge, PIECES_MAX>, SendError> {
        let mut sges = ArrayVec::new();
        for piece in request.pieces {
            let region = self.regions.get(piece.region.0 as usize).ok_or(SendError::OutOfBounds)?;
            let end = piece.offset.checked_add(piece.length as usize);
            if end.is_none_or(|end| end > region.len()) {
                return Err(SendError::OutOfBounds);
            }
            let addr = region.as_ptr() as u64 + piece.offset as u64;
            let sge = Sge { addr, length: piece.length, lkey: region.lkey() };
            sges.try_push(sge).map_err(|_| SendError::OutOfBounds)?;
        }
        Ok(sges)
    }

    /// Whether the peer takes a request now.
    fn may_post(&mut self, id: PeerId, message: bool) -> Result<(), SendError> {
        let send_queue = self.config.send_queue;
        let peer = match self.peers.get(id) {
            Some(peer) if peer.state == PeerState::Up && !peer.finishing => peer,
            _ => return Err(SendError::NotConnected),
        };
        // Replies wait for room: this would overtake them.
        if peer.deferred > 0 || peer.pushed.wrapping_sub(peer.retired) >= send_queue {
            return Err(SendError::Full);
        }
        match message && !peer.has_room::<true>() {
            true => self.measure_again(id.slot, true).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// With one piece it goes out with what else waits for that peer.
    fn request_in_batch(
        &mut self,
        slot: u32,
        what: (SendOp, SendFlags),
        sge: Sge,
        index: u32,
    ) -> Result<(), SendError> {
        let batch = self.peers.at(slot).map_or(NO_BATCH, |peer| peer.batch);
        let (peer, batch) = match self.open_batch(slot, batch) {
            Admission::Open(peer, batch) => (peer, batch),
            Admission::Full(why) => return Err(why),
            Admission::Closed => return Err(SendError::NotConnected),
        };
        // Its completion is its answer.
        peer.want_signal();
        if add(peer, batch, what, sge, PENDING | index) {
            self.post_full_batch(slot);
        }
        Ok(())
    }

    /// With more it goes by itself, behind what waits.
    fn request_alone(&mut self, slot: u32, whole: SendWr<'_>, index: u32) -> Result<(), SendError> {
        let batch = self.peers.at(slot).map_or(NO_BATCH, |peer| peer.batch);
        if batch != NO_BATCH {
            self.post_batch(batch as usize);
        }
        let posted = self.post_one(slot, whole, PENDING | index);
        posted.then_some(()).ok_or(SendError::Full)
    }

    fn note_request(&mut self, slot: u32, message: bool) {
        if let Some(peer) = self.peers.at(slot)
            && !message
        {
            peer.count_non_message();
        }
    }

    /// What a peer is told, for one-sided requests to a worker's memory.
    pub(super) fn remote(&self, region: RegionId, offset: usize) -> Option<Remote> {
        let region = self.regions.get(region.0 as usize)?;
        (offset < region.len()).then(|| region.remote(offset))
    }

    fn bytes(&self, region: RegionId, offset: usize, length: usize) -> Result<*mut u8, SendError> {
        let region = self.regions.get(region.0 as usize).ok_or(SendError::OutOfBounds)?;
        match offset.checked_add(length) {
            // SAFETY: the offset lies in the region.
            Some(end) if end <= region.len() => Ok(unsafe { region.as_ptr().add(offset) }),
            _ => Err(SendError::OutOfBounds),
        }
    }

    /// Copies bytes into a worker's memory, which others may look at meanwhile.
    pub(super) fn copy_in(
        &mut self,
        region: RegionId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let to = self.bytes(region, offset, bytes.len())?;
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the region, as was just checked. Volatile: a device may read there.
            unsafe { to.add(n).write_volatile(*byte) };
        }
        Ok(())
    }

    /// Copies bytes out of a worker's memory, which others may write meanwhile.
    pub(super) fn copy_out(
        &self,
        region: RegionId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), SendError> {
        let from = self.bytes(region, offset, bytes.len())?;
        for (n, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the region, as was just checked. Volatile: a device may write there.
            *byte = unsafe { from.add(n).read_volatile() };
        }
        Ok(())
    }
}
