//! Moving a thread to a core.

use std::io;

use core_affinity::CoreId;
use thiserror::Error;

use crate::list::CoreList;
use crate::mask;

/// `core_affinity` fills a `cpu_set_t`, and ends the process for a core that is not in one.
const CPU_SET: usize = 1024;

/// Why a thread is not where it was to be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PinError {
    /// The thread may not run there, or there is no such core.
    #[error(
        "core {core} is not one this program may use; choose from {} (see taskset(1))",
        CoreList(allowed)
    )]
    NotAllowed {
        /// The core asked for.
        core: usize,
        /// The cores allowed, ascending.
        allowed: Vec<usize>,
    },
    /// The kernel would not.
    #[error("asked to run on core {core}, the system answered: {source}")]
    System {
        /// The core asked for.
        core: usize,
        /// What sched_setaffinity(2) answered.
        source: io::Error,
    },
    /// The kernel said yes, but the thread's mask is another.
    #[error("asked to run on core {core}, got {}; is another program moving it?", CoreList(got))]
    Elsewhere {
        /// The core asked for.
        core: usize,
        /// The cores the thread may run on now.
        got: Vec<usize>,
    },
}

/// Moves the calling thread to `core` and reads back whether it is there. Threads and processes
/// it starts later inherit that.
///
/// # Errors
/// [`PinError`]; the thread stays where it was, except for [`PinError::Elsewhere`].
pub fn pin(core: usize) -> Result<(), PinError> {
    let allowed = mask::cores();
    if !allowed.contains(&core) {
        return Err(PinError::NotAllowed { core, allowed });
    }
    let system = |source| PinError::System { core, source };
    if core < CPU_SET {
        if !core_affinity::set_for_current(CoreId { id: core }) {
            return Err(system(io::Error::last_os_error()));
        }
    } else {
        mask::set(&[core]).map_err(system)?;
    }
    match mask::cores() {
        got if got == [core] => Ok(()),
        got => Err(PinError::Elsewhere { core, got }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// On a thread of its own, which ends with its mask.
    fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_pinned_thread_sees_its_core_alone_and_others_see_all() {
        let before = mask::cores();
        for &core in &before {
            assert_eq!(apart(|| pin(core).map(|()| mask::cores())).unwrap(), [core]);
        }
        assert_eq!(mask::cores(), before);
    }

    #[test]
    fn the_way_past_1024_works_below_it_too() {
        let core = mask::cores()[0];
        assert_eq!(apart(|| mask::set(&[core]).map(|()| mask::cores())).unwrap(), [core]);
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error_that_lists_those_that_are() {
        let allowed = mask::cores();
        for core in [1023, 1024, 1 << 19] {
            if allowed.contains(&core) {
                continue;
            }
            let error = apart(|| pin(core)).unwrap_err();
            assert!(matches!(error, PinError::NotAllowed { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&CoreList(&allowed).to_string()), "{text}");
        }
    }
}
