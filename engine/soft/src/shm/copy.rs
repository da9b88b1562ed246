//! Copies of small payloads, by size class, because a call into `memcpy` costs more than the copy.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::ptr::{self, NonNull};

use crate::model::buffers::{Pieces, Source, Target};
#[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
use crate::shm::copy_x86;
use crate::sync::{AtomicU64, Ordering, reads, word};

/// Copies exactly `length` bytes, at most 16. Touches no byte beyond them on either side.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes; they do not overlap.
#[inline(always)]
unsafe fn short(to: *mut u8, from: *const u8, length: usize) {
    debug_assert!(length <= 16);
    let piece = |at: usize, bytes: usize| {
        // SAFETY: the caller vouches for `length` bytes on both sides, and each branch below
        // touches only those: the last piece overlaps the one before instead of running over.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes) };
    };
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
}

/// As [`short`], for any number of bytes that were written a moment ago. A load that spans more
/// than one store waits until those stores have left the store buffer, where they queue behind
/// stores to lines that the peer owns. So the first and last 16 bytes, which usually change from
/// message to message, are loaded by words.
///
/// # Safety
/// As for [`short`].
#[inline(always)]
pub(crate) unsafe fn copy_recent(to: *mut u8, from: *const u8, length: usize) {
    let piece = |at: usize, bytes: usize| {
        // SAFETY: as in `short`.
        unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), bytes) };
    };
    // SAFETY: as there; the last pieces overlap those before.
    let word = |at: usize| unsafe { one(to.add(at), from.add(at)) };
    if length > 64 {
        if length > 256 {
            return piece(0, length);
        }
        word(0);
        word(8);
        piece(16, 48);
        if length > 128 {
            piece(64, 64);
        }
        if length > 192 {
            piece(128, 64);
        }
        piece(length - 64, 48);
    } else if length > 16 {
        word(0);
        word(8);
        if length > 32 {
            piece(16, 16);
            piece(length - 32, 16);
        }
    } else {
        // SAFETY: as the caller vouches.
        return unsafe { short(to, from, length) };
    }
    word(length - 16);
    word(length - 8);
}

/// A word at any alignment.
#[repr(C, packed)]
struct Word(u64);

/// Copies one word. The load is volatile, so the compiler never merges it with another.
///
/// # Safety
/// `from` is readable and `to` writable for 8 bytes.
#[inline(always)]
unsafe fn one(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller vouches; a `Word` may lie anywhere.
    unsafe { to.cast::<Word>().write(from.cast::<Word>().read_volatile()) };
}

/// Writes a payload of at most 256 bytes to consecutive words that the peer may read or write
/// meanwhile. The bytes of the last word beyond the payload are unspecified.
///
/// # Safety
/// `from` is readable for `length` bytes, and `to` points to the words for them, aligned and only
/// ever used as atomics.
#[inline(always)]
pub(crate) unsafe fn to_shared(to: NonNull<u8>, from: *const u8, length: usize) {
    #[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
    if length >= 8 {
        // SAFETY: as the caller vouches.
        return unsafe { copy_x86::copy_recent(to.as_ptr(), from, length) };
    }
    let mut at = 0;
    // SAFETY: the words begin below `length`; of the last one only bytes below `length` are read.
    unsafe {
        while at + 8 <= length {
            let bytes = from.add(at).cast::<u64>().read_unaligned();
            word::<AtomicU64>(to.add(at)).store(bytes, Ordering::Relaxed);
            at += 8;
        }
        if at < length {
            let mut last = 0u64;
            short((&raw mut last).cast(), from.add(at), length - at);
            word::<AtomicU64>(to.add(at)).store(last, Ordering::Relaxed);
        }
    }
}

/// The most bytes that fit in registers while they are copied twice.
pub(crate) const DUAL_MAX: usize = 32;

