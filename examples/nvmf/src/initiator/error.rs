//! Errors of the host's side.

use doorbell::CmError;

use crate::wire::cm::Reject;
use crate::wire::status::Status;

/// Why something failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection manager or the device failed.
    #[error("{0}")]
    Cm(#[from] CmError),
    /// The target rejected the queue pair.
    #[error("{0}")]
    Rejected(Reject),
    /// The target answered with an error.
    #[error("the target refused {command}: {status}")]
    Refused {
        /// What was asked.
        command: &'static str,
        /// The status.
        status: Status,
    },
    /// All commands of the queue are in flight: poll first.
    #[error("the queue is full; poll completions and submit again")]
    Full,
    /// The connection is lost.
    #[error("the connection to the target is lost: {0}")]
    Lost(&'static str),
    /// No answer came in time.
    #[error("the target did not answer {0} in time")]
    TimedOut(&'static str),
    /// The target breaks the protocol, or lacks something that is needed.
    #[error("the target cannot be used: {0}")]
    Unfit(&'static str),
}

impl Error {
    /// True if a new connection may help.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Cm(_) | Error::Lost(_) | Error::TimedOut(_))
    }
}
