//! [`Arena`]: cuts one region into pieces that never overlap.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use std_alloc::vec::Vec;

use thiserror::Error;

use crate::arith::{self, SizeError};

/// Alignment and granularity of pieces, bytes. Two pieces never share a cache line, so a NIC that
/// writes to one does not disturb a core that works on the other.
pub const CACHE_LINE: usize = if cfg!(target_arch = "aarch64") { 128 } else { 64 };

/// Cuts one region into pieces, so that one registration serves many uses.
///
/// The arena holds no pointer: it deals in offsets, and its owner pairs it with the region. Pieces
/// that exist at the same time never overlap, and a [`Piece`] can be neither copied nor forged, so
/// its owner is the only user of its bytes.
///
/// Use it in the control plane: [`take`](Self::take) searches the free ranges, and
/// [`give`](Self::give) may allocate.
///
/// ```
/// use doorbell_alloc::{Arena, BlockPool};
///
/// let mut region = [0_u8; 1 << 16]; // memory that would be registered once
/// let mut arena = Arena::new(region.len())?;
///
/// let table = arena.take(1000)?;
/// let blocks = arena.take_aligned(16 * 2048, 4096)?;
/// region[table.range()].fill(1); // these bytes belong to no other piece
///
/// let mut pool = BlockPool::within(blocks, 2048)?;
/// let block = pool.take().ok_or("a fresh pool has blocks")?;
/// let at = pool.offset(block).unwrap(); // an offset in the region
/// region[at..][..2048].fill(2);
/// pool.put(block);
///
/// // At the end, return every block and every piece.
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
    /// Free ranges in order. None is empty, and none touches the next one.
    free: Vec<Range<usize>>,
}

/// A part of a region that belongs to its holder alone.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a piece that is dropped is lost to its arena"]
pub struct Piece {
    arena: usize,
    start: usize,
    len: usize,
}

/// Why [`Arena::take`] gave no piece.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The length or the alignment is impossible.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// No free range is long enough.
    #[error(
        "requested {asked} bytes aligned to {align}, but the longest free range of the {len} byte \
         region has {longest}; fix: map a longer region, or give pieces back"
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

impl fmt::Debug for ArenaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The piece belongs to another arena. It is handed back in the error.
#[derive(PartialEq, Eq, Error)]
#[error("bytes {} to {} belong to another arena; fix: give them to that one", .0.start, .0.end())]
pub struct WrongArena(pub Piece);

impl fmt::Debug for WrongArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Arena {
    /// An arena over a region of `len` bytes, all free. `len` is rounded down to whole cache lines.
    ///
    /// # Errors
    /// [`SizeError::NoBlockFits`] if `len` is less than a cache line.
    pub fn new(len: usize) -> Result<Self, SizeError> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let whole = len - len % CACHE_LINE;
        if whole == 0 {
            return Err(SizeError::NoBlockFits { len, size: CACHE_LINE });
        }
        // Relaxed: the number only has to be unique; it publishes nothing.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, len: whole, free: core::iter::once(0..whole).collect() })
    }

    /// Takes `len` bytes, rounded up to whole cache lines and aligned to one.
    ///
    /// # Errors
    /// [`ArenaError::Size`] for a length of 0 or beyond the address space, [`ArenaError::Full`].
    pub fn take(&mut self, len: usize) -> Result<Piece, ArenaError> {
        self.take_aligned(len, CACHE_LINE)
    }

    /// Takes `len` bytes, rounded up to whole cache lines, at an offset that is a multiple of
    /// `align`, a power of two. The addresses are aligned too if the region itself is.
    ///
    /// # Errors
    /// As for [`take`](Self::take); [`SizeError::NotAPage`] if `align` is not a power of two.
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
    /// [`WrongArena`], with the piece, if it belongs to another arena.
    pub fn give(&mut self, piece: Piece) -> Result<(), WrongArena> {
        if piece.arena != self.id {
            return Err(WrongArena(piece));
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

    /// Bytes of the region that can be cut into pieces.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Always false: an arena has at least one cache line.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that are in use; 0 when every piece was given back.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.len - self.free.iter().map(ExactSizeIterator::len).sum::<usize>()
    }
}

impl Piece {
    /// Offset of its first byte in the region.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.start
    }

    /// Its length, bytes: a multiple of [`CACHE_LINE`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Always false: a piece has at least one cache line.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its offsets in the region, to index the region's bytes with.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end()
    }

    const fn end(&self) -> usize {
        self.start + self.len
    }

    /// Cuts it in two: the first `at` bytes, and the rest. Each half is given back separately.
    ///
    /// # Errors
    /// The piece itself, if `at` is not a multiple of [`CACHE_LINE`] or would leave one half empty.
    pub const fn split_at(self, at: usize) -> Result<(Self, Self), Self> {
        if at == 0 || at >= self.len || !at.is_multiple_of(CACHE_LINE) {
            return Err(self);
        }
        let Self { arena, start, len } = self;
        Ok((Self { arena, start, len: at }, Self { arena, start: start + at, len: len - at }))
    }
}
