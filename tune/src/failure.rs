//! What ends the command: one line, which says what was asked, what the answer was, and the cure.

use std::fmt;
use std::io::{self, Write};

/// Exit code of what did not work.
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

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(error)
    }
}

/// Prints on standard output.
///
/// # Errors
/// The disk is full. A reader who has gone has read enough.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line on standard error. If nobody reads there, there is nobody to tell.
pub(crate) fn complain(text: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "tune: {text}");
}
