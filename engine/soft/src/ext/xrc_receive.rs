//! Receiving XRC records, each of which names a shared receive queue.
//!
//! While a queue pair takes a message it uses the receive queue, completion queue and protection
//! domain of the shared receive queue that the record names. Everything else works as on any queue
//! pair.

use crate::ext::xrc_part::{NO_CQ, NewXrcQueue, XrcQueue, XrcQueues};
use crate::model::cq::Sink;
use crate::provider::QpType;
use crate::shm::layout::{
    Header, KIND_NOTICE, KIND_SEND, KIND_SRQ_NOTICE, KIND_TO_SRQ, KIND_WRITE, RecordFlags,
    WRITE_OPERANDS,
};
use crate::state::link::Link;
use crate::state::qp::QpContext;
use crate::state::resources::{Outcome, Resources};
use crate::state::transport::Transport;
use crate::wc::Status;

impl QpContext {
    /// The slot of the receive queue it was created with.
    pub(crate) fn own_rq(&self) -> usize {
        if self.kind == QpType::XrcRecv { self.xrc.own } else { self.rq }
    }

    /// Sets the slot of its own receive queue, for its whole life.
    pub(crate) fn set_own_rq(&mut self, rq: usize) {
        self.rq = rq;
        self.xrc.own = rq;
    }
}

impl Transport {
    /// Removes a shared receive queue. Queue pairs that use it go back to their own empty queue.
    pub(crate) fn remove_srq(&mut self, number: u32) {
        let Some(queue) = self.res.xrc.0.remove(number) else { return };
        for qp in self.qps.iter_mut() {
            if qp.kind == QpType::XrcRecv && qp.xrc.srq == number {
                (qp.assembly, qp.recv_cq, qp.rq, qp.xrc.srq) = (None, NO_CQ, qp.xrc.own, 0);
            }
        }
        self.res.receives.leave(queue.rq);
    }
}

impl XrcQueues {
    /// Switches the queue pair to the shared receive queue of that number. Returns false if its
    /// domain has no such queue, or if a message has begun to fill a receive of another queue.
    fn take_on(&self, qp: &mut QpContext, number: u32) -> bool {
        let Some(queue) = self.known(&qp.xrc, number) else { return false };
        if qp.assembly.is_some() && qp.xrc.srq != number {
            return false;
        }
        (qp.rq, qp.recv_cq, qp.xrc.srq) = (queue.rq, queue.cq, number);
        true
    }

    /// Switches the queue pair to the protection domain of the shared queue that a one-sided record
    /// names. Returns true if the record names one, or touches no memory and so needs none.
    fn stands_for(&self, link: &Link, header: Header, qp: &mut QpContext) -> bool {
        if !header.flags().contains(RecordFlags::IMM) {
            return header.kind() == KIND_WRITE && header.length() == WRITE_OPERANDS;
        }
        let named = self.known(&qp.xrc, link.rx.immediate(header));
        named.map(|queue| qp.pd = queue.pd).is_some()
    }
}

impl Resources {
    pub(crate) fn add_srq(&mut self, new: NewXrcQueue) {
        let pd = new.queue.pd();
        // Without memory the queue is not added, and requests that name it are refused.
        let Some(rq) = self.receives.enter(new.queue, new.used, &self.local_waker) else { return };
        if !self.xrc.0.insert(new.number, XrcQueue { xrcd: new.xrcd, rq, cq: new.cq, pd }) {
            self.receives.leave(rq);
        }
    }

    /// Takes a record for an XRC queue pair in RTS, or a record that only an XRC queue pair may
    /// get. Returns false if the record has to wait, or if the link is gone.
    pub(crate) fn receive_xrc<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let kind = header.kind();
        let in_order = qp.is_in_order(header, KIND_TO_SRQ);
        let nameless = matches!(kind, KIND_SEND | KIND_NOTICE);
        let invalid = (None, Status::RemoteInvalidRequest);
        if qp.kind != QpType::XrcRecv || !in_order || nameless {
            return self.refuse(link, header, qp, invalid, sink);
        }
        if !matches!(kind, KIND_TO_SRQ | KIND_SRQ_NOTICE) {
            if !self.xrc.stands_for(link, header, qp) {
                return self.refuse(link, header, qp, invalid, sink);
            }
            return self.receive_one_sided(link, header, qp, sink);
        }
        let Some([word]) = link.rx.operands::<1>(header) else {
            return Outcome::Hostile;
        };
        let (number, size) = (word as u32, (word >> 32) as u32);
        if !self.xrc.take_on(qp, number) {
            return self.refuse(link, header, qp, invalid, sink);
        }
        if kind == KIND_SRQ_NOTICE {
            return self.take_notice(link, header, qp, size, sink);
        }
        if qp.assembly.is_none() && !self.receives.has_receive(qp) {
            return self.wait_for_receive(link, header, qp, sink);
        }
        self.receive_fragment(link, header, qp, sink)
    }
}
