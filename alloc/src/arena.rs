//! [`Arena`]: pieces of one region, that never overlap.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std_alloc::vec::Vec;

use thiserror::Error;

use crate::arith::{self, SizeError};

/// What pieces are aligned to and rounded up to, bytes: two of them never share a cache line, so
/// a NIC that writes to one disturbs no core that works on the other.
pub const CACHE_LINE: usize = if cfg!(target_arch = "aarch64") { 128 } else { 64 };

/// Cuts one region into pieces, so that one registration serves many uses.
///
/// The arena holds no pointer: it deals in offsets, and its owner pairs it with the region, as
/// with a [`BlockPool`](crate::BlockPool). No two [`Piece`]s of one arena that are out at the
/// same time overlap, and a piece can be neither copied nor made up; so whoever holds a piece is
/// the only one to use these bytes.
///
/// It belongs to the control plane: cutting searches the free ranges, and giving back may allocate.
///
/// ```
/// use doorbell_alloc::{Arena, BlockPool};
///
/// let mut region = [0_u8; 1 << 16]; // stands for memory that is registered once
/// let mut arena = Arena::new(region.len())?;
///
/// let table = arena.take(1000)?;
/// let blocks = arena.take_aligned(16 * 2048, 4096)?;
/// region[table.range()].fill(1); // no other piece has these bytes
///
/// let mut pool = BlockPool::within(blocks, 2048)?;
/// let block = pool.take().ok_or("a fresh pool has blocks")?;
/// let at = pool.offset(block).unwrap(); // offsets of a pool are those of the region
/// region[at..][..2048].fill(2);
/// pool.put(block);
///
/// // At the end every block and every piece must be home.
/// if let Some(blocks) = pool.close()? {
///     arena.give(blocks)?;
/// }
/// arena.give(table)?;
/// assert_eq!(arena.taken(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    id: usize,
    len: usize,
    /// Free ranges in order; none is empty, none touches the next.
    free: Vec<Range<usize>>,
}

/// A part of a region that nobody else has: offset and length, bytes.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a piece that is dropped is lost to its arena"]
pub struct Piece {
    arena: usize,
    start: usize,
    len: usize,
}

/// Why an arena gave no piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A length or an alignment that cannot be.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// No free range is long enough.
    #[error(
        "asked {asked} bytes aligned to {align}, the longest free range of {len} bytes has \
         {longest}; mend: map a longer region, or give pieces back"
    )]
    Full {
        /// Bytes asked for, rounded up.
        asked: usize,
        /// Their alignment, bytes.
        align: usize,
        /// Bytes of the longest free range.
        longest: usize,
        /// Bytes of the region.
        len: usize,
    },
}

/// A piece of another arena was given back; here it is again.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("bytes {} to {} belong to another arena; mend: give them back there", .0.start, .0.end())]
pub struct Foreign(pub Piece);

impl Arena {
    /// An arena over a region of `len` bytes, all free. What is left of a last line that is not
    /// whole is not used.
    ///
    /// # Errors
    /// [`SizeError::NoBlockFits`] if not even one cache line fits.
    pub fn new(len: usize) -> Result<Self, SizeError> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let whole = len - len % CACHE_LINE;
        if whole == 0 {
            return Err(SizeError::NoBlockFits { len, size: CACHE_LINE });
        }
        // Relaxed: the number has to be unique, nothing is published with it.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, len: whole, free: core::iter::once(0..whole).collect() })
    }

    /// Takes at least `len` bytes that start on a cache line and fill their last one.
    ///
    /// # Errors
    /// [`ArenaError::Size`] for a length of 0 or beyond the address space, [`ArenaError::Full`].
    pub fn take(&mut self, len: usize) -> Result<Piece, ArenaError> {
        self.take_aligned(len, CACHE_LINE)
    }

    /// Takes at least `len` bytes whose offset is a multiple of `align`, a power of two; the
    /// region itself must start on such a boundary for its addresses to do so too.
    ///
    /// # Errors
    /// As for [`take`](Self::take); [`SizeError::NotAPage`] if `align` is no power of two.
    pub fn take_aligned(&mut self, len: usize, align: usize) -> Result<Piece, ArenaError> {
        if len == 0 {
            return Err(SizeError::Zero.into());
        }
        let asked = arith::round_up(len, CACHE_LINE)?;
        arith::round_up(0, align)?;
        let align = align.max(CACHE_LINE);
        let fit = self.free.iter().enumerate().find_map(|(index, range)| {
            let start = range.start.checked_next_multiple_of(align)?;
            (range.end.checked_sub(start)? >= asked).then_some((index, start))
        });
        let Some((index, start)) = fit else {
            let longest = self.free.iter().map(ExactSizeIterator::len).max().unwrap_or_default();
            return Err(ArenaError::Full { asked, align, longest, len: self.len });
        };
        let range = self.free[index].clone();
        let before = range.start..start;
        let behind = start + asked..range.end;
        let left = [before, behind].into_iter().filter(|range| !range.is_empty());
        self.free.splice(index..=index, left);
        Ok(Piece { arena: self.id, start, len: asked })
    }

    /// Takes a piece back.
    ///
    /// # Errors
    /// [`Foreign`], with the piece, if it is of another arena.
    pub fn give(&mut self, piece: Piece) -> Result<(), Foreign> {
        if piece.arena != self.id {
            return Err(Foreign(piece));
        }
        let mut range = piece.range();
        let index = self.free.partition_point(|free| free.start < range.start);
        let mut replaced = index..index;
        if let Some(before) = index.checked_sub(1).map(|before| &self.free[before])
            && before.end == range.start
        {
            range.start = before.start;
            replaced.start -= 1;
        }
        if let Some(behind) = self.free.get(index)
            && behind.start == range.end
        {
            range.end = behind.end;
            replaced.end += 1;
        }
        self.free.splice(replaced, [range]);
        Ok(())
    }

    /// Bytes of the region that pieces can be cut from.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// False: an arena has one cache line at least.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that are out; 0 when every piece is home.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.len - self.free.iter().map(ExactSizeIterator::len).sum::<usize>()
    }
}

impl Piece {
    /// Where it starts in the region, bytes.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.start
    }

    /// Its length, bytes: a multiple of [`CACHE_LINE`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty; none is.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its offsets in the region, fit to index the region's bytes.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end()
    }

    const fn end(&self) -> usize {
        self.start + self.len
    }

    /// Cuts it in two: the first `at` bytes, and the rest. Each can be given back by itself.
    ///
    /// # Errors
    /// The piece itself, if `at` is no multiple of [`CACHE_LINE`] or leaves nothing on a side.
    pub const fn split_at(self, at: usize) -> Result<(Self, Self), Self> {
        if at == 0 || at >= self.len || !at.is_multiple_of(CACHE_LINE) {
            return Err(self);
        }
        let Self { arena, start, len } = self;
        Ok((Self { arena, start, len: at }, Self { arena, start: start + at, len: len - at }))
    }
}
