//! What a queue pair and a domain have of XRC (XRC-1).

use std_alloc::sync::Arc;

use super::memory::PdMark;
use super::recvq::{RecvQueue, Used};
use crate::room::Book;

/// No completion queue.
pub(super) const NO_CQ: usize = usize::MAX;

/// The part of a queue pair that is about its domain; all zero outside of XRC.
#[derive(Clone, Copy, Default)]
pub(super) struct XrcPart {
    /// The domain.
    pub(super) xrcd: u32,
    /// The number of the shared receive queue whose receives it takes now.
    pub(super) srq: u32,
    /// The slot of the receive queue, without receives, that it has otherwise.
    pub(super) own: usize,
}

impl XrcPart {
    /// For the next life: the domain stays.
    pub(super) fn again(self) -> XrcPart {
        XrcPart { xrcd: self.xrcd, ..XrcPart::default() }
    }
}

/// A shared receive queue of a domain.
pub(super) struct XrcQueue {
    pub(super) xrcd: u32,
    pub(super) rq: usize,
    pub(super) cq: usize,
    pub(super) pd: PdMark,
}

/// All of a device, by their numbers.
pub(super) type XrcQueues = Book<XrcQueue>;

/// A new shared receive queue of a domain, on its way to the table.
pub(super) struct NewXrcQueue {
    pub(super) number: u32,
    pub(super) xrcd: u32,
    pub(super) queue: Arc<RecvQueue>,
    pub(super) used: Used,
    pub(super) cq: usize,
}
