//! Copies to and from the bell, 16 bytes at a time: what is published leaves the store buffer
//! behind all that was stored before it, so there must be few stores. In assembler, since the
//! memory is another process' as well: each aligned word of it is loaded and stored whole.
//!
//! All copy 17 to 256 bytes, none beyond on either side; the last pieces overlap those before.
#![expect(unsafe_code, reason = "raw copies between registered memory and the wire")]

use core::arch::asm;

/// Copies what was written a moment ago. Each word is loaded by itself: a load that spans more
/// than one store waits until those have left the store buffer.
///
/// # Safety
/// `from` is readable and `to` writable for `length` bytes.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe { pieces(&Pairs { to, from }, length) };
}

/// Copies what was not written a moment ago.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_whole(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: as the caller vouches.
    unsafe { pieces(&Wholes { to, from }, length) };
}

struct Pairs {
    to: *mut u8,
    from: *const u8,
}

struct Wholes {
    to: *mut u8,
    from: *const u8,
}

/// How 16 bytes are copied.
trait Piece {
    /// Copies the 16 bytes that begin `AT` behind `at`.
    ///
    /// # Safety
    /// They are readable and writable.
    unsafe fn copy<const AT: usize>(&self, at: usize);
}

#[inline(always)]
unsafe fn pieces(piece: &impl Piece, length: usize) {
    debug_assert!((17..=256).contains(&length));
    // SAFETY: all pieces lie below `length`.
    unsafe {
        if length <= 64 {
            piece.copy::<0>(0);
            if length > 32 {
                piece.copy::<16>(0);
                piece.copy::<0>(length - 32);
            }
            return piece.copy::<0>(length - 16);
        }
        four(piece, 0);
        if length > 128 {
            four(piece, 64);
        }
        if length > 192 {
            four(piece, 128);
        }
        four(piece, length - 64);
    }
}

#[inline(always)]
unsafe fn four(piece: &impl Piece, at: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        piece.copy::<0>(at);
        piece.copy::<16>(at);
        piece.copy::<32>(at);
        piece.copy::<48>(at);
    }
}

impl Piece for Pairs {
    #[inline(always)]
    unsafe fn copy<const AT: usize>(&self, at: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            asm!(
                "movq {pair}, [{from} + {at}]",
                "movhps {pair}, [{from} + {at} + 8]",
                "movups [{to} + {at}], {pair}",
                from = in(reg) self.from.add(at),
                to = in(reg) self.to.add(at),
                at = const AT,
                pair = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Piece for Wholes {
    #[inline(always)]
    unsafe fn copy<const AT: usize>(&self, at: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            asm!(
                "movups {whole}, [{from} + {at}]",
                "movups [{to} + {at}], {whole}",
                from = in(reg) self.from.add(at),
                to = in(reg) self.to.add(at),
                at = const AT,
                whole = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}
