//! What the soft device asks of Linux: clocks, random bytes, notifiers and barriers.

use std::io;
use std::time::Duration;

use super::clock::{monotonic_ns, wallclock_ns};
use super::files;
use super::neighbours::neighbours;
use super::sys::{self, Uncancelled};
use crate::{Host, Threads};

/// The host of every soft device of this process, with keys of its own.
pub(super) fn host() -> io::Result<Host> {
    let mut seed = [0; 32];
    sys::random(&mut seed)?;
    register_for_barriers();
    Ok(Host {
        clock: monotonic_ns,
        wallclock: wallclock_ns,
        seed,
        name_file: |memory| files::name_of(memory.fd()?),
        notifier: files::notifier,
        barrier: || {
            sys::membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        },
        threads: threads(),
        neighbours: Some(neighbours()),
    })
}

/// Lets the barriers of its peers ([`Host::barrier`]) reach this process. Kernels before 4.16 have
/// none. There a sleeping peer may miss a wake-up, and then wakes at the limit of its sleep.
fn register_for_barriers() {
    sys::membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

/// The threads of this process. Without barriers no lock belongs to one of them.
pub(crate) fn threads() -> Threads {
    let rest = std::thread::yield_now;
    let uncancelled = |work: &mut dyn FnMut()| {
        let _uncancelled = Uncancelled::new();
        work();
    };
    match sys::membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
        true => Threads { numbered: true, barrier: thread_barrier, rest, uncancelled },
        false => Threads { rest, uncancelled, ..Threads::UNKNOWN },
    }
}

/// A long time for a processor: by then others see what it has stored.
const BY_THEN: Duration = Duration::from_millis(10);

/// A child of fork, or a program that has forbidden itself the call, may not have it any more.
fn thread_barrier() {
    let passes = || sys::membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    let registers = || sys::membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    let passed = passes() || registers() && passes();
    if !passed {
        let _uncancelled = Uncancelled::new();
        std::thread::sleep(BY_THEN);
    }
}
