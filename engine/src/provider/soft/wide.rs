//! Copies to and from the bell, 16 bytes at a time: what is published leaves the store buffer
//! behind all that was stored before it, so there must be few stores. In assembler, since the
//! memory is another process' as well: what a copy holds while the other side writes may be of
//! two messages, byte by byte, and the seals say whether it is.
//!
//! Both copy 17 to 256 bytes, none beyond on either side; the last pieces overlap those before.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::arch::asm;

/// Copies what was written a moment ago. Each word is loaded by itself: a load that spans more
/// than one store waits until those have left the store buffer.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes.
#[inline(always)]
pub(super) unsafe fn copy_fresh(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe { copy::<true>(to, from, length) };
}

/// Copies what was not written a moment ago.
///
/// # Safety
/// As for [`copy_fresh`].
#[inline(always)]
pub(super) unsafe fn copy_settled(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe { copy::<false>(to, from, length) };
}

#[inline(always)]
unsafe fn copy<const FRESH: bool>(to: *mut u8, from: *const u8, length: usize) {
    debug_assert!((17..=256).contains(&length));
    // SAFETY: all pieces lie below `length`.
    let four = |at: usize| unsafe {
        let (to, from) = (to.add(at), from.add(at));
        piece::<FRESH, 0>(to, from);
        piece::<FRESH, 16>(to, from);
        piece::<FRESH, 32>(to, from);
        piece::<FRESH, 48>(to, from);
    };
    if length > 64 {
        four(0);
        if length > 128 {
            four(64);
        }
        if length > 192 {
            four(128);
        }
        return four(length - 64);
    }
    // SAFETY: as above.
    unsafe {
        piece::<FRESH, 0>(to, from);
        if length > 32 {
            piece::<FRESH, 16>(to, from);
            piece::<FRESH, 0>(to.add(length - 32), from.add(length - 32));
        }
        piece::<FRESH, 0>(to.add(length - 16), from.add(length - 16));
    }
}

/// Copies the 16 bytes `AT` behind: `FRESH` ones by words.
///
/// # Safety
/// They are readable and writable.
#[inline(always)]
unsafe fn piece<const FRESH: bool, const AT: usize>(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller vouches.
    unsafe {
        if FRESH {
            asm!(
                "movq {bytes}, [{from} + {at}]",
                "movhps {bytes}, [{from} + {at} + 8]",
                "movups [{to} + {at}], {bytes}",
                from = in(reg) from,
                to = in(reg) to,
                at = const AT,
                bytes = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        } else {
            asm!(
                "movups {bytes}, [{from} + {at}]",
                "movups [{to} + {at}], {bytes}",
                from = in(reg) from,
                to = in(reg) to,
                at = const AT,
                bytes = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}
