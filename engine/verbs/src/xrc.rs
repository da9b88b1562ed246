//! Domains of extended reliable connections, and the queue pairs that belong to one.
#![expect(unsafe_code, reason = "domains are raw pointers of the driver")]

use core::mem::zeroed;
use core::ptr::NonNull;

use rdma_sys::{
    ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type, ibv_srq, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask, ibv_srq_type, ibv_xrcd, ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask,
};
use std_alloc::format;
use std_alloc::sync::{Arc, Weak};

use super::cq::VerbsCq;
use super::device::Device;
use super::shim::{errno, refused};
use crate::error::{Code, SetupError};

/// A domain of extended reliable connections of an RDMA device. Cloning gives another handle.
#[derive(Clone)]
pub struct VerbsXrcd(Arc<Domain>);

/// The domain behind its handles.
pub(super) struct Domain {
    xrcd: NonNull<ibv_xrcd>,
    device: Arc<Device>,
}

/// The domain that serves who names none, while anybody has it.
pub(super) type DefaultXrcd = Weak<Domain>;

// SAFETY: libibverbs' calls on a domain may be made from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

fn missing(device: &Device, asked: &str) -> SetupError {
    let answer = format!("{} has no extended reliable connections (XRC)", device.caps().device);
    SetupError::new(Code::NotSupported, asked, answer)
        .cure("use RC with a shared receive queue, or a device that has them")
}

impl VerbsXrcd {
    /// `ibv_open_xrcd` without a file: a domain of this process.
    pub(super) fn open(device: &Arc<Device>) -> Result<VerbsXrcd, SetupError> {
        let asked = "an XRC domain";
        let calls = device.xrc_calls().filter(|_| device.caps().xrc);
        let calls = calls.ok_or_else(|| missing(device, asked))?;
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
        let mut attr = ibv_xrcd_init_attr { comp_mask: mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is open as long as its device; the call keeps nothing of `attr`.
        let xrcd = unsafe { (calls.open_xrcd)(device.context(), &raw mut attr) };
        let xrcd = NonNull::new(xrcd).ok_or_else(|| refused(asked, errno()))?;
        Ok(VerbsXrcd(Arc::new(Domain { xrcd, device: device.clone() })))
    }

    /// The domain that serves who names none.
    pub(super) fn common(device: &Arc<Device>) -> Result<VerbsXrcd, SetupError> {
        let mut common = device.common_xrcd().lock();
        if let Some(known) = common.upgrade() {
            return Ok(VerbsXrcd(known));
        }
        let new = VerbsXrcd::open(device)?;
        *common = Arc::downgrade(&new.0);
        Ok(new)
    }

    /// The domain for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_xrcd {
        self.0.xrcd.as_ptr()
    }

    /// Makes a queue pair of XRC_RECV in RESET (`ibv_create_qp_ex`), which the caller destroys.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn create_recv(&self) -> Result<NonNull<ibv_qp>, SetupError> {
        let (asked, device) = ("a queue pair of XRC_RECV", &self.0.device);
        let calls = device.xrc_calls().ok_or_else(|| missing(device, asked))?;
        let mut init = self.recv_attr();
        // SAFETY: context and domain are alive; the call keeps nothing of the attributes.
        let qp = unsafe { (calls.create_qp_ex)(device.context(), &raw mut init) };
        NonNull::new(qp).ok_or_else(|| refused(asked, errno()))
    }

    /// What a queue pair of XRC_RECV is made with: no queues, and this domain (QX-5).
    pub fn recv_attr(&self) -> ibv_qp_init_attr_ex {
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.qp_type = ibv_qp_type::IBV_QPT_XRC_RECV;
        init.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
        init.xrcd = self.as_ptr();
        init
    }

    /// Makes a shared receive queue of this domain; its depth and number.
    pub(super) fn create_srq(
        &self,
        device: &Device,
        cq: &VerbsCq,
        depth: u32,
    ) -> Result<(NonNull<ibv_srq>, u32, u32), SetupError> {
        let asked =
            || format!("an XRC shared receive queue of {depth} on {}", device.caps().device);
        let calls = device.xrc_calls().ok_or_else(|| missing(device, &asked()))?;
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
        use ibv_srq_init_attr_mask as Has;
        init.comp_mask = Has::IBV_SRQ_INIT_ATTR_TYPE.0
            | Has::IBV_SRQ_INIT_ATTR_PD.0
            | Has::IBV_SRQ_INIT_ATTR_XRCD.0
            | Has::IBV_SRQ_INIT_ATTR_CQ.0;
        init.srq_type = ibv_srq_type::IBV_SRQT_XRC;
        (init.pd, init.xrcd, init.cq) = (device.pd(), self.as_ptr(), cq.as_ptr());
        (init.attr.max_wr, init.attr.max_sge) = (depth, 1);
        // SAFETY: protection domain, domain and completion queue are alive and of one device; the
        // call fills in real figures.
        let srq = unsafe { (calls.create_srq_ex)(device.context(), &raw mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| refused(asked(), errno()))?;
        let mut name = 0;
        // SAFETY: the queue was just made; the call writes its number.
        match unsafe { (calls.get_srq_num)(srq.as_ptr(), &raw mut name) } {
            0 => Ok((srq, init.attr.max_wr.max(depth), name)),
            answer => {
                // SAFETY: made above, used by nobody.
                unsafe { rdma_sys::ibv_destroy_srq(srq.as_ptr()) };
                Err(refused(asked(), answer))
            }
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(calls) = self.device.xrc_calls() {
            // SAFETY: queue pairs and receive queues hold a handle each, so none uses the domain
            // any more. Should the driver refuse, the domain stays and nothing dangles.
            unsafe { (calls.close_xrcd)(self.xrcd.as_ptr()) };
        }
    }
}
