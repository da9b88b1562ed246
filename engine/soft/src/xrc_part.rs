//! The XRC parts of a queue pair and of a domain (XRC-1).

use std_alloc::sync::Arc;

use super::memory::PdMark;
use super::recvq::{RecvQueue, Used};
use crate::room::Book;

/// No completion queue.
pub(super) const NO_CQ: usize = usize::MAX;

/// The XRC part of a queue pair; all zero for other types.
#[derive(Clone, Copy, Default)]
pub(super) struct XrcPart {
    /// The domain.
    pub(super) xrcd: u32,
    /// The number of the shared receive queue that it takes receives from now.
    pub(super) srq: u32,
    /// The slot of its own, empty receive queue, used otherwise.
    pub(super) own: usize,
}

impl XrcPart {
    /// The part after a reset: the domain stays.
    pub(super) fn again(self) -> XrcPart {
        XrcPart { xrcd: self.xrcd, ..XrcPart::default() }
    }
}

/// A shared receive queue of an XRC domain.
pub(super) struct XrcQueue {
    pub(super) xrcd: u32,
    pub(super) rq: usize,
    pub(super) cq: usize,
    pub(super) pd: PdMark,
}

/// All XRC receive queues of a device, by number.
pub(super) type XrcQueues = Book<XrcQueue>;

/// A new XRC receive queue on its way to the table.
pub(super) struct NewXrcQueue {
    pub(super) number: u32,
    pub(super) xrcd: u32,
    pub(super) queue: Arc<RecvQueue>,
    pub(super) used: Used,
    pub(super) cq: usize,
}
