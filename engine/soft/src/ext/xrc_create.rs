//! Making XRC domains, and their shared receive queues and queue pairs.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::error::{Code, SetupError};
use crate::ext::xrc::{SoftXrcd, XrcDomain, XrcPlace};
use crate::ext::xrc_part::{NO_CQ, NewXrcQueue};
use crate::handles::device::{Soft, check_depth};
use crate::handles::poller::SoftCq;
use crate::handles::queue_pair::SoftQp;
use crate::handles::srq::SoftSrq;
use crate::model::pd::PdMark;
use crate::model::recvq::Used;
use crate::provider::{QpCaps, QpType};
use crate::state::qp::{QpContext, QpParts};
use crate::steps::command::Command;

impl Soft {
    pub(crate) fn new_xrcd(&self) -> SoftXrcd {
        let id = self.nic.next_srq();
        SoftXrcd(Arc::new(XrcDomain { id, home: self.shared.clone() }))
    }

    /// The default XRC domain.
    pub(crate) fn common_xrcd(&self) -> SoftXrcd {
        let mut common = self.common_xrcd.lock();
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

    pub(crate) fn new_xrc_srq(
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
        let queue = Arc::new(self.nic.new_queue(depth, self.pd.mark()).shared());
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

    /// Makes a queue pair of [`QpType::XrcRecv`] in INIT: the receiving end of a connection, which
    /// serves all shared receive queues of the domain.
    ///
    /// # Errors
    /// `Invalid`: the domain is of another device; `NoMemory`: no number is left.
    pub fn create_xrc_recv(&self, xrcd: &SoftXrcd) -> Result<SoftQp, SetupError> {
        self.check_xrcd("a queue pair of XRC_RECV", xrcd)?;
        let queue = Arc::new(self.nic.new_queue(0, PdMark::default()));
        let parts = QpParts {
            num: self.take_number()?,
            kind: QpType::XrcRecv,
            send_cq: NO_CQ,
            recv_cq: NO_CQ,
            rq_shared: true,
            signal_all: false,
            // Each request uses the protection domain of the receive queue that it names.
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
            (None, Some(xrcd.clone()), None, None),
        ))
    }
}
