//! Extended reliable connections (XRC-1): the sender names a shared receive queue of the
//! receiver's domain in each record that takes a receive.
//!
//! A receiving queue pair has no queues of its own. While it takes a message it borrows those of
//! the named shared receive queue, so everything else works as on any queue pair, and the fast path
//! never handles it. Receiving queue pairs and their receive queues live in the device's shared
//! domain. Each sender has its own link, so a queue without receives delays no other sender.

use std_alloc::sync::{Arc, Weak};

use crate::handles::poller::SoftCq;
use crate::steps::command::Command;
use crate::steps::domain::Domain;

/// A domain of extended reliable connections of the soft device. Cloning gives another handle.
#[derive(Clone)]
pub struct SoftXrcd(pub(crate) Arc<XrcDomain>);

/// The XRC domain that its handles share.
pub(crate) struct XrcDomain {
    /// Unique within the device, never 0.
    pub(crate) id: u32,
    /// The engine domain of its queue pairs and receive queues.
    pub(crate) home: Arc<Domain>,
}

/// The default XRC domain, while anybody holds it.
pub(crate) type DefaultXrcd = Weak<XrcDomain>;

/// The extra part of a shared receive queue in an XRC domain. It leaves the table before the rest
/// of the queue is dropped.
pub(crate) struct XrcPlace {
    pub(crate) number: u32,
    pub(crate) cq: SoftCq,
    pub(crate) xrcd: SoftXrcd,
}

impl XrcPlace {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for XrcPlace {
    fn drop(&mut self) {
        debug_assert!(Arc::ptr_eq(&self.cq.domain, &self.xrcd.0.home));
        self.xrcd.0.home.end(Command::RemoveSrq(self.number));
    }
}
