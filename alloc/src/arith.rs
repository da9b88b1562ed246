//! Arithmetic on lengths, pages and blocks, with every overflow checked.

use core::fmt;

use thiserror::Error;

/// A length, page size or block count that is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// A length, count or block size of zero.
    #[error("a size or count of 0 was requested; request at least 1")]
    Zero,
    /// A page size that is not a power of two.
    #[error("{page} is not a page size: it is not a power of two")]
    NotAPage {
        /// The size in question, bytes.
        page: usize,
    },
    /// A product or a rounded length beyond the address space.
    #[error(
        "{count} x {size} bytes does not fit in the address space ({} bytes); request less",
        isize::MAX
    )]
    Overflow {
        /// How many of them.
        count: usize,
        /// Bytes of each.
        size: usize,
    },
    /// More blocks than a `u32` can number.
    #[error("{blocks} blocks are more than an index can count ({}); use larger blocks", u32::MAX)]
    TooManyBlocks {
        /// Blocks needed.
        blocks: usize,
    },
    /// Not even one block fits.
    #[error(
        "a region of {len} bytes holds no block of {size} bytes; map more or use smaller blocks"
    )]
    NoBlockFits {
        /// Length of the region, bytes.
        len: usize,
        /// Size of a block, bytes.
        size: usize,
    },
}

impl fmt::Debug for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The largest length of one object: `isize::MAX`, by Rust's rule for pointers.
const LEN_MAX: usize = isize::MAX as usize;

/// `len` rounded up to a whole number of pages of `page` bytes.
///
/// # Errors
/// [`SizeError::NotAPage`] if `page` is not a power of two, [`SizeError::Overflow`] if the result
/// exceeds `isize::MAX`.
pub const fn round_up(len: usize, page: usize) -> Result<usize, SizeError> {
    if !page.is_power_of_two() {
        return Err(SizeError::NotAPage { page });
    }
    match len.checked_next_multiple_of(page) {
        Some(rounded) if rounded <= LEN_MAX => Ok(rounded),
        _ => Err(SizeError::Overflow { count: len.div_ceil(page), size: page }),
    }
}

/// Bytes of `count` blocks of `size` bytes.
///
/// # Errors
/// [`SizeError::Zero`] if either is 0, [`SizeError::Overflow`] if the product exceeds
/// `isize::MAX`.
pub const fn block_bytes(count: u32, size: usize) -> Result<usize, SizeError> {
    if count == 0 || size == 0 {
        return Err(SizeError::Zero);
    }
    match size.checked_mul(count as usize) {
        Some(bytes) if bytes <= LEN_MAX => Ok(bytes),
        _ => Err(SizeError::Overflow { count: count as usize, size }),
    }
}

/// How many whole blocks of `size` bytes fit in `len` bytes; at least one.
///
/// # Errors
/// [`SizeError::Zero`] if `size` is 0, [`SizeError::NoBlockFits`] if `size` exceeds `len`,
/// [`SizeError::TooManyBlocks`] if the count exceeds `u32::MAX`.
pub const fn blocks_in(len: usize, size: usize) -> Result<u32, SizeError> {
    if size == 0 {
        return Err(SizeError::Zero);
    }
    let blocks = len / size;
    if blocks == 0 {
        return Err(SizeError::NoBlockFits { len, size });
    }
    if blocks > u32::MAX as usize {
        return Err(SizeError::TooManyBlocks { blocks });
    }
    Ok(blocks as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_up_to_the_next_page_and_stays_on_one() {
        assert_eq!(round_up(0, 4096), Ok(0));
        assert_eq!(round_up(1, 4096), Ok(4096));
        assert_eq!(round_up(4096, 4096), Ok(4096));
        assert_eq!(round_up(4097, 4096), Ok(8192));
        assert_eq!(round_up(3 << 20, 2 << 20), Ok(4 << 20));
    }

    #[test]
    fn rounding_refuses_bad_page_sizes_and_overflow() {
        assert_eq!(round_up(1, 0), Err(SizeError::NotAPage { page: 0 }));
        assert_eq!(round_up(1, 4095), Err(SizeError::NotAPage { page: 4095 }));
        assert!(matches!(round_up(usize::MAX, 4096), Err(SizeError::Overflow { .. })));
        assert!(matches!(round_up(LEN_MAX, 4096), Err(SizeError::Overflow { .. })));
        assert_eq!(round_up(LEN_MAX - 4095, 4096), Ok(LEN_MAX - 4095));
    }

    #[test]
    fn block_arithmetic_is_checked_for_zero_and_overflow() {
        assert_eq!(block_bytes(3, 2048), Ok(6144));
        assert_eq!(block_bytes(0, 2048), Err(SizeError::Zero));
        assert_eq!(block_bytes(3, 0), Err(SizeError::Zero));
        assert!(matches!(block_bytes(u32::MAX, LEN_MAX), Err(SizeError::Overflow { .. })));
        assert!(matches!(block_bytes(2, LEN_MAX), Err(SizeError::Overflow { .. })));

        assert_eq!(blocks_in(6143, 2048), Ok(2));
        assert_eq!(blocks_in(6144, 2048), Ok(3));
        assert_eq!(blocks_in(6144, 0), Err(SizeError::Zero));
        assert_eq!(blocks_in(2047, 2048), Err(SizeError::NoBlockFits { len: 2047, size: 2048 }));
        assert!(matches!(blocks_in(LEN_MAX, 1), Err(SizeError::TooManyBlocks { .. })));
    }
}
