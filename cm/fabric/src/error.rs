//! The error of connection manager calls.

use std::fmt;

use doorbell_seam::error::{Code, SetupError};

/// What to do about EMFILE and ENFILE: the process, or the system, may open no more files.
pub(crate) const MORE_FILES: &str = "close files, or raise ulimit -n";

pub(crate) fn is_out_of_files(code: Code) -> bool {
    matches!(code.errno(), 24 | 23)
}

/// A connection manager call failed. The error says what was asked, what the answer was, and what
/// to do. Its `Debug` form is the same text, because a `main` that returns an error prints that.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CmError(SetupError);

impl fmt::Debug for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl CmError {
    /// `asked`: what was wanted, with its figures; `answer`: what the system said.
    pub fn new(code: Code, asked: impl Into<String>, answer: impl Into<String>) -> CmError {
        CmError(SetupError::new(code, asked, answer))
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn cure(self, cure: impl Into<String>) -> CmError {
        CmError(self.0.cure(cure))
    }

    /// The kind of failure, with its errno.
    pub fn code(&self) -> Code {
        self.0.code()
    }

    /// Makes an error from the errno of a system call.
    pub fn last_os(asked: impl Into<String>) -> CmError {
        CmError::from_io(asked, &std::io::Error::last_os_error())
    }

    /// Makes one from an error of the standard library.
    pub fn from_io(asked: impl Into<String>, error: &std::io::Error) -> CmError {
        let code = error.raw_os_error().map_or(Code::Errno(5), Code::from_errno);
        let failed = CmError::new(code, asked, error.to_string());
        if is_out_of_files(code) { failed.cure(MORE_FILES) } else { failed }
    }
}

impl From<SetupError> for CmError {
    fn from(error: SetupError) -> CmError {
        CmError(error)
    }
}

/// An object that is still in use could not be destroyed; it comes back.
#[derive(thiserror::Error)]
#[error("{cause}")]
pub struct InUse<T> {
    /// What uses it: `Busy`.
    pub cause: CmError,
    /// The object.
    pub back: T,
}

impl<T> fmt::Debug for InUse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
