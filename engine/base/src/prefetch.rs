//! Prefetches of cache lines. They are hints: any address will do, and on a processor without such
//! instructions they do nothing.
#![cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "the instructions")
)]

/// Bytes of a cache line.
pub const LINE: usize = 64;

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

/// Gets `bytes` bytes for writing, a line every 64 bytes, also lines that this core and another one
/// both have.
///
/// Before a core writes to such a line, the other one must give it up. On the processors measured
/// (AMD, family 25) a prefetch for writing does not ask for that, because the line is here already,
/// and a store does. So on AMD processors with AVX-512 this makes stores with an empty mask, which
/// write nothing. Elsewhere, and in programs that do without vector registers, it is [`claim`]. A
/// copy of 4 KiB to lines that the other core had read took 550 ns (near cores) and 2200 (far). To
/// lines that this function had got while the core waited, it took 150 and 500.
///
/// On an Intel processor (family 6, model 207) the prefetch does ask for such lines. There the same
/// copy took 463 ns, 64 after prefetches for writing, and 356 after stores with an empty mask.
///
/// Unlike a prefetch, a store keeps its place among the others: what is stored after it becomes
/// visible after it has got its line.
#[inline]
pub fn own(at: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri))))]
    if empty_stores::work() {
        // SAFETY: the processor has the instructions.
        return unsafe { empty_stores::own(at.addr(), bytes) };
    }
    claim(at, bytes);
}

/// True if [`own`] does more than [`claim`].
#[inline(always)]
pub fn owns() -> bool {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri))))]
    return empty_stores::work();
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri)))))]
    return false;
}

/// Drops the lines of `bytes` bytes, one every 64 bytes from `at` on, from the caches of all cores.
/// What was written there goes to memory. On a processor where [`owns`] is false it does nothing.
///
/// # Safety
/// The bytes are readable.
#[inline]
pub unsafe fn flush(at: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri))))]
    if empty_stores::work() {
        for ahead in (0..bytes).step_by(LINE) {
            // SAFETY: the processor has the instruction, which needs a readable byte, and the
            // caller vouches for that. It changes no byte.
            unsafe {
                let at = at.wrapping_add(ahead);
                core::arch::asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags));
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri)))))]
    let _ = (at, bytes);
}

/// The processor's clock, when all loads before are done, and before any behind begins. 0 on a
/// processor where [`owns`] is false.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri))))]
    if empty_stores::work() {
        use core::arch::x86_64::{_mm_lfence, _rdtsc};
        // SAFETY: every processor of this kind has the instructions. They touch no memory.
        return unsafe {
            _mm_lfence();
            let ticks = _rdtsc();
            _mm_lfence();
            ticks
        };
    }
    0
}

/// Stores with an empty mask.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(any(loom, miri))))]
mod empty_stores {
    use core::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::LINE;

    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// Whether they work.
    static WORK: AtomicU8 = AtomicU8::new(UNKNOWN);

    /// True if the processor has such stores, and they get the line.
    #[inline(always)]
    pub(super) fn work() -> bool {
        // Relaxed: every thread finds the same.
        match WORK.load(Ordering::Relaxed) {
            UNKNOWN => look(),
            known => known == YES,
        }
    }

    #[cold]
    #[inline(never)]
    fn look() -> bool {
        let work = is_amd() && has_instructions();
        WORK.store(if work { YES } else { NO }, Ordering::Relaxed);
        work
    }

    /// The first part of a leaf.
    #[allow(unused_unsafe, reason = "compilers before 1.94 ask for it")]
    fn cpuid(leaf: u32) -> CpuidResult {
        // SAFETY: every processor of this kind has the instruction.
        unsafe { __cpuid_count(leaf, 0) }
    }

    fn is_amd() -> bool {
        let first = cpuid(0);
        let vendor = [first.ebx, first.edx, first.ecx].map(u32::to_le_bytes);
        vendor.as_flattened() == b"AuthenticAMD"
    }

    /// True if the processor has the instructions and `clflushopt`, and the system keeps their
    /// registers.
    fn has_instructions() -> bool {
        const OSXSAVE: u32 = 1 << 27;
        const AVX512F: u32 = 1 << 16;
        const AVX512VL: u32 = 1 << 31;
        const CLFLUSHOPT: u32 = 1 << 23;
        const ALL: u32 = AVX512F | AVX512VL | CLFLUSHOPT;
        // XMM, YMM, the masks, and both parts of ZMM.
        const KEPT: u64 = 0b1110_0110;
        cpuid(0).eax >= 7
            && cpuid(1).ecx & OSXSAVE != 0
            && cpuid(7).ebx & ALL == ALL
            // SAFETY: the system has turned XSAVE on.
            && unsafe { kept() } & KEPT == KEPT
    }

    /// The registers that the system keeps.
    ///
    /// # Safety
    /// The system has turned XSAVE on.
    #[target_feature(enable = "xsave")]
    unsafe fn kept() -> u64 {
        // SAFETY: as the caller says.
        unsafe { _xgetbv(0) }
    }

    /// Stores nothing to a word of each line.
    ///
    /// # Safety
    /// [`work`] is true.
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) unsafe fn own(at: usize, bytes: usize) {
        for ahead in (0..bytes).step_by(LINE) {
            // SAFETY: the mask is empty, so the store writes nothing, and the processor reports no
            // fault for any address.
            unsafe {
                core::arch::asm!(
                    "kxorw k1, k1, k1",
                    "vmovdqu32 xmmword ptr [{}]{{k1}}, xmm0",
                    in(reg) at.wrapping_add(ahead),
                    out("k1") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Also for addresses that nobody may write to, or that do not exist.
    #[test]
    fn to_own_lines_changes_no_byte_and_touches_no_address() {
        let mut bytes = [0_u8; 300];
        bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
        let before = bytes;
        for skip in [0, 1, 63] {
            own(bytes[skip..].as_ptr(), bytes.len() - skip);
        }
        assert_eq!(bytes, before);
        static CONSTANT: [u8; 64] = [7; 64];
        own(CONSTANT.as_ptr(), CONSTANT.len());
        own(core::ptr::null(), 4 * LINE);
        own(core::ptr::without_provenance(usize::MAX - 100), 2 * LINE);
        assert_eq!(core::hint::black_box(CONSTANT), [7; 64]);
    }

    #[test]
    fn a_flush_changes_no_byte() {
        let bytes: [u8; 300] = core::array::from_fn(|n| n as u8);
        for skip in [0, 1, 63] {
            // SAFETY: they are readable.
            unsafe { flush(bytes[skip..].as_ptr(), bytes.len() - skip) };
        }
        assert!(core::hint::black_box(bytes).iter().enumerate().all(|(n, b)| *b == n as u8));
    }
}
