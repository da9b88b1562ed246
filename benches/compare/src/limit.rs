//! What the machine itself can do: memcpy on one core or on both, and the copy of lines that the
//! other core has just written, which no message between the two cores can do without.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "lfence is an intrinsic"))]

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use doorbell_tune as tune;

use crate::clock::{self, Clock};
use crate::error::Failure;
use crate::payload;
use crate::peer::Figure;
use crate::timing;

/// Bytes and slots of a buffer, as our own sides have them for messages that they do not touch.
const WINDOW_BYTES: usize = 256 << 10;
const SLOTS_MAX: usize = 16;
const SLOTS_MIN: usize = 4;

/// Bytes copied between two looks at the clock.
const LOOK_BYTES: usize = 256 << 10;

/// The most copies that are timed.
const TIMES_MAX: usize = 1 << 20;

/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Lines that the other core has just written.
    Owned,
    /// From slot to slot on one core.
    Memcpy,
    /// The same on both cores at once: the sum.
    MemcpyBoth,
}

/// The role of this process.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    #[arg(long, value_enum)]
    kind: Kind,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    seconds: f64,
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
}

/// Measures, and prints the figure.
pub(crate) fn run(args: &LimitArgs) -> Result<(), Failure> {
    let [here, there] = args.cores[..] else {
        return Err(Failure::new("--cores: two, like 1,0"));
    };
    let time = Duration::from_secs_f64(args.seconds);
    let figure = match args.kind {
        Kind::Owned => owned(args.size, time, [here, there])?,
        Kind::Memcpy => on_cores(args.size, time, &[there])?,
        Kind::MemcpyBoth => on_cores(args.size, time, &[here, there])?,
    };
    figure.print()
}

/// A flag alone on two cache lines, because the prefetcher may fetch pairs.
#[repr(align(128))]
struct Flag(AtomicU64);

impl Flag {
    /// Waits for a number that is not lower. False if it does not come.
    fn await_number(&self, number: u64) -> bool {
        let start = Instant::now();
        for polls in 1_u64.. {
            if self.0.load(Ordering::Acquire) >= number {
                break;
            }
            hint::spin_loop();
            if polls % (1 << 20) == 0 && start.elapsed() > PATIENCE {
                return false;
            }
        }
        true
    }
}

/// The two cores have the buffer in turn: one writes all of it, the other copies it. Only the copy
/// is timed.
fn owned(size: usize, time: Duration, [here, there]: [usize; 2]) -> Result<Figure, Failure> {
    let buffer = Mutex::new(vec![0_u8; size]);
    let (written, copied) = (Flag(AtomicU64::new(0)), Flag(AtomicU64::new(0)));
    // `copied` becomes this when no more is to be written.
    const OVER: u64 = u64::MAX;
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            tune::pin(here)?;
            for number in 1.. {
                let mut bytes = buffer.lock().unwrap_or_else(PoisonError::into_inner);
                payload::fill(&mut bytes, number);
                drop(bytes);
                written.0.store(number, Ordering::Release);
                if !copied.await_number(number) || copied.0.load(Ordering::Acquire) == OVER {
                    break;
                }
            }
            Ok::<(), Failure>(())
        });
        let copying = scope.spawn(|| {
            let done = tune::pin(there).map_err(Failure::from).and_then(|()| {
                copies(&buffer, size, time, |number| {
                    copied.0.store(number - 1, Ordering::Release);
                    written.await_number(number)
                })
            });
            copied.0.store(OVER, Ordering::Release);
            done
        });
        let lost = |_| Failure::new("a thread broke off");
        writing.join().map_err(lost)??;
        copying.join().map_err(lost)?
    })
}

/// Copies the buffer whenever `next` says that it was written again, and times each copy.
fn copies(
    buffer: &Mutex<Vec<u8>>,
    size: usize,
    time: Duration,
    next: impl Fn(u64) -> bool,
) -> Result<Figure, Failure> {
    let clock = Clock::new();
    let (mut to, mut times) = (vec![1_u8; size], vec![1_u64; TIMES_MAX]);
    let warm = clock.ticks_in(time / 5);
    let (first, limit) = (clock::ticks(), clock.ticks_in(time));
    let (mut count, mut number) = (0, 0);
    while count < TIMES_MAX {
        number += 1;
        if !next(number) {
            return Err(Failure::new("the other core wrote nothing"));
        }
        let bytes = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        settle();
        let start = clock::ticks();
        hint::black_box(&mut to[..]).copy_from_slice(&bytes);
        hint::black_box(&mut to[..]);
        settle();
        let end = clock::ticks();
        drop(bytes);
        let passed = end.saturating_sub(first);
        if passed >= warm {
            times[count] = end.saturating_sub(start);
            count += 1;
        }
        if passed >= warm + limit {
            break;
        }
    }
    let figure = timing::median_and_mean(&mut times[..count], clock.tick_ns);
    Ok(Figure { messages_per_second: figure.mean_ns.map(|ns| 1e9 / ns), ..figure })
}

/// Waits until all bytes that were asked for have come. Without this the processor reads the clock
/// while they are on their way.
#[inline(always)]
fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Copies a second on those cores at once, the sum.
fn on_cores(size: usize, time: Duration, cores: &[usize]) -> Result<Figure, Failure> {
    let rate = thread::scope(|scope| {
        let threads: Vec<_> = cores
            .iter()
            .map(|core| {
                scope.spawn(move || {
                    tune::pin(*core)?;
                    Ok::<f64, Failure>(memcpy(size, time))
                })
            })
            .collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Failure::new("a thread broke off"))?);
        rates.sum::<Result<f64, Failure>>()
    })?;
    Ok(Figure { messages_per_second: Some(rate), ..Figure::default() })
}

/// Copies a second from slot to slot.
fn memcpy(size: usize, time: Duration) -> f64 {
    let slots = (WINDOW_BYTES / size.max(1)).clamp(SLOTS_MIN, SLOTS_MAX);
    let (from, mut to) = (vec![1_u8; size * slots], vec![2_u8; size * slots]);
    let each = (LOOK_BYTES / size.max(1)).clamp(1, 1024);
    let mut number = 0;
    let mut copy_for = |time: Duration| {
        let (start, mut copied) = (Instant::now(), 0_u64);
        loop {
            for _ in 0..each {
                let at = number % slots * size;
                number += 1;
                let to = hint::black_box(&mut to[at..at + size]);
                to.copy_from_slice(hint::black_box(&from[at..at + size]));
            }
            copied += each as u64;
            let passed = start.elapsed();
            if passed >= time {
                return copied as f64 / passed.as_secs_f64();
            }
        }
    };
    copy_for(time / 5);
    copy_for(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_time_and_more_bytes_take_more() {
        let Ok(cores) = tune::choose(2) else {
            return println!("skipped: this machine has one core");
        };
        let time = Duration::from_millis(20);
        let [small, large] =
            [64, 1 << 20].map(|size| owned(size, time, [cores[0], cores[1]]).unwrap());
        assert!(large.p50_ns.unwrap() > small.p50_ns.unwrap());
        assert!(large.messages_per_second.unwrap() < 1e7);
        for cores in [&cores[..1], &cores[..2]] {
            assert!(on_cores(4096, time, cores).unwrap().messages_per_second.unwrap() > 0.0);
        }
        assert!(owned(64, time, [cores[0], 1 << 19]).is_err(), "there is no such core");
    }
}
