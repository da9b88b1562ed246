//! Copies of small payloads, by size class: a call into `memcpy` costs more than the copy.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::ptr;

use super::sync::{AtomicU64, Ordering};

/// Copies exactly `length` bytes, none beyond on either side.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes; they do not overlap.
#[inline(always)]
pub(super) unsafe fn exact(to: *mut u8, from: *const u8, length: usize) {
    let piece = |at: usize, bytes: usize| {
        // SAFETY: the caller vouches for `length` bytes on both sides, and each branch below
        // touches only those: the last piece overlaps the one before instead of running over.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes) };
    };
    if length <= 16 {
        if length >= 8 {
            piece(0, 8);
            piece(length - 8, 8);
        } else if length >= 4 {
            piece(0, 4);
            piece(length - 4, 4);
        } else if length > 0 {
            piece(0, 1);
            piece(length / 2, 1);
            piece(length - 1, 1);
        }
    } else if length <= 32 {
        piece(0, 16);
        piece(length - 16, 16);
    } else if length <= 64 {
        piece(0, 32);
        piece(length - 32, 32);
    } else if length <= 256 {
        piece(0, 64);
        if length > 128 {
            piece(64, 64);
        }
        if length > 192 {
            piece(128, 64);
        }
        piece(length - 64, 64);
    } else {
        piece(0, length);
    }
}

/// As [`exact`], of bytes that were written a moment ago, by words: a load that spans more than one
/// store waits until those have left the store buffer, and there they stand behind stores to lines
/// that the peer has. So the first and last 16 bytes, where what changes from message to message
/// usually is, are loaded by words.
///
/// # Safety
/// As for [`exact`].
#[inline(always)]
pub(super) unsafe fn fresh(to: *mut u8, from: *const u8, length: usize) {
    if length <= 16 || length > 256 {
        // SAFETY: as the caller vouches.
        return unsafe { exact(to, from, length) };
    }
    let piece = |at: usize, bytes: usize| {
        // SAFETY: as in `exact`.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes) };
    };
    // SAFETY: as there: the last pieces overlap those before.
    let word = |at: usize| unsafe { word(to.add(at), from.add(at)) };
    word(0);
    word(8);
    if length > 64 {
        piece(16, 48);
        if length > 128 {
            piece(64, 64);
        }
        if length > 192 {
            piece(128, 64);
        }
        piece(length - 64, 48);
    } else if length > 32 {
        piece(16, 16);
        piece(length - 32, 16);
    }
    word(length - 16);
    word(length - 8);
}

/// A word that lies anywhere.
#[repr(C, packed)]
struct Word(u64);

/// Copies one word, and by itself: a volatile load is never made one with another.
///
/// # Safety
/// `from` is readable and `to` writable for 8 bytes.
#[inline(always)]
unsafe fn word(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller vouches; a `Word` may lie anywhere.
    unsafe { to.cast::<Word>().write(from.cast::<Word>().read_volatile()) };
}

/// Calls `put` with 0 .. count, at most N, which is at most 8. Written out: as a loop it costs
/// three times the instructions.
#[inline(always)]
fn each<const N: usize>(count: usize, mut put: impl FnMut(usize)) {
    const { assert!(N <= 8) };
    'all: {
        if count < 1 {
            break 'all;
        }
        put(0);
        if N < 2 || count < 2 {
            break 'all;
        }
        put(1);
        if N < 3 || count < 3 {
            break 'all;
        }
        put(2);
        if N < 4 || count < 4 {
            break 'all;
        }
        put(3);
        if N < 5 || count < 5 {
            break 'all;
        }
        put(4);
        if N < 6 || count < 6 {
            break 'all;
        }
        put(5);
        if N < 7 || count < 7 {
            break 'all;
        }
        put(6);
        if N < 8 || count < 8 {
            break 'all;
        }
        put(7);
    }
}

/// Gives the words of a payload to `put`, at most N, the last one padded with zeros.
///
/// # Safety
/// `from` is readable for `length` bytes, which are at most N words.
#[inline(always)]
pub(super) unsafe fn to_words<const N: usize>(
    from: *const u8,
    length: usize,
    mut put: impl FnMut(usize, u64),
) {
    debug_assert!(length <= N * 8);
    let whole = length / 8;
    // SAFETY: called for i < whole: bytes i*8 .. i*8+8 lie below `length`.
    each::<N>(whole, |i| put(i, unsafe { from.add(i * 8).cast::<u64>().read_unaligned() }));
    if !length.is_multiple_of(8) {
        let mut last = 0u64;
        // SAFETY: the remaining `length % 8` bytes of the payload, into a local word.
        unsafe { exact((&raw mut last).cast(), from.add(whole * 8), length % 8) };
        put(whole, last);
    }
}

/// Writes `length` bytes, at most N words, taken from consecutive atomic words, `words(i)` being
/// the i-th.
///
/// # Safety
/// `to` is writable for `length` bytes.
#[inline(always)]
pub(super) unsafe fn from_words<'a, const N: usize>(
    to: *mut u8,
    length: usize,
    words: impl Fn(usize) -> &'a AtomicU64,
) {
    debug_assert!(length <= N * 8);
    let whole = length / 8;
    each::<N>(whole, |i| {
        let word = words(i).load(Ordering::Relaxed);
        // SAFETY: called for i < whole: bytes i*8 .. i*8+8 lie below `length`.
        unsafe { to.add(i * 8).cast::<u64>().write_unaligned(word) };
    });
    if !length.is_multiple_of(8) {
        let last = words(whole).load(Ordering::Relaxed);
        // SAFETY: the remaining `length % 8` bytes of `to`, from a local word.
        unsafe { exact(to.add(whole * 8), (&raw const last).cast(), length % 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    #[test]
    fn every_length_is_copied_and_nothing_beyond() {
        let from: [u8; 400] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for (length, copy) in
            (0..=300).flat_map(|length| [(length, exact as Copy), (length, fresh)])
        {
            let mut to = [0xeeu8; 400];
            // SAFETY: both arrays are longer than `length`.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), length) };
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|b| *b == 0xee), "wrote beyond {length}");
        }
    }

    #[test]
    fn words_hold_the_bytes_and_zeros_after_them() {
        let from: [u8; 56] = core::array::from_fn(|i| i as u8 + 1);
        for length in 0..=56usize {
            let mut words = std::vec::Vec::new();
            // SAFETY: `from` is as long as the longest.
            unsafe {
                to_words::<7>(from.as_ptr(), length, |i, word| {
                    assert_eq!(i, words.len());
                    words.push(word);
                });
            }
            assert_eq!(words.len(), length.div_ceil(8));
            for (i, byte) in words.iter().flat_map(|word| word.to_le_bytes()).enumerate() {
                assert_eq!(byte, if i < length { from[i] } else { 0 });
            }
        }
    }

    #[test]
    fn from_words_is_exact() {
        let words: [AtomicU64; 8] =
            core::array::from_fn(|i| AtomicU64::new(0x0101_0101_0101_0101 * (i as u64 + 1)));
        for length in 0..=56usize {
            let mut to = [0u8; 80];
            // SAFETY: `to` is longer than `length`.
            unsafe { from_words::<7>(to.as_mut_ptr(), length, |i| &words[i]) };
            for (i, byte) in to.iter().enumerate() {
                assert_eq!(*byte, if i < length { (i / 8) as u8 + 1 } else { 0 });
            }
        }
    }
}
