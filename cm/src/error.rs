//! Errors of refused posts and changes, with what they give back.

use std::fmt;

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::wr::{PostCause, PostError};

/// A list post stopped: requests that were not taken are still in the list.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device refused a request: {cause}")]
pub struct PostFailed {
    /// Why the first of the rest was refused.
    pub cause: PostCause,
}

impl fmt::Debug for PostFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PostFailed {
    /// For a post without a queue pair, or in a state that does not allow it.
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

/// Something could not be changed.
#[derive(thiserror::Error)]
#[error("{cause}")]
pub struct NotChanged<T> {
    /// Why.
    pub cause: CmError,
    /// The unchanged object; `None` if the device has lost it.
    pub back: Option<T>,
}

impl<T> fmt::Debug for NotChanged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A post was refused; what was not posted comes back.
#[derive(thiserror::Error)]
#[error("the device refused the request: {cause}")]
pub struct Refused<T> {
    /// Why.
    pub cause: PostCause,
    /// The buffer.
    pub back: Option<T>,
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> From<Refused<T>> for CmError {
    fn from(refused: Refused<T>) -> CmError {
        PostFailed { cause: refused.cause }.into()
    }
}