/// Copies at most [`DUAL_MAX`] bytes that were written a moment ago to `one`; then calls `then` and
/// copies them to the words that it returns, as [`to_shared`] does.
///
/// # Safety
/// As for [`short`] and [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn copy_dual(
    one: *mut u8,
    from: *const u8,
    length: usize,
    then: impl FnOnce() -> NonNull<u8>,
) {
    #[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
    if length >= 8 {
        // SAFETY: as the caller vouches.
        return unsafe { copy_x86::copy_dual(one, from, length, || then().as_ptr()) };
    }
    // SAFETY: as above.
    unsafe {
        copy_recent(one, from, length);
        to_shared(then(), from, length);
    }
}

/// Copies `length` bytes, at most 256, out of words as in [`to_shared`].
///
/// # Safety
/// `to` is writable for `length` bytes; `from` is as `to` in [`to_shared`].
#[inline(always)]
pub(crate) unsafe fn from_shared(to: *mut u8, from: NonNull<u8>, length: usize) {
    #[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
    if length >= 8 {
        // SAFETY: as the caller vouches.
        return unsafe { copy_x86::pull(to, from.as_ptr(), length) };
    }
    let mut at = 0;
    // SAFETY: the words begin below `length`; of the last one only bytes below `length` are
    // written.
    unsafe {
        while at + 8 <= length {
            let bytes = word::<AtomicU64>(from.add(at)).load(Ordering::Relaxed);
            to.add(at).cast::<u64>().write_unaligned(bytes);
            at += 8;
        }
        if at < length {
            let last = word::<AtomicU64>(from.add(at)).load(Ordering::Relaxed);
            short(to.add(at), (&raw const last).cast(), length - at);
        }
    }
}

/// As [`to_shared`], for any number of bytes. The last of them were written a moment ago.
///
/// # Safety
/// As there.
pub(crate) unsafe fn to_shared_long(to: NonNull<u8>, from: *const u8, length: usize) {
    let mut at = 0;
    // SAFETY: as the caller vouches: all pieces lie below `length`, and each begins at a word.
    unsafe {
        #[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
        while length - at > 256 {
            copy_x86::pull_any(to.add(at).as_ptr(), from.add(at), LONG_PIECE);
            at += LONG_PIECE;
        }
        #[cfg(not(all(target_feature = "sse2", not(any(loom, miri)))))]
        while length - at > 256 {
            to_shared(to.add(at), from.add(at), LONG_PIECE);
            at += LONG_PIECE;
        }
        to_shared(to.add(at), from.add(at), length - at);
    }
}

/// As [`from_shared`], for any number of bytes.
///
/// # Safety
/// As there.
pub(crate) unsafe fn from_shared_long(to: *mut u8, from: NonNull<u8>, length: usize) {
    let mut at = 0;
    // SAFETY: as the caller vouches: all pieces lie below `length`, and each begins at a word.
    unsafe {
        while length - at > 256 {
            from_shared(to.add(at), from.add(at), LONG_PIECE);
            at += LONG_PIECE;
        }
        from_shared(to.add(at), from.add(at), length - at);
    }
}

/// Bytes of a piece of a long payload.
const LONG_PIECE: usize = 192;

/// As [`short`], for any number of bytes, from memory that another process may write to meanwhile.
/// The result may mix two writes byte by byte, but each byte is loaded once, although the compiler
/// sees no writer of that memory.
///
/// # Safety
/// As for [`short`]; `from` may be written to by another process.
#[inline(always)]
pub(crate) unsafe fn untrusted(to: *mut u8, from: *const u8, length: usize) {
    reads(from, length);
    #[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
    if length >= 8 {
        // SAFETY: as the caller vouches.
        return unsafe { copy_x86::pull_any(to, from, length) };
    }
    let mut at = 0;
    // SAFETY: words and bytes below `length`; a `Word` may lie anywhere.
    unsafe {
        while at + 8 <= length {
            one(to.add(at), from.add(at));
            at += 8;
        }
        while at < length {
            to.add(at).write(from.add(at).read_volatile());
            at += 1;
        }
    }
}

/// [`untrusted`], for as many bytes as there are on both sides.
#[inline]
pub(crate) fn copy(to: Target<'_>, from: Source<'_>) {
    let length = from.length().min(to.length()) as usize;
    // SAFETY: a source is readable and a target writable for that length. Nothing gives a source
    // and a target of the same memory to one copy between a user's bytes and the wire.
    unsafe { untrusted(to.as_ptr(), from.as_ptr(), length) };
}

