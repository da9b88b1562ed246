//! [`Failure`]: why a command ends, in one line that says what failed, why, and what to do.

use std::fmt;
use std::io::{self, Write};

/// Exit code of a command that failed.
const FAILED: u8 = 1;

/// Why a command ends, in one line, and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn new(text: impl fmt::Display) -> Failure {
        Failure { text: text.to_string().replace('\n', " "), code: FAILED }
    }

    /// The same failure with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}

/// Prints to standard output.
///
/// # Errors
/// Writing failed. A reader that has closed its pipe is no error.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error. An error there is ignored, because it could not be reported.
pub(crate) fn warn(text: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "tune: {text}");
}
