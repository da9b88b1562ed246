//! Replies in the block of the message: sent now, or when there is room and credit.

use std_alloc::collections::VecDeque;

use super::batch::request;
use super::held::Held;
use super::message::PeerId;
use super::post::Admission;
use super::probes;
use super::sender::Sender;
use crate::provider::{Doorbell, Provider, Qp};
use crate::room::FixedCapacity;
use crate::wr::{SendFlags, SendOp, Sge};

/// A reply that found no room or credit.
struct Deferred {
    peer: PeerId,
    block: u32,
    length: u32,
}

/// Replies that wait, in order.
pub(super) struct Replies {
    queue: VecDeque<Deferred>,
    /// Passes over the queue.
    pass: u64,
}

impl Replies {
    /// A queue with room for a reply in each of `blocks` blocks.
    pub(super) fn new(blocks: u32) -> Replies {
        Replies { queue: VecDeque::with_capacity(blocks as usize), pass: 0 }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends the first `length` bytes of a received block back; the block is free when that send is
    /// over.
    #[inline(always)]
    pub(super) fn reply<P: Provider>(
        &mut self,
        sender: &mut Sender<P>,
        slot: u32,
        block: u32,
        length: usize,
    ) {
        let length = (length as u64).min(u64::from(sender.peers.block_bytes)) as u32;
        probes::reply(slot, length);
        // While replies wait, the budget is closed.
        if !(P::Qp::POSTS_INLINE
            && length <= sender.inline_max
            && Self::send_inline(sender, slot, block, length))
        {
            self.reply_or_defer(sender, slot, block, length);
        }
    }

    #[inline(never)]
    fn reply_or_defer<P: Provider>(
        &mut self,
        sender: &mut Sender<P>,
        slot: u32,
        block: u32,
        length: u32,
    ) {
        if sender.peers.check_length(slot, length.into()).is_err() {
            return Self::refuse(sender, slot, block);
        }
        if length > sender.inline_max
            && sender.goes_inline(slot, length as usize)
            && Self::send_inline(sender, slot, block, length)
        {
            return;
        }
        let held_back =
            sender.peers.at(slot).is_some_and(|peer| peer.deferred > 0 || peer.sends_ended);
        if held_back || !Self::send(sender, slot, block, length) {
            self.defer(sender, slot, block, length);
        }
    }

    /// Keeps a reply until there is room, unless this side has finished sending. A block is
    /// deferred at most once, so the queue never outgrows the capacity it was made with.
    #[cold]
    fn defer<P: Provider>(&mut self, sender: &mut Sender<P>, slot: u32, block: u32, length: u32) {
        if sender.peers.at(slot).is_some_and(|peer| peer.sends_ended) {
            return sender.done_with(slot, block);
        }
        let peer = sender.peers.id(slot);
        self.queue.put(Deferred { peer, block, length });
        sender.accounts.stats.deferred += 1;
        if let Some(peer) = sender.peers.at(slot) {
            peer.deferred += 1;
            peer.sq.close_budget();
            if peer.credit.step(true) {
                sender.accounts.credit_due.put(slot);
            }
        }
    }

    /// Drops the waiting replies of a peer that is gone.
    pub(super) fn drop_of<P: Provider>(&mut self, sender: &mut Sender<P>, id: PeerId) {
        for _ in 0..self.queue.len() {
            let Some(reply) = self.queue.pop_front() else { return };
            if reply.peer == id {
                sender.accounts.recv.free(reply.block);
            } else {
                self.queue.put(reply);
            }
        }
    }

    /// Sends the replies whose peers have room again, in order for each peer: when one has to stay,
    /// all later ones of its peer stay, although credit may come at any time.
    #[cold]
    #[inline(never)]
    pub(super) fn retry<P: Provider>(&mut self, sender: &mut Sender<P>) {
        self.pass += 1;
        for _ in 0..self.queue.len() {
            let Some(reply) = self.queue.pop_front() else { return };
            let slot = reply.peer.slot;
            let blocked = match sender.peers.get(reply.peer) {
                Some(peer) if peer.is_up() => peer.blocked_in == self.pass,
                _ => {
                    sender.accounts.recv.free(reply.block);
                    continue;
                }
            };
            let sent = !blocked && Self::send(sender, slot, reply.block, reply.length);
            if let Some(peer) = sender.peers.at(slot) {
                match sent {
                    true => peer.deferred -= 1,
                    false => peer.blocked_in = self.pass,
                }
            }
            if !sent {
                self.queue.put(reply);
            }
        }
    }

    /// A reply is too long for its peer. The handler cannot be told here, so the peer is closed,
    /// unless the reply would not be sent anyway.
    #[cold]
    fn refuse<P: Provider>(sender: &mut Sender<P>, slot: u32, block: u32) {
        sender.done_with(slot, block);
        if sender.peers.at(slot).is_some_and(|peer| peer.sends_ended) {
            return;
        }
        sender.peers.set_overlong(slot);
        sender.accounts.broken.add(slot);
    }

    /// Sends a reply that goes inline, with a doorbell at once or later. False: nothing was done.
    #[inline(always)]
    fn send_inline<P: Provider>(
        sender: &mut Sender<P>,
        slot: u32,
        block: u32,
        length: u32,
    ) -> bool {
        // An inline post needs no key. Its payload is copied out of the block, which is free then.
        let sge = Sge { lkey: 0, ..sender.accounts.recv.sge(block, length) };
        match sender.doorbells.next_reply() {
            Doorbell::Now => {
                let posted = sender.post_at_once::<false>(slot, None, sge, Some(block));
                if !posted {
                    sender.not_yet(slot);
                }
                posted
            }
            Doorbell::Later => {
                let posted = sender.post_reserved(slot, sge)
                    || sender.post_deferred::<false>(slot, None, sge);
                if posted {
                    sender.done_with(slot, block);
                }
                posted
            }
        }
    }

    /// False: there is no room now. A reply to a peer that is gone is dropped.
    fn send<P: Provider>(sender: &mut Sender<P>, slot: u32, block: u32, length: u32) -> bool {
        let inline = sender.goes_inline(slot, length as usize);
        if P::Qp::POSTS_INLINE
            && inline
            && sender.open_budget(slot)
            && Self::send_inline(sender, slot, block, length)
        {
            return true;
        }
        let flags = if inline { SendFlags::INLINE } else { SendFlags::empty() };
        let wr = request(SendOp::Send, flags, sender.accounts.recv.sge(block, length));
        let held = Held::recv_block(block);
        if sender.doorbells.next_reply() == Doorbell::Now
            && sender.post_message::<false>(slot, wr, held)
        {
            return true;
        }
        match sender.admission::<false>(slot) {
            Admission::Open(peer, batch) => {
                if batch.add(peer, wr, held) {
                    sender.post_batch_of(slot);
                }
                true
            }
            Admission::Full(_) => false,
            Admission::Closed => {
                sender.accounts.recv.free(block);
                true
            }
        }
    }
}
