//! Workers that sleep when nothing comes.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use doorbell_engine::worker::{Handler, Worker};
use doorbell_seam::provider::Provider;

use crate::wait::readable;

/// Turns of a worker until `stop` is true. After `spin` turns in a row that found nothing its
/// thread sleeps until there is a completion, mail of the control plane, or work of a handle;
/// nothing is missed meanwhile. `limit` bounds each sleep, and so how late `stop` is seen; on a
/// device where nobody can be woken, also how late a completion is. Whoever wants the end at once
/// sets `stop` and then submits work.
///
/// A sleep and its end are system calls on both sides, some microseconds of latency: `spin` is
/// for how many turns, of some ten nanoseconds, a thread would rather burn than pay them.
///
/// A worker that has a waker already keeps it; to wake this sleep, it must ring [`Worker::bell`].
/// Nobody tells a worker the time here: one with timers has a loop of its caller's own, with
/// [`Worker::rest_armed`] in it.
pub fn run_sleeping<P: Provider, H: Handler<P>>(
    worker: &mut Worker<P, H>,
    stop: &AtomicBool,
    spin: u64,
    limit: Duration,
) {
    let me = thread::current();
    match worker.bell() {
        Some(bell) => worker.set_waker(Box::new(move || bell.ring())),
        None => worker.set_waker(Box::new(move || me.unpark())),
    }
    worker.run_resting(stop, spin, |fds| match fds {
        // However it ends: the worker turns, and sleeps again if there is nothing.
        Some(fds) => drop(readable(&[fds.device, fds.queue.unwrap_or(fds.device)], Some(limit))),
        None => thread::park_timeout(limit),
    });
}
