//! How completion queues are made, plain and extended (`ibv_create_cq_ex`).
#![expect(unsafe_code, reason = "completion queues are made through libibverbs")]

use core::mem::zeroed;
use core::ptr::{self, NonNull};

use crate::rdma_core::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask,
    ibv_create_cq, ibv_destroy_cq, ibv_pd,
};
use std_alloc::format;
use std_alloc::string::String;

use super::front::{self, CreateCqEx};
use super::shim::{errno, refused, to_c};
use crate::error::{Code, SetupError};
use crate::provider::{Caps, CqFlags, CqInit, WcFields};

/// What a completion queue is made on.
#[derive(Clone, Copy)]
pub(super) struct CqHome {
    /// An open context.
    pub(super) context: NonNull<ibv_context>,
    /// The parent domain of an extended queue, if it gets one.
    pub(super) parent: Option<NonNull<ibv_pd>>,
    /// The channel of its events, or null.
    pub(super) channel: *mut ibv_comp_channel,
}

/// `ibv_create_cq`, or an errno.
///
/// # Safety
/// The home is alive for as long as the queue.
pub(super) unsafe fn plain(at: CqHome, init: &CqInit) -> Result<NonNull<ibv_cq>, i32> {
    let (depth, vector) = (to_c(init.depth), to_c(init.comp_vector));
    // SAFETY: the caller vouches for context and channel.
    let cq =
        unsafe { ibv_create_cq(at.context.as_ptr(), depth, ptr::null_mut(), at.channel, vector) };
    NonNull::new(cq).ok_or_else(errno)
}

/// `ibv_create_cq_ex`, on a device with those capabilities. Depth and vector are in range.
///
/// # Safety
/// The home is alive for as long as the queue.
pub(super) unsafe fn extended(
    at: CqHome,
    init: &CqInit,
    caps: &Caps,
) -> Result<NonNull<ibv_cq>, SetupError> {
    let asked = || format!("a completion queue with {init:?} on {}", caps.device);
    // SAFETY: the caller vouches for the context.
    let call = unsafe { front::create_cq_ex(at.context) };
    let call = call.ok_or_else(|| refused(asked(), libc::EOPNOTSUPP))?;
    // SAFETY: the call is the context's; the caller vouches for the rest.
    let cq = unsafe { call_with(call, at, init) };
    NonNull::new(cq.cast()).ok_or_else(|| not_extended(asked(), caps, errno()))
}

fn not_extended(asked: String, caps: &Caps, errno: i32) -> SetupError {
    match errno {
        // Depth and vector are in range, so it is a field or a flag.
        libc::EINVAL | libc::EOPNOTSUPP => {
            let answer = format!("the device has {:?} and {:?}", caps.wc_fields, caps.cq_flags);
            SetupError::new(Code::NotSupported, asked, answer).cure("ask for fewer of them")
        }
        errno => refused(asked, errno),
    }
}

/// # Safety
/// The call is that of the context; the home is alive for as long as the queue.
unsafe fn call_with(call: CreateCqEx, at: CqHome, init: &CqInit) -> *mut ibv_cq_ex {
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    attr.cqe = init.depth;
    attr.channel = at.channel;
    attr.comp_vector = init.comp_vector;
    attr.wc_flags = init.fields.bits().into();
    attr.flags = init.flags.bits();
    if !init.flags.is_empty() {
        attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    }
    if let Some(parent) = at.parent {
        attr.comp_mask |= ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
        attr.parent_domain = parent.as_ptr();
    }
    // SAFETY: the mask names what is set; the caller vouches for the rest.
    unsafe { call(at.context.as_ptr(), &raw mut attr) }
}

/// Fields and flags of the extended queues that a device accepts. No call tells, so each is tried.
pub(super) fn offered(context: NonNull<ibv_context>) -> (WcFields, CqFlags) {
    // SAFETY: librdmacm keeps the context open while the process lives.
    let Some(call) = (unsafe { front::create_cq_ex(context) }) else {
        return Default::default();
    };
    let at = CqHome { context, parent: None, channel: ptr::null_mut() };
    let works = |init: CqInit| {
        // SAFETY: as above, and there is no channel; the queue is destroyed before anybody uses it.
        unsafe {
            let cq = call_with(call, at, &init);
            !cq.is_null() && ibv_destroy_cq(cq.cast()) == 0
        }
    };
    let one = CqInit { depth: 1, fields: WcFields::BYTE_LEN, ..CqInit::default() };
    let field = |fields: &WcFields| works(CqInit { fields: *fields, ..one });
    let flag = |flags: &CqFlags| works(CqInit { flags: *flags, ..one });
    (WcFields::all().iter().filter(field).collect(), CqFlags::all().iter().filter(flag).collect())
}
