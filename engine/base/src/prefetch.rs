//! Prefetches of cache lines. They are hints: any address will do, and on a processor without such
//! instructions they do nothing.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "the instructions")
)]

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches a line for reading.
#[inline(always)]
pub fn fetch_line(at: *const u8) {
    // SAFETY: a prefetch has no effect on memory, whatever the address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches a line for writing.
#[inline(always)]
pub fn claim_line(at: *const u8) {
    // SAFETY: a prefetch has no effect on memory. It does nothing on a processor that lacks the
    // instruction, or for an invalid address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches `bytes` bytes for reading: a line every 64 bytes. If `at` is inside a line, it may
/// leave out the last one.
#[inline]
pub fn fetch(at: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|ahead| fetch_line(at.wrapping_add(ahead)));
}

/// As [`fetch`], for writing.
#[inline]
pub fn claim(at: *const u8, bytes: usize) {
    (0..bytes).step_by(LINE).for_each(|ahead| claim_line(at.wrapping_add(ahead)));
}
