//! Clocks, and the times of codes.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// `min_rnr_timer` code of new connections: 0.64 ms. (A kernel leaves 655 ms there: QP-21.)
pub(super) const RNR_TIMER_DEFAULT: u8 = 12;

/// Nanoseconds since some moment before the first call; never goes back.
pub(super) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed().as_nanos();
    u64::try_from(passed).unwrap_or(u64::MAX)
}

/// The time of a `min_rnr_timer` code (RC-1), in nanoseconds.
pub(super) fn rnr_timer_ns(code: u8) -> Option<u64> {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS.get(usize::from(code)).map(|hundredths| hundredths * 10_000)
}

/// Nanoseconds since 1970; 0 if the clock is set before that.
pub(super) fn wallclock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
