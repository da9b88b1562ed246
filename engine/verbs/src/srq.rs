//! Shared receive queues. `post.rs` posts to them.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::rdma_core::{ibv_srq, ibv_srq_attr, ibv_srq_attr_mask};
use std_alloc::format;
use std_alloc::sync::Arc;

use super::cq::VerbsCq;
use super::device::Device;
use super::handles::{Owned, PostSrqRecv};
use super::objects::{self, Srq};
use super::shim::refused;
use super::xrc::{self, VerbsXrcd};
use crate::error::{Code, SetupError};
use crate::provider::{SrqLimits, XrcSrq};

/// A shared receive queue of an RDMA device.
#[derive(Clone)]
pub struct VerbsSrq {
    pub(crate) srq: Srq,
    /// The driver's function that posts to it.
    pub(super) post: PostSrqRecv,
    more: Arc<More>,
}

/// What is known of a queue.
struct More {
    depth: AtomicU32,
    /// Its number, if it is of an XRC domain.
    number: Option<u32>,
    /// Counts as a user of its protection domain.
    device: Arc<Device>,
}

impl VerbsSrq {
    pub(super) fn new(device: &Arc<Device>, depth: u32) -> Result<VerbsSrq, SetupError> {
        device.check_depth("shared receive queue", depth, device.caps().srq_wr_max)?;
        let asked = || format!("a shared receive queue of {depth} on {}", device.caps().device);
        let made = objects::create_srq(device.pd(), depth);
        let (srq, real) = made.map_err(|errno| refused(asked(), errno))?;
        Ok(VerbsSrq::with(srq, real.max(depth), None, device))
    }

    /// One of an XRC domain.
    pub(super) fn of_xrc(
        device: &Arc<Device>,
        xrcd: &VerbsXrcd,
        cq: &VerbsCq,
        depth: u32,
    ) -> Result<VerbsSrq, SetupError> {
        device.check_depth("shared receive queue", depth, device.caps().srq_wr_max)?;
        let name = &device.caps().device;
        let asked = format!("an XRC shared receive queue of {depth} on {name}");
        xrc::check(device.context(), device.caps(), &asked)?;
        let made = objects::create_xrc_srq(device.pd(), &xrcd.0, &cq.cq, depth);
        let (srq, real, number) = made.map_err(|errno| refused(asked.as_str(), errno))?;
        Ok(VerbsSrq::with(srq, real.max(depth), Some(number), device))
    }

    fn with(
        srq: Owned<ibv_srq>,
        depth: u32,
        number: Option<u32>,
        device: &Arc<Device>,
    ) -> VerbsSrq {
        let more = More { depth: AtomicU32::new(depth), number, device: device.clone() };
        let post = device.ops().post_srq_recv;
        VerbsSrq { srq: Arc::new(srq), post, more: Arc::new(more) }
    }

    /// The queue for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    /// For how many receives it is.
    pub(super) fn room(&self) -> u32 {
        self.more.depth.load(Ordering::Relaxed)
    }
}

impl SrqLimits for VerbsSrq {
    /// Never makes it smaller: soft-RoCE may lose a queue when it refuses that.
    fn resize(&self, depth: u32) -> Result<(), SetupError> {
        let (caps, what) = (self.more.device.caps(), "shared receive queue");
        let asked = || format!("a {what} of {depth} on {}", caps.device);
        self.more.device.check_depth(what, depth, caps.srq_wr_max)?;
        if !caps.srq_resize {
            return Err(SetupError::new(Code::NotSupported, asked(), "its size is fixed")
                .cure("make it with its final size"));
        }
        if depth <= self.room() {
            return Ok(());
        }
        let attr = ibv_srq_attr { max_wr: depth, max_sge: 0, srq_limit: 0 };
        match self.srq.modify(attr, ibv_srq_attr_mask::IBV_SRQ_MAX_WR) {
            0 => {}
            answer => return Err(refused(asked(), answer)),
        }
        let real = self.srq.query().map_or(depth, |attr| attr.max_wr.max(depth));
        self.more.depth.store(real, Ordering::Relaxed);
        Ok(())
    }

    fn set_limit(&self, limit: u32) -> Result<(), SetupError> {
        let asked = || format!("a limit of {limit} on a receive queue");
        if limit > self.room() {
            // Some drivers take it, and the event comes at once.
            let answer = format!("the queue is for {} receives", self.room());
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        let attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        match self.srq.modify(attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT) {
            0 => Ok(()),
            answer => Err(refused(asked(), answer)),
        }
    }

    fn limit(&self) -> Result<u32, SetupError> {
        match self.srq.query() {
            Ok(attr) => Ok(attr.srq_limit),
            Err(errno) => Err(refused("the limit of a receive queue", errno)),
        }
    }

    fn id(&self) -> u64 {
        self.as_ptr() as u64
    }
}

impl XrcSrq for VerbsSrq {
    fn number(&self) -> Option<u32> {
        self.more.number
    }
}
