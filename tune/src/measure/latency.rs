//! The physical floor: the time that a flag takes from one pinned thread to another. No message
//! between the two cores can be faster. A hypervisor may change it during a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::figures::MeasureError;
use crate::pin::pin;

/// Round trips in one piece of the measurement.
const ROUNDS: u64 = 1000;

/// Pieces. The result is their median, so that a single interruption does not count.
const PIECES: u64 = 15;

/// A flag alone on two cache lines, because the prefetcher may fetch pairs.
#[repr(align(128))]
struct Flag(AtomicU64);

/// Half the round trip of a flag between two cores, nanoseconds. This is the least that a message
/// between them can take.
///
/// # Errors
/// This thread may not use one of the cores, or they are the same.
pub fn floor(cores: [usize; 2]) -> Result<f64, MeasureError> {
    if cores[0] == cores[1] {
        return Err(MeasureError::Same(cores[0]));
    }
    let (ping, pong) = (Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0)));
    thread::scope(|scope| {
        // Without a buffer: once the send returns, the other thread is running.
        let (ready, is_ready) = mpsc::sync_channel(0);
        let (ping, pong) = (&ping.0, &pong.0);
        let here = scope.spawn(move || {
            pin(cores[0])?;
            // Then the other thread has failed, and returns its own error.
            if is_ready.recv().is_err() {
                return Ok(0.0);
            }
            Ok(median(bounce(ping, pong)))
        });
        let there = scope.spawn(move || {
            pin(cores[1])?;
            if ready.send(()).is_err() {
                return Ok(());
            }
            for round in 1..=ROUNDS * PIECES {
                await_flag(ping, round);
                pong.store(round, Ordering::Release);
            }
            Ok(())
        });
        let lost = |_| MeasureError::Lost;
        let there: Result<(), MeasureError> = there.join().map_err(lost)?;
        let here: Result<f64, MeasureError> = here.join().map_err(lost)?;
        there.and(here)
    })
}

/// The floor between each two cores, nanoseconds.
pub(super) fn matrix(cpus: &[usize]) -> Result<Vec<Vec<Option<f64>>>, MeasureError> {
    let mut matrix = vec![vec![None; cpus.len()]; cpus.len()];
    for from in 0..cpus.len() {
        for to in from + 1..cpus.len() {
            let half = Some(floor([cpus[from], cpus[to]])?);
            (matrix[from][to], matrix[to][from]) = (half, half);
        }
    }
    Ok(matrix)
}

/// Nanoseconds of half a round trip, for each piece.
fn bounce(ping: &AtomicU64, pong: &AtomicU64) -> Vec<f64> {
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
    fn two_cores_have_a_floor_and_a_core_that_is_not_there_is_an_error() {
        let Ok(cores) = crate::choose(2) else {
            return println!("skipped: this machine has one core");
        };
        assert!(floor([cores[0], cores[1]]).unwrap() > 0.0);
        assert!(floor([cores[0], 1 << 19]).unwrap_err().to_string().contains("core 524288"));
        assert!(matches!(floor([cores[0]; 2]), Err(MeasureError::Same(_))));
        assert!(floor([1 << 19, cores[0]]).unwrap_err().to_string().contains("core 524288"));
    }

    #[test]
    fn a_matrix_has_every_pair_once_both_ways() {
        let Ok(mut cores) = crate::choose(2) else {
            return println!("skipped: this machine has one core");
        };
        cores.sort_unstable();
        let matrix = matrix(&cores).unwrap();
        assert!(matrix[0][1].unwrap() > 0.0 && matrix[0][1] == matrix[1][0]);
        assert_eq!((matrix[0][0], matrix[1][1]), (None, None));
    }
}
