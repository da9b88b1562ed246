//! Domains of extended reliable connections, and the queue pairs that belong to one.
#![expect(unsafe_code, reason = "domains are raw pointers of the driver")]

use core::mem::zeroed;
use core::ptr::NonNull;

use crate::rdma_core::{
    ibv_context, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_type, ibv_xrcd,
    ibv_xrcd_init_attr, ibv_xrcd_init_attr_mask,
};
use spin::Mutex;
use std_alloc::format;
use std_alloc::sync::{Arc, Weak};

use super::front::XrcCalls;
use super::shim::{errno, refused};
use crate::error::{Code, SetupError};
use crate::provider::Caps;

/// A domain of extended reliable connections of an RDMA device. Cloning gives another handle.
#[derive(Clone)]
pub struct VerbsXrcd(Arc<Domain>);

/// The domain behind its handles.
pub(super) struct Domain {
    xrcd: NonNull<ibv_xrcd>,
    calls: XrcCalls,
    context: NonNull<ibv_context>,
}

/// The default XRC domain of a device, for as long as anybody has it.
#[derive(Default)]
pub(super) struct DefaultXrcd(Mutex<Weak<Domain>>);

impl DefaultXrcd {
    /// The domain, opened anew if nobody has it.
    pub(super) fn get(
        &self,
        open: impl FnOnce() -> Result<VerbsXrcd, SetupError>,
    ) -> Result<VerbsXrcd, SetupError> {
        let mut known = self.0.lock();
        if let Some(domain) = known.upgrade() {
            return Ok(VerbsXrcd(domain));
        }
        let new = open()?;
        *known = Arc::downgrade(&new.0);
        Ok(new)
    }
}

// SAFETY: libibverbs' calls on a domain may be made from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

/// The calls of a device with those capabilities.
pub(super) fn calls_of(
    context: NonNull<ibv_context>,
    caps: &Caps,
    asked: &str,
) -> Result<XrcCalls, SetupError> {
    // SAFETY: librdmacm keeps the context open while the process lives.
    let calls = unsafe { XrcCalls::of(context) };
    calls.filter(|_| caps.xrc).ok_or_else(|| {
        let answer = format!("{} has no extended reliable connections (XRC)", caps.device);
        SetupError::new(Code::NotSupported, asked, answer)
            .cure("use RC with a shared receive queue, or a device that has them")
    })
}

impl VerbsXrcd {
    /// `ibv_open_xrcd` without a file: a domain of this process.
    pub(super) fn open(
        context: NonNull<ibv_context>,
        caps: &Caps,
    ) -> Result<VerbsXrcd, SetupError> {
        let asked = "an XRC domain";
        let calls = calls_of(context, caps, asked)?;
        let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
            | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
        let mut attr = ibv_xrcd_init_attr { comp_mask: mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: librdmacm keeps the context open; the call keeps nothing of `attr`.
        let xrcd = unsafe { (calls.open_xrcd)(context.as_ptr(), &raw mut attr) };
        let xrcd = NonNull::new(xrcd).ok_or_else(|| refused(asked, errno()))?;
        Ok(VerbsXrcd(Arc::new(Domain { xrcd, calls, context })))
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
        let (calls, context) = (self.0.calls, self.0.context);
        let mut init = self.recv_attr();
        // SAFETY: context and domain are alive; the call keeps nothing of the attributes.
        let qp = unsafe { (calls.create_qp_ex)(context.as_ptr(), &raw mut init) };
        NonNull::new(qp).ok_or_else(|| refused("a queue pair of XRC_RECV", errno()))
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
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: queue pairs and receive queues hold a handle each, so none uses the domain any
        // more. Should the driver refuse, the domain stays and nothing dangles.
        unsafe { (self.calls.close_xrcd)(self.xrcd.as_ptr()) };
    }
}
