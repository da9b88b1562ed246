//! What the soft device asks of Linux: clocks, random bytes, bells and barriers.

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
        bell: files::bell,
        barrier: || sys::membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED),
        neighbours: Some(neighbours()),
    })
}

/// Lets the barriers of its peers ([`Host::barrier`]) reach this process. Kernels before 4.16 have
/// none: there a sleeping peer may miss a ring, and wakes at the limit of its sleep instead.
fn register_for_barriers() {
    sys::membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}
