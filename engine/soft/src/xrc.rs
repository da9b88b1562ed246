//! Extended reliable connections (section 2.10): the sender names a shared receive queue of the
//! receiver's domain in each record that takes a receive.
//!
//! A queue pair that receives has no queues of its own. While it takes a message it has those of
//! the shared receive queue that was named, so that all else goes as on any queue pair; the fast
//! path never sees it. Receiving queue pairs and their receive queues live in the device's shared
//! domain. Each sender has a link of its own: a queue without receives holds up nobody else.

use std_alloc::boxed::Box;
use std_alloc::sync::{Arc, Weak};

use super::cq::Sink;
use super::domain::{Command, Domain, Resources, Transport};
use super::layout::{
    Header, KIND_NOTICE, KIND_SEND, KIND_SRQ_NOTICE, KIND_TO_SRQ, KIND_WRITE, RecordFlags,
    WRITE_OPERANDS,
};
use super::link::Link;
use super::memory::PdMark;
use super::qp::{QpContext, QpParts};
use super::receive::Outcome;
use super::recvq::{RecvQueue, Used};
use super::{Soft, SoftCq, SoftQp, SoftSrq, check_depth};
use crate::error::{Code, SetupError};
use crate::provider::{QpCaps, QpType};
use crate::room::Book;
use crate::wc::Status;

/// No completion queue.
pub(super) const NO_CQ: usize = usize::MAX;

/// A domain of extended reliable connections of the soft device. Cloning gives another handle.
#[derive(Clone)]
pub struct SoftXrcd(Arc<XrcDomain>);

/// The domain behind its handles.
pub(super) struct XrcDomain {
    /// Unique within the device, never 0.
    id: u32,
    /// Where its queue pairs and receive queues live.
    home: Arc<Domain>,
}

/// The domain that serves who names none, while anybody has it.
pub(super) type DefaultXrcd = Weak<XrcDomain>;

/// The part of a queue pair that is about its domain; all zero outside of XRC.
#[derive(Clone, Copy, Default)]
pub(super) struct XrcPart {
    /// The domain.
    xrcd: u32,
    /// The number of the shared receive queue whose receives it takes now.
    srq: u32,
    /// The slot of the receive queue, without receives, that it has otherwise.
    own: usize,
}

impl XrcPart {
    /// For the next life: the domain stays.
    pub(super) fn again(self) -> XrcPart {
        XrcPart { xrcd: self.xrcd, ..XrcPart::default() }
    }
}

/// A shared receive queue of a domain.
pub(super) struct XrcQueue {
    xrcd: u32,
    rq: usize,
    cq: usize,
    pd: PdMark,
}

/// All of a device, by their numbers.
pub(super) type XrcQueues = Book<XrcQueue>;

/// A new shared receive queue of a domain, on its way to the table.
pub(super) struct NewXrcQueue {
    number: u32,
    xrcd: u32,
    queue: Arc<RecvQueue>,
    used: Used,
    cq: usize,
}

/// What a shared receive queue has besides if it is of a domain. It leaves the table before
/// anything else of it goes.
pub(super) struct XrcPlace {
    number: u32,
    cq: SoftCq,
    xrcd: SoftXrcd,
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

impl Soft {
    pub(super) fn new_xrcd(&self) -> SoftXrcd {
        let id = self.nic.next_srq();
        SoftXrcd(Arc::new(XrcDomain { id, home: self.shared.clone() }))
    }

    /// The domain that serves who names none.
    pub(super) fn common_xrcd(&self) -> SoftXrcd {
        let mut common = self.nic.common_xrcd.lock();
        if let Some(known) = common.upgrade() {
            return SoftXrcd(known);
        }
        let new = self.new_xrcd();
        *common = Arc::downgrade(&new.0);
        new
    }

    fn check_xrcd(&self, asked: &str, xrcd: &SoftXrcd) -> Result<(), SetupError> {
        if Arc::ptr_eq(&xrcd.0.home, &self.shared) {
            return Ok(());
        }
        Err(SetupError::new(Code::Invalid, asked, "the XRC domain is of another device"))
    }

    pub(super) fn new_xrc_srq(
        &self,
        xrcd: &SoftXrcd,
        cq: &SoftCq,
        depth: u32,
    ) -> Result<SoftSrq, SetupError> {
        let asked = "a shared receive queue of an XRC domain";
        check_depth("shared receive queue", depth, self.nic.caps.srq_wr_max)?;
        self.check_xrcd(asked, xrcd)?;
        if !Arc::ptr_eq(&cq.domain, &self.shared) {
            let answer = "its completion queue belongs to one thread, or to another device";
            return Err(SetupError::new(Code::NotSupported, asked, answer)
                .cure("make it Sharing::Shared, on the same device"));
        }
        let queue = Arc::new(RecvQueue::new(self.nic.next_queue(), depth, self.pd.mark()));
        let number = self.nic.next_srq();
        self.shared.command(Command::AddSrq(Box::new(NewXrcQueue {
            number,
            xrcd: xrcd.0.id,
            queue: queue.clone(),
            used: Used::default(),
            cq: cq.index,
        })));
        let place = XrcPlace { number, cq: cq.clone(), xrcd: xrcd.clone() };
        let xrc = Some(Arc::new(place));
        Ok(SoftSrq { xrc, nic: self.nic.clone(), queue, _pd: self.pd.clone() })
    }

