//! Batches: requests of one peer that gather and are posted with one doorbell.

use arrayvec::ArrayVec;
use std_alloc::boxed::Box;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::accounts::Accounts;
use super::config::{Config, DIRTY_PEERS, SEND_BATCH};
use super::held::Held;
use super::peers::{Peer, Peers};
use crate::provider::Provider;
use crate::room::FixedCapacity;
use crate::wc::Status;
use crate::wr::{PostCause, PostError, SendFlags, SendOp, SendWr, Sge};

/// No batch.
pub(super) const NO_BATCH: u32 = u32::MAX;

/// Unsent requests of one peer.
pub(super) struct Batch {
    pub(super) slot: u32,
    /// At least one request holds something.
    holds: bool,
    /// The device reads at least one payload after the post: not all are inline.
    pub(super) reads: bool,
    pub(super) list: ArrayVec<SendWr<'static>, SEND_BATCH>,
    /// What each request holds.
    held: ArrayVec<Held, SEND_BATCH>,
    /// Copies of inline payloads, `stage_bytes` for each request.
    stage: Box<[u8]>,
    stage_bytes: usize,
}

/// A request without a number yet. It is built where it is posted: an operation consists of words
/// that are written one by one, and a copy of it by wider loads a moment later waits until those
/// stores have left the store buffer.
#[inline(always)]
pub(super) fn request(op: SendOp, flags: SendFlags, sge: Sge) -> SendWr<'static> {
    SendWr { wr_id: 0, op, flags, sge, more: &[] }
}

/// A message, with that immediate data if there is any.
#[inline(always)]
pub(super) fn message(imm: Option<u32>, flags: SendFlags, sge: Sge) -> SendWr<'static> {
    match imm {
        None => request(SendOp::Send, flags, sge),
        Some(imm) => request(SendOp::SendWithImm(imm), flags, sge),
    }
}

impl Batch {
    fn new(inline_bytes: usize) -> Batch {
        // A credit word fits, too.
        let stage_bytes = inline_bytes.max(size_of::<u64>());
        Batch {
            slot: 0,
            holds: false,
            reads: false,
            list: ArrayVec::new(),
            held: ArrayVec::new(),
            stage: vec![0; SEND_BATCH * stage_bytes].into_boxed_slice(),
            stage_bytes,
        }
    }

    /// Copies a payload to the place of the next request; `None` if it is longer than the place.
    #[inline(always)]
    pub(super) fn stage(&mut self, bytes: &[u8]) -> Option<Sge> {
        let place = self.list.len() * self.stage_bytes;
        let stage = self.stage.get_mut(place..place + bytes.len())?;
        stage.copy_from_slice(bytes);
        Some(Sge::inline(stage))
    }

    /// Adds a request of the batch's peer; true if that filled the batch.
    #[inline(always)]
    pub(super) fn add<P: Provider>(
        &mut self,
        peer: &mut Peer<P>,
        wr: SendWr<'static>,
        held: Held,
    ) -> bool {
        self.reads |= !wr.flags.contains(SendFlags::INLINE);
        self.holds |= !held.is_nothing();
        // It gets its number where it stays: a copy of it would wait for the stores that write it,
        // and they queue behind the last doorbell.
        self.list.put(wr);
        if let Some(wr) = self.list.last_mut() {
            peer.sq.take(wr);
        }
        peer.sq.close_budget();
        self.held.put(held);
        self.list.is_full()
    }

    /// The requests, and what they hold if one holds anything.
    #[inline(always)]
    pub(super) fn parts(&mut self) -> (&mut [SendWr<'static>], &[Held]) {
        let held = if self.holds { self.held.as_slice() } else { &[] };
        (&mut self.list, held)
    }

    /// All requests are posted.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.held.clear();
        (self.holds, self.reads) = (false, false);
    }

    /// Drops all requests; returns what they held.
    pub(super) fn abandon(&mut self) -> ArrayVec<Held, SEND_BATCH> {
        let held = core::mem::take(&mut self.held);
        self.clear();
        held
    }

    /// The first `accepted` requests are posted, and the others stay.
    pub(super) fn drop_posted(&mut self, accepted: usize) {
        self.list.drop_first(accepted);
        self.held.drop_first(accepted);
        // The place of a staged payload is that of its request in the list, so both move up.
        for (n, (wr, held)) in self.list.iter_mut().zip(&self.held).enumerate() {
            if held.is_nothing() {
                let (from, to) = ((n + accepted) * self.stage_bytes, n * self.stage_bytes);
                // They do not overlap if something was accepted: there is a place between them.
                let (front, rest) = self.stage.split_at_mut_checked(from).unwrap_or_default();
                let length = wr.sge.length as usize;
                if let (Some(to), Some(from)) =
                    (front.get_mut(to..).and_then(|to| to.get_mut(..length)), rest.get(..length))
                {
                    to.copy_from_slice(from);
                }
                wr.sge.addr = self.stage.as_ptr().wrapping_add(to) as u64;
            }
        }
    }
}

