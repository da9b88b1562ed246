//! What ends a run: one line that says what was asked, what the answer was, and the cure.

use std::io::{self, Write};

use doorbell::CmError;
use doorbell::alloc::MapError;
use doorbell::error::SetupError;
use doorbell::worker::SendError;
use doorbell_tune::{ChooseError, MeasureError, PinError};
use thiserror::Error;

/// Why there are no figures, in one line.
#[derive(Debug, Error)]
#[error("{text}")]
pub(crate) struct Failure {
    text: Box<str>,
    /// The exit code of the program.
    pub(crate) code: u8,
}

/// Exit code of a run that is neither good nor bad.
pub(crate) const UNDECIDED: u8 = 3;

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        let text: String = text.into();
        Failure { text: text.replace('\n', " ").trim_end().into(), code: 1 }
    }

    /// Nothing is wrong, but the question could not be answered.
    pub(crate) fn undecided(text: impl Into<String>) -> Failure {
        Failure { code: UNDECIDED, ..Failure::new(text) }
    }

    /// Standard output has said why already; only the exit code is left.
    pub(crate) fn said(code: u8) -> Failure {
        Failure { code, ..Failure::new("") }
    }

    /// True if there is nothing left to say.
    pub(crate) fn is_said(&self) -> bool {
        self.text.is_empty()
    }

    /// With an exit code of its own.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Failure {
        Failure { code, ..Failure::new(text) }
    }

    /// The system refused. `cure`: what to do about it.
    pub(crate) fn system(asked: impl AsRef<str>, answer: &io::Error, cure: &str) -> Failure {
        Failure::new(format!("{}: {answer}; {cure}", asked.as_ref()))
    }
}

/// Prints on standard output.
///
/// # Errors
/// The reader is gone, or the disk is full.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|error| Failure::system("write to standard output", &error, "is the reader gone?"))
}

/// Prints a line on standard error. If nobody reads it, nothing is lost.
pub(crate) fn complain(text: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "doorbell-bench: {text}");
}

impl From<CmError> for Failure {
    fn from(error: CmError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<PinError> for Failure {
    fn from(error: PinError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<ChooseError> for Failure {
    fn from(error: ChooseError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<MeasureError> for Failure {
    fn from(error: MeasureError) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Failure {
        Failure::new(format!("send: {error}; the other side may have ended"))
    }
}
