//! The worker's own memory: blocks for sends that are not inline, and behind them the receives of
//! datagrams.
#![expect(unsafe_code, reason = "writes blocks that no device reads")]

use doorbell_alloc::BlockPool;

use super::held::Held;
use super::send_error::SendError;
use crate::prefetch;
use crate::provider::{Provider, Qp, Region};
use crate::wr::Sge;

/// The most bytes that are prefetched for the next copy. One way in lists of 16, on soft and near
/// cores, 2 KiB take 0.95 of the time and 3 KiB 0.91; far, 2 KiB take 0.93. Longer prefetches made
/// messages of 16 KiB slower.
const EXPECT_MAX: usize = 4096;

/// A copy of this many bytes first gets the lines that it writes, if few blocks are in use. On soft
/// the peer's core has them too ([`prefetch::own`]). Half a round trip of 4 KiB then takes 420 ns
/// in place of 490 between near cores, and 1270 in place of 1660 between far ones.
const OWN_MIN: usize = 2048;
const OWN_MAX: usize = 64 << 10;
const IN_USE_MAX: u32 = 8;

/// A registered region with a pool of blocks at its front.
pub(super) struct SendBlocks<P: Provider> {
    pub(super) region: P::Region,
    pool: BlockPool,
}

impl<P: Provider> SendBlocks<P> {
    /// The pool's blocks lie in the region.
    pub(super) fn new(region: P::Region, pool: BlockPool) -> SendBlocks<P> {
        SendBlocks { region, pool }
    }

    /// Copies `bytes`, at most a block of them, into a free block, which belongs to the caller from
    /// then on.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Result<(Held, Sge), SendError> {
        let block = self.pool.take().ok_or(SendError::NoBlock)?;
        let offset = self.pool.offset(block).ok_or(SendError::NoBlock)?;
        let few = self.pool.count() - self.pool.available() <= IN_USE_MAX;
        // SAFETY: the pool's blocks lie in the region; this one was free, so nobody reads it.
        let to = unsafe {
            let to = self.region.as_ptr().add(offset);
            if P::Qp::POSTS_INLINE && few && (OWN_MIN..=OWN_MAX).contains(&bytes.len()) {
                prefetch::own(to, bytes.len());
            }
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            to
        };
        let sge = Sge { addr: to as u64, length: bytes.len() as u32, lkey: self.region.lkey() };
        Ok((Held::send_block(block), sge))
    }

    /// Prefetches the lines that the next copy, of `bytes` bytes, goes to. On soft the peer's core
    /// has them.
    #[inline(always)]
    pub(super) fn expect(&self, bytes: usize) {
        if let Some(offset) = self.pool.next().and_then(|block| self.pool.offset(block)) {
            let at = self.region.as_ptr().wrapping_add(offset);
            prefetch::claim(at, bytes.min(EXPECT_MAX));
        }
    }

    /// Takes a block home.
    pub(super) fn put(&mut self, block: u32) {
        self.pool.put(block);
    }

    /// Free blocks.
    pub(super) fn available(&self) -> usize {
        self.pool.available() as usize
    }
}
