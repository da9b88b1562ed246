//! The state that all peers of a worker share when they send: requests in flight, memory, credit
//! that is due, counters.
//!
//! Each block is in exactly one place: with the device (posted, or in flight below a send), with
//! the handler for one call, kept by it, waiting as a deferred reply, or free.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use std_alloc::vec::Vec;

use super::held::{Held, Holds};
use super::in_flight::InFlight;
use super::peers::{Peer, PeerState};
use super::probes;
use super::recv_blocks::RecvBlocks;
use super::requests::Requests;
use super::send_blocks::SendBlocks;
use super::send_error::SendError;
use super::stats::Stats;
use crate::provider::{Provider, Qp};
use crate::room::FixedCapacity;
use crate::wc::Status;
use crate::wr::{PostCause, PostError, SendFlags, SendOp, SendWr, Sge};

/// The outcome of sends.
#[derive(Clone, Copy)]
pub(super) struct SendStatus {
    /// The outcome of sends without a completion of their own.
    earlier: Status,
    /// The outcome of the send that the completion names.
    last: Status,
}

impl SendStatus {
    /// Success.
    pub(super) const WELL: SendStatus = SendStatus::with(Status::Success);
    /// Unknown: done or not.
    pub(super) const UNKNOWN: SendStatus =
        SendStatus { earlier: Status::Flushed, last: Status::Flushed };

    /// A completion with that status. The sends before it were done, or had completions of their
    /// own.
    pub(super) const fn with(last: Status) -> SendStatus {
        SendStatus { earlier: Status::Success, last }
    }
}

/// The state that all peers of a worker share when they send.
pub(super) struct Accounts<P: Provider> {
    pub(super) in_flight: InFlight,
    pub(super) recv: RecvBlocks<P>,
    pub(super) send: SendBlocks<P>,
    pub(super) requests: Requests,
    /// Peers whose credit word is to be written.
    pub(super) credit_due: Vec<u32>,
    pub(super) stats: Stats,
    /// Messages with a doorbell each that are not in the counters yet.
    pub(super) uncounted_singles: u32,
    pub(super) broken: Broken,
}

/// Peers to close at the next flush. The queue pair has refused a post for another reason than a
/// full queue, and the refused requests are still in the peer's batch, if they were in one; or a
/// reply was too long; or the peer broke the rules of credit, or said goodbye and did not
/// disconnect.
pub(super) struct Broken {
    slots: Vec<u32>,
}

impl Broken {
    pub(super) fn new(peers: u32) -> Broken {
        Broken { slots: Vec::with_capacity(peers as usize) }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Adds the peer in a slot, unless it is there.
    pub(super) fn add(&mut self, slot: u32) {
        if !self.slots.contains(&slot) {
            self.slots.put(slot);
        }
    }

    /// Takes a peer out.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.slots.pop()
    }

    /// The peer in a slot has ended: the next one there has done nothing.
    pub(super) fn remove(&mut self, slot: u32) {
        self.slots.retain(|broken| *broken != slot);
    }
}

impl<P: Provider> Accounts<P> {
    /// Updates the counters with the messages that had a doorbell each.
    #[inline(always)]
    pub(super) fn count_singles(&mut self) {
        if self.uncounted_singles > 0 {
            self.stats.count_singles(core::mem::take(&mut self.uncounted_singles));
        }
    }

    /// Reads a peer's room and credit again, when what was known is used up.
    ///
    /// # Errors
    /// Why nothing more may be sent now.
    #[cold]
    #[inline(never)]
    pub(super) fn measure_again<const FRESH: bool>(
        &mut self,
        slot: u32,
        peer: &mut Peer<P>,
    ) -> Result<(), SendError> {
        if FRESH {
            peer.accepts()?;
        }
        let (slots, credits) = peer.measure();
        let spare = if FRESH { peer.credit.spare() } else { 0 };
        if slots == 0 {
            return Err(SendError::Full);
        }
        if credits <= spare {
            peer.credit.note_room(credits);
            self.stats.credit_stalls += 1;
            probes::credit_stall(slot);
            return Err(SendError::NoCredit);
        }
        Ok(())
    }

    /// Takes home what a send held; a request ends with that status.
    #[inline(always)]
    pub(super) fn release(&mut self, held: Held, status: Status) {
        match held.holds() {
            Holds::Nothing => {}
            Holds::RecvBlock(block) => self.recv.free(block),
            Holds::SendBlock(block) => self.send.put(block),
            Holds::Request(index) => self.requests.end(index, status),
        }
    }

    /// Counts `count` messages of a peer whose blocks are free again, which may make credit due.
    #[inline(always)]
    pub(super) fn count_done(&mut self, slot: u32, peer: &mut Peer<P>, count: u32) {
        if peer.count_done(count) {
            self.credit_due.put(slot);
        }
    }

    /// Frees the block of a peer's message.
    #[inline(always)]
    pub(super) fn free_block(&mut self, slot: u32, peer: &mut Peer<P>, block: u32) {
        self.recv.free(block);
        self.count_done(slot, peer, 1);
    }

