//! Workers that sleep while idle.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Handler, Worker};
use doorbell_seam::provider::Provider;

use crate::wait::readable;

/// The longest sleep between two looks for ended peers.
const LOOK: Duration = Duration::from_millis(100);

/// A worker reads the clock for its timers on every 16th turn.
pub(crate) const CLOCK_TURNS: u64 = 16;

/// The clock of [`run_sleeping`]: nanoseconds since it was read first in this process. It never
/// goes back, and is the same for all threads.
pub fn clock_ns() -> u64 {
    static ZERO: OnceLock<Instant> = OnceLock::new();
    ZERO.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Turns a worker until `stop` is true. After `spin` turns in a row that found nothing its thread
/// sleeps until there is a completion, mail of the control plane, or work of a handle; nothing is
/// missed meanwhile. `limit` bounds each sleep, and so how late `stop` is seen; on a device that
/// cannot wake anyone, it also bounds how late a completion is. To end at once, set `stop` and then
/// submit work.
///
/// Credit of a peer wakes nobody, so while something waits for it each sleep lasts 50 µs to 1 ms
/// ([`Armed::look_again`](doorbell_engine::worker::Armed::look_again)).
///
/// The worker's timers run on [`clock_ns`], in nanoseconds: no sleep lasts longer than until the
/// next one.
///
/// A sleep and its end are system calls on both sides, some microseconds of latency: `spin` is the
/// number of turns, of some ten nanoseconds each, that a thread spends to avoid them.
///
/// For another way to wait, such as a set of epoll, write this loop around [`Worker::arm`].
pub fn run_sleeping<P: Provider, H: Handler<P>>(
    worker: &mut Worker<P, H>,
    stop: &AtomicBool,
    spin: u64,
    limit: Duration,
) {
    // A worker whose control plane is not stepped looks for ended peers each time it sleeps.
    let limit = limit.min(LOOK);
    if worker.wake_fds().is_none() {
        let me = thread::current();
        worker.set_waker(Box::new(move || me.unpark()));
    }
    let (mut turns, mut idle) = (0_u64, 0);
    // Acquire: what a thread did before it set `stop` is visible to the caller.
    while !stop.load(Ordering::Acquire) {
        if turns.is_multiple_of(CLOCK_TURNS) {
            worker.advance(clock_ns());
        }
        turns += 1;
        idle = if worker.turn() == 0 { idle + 1 } else { 0 };
        if idle < spin {
            continue;
        }
        worker.advance(clock_ns());
        if let Ok(armed) = worker.arm()
            && !stop.load(Ordering::Acquire)
        {
            let timer = armed.next_timer().map(|at| at.saturating_sub(clock_ns()));
            let timer = timer.map(Duration::from_nanos);
            let wait = timer.into_iter().chain(armed.look_again()).fold(limit, Duration::min);
            // However the wait ends, the worker turns, and sleeps again if there is nothing.
            match armed.fds() {
                Some(fds) => drop(readable(fds.all(), Some(wait))),
                None => thread::park_timeout(wait),
            }
        }
        // The handler must not take the time of falling asleep for the present.
        turns = 0;
    }
}
