//! Copies to and from the slot, in pieces of 16 bytes where the length allows. A publication leaves
//! the store buffer behind all stores before it, so there must be few stores. The copies are in
//! assembler because another process writes to the same memory: a copy made during such a write may
//! mix two messages, and the seals tell whether it did.
//!
//! They copy 8 to 256 bytes ([`copy_dual`] up to 32, [`pull_any`] any number) and touch no byte
//! beyond them; the last pieces overlap those before.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::arch::asm;
use core::arch::x86_64::__m128i;

/// Copies at most 256 bytes that were not written a moment ago to memory that nobody else writes.
///
/// # Safety
/// As for [`copy_recent`].
#[inline(always)]
pub(crate) unsafe fn pull(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        if !pull_short(to, from, length) {
            pull_lines(to, from, length);
        }
    }
}

/// As [`pull`], for any length. Only a copy of more than 64 bytes compares its length with
/// 256.
///
/// # Safety
/// As for [`copy_recent`].
#[inline(always)]
pub(crate) unsafe fn pull_any(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        if !pull_short(to, from, length) {
            match length {
                ..=256 => pull_lines(to, from, length),
                _ => pull_long(to, from, length),
            }
        }
    }
}

/// The same for at most 64 bytes. False: there are more, and nothing was copied.
///
/// # Safety
/// As for [`copy_recent`].
#[inline(always)]
unsafe fn pull_short(to: *mut u8, from: *const u8, length: usize) -> bool {
    // SAFETY: all words and pieces lie below `length`.
    unsafe {
        if length <= 16 {
            pull_words(to, from, length);
        } else if length <= 32 {
            pull_piece::<0>(to, from);
            pull_last::<16>(to, from, length);
        } else if length <= 64 {
            pull_piece::<0>(to, from);
            pull_piece::<16>(to, from);
            pull_last::<32>(to, from, length);
            pull_last::<16>(to, from, length);
        } else {
            return false;
        }
    }
    true
}

/// The same for 65 to 256 bytes.
///
/// # Safety
/// As for [`copy_recent`].
#[inline(always)]
unsafe fn pull_lines(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: all pieces lie below `length`.
    unsafe {
        pull_line::<0>(to, from);
        if length > 128 {
            pull_line::<64>(to, from);
        }
        if length > 192 {
            pull_line::<128>(to, from);
        }
        pull_last::<64>(to, from, length);
        pull_last::<48>(to, from, length);
        pull_last::<32>(to, from, length);
        pull_last::<16>(to, from, length);
    }
}

/// The same for 64 bytes or more. Marked cold so that short copies keep their registers.
///
/// # Safety
/// As for [`copy_recent`].
#[cold]
#[inline(never)]
unsafe fn pull_long(to: *mut u8, from: *const u8, length: usize) {
    let mut at = 0;
    // SAFETY: as the caller vouches: each line lies below `length`.
    unsafe {
        while at + 64 < length {
            pull_line::<0>(to.add(at), from.add(at));
            at += 64;
        }
        pull_line::<0>(to.add(length - 64), from.add(length - 64));
    }
}

/// Copies 8 to 16 bytes: the first 8 and the last 8.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn pull_words(to: *mut u8, from: *const u8, length: usize) {
    let (first, last): (u64, u64);
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "mov {first}, [{from}]",
            "mov {last}, [{from} + {length} - 8]",
            from = in(reg) from,
            length = in(reg) length,
            first = out(reg) first,
            last = lateout(reg) last,
            options(nostack, preserves_flags, readonly),
        );
        to.cast::<u64>().write_unaligned(first);
        to.add(length - 8).cast::<u64>().write_unaligned(last);
    }
}

/// The 64 bytes from `AT` on.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn pull_line<const AT: usize>(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (to, from) = (to.add(AT), from.add(AT));
        pull_piece::<0>(to, from);
        pull_piece::<16>(to, from);
        pull_piece::<32>(to, from);
        pull_piece::<48>(to, from);
    }
}

/// The 16 bytes from `AT` on.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn pull_piece<const AT: usize>(to: *mut u8, from: *const u8) {
    let piece: __m128i;
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "movups {piece}, [{from} + {at}]",
            from = in(reg) from,
            at = const AT,
            piece = out(xmm_reg) piece,
            options(nostack, preserves_flags, readonly),
        );
        to.add(AT).cast::<__m128i>().write_unaligned(piece);
    }
}

