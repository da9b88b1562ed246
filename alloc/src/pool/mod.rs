//! [`BlockPool`]: fixed blocks of a region, by index.

mod depot;

#[cfg(debug_assertions)]
mod ledger;

use std_alloc::boxed::Box;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec;

use thiserror::Error;

use self::depot::Stock;
#[cfg(debug_assertions)]
use self::ledger::Ledger;
use crate::arena::Piece;
use crate::arith::{self, SizeError};

pub use self::depot::Depot;

/// Hands out fixed blocks of a region by index, last returned first, so that a block still in
/// the cache is used again soonest.
///
/// The pool holds no pointer: it counts blocks, and its owner pairs it with a region. Taking and
/// putting take constant time and never allocate. A pool has its blocks to itself, or is one
/// worker's cache of the blocks of a [`Depot`].
///
/// A block put twice or a foreign index is a broken invariant of the caller and asserts in builds
/// with debug assertions. Those keep a ledger of who has which block; an assertion names both who
/// did it now and who did it before. Other builds never panic: a pool has no use for a foreign
/// index, nor for more blocks than it is of.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Blocks,
    /// Free indexes in `free[..available]`; the next to be taken is the last.
    free: Box<[u32]>,
    available: u32,
    depot: Option<Arc<Stock>>,
    piece: Option<Piece>,
    #[cfg(debug_assertions)]
    ledger: Arc<Ledger>,
    #[cfg(debug_assertions)]
    owner: u32,
}

/// Blocks that were taken and never put, found at the end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{out} of {count} blocks are not home, {caches} caches still live{held}")]
pub struct NotHome {
    count: u32,
    out: u32,
    caches: usize,
    /// Who has them, in builds that keep a ledger: each with "; " before it.
    held: String,
}

impl NotHome {
    /// Blocks that are missing: out, or in a cache that still lives.
    #[must_use]
    pub const fn out(&self) -> u32 {
        self.out
    }

    /// Blocks in all.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }
}

