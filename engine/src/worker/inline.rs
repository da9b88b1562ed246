//! Inline sends: a device that takes messages one by one ([`Qp::POSTS_INLINE`]) gets each message
//! as it is sent, with a doorbell at once or later. There is no batch in between.
//!
//! Most messages ring later. Such a message is sent from a *reservation*: a number of messages to
//! that peer for which everything has been checked at once, so that each costs one comparison.
//! [`Sender::reserve`] computes it as the least of
//!
//! - the room in the peer's send queue and its credit, without the last credit, which only a reply
//!   may use;
//! - the messages before the next one that asks for a completion;
//! - the rest of a batch, which goes with one doorbell: [`SEND_BATCH`](super::SEND_BATCH) messages
//!   of a list. Batches of messages sent one by one begin with
//!   [`STORE_BATCH`](super::STORE_BATCH) and double until a flush;
//! - the room below the watermark of [`super::in_flight`], which all peers share. The whole
//!   reservation counts as in flight from its beginning; its end gives back the unused part.
//!
//! A doorbell ends the reservation of its peer, so an idle peer has none. Everything else that is
//! sent to the peer ends it too: a batch, a request, a credit word, a message with a doorbell of
//! its own. While replies to a peer wait, its budget is closed and no reservation begins.
//!
//! A message that is sent now joins those that wait for their doorbell, if there are any
//! ([`Sender::post_and_ring`]). Else a message that rings at once reserves nothing, and checks
//! budget and watermark itself. Its reservation would have to outlive the doorbell, and then idle
//! peers would use up what others need.
#![expect(unsafe_code, reason = "posts bytes it was lent")]

use super::message::PeerId;
use super::peers::Peer;
use super::probes;
use super::sender::Sender;
use crate::provider::{Doorbell, InlineSend, Provider, Qp};
use crate::room::FixedCapacity;
use crate::wr::Sge;

impl<P: Provider> Peer<P> {
    /// Hands one inline message to the device. False: nothing was done.
    #[inline(always)]
    fn post_inline(
        &mut self,
        imm: Option<u32>,
        signaled: bool,
        sge: Sge,
        doorbell: Doorbell,
    ) -> bool {
        let send = InlineSend { wr_id: self.sq.next_wr_id(), sge, imm, signaled };
        let Some(qp) = &mut self.qp else { return false };
        // SAFETY: the payload is borrowed for the call and no longer than the inline limit. The
        // worker's thread is the one that polls.
        let posted = unsafe { qp.post_inline(send, doorbell) };
        if posted {
            self.sq.push();
        }
        posted
    }

    /// Lets the device prefetch what the next message needs. False: the slot is free.
    #[inline(always)]
    pub(super) fn fetch_queue_pair(&mut self) -> bool {
        let Some(qp) = &mut self.qp else { return false };
        // SAFETY: the worker's thread is the one that polls.
        unsafe { qp.fetch_ahead() };
        true
    }

    /// Renews an open budget, so that no message finds it used up and has to wait for that.
    #[inline(always)]
    pub(super) fn renew_budget(&mut self) {
        if P::Qp::POSTS_INLINE && self.sq.reserved == 0 && self.sq.has_budget::<true>() {
            self.measure();
            self.sq.open_budget();
        }
    }
}