/// The 16 bytes that begin `BACK` before `length`.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn pull_last<const BACK: usize>(to: *mut u8, from: *const u8, length: usize) {
    let piece: __m128i;
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "movups {piece}, [{from} + {length} - {back}]",
            from = in(reg) from,
            length = in(reg) length,
            back = const BACK,
            piece = out(xmm_reg) piece,
            options(nostack, preserves_flags, readonly),
        );
        to.add(length - BACK).cast::<__m128i>().write_unaligned(piece);
    }
}

/// Copies 8 to 32 bytes that were written a moment ago to two places: first to `one`, then to the
/// address that `then` returns. They are loaded once.
///
/// # Safety
/// As for [`copy_recent`], for each of the two.
#[inline(always)]
pub(crate) unsafe fn copy_dual(
    one: *mut u8,
    from: *const u8,
    length: usize,
    then: impl FnOnce() -> *mut u8,
) {
    debug_assert!((8..=32).contains(&length));
    // SAFETY: all words and pieces lie below `length`.
    unsafe {
        if length <= 16 {
            let (first, last) = (load_word(from, 0), load_word(from, length - 8));
            store_word(one, 0, first);
            store_word(one, length - 8, last);
            let two = then();
            store_word(two, 0, first);
            store_word(two, length - 8, last);
        } else {
            let first = load_piece::<0>(from, 0);
            let last = load_piece::<0>(from, length - 16);
            store_piece::<0>(one, 0, first);
            store_piece::<0>(one, length - 16, last);
            let two = then();
            store_piece::<0>(two, 0, first);
            store_piece::<0>(two, length - 16, last);
        }
    }
}

/// Copies bytes that were written a moment ago. Each word is loaded by itself: a load that spans
/// more than one store waits until those stores have left the store buffer.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_recent(to: *mut u8, from: *const u8, length: usize) {
    debug_assert!((8..=256).contains(&length));
    // SAFETY: all words and pieces lie below `length`.
    unsafe {
        if length <= 16 {
            store_word(to, 0, load_word(from, 0));
            store_word(to, length - 8, load_word(from, length - 8));
        } else if length <= 64 {
            piece::<0>(to, from, 0);
            if length > 32 {
                piece::<16>(to, from, 0);
                piece::<0>(to, from, length - 32);
            }
            piece::<0>(to, from, length - 16);
        } else {
            four(to, from, 0);
            if length > 128 {
                four(to, from, 64);
            }
            if length > 192 {
                four(to, from, 128);
            }
            four(to, from, length - 64);
        }
    }
}

/// Copies the four pieces from `at` on.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn four(to: *mut u8, from: *const u8, at: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        piece::<0>(to, from, at);
        piece::<16>(to, from, at);
        piece::<32>(to, from, at);
        piece::<48>(to, from, at);
    }
}

/// Copies the 16 bytes `MORE` behind `at`.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn piece<const MORE: usize>(to: *mut u8, from: *const u8, at: usize) {
    // SAFETY: as the caller vouches.
    unsafe { store_piece::<MORE>(to, at, load_piece::<MORE>(from, at)) };
}

/// The 8 bytes from `at` on.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load_word(from: *const u8, at: usize) -> u64 {
    let word;
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "mov {word}, [{from} + {at}]",
            from = in(reg) from,
            at = in(reg) at,
            word = out(reg) word,
            options(nostack, preserves_flags, readonly),
        );
    }
    word
}

/// Writes the 8 bytes from `at` on.
///
/// # Safety
/// They are writable.
#[inline(always)]
unsafe fn store_word(to: *mut u8, at: usize, word: u64) {
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "mov [{to} + {at}], {word}",
            to = in(reg) to,
            at = in(reg) at,
            word = in(reg) word,
            options(nostack, preserves_flags),
        );
    }
}

/// The 16 bytes `MORE` behind `at`, by words.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn load_piece<const MORE: usize>(from: *const u8, at: usize) -> __m128i {
    let piece;
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "movq {piece}, [{from} + {at} + {more}]",
            "movhps {piece}, [{from} + {at} + {more} + 8]",
            from = in(reg) from,
            at = in(reg) at,
            more = const MORE,
            piece = out(xmm_reg) piece,
            options(nostack, preserves_flags, readonly),
        );
    }
    piece
}

/// Writes the 16 bytes `MORE` behind `at`.
///
/// # Safety
/// They are writable.
#[inline(always)]
unsafe fn store_piece<const MORE: usize>(to: *mut u8, at: usize, piece: __m128i) {
    // SAFETY: as the caller vouches.
    unsafe {
        asm!(
            "movups [{to} + {at} + {more}], {piece}",
            to = in(reg) to,
            at = in(reg) at,
            more = const MORE,
            piece = in(xmm_reg) piece,
            options(nostack, preserves_flags),
        );
    }
}
