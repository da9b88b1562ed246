//! Locks memory, and reports it where the limit does not allow that.

use std::io;

use super::limits;
use super::machine::Machine;
use super::memory::Memory;
use crate::report::Shortfall;

/// Locks `memory` (mlock(2)); returns whether it is locked and, if not, why. The limit is read only
/// after a failure, because mlock(2) changes nothing when the limit is exceeded.
pub(super) fn lock(machine: &Machine, memory: &Memory) -> (bool, Option<Shortfall>) {
    let locked = memory.lock().map_err(|error| {
        let note = limits::lockable(machine, memory.len()).err();
        note.unwrap_or_else(|| shortfall(memory.len(), limits::memlock(machine), &error))
    });
    (locked.is_ok(), locked.err())
}

fn shortfall(len: usize, (limit, held): (Option<u64>, u64), error: &io::Error) -> Shortfall {
    Shortfall::Lock { len, limit, held, errno: error.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_lock_keeps_the_figures() {
        let error = io::Error::from_raw_os_error(libc::ENOMEM);
        let note = shortfall(8192, (Some(4096), 1024), &error);
        let (limit, errno) = (Some(4096), Some(libc::ENOMEM));
        assert_eq!(note, Shortfall::Lock { len: 8192, limit, held: 1024, errno });
    }
}