impl<P: Provider> Sender<P> {
    /// Sends a copy from the peer's reservation. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_reserved_copy(&mut self, id: PeerId, bytes: &[u8]) -> bool {
        let current = |peer: &Peer<P>| peer.generation == id.generation;
        self.peers.at(id.slot).is_some_and(|peer| current(peer))
            && bytes.len() <= self.inline_max as usize
            && self.post_reserved(id.slot, Sge::inline(bytes))
    }

    /// Sends a payload of at most the inline limit from the peer's reservation. False: nothing was
    /// done.
    #[inline(always)]
    pub(super) fn post_reserved(&mut self, slot: u32, sge: Sge) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if peer.sq.reserved == 0 || !peer.post_inline(None, false, sge, Doorbell::Later) {
            return false;
        }
        peer.sq.reserved -= 1;
        if peer.sq.reserved == 0 {
            self.reservation_used_up(slot, false);
        }
        true
    }

    /// The last message of a reservation was sent: rings if the batch is full. One that asks for a
    /// completion may be in the middle of a list, which rings as a whole.
    #[cold]
    #[inline(never)]
    fn reservation_used_up(&mut self, slot: u32, signals: bool) {
        let Some(peer) = self.peers.at(slot) else { return };
        peer.sq.end_reservation();
        let full = if signals { peer.sq.is_list_full() } else { peer.sq.is_batch_full() };
        if full {
            self.ring_doorbell(slot);
        }
    }

    /// Begins a reservation of at least one message; `FRESH` ones leave the last credit. `list` is
    /// the number of messages if they come in one list. A message that asks for a completion is
    /// reserved alone. `None`: a message would overtake something that waits, or there is no room.
    #[inline(always)]
    fn reserve<const FRESH: bool>(&mut self, slot: u32, list: Option<u32>) -> Option<&mut Peer<P>> {
        self.end_reservation(slot);
        let free = self.accounts.in_flight.below_watermark();
        let peer = self.peers.at(slot)?;
        if !peer.sq.has_budget::<FRESH>() || free == 0 {
            return None;
        }
        self.accounts.in_flight.count += match list {
            Some(count) => peer.sq.begin_list(count.min(free)),
            None => peer.sq.begin_reservation(free),
        };
        if !peer.sq.is_listed {
            peer.sq.is_listed = true;
            self.pending.put(slot);
        }
        Some(peer)
    }

    /// Sends a message from a new reservation, to ring later. False: nothing was done, because
    /// something waits before it or there is no room; the batches deal with that.
    #[inline(never)]
    pub(super) fn post_deferred<const FRESH: bool>(
        &mut self,
        slot: u32,
        imm: Option<u32>,
        sge: Sge,
    ) -> bool {
        let Some(peer) = self.reserve::<FRESH>(slot, None) else { return false };
        let signals = peer.sq.signals();
        let posted = peer.post_inline(imm, signals, sge, Doorbell::Later);
        if posted {
            if signals {
                peer.sq.has_signaled();
            }
            peer.sq.reserved -= 1;
        }
        if !posted {
            self.end_reservation(slot);
        } else if peer.sq.reserved == 0 {
            self.reservation_used_up(slot, signals);
        }
        posted
    }

    /// Sends the first messages of a list from a new reservation, to ring later; returns how many.
    /// It stops before one that asks for a completion.
    #[inline(never)]
    pub(super) fn post_inline_list(&mut self, id: PeerId, list: &[&[u8]]) -> usize {
        let list = self.inline_front(list);
        let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
        let Some(peer) = self.reserve::<true>(id.slot, Some(count)) else { return 0 };
        let mut count = 0;
        if peer.generation == id.generation && !peer.sq.signals() {
            let first = peer.sq.next_wr_id();
            let list = list.get(..peer.sq.reserved as usize).unwrap_or(list);
            if let Some(qp) = &mut peer.qp {
                // SAFETY: the payloads are borrowed for the call. The worker's thread is the one
                // that polls.
                count = unsafe { qp.post_inline_list(first, list) };
                peer.sq.pushed = peer.sq.pushed.wrapping_add(count as u32);
                peer.sq.reserved -= count as u32;
            }
        }
        let left = peer.sq.end_reservation();
        let full = peer.sq.is_list_full();
        self.accounts.in_flight.count -= left;
        if full {
            self.ring_doorbell(id.slot);
        }
        count
    }

    /// Sends a message with a doorbell of its own, without a reservation, and frees the received
    /// block that it was copied out of, if there is one. False: nothing was done, as for
    /// [`Sender::post_deferred`].
    #[inline(always)]
    pub(super) fn post_at_once<const FRESH: bool>(
        &mut self,
        slot: u32,
        imm: Option<u32>,
        sge: Sge,
        block: Option<u32>,
    ) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if !peer.sq.has_budget::<FRESH>() || self.accounts.in_flight.is_at_watermark() {
            return false;
        }
        if imm.is_some() || peer.sq.signals() {
            if !self.post_signaled(slot, imm, sge.addr, sge.length) {
                return false;
            }
            if let Some(block) = block {
                self.free_after_signaled(slot, block);
            }
        } else {
            if !peer.post_inline(None, false, sge, Doorbell::Now) {
                return false;
            }
            if let Some(block) = block {
                // With the peer at hand: a second look-up costs a reply registers.
                self.accounts.free_block(slot, peer, block);
            }
        }
        // Store little after the doorbell: later stores wait in the store buffer until its cache
        // line is here. So the counters are updated later, all at once.
        self.accounts.in_flight.count += 1;
        self.accounts.uncounted_singles += 1;
        true
    }

    /// [`Sender::post_at_once`] for immediate data, or for a message that asks for a completion. It
    /// is a function of its own so that other messages need no registers for this.
    #[cold]
    #[inline(never)]
    fn post_signaled(&mut self, slot: u32, imm: Option<u32>, addr: u64, length: u32) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        let signals = peer.sq.signals();
        let posted = peer.post_inline(imm, signals, Sge { addr, length, lkey: 0 }, Doorbell::Now);
        if posted && signals {
            peer.sq.has_signaled();
        }
        posted
    }

    /// Frees the block of a reply that asks for a completion, for the same reason apart.
    #[cold]
    #[inline(never)]
    fn free_after_signaled(&mut self, slot: u32, block: u32) {
        self.done_with(slot, block);
    }

    /// Sends a copy inline, with a doorbell now or later. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_inline_copy(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
        doorbell: Doorbell,
    ) -> bool {
        let current = |peer: &Peer<P>| peer.generation == id.generation;
        if !self.peers.at(id.slot).is_some_and(|peer| current(peer))
            || !self.goes_inline(id.slot, bytes.len())
        {
            return false;
        }
        match doorbell {
            Doorbell::Now => self.post_at_once::<true>(id.slot, imm, Sge::inline(bytes), None),
            Doorbell::Later => self.post_deferred::<true>(id.slot, imm, Sge::inline(bytes)),
        }
    }

    /// If messages to a peer wait for its doorbell, sends a copy inline behind them, and rings for
    /// all. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_and_ring(&mut self, id: PeerId, bytes: &[u8]) -> bool {
        let waits = self.peers.at(id.slot).is_some_and(|peer| peer.sq.pending > 0);
        let posted = waits
            && (self.post_reserved_copy(id, bytes)
                || self.post_inline_copy(id, None, bytes, Doorbell::Later));
        if posted {
            self.ring_doorbell(id.slot);
            // If the peer is the last in the list, it leaves now, else with the next flush.
            if let Some(peer) = self.peers.at(id.slot)
                && self.pending.pop_if(|slot| *slot == id.slot).is_some()
            {
                peer.sq.leave_list();
            }
        }
        posted
    }

    /// Ends the reservation of a peer, if there is one, because something else is about to happen.
    #[inline(always)]
    pub(super) fn end_reservation(&mut self, slot: u32) {
        if let Some(peer) = self.peers.at(slot)
            && peer.sq.reserved > 0
        {
            self.accounts.in_flight.count -= peer.sq.end_reservation();
        }
    }

    /// Requests in flight, without those that are only reserved.
    pub(super) fn in_flight(&self) -> u32 {
        let left = |slot: &u32| self.peers.get_ref(*slot).map_or(0, |peer| peer.sq.reserved);
        self.accounts.in_flight.count - self.pending.iter().map(left).sum::<u32>()
    }

    /// Opens a peer's budget, unless a message would overtake something that waits, or there is no
    /// room. True if it is open now.
    #[cold]
    #[inline(never)]
    pub(super) fn open_budget(&mut self, slot: u32) -> bool {
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return false };
        if !peer.is_clear() {
            return false;
        }
        if !peer.sq.has_room::<true>() {
            peer.measure();
        }
        peer.sq.open_budget();
        peer.sq.has_budget::<true>()
    }

    /// A reply was to ring at once, and was not sent. If its peer's budget is used up, and nothing
    /// waits for a doorbell, it will ring at once when the budget is open.
    #[cold]
    #[inline(never)]
    pub(super) fn not_yet(&mut self, slot: u32) {
        if self.peers.at(slot).is_some_and(|peer| peer.sq.is_used_up()) {
            self.doorbells.not_yet();
        }
    }

    /// Rings for the messages that wait for a peer's doorbell.
    pub(super) fn ring_doorbell(&mut self, slot: u32) {
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return };
        if let (Some(qp), 1..) = (&mut peer.qp, peer.sq.pending) {
            // SAFETY: the worker's thread is the one that polls.
            unsafe { qp.ring_doorbell() };
            probes::doorbell(slot, peer.sq.pending);
            self.accounts.stats.count_batch(peer.sq.pending as usize);
            self.accounts.stats.sent += u64::from(peer.sq.pending);
            peer.sq.pending = 0;
        }
    }

    /// Rings for every peer with messages that wait for a doorbell.
    #[inline(never)]
    pub(super) fn ring_pending(&mut self) {
        while let Some(slot) = self.pending.pop() {
            self.ring_doorbell(slot);
            if let Some(peer) = self.peers.at(slot) {
                peer.sq.leave_list();
            }
        }
    }
}
