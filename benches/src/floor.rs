//! The physical floor: two flags that two pinned threads throw back and forth. Below it no
//! message between those cores can go, and the hypervisor may move it under a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell_tune as tune;

use crate::error::Failure;

/// Round trips of one piece, and pieces: their median, so that one interruption does not count.
const ROUNDS: u64 = 1000;
const PIECES: u64 = 15;

/// Below it the two cores are near, in nanoseconds.
const NEAR_NS: f64 = 100.0;

/// How the cores lay to each other before and after a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Floor {
    pub(crate) before_ns: f64,
    pub(crate) after_ns: f64,
}

impl Floor {
    /// The median of both.
    pub(crate) fn ns(&self) -> f64 {
        (self.before_ns + self.after_ns) / 2.0
    }

    /// NEAR, FAR, or MIX if it changed in between.
    pub(crate) fn mode(&self) -> &'static str {
        match (self.before_ns < NEAR_NS, self.after_ns < NEAR_NS) {
            (true, true) => "NEAR",
            (false, false) => "FAR",
            _ => "MIX",
        }
    }
}

/// A flag on a cache line of its own (two, where the prefetcher takes pairs).
#[repr(align(128))]
struct Flag(AtomicU64);

/// Half a round trip between two cores, in nanoseconds.
///
/// # Errors
/// A core that this process may not use.
pub(crate) fn probe(cores: [usize; 2]) -> Result<f64, Failure> {
    let (ping, pong) = (Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0)));
    thread::scope(|scope| {
        // Without a buffer: who has sent knows that the other runs.
        let (ready, is_ready) = mpsc::sync_channel(0);
        let (ping, pong) = (&ping.0, &pong.0);
        let here = scope.spawn(move || {
            tune::pin(cores[0])?;
            // An error here is the other thread's, which says it itself.
            if is_ready.recv().is_err() {
                return Ok(0.0);
            }
            Ok(median(throw(ping, pong)))
        });
        let there = scope.spawn(move || {
            tune::pin(cores[1])?;
            if ready.send(()).is_err() {
                return Ok(());
            }
            for round in 1..=ROUNDS * PIECES {
                await_flag(ping, round);
                pong.store(round, Ordering::Release);
            }
            Ok(())
        });
        let lost = |_| Failure::new("the floor probe broke off");
        let there: Result<(), Failure> = there.join().map_err(lost)?;
        let here: Result<f64, Failure> = here.join().map_err(lost)?;
        there.and(here)
    })
}

fn throw(ping: &AtomicU64, pong: &AtomicU64) -> Vec<f64> {
    let piece = |n: u64| {
        let start = Instant::now();
        for round in n * ROUNDS + 1..=(n + 1) * ROUNDS {
            ping.store(round, Ordering::Release);
            await_flag(pong, round);
        }
        start.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    };
    (0..PIECES).map(piece).collect()
}

#[inline(always)]
fn await_flag(flag: &AtomicU64, round: u64) {
    while flag.load(Ordering::Acquire) != round {}
}

fn median(mut pieces: Vec<f64>) -> f64 {
    pieces.sort_by(f64::total_cmp);
    pieces.get(pieces.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_mix_when_the_cores_moved() {
        let mode = |before_ns, after_ns| Floor { before_ns, after_ns }.mode();
        assert_eq!(mode(50.0, 55.0), "NEAR");
        assert_eq!(mode(240.0, 190.0), "FAR");
        assert_eq!(mode(50.0, 240.0), "MIX");
        assert_eq!(mode(240.0, 50.0), "MIX");
        assert_eq!(Floor { before_ns: 50.0, after_ns: 60.0 }.ns(), 55.0);
    }

    #[test]
    fn two_cores_have_a_floor_and_a_core_that_is_not_there_is_an_error() {
        let Ok(cores) = tune::choose(2) else { return };
        assert!(probe([cores[0], cores[1]]).unwrap() > 0.0);
        assert!(probe([cores[0], 1 << 19]).unwrap_err().to_string().contains("core 524288"));
        assert!(probe([1 << 19, cores[0]]).unwrap_err().to_string().contains("core 524288"));
    }
}
