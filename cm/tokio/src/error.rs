//! Why something did not succeed.

use std::sync::Arc;

use doorbell::worker::{DownReason, SendError};

/// The worker has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has ended: {why}")]
pub struct Ended {
    why: Arc<str>,
    asked: bool,
}

impl Ended {
    /// The program asked for it.
    pub(crate) fn asked() -> Ended {
        Ended { why: "the program closed it".into(), asked: true }
    }

    /// It failed.
    pub(crate) fn failed(why: &str) -> Ended {
        Ended { why: why.into(), asked: false }
    }

    /// True if the program asked for the end; false if something failed.
    pub fn was_asked(&self) -> bool {
        self.asked
    }
}

/// Why a send or a request has no result. Except after [`Failed::NotSent`], the peer may have
/// received the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// No answer came in time.
    #[error("no answer came before the deadline")]
    DeadlinePassed,
    /// The connection has ended.
    #[error("the connection has ended: {0}")]
    PeerDown(DownReason),
    /// The worker did not take it.
    #[error("it was not sent: {0}")]
    NotSent(SendError),
    /// The worker has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}
