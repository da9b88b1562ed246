//! The clock of single round trips: the time stamp counter, or `Instant` on processors without one.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "rdtsc is an intrinsic"))]

use std::time::{Duration, Instant};

/// How long the counter is compared with `Instant`. A reading of either is off by some ten
/// nanoseconds, so after 20 ms the error is a millionth.
const CALIBRATION: Duration = Duration::from_millis(20);

/// The length of a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Nanoseconds per tick.
    pub(crate) tick_ns: f64,
    /// The usual step between two readings, in nanoseconds: the counter's step or the time of a
    /// reading, whichever is longer. Single times are no finer.
    pub(crate) step_ns: f64,
}

impl Clock {
    /// Name of the source.
    pub(crate) const SOURCE: &'static str =
        if cfg!(target_arch = "x86_64") { "tsc" } else { "instant" };

    /// Calibrates. Takes 20 ms.
    pub(crate) fn new() -> Clock {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < CALIBRATION {}
        let passed = start.elapsed().as_nanos() as f64;
        let tick_ns = passed / (ticks() - first).max(1) as f64;
        Clock { tick_ns, step_ns: usual_step() as f64 * tick_ns }
    }

    /// Ticks of a duration.
    pub(crate) fn ticks_in(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 / self.tick_ns) as u64
    }
}

/// The median step between consecutive readings, in ticks.
fn usual_step() -> u64 {
    let pair = || {
        let (one, two) = (ticks(), ticks());
        two.saturating_sub(one)
    };
    let mut steps: Vec<u64> =
        std::iter::repeat_with(pair).take(10_000).filter(|step| *step > 0).collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or(1)
}

/// Reads the counter, in ticks.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it reads a register.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the clock, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_instant_agree() {
        let clock = Clock::new();
        assert!(clock.tick_ns > 0.0 && clock.step_ns >= clock.tick_ns * 0.99, "{clock:?}");
        let (start, first) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(20));
        let (by_ticks, by_instant) = (ticks() - first, start.elapsed());
        let ratio = by_ticks as f64 / clock.ticks_in(by_instant) as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }
}
