//! The error of connection manager calls.

use doorbell_engine::error::{Code, SetupError};
use doorbell_engine::wr::{PostCause, PostError};

/// A connection manager call failed. Says what was asked, what the answer was, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CmError(SetupError);

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

    /// From the errno a system call left.
    pub fn last_os(asked: impl Into<String>) -> CmError {
        CmError::from_io(asked, &std::io::Error::last_os_error())
    }

    /// From an error of the standard library.
    pub fn from_io(asked: impl Into<String>, error: &std::io::Error) -> CmError {
        let code = error.raw_os_error().map_or(Code::Errno(5), Code::from_errno);
        CmError::new(code, asked, error.to_string())
    }
}

impl From<SetupError> for CmError {
    fn from(error: SetupError) -> CmError {
        CmError(error)
    }
}

/// A list post stopped: what was not taken is still in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device refused a request: {cause}")]
pub struct PostFailed {
    /// Why the first of the rest was refused.
    pub cause: PostCause,
}

impl PostFailed {
    /// There is no queue pair, or its state does not allow it.
    pub(crate) fn state() -> PostFailed {
        PostFailed { cause: PostCause::State }
    }
}

impl From<PostError> for PostFailed {
    fn from(error: PostError) -> PostFailed {
        PostFailed { cause: error.cause }
    }
}

impl From<PostFailed> for CmError {
    fn from(failed: PostFailed) -> CmError {
        let code = Code::from_errno(failed.cause.errno());
        CmError::new(code, "post a request", failed.cause.to_string())
    }
}

/// Something still uses what was to be destroyed; it comes back.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct InUse<T> {
    /// What uses it: `Busy`.
    pub cause: CmError,
    /// What was to be destroyed.
    pub back: T,
}

/// Something could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct NotChanged<T> {
    /// Why.
    pub cause: CmError,
    /// What was to be changed, as it was; none if the device has lost it.
    pub back: Option<T>,
}

/// A post was refused; what was to be posted comes back.
#[derive(Debug, thiserror::Error)]
#[error("the device refused the request: {cause}")]
pub struct Refused<T> {
    /// Why.
    pub cause: PostCause,
    /// The buffer.
    pub back: Option<T>,
}

impl<T> From<Refused<T>> for CmError {
    fn from(refused: Refused<T>) -> CmError {
        PostFailed { cause: refused.cause }.into()
    }
}
