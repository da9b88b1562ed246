//! [`pin()`]: moves a thread to a core.

use std::fmt;
use std::io;

use core_affinity::CoreId;
use thiserror::Error;

use crate::list::CoreList;
use crate::mask;

/// Size of a `cpu_set_t`, which `core_affinity` fills; it aborts for a core beyond it.
const CPU_SET: usize = 1024;

/// Why a thread was not pinned.
#[derive(Error)]
#[non_exhaustive]
pub enum PinError {
    /// The thread may not run on the core, or there is no such core.
    #[error(
        "this program may not use core {core}; choose from {} (see taskset(1))",
        CoreList(allowed)
    )]
    NotAllowed {
        /// The core asked for.
        core: usize,
        /// The cores allowed, ascending.
        allowed: Vec<usize>,
    },
    /// The kernel refused.
    #[error("cannot run on core {core}: {source}")]
    System {
        /// The core asked for.
        core: usize,
        /// The error of sched_setaffinity(2).
        source: io::Error,
    },
    /// The kernel reported success, but the thread's mask is a different one.
    #[error(
        "asked to run on core {core}, but the thread runs on {}; is another program moving it?",
        CoreList(got)
    )]
    Elsewhere {
        /// The core asked for.
        core: usize,
        /// The cores that the thread may run on now.
        got: Vec<usize>,
    },
}

impl fmt::Debug for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Moves the calling thread to `core`, and checks that it is there. Threads and processes that it
/// starts later inherit that.
///
/// ```
/// std::thread::spawn(|| {
///     let core = doorbell_tune::choose(1).expect("one core is allowed")[0];
///     doorbell_tune::pin(core).expect("the core is allowed");
///     assert_eq!(doorbell_tune::cores(), [core]);
/// })
/// .join()
/// .expect("the thread was pinned");
/// ```
///
/// # Errors
/// [`PinError`]. The thread stays where it was, except for [`PinError::Elsewhere`].
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

    /// Runs it in a thread of its own, so that the mask of this one stays.
    fn in_a_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    #[test]
    fn a_pinned_thread_sees_only_its_core_and_others_see_all() {
        let before = mask::cores();
        for &core in &before {
            assert_eq!(in_a_thread(|| pin(core).map(|()| mask::cores())).unwrap(), [core]);
        }
        assert_eq!(mask::cores(), before);
    }

    #[test]
    fn the_path_for_cores_from_1024_on_works_for_lower_ones() {
        let core = mask::cores()[0];
        assert_eq!(in_a_thread(|| mask::set(&[core]).map(|()| mask::cores())).unwrap(), [core]);
    }

    #[test]
    fn a_missing_core_is_an_error_that_lists_the_allowed_ones() {
        let allowed = mask::cores();
        for core in [1023, 1024, 1 << 19] {
            if allowed.contains(&core) {
                continue;
            }
            let error = in_a_thread(|| pin(core)).unwrap_err();
            assert!(matches!(error, PinError::NotAllowed { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&CoreList(&allowed).to_string()), "{text}");
        }
    }
}
