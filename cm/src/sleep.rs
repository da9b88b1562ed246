//! Workers that sleep while idle.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use doorbell_engine::worker::{Handler, Worker};
use doorbell_seam::provider::Provider;

use crate::wait::readable;

/// The longest sleep between two looks for ended peers.
const LOOK: Duration = Duration::from_millis(100);

/// Turns a worker until `stop` is true. After `spin` turns in a row that find nothing, its thread
/// sleeps until there is a completion, mail from the control plane, or work from a handle; nothing
/// is missed meanwhile. `limit` bounds each sleep, and so the delay until `stop` is noticed; on a
/// device that cannot wake anyone it also bounds the delay of a completion. To end at once, set
/// `stop` and then submit work.
///
/// A sleep and its end are system calls on both sides, some microseconds of latency: `spin` is the
/// number of turns, of some ten nanoseconds each, that a thread spends to avoid them.
///
/// A worker that has a waker already keeps it; to wake this sleep, it must ring [`Worker::bell`].
/// This loop does not tell the worker the time: a worker with timers needs a loop of its caller's
/// own, with [`Worker::rest_armed`] in it.
pub fn run_sleeping<P: Provider, H: Handler<P>>(
    worker: &mut Worker<P, H>,
    stop: &AtomicBool,
    spin: u64,
    limit: Duration,
) {
    // A worker whose control plane is not stepped looks for ended peers each time it sleeps.
    let limit = limit.min(LOOK);
    let me = thread::current();
    match worker.bell() {
        Some(bell) => worker.set_waker(Box::new(move || bell.ring())),
        None => worker.set_waker(Box::new(move || me.unpark())),
    }
    worker.run_resting(stop, spin, |fds| match fds {
        // However the wait ends, the worker turns, and sleeps again if there is nothing.
        Some(fds) => drop(readable(&[fds.device, fds.queue.unwrap_or(fds.device)], Some(limit))),
        None => thread::park_timeout(limit),
    });
}
