//! The shared receive memory as one worker uses it: blocks are lent to the handler, and posted to
//! the shared queue again in batches.
#![expect(unsafe_code, reason = "posts and lends buffers it owns")]

use core::slice;

use std_alloc::format;
use std_alloc::vec::Vec;

use super::config::Config;
use super::kept::KeptMessage;
use super::message::{Message, PeerId};
use super::shared_recv::SharedRecv;
use super::stats::Stats;
use crate::error::{Code, SetupError};
use crate::provider::{Provider, Srq};
use crate::room::FixedCapacity;
use crate::wc::{Wc, WcFlags, WcOpcode};
use crate::wr::{RecvWr, Sge};

/// When blocks go back to the shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refill {
    /// When there are enough for a whole post, [`Config::refill`].
    Batch,
    /// Now, however few there are.
    All,
}

/// The shared receive memory, and the blocks of it that are free and not posted. Its owner posts
/// them all before it drops this.
pub(super) struct RecvBlocks<P: Provider> {
    pub(super) shared: SharedRecv<P>,
    free: Vec<RecvWr>,
    batch: usize,
    /// Receives that came back without a message to a handler.
    returned_otherwise: u64,
    /// Receives that are set aside for `free`: peers may have credit for them already.
    aside: u32,
}

impl<P: Provider> RecvBlocks<P> {
    /// Sets aside the blocks that may be free while peers already have credit for them.
    ///
    /// # Errors
    /// `NoMemory`: too many are promised.
    pub(super) fn new(shared: SharedRecv<P>, config: &Config) -> Result<Self, SetupError> {
        let Config { window, refill, overcommit, .. } = *config;
        let aside = if window == 0 { 0 } else { refill.saturating_mul(overcommit) };
        shared.promises().set_aside(aside).map_err(|spare| {
            let asked = format!("a worker with refill = {refill} on a shared receive queue");
            let short = aside.saturating_sub(spare).div_ceil(overcommit);
            SetupError::new(Code::NoMemory, asked, shared.unpromised(spare)).cure(format!(
                "raise Config::recv_blocks to {} at least, or lower Config::peers",
                shared.blocks().saturating_add(short)
            ))
        })?;
        let free = Vec::with_capacity(shared.blocks() as usize);
        Ok(RecvBlocks { shared, free, batch: refill as usize, returned_otherwise: 0, aside })
    }

    /// The number of blocks that are free and not posted.
    pub(super) fn home(&self) -> usize {
        self.free.len()
    }

    /// Frees a block.
    #[inline(always)]
    pub(super) fn free(&mut self, block: u32) {
        self.free.put(self.shared.request(block));
    }

    /// Takes home a receive without a message for the handler. False: its block is not in the
    /// shared memory.
    #[cold]
    pub(super) fn reclaim(&mut self, block: u32) -> bool {
        let ours = block < self.shared.blocks();
        if ours {
            self.returned_otherwise += 1;
            self.free(block);
        }
        ours
    }

    /// True if there are enough blocks for a whole post.
    #[inline(always)]
    pub(super) fn is_refill_due(&self) -> bool {
        self.free.len() >= self.batch
    }

    /// Posts the free blocks to the shared queue, if it is time.
    #[inline(always)]
    pub(super) fn refill(&mut self, when: Refill, stats: &mut Stats) {
        if self.is_refill_due() || (when == Refill::All && !self.free.is_empty()) {
            self.post(stats);
        }
    }

    #[inline(never)]
    fn post(&mut self, stats: &mut Stats) {
        let out = stats.received + self.returned_otherwise - stats.refilled;
        stats.receives_out_most = stats.receives_out_most.max(out);
        // SAFETY: the blocks lie in the shared region, which outlives the queue; they are free, so
        // nobody else touches them.
        let result = unsafe { self.shared.srq().post(&self.free) };
        match result {
            Ok(()) => {
                stats.refilled += self.free.len() as u64;
                self.free.clear();
            }
            // The rest goes with the next post.
            Err(error) => {
                stats.refilled += error.accepted as u64;
                self.free.drop_first(error.accepted);
            }
        }
    }

    /// The first `length` bytes of a block.
    #[inline(always)]
    pub(super) fn sge(&self, block: u32, length: u32) -> Sge {
        self.shared.sge(block, length)
    }

    /// The bytes of a block.
    ///
    /// # Safety
    /// The block belongs to the shared memory, the device is done with it, and nobody else uses it
    /// as long as the bytes are used.
    #[inline(always)]
    unsafe fn lend<'a>(&self, block: u32) -> &'a mut [u8] {
        let bytes = self.shared.block_bytes() as usize;
        // SAFETY: as the caller vouches. The block has this length and lies in memory that the
        // shared queue keeps registered.
        unsafe { slice::from_raw_parts_mut(self.shared.start(block), bytes) }
    }

    /// The message in a block just received, lent for one call: only its bytes.
    #[inline(always)]
    pub(super) fn plain_message<'a>(&self, peer: PeerId, block: u32, length: u32) -> Message<'a> {
        let bytes = self.shared.block_bytes() as usize;
        // SAFETY: the block's receive has completed, so the device is done with it. Nobody else
        // uses it until the caller posts or frees it, after the call.
        let block = unsafe { self.lend(block) };
        Message { peer, block, length: (length as usize).min(bytes), imm: None, written: None }
    }

    /// As [`RecvBlocks::plain_message`], with the other fields of the completion.
    #[inline(always)]
    pub(super) fn message<'a>(&self, peer: PeerId, block: u32, wc: &Wc) -> Message<'a> {
        let mut message = self.plain_message(peer, block, wc.byte_len);
        if wc.flags.contains(WcFlags::WITH_IMM) {
            message.imm = Some(wc.imm);
            if wc.opcode == WcOpcode::RecvWriteWithImm {
                // The bytes are elsewhere, and the block is unchanged.
                (message.length, message.written) = (0, Some(wc.byte_len));
            }
        }
        message
    }

    /// Lends a kept message again, for as long as the table of kept messages keeps it: the caller's
    /// borrow of the worker ensures that.
    pub(super) fn kept_message(&mut self, kept: KeptMessage) -> Message<'_> {
        let KeptMessage { peer, block, length, imm, written } = kept;
        // SAFETY: only the table uses a kept block, and the caller leaves it there while it uses
        // the message.
        let block = unsafe { self.lend(block) };
        Message { peer, block, length: length as usize, imm, written }
    }

    /// The block a message lies in.
    pub(super) fn block_of(&self, message: &Message<'_>) -> Option<u32> {
        self.shared.block_at(message.block.as_ptr())
    }
}

impl<P: Provider> Drop for RecvBlocks<P> {
    fn drop(&mut self) {
        self.shared.promises().put_aside(self.aside);
    }
}
