//! What the soft device asks of Linux: clocks, random bytes, notifiers and barriers.

use std::io;

use super::clock::{monotonic_ns, wallclock_ns};
use super::files;
use super::neighbours::neighbours;
use super::sys;
use crate::Host;

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
        barrier: || sys::membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED),
        neighbours: Some(neighbours()),
    })
}

/// Lets the barriers of its peers ([`Host::barrier`]) reach this process. Kernels before 4.16 have
/// none. There a sleeping peer may miss a wake-up, and then wakes at the limit of its sleep.
fn register_for_barriers() {
    sys::membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}
