//! Posts by a list: requests with one doorbell, a batch of them or one alone. All requests go this
//! way, except inline messages on a device that takes those one by one ([`super::inline`]).

use super::batch::{Batch, NO_BATCH};
use super::held::Held;
use super::peers::Peer;
use super::send_error::SendError;
use super::sender::Sender;
use crate::provider::Provider;
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
    /// Posts one request alone.
    ///
    /// # Errors
    /// Nothing was done. `Full` if requests of the peer wait in a batch, or the completion queue
    /// has no room; otherwise the refusal of the device. A batch deals with either.
    #[inline(always)]
    pub(super) fn post_one(
        &mut self,
        slot: u32,
        mut wr: SendWr<'_>,
        held: Held,
    ) -> Result<(), PostCause> {
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return Err(PostCause::State) };
        if peer.sq.waiting > 0 || self.accounts.in_flight.exceeds_limit(1) {
            return Err(PostCause::Full);
        }
        let before = peer.sq.mark();
        peer.sq.take(&mut wr);
        let reads = !wr.flags.contains(SendFlags::INLINE);
        let posted = self.accounts.post(slot, peer, &mut [wr], &[held], reads);
        posted.map_err(|error| {
            peer.sq.untake(before);
            error.cause
        })
    }

    /// Posts one message alone, as [`Sender::post_one`] does, if its peer is up and has room. If
    /// not, nothing is done.
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
        self.post_one(slot, wr, held).is_ok()
    }

    /// The peer in a slot and its batch, if it takes one more message. A `FRESH` message leaves the
    /// last credit.
    #[inline(always)]
    pub(super) fn admission<const FRESH: bool>(&mut self, slot: u32) -> Admission<'_, P> {
        match self.peers.at(slot) {
            Some(peer) if peer.is_up() => {
                if !peer.sq.has_room::<FRESH>()
                    && let Err(why) = self.accounts.measure_again::<FRESH>(slot, peer)
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
            self.batches.post(batch, &mut self.peers, &mut self.accounts);
        }
    }

    /// Rings for all messages that wait for a doorbell, and posts every batch.
    #[inline(always)]
    pub(super) fn post_batches(&mut self) {
        if !self.pending.is_empty() {
            self.ring_pending();
        }
        self.batches.post_all(&mut self.peers, &mut self.accounts);
    }
}
