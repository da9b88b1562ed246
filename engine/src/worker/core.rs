//! The worker without its handler: its peers, its blocks, and what is in flight. The way out is in
//! [`super::send`].
//!
//! Each block is in exactly one place: with the device (posted, or in flight below a send), with
//! the handler for one call, kept by it, waiting as a deferred reply, or in the refill list.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use core::slice;

use doorbell_alloc::BlockPool;
use std_alloc::boxed::Box;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::batch::{Batch, NO_BATCH};
use super::config::{Config, DIRTY_PEERS};
use super::datagram::Datagrams;
use super::finish::Finish;
use super::handler::{DownReason, Message, PeerId};
use super::kept::{Kept, KeptMessage, Token};
use super::mailbox::{Mailbox, PeerData};
use super::outbox::SendError;
use super::peers::{NO_BLOCK, PeerState, Peers, SEND_BLOCK};
use super::reply::Deferred;
use super::request::{PENDING, Requests};
use super::shared_recv::SharedRecv;
use super::stats::Stats;
use super::timers::Timers;
use super::wr_id;
use crate::provider::{Provider, Qp, Srq};
use crate::room::Room;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};

/// How sends end that are over.
#[derive(Clone, Copy)]
pub(super) struct SendStatus {
    /// Those that gave no completion of their own.
    pub(super) earlier: Status,
    /// The one that the completion names.
    pub(super) last: Status,
}

impl SendStatus {
    /// All is well.
    pub(super) const WELL: SendStatus = SendStatus::with(Status::Success);
    /// Nobody knows.
    const UNKNOWN: SendStatus = SendStatus { earlier: Status::Flushed, last: Status::Flushed };

    /// A completion with that status: what came before was done, or has said so itself.
    pub(super) const fn with(last: Status) -> SendStatus {
        SendStatus { earlier: Status::Success, last }
    }
}

/// Everything a worker has but its handler and its poller.
pub(super) struct Core<P: Provider> {
    // Peers first: queue pairs are gone before the memory they read.
    pub(super) peers: Peers<P>,
    pub(super) datagrams: Datagrams<P>,
    pub(super) mailbox: Arc<Mailbox<P>>,
    pub(super) shared: SharedRecv<P>,
    pub(super) region: P::Region,
    pub(super) regions: Vec<P::Region>,
    pub(super) requests: Requests,
    pub(super) pool: BlockPool,
    pub(super) batches: Box<[Batch]>,
    pub(super) idle_batches: Vec<u32>,
    pub(super) dirty: Vec<u32>,
    /// Peers whose device has sends it was not rung for.
    pub(super) pending: Vec<u32>,
    pub(super) deferred: VecDeque<Deferred>,
    pub(super) refill: Vec<RecvWr>,
    pub(super) kept: Kept,
    pub(super) timers: Timers,
    /// Peers to be told of credit.
    pub(super) credit_due: Vec<u32>,
    /// Passes over the deferred replies.
    pub(super) pass: u64,
    pub(super) closing: Vec<u32>,
    /// Peers to be closed when nothing is left for them.
    pub(super) finishing: Vec<Finish>,
    pub(super) turn: u64,
    /// Receives that came back without a message to a handler.
    pub(super) returned_otherwise: u64,
    /// Requests posted and not over, with those that reservations may add ([`super::inline`]).
    pub(super) in_flight: u32,
    /// Messages that went alone, with a doorbell each, and are not in the counters yet.
    pub(super) uncounted_singles: u32,
    /// Turns since the bells were rung.
    pub(super) held_turns: u32,
    /// Nothing was sent since the last poll that found something: what goes next rings at once, so
    /// that the peer begins with it while the rest gathers. Where a doorbell is dear, only if the
    /// poll found one message.
    pub(super) ring_at_once: bool,
    /// With so many requests in flight each asks for a completion: half of what may be.
    pub(super) signal_watermark: u32,
    pub(super) inline_max: u32,
    pub(super) message_max: u32,
    pub(super) config: Config,
    pub(super) stats: Stats,
}

