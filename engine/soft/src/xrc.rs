//! Extended reliable connections (XRC-1): the sender names a shared receive queue of the
//! receiver's domain in each record that takes a receive.
//!
//! A queue pair that receives has no queues of its own. While it takes a message it has those of
//! the shared receive queue that was named, so that all else goes as on any queue pair; the fast
//! path never sees it. Receiving queue pairs and their receive queues live in the device's shared
//! domain. Each sender has a link of its own: a queue without receives holds up nobody else.

use std_alloc::sync::{Arc, Weak};

use super::command::Command;
use super::domain::Domain;
use super::poller::SoftCq;

/// A domain of extended reliable connections of the soft device. Cloning gives another handle.
#[derive(Clone)]
pub struct SoftXrcd(pub(super) Arc<XrcDomain>);

/// The domain behind its handles.
pub(super) struct XrcDomain {
    /// Unique within the device, never 0.
    pub(super) id: u32,
    /// Where its queue pairs and receive queues live.
    pub(super) home: Arc<Domain>,
}

/// The domain that serves who names none, while anybody has it.
pub(super) type DefaultXrcd = Weak<XrcDomain>;

/// What a shared receive queue has besides if it is of a domain. It leaves the table before
/// anything else of it goes.
pub(super) struct XrcPlace {
    pub(super) number: u32,
    pub(super) cq: SoftCq,
    pub(super) xrcd: SoftXrcd,
}

impl XrcPlace {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for XrcPlace {
    fn drop(&mut self) {
        debug_assert!(Arc::ptr_eq(&self.cq.domain, &self.xrcd.0.home));
        self.xrcd.0.home.end(Command::RemoveSrq(self.number));
    }
}
