//! Limits that all seeds share.

/// The longest request, in bytes; each has a place of that size in memory.
pub(super) const PIECE: usize = 8192;
/// The deepest send queue.
pub(super) const DEPTH: usize = 16;
/// The deepest receive queue.
pub(super) const RECEIVES: usize = 16;
/// Places for WRITEs in each direction.
pub(super) const SLOTS: usize = 4;
/// Offset of the first of them; the words lie before it.
pub(super) const FIRST_SLOT: usize = 4096;
/// The longest inline payload, in bytes.
pub(super) const INLINE: usize = 64;
/// Bytes of the memory that peers may only read.
pub(super) const SHELF: usize = 16_384;
