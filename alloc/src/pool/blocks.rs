//! The blocks of a pool: where they lie in the region, and which of them are missing at the end.

use core::fmt;

use std_alloc::string::String;

use thiserror::Error;

use crate::arena::Piece;
use crate::arith::{self, SizeError};

/// Blocks of equal size that follow each other in a region.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    /// Offset of the first block in the region, bytes.
    pub(super) base: usize,
    pub(super) count: u32,
    /// Size of one block, bytes.
    pub(super) size: usize,
}

impl Blocks {
    pub(super) fn new(base: usize, count: u32, size: usize) -> Result<Self, SizeError> {
        arith::block_bytes(count, size)?;
        Ok(Self { base, count, size })
    }

    /// As many blocks as fit in `piece`.
    pub(super) fn within(piece: &Piece, size: usize) -> Result<Self, SizeError> {
        Self::new(piece.offset(), arith::blocks_in(piece.len(), size)?, size)
    }
}

/// Blocks that were taken and never put back, found when a pool is closed.
#[derive(Clone, PartialEq, Eq, Error)]
#[error(
    "{out} of {count} blocks were not put back, {caches} caches are still alive{held}; fix: put \
     blocks back and drop caches before the pool is closed"
)]
pub struct LeakedBlocks {
    pub(super) count: u32,
    pub(super) out: u32,
    pub(super) caches: usize,
    /// Their owners: each entry starts with "; ". Empty in builds without debug assertions.
    pub(super) held: String,
}

impl fmt::Debug for LeakedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LeakedBlocks {
    /// How many blocks are missing: taken, or in a cache that is still alive.
    #[must_use]
    pub const fn out(&self) -> u32 {
        self.out
    }

    /// How many blocks the pool has in all.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }
}
