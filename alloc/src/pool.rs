//! [`BlockPool`]: fixed blocks of a region, by index.

use std_alloc::boxed::Box;
#[cfg(debug_assertions)]
use std_alloc::vec;

use crate::arith::{self, SizeError};

/// Hands out fixed blocks of a region by index, last returned first, so that a block still in
/// the cache is used again soonest.
///
/// The pool holds no pointer: it counts blocks, and its owner pairs it with a region. Taking and
/// putting take constant time and never allocate.
///
/// A block put twice or a foreign index is a broken invariant of the caller and asserts: a
/// foreign index always, a block put twice in builds with debug assertions, which keep a ledger.
#[derive(Debug)]
pub struct BlockPool {
    block_size: usize,
    /// Free indexes in `free[..available]`; the next to be taken is the last.
    free: Box<[u32]>,
    available: u32,
    #[cfg(debug_assertions)]
    taken: Ledger,
}

impl BlockPool {
    /// A pool of `count` blocks of `block_size` bytes, all free. The region must hold
    /// [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// [`SizeError::Zero`] if either is 0, [`SizeError::Overflow`] if the region would not fit
    /// the address space.
    pub fn new(count: u32, block_size: usize) -> Result<Self, SizeError> {
        arith::block_bytes(count, block_size)?;
        Ok(Self {
            block_size,
            free: (0..count).rev().collect(),
            available: count,
            #[cfg(debug_assertions)]
            taken: Ledger::new(count),
        })
    }

    /// A pool of as many blocks of `block_size` bytes as a region of `len` bytes holds.
    ///
    /// # Errors
    /// As for [`arith::blocks_in`].
    pub fn over(len: usize, block_size: usize) -> Result<Self, SizeError> {
        Self::new(arith::blocks_in(len, block_size)?, block_size)
    }

    /// Takes a free block, if there is one.
    #[inline]
    #[must_use = "a block that is taken and forgotten is lost to the pool"]
    pub fn take(&mut self) -> Option<u32> {
        let last = self.available.checked_sub(1)?;
        let index = self.free[last as usize];
        self.available = last;
        #[cfg(debug_assertions)]
        self.taken.mark(index);
        Some(index)
    }

    /// Returns a block that [`take`](Self::take) gave.
    ///
    /// # Panics
    /// If `index` is not a block of this pool, or if every block is free already; with debug
    /// assertions also if this block is free already.
    #[inline]
    pub fn put(&mut self, index: u32) {
        assert!(index < self.count(), "block {index} is not of a pool of {}", self.count());
        assert!(self.available < self.count(), "block {index} was put into a full pool");
        #[cfg(debug_assertions)]
        self.taken.clear(index);
        self.free[self.available as usize] = index;
        self.available += 1;
    }

    /// Blocks free now.
    #[inline]
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Blocks in all.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "made from a u32 count")]
    pub const fn count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Size of a block, bytes.
    #[inline]
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Bytes the region must hold.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.free.len() * self.block_size
    }

    /// Where block `index` starts in the region, bytes.
    ///
    /// # Panics
    /// If `index` is not a block of this pool.
    #[inline]
    #[must_use]
    pub fn offset(&self, index: u32) -> usize {
        assert!(index < self.count(), "block {index} is not of a pool of {}", self.count());
        index as usize * self.block_size
    }

    /// The block that starts at `offset`; `None` if none does. Fit for an offset that came from
    /// outside.
    #[inline]
    #[must_use]
    pub fn index_of(&self, offset: usize) -> Option<u32> {
        let index = u32::try_from(offset / self.block_size).ok()?;
        (index < self.count() && offset.is_multiple_of(self.block_size)).then_some(index)
    }
}

/// One bit a block: set while the block is out.
#[cfg(debug_assertions)]
#[derive(Debug)]
struct Ledger(Box<[u64]>);

#[cfg(debug_assertions)]
impl Ledger {
    fn new(count: u32) -> Self {
        Self(vec![0; count.div_ceil(u64::BITS) as usize].into_boxed_slice())
    }

    fn mark(&mut self, index: u32) {
        let (word, bit) = Self::place(index);
        assert!(self.0[word] & bit == 0, "block {index} was taken twice");
        self.0[word] |= bit;
    }

    fn clear(&mut self, index: u32) {
        let (word, bit) = Self::place(index);
        assert!(self.0[word] & bit != 0, "block {index} was put twice");
        self.0[word] &= !bit;
    }

    const fn place(index: u32) -> (usize, u64) {
        ((index / u64::BITS) as usize, 1 << (index % u64::BITS))
    }
}
