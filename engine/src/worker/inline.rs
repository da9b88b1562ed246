//! The short way out: an inline message goes straight to a device that takes requests one by one
//! and rings for them later ([`Qp::hold`]). No batch lies in between, and with one comparison a
//! peer's budget says that nothing else is in the way either.
//!
//! Behind such a message a *reservation* begins: a number of messages to the same peer for which
//! all was looked at once. Each costs one comparison here, and one in the device
//! ([`Qp::hold_more`]). What would have to be looked at each time is in the number, or ends the
//! reservation:
//!
//! - room in the send queue, credit but for one that is a reply's, the next message that asks for a
//!   completion, the most that go with one bell: in the number ([`Peer::begin_reservation`]);
//! - [`Core::signal_watermark`], which all peers share: the number is in `in_flight` from the
//!   beginning, and what did not come of it is given back at the end. If that is in the way of
//!   others, the bells ring;
//! - a bell, which also ends what is listed: no reservation outlives it, and so a peer that rests
//!   has none;
//! - all that goes another way and counts as sent: a batch, a request, a word of credit, a lone
//!   message (the budget is closed to it);
//! - the end of a peer. Where replies wait none begins, and they wait where the budget was tried.
#![expect(unsafe_code, reason = "posts bytes it was lent")]

use super::batch::op_of;
use super::config::SEND_BATCH;
use super::core::Core;
use super::handler::PeerId;
use super::peers::{Peer, PeerState};
use crate::provider::{Provider, Qp};
use crate::room::Room;
use crate::wr::{SendFlags, SendWr, Sge};

impl<P: Provider> Peer<P> {
    /// Hands an inline message of a reservation to the device: how many may follow. `None`: nothing
    /// was done.
    #[inline(always)]
    fn post_reserved(&mut self, sge: Sge) -> Option<u32> {
        if self.reserved == 0 {
            return None;
        }
        let number = self.next_wr_id();
        // SAFETY: the payload is inline, and no longer than may be; the reservation began with a
        // message that was held. The worker's thread is the one that polls.
        if !unsafe { self.qp.as_mut()?.hold_more(number, sge) } {
            return None;
        }
        self.pushed = self.pushed.wrapping_add(1);
        self.reserved -= 1;
        Some(self.reserved)
    }
}

