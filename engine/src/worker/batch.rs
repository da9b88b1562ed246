//! The way out: a peer's unsent messages gather in a batch, and a batch goes out with one doorbell.
//! A lone reply, or a message that is to go now, skips the batch.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use arrayvec::ArrayVec;
use std_alloc::boxed::Box;
use std_alloc::vec;

use super::config::SEND_BATCH;
use super::core::Core;
use super::handler::{DownReason, PeerId};
use super::outbox::{ListError, SendError};
use super::peers::{NO_BLOCK, Peer, PeerState, SEND_BLOCK};
use super::wr_id;
use crate::provider::{Provider, Qp, Region};
use crate::room::Room;
use crate::wc::Status;
use crate::wr::{PostCause, SendFlags, SendOp, SendWr, Sge};

/// No batch.
pub(super) const NO_BATCH: u32 = u32::MAX;

/// Unsent messages of one peer.
pub(super) struct Batch {
    slot: u32,
    signal_every: u32,
    /// Some message lies in a block.
    holds: bool,
    /// Some message is read from its block after the post: not inline.
    reads: bool,
    pub(super) list: ArrayVec<SendWr<'static>, SEND_BATCH>,
    /// The block each message lies in.
    blocks: ArrayVec<u32, SEND_BATCH>,
    /// Copies of inline payloads, one place of `stage_bytes` a message.
    stage: Box<[u8]>,
    stage_bytes: usize,
    /// The longest message that goes inline.
    inline_max: usize,
}

impl Batch {
    /// An empty batch for messages of up to `inline_bytes` inline.
    pub(super) fn new(inline_bytes: usize, signal_every: u32) -> Batch {
        // A word of credit has a place too.
        let stage_bytes = inline_bytes.max(size_of::<u64>());
        Batch {
            slot: 0,
            signal_every,
            holds: false,
            reads: false,
            list: ArrayVec::new(),
            blocks: ArrayVec::new(),
            stage: vec![0; SEND_BATCH * stage_bytes].into_boxed_slice(),
            stage_bytes,
            inline_max: inline_bytes,
        }
    }

    /// Copies a payload to the place of the next message; `None` if it is longer than that.
    #[inline(always)]
    pub(super) fn stage(&mut self, bytes: &[u8]) -> Option<Sge> {
        let place = self.list.len() * self.stage_bytes;
        let stage = self.stage.get_mut(place..place + bytes.len())?;
        stage.copy_from_slice(bytes);
        Some(Sge::inline(stage))
    }
}

/// A message with that immediate data, or none. Made where it is posted: an operation is some words
/// that are written apart, and a copy of it by wider loads, a moment later, waits until the stores
/// have left, behind those to lines that the peer has.
#[inline(always)]
pub(super) fn op_of(imm: Option<u32>) -> SendOp {
    match imm {
        None => SendOp::Send,
        Some(imm) => SendOp::SendWithImm(imm),
    }
}

/// Whether a peer takes a message more.
pub(super) enum Admission<'a, P: Provider> {
    /// It does, into this batch.
    Open(&'a mut Peer<P>, &'a mut Batch),
    /// Not now: the device's queue is full, or there is no credit.
    Full(SendError),
    /// It is not up.
    Closed,
}

/// Adds a message to its peer's batch; true if that filled it.
#[inline(always)]
pub(super) fn add<P: Provider>(
    peer: &mut Peer<P>,
    batch: &mut Batch,
    (op, mut flags): (SendOp, SendFlags),
    sge: Sge,
    block: u32,
) -> bool {
    let signals = peer.signals();
    let wr_id = wr_id::send(batch.slot, peer.generation, peer.pushed);
    peer.pushed = peer.pushed.wrapping_add(1);
    peer.waiting += 1;
    if signals {
        peer.has_signaled(batch.signal_every);
        flags |= SendFlags::SIGNALED;
    }
    peer.close_budget();
    batch.holds |= block != NO_BLOCK;
    batch.reads |= !flags.contains(SendFlags::INLINE);
    batch.list.put(SendWr { wr_id, op, flags, sge, more: &[] });
    batch.blocks.put(block);
    batch.list.is_full()
}

