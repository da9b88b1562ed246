//! Posts by a list: requests with one doorbell, a batch of them or one alone. All requests go this
//! way, except inline messages on a device that takes those one by one ([`super::inline`]).

use super::batch::{Batch, NO_BATCH};
use super::held::Held;
use super::peers::Peer;
use super::send_error::SendError;
use super::sender::Sender;
use crate::provider::Provider;
use crate::room::Room;
use crate::wc::Status;
use crate::wr::{PostCause, SendFlags, SendWr};

/// Whether a peer takes one more request.
pub(super) enum Admission<'a, P: Provider> {
    /// It does, into this batch.
    Open(&'a mut Peer<P>, &'a mut Batch),
    /// Not now: the device's queue is full, or there is no credit.
    Full(SendError),
    /// It is not up.
    Closed,
}

impl<P: Provider> Sender<P> {
    /// Posts one request alone. False: nothing was done, because requests of the peer wait in a
    /// batch, the completion queue has no room, or the device refused it; the batches deal with
    /// that.
    #[inline(always)]
    pub(super) fn post_one(&mut self, slot: u32, mut wr: SendWr<'_>, held: Held) -> bool {
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return false };
        if peer.sq.waiting > 0 || self.accounts.in_flight.exceeds_limit(1) {
            return false;
        }
        let before = peer.sq.mark();
        peer.sq.take(&mut wr);
        let reads = !wr.flags.contains(SendFlags::INLINE);
        let posted = self.accounts.post(slot, peer, &mut [wr], &[held], reads).is_ok();
        if !posted {
            peer.sq.untake(before);
        }
        posted
    }

    /// Posts one message alone, as [`Sender::post_one`] does, if its peer is up and has room.
    #[inline(always)]
    pub(super) fn post_message<const FRESH: bool>(
        &mut self,
        slot: u32,
        wr: SendWr<'_>,
        held: Held,
    ) -> bool {
        match self.peers.at(slot) {
            Some(peer) if peer.is_up() && peer.sq.has_room::<FRESH>() => {}
            _ => return false,
        }
        self.post_one(slot, wr, held)
    }

    /// The peer in a slot and its batch, if it takes one more message. A `FRESH` message leaves the
    /// last credit.
    #[inline(always)]
    pub(super) fn admission<const FRESH: bool>(&mut self, slot: u32) -> Admission<'_, P> {
        match self.peers.at(slot) {
            Some(peer) if peer.is_up() => {
                if !peer.sq.has_room::<FRESH>()
                    && let Err(why) = self.measure_again::<FRESH>(slot)
                {
                    return Admission::Full(why);
                }
            }
            _ => return Admission::Closed,
        }
        self.open_batch(slot)
    }

    /// The peer in a slot and its batch, for a request that may be added now.
    #[inline(always)]
    pub(super) fn open_batch(&mut self, slot: u32) -> Admission<'_, P> {
        self.end_reservation(slot);
        let full = Admission::Full(SendError::Full);
        let none = self.peers.at(slot).is_some_and(|peer| peer.batch == NO_BATCH);
        if none && !self.start_batch(slot) {
            return full;
        }
        let Some(peer) = self.peers.at(slot) else { return Admission::Closed };
        let Some(batch) = self.batches.get(peer.batch) else { return full };
        // A batch is full only if the device took less than the queue has room for.
        if batch.list.is_full() { full } else { Admission::Open(peer, batch) }
    }

    /// Gives a peer a batch. False: all belong to peers whose device queues are full.
    fn start_batch(&mut self, slot: u32) -> bool {
        if self.batches.are_used_up() {
            self.post_batches();
        }
        let Some(batch) = self.batches.start(slot) else { return false };
        if let Some(peer) = self.peers.at(slot) {
            peer.batch = batch;
        }
        true
    }

    /// Posts a peer's batch, if it has one. The batch stays the peer's, because more requests are
    /// likely to follow.
    pub(super) fn post_batch_of(&mut self, slot: u32) {
        if let Some(batch) = self.peers.at(slot).map(|peer| peer.batch) {
            self.post_batch(batch);
        }
    }

    /// Posts a batch with one doorbell, as far as the device takes it.
    #[inline(always)]
    fn post_batch(&mut self, index: u32) {
        let Some(batch) = self.batches.get(index) else { return };
        let slot = batch.slot;
        let Some(peer) = self.peers.at(slot) else { return };
        let count = batch.list.len();
        if count == 0 || self.accounts.in_flight.exceeds_limit(count as u32) {
            return;
        }
        let reads = batch.reads;
        let (list, held) = batch.parts();
        match self.accounts.post(slot, peer, list, held, reads) {
            Ok(()) => batch.clear(),
            Err(error) => self.post_cut_short(index, error.accepted, error.cause),
        }
    }

    /// A post took only part of a batch: the rest waits for the next turn if the queue was full,
    /// and ends with its peer otherwise.
    #[cold]
    fn post_cut_short(&mut self, index: u32, accepted: usize, cause: PostCause) {
        let Some(batch) = self.batches.get(index) else { return };
        batch.drop_posted(accepted);
        let slot = batch.slot;
        if cause == PostCause::Full {
            self.accounts.stats.post_full += 1;
        } else if !self.broken.contains(&slot) {
            self.broken.put(slot);
        }
    }

    /// Rings for all messages that wait for a doorbell, and posts every batch.
    #[inline(always)]
    pub(super) fn post_batches(&mut self) {
        if !self.pending.is_empty() {
            self.ring_pending();
        }
        let mut n = 0;
        while let Some(index) = self.batches.dirty(n) {
            self.post_batch(index);
            n += 1;
        }
        let peers = &mut self.peers;
        self.batches.free_empty(|slot, index| {
            if let Some(peer) = peers.at(slot)
                && peer.batch == index
            {
                peer.batch = NO_BATCH;
            }
        });
    }

    /// Drops a peer's requests that are not posted yet. The next flush frees the empty batch.
    pub(super) fn abandon_batch(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        let Some(batch) = self.batches.get(peer.batch) else { return };
        peer.batch = NO_BATCH;
        peer.sq.drop_waiting();
        for held in batch.abandon() {
            self.accounts.release(held, Status::Flushed);
        }
    }
}
