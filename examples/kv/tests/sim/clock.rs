//! The clock of a simulation.

use std::cell::Cell;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The server's clock is ahead of the virtual time by this.
pub(crate) const AHEAD: u64 = 5_000_000_000;

/// The virtual time of this thread's simulation, in nanoseconds.
pub(crate) fn now() -> u64 {
    NOW.get()
}

/// Sets it.
pub(crate) fn set_now(now_ns: u64) {
    NOW.set(now_ns);
}