/// The batches of a worker: [`DIRTY_PEERS`] of them, for peers with unsent requests.
pub(super) struct Batches {
    all: Box<[Batch]>,
    idle: Vec<u32>,
    /// The batches that belong to a peer.
    dirty: Vec<u32>,
}

impl Batches {
    pub(super) fn new(config: &Config) -> Batches {
        Batches {
            all: (0..DIRTY_PEERS).map(|_| Batch::new(config.inline_bytes as usize)).collect(),
            idle: (0..DIRTY_PEERS as u32).rev().collect(),
            dirty: Vec::with_capacity(DIRTY_PEERS),
        }
    }

    #[inline(always)]
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Batch> {
        self.all.get_mut(index as usize)
    }

    /// True if no batch belongs to a peer.
    #[inline(always)]
    pub(super) fn are_idle(&self) -> bool {
        self.dirty.is_empty()
    }

    /// True if every batch belongs to a peer.
    pub(super) fn are_used_up(&self) -> bool {
        self.idle.is_empty()
    }

    /// Gives a batch to the peer in a slot.
    pub(super) fn start(&mut self, slot: u32) -> Option<u32> {
        let index = self.idle.pop()?;
        self.dirty.put(index);
        self.get(index)?.slot = slot;
        Some(index)
    }

    /// Takes every empty batch from its peer.
    #[inline(always)]
    fn free_empty(&mut self, mut leave: impl FnMut(u32, u32)) {
        let mut kept = 0;
        for n in 0..self.dirty.len() {
            let Some(index) = self.dirty.get(n).copied() else { break };
            let batch = self.all.get(index as usize);
            if batch.is_none_or(|batch| batch.list.is_empty()) {
                leave(batch.map_or(u32::MAX, |batch| batch.slot), index);
                self.idle.put(index);
            } else if let Some(place) = self.dirty.get_mut(kept) {
                *place = index;
                kept += 1;
            }
        }
        self.dirty.truncate(kept);
    }

    /// Posts a batch with one doorbell, as far as the device takes it.
    #[inline(always)]
    pub(super) fn post<P: Provider>(
        &mut self,
        index: u32,
        peers: &mut Peers<P>,
        accounts: &mut Accounts<P>,
    ) {
        let Some(batch) = self.get(index) else { return };
        let slot = batch.slot;
        let Some(peer) = peers.at(slot) else { return };
        let count = batch.list.len();
        if count == 0 || accounts.in_flight.exceeds_limit(count as u32) {
            return;
        }
        let reads = batch.reads;
        let (list, held) = batch.parts();
        match accounts.post(slot, peer, list, held, reads) {
            Ok(()) => batch.clear(),
            Err(error) => self.cut_short(index, &error, accounts),
        }
    }

    /// A post took only part of a batch: the rest waits for the next turn if the queue was full,
    /// and ends with its peer otherwise.
    #[cold]
    fn cut_short<P: Provider>(
        &mut self,
        index: u32,
        error: &PostError,
        accounts: &mut Accounts<P>,
    ) {
        let Some(batch) = self.get(index) else { return };
        batch.drop_posted(error.accepted);
        let slot = batch.slot;
        if error.cause == PostCause::Full {
            accounts.stats.post_full += 1;
        } else {
            accounts.broken.add(slot);
        }
    }

    /// Posts every batch, and takes the empty ones from their peers.
    #[inline(always)]
    pub(super) fn post_all<P: Provider>(
        &mut self,
        peers: &mut Peers<P>,
        accounts: &mut Accounts<P>,
    ) {
        let mut n = 0;
        while let Some(index) = self.dirty.get(n).copied() {
            self.post(index, peers, accounts);
            n += 1;
        }
        self.free_empty(|slot, index| {
            if let Some(peer) = peers.at(slot)
                && peer.batch == index
            {
                peer.batch = NO_BATCH;
            }
        });
    }

    /// Drops a peer's requests that are not posted yet. The next flush frees the empty batch.
    pub(super) fn abandon<P: Provider>(
        &mut self,
        slot: u32,
        peers: &mut Peers<P>,
        accounts: &mut Accounts<P>,
    ) {
        let Some(peer) = peers.at(slot) else { return };
        let Some(batch) = self.get(peer.batch) else { return };
        peer.batch = NO_BATCH;
        peer.sq.drop_waiting();
        for held in batch.abandon() {
            accounts.release(held, Status::Flushed);
        }
    }
}