impl<P: Provider> Core<P> {
    pub(super) fn new(
        mailbox: Arc<Mailbox<P>>,
        shared: SharedRecv<P>,
        (region, pool): (P::Region, BlockPool),
        datagrams: Datagrams<P>,
        config: &Config,
    ) -> Core<P> {
        let batches = (0..DIRTY_PEERS)
            .map(|_| Batch::new(config.inline_bytes as usize, config.signal_every))
            .collect();
        let blocks = shared.blocks() as usize;
        Core {
            peers: Peers::new(config),
            datagrams,
            mailbox,
            shared,
            region,
            regions: Vec::new(),
            requests: Requests::new(config.requests),
            pool,
            batches,
            idle_batches: (0..DIRTY_PEERS as u32).rev().collect(),
            dirty: Vec::with_capacity(DIRTY_PEERS),
            pending: Vec::with_capacity(config.peers as usize),
            deferred: VecDeque::with_capacity(blocks),
            refill: Vec::with_capacity(blocks),
            kept: Kept::new(config.keeps),
            timers: Timers::new(config.timers),
            credit_due: Vec::with_capacity(config.peers as usize),
            pass: 0,
            closing: Vec::with_capacity(config.peers as usize),
            finishing: Vec::with_capacity(config.peers as usize),
            turn: 0,
            returned_otherwise: 0,
            in_flight: 0,
            uncounted_singles: 0,
            held_turns: 0,
            ring_at_once: false,
            signal_watermark: config.sends / 2,
            inline_max: config.inline_bytes,
            message_max: 0,
            config: *config,
            stats: Stats::default(),
        }
    }

    /// True if something waits for a doorbell.
    #[inline(always)]
    pub(super) fn has_sends(&self) -> bool {
        !self.pending.is_empty() || !self.dirty.is_empty()
    }

    /// True if nothing waits: for a doorbell, for room, for an answer to be told, for the end of a
    /// peer.
    #[inline(always)]
    pub(super) fn is_settled(&self) -> bool {
        let sent = !self.has_sends() && self.deferred.is_empty() && self.credit_due.is_empty();
        let ended = self.closing.is_empty() && self.finishing.is_empty();
        sent && ended && !self.requests.has_ended()
    }

    /// Counts the messages that went alone.
    #[inline(always)]
    pub(super) fn count_singles(&mut self) {
        if self.uncounted_singles > 0 {
            self.stats.count_singles(core::mem::take(&mut self.uncounted_singles));
        }
    }

    /// Takes a block home, to whichever memory it belongs.
    #[inline(always)]
    pub(super) fn release(&mut self, block: u32) {
        if block == NO_BLOCK {
            return;
        }
        if block & SEND_BLOCK != 0 {
            self.pool.put(block & !SEND_BLOCK);
        } else if block & PENDING != 0 {
            self.requests.end(block & !PENDING, Status::Flushed);
        } else {
            self.refill.put(self.shared.request(block));
        }
    }

    /// A completion for send `low` of a peer in a slot: that one and all before it are over.
    #[inline(always)]
    pub(super) fn retire(&mut self, (slot, generation, low): (u32, u16, u32), status: SendStatus) {
        let Some(peer) = self.peers.at(slot) else {
            return self.retire_datagrams((slot, generation, low));
        };
        if peer.generation != generation {
            return;
        }
        let Some(index) = peer.in_flight(low) else { return };
        self.in_flight -= index.wrapping_add(1).wrapping_sub(peer.retired);
        if peer.holds_any() {
            self.retire_held(slot, index, status);
        } else {
            peer.retired = index.wrapping_add(1);
        }
    }

    /// Of the sends up to that one, some hold blocks or have tokens.
    #[inline(never)]
    fn retire_held(&mut self, slot: u32, index: u32, status: SendStatus) {
        let Some(peer) = self.peers.at(slot) else { return };
        while peer.retired != index.wrapping_add(1) {
            let block = peer.release(peer.retired);
            peer.retired = peer.retired.wrapping_add(1);
            if block == NO_BLOCK {
            } else if block & SEND_BLOCK != 0 {
                self.pool.put(block & !SEND_BLOCK);
            } else if block & PENDING != 0 {
                let last = peer.retired == index.wrapping_add(1);
                self.requests
                    .end(block & !PENDING, if last { status.last } else { status.earlier });
            } else {
                self.refill.put(self.shared.request(block));
                if peer.count_done(1) {
                    self.credit_due.put(slot);
                }
            }
        }
    }

    /// True if a whole post of blocks may go back to the shared queue.
    #[inline(always)]
    pub(super) fn is_refill_due(&self) -> bool {
        self.refill.len() >= self.config.refill as usize
    }

    /// Gives blocks back to the shared queue, a whole post at a time; `all` also fewer.
    #[inline(always)]
    pub(super) fn refill(&mut self, all: bool) {
        if self.is_refill_due() || (all && !self.refill.is_empty()) {
            self.post_refill();
        }
    }

