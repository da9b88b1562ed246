//! [`BlockPool`]: fixed blocks of a region, by index.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec;

use super::blocks::{Blocks, LeakedBlocks};
use super::free_list::FreeList;
#[cfg(debug_assertions)]
use super::tracker::Tracker;
use crate::arena::Piece;
use crate::arith::{self, SizeError};

/// Hands out fixed blocks of a region by index. The block put last is taken next, because it is
/// most likely still in the processor's cache; [`in_turn`](Self::in_turn) gives the other order.
///
/// The pool holds no pointer: it deals in indexes and offsets, and its owner pairs it with a
/// region. [`take`](Self::take) and [`put`](Self::put) take constant time and never allocate. A
/// pool either has its blocks to itself, or is one worker's cache of a
/// [`SharedPool`](crate::SharedPool).
///
/// To put a block twice, or an index that is not of the pool, is a mistake of the caller. Builds
/// with debug assertions track the owner of each block; their assertions name the caller and the
/// previous owner. Other builds never panic: they ignore an index that is not of the pool, and a
/// put into a pool that has all of its blocks.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Blocks,
    /// Free indexes: `available` of them from `first` on, which go on at the front behind the end.
    free: Box<[u32]>,
    first: u32,
    available: u32,
    /// `take` gives the first of them, not the last.
    in_turn: bool,
    /// The shared pool's list, if this is a cache.
    shared: Option<Arc<FreeList>>,
    piece: Option<Piece>,
    #[cfg(debug_assertions)]
    tracker: Arc<Tracker>,
    #[cfg(debug_assertions)]
    owner: u32,
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

    /// A pool of as many blocks of `block_size` bytes as `piece` holds. Offsets of its blocks count
    /// from the start of the region.
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
            first: 0,
            available: blocks.count,
            in_turn: false,
            shared: None,
            piece,
            #[cfg(debug_assertions)]
            tracker: Arc::new(Tracker::new(blocks.count)),
            #[cfg(debug_assertions)]
            owner: 0,
        }
    }

    /// The same blocks, taken in turn: the next is the one that was put back longest ago. Use this
    /// order for blocks that another processor reads. A processor that writes a block must first
    /// take its lines back from every cache that has read them. If all blocks together are larger
    /// than that cache, the lines have left it by then. On a cache of a
    /// [`SharedPool`](crate::SharedPool) this call has no effect.
    #[must_use]
    pub fn in_turn(mut self) -> Self {
        if self.shared.is_none() && !self.in_turn {
            self.in_turn = true;
            // The one that was to be taken next still is.
            self.free.get_mut(..self.available as usize).unwrap_or_default().reverse();
        }
        self
    }

    /// An empty cache of at most `size` blocks of a shared pool.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "for the tracker"))]
    pub(super) fn cache(list: Arc<FreeList>, owner: u32, size: u32) -> Self {
        let blocks = list.blocks;
        Self {
            blocks,
            free: vec![0; size.clamp(1, blocks.count) as usize].into_boxed_slice(),
            first: 0,
            available: 0,
            in_turn: false,
            piece: None,
            #[cfg(debug_assertions)]
            tracker: list.tracker.clone(),
            #[cfg(debug_assertions)]
            owner,
            shared: Some(list),
        }
    }

    /// Takes a free block; `None` if there is none. An empty cache first fetches blocks from its
    /// shared pool.
    #[inline]
    #[must_use = "a block that is taken and forgotten is lost to the pool"]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn take(&mut self) -> Option<u32> {
        if self.available == 0 && !self.fetch() {
            return None;
        }
        let index = if self.in_turn {
            let index = *self.free.get(self.first as usize)?;
            self.first = if self.first + 1 == self.count() { 0 } else { self.first + 1 };
            index
        } else {
            *self.free.get(self.available as usize - 1)?
        };
        self.available -= 1;
        #[cfg(debug_assertions)]
        self.tracker.take(index, self.owner);
        Some(index)
    }

    /// The block that the next [`take`](Self::take) gives, unless one is put back before; `None` if
    /// there is none here.
    #[inline]
    pub fn next(&self) -> Option<u32> {
        let last = self.available.checked_sub(1)?;
        self.free.get(if self.in_turn { self.first } else { last } as usize).copied()
    }

    /// Puts back a block that [`take`](Self::take) gave, from this or from another cache of the
    /// same shared pool. A full cache first returns the half that was unused longest.
    ///
    /// # Panics
    /// With debug assertions, if `index` is not a block of this pool, is already free, or is
    /// posted. Without them, a call with an index that is not of the pool, or on a pool that has
    /// all of its blocks, is ignored. The other mistakes are not noticed.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn put(&mut self, index: u32) {
        debug_assert!(index < self.count(), "block {index} is not of a pool of {}", self.count());
        if self.available as usize == self.free.len() {
            self.spill(index);
        }
        #[cfg(debug_assertions)]
        self.tracker.put(index, self.owner);
        if index < self.count()
            && let Some(place) = self.free.get_mut(self.end())
        {
            *place = index;
            self.available += 1;
        }
    }

    /// The place behind the last free index, if there is one.
    #[inline]
    fn end(&self) -> usize {
        let end = self.first as usize + self.available as usize;
        // Only a pool of one owner has a first place other than 0.
        let is_over = self.available as usize != self.free.len() && end >= self.free.len();
        if is_over { end - self.free.len() } else { end }
    }

    /// Records that a block was posted to a device: until it is [`completed`](Self::completed) it
    /// may neither be posted again nor put. Does nothing without debug assertions.
    ///
    /// # Panics
    /// With debug assertions, if it is free or posted already.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "for the tracker"))]
    pub fn posted(&mut self, index: u32) {
        #[cfg(debug_assertions)]
        self.tracker.post(index, self.owner);
    }

    /// Records that the device is done with a block. Does nothing without debug assertions.
    ///
    /// # Panics
    /// With debug assertions, if it was not [`posted`](Self::posted).
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "for the tracker"))]
    pub fn completed(&mut self, index: u32) {
        #[cfg(debug_assertions)]
        self.tracker.complete(index, self.owner);
    }

    /// Ends the pool and returns the piece it was made in, if there is one. A cache returns its
    /// blocks to its [`SharedPool`](crate::SharedPool), which checks them when it is closed.
    ///
    /// # Errors
    /// [`LeakedBlocks`] if blocks were not put back. The piece is then lost, because somebody may
    /// still use its bytes.
    pub fn close(mut self) -> Result<Option<Piece>, LeakedBlocks> {
        let count = self.count();
        if self.shared.is_some() || self.available == count {
            return Ok(self.piece.take());
        }
        Err(LeakedBlocks {
            count,
            out: count - self.available,
            caches: 0,
            #[cfg(debug_assertions)]
            held: self.tracker.held(),
            #[cfg(not(debug_assertions))]
            held: std_alloc::string::String::new(),
        })
    }

    /// Free blocks now; for a cache, those in the cache.
    #[inline]
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Blocks in all; for a cache, those of the shared pool.
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

    /// Size of all blocks together, bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.blocks.count as usize * self.blocks.size
    }

    /// Offset of block `index` in the region, bytes; `None` if the pool has no such block.
    #[inline]
    #[must_use]
    pub fn offset(&self, index: u32) -> Option<usize> {
        (index < self.count()).then(|| self.blocks.base + index as usize * self.blocks.size)
    }

    /// The block that starts at `offset`; `None` if none does. Safe to call with an offset that
    /// came from a peer.
    #[inline]
    #[must_use]
    pub fn index_of(&self, offset: usize) -> Option<u32> {
        let offset = offset.checked_sub(self.blocks.base)?;
        let index = u32::try_from(offset.checked_div(self.blocks.size)?).ok()?;
        (index < self.count() && offset.is_multiple_of(self.blocks.size)).then_some(index)
    }

    /// Fills half of an empty cache from the shared pool; false if that has no block.
    #[cold]
    fn fetch(&mut self) -> bool {
        let Some(shared) = &self.shared else { return false };
        let half = self.free.len().div_ceil(2);
        let room = self.free.get_mut(..half).unwrap_or_default();
        // Fits in a u32: at most the length of `free`, which was made from one.
        let count = shared.pop(room);
        self.available = count as u32;
        // The block that the shared pool gave first is taken first.
        room.get_mut(..count).unwrap_or_default().reverse();
        count != 0
    }

    /// Makes room in a full cache: returns the blocks at the bottom, which were unused longest.
    #[cold]
    #[cfg_attr(debug_assertions, track_caller)]
    fn spill(&mut self, index: u32) {
        let Some(shared) = &self.shared else {
            debug_assert!(false, "block {index} was put into a full pool");
            return;
        };
        let (low, high) = self.free.split_at_mut(self.free.len().div_ceil(2));
        shared.push(low);
        self.available = high.len() as u32;
        for (to, from) in low.iter_mut().zip(high) {
            *to = *from;
        }
    }
}

impl Drop for BlockPool {
    /// A cache returns its blocks to the shared pool.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.push(self.free.get(..self.available as usize).unwrap_or_default());
        }
    }
}
