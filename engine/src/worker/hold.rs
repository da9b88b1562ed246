//! The short way out: an inline message goes straight to a device that takes requests one by one
//! and rings for them later ([`Qp::hold`]). No batch lies in between, and with one comparison a
//! peer's gate says that nothing else is in the way either.
//!
//! Behind such a message a *burst* begins: a number of messages to the same peer for which all was
//! looked at once. Each costs one comparison here, and one in the device ([`Qp::hold_more`]). What
//! would have to be looked at each time is in the number, or ends the burst:
//!
//! - room in the send queue, credit but for one that is a reply's, the next message that asks for a
//!   completion, the most that go with one bell: in the number ([`Peer::begin_burst`]);
//! - [`Core::crowd`], which all peers share: the number is in `flying` from the beginning, and what
//!   did not come of it is given back at the end. If that is in the way of others, the bells ring;
//! - a bell, which also ends what is listed: no burst outlives it, and so a peer that rests has
//!   none;
//! - all that goes another way and counts as sent: a batch, a request, a word of credit, a lone
//!   message (the gate is closed to it);
//! - the end of a peer. Where replies wait none begins, and they wait where the gate was tried.
#![expect(unsafe_code, reason = "posts bytes it was lent")]

use super::config::SEND_BATCH;
use super::core::Core;
use super::handler::PeerId;
use super::peers::{Peer, PeerState};
use super::send::op_of;
use crate::provider::{Provider, Qp};
use crate::room::Room;
use crate::wr::{SendFlags, SendWr, Sge};

impl<P: Provider> Peer<P> {
    /// Hands an inline message of a burst to the device: how many may follow. `None`: nothing was
    /// done.
    #[inline(always)]
    fn send_in_burst(&mut self, sge: Sge) -> Option<u32> {
        if self.burst == 0 {
            return None;
        }
        let number = self.next_number();
        // SAFETY: the payload is inline, and no longer than may be; the burst began with a message
        // that was held. The worker's thread is the one that polls.
        if !unsafe { self.qp.as_mut()?.hold_more(number, sge) } {
            return None;
        }
        self.pushed = self.pushed.wrapping_add(1);
        self.burst -= 1;
        Some(self.burst)
    }
}

impl<P: Provider> Core<P> {
    /// Sends a copy within a burst, to be rung for later. False: nothing was done.
    #[inline(always)]
    pub(super) fn burst_copy(&mut self, id: PeerId, bytes: &[u8]) -> bool {
        let Some(peer) = self.peers.at(id.slot) else { return false };
        if peer.generation != id.generation || bytes.len() > self.inline_max as usize {
            return false;
        }
        let more = peer.send_in_burst(Sge::inline(bytes));
        self.has_burst(id.slot, more)
    }

