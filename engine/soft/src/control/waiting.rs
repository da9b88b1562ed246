//! Ends of connections that wait for a queue pair without an id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use doorbell_fabric::{CmError, QpFields};

use super::wire::Instance;
use crate::QpControl;

/// Names a connection when its queue pair goes to RTR.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Token {
    /// The peer's device.
    pub(super) instance: Instance,
    /// The peer's queue pair.
    pub(super) qp: u32,
    /// The number of the first packet.
    pub(super) psn: u32,
}

/// An end of a connection that can be joined to a queue pair.
pub(super) trait JoinQp: Send + Sync {
    /// Joins the queue pair to the connection that the fields belong to.
    fn join_qp(&self, qp: &QpControl, fields: &QpFields) -> Result<(), CmError>;
}

/// Ends that wait for a queue pair.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<Token, Weak<dyn JoinQp>>>);

impl Waiting {
    pub(super) fn add(&self, token: Token, end: Weak<dyn JoinQp>) {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, end| end.strong_count() > 0);
        table.insert(token, end);
    }

    pub(super) fn find(&self, token: &Token) -> Option<Arc<dyn JoinQp>> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(token)?.upgrade()
    }

    /// The end has its queue pair.
    pub(super) fn remove(&self, token: &Token) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.remove(token);
    }
}