impl BlockPool {
    /// A pool of `count` blocks of `block_size` bytes, all free. The region must hold
    /// [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// [`SizeError::Zero`] if either is 0, [`SizeError::Overflow`] if the region would not fit
    /// the address space.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(count: u32, block_size: usize) -> Result<Self, SizeError> {
        Ok(Self::of(Blocks::new(0, count, block_size)?, None))
    }

    /// A pool of as many blocks of `block_size` bytes as a region of `len` bytes holds.
    ///
    /// # Errors
    /// As for [`arith::blocks_in`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn over(len: usize, block_size: usize) -> Result<Self, SizeError> {
        Self::new(arith::blocks_in(len, block_size)?, block_size)
    }

    /// A pool of as many blocks of `block_size` bytes as a piece of a region holds; their offsets
    /// are those of the region.
    ///
    /// # Errors
    /// As for [`arith::blocks_in`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn within(piece: Piece, block_size: usize) -> Result<Self, SizeError> {
        let blocks = Blocks::within(&piece, block_size)?;
        Ok(Self::of(blocks, Some(piece)))
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn of(blocks: Blocks, piece: Option<Piece>) -> Self {
        Self {
            blocks,
            free: (0..blocks.count).rev().collect(),
            available: blocks.count,
            depot: None,
            piece,
            #[cfg(debug_assertions)]
            ledger: Arc::new(Ledger::new(blocks.count)),
            #[cfg(debug_assertions)]
            owner: 0,
        }
    }

    /// An empty cache of at most `size` blocks of a depot.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "the ledger's name"))]
    fn cache(depot: Arc<Stock>, owner: u32, size: u32) -> Self {
        let blocks = depot.blocks;
        Self {
            blocks,
            free: vec![0; size.clamp(1, blocks.count) as usize].into_boxed_slice(),
            available: 0,
            piece: None,
            #[cfg(debug_assertions)]
            ledger: depot.ledger.clone(),
            #[cfg(debug_assertions)]
            owner,
            depot: Some(depot),
        }
    }

    /// Takes a free block, if there is one; a cache that is empty asks its depot.
    #[inline]
    #[must_use = "a block that is taken and forgotten is lost to the pool"]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take(&mut self) -> Option<u32> {
        if self.available == 0 && !self.fetch() {
            return None;
        }
        let last = self.available - 1;
        let index = *self.free.get(last as usize)?;
        self.available = last;
        #[cfg(debug_assertions)]
        self.ledger.take(index, self.owner);
        Some(index)
    }

    /// Returns a block that [`take`](Self::take) gave, on this or on another cache of the same
    /// depot. A cache that is full gives the longest untouched half to its depot.
    ///
    /// # Panics
    /// With debug assertions, if `index` is not a block of this pool, or is free already, or
    /// posted. Without them a foreign block, or one more than there are, is not taken.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn put(&mut self, index: u32) {
        debug_assert!(index < self.count(), "block {index} is not of a pool of {}", self.count());
        if self.available as usize == self.free.len() {
            self.spill(index);
        }
        #[cfg(debug_assertions)]
        self.ledger.put(index, self.owner);
        if index < self.count()
            && let Some(place) = self.free.get_mut(self.available as usize)
        {
            *place = index;
            self.available += 1;
        }
    }

    /// Notes that a block was posted to a device, in builds with debug assertions: until it is
    /// [`completed`](Self::completed) it may neither be posted again nor put.
    ///
    /// # Panics
    /// With debug assertions, if it is free or posted already.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "for the ledger"))]
    pub fn posted(&mut self, index: u32) {
        #[cfg(debug_assertions)]
        self.ledger.post(index, self.owner);
    }

    /// Notes that the device is done with a block.
    ///
    /// # Panics
    /// With debug assertions, if it was not [`posted`](Self::posted).
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "for the ledger"))]
    pub fn completed(&mut self, index: u32) {
        #[cfg(debug_assertions)]
        self.ledger.complete(index, self.owner);
    }

    /// Ends the pool: every block must be home. Gives back the piece that it was made within. A
    /// cache returns what it holds, and its [`Depot`] does the counting.
    ///
    /// # Errors
    /// [`NotHome`] if blocks are out. The piece is lost then, for somebody may still use its bytes.
    pub fn close(mut self) -> Result<Option<Piece>, NotHome> {
        let count = self.count();
        if self.depot.is_some() || self.available == count {
            return Ok(self.piece.take());
        }
        Err(NotHome {
            count,
            out: count - self.available,
            caches: 0,
            #[cfg(debug_assertions)]
            held: self.ledger.held(),
            #[cfg(not(debug_assertions))]
            held: String::new(),
        })
    }

    /// Blocks free now; of a cache, those in it.
    #[inline]
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Blocks in all; of a cache, those of the depot.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.blocks.count
    }

    /// Size of a block, bytes.
    #[inline]
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.blocks.size
    }

    /// Bytes that all blocks take.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.blocks.count as usize * self.blocks.size
    }

    /// Where block `index` starts in the region, bytes; `None` if it is not of this pool.
    #[inline]
    #[must_use]
    pub fn offset(&self, index: u32) -> Option<usize> {
        (index < self.count()).then(|| self.blocks.base + index as usize * self.blocks.size)
    }

    /// The block that starts at `offset`; `None` if none does. Fit for an offset that came from
    /// outside.
    #[inline]
    #[must_use]
    pub fn index_of(&self, offset: usize) -> Option<u32> {
        let offset = offset.checked_sub(self.blocks.base)?;
        let index = u32::try_from(offset.checked_div(self.blocks.size)?).ok()?;
        (index < self.count() && offset.is_multiple_of(self.blocks.size)).then_some(index)
    }

    /// Fills half of an empty cache; false if there is nothing to be had.
    #[cold]
    fn fetch(&mut self) -> bool {
        let Some(depot) = &self.depot else { return false };
        let half = self.free.len().div_ceil(2);
        let room = self.free.get_mut(..half).unwrap_or_default();
        // At most the length of `free`, which a u32 gave.
        let count = depot.pop(room);
        self.available = count as u32;
        // The depot's first block is the one to be taken first.
        room.get_mut(..count).unwrap_or_default().reverse();
        count != 0
    }

    /// Makes room in a full cache: those at the bottom have been there longest.
    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    fn spill(&mut self, index: u32) {
        let Some(depot) = &self.depot else {
            debug_assert!(false, "block {index} was put into a full pool");
            return;
        };
        let (low, high) = self.free.split_at_mut(self.free.len().div_ceil(2));
        depot.push(low);
        self.available = high.len() as u32;
        for (to, from) in low.iter_mut().zip(high) {
            *to = *from;
        }
    }
}

impl Drop for BlockPool {
    /// A cache returns what it holds.
    fn drop(&mut self) {
        if let Some(depot) = &self.depot {
            depot.push(self.free.get(..self.available as usize).unwrap_or_default());
        }
    }
}

/// Blocks of a region: where the first starts, how many, how long.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    base: usize,
    count: u32,
    size: usize,
}

impl Blocks {
    fn new(base: usize, count: u32, size: usize) -> Result<Self, SizeError> {
        arith::block_bytes(count, size)?;
        Ok(Self { base, count, size })
    }

    fn within(piece: &Piece, size: usize) -> Result<Self, SizeError> {
        Self::new(piece.offset(), arith::blocks_in(piece.len(), size)?, size)
    }
}
