//! Shared receive queues, as their owners hold them.

use std_alloc::format;
use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::device::pd::Pd;
use crate::error::{Code, SetupError};
use crate::ext::xrc::XrcPlace;
use crate::handles::device::check_depth;
use crate::model::recvq::RecvQueue;
use crate::provider::{SrqLimits, XrcSrq};

/// A shared receive queue of the soft device.
#[derive(Clone)]
pub struct SoftSrq {
    /// Dropped before the queue: from then on nothing fills its receives.
    pub(crate) xrc: Option<Arc<XrcPlace>>,
    pub(crate) nic: Arc<Nic>,
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) _pd: Pd,
}

impl SrqLimits for SoftSrq {
    fn resize(&self, depth: u32) -> Result<(), SetupError> {
        let what = "shared receive queue";
        check_depth(what, depth, self.nic.caps.srq_wr_max)?;
        self.queue.resize(depth).map_err(|least| {
            let answer = format!("{least} receives are in it, or that is its limit");
            SetupError::new(Code::Invalid, format!("a {what} of {depth}"), answer)
        })
    }

    fn set_limit(&self, limit: u32) -> Result<(), SetupError> {
        if limit > self.queue.depth() {
            let asked = format!("a limit of {limit}");
            let answer = format!("the queue is for {} receives", self.queue.depth());
            return Err(SetupError::new(Code::Invalid, asked, answer));
        }
        self.queue.set_limit(limit);
        Ok(())
    }

    fn limit(&self) -> Result<u32, SetupError> {
        Ok(self.queue.limit())
    }

    fn id(&self) -> u64 {
        self.queue.id().into()
    }
}

impl XrcSrq for SoftSrq {
    fn number(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.number())
    }
}