    #[inline(never)]
    fn post_refill(&mut self) {
        let out = self.stats.received + self.returned_otherwise - self.stats.refilled;
        self.stats.receives_out_most = self.stats.receives_out_most.max(out);
        // SAFETY: the blocks lie in the shared region, which outlives the queue; they were
        // released, so nobody else touches them.
        let result = unsafe { self.shared.srq().post(&self.refill) };
        match result {
            Ok(()) => {
                self.stats.refilled += self.refill.len() as u64;
                self.refill.clear();
            }
            // The rest goes with the next post.
            Err(error) => {
                self.stats.refilled += error.accepted as u64;
                self.refill.drop_first(error.accepted);
            }
        }
    }

    /// Messages a peer's send queue has room for.
    pub(super) fn room(&mut self, id: PeerId) -> u32 {
        let send_queue = self.config.send_queue;
        match self.peers.get(id) {
            Some(peer) if peer.state == PeerState::Up && peer.deferred == 0 && !peer.finishing => {
                let (slots, credits) = peer.measure(send_queue);
                let credits = credits.saturating_sub(peer.credit.spare());
                // Who hears that there is none waits for it.
                self.stats.credit_stalls += u64::from(credits == 0);
                slots.min(credits)
            }
            _ => 0,
        }
    }

    /// The handler closes a peer: the control plane is asked to tell the other side.
    pub(super) fn close(&mut self, id: PeerId) {
        if self.peers.get(id).is_some() {
            self.fail(id.slot, DownReason::Closed);
        }
    }

    /// Moves a peer to ERR and begins to drain it.
    #[cold]
    pub(super) fn fail(&mut self, slot: u32, why: DownReason) {
        let since = self.turn;
        let Some(peer) = self.peers.at(slot) else { return };
        let known = match peer.state {
            PeerState::Admitted => false,
            PeerState::Up => true,
            PeerState::Free | PeerState::Closing { .. } => return,
        };
        peer.state = PeerState::Closing { why, known, since };
        let (batch, num) = (peer.batch, peer.num);
        self.ring_doorbell(slot);
        if let Some(peer) = self.peers.at(slot) {
            peer.close_budget();
        }
        self.pending.retain(|pending| *pending != slot);
        if batch != NO_BATCH {
            self.abandon_batch(batch);
            // It stays in `dirty`, empty, and is freed with the next flush.
        }
        self.mark_end(slot);
        self.closing.put(slot);
        if why != DownReason::Disconnected && !self.mailbox.close(num) {
            self.stats.close_lost += 1;
        }
    }

    /// Every peer fails: the completion queue is broken.
    #[cold]
    pub(super) fn fail_all(&mut self, why: DownReason) {
        self.end_datagrams();
        for slot in 0..self.config.peers {
            self.fail(slot, why);
            self.retire_all(slot);
        }
    }

    /// Posts the request that marks the end: when it is flushed, everything before it is over,
    /// signalled or not. A queue pair that was never connected takes none, and has nothing in
    /// flight; where one with sends in flight takes none, those have `Config::drain_turns` to come.
    fn mark_end(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        let wr_id = wr_id::send(slot, peer.generation, peer.pushed);
        let Some(qp) = &mut peer.qp else { return };
        qp.fail();
        let sge = Sge::default();
        let flags = SendFlags::SIGNALED;
        let marker = SendWr { wr_id, op: SendOp::Send, flags, sge, more: &[] };
        // SAFETY: the marker has no payload; the worker's thread is the one that polls.
        if unsafe { qp.post(&[marker]) }.is_ok() {
            peer.hold(peer.pushed, NO_BLOCK);
            self.in_flight += 1;
            peer.pushed = peer.pushed.wrapping_add(1);
        }
    }

    /// Everything of a peer is over: its queue pair is gone, or never worked. What was not
    /// completed may have been done or not.
    pub(super) fn retire_all(&mut self, slot: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if peer.posted() != peer.retired {
            let (generation, last) = (peer.generation, peer.posted().wrapping_sub(1));
            self.retire((slot, generation, last), SendStatus::UNKNOWN);
        }
    }

    /// The message in a block just received, lent out for one call: nothing but its bytes.
    #[inline(always)]
    pub(super) fn plain_message<'a>(&self, peer: PeerId, block: u32, length: u32) -> Message<'a> {
        let bytes = self.shared.block_bytes() as usize;
        // SAFETY: the block's receive has completed, so the device is done with it, and it is
        // in nobody else's hands until the caller posts or releases it, after the call.
        let block = unsafe { slice::from_raw_parts_mut(self.shared.start(block), bytes) };
        Message { peer, block, length: (length as usize).min(bytes), imm: None, written: None }
    }