/// Copies the bytes of a gather list from `from` on, until the target is full.
pub(crate) fn gather(mut to: Target<'_>, pieces: &Pieces, mut from: u32) {
    for piece in pieces.sources() {
        let some = piece.part(from, to.length());
        from = from.saturating_sub(piece.length());
        copy(to, some);
        to = to.part(some.length(), u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    #[test]
    fn every_length_is_copied_and_nothing_beyond() {
        let from: [u8; 800] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for (length, copy) in
            (0..=700).flat_map(|length| [(length, copy_recent as Copy), (length, untrusted)])
        {
            let mut to = [0xeeu8; 800];
            // SAFETY: both arrays are longer than `length`.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), length) };
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|b| *b == 0xee), "wrote beyond {length}");
        }
    }

    /// Words aligned like those of a link.
    #[repr(align(64))]
    struct Words([AtomicU64; WORDS]);

    const WORDS: usize = MOST / 8 + 1;
    /// More than the slot holds.
    const MOST: usize = 1160;

    impl Words {
        /// Word `n` holds `value(n)`.
        fn new(value: impl Fn(usize) -> u64) -> Words {
            Words(core::array::from_fn(|n| AtomicU64::new(value(n))))
        }

        fn start(&self) -> NonNull<u8> {
            NonNull::from(&self.0).cast()
        }

        fn bytes(&self) -> impl Iterator<Item = u8> {
            self.0.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        }
    }

    /// Checks that the words hold the bytes and that none behind them was touched.
    fn holds(words: &Words, from: &[u8], length: usize) {
        for (i, byte) in words.bytes().enumerate() {
            match i {
                _ if i < length => assert_eq!(byte, from[i], "{i} of {length}"),
                _ if i < length.next_multiple_of(8) => {}
                _ => assert_eq!(byte, 0xff, "{i} of {length}"),
            }
        }
    }

    #[test]
    fn words_hold_the_bytes_and_none_is_touched_after_them() {
        let from: [u8; MOST + 1] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for (length, skip) in (0..=MOST).flat_map(|length| [(length, 0), (length, 1)]) {
            let (words, from) = (Words::new(|_| !0), &from[skip..]);
            let length = length - skip.min(length);
            // SAFETY: `from` is as long as the longest length, and there are words for it.
            unsafe { to_shared_long(words.start(), from.as_ptr(), length) };
            holds(&words, from, length);
            if length <= 256 {
                let words = Words::new(|_| !0);
                // SAFETY: as above.
                unsafe { to_shared(words.start(), from.as_ptr(), length) };
                holds(&words, from, length);
            }
        }
    }

    #[test]
    fn a_copy_to_two_places_reaches_both() {
        let from: [u8; 32] = core::array::from_fn(|i| (i * 7 + 1) as u8);
        for length in 0..=32 {
            let (words, mut one) = (Words::new(|_| !0), [0xeeu8; 40]);
            let (to, mut done) = (one.as_mut_ptr(), false);
            // SAFETY: as above; `one` is longer.
            unsafe {
                copy_dual(to, from.as_ptr(), length, || {
                    done = *to == if length > 0 { from[0] } else { 0xee };
                    words.start()
                });
            }
            assert!(done, "the first place is written before");
            holds(&words, &from, length);
            assert_eq!(one[..length], from[..length]);
            assert!(one[length..].iter().all(|b| *b == 0xee), "wrote beyond {length}");
        }
    }

    #[test]
    fn from_words_is_exact() {
        let words = Words::new(|n| 0x0706_0504_0302_0100 + 0x0808_0808_0808_0808 * (n as u64 % 31));
        for length in 0..=MOST {
            let mut to = [0xeeu8; MOST + 24];
            // SAFETY: `to` is longer than `length`.
            unsafe { from_shared_long(to.as_mut_ptr(), words.start(), length) };
            for (i, (byte, word)) in to.iter().zip(words.bytes()).enumerate() {
                assert_eq!(*byte, if i < length { word } else { 0xee }, "{i} of {length}");
            }
        }
    }
}