    /// Makes a queue pair of [`QpType::XrcRecv`] in INIT: the receiving end of a connection, for
    /// all shared receive queues of the domain.
    ///
    /// # Errors
    /// `Invalid`: the domain is of another device; `NoMemory`: no number is left.
    pub fn create_xrc_recv(&self, xrcd: &SoftXrcd) -> Result<SoftQp, SetupError> {
        self.check_xrcd("a queue pair of XRC_RECV", xrcd)?;
        let queue = Arc::new(RecvQueue::new(self.nic.next_queue(), 0, PdMark::default()));
        let parts = QpParts {
            num: self.take_number()?,
            kind: QpType::XrcRecv,
            send_cq: NO_CQ,
            recv_cq: NO_CQ,
            rq_shared: true,
            signal_all: false,
            // That of the receive queue each request names.
            pd: PdMark::default(),
            key: queue.id(),
        };
        let caps = QpCaps::default();
        let mut context = Box::new(QpContext::new(&parts, caps));
        context.xrc.xrcd = xrcd.0.id;
        Ok(SoftQp::new(
            (&self.nic, &self.shared),
            context,
            caps,
            queue,
            (None, Some(xrcd.clone()), None),
        ))
    }
}

impl QpContext {
    /// The slot of the receive queue it came with.
    pub(super) fn own_rq(&self) -> usize {
        if self.kind == QpType::XrcRecv { self.xrc.own } else { self.rq }
    }

    /// It has a receive queue now, for as long as it lives.
    pub(super) fn set_own_rq(&mut self, rq: usize) {
        self.rq = rq;
        self.xrc.own = rq;
    }
}

impl Transport {
    /// Takes a shared receive queue out. Queue pairs that took its receives have no queue again.
    pub(super) fn remove_srq(&mut self, number: u32) {
        let Some(queue) = self.res.xrc.remove(number) else { return };
        for qp in self.qps.iter_mut() {
            if qp.kind == QpType::XrcRecv && qp.xrc.srq == number {
                (qp.assembly, qp.recv_cq, qp.rq, qp.xrc.srq) = (None, NO_CQ, qp.xrc.own, 0);
            }
        }
        self.res.leave_queue(queue.rq);
    }
}

impl Resources {
    pub(super) fn add_srq(&mut self, new: NewXrcQueue) {
        let pd = new.queue.pd();
        // Without memory for it, it is not there: who names it is refused.
        let Some(rq) = self.use_queue(new.queue, new.used) else { return };
        if !self.xrc.insert(new.number, XrcQueue { xrcd: new.xrcd, rq, cq: new.cq, pd }) {
            self.leave_queue(rq);
        }
    }

    /// Gives the queue pair the receives of the shared queue of that number. False: there is none
    /// in its domain, or a message has begun to fill a receive of another.
    fn take_on(&self, qp: &mut QpContext, number: u32) -> bool {
        let Some(queue) = self.known(qp, number) else { return false };
        if qp.assembly.is_some() && qp.xrc.srq != number {
            return false;
        }
        (qp.rq, qp.recv_cq, qp.xrc.srq) = (queue.rq, queue.cq, number);
        true
    }

    /// The shared queue of that number, if it is of the queue pair's domain.
    fn known(&self, qp: &QpContext, number: u32) -> Option<&XrcQueue> {
        self.xrc.get(number).filter(|queue| queue.xrcd == qp.xrc.xrcd)
    }

    /// True if a one-sided record says for which shared queue's protection domain it is, which the
    /// queue pair then has; one that touches no memory need not.
    fn stands_for(&self, link: &Link, header: Header, qp: &mut QpContext) -> bool {
        if !header.flags().contains(RecordFlags::IMM) {
            return header.kind() == KIND_WRITE && header.length() == WRITE_OPERANDS;
        }
        let named = self.known(qp, link.rx.immediate(header));
        named.map(|queue| qp.pd = queue.pd).is_some()
    }

    /// A record for a queue pair of XRC in RTS, or one that only such a queue pair may get. False:
    /// it has to wait, or the link is no more.
    pub(super) fn receive_xrc<S: Sink>(
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
            if !self.stands_for(link, header, qp) {
                return self.refuse(link, header, qp, invalid, sink);
            }
            return self.receive_one_sided(link, header, qp, sink);
        }
        let Some([word]) = link.rx.operands::<1>(header) else {
            return Outcome::Hostile;
        };
        let (number, size) = (word as u32, (word >> 32) as u32);
        if !self.take_on(qp, number) {
            return self.refuse(link, header, qp, invalid, sink);
        }
        if kind == KIND_SRQ_NOTICE {
            return self.take_notice(link, header, qp, size, sink);
        }
        if qp.assembly.is_none() && !self.has_receive(qp) {
            return self.wait_for_receive(link, header, qp, sink);
        }
        self.receive_fragment(link, header, qp, sink)
    }
}
