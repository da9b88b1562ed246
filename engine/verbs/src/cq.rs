//! Completion queues.

use crate::rdma_core::ibv_cq;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::device::Device;
use super::handles::Context;
use super::objects::{self, Channel, Cq, CqEx};
use super::shim::refused;
use super::sys::{errno, never_block, notifier};
use crate::error::{Code, SetupError};
use crate::provider::wake::Notifier;
use crate::provider::{Caps, CqInit};

/// A completion queue of an RDMA device.
#[derive(Clone)]
pub struct VerbsCq {
    pub(crate) cq: Cq,
    pub(crate) wake: Arc<Wake>,
}

/// How the poller of a queue is woken.
pub(crate) struct Wake {
    /// The channel of its events, on which no other queue is.
    pub(crate) channel: Channel,
    /// Rung by whoever wants the poller awake.
    pub(crate) notifier: Option<Notifier>,
    pub(crate) device: Arc<Device>,
}

impl VerbsCq {
    /// `ibv_create_cq`.
    pub(super) fn new(device: &Arc<Device>, init: &CqInit) -> Result<VerbsCq, SetupError> {
        let wake = Wake::new(device, init)?;
        let cq = objects::create_cq(device.context(), init, Some(&wake.channel))
            .map_err(|errno| refused(asked(device, init.depth), errno))?;
        Ok(VerbsCq { cq: Arc::new(cq), wake: Arc::new(wake) })
    }

    /// `ibv_create_cq_ex`. Returns what its reader needs too.
    pub(super) fn extended(
        device: &Arc<Device>,
        init: &CqInit,
    ) -> Result<(VerbsCq, CqEx), SetupError> {
        let wake = Wake::new(device, init)?;
        let (context, parent) = (device.context(), device.parent_domain());
        let cq = objects::create_cq_ex(context, init, Some(&wake.channel), parent)
            .map_err(|errno| not_extended(init, device.caps(), errno))?;
        Ok((VerbsCq { cq: cq.plain().clone(), wake: Arc::new(wake) }, cq))
    }

    pub(super) fn resize(&self, device: &Device, depth: u32) -> Result<u32, SetupError> {
        if device.context() != self.cq.context() {
            let answer = "the queue is of another device";
            return Err(SetupError::new(Code::Invalid, asked(device, depth), answer));
        }
        device.check_depth("completion queue", depth, device.caps().cqe_max)?;
        self.cq.resize(depth).map_err(|errno| {
            let error = refused(asked(device, depth), errno);
            let full = error.code() == Code::Invalid;
            if full { error.cure("poll what is in it first (CP-8)") } else { error }
        })
    }

    /// The queue for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }
}

fn asked(device: &Device, depth: u32) -> String {
    format!("a completion queue of {depth} on {}", device.caps().device)
}

impl Wake {
    /// For a queue like that, after checks that not all drivers make.
    fn new(device: &Arc<Device>, init: &CqInit) -> Result<Wake, SetupError> {
        let CqInit { depth, comp_vector: vector, .. } = *init;
        device.check_depth("completion queue", depth, device.caps().cqe_max)?;
        let vectors = device.caps().comp_vectors;
        if vector >= vectors {
            let answer = format!("it has {vectors} completion vectors, from 0 on; not {vector}");
            return Err(SetupError::new(Code::Invalid, asked(device, depth), answer));
        }
        let channel = new_channel(device.context())?;
        Ok(Wake { channel, notifier: notifier(), device: device.clone() })
    }
}

/// A channel whose descriptor does not block.
fn new_channel(context: Context) -> Result<Channel, SetupError> {
    let asked = "a completion channel";
    let channel = objects::create_comp_channel(context)
        .map_err(|errno| refused(asked, errno).cure("close files, or raise ulimit -n"))?;
    if !never_block(channel.fd()) {
        return Err(refused(asked, errno()));
    }
    Ok(Arc::new(channel))
}

fn not_extended(init: &CqInit, caps: &Caps, errno: i32) -> SetupError {
    let asked = format!("a completion queue with {init:?} on {}", caps.device);
    match errno {
        // Depth and vector are in range, so it is a field or a flag.
        libc::EINVAL | libc::EOPNOTSUPP => {
            let answer = format!("the device has {:?} and {:?}", caps.wc_fields, caps.cq_flags);
            SetupError::new(Code::NotSupported, asked, answer).cure("ask for fewer of them")
        }
        errno => refused(asked, errno),
    }
}
