//! The short way out: an inline message goes straight to a device that takes requests one by one
//! and rings for them later ([`Qp::hold`]). No batch lies in between, and with one comparison a
//! peer's gate says that nothing else is in the way either.
#![expect(unsafe_code, reason = "posts bytes it was lent")]

use super::config::SEND_BATCH;
use super::core::Core;
use super::handler::PeerId;
use super::number;
use super::peers::{Peer, PeerState};
use crate::provider::{Provider, Qp};
use crate::room::Room;
use crate::wr::{SendFlags, SendOp, SendWr, Sge};

impl<P: Provider> Core<P> {
    /// Sends a copy the short way, with a doorbell now or later. False: nothing was done.
    #[inline(always)]
    pub(super) fn hold_copy<const NOW: bool>(
        &mut self,
        id: PeerId,
        op: SendOp,
        bytes: &[u8],
    ) -> bool {
        let current = |peer: &Peer<P>| peer.generation == id.generation;
        self.peers.at(id.slot).is_some_and(|peer| current(peer))
            && bytes.len() <= self.inline_max as usize
            && self.hold::<true, NOW>(id.slot, op, Sge::inline(bytes))
    }

    /// Hands an inline message to a device that rings for it now or later. False: nothing was done,
    /// because something waits before it, or there is no room; the batches deal with that.
    #[inline(always)]
    pub(super) fn hold<const FRESH: bool, const NOW: bool>(
        &mut self,
        slot: u32,
        op: SendOp,
        sge: Sge,
    ) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if !peer.is_open::<FRESH>() || self.flying >= self.crowd {
            return false;
        }
        let signals = peer.signals();
        let mut flags = SendFlags::INLINE;
        flags.set(SendFlags::SIGNALED, signals);
        let wr_id = number::send(slot, peer.generation, peer.pushed);
        let Some(qp) = &mut peer.qp else { return false };
        let wr = SendWr { wr_id, op, flags, sge, more: &[] };
        // SAFETY: the payload is inline. The worker's thread is the one that polls.
        if !unsafe { if NOW { qp.post_lone(&wr) } else { qp.hold(&wr) } } {
            return false;
        }
        peer.pushed = peer.pushed.wrapping_add(1);
        if signals {
            peer.has_signaled(self.config.signal_every);
        }
        self.flying += 1;
        // Few stores behind the one to the bell: until that line is here they wait, and there is
        // room for some 64 of them.
        if NOW {
            self.singles += 1;
            return true;
        }
        peer.unrung += 1;
        if peer.unrung == 1 || peer.unrung >= SEND_BATCH as u32 {
            self.note_held(slot);
        }
        true
    }

    /// A peer whose device has a send it was not rung for is remembered; a batch of them rings.
    #[inline(never)]
    fn note_held(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if !peer.listed {
            peer.listed = true;
            self.unrung.put(slot);
        }
        if peer.unrung >= SEND_BATCH as u32 {
            self.ring_held(slot);
        }
    }

    /// Opens a peer's gate, if nothing waits for it: nothing that would be overtaken, and there is
    /// room. True if it is open now.
    #[cold]
    #[inline(never)]
    pub(super) fn open_gate(&mut self, slot: u32) -> bool {
        let send_queue = self.config.send_queue;
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
