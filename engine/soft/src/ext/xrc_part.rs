//! The XRC parts of a queue pair and of a domain (XRC-1).

use std_alloc::sync::Arc;

use crate::model::pd::PdMark;
use crate::model::recvq::{RecvQueue, Used};
use crate::room::SortedMap;

/// No completion queue.
pub(crate) const NO_CQ: usize = usize::MAX;

/// The XRC part of a queue pair; all zero for other types.
#[derive(Clone, Copy, Default)]
pub(crate) struct XrcPart {
    /// The domain.
    pub(crate) xrcd: u32,
    /// The number of the shared receive queue that it takes receives from now.
    pub(crate) srq: u32,
    /// The slot of its own, empty receive queue, used otherwise.
    pub(crate) own: usize,
}

impl XrcPart {
    /// The part after a reset: the domain stays.
    pub(crate) fn again(self) -> XrcPart {
        XrcPart { xrcd: self.xrcd, ..XrcPart::default() }
    }
}

/// A shared receive queue of an XRC domain.
pub(crate) struct XrcQueue {
    pub(crate) xrcd: u32,
    pub(crate) rq: usize,
    pub(crate) cq: usize,
    pub(crate) pd: PdMark,
}

/// All XRC receive queues of a device, by number.
pub(crate) struct XrcQueues(pub(super) SortedMap<XrcQueue>);

impl XrcQueues {
    pub(crate) fn new() -> XrcQueues {
        XrcQueues(SortedMap::new())
    }

    /// The queue of that number, if it belongs to the domain of a queue pair with that part.
    pub(super) fn known(&self, part: &XrcPart, number: u32) -> Option<&XrcQueue> {
        self.0.get(number).filter(|queue| queue.xrcd == part.xrcd)
    }
}

/// A new XRC receive queue on its way to the table.
pub(crate) struct NewXrcQueue {
    pub(crate) number: u32,
    pub(crate) xrcd: u32,
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) used: Used,
    pub(crate) cq: usize,
}
