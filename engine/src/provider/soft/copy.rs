//! Copies of small payloads, by size class: a call into `memcpy` costs more than the copy.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

/// Copies exactly `length` bytes, none beyond on either side.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes; they do not overlap.
#[inline(always)]
pub(super) unsafe fn exact(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller vouches for `length` bytes on both sides; each branch touches only
    // bytes below `length`: the last piece overlaps the one before instead of running over.
    unsafe {
        if length >= 16 {
            if length > 256 {
                ptr::copy_nonoverlapping(from, to, length);
                return;
            }
            let mut at = 0;
            while at + 32 <= length {
                ptr::copy_nonoverlapping(from.add(at), to.add(at), 32);
                at += 32;
            }
            if at + 16 <= length {
                ptr::copy_nonoverlapping(from.add(at), to.add(at), 16);
            }
            ptr::copy_nonoverlapping(from.add(length - 16), to.add(length - 16), 16);
        } else if length >= 8 {
            ptr::copy_nonoverlapping(from, to, 8);
            ptr::copy_nonoverlapping(from.add(length - 8), to.add(length - 8), 8);
        } else if length >= 4 {
            ptr::copy_nonoverlapping(from, to, 4);
            ptr::copy_nonoverlapping(from.add(length - 4), to.add(length - 4), 4);
        } else if length > 0 {
            *to = *from;
            *to.add(length / 2) = *from.add(length / 2);
            *to.add(length - 1) = *from.add(length - 1);
        }
    }
}

/// The word at `from + at` of a payload of `length` bytes, zero-padded after its end.
///
/// # Safety
/// `from` is readable for `length` bytes; `at < length`.
#[inline(always)]
pub(super) unsafe fn word(from: *const u8, at: usize, length: usize) -> u64 {
    let rest = length - at;
    // SAFETY: reads stay below `length`: a whole word, or one that ends at the payload's end,
    // or a byte-exact copy into a zeroed word.
    unsafe {
        if rest >= 8 {
            from.add(at).cast::<u64>().read_unaligned()
        } else if length >= 8 {
            from.add(length - 8).cast::<u64>().read_unaligned() >> (8 * (8 - rest))
        } else {
            let mut last = 0u64;
            exact((&raw mut last).cast(), from, length);
            last
        }
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
    debug_assert!(length <= N * 8 && N <= 7);
    let whole = length / 8;
    let put = |i: usize| {
        let word = words(i).load(Ordering::Relaxed);
        // SAFETY: called for i < whole: bytes i*8 .. i*8+8 lie below `length`.
        unsafe { to.add(i * 8).cast::<u64>().write_unaligned(word) };
    };
    // Written out: as a loop it costs three times the instructions.
    'whole: {
        if whole < 1 {
            break 'whole;
        }
        put(0);
        if whole < 2 {
            break 'whole;
        }
        put(1);
        if whole < 3 {
            break 'whole;
        }
        put(2);
        if whole < 4 {
            break 'whole;
        }
        put(3);
        if whole < 5 {
            break 'whole;
        }
        put(4);
        if N <= 5 || whole < 6 {
            break 'whole;
        }
        put(5);
        if whole < 7 {
            break 'whole;
        }
        put(6);
    }
    if !length.is_multiple_of(8) {
        let last = words(whole).load(Ordering::Relaxed);
        // SAFETY: the remaining `length % 8` bytes of `to`, from a local word.
        unsafe { exact(to.add(whole * 8), (&raw const last).cast(), length % 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_copies_every_length_and_nothing_beyond() {
        let from: [u8; 400] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for length in 0..=300 {
            let mut to = [0xeeu8; 400];
            // SAFETY: both arrays are longer than `length`.
            unsafe { exact(to.as_mut_ptr(), from.as_ptr(), length) };
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|b| *b == 0xee), "wrote beyond {length}");
        }
    }

    #[test]
    fn words_hold_the_bytes_and_zeros_after_them() {
        let from: [u8; 64] = core::array::from_fn(|i| i as u8 + 1);
        for length in 1..=64usize {
            for at in (0..length).step_by(8) {
                let mut want = [0u8; 8];
                let rest = (length - at).min(8);
                want[..rest].copy_from_slice(&from[at..at + rest]);
                // SAFETY: `from` is longer than `length`, and `at < length`.
                assert_eq!(unsafe { word(from.as_ptr(), at, length) }, u64::from_le_bytes(want));
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
