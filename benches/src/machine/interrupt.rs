//! Ctrl-C: the first one ends the measuring, and what was measured so far is reported; the second
//! one ends the program.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::error::Failure;

/// Exit code of a run that Ctrl-C ended, as a shell has it.
const CODE: u8 = 130;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// From now on the first Ctrl-C is noted, and the second one ends the program.
///
/// # Errors
/// The system refused.
pub(crate) fn watch() -> Result<(), Failure> {
    let watched = flag::register_conditional_shutdown(SIGINT, CODE.into(), Arc::clone(&ASKED));
    watched.and_then(|_| flag::register(SIGINT, Arc::clone(&ASKED))).map(drop).map_err(refused)
}

/// From now on Ctrl-C does nothing here: the process that started this one reports.
///
/// # Errors
/// The system refused.
pub(crate) fn ignore() -> Result<(), Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    flag::register(SIGINT, flag).map(drop).map_err(refused)
}

fn refused(error: io::Error) -> Failure {
    Failure::system("take Ctrl-C", &error, "leave the program to its end")
}

/// True after Ctrl-C: end what is being measured.
#[inline]
pub(crate) fn is_asked() -> bool {
    // Relaxed: the flag carries nothing else, and a little later is soon enough.
    ASKED.load(Ordering::Relaxed)
}

/// # Errors
/// Ctrl-C ended the run: `done` of `all` figures were reported.
pub(crate) fn check(done: usize, all: &str) -> Result<(), Failure> {
    match is_asked() {
        true => Err(Failure::with_code(CODE, format!("interrupted: {done} {all} were measured"))),
        false => Ok(()),
    }
}