    /// The same with bytes that are no more than go inline.
    #[inline(always)]
    pub(super) fn burst(&mut self, slot: u32, sge: Sge) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        let more = peer.send_in_burst(sge);
        self.has_burst(slot, more)
    }

    /// So many more may follow in a burst.
    #[inline(always)]
    fn has_burst(&mut self, slot: u32, more: Option<u32>) -> bool {
        if more == Some(0) {
            self.burst_is_over(slot);
        }
        more.is_some()
    }

    /// A burst has gone to its end: if that is a batch, it rings.
    #[cold]
    #[inline(never)]
    fn burst_is_over(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        peer.end_burst();
        if peer.unrung >= SEND_BATCH as u32 {
            self.ring_held(slot);
        }
    }

    /// Hands the first of a list of messages to a device that rings for them later: as many as need
    /// no other look, and none of which is due to ask for a completion. How many went.
    #[inline(never)]
    pub(super) fn hold_list(&mut self, id: PeerId, list: &[&[u8]]) -> usize {
        self.end_burst(id.slot);
        let free = self.crowd.saturating_sub(self.flying);
        let Some(peer) = self.peers.at(id.slot) else { return 0 };
        if peer.generation != id.generation {
            return 0;
        }
        let most = peer.silent_room().min(free).min(SEND_BATCH as u32 - peer.unrung);
        let list = list.get(..most as usize).unwrap_or(list);
        let number = peer.next_number();
        let Some(qp) = &mut peer.qp else { return 0 };
        // SAFETY: inline payloads. The worker's thread is the one that polls.
        let count = unsafe { qp.hold_list(number, list) };
        peer.pushed = peer.pushed.wrapping_add(count as u32);
        peer.unrung += count as u32;
        self.flying += count as u32;
        let (full, new) = (peer.unrung >= SEND_BATCH as u32, count > 0 && !peer.listed);
        if new {
            peer.listed = true;
            self.unrung.put(id.slot);
        }
        if full {
            self.ring_held(id.slot);
        }
        count
    }

    /// Ends the burst of a peer, if there is one: something else is about to be sent or to happen.
    #[inline(always)]
    pub(super) fn end_burst(&mut self, slot: u32) {
        if let Some(peer) = self.peers.at(slot)
            && peer.burst > 0
        {
            self.flying -= peer.end_burst();
        }
    }

    /// Requests in flight, without those that bursts may still add.
    pub(super) fn in_flight(&self) -> u32 {
        let left = |slot: &u32| self.peers.get_ref(*slot).map_or(0, |peer| peer.burst);
        self.flying - self.unrung.iter().map(left).sum::<u32>()
    }

    /// Sends a copy the short way, with a doorbell now or later. False: nothing was done.
    #[inline(always)]
    pub(super) fn hold_copy<const NOW: bool>(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> bool {
        let current = |peer: &Peer<P>| peer.generation == id.generation;
        self.peers.at(id.slot).is_some_and(|peer| current(peer))
            && bytes.len() <= self.inline_max as usize
            && self.hold::<true, NOW>(id.slot, imm, Sge::inline(bytes))
    }

    /// Hands an inline message to a device that rings for it now or later. False: nothing was done,
    /// because something waits before it, or there is no room; the batches deal with that.
    #[inline(always)]
    pub(super) fn hold<const FRESH: bool, const NOW: bool>(
        &mut self,
        slot: u32,
        imm: Option<u32>,
        sge: Sge,
    ) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if !peer.is_open::<FRESH>() || self.flying >= self.crowd {
            return false;
        }
        let (wr_id, signals) = (peer.next_number(), peer.signals());
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
        self.flying += 1;
        // Few stores behind the one to the bell: until that line is here they wait, and there is
        // room for some 64 of them.
        if NOW {
            self.singles += 1;
            return true;
        }
        self.note_held(slot);
        true
    }

    /// A peer whose device has a send it was not rung for is remembered; a batch of them rings.
    /// Before it is one, more may follow in a burst.
    #[inline(never)]
    fn note_held(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if !peer.listed {
            peer.listed = true;
            self.unrung.put(slot);
        }
        peer.unrung += 1;
        match SEND_BATCH as u32 - peer.unrung {
            0 => self.ring_held(slot),
            more => {
                let most = more.min(self.crowd.saturating_sub(self.flying));
                self.flying += peer.begin_burst(most);
            }
        }
    }

    /// Opens a peer's gate, if nothing waits for it: nothing that would be overtaken, and there is
    /// room. True if it is open now.
    #[cold]
    #[inline(never)]
    pub(super) fn open_gate(&mut self, slot: u32) -> bool {
        let send_queue = self.config.send_queue;
        self.end_burst(slot);
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
        peer.open_gate();
        peer.is_open::<true>()
    }

    /// Rings for what the device of a peer has been given without.
    pub(super) fn ring_held(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if peer.burst > 0 {
            self.flying -= peer.end_burst();
        }
        if let (Some(qp), 1..) = (&mut peer.qp, peer.unrung) {
            // SAFETY: the worker's thread is the one that polls.
            unsafe { qp.ring() };
            self.stats.count_batch(peer.unrung as usize);
            self.stats.sent += u64::from(peer.unrung);
            peer.unrung = 0;
        }
    }

    /// Rings for every peer whose device has sends it was not rung for.
    #[inline(never)]
    pub(super) fn ring_all_held(&mut self) {
        while let Some(slot) = self.unrung.pop() {
            self.ring_held(slot);
            if let Some(peer) = self.peers.at(slot) {
                peer.listed = false;
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
