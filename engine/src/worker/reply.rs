//! Replies: in the block the message came in, now or when there is room and credit.

use super::batch::{Admission, add};
use super::core::Core;
use super::handler::PeerId;
use super::peers::PeerState;
use crate::provider::{Provider, Qp};
use crate::room::Room;
use crate::wr::{SendFlags, SendOp};

/// A reply that found the send queue full.
pub(super) struct Deferred {
    peer: PeerId,
    block: u32,
    length: u32,
}

impl<P: Provider> Core<P> {
    /// Sends the first `length` bytes of a received block back; the block follows its message.
    #[inline(always)]
    pub(super) fn reply(&mut self, slot: u32, block: u32, length: usize) {
        let length = (length as u64).min(u64::from(self.shared.block_bytes())) as u32;
        // Where replies wait, the budget is closed.
        if !(P::Qp::POSTS_INLINE && self.post_inline_reply(slot, block, length)) {
            self.reply_or_defer(slot, block, length);
        }
    }

    #[inline(never)]
    fn reply_or_defer(&mut self, slot: u32, block: u32, length: u32) {
        let behind = self.peers.at(slot).is_some_and(|peer| peer.deferred > 0);
        if behind || !self.try_reply(slot, block, length) {
            self.defer(slot, block, length);
        }
    }

    /// Replies the short way, with a doorbell at once or later. False: nothing was done.
    #[inline(always)]
    fn post_inline_reply(&mut self, slot: u32, block: u32, length: u32) -> bool {
        let sge = self.shared.sge(block, length);
        let goes = length <= self.inline_max
            && match self.ring_at_once {
                true => {
                    self.ring_at_once = false;
                    self.post_at_once::<false>(slot, None, sge)
                }
                false => {
                    self.post_reserved(slot, sge) || self.post_deferred::<false>(slot, None, sge)
                }
            };
        if goes {
            // The payload is out of the block already.
            self.done_with(slot, block);
        }
        goes
    }

    /// False: there is no room now. A reply to a peer that is gone is over at once.
    fn try_reply(&mut self, slot: u32, block: u32, length: u32) -> bool {
        if P::Qp::POSTS_INLINE
            && self.open_budget(slot)
            && self.post_inline_reply(slot, block, length)
        {
            return true;
        }
        let inline = length <= self.inline_max;
        let flags = if inline { SendFlags::INLINE } else { SendFlags::empty() };
        let sge = self.shared.sge(block, length);
        let ring_at_once = core::mem::take(&mut self.ring_at_once);
        if ring_at_once && self.post_now::<false>(slot, (SendOp::Send, flags), sge, block) {
            return true;
        }
        match self.admission::<false>(slot) {
            Admission::Open(peer, batch) => {
                if add(peer, batch, (SendOp::Send, flags), sge, block) {
                    self.post_full_batch(slot);
                }
                true
            }
            Admission::Full(_) => false,
            Admission::Closed => {
                self.release(block);
                true
            }
        }
    }

    /// Keeps a reply until there is room. A block is deferred at most once, so the queue never
    /// outgrows the capacity it was made with.
    #[cold]
    fn defer(&mut self, slot: u32, block: u32, length: u32) {
        let peer = self.peers.id(slot);
        self.deferred.put(Deferred { peer, block, length });
        self.stats.deferred += 1;
        if let Some(peer) = self.peers.at(slot) {
            peer.deferred += 1;
            peer.close_budget();
            if peer.credit.step(true) {
                self.credit_due.put(slot);
            }
        }
    }

    /// Takes home the replies that wait for a peer that is gone.
    pub(super) fn drop_deferred(&mut self, id: PeerId) {
        for _ in 0..self.deferred.len() {
            let Some(reply) = self.deferred.pop_front() else { return };
            if reply.peer == id {
                self.release(reply.block);
            } else {
                self.deferred.put(reply);
            }
        }
    }

    /// Sends deferred replies whose peers have room again, in order for each peer: behind one that
    /// has to stay all of its peer stay, though credit may come at any time.
    #[cold]
    #[inline(never)]
    pub(super) fn retry_deferred(&mut self) {
        self.pass += 1;
        for _ in 0..self.deferred.len() {
            let Some(reply) = self.deferred.pop_front() else { return };
            let slot = reply.peer.slot;
            let blocked_in = match self.peers.get(reply.peer) {
                Some(peer) if peer.state == PeerState::Up => peer.blocked_in == self.pass,
                _ => {
                    self.release(reply.block);
                    continue;
                }
            };
            if !blocked_in && self.try_reply(slot, reply.block, reply.length) {
                if let Some(peer) = self.peers.at(slot) {
                    peer.deferred -= 1;
                }
            } else {
                if let Some(peer) = self.peers.at(slot) {
                    peer.blocked_in = self.pass;
                }
                self.deferred.put(reply);
            }
        }
    }
}