impl<P: Provider> Core<P> {
    /// Sends a copy within a reservation, to be rung for later. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_reserved_copy(&mut self, id: PeerId, bytes: &[u8]) -> bool {
        let Some(peer) = self.peers.at(id.slot) else { return false };
        if peer.generation != id.generation || bytes.len() > self.inline_max as usize {
            return false;
        }
        let more = peer.post_reserved(Sge::inline(bytes));
        self.has_reserved(id.slot, more)
    }

    /// The same with bytes that are no more than go inline.
    #[inline(always)]
    pub(super) fn post_reserved(&mut self, slot: u32, sge: Sge) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        let more = peer.post_reserved(sge);
        self.has_reserved(slot, more)
    }

    /// So many more may follow in a reservation.
    #[inline(always)]
    fn has_reserved(&mut self, slot: u32, more: Option<u32>) -> bool {
        if more == Some(0) {
            self.reservation_used_up(slot);
        }
        more.is_some()
    }

    /// A reservation has gone to its end: if that is a batch, it rings.
    #[cold]
    #[inline(never)]
    fn reservation_used_up(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        peer.end_reservation();
        if peer.pending >= SEND_BATCH as u32 {
            self.ring_doorbell(slot);
        }
    }

    /// Hands the first of a list of messages to a device that rings for them later: as many as need
    /// no other look, and none of which is due to ask for a completion. How many went.
    #[inline(never)]
    pub(super) fn post_inline_list(&mut self, id: PeerId, list: &[&[u8]]) -> usize {
        self.end_reservation(id.slot);
        let free = self.signal_watermark.saturating_sub(self.in_flight);
        let Some(peer) = self.peers.at(id.slot) else { return 0 };
        if peer.generation != id.generation {
            return 0;
        }
        let most = peer.silent_room().min(free).min(SEND_BATCH as u32 - peer.pending);
        let list = list.get(..most as usize).unwrap_or(list);
        let number = peer.next_wr_id();
        let Some(qp) = &mut peer.qp else { return 0 };
        // SAFETY: inline payloads. The worker's thread is the one that polls.
        let count = unsafe { qp.hold_list(number, list) };
        peer.pushed = peer.pushed.wrapping_add(count as u32);
        peer.pending += count as u32;
        self.in_flight += count as u32;
        let (full, new) = (peer.pending >= SEND_BATCH as u32, count > 0 && !peer.is_listed);
        if new {
            peer.is_listed = true;
            self.pending.put(id.slot);
        }
        if full {
            self.ring_doorbell(id.slot);
        }
        count
    }

    /// Ends the reservation of a peer, if there is one: something else is about to be sent or to
    /// happen.
    #[inline(always)]
    pub(super) fn end_reservation(&mut self, slot: u32) {
        if let Some(peer) = self.peers.at(slot)
            && peer.reserved > 0
        {
            self.in_flight -= peer.end_reservation();
        }
    }

    /// Requests in flight, without those that reservations may still add.
    pub(super) fn in_flight(&self) -> u32 {
        let left = |slot: &u32| self.peers.get_ref(*slot).map_or(0, |peer| peer.reserved);
        self.in_flight - self.pending.iter().map(left).sum::<u32>()
    }

    /// Sends a copy the short way, with a doorbell now or later. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_inline_copy<const NOW: bool>(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> bool {
        let current = |peer: &Peer<P>| peer.generation == id.generation;
        self.peers.at(id.slot).is_some_and(|peer| current(peer))
            && bytes.len() <= self.inline_max as usize
            && self.post_inline::<true, NOW>(id.slot, imm, Sge::inline(bytes))
    }

    /// Hands an inline message to a device that rings for it now or later. False: nothing was done,
    /// because something waits before it, or there is no room; the batches deal with that.
    #[inline(always)]
    pub(super) fn post_inline<const FRESH: bool, const NOW: bool>(
        &mut self,
        slot: u32,
        imm: Option<u32>,
        sge: Sge,
    ) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if !peer.has_budget::<FRESH>() || self.in_flight >= self.signal_watermark {
            return false;
        }
        let (wr_id, signals) = (peer.next_wr_id(), peer.signals());
        let Sge { addr, length, lkey } = sge;
        let Some(qp) = &mut peer.qp else { return false };
        // SAFETY: the payload is inline, and no longer than may be. The worker's thread is the one
        // that polls.
        if !(NOW && imm.is_none() && !signals && unsafe { qp.post_next(wr_id, sge) }) {
            if !begin::<P, NOW>(qp, (wr_id, signals), imm, addr, (length, lkey)) {
                return false;
            }
            if signals {
                peer.signals_now(self.config.signal_every);
            }
        }
        peer.pushed = peer.pushed.wrapping_add(1);
        self.in_flight += 1;
        // Few stores behind the one to the bell: until that line is here they wait, and there is
        // room for some 64 of them.
        if NOW {
            self.uncounted_singles += 1;
            return true;
        }
        self.note_pending(slot);
        true
    }

    /// A peer whose device has a send it was not rung for is remembered; a batch of them rings.
    /// Before it is one, more may follow in a reservation.
    #[inline(never)]
    fn note_pending(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if !peer.is_listed {
            peer.is_listed = true;
            self.pending.put(slot);
        }
        peer.pending += 1;
        match SEND_BATCH as u32 - peer.pending {
            0 => self.ring_doorbell(slot),
            more => {
                let most = more.min(self.signal_watermark.saturating_sub(self.in_flight));
                self.in_flight += peer.begin_reservation(most);
            }
        }
    }

    /// Opens a peer's budget, if nothing waits for it: nothing that would be overtaken, and there
    /// is room. True if it is open now.
    #[cold]
    #[inline(never)]
    pub(super) fn open_budget(&mut self, slot: u32) -> bool {
        let send_queue = self.config.send_queue;
        self.end_reservation(slot);
        let Some(peer) = self.peers.at(slot) else { return false };
        let clear = peer.state == PeerState::Up
            && peer.deferred == 0
            && peer.waiting == 0
            && !peer.finishing;
        if !clear {
            return false;
        }
        if !peer.has_room::<true>() {
            peer.measure(send_queue);
        }
        peer.open_budget();
        peer.has_budget::<true>()
    }

    /// Rings for what the device of a peer has been given without.
    pub(super) fn ring_doorbell(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if peer.reserved > 0 {
            self.in_flight -= peer.end_reservation();
        }
        if let (Some(qp), 1..) = (&mut peer.qp, peer.pending) {
            // SAFETY: the worker's thread is the one that polls.
            unsafe { qp.ring() };
            self.stats.count_batch(peer.pending as usize);
            self.stats.sent += u64::from(peer.pending);
            peer.pending = 0;
        }
    }

    /// Rings for every peer whose device has sends it was not rung for.
    #[inline(never)]
    pub(super) fn ring_pending(&mut self) {
        while let Some(slot) = self.pending.pop() {
            self.ring_doorbell(slot);
            if let Some(peer) = self.peers.at(slot) {
                peer.is_listed = false;
            }
        }
    }
}

/// Hands an inline message to a device that looks at everything. By itself, and given numbers: what
/// it needs is not to be in memory where it is not called.
#[cold]
#[inline(never)]
fn begin<P: Provider, const NOW: bool>(
    qp: &mut P::Qp,
    (wr_id, signals): (u64, bool),
    imm: Option<u32>,
    addr: u64,
    (length, lkey): (u32, u32),
) -> bool {
    let mut flags = SendFlags::INLINE;
    flags.set(SendFlags::SIGNALED, signals);
    let sge = Sge { addr, length, lkey };
    let wr = SendWr { wr_id, op: op_of(imm), flags, sge, more: &[] };
    // SAFETY: the payload is no longer than goes inline. The worker's thread is the one that polls.
    unsafe { if NOW { qp.post_lone(&wr) } else { qp.hold(&wr) } }
}