    /// As [`Core::plain_message`], with what else the completion says.
    #[inline(always)]
    pub(super) fn message<'a>(&self, peer: PeerId, block: u32, wc: &Wc) -> Message<'a> {
        let mut message = self.plain_message(peer, block, wc.byte_len);
        if wc.flags.contains(WcFlags::WITH_IMM) {
            message.imm = Some(wc.imm);
            if wc.opcode == WcOpcode::RecvWriteWithImm {
                // The bytes are elsewhere, and the block is as it was.
                (message.length, message.written) = (0, Some(wc.byte_len));
            }
        }
        message
    }

    /// A token for the message in the handler's hands.
    pub(super) fn ask_keep(&mut self, message: &Message<'_>) -> Option<Token> {
        let block = self.shared.block_at(message.block.as_ptr())?;
        let Message { peer, length, imm, written, .. } = *message;
        self.kept.ask(KeptMessage { peer, block, length: length as u32, imm, written })
    }

    /// The handler's verdict is to keep the block.
    #[cold]
    pub(super) fn keep(&mut self, slot: u32, block: u32) {
        if !self.kept.keep(block) {
            self.done_with(slot, block);
        }
    }

    /// A kept message, lent out again.
    pub(super) fn kept_message(&mut self, token: Token) -> Option<Message<'_>> {
        let KeptMessage { peer, block, length, imm, written } = self.kept.get(token)?;
        let bytes = self.shared.block_bytes() as usize;
        // SAFETY: a kept block is in nobody's hands but the table's, and the borrow of the core
        // keeps it there as long as the message is lent.
        let block = unsafe { slice::from_raw_parts_mut(self.shared.start(block), bytes) };
        Some(Message { peer, block, length: length as usize, imm, written })
    }

    /// Replies in a kept block.
    pub(super) fn reply_kept(&mut self, token: Token, length: usize) -> Result<(), SendError> {
        let KeptMessage { peer, block, .. } =
            self.kept.take(token).ok_or(SendError::NotConnected)?;
        let up = self.peers.get(peer).is_some_and(|peer| peer.state == PeerState::Up);
        if up {
            self.reply(peer.slot, block, length);
            return Ok(());
        }
        self.release(block);
        Err(SendError::NotConnected)
    }

    /// Takes a kept block home.
    pub(super) fn give_back(&mut self, token: Token) -> bool {
        let keeping = self.kept.take(token);
        if let Some(KeptMessage { peer, block, .. }) = keeping {
            self.done_with(peer.slot, block);
        }
        keeping.is_some()
    }

    /// Takes home all that is kept of a peer.
    #[cold]
    pub(super) fn drop_kept(&mut self, peer: PeerId) {
        while let Some(keeping) = self.kept.take_of(peer) {
            self.release(keeping.block);
        }
    }

    /// A receive has come back without a message for the handler. False: it has no block of this
    /// worker.
    #[cold]
    pub(super) fn take_back(&mut self, block: u32) -> bool {
        let ours = block < self.shared.blocks();
        if ours {
            self.returned_otherwise += 1;
            self.free(block);
        }
        ours
    }

    /// A block of the shared memory is free.
    #[inline(always)]
    pub(super) fn free(&mut self, block: u32) {
        self.refill.put(self.shared.request(block));
    }

    /// The handler is done with a message of that peer.
    #[inline(always)]
    pub(super) fn done_with(&mut self, slot: u32, block: u32) {
        self.free(block);
        self.count_done(slot, 1);
    }

    /// So many messages of that peer have left their blocks.
    #[inline(always)]
    pub(super) fn count_done(&mut self, slot: u32, count: u32) {
        let Some(peer) = self.peers.at(slot) else { return };
        if peer.count_done(count) {
            self.credit_due.put(slot);
        }
    }

    /// What a peer has said of itself, if it has spoken.
    pub(super) fn set_handshake(&mut self, slot: u32, data: PeerData) {
        if let (Some(peer), Some(data)) = (self.peers.at(slot), data) {
            peer.credit.set_handshake(&data);
        }
    }

    /// Takes the queue pair of a closing peer out.
    pub(super) fn take_qp(&mut self, slot: u32) -> Option<P::Qp> {
        self.peers.at(slot).and_then(|peer| peer.qp.take())
    }

    /// Turns a failed peer has to drain.
    pub(super) fn drain_limit(&self) -> u64 {
        self.config.drain_turns
    }

    /// Blocks in the hands of this worker: not posted, not in flight. For accounts in tests.
    pub(super) fn blocks_home(&self) -> (usize, usize) {
        (self.refill.len(), self.pool.available() as usize)
    }
}