    /// Send `index` of a peer, and all before it, are over.
    #[inline(always)]
    pub(super) fn retire(&mut self, slot: u32, peer: &mut Peer<P>, index: u32, status: SendStatus) {
        let next = index.wrapping_add(1);
        self.in_flight.count -= next.wrapping_sub(peer.sq.retired);
        match peer.sq.holds_any() {
            true => self.retire_held(slot, peer, next, status),
            false => peer.sq.retired = next,
        }
    }

    /// Ends everything of a peer whose queue pair is gone or never worked. Sends without a
    /// completion may have been done or not.
    pub(super) fn retire_all(&mut self, slot: u32, peer: &mut Peer<P>) {
        if peer.sq.posted() != peer.sq.retired {
            let last = peer.sq.posted().wrapping_sub(1);
            self.retire(slot, peer, last, SendStatus::UNKNOWN);
        }
    }

    /// Some of the sends before `next` hold something.
    #[inline(never)]
    fn retire_held(&mut self, slot: u32, peer: &mut Peer<P>, next: u32, status: SendStatus) {
        while peer.sq.retired != next {
            let held = peer.sq.retire_one();
            match held.holds() {
                Holds::RecvBlock(block) => self.free_block(slot, peer, block),
                _ if peer.sq.retired == next => self.release(held, status.last),
                _ => self.release(held, status.earlier),
            }
        }
    }

    /// Posts the oldest requests of a peer that wait, with one doorbell. `held` is what each of
    /// them holds, or empty if none holds anything; `reads` says that the device reads a payload
    /// after the post.
    ///
    /// # Errors
    /// The device took only some; the others still wait.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        slot: u32,
        peer: &mut Peer<P>,
        list: &mut [SendWr<'_>],
        held: &[Held],
        reads: bool,
    ) -> Result<(), PostError> {
        let count = list.len();
        if let Some(last) = list.last_mut()
            && (reads || self.in_flight.exceeds_watermark(count as u32))
        {
            // Blocks in flight come home with the next completion, so ask for one, even behind an
            // inline last message. Otherwise an idle peer would hold what others need.
            last.flags |= SendFlags::SIGNALED;
            peer.sq.has_signaled();
        }
        let Some(qp) = &mut peer.qp else {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        };
        // SAFETY: every piece lies in a block of ours that is freed when its send is over, in a
        // region that stays until the queue pair is gone, or is inline. The worker's thread is the
        // one that polls.
        let result = unsafe { qp.post(list) };
        let accepted = result.as_ref().map_or_else(|error| error.accepted, |()| count);
        self.in_flight.count += accepted as u32;
        self.stats.count_batch(accepted);
        if accepted > 0 {
            probes::doorbell(slot, accepted as u64);
        }
        self.stats.sent += accepted as u64;
        if held.is_empty() {
            peer.sq.waiting -= accepted as u32;
            return result;
        }
        for (wr, held) in list.iter().zip(held).take(accepted) {
            match held.holds() {
                // The payload has been copied out of the block.
                Holds::RecvBlock(block) if wr.flags.contains(SendFlags::INLINE) => {
                    self.free_block(slot, peer, block);
                }
                _ => peer.sq.hold(peer.sq.posted(), *held),
            }
            peer.sq.waiting -= 1;
        }
        result
    }

    /// Moves a peer's queue pair to ERR, and marks the end of its sends.
    pub(super) fn end_sends(&mut self, peer: &mut Peer<P>) {
        if let Some(qp) = &mut peer.qp {
            qp.fail();
        }
        self.mark_end(peer);
    }

    /// Posts the request that marks the end of a closing peer's sends: when it is flushed,
    /// everything before it is over, signalled or not. A queue pair that was never connected
    /// refuses the marker and has nothing in flight. If one with sends in flight refuses it, the
    /// next turn tries again, until `Config::drain_turns` are over.
    pub(super) fn mark_end(&mut self, peer: &mut Peer<P>) {
        let wr_id = peer.sq.next_wr_id();
        let PeerState::Closing { marked, .. } = &mut peer.state else { return };
        let Some(qp) = &mut peer.qp else { return };
        let (op, flags, sge) = (SendOp::Send, SendFlags::SIGNALED, Sge::default());
        // SAFETY: the marker has no payload; the worker's thread is the one that polls.
        if unsafe { qp.post(&[SendWr { wr_id, op, flags, sge, more: &[] }]) }.is_ok() {
            *marked = true;
            peer.sq.hold(peer.sq.pushed, Held::NOTHING);
            peer.sq.push();
            self.in_flight.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer whose posts are refused again and again is closed once.
    #[test]
    fn a_broken_peer_is_listed_once() {
        let mut broken = Broken::new(2);
        assert!(broken.is_empty());
        for slot in [1, 0, 1, 1] {
            broken.add(slot);
        }
        assert_eq!([broken.pop(), broken.pop(), broken.pop()], [Some(0), Some(1), None]);
        broken.add(1);
        assert!(!broken.is_empty(), "the slot has another peer by now");
    }
}