impl<P: Provider> Core<P> {
    /// Sends a copy: straight to a device that rings for it later, else staged with the batch if it
    /// goes inline, else in a block of the worker.
    #[inline(always)]
    pub(super) fn send_copy(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE && imm.is_none() && self.post_reserved_copy(id, bytes) {
            return Ok(());
        }
        self.send_first(id, imm, bytes)
    }

    /// Sends copies of a list of messages: as many as can at a time straight to a device that rings
    /// for them later, the others one by one.
    #[inline(always)]
    pub(super) fn send_list(&mut self, id: PeerId, list: &[&[u8]]) -> Result<(), ListError> {
        let mut accepted = 0;
        while let Some((first, _)) = list.get(accepted..).and_then(<[_]>::split_first) {
            let run = match P::Qp::POSTS_INLINE && !self.ring_at_once {
                true => self.post_inline_list(id, list.get(accepted..).unwrap_or_default()),
                false => 0,
            };
            accepted += run;
            if run == 0 {
                let one = self.send_first(id, None, first);
                one.map_err(|cause| ListError { accepted, cause })?;
                accepted += 1;
            }
        }
        Ok(())
    }

    /// Sends what is not of a reservation. The first send after messages is likely to be an answer:
    /// it rings at once. More of them gather behind it.
    #[inline(never)]
    fn send_first(&mut self, id: PeerId, imm: Option<u32>, bytes: &[u8]) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE {
            if self.in_flight >= self.signal_watermark && !self.pending.is_empty() {
                // Reservations may be what is in the way.
                self.ring_pending();
            }
            self.end_reservation(id.slot);
            if core::mem::take(&mut self.ring_at_once)
                && self.post_inline_copy::<true>(id, imm, bytes)
            {
                return Ok(());
            }
            if self.post_inline_copy::<false>(id, imm, bytes) {
                return Ok(());
            }
        }
        self.send_staged(id, imm, bytes)
    }

    #[inline(never)]
    fn send_staged(&mut self, id: PeerId, imm: Option<u32>, bytes: &[u8]) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE
            && self.open_budget(id.slot)
            && self.post_inline_copy::<false>(id, imm, bytes)
        {
            return Ok(());
        }
        match self.peers.get(id) {
            None => return Err(SendError::NotConnected),
            // Replies wait for room: this would overtake them.
            Some(peer) if peer.deferred > 0 => {
                let up = peer.state == PeerState::Up;
                return Err(if up { SendError::Full } else { SendError::NotConnected });
            }
            Some(_) => {}
        }
        let (peer, batch) = match self.admission::<true>(id.slot) {
            Admission::Open(peer, batch) => (peer, batch),
            Admission::Full(why) => return Err(why),
            Admission::Closed => return Err(SendError::NotConnected),
        };
        if bytes.len() > batch.inline_max {
            return self.send_block(id.slot, op_of(imm), bytes);
        }
        let Some(sge) = batch.stage(bytes) else { return Err(SendError::TooLong) };
        let full = add(peer, batch, (op_of(imm), SendFlags::INLINE), sge, NO_BLOCK);
        if full {
            self.post_full_batch(id.slot);
        }
        Ok(())
    }

    /// Sends at once, with a doorbell of its own, straight from `bytes` if they go inline.
    #[inline(always)]
    pub(super) fn send_now(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE && self.post_inline_copy::<true>(id, imm, bytes) {
            return Ok(());
        }
        self.send_now_slow(id, imm, bytes)
    }

    #[inline(never)]
    fn send_now_slow(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE
            && self.open_budget(id.slot)
            && self.post_inline_copy::<true>(id, imm, bytes)
        {
            return Ok(());
        }
        if bytes.len() <= self.inline_max as usize
            && self.peers.get(id).is_some_and(|peer| peer.deferred == 0)
        {
            let sge = Sge::inline(bytes);
            let what = (op_of(imm), SendFlags::INLINE);
            if self.post_now::<true>(id.slot, what, sge, NO_BLOCK) {
                return Ok(());
            }
        }
        self.send_copy(id, imm, bytes)?;
        self.flush();
        Ok(())
    }

    /// Posts one message by itself, past the batches. False: nothing was done, because the peer
    /// has messages waiting, or no room, or the device refused; the batches deal with that.
    #[inline(always)]
    pub(super) fn post_now<const FRESH: bool>(
        &mut self,
        slot: u32,
        (op, flags): (SendOp, SendFlags),
        sge: Sge,
        block: u32,
    ) -> bool {
        match self.peers.at(slot) {
            Some(peer) if peer.state == PeerState::Up && peer.has_room::<FRESH>() => {}
            _ => return false,
        }
        self.post_one(slot, SendWr { wr_id: 0, op, flags, sge, more: &[] }, block)
    }

    /// Posts one request by itself, under a number of its own, if nothing of the peer waits to be
    /// posted.
    #[inline(always)]
    pub(super) fn post_one(&mut self, slot: u32, mut wr: SendWr<'_>, block: u32) -> bool {
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return false };
        if peer.waiting > 0 || self.in_flight >= self.config.sends {
            return false;
        }
        let inline = wr.flags.contains(SendFlags::INLINE);
        let over_watermark = self.in_flight >= self.signal_watermark;
        let signals = !inline || peer.signals() || over_watermark;
        if signals {
            wr.flags |= SendFlags::SIGNALED;
        }
        wr.wr_id = wr_id::send(slot, peer.generation, peer.pushed);
        let Some(qp) = &mut peer.qp else { return false };
        // SAFETY: the pieces lie in a block of ours that is released when this send is retired, or
        // in a region of ours that stays until the queue pair is gone, or are inline. The worker's
        // thread is the one that polls.
        if unsafe { qp.post(&[wr]) }.is_err() {
            return false;
        }
        peer.pushed = peer.pushed.wrapping_add(1);
        if signals {
            peer.has_signaled(self.config.signal_every);
        }
        if inline {
            if block != NO_BLOCK {
                // The payload is out of the block already.
                self.refill.put(self.shared.request(block));
                if peer.count_done(1) {
                    self.credit_due.put(slot);
                }
            }
        } else {
            peer.hold(peer.pushed.wrapping_sub(1), block);
        }
        self.in_flight += 1;
        self.stats.count_batch(1);
        self.stats.sent += 1;
        true
    }

    /// Sends a copy in a block of the worker.
    fn send_block(&mut self, slot: u32, op: SendOp, bytes: &[u8]) -> Result<(), SendError> {
        if bytes.len() > self.config.block_bytes as usize {
            return Err(SendError::TooLong);
        }
        let (block, sge) = self.copy_to_block(bytes)?;
        let Admission::Open(peer, batch) = self.admission::<true>(slot) else {
            self.release(block);
            return Err(SendError::Full);
        };
        if add(peer, batch, (op, SendFlags::empty()), sge, block) {
            self.post_full_batch(slot);
        }
        Ok(())
    }

    /// Copies bytes, at most a block of them, into a block of the worker; its name in flight.
    pub(super) fn copy_to_block(&mut self, bytes: &[u8]) -> Result<(u32, Sge), SendError> {
        let block = self.pool.take().ok_or(SendError::NoBlock)?;
        let offset = self.pool.offset(block).ok_or(SendError::NoBlock)?;
        // SAFETY: the pool's blocks lie in the region; this one was free, so nobody reads it.
        let to = unsafe {
            let to = self.region.as_ptr().add(offset);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            to
        };
        let sge = Sge { addr: to as u64, length: bytes.len() as u32, lkey: self.region.lkey() };
        Ok((block | SEND_BLOCK, sge))
    }

    /// The peer in a slot and its batch, if it takes a message more.
    #[inline(always)]
    pub(super) fn admission<const FRESH: bool>(&mut self, slot: u32) -> Admission<'_, P> {
        let batch = match self.peers.at(slot) {
            Some(peer) if peer.state == PeerState::Up => {
                if !peer.has_room::<FRESH>()
                    && let Some(why) = self.measure_again(slot, FRESH)
                {
                    return Admission::Full(why);
                }
                match self.peers.at(slot) {
                    Some(peer) => peer.batch,
                    None => return Admission::Closed,
                }
            }
            _ => return Admission::Closed,
        };
        self.open_batch(slot, batch)
    }

    /// The peer in a slot and its batch, for a request that may go.
    #[inline(always)]
    pub(super) fn open_batch(&mut self, slot: u32, batch: u32) -> Admission<'_, P> {
        self.end_reservation(slot);
        let full = Admission::Full(SendError::Full);
        if batch == NO_BATCH && !self.start_batch(slot) {
            return full;
        }
        let Some(peer) = self.peers.at(slot) else { return Admission::Closed };
        let Some(batch) = self.batches.get_mut(peer.batch as usize) else { return full };
        // A batch is full only when the device took less than the queue has room for.
        if batch.list.is_full() { full } else { Admission::Open(peer, batch) }
    }

    /// What was known of room is used up: why nothing more goes, if nothing does.
    #[cold]
    #[inline(never)]
    pub(super) fn measure_again(&mut self, slot: u32, fresh: bool) -> Option<SendError> {
        let peer = self.peers.at(slot)?;
        if fresh && peer.finishing {
            return Some(SendError::NotConnected);
        }
        let (slots, credits) = peer.measure(self.config.send_queue);
        let spare = if fresh { peer.credit.spare() } else { 0 };
        if slots == 0 {
            return Some(SendError::Full);
        }
        if credits <= spare {
            self.stats.credit_stalls += 1;
            return Some(SendError::NoCredit);
        }
        None
    }

    /// Gives a peer a batch. False: all belong to peers whose device queues are full.
    fn start_batch(&mut self, slot: u32) -> bool {
        if self.idle_batches.is_empty() {
            // Not `flush`: a deferred reply may be to this very peer.
            self.post_batches();
        }
        let Some(batch) = self.idle_batches.pop() else { return false };
        self.dirty.put(batch);
        if let Some(batch) = self.batches.get_mut(batch as usize) {
            batch.slot = slot;
        }
        if let Some(peer) = self.peers.at(slot) {
            peer.batch = batch;
        }
        true
    }

    /// Rings for a batch that has just become full.
    pub(super) fn post_full_batch(&mut self, slot: u32) {
        let Some(batch) = self.peers.at(slot).map(|peer| peer.batch) else { return };
        self.post_batch(batch as usize);
        // It stays the peer's: more is likely to follow.
    }

    /// Posts a batch with one doorbell.
    #[inline(always)]
    pub(super) fn post_batch(&mut self, index: usize) {
        let Some(batch) = self.batches.get_mut(index) else { return };
        let Some(peer) = self.peers.at(batch.slot) else { return };
        let in_flight = self.in_flight + batch.list.len() as u32;
        let Some(last) = batch.list.last_mut() else { return };
        if in_flight > self.config.sends {
            // The completion queue would have no room, should all of it fail.
            return;
        }
        if batch.reads || in_flight > self.signal_watermark {
            // Blocks in flight come home with the next completion, so there is one, also behind
            // a last message that is inline; and peers that rest do not hold what others need.
            last.flags |= SendFlags::SIGNALED;
            peer.has_signaled(batch.signal_every);
        }
        let Some(qp) = &mut peer.qp else { return };
        // SAFETY: every piece lies in a block of ours, or in the stage and inline; a block is
        // released only when its send is retired. The worker's thread is the one that polls.
        let result = unsafe { qp.post(&batch.list) };
        self.stats.count_batch(batch.list.len());
        let (accepted, cause) = match result {
            Ok(()) => (batch.list.len(), None),
            Err(error) => (error.accepted, Some(error.cause)),
        };
        self.in_flight += accepted as u32;
        self.stats.sent += accepted as u64;
        if batch.holds {
            for (wr, block) in batch.list.iter().zip(&batch.blocks).take(accepted) {
                if *block != NO_BLOCK && wr.flags.contains(SendFlags::INLINE) {
                    // The payload is out of the block already.
                    self.refill.put(self.shared.request(*block));
                    if peer.count_done(1) {
                        self.credit_due.put(batch.slot);
                    }
                } else {
                    peer.hold(peer.posted(), *block);
                }
                peer.waiting -= 1;
            }
        } else {
            peer.waiting -= accepted as u32;
        }
        match cause {
            None => {
                batch.list.clear();
                batch.blocks.clear();
                (batch.holds, batch.reads) = (false, false);
            }
            Some(cause) => self.post_cut_short(index, accepted, cause),
        }
    }

    /// A post that took only part of a batch: the rest stays for the next turn if the queue was
    /// full, and fails with its peer otherwise.
    #[cold]
    fn post_cut_short(&mut self, index: usize, accepted: usize, cause: PostCause) {
        let Some(batch) = self.batches.get_mut(index) else { return };
        batch.list.drop_first(accepted);
        batch.blocks.drop_first(accepted);
        // The place of a staged payload is that of its message in the list: both move up.
        for (n, (wr, block)) in batch.list.iter_mut().zip(&batch.blocks).enumerate() {
            if *block == NO_BLOCK {
                let (from, to) = ((n + accepted) * batch.stage_bytes, n * batch.stage_bytes);
                // They do not overlap: something was accepted, so there is a place between.
                let (front, rest) = batch.stage.split_at_mut_checked(from).unwrap_or_default();
                let length = wr.sge.length as usize;
                if let (Some(to), Some(from)) =
                    (front.get_mut(to..).and_then(|to| to.get_mut(..length)), rest.get(..length))
                {
                    to.copy_from_slice(from);
                }
                wr.sge.addr = batch.stage.as_ptr().wrapping_add(to) as u64;
            }
        }
        let slot = batch.slot;
        if cause == PostCause::Full {
            self.stats.post_full += 1;
            return;
        }
        self.fail(slot, DownReason::Failed(Status::LocalQpOperation));
    }

    /// An empty batch leaves its peer.
    #[inline(always)]
    fn free_batch(&mut self, index: u32) {
        if let Some(batch) = self.batches.get(index as usize)
            && let Some(peer) = self.peers.at(batch.slot)
            && peer.batch == index
        {
            peer.batch = NO_BATCH;
        }
        self.idle_batches.put(index);
    }

    /// Rings the bell of every batch.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.post_batches();
        if !self.deferred.is_empty() {
            self.retry_deferred();
            self.post_batches();
        }
    }

    #[inline(always)]
    fn post_batches(&mut self) {
        if !self.pending.is_empty() {
            self.ring_pending();
        }
        for n in 0..self.dirty.len() {
            let Some(index) = self.dirty.get(n).copied() else { break };
            self.post_batch(index as usize);
        }
        let mut kept = 0;
        for n in 0..self.dirty.len() {
            let Some(index) = self.dirty.get(n).copied() else { break };
            let is_sent = |batch: &Batch| batch.list.is_empty();
            if self.batches.get(index as usize).is_none_or(is_sent) {
                self.free_batch(index);
            } else if let Some(place) = self.dirty.get_mut(kept) {
                *place = index;
                kept += 1;
            }
        }
        self.dirty.truncate(kept);
    }

    /// Drops what a peer has not yet posted.
    pub(super) fn abandon_batch(&mut self, index: u32) {
        let Some(batch) = self.batches.get_mut(index as usize) else { return };
        let blocks = core::mem::take(&mut batch.blocks);
        batch.list.clear();
        (batch.holds, batch.reads) = (false, false);
        let slot = batch.slot;
        if let Some(peer) = self.peers.at(slot) {
            peer.batch = NO_BATCH;
            peer.pushed = peer.posted();
            peer.waiting = 0;
        }
        for block in blocks {
            self.release(block);
        }
    }
}
