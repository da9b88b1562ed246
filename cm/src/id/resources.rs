//! The queue pair and the shared receive queue of an [`Id`]: making, asking about and destroying
//! them.

use doorbell_fabric::{CmError, CmId, Fabric, QpFields};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{QpCaps, QpType};

use super::Id;
use crate::cq::CompletionQueue;
use crate::init::QpInit;
use crate::qp::{Parts, QueuePair};
use crate::srq::{SharedReceive, SrqInit};

impl<F: Fabric> Id<F> {
    /// Makes the queue pair of this id (`rdma_create_qp`). It takes receives at once (QP-3).
    ///
    /// ```
    /// use doorbell_cm::{CmError, Id, QpInit};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(id: &mut Id<SoftDevice>) -> Result<(), CmError> {
    /// id.create_qp(&QpInit::rc())
    /// # }
    /// ```
    /// A call without attributes does not compile (QP-12):
    /// ```compile_fail,E0308
    /// use doorbell_cm::{CmError, Id, QpInit};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(id: &mut Id<SoftDevice>) -> Result<(), CmError> {
    /// id.create_qp(None)
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid`: bound to no device (QP-2), has one already (QP-11), a capacity of 0 without a
    /// queue for its completions (QP-8), or capacities beyond the device's.
    pub fn create_qp(&mut self, init: &QpInit<F>) -> Result<(), CmError> {
        let asked = "make the queue pair of an id";
        self.check_bound(asked, "QP-2")?;
        if self.qp.is_some() {
            return Err(CmError::new(Code::Invalid, asked, "the id has one already (QP-11)")
                .cure("use that one, or destroy it first"));
        }
        let init = init.clone().or_srq(self.srq.as_ref());
        let (cm, pd) = (&mut self.cm, init.pd_or(&self.fabric));
        self.qp = Some(QueuePair::with(&self.fabric, &init, |parts| match parts {
            Parts::Queues(attr) => cm.create_qp(pd, attr),
            Parts::Domain(xrcd) => cm.create_xrc_recv(xrcd),
        })?);
        Ok(())
    }

    /// Makes the shared receive queue of this id (`rdma_create_srq`), for at least `depth`
    /// receives; queue pairs made on the id afterwards use it (QP-13). On an id of XRC_RECV it is
    /// of the default XRC domain, with a completion queue ([`Id::recv_cq`], SRQ-5).
    ///
    /// # Errors
    /// `Invalid`: bound to no device (SRQ-1), has one already (SRQ-4), or a depth out of range.
    pub fn create_srq(&mut self, depth: u32) -> Result<&SharedReceive<F>, CmError> {
        let init = match self.cm.qp_type() {
            QpType::XrcRecv => SrqInit::xrc(depth),
            _ => SrqInit::new(depth),
        };
        self.create_srq_ex(&init)
    }

    /// As [`Id::create_srq`], as `init` says (`rdma_create_srq_ex`).
    ///
    /// # Errors
    /// As there.
    pub fn create_srq_ex(&mut self, init: &SrqInit<F>) -> Result<&SharedReceive<F>, CmError> {
        let asked = "make the shared receive queue of an id";
        self.check_bound(asked, "SRQ-1")?;
        if self.srq.is_some() {
            return Err(CmError::new(Code::Invalid, asked, "the id has one already (SRQ-4)")
                .cure("use that one, or destroy it first"));
        }
        if init.pd.as_ref().is_some_and(|pd| !pd.is_same_device(&self.fabric)) {
            let answer = "the protection domain is of another device (SRQ-1)";
            return Err(
                CmError::new(Code::Invalid, asked, answer).cure("name a domain of the id's device")
            );
        }
        Ok(self.srq.insert(SharedReceive::with(&self.fabric, init)?))
    }

    /// The shared receive queue of this id.
    pub fn srq(&self) -> Option<&SharedReceive<F>> {
        self.srq.as_ref()
    }

    /// Destroys the shared receive queue of this id (`rdma_destroy_srq`).
    ///
    /// # Errors
    /// `Busy` while queue pairs use it; it stays (SRQ-9). `Invalid` if there is none.
    pub fn destroy_srq(&mut self) -> Result<(), CmError> {
        match &self.srq {
            Some(srq) => srq.check_idle()?,
            None => {
                let asked = "destroy the shared receive queue of an id";
                return Err(CmError::new(Code::Invalid, asked, "the id has none"));
            }
        }
        self.srq = None;
        Ok(())
    }

    /// Number and capacities of the queue pair (QP-10), if there is one.
    pub fn qp(&self) -> Option<(u32, QpCaps)> {
        self.qp.as_ref().map(|qp| (qp.num(), qp.caps()))
    }

    /// The user data of the queue pair ([`QpInit::context`], QX-18), if there is one.
    pub fn qp_context(&self) -> Option<u64> {
        self.qp.as_ref().map(QueuePair::context)
    }

    /// Destroys the queue pair (`rdma_destroy_qp`); what it had outstanding gives no completions
    /// (QX-17).
    ///
    /// # Errors
    /// `Busy` while the id is in a multicast group; it stays (QP-18, QX-14). `Invalid` if there is
    /// none.
    pub fn destroy_qp(&mut self) -> Result<(), CmError> {
        let asked = "destroy the queue pair of an id";
        if self.qp.is_none() {
            return Err(CmError::new(Code::Invalid, asked, "the id has none"));
        }
        if let Some(group) = self.groups.first() {
            let answer = format!("it is in the multicast group {group} (QX-14)");
            return Err(CmError::new(Code::Busy, asked, answer).cure("leave the group first"));
        }
        self.qp = None;
        Ok(())
    }

    /// The id's queue pair as the device reports it (`ibv_query_qp`).
    ///
    /// # Errors
    /// `Invalid` without one. Otherwise the device's error.
    pub fn query_qp(&self) -> Result<QpFields, CmError> {
        match &self.qp {
            Some(_) => self.cm.query_qp(),
            None => Err(CmError::new(Code::Invalid, "query a queue pair", "the id has none")),
        }
    }

    /// See [`CmId::set_rnr_timer`].
    ///
    /// # Errors
    /// As there.
    pub fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError> {
        self.cm.set_rnr_timer(code)
    }

    /// The type of its queue pair: see [`CmId::qp_type`].
    pub fn qp_type(&self) -> QpType {
        self.cm.qp_type()
    }

    /// The completion queue of the queue pair's sends (QP-6).
    pub fn send_cq(&self) -> Option<&CompletionQueue<F>> {
        self.qp.as_ref().and_then(QueuePair::send_cq)
    }

    /// The queue in which receives of this id complete: the queue pair's (QP-6), or that of its
    /// shared receive queue of an XRC domain (SRQ-5).
    pub fn recv_cq(&self) -> Option<&CompletionQueue<F>> {
        let own = self.qp.as_ref().and_then(QueuePair::recv_cq);
        own.or_else(|| self.srq.as_ref().and_then(SharedReceive::cq))
    }
}
