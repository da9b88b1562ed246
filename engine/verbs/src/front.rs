//! The extended calls of a device: functions that lie in front of its context.
//!
//! libibverbs lets a context grow at its front, and sets a mark in the old part. Inline code of its
//! header finds the functions; this is that code in Rust. rdma-sys has it too, but compares only 32
//! bits of the mark, and so finds no functions on 64 bit.
//!
//! A driver may have some of these calls and lack others.
#![expect(unsafe_code, reason = "the functions lie in front of a raw pointer")]

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;

use crate::handles::Context;
use crate::rdma_core::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_flow, ibv_flow_attr,
    ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_init_attr_ex, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr, verbs_context,
};

/// The value of `abi_compat` if there is a front part (`__VERBS_ABI_IS_EXTENDED`).
const MARK: usize = usize::MAX;

/// `ibv_create_cq_ex` of a driver.
pub(crate) type CreateCqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
/// `ibv_create_qp_ex` of a driver.
pub(crate) type CreateQpEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;

/// A driver's call for extended completion queues, if it has one.
pub(crate) fn create_cq_ex(context: Context) -> Option<CreateCqEx> {
    // SAFETY: that is the type of the field.
    unsafe { call_of(context, offset_of!(verbs_context, create_cq_ex)) }
}

/// A driver's call for extended queue pairs, if it has one.
pub(crate) fn create_qp_ex(context: Context) -> Option<CreateQpEx> {
    // SAFETY: that is the type of the field.
    unsafe { call_of(context, offset_of!(verbs_context, create_qp_ex)) }
}

/// A driver's calls for thread domains and parent domains.
#[derive(Clone, Copy)]
pub(crate) struct TdCalls {
    pub(crate) alloc_td:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td,
    pub(crate) dealloc_td: unsafe extern "C" fn(*mut ibv_td) -> c_int,
    pub(crate) alloc_parent_domain:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
}

impl TdCalls {
    /// Those of a device; `None` if its library or its driver lacks one.
    pub(crate) fn of(context: Context) -> Option<TdCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(TdCalls {
                alloc_td: call_of(context, offset_of!(verbs_context, alloc_td))?,
                dealloc_td: call_of(context, offset_of!(verbs_context, dealloc_td))?,
                alloc_parent_domain: call_of(
                    context,
                    offset_of!(verbs_context, alloc_parent_domain),
                )?,
            })
        }
    }
}

/// A driver's calls for extended reliable connections.
#[derive(Clone, Copy)]
pub(crate) struct XrcCalls {
    pub(crate) open_xrcd:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
    pub(crate) close_xrcd: unsafe extern "C" fn(*mut ibv_xrcd) -> c_int,
    pub(crate) create_srq_ex:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
    pub(crate) get_srq_num: unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int,
}

impl XrcCalls {
    /// Those of a device; `None` if its library or its driver lacks one, or the call for extended
    /// queue pairs.
    pub(crate) fn of(context: Context) -> Option<XrcCalls> {
        create_qp_ex(context)?;
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(XrcCalls {
                open_xrcd: call_of(context, offset_of!(verbs_context, open_xrcd))?,
                close_xrcd: call_of(context, offset_of!(verbs_context, close_xrcd))?,
                create_srq_ex: call_of(context, offset_of!(verbs_context, create_srq_ex))?,
                get_srq_num: call_of(context, offset_of!(verbs_context, get_srq_num))?,
            })
        }
    }
}

/// A driver's calls on work queues.
#[derive(Clone, Copy)]
pub(crate) struct WqCalls {
    pub(crate) create: unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
    pub(crate) modify: unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int,
    pub(crate) destroy: unsafe extern "C" fn(*mut ibv_wq) -> c_int,
}

impl WqCalls {
    /// Those of a device, if it has them.
    pub(crate) fn of(context: Context) -> Option<WqCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(WqCalls {
                create: call_of(context, offset_of!(verbs_context, create_wq))?,
                modify: call_of(context, offset_of!(verbs_context, modify_wq))?,
                destroy: call_of(context, offset_of!(verbs_context, destroy_wq))?,
            })
        }
    }
}

/// A driver's calls on tables of work queues.
#[derive(Clone, Copy)]
pub(crate) struct TableCalls {
    pub(crate) create: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table,
    pub(crate) destroy: unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int,
}

impl TableCalls {
    /// Those of a device, if it has them.
    pub(crate) fn of(context: Context) -> Option<TableCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(TableCalls {
                create: call_of(context, offset_of!(verbs_context, create_rwq_ind_table))?,
                destroy: call_of(context, offset_of!(verbs_context, destroy_rwq_ind_table))?,
            })
        }
    }
}

/// A driver's calls on rules of steering.
#[derive(Clone, Copy)]
pub(crate) struct FlowCalls {
    pub(crate) create: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow,
    pub(crate) destroy: unsafe extern "C" fn(*mut ibv_flow) -> c_int,
}

impl FlowCalls {
    /// Those of a device, if it has them.
    pub(crate) fn of(context: Context) -> Option<FlowCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(FlowCalls {
                create: call_of(context, offset_of!(verbs_context, ibv_create_flow))?,
                destroy: call_of(context, offset_of!(verbs_context, ibv_destroy_flow))?,
            })
        }
    }
}

/// The call at an offset of the part in front of a context; `None` if that part does not reach so
/// far, or the driver lacks the call.
///
/// # Safety
/// The field there is an `Option<C>`.
unsafe fn call_of<C>(context: Context, field: usize) -> Option<C> {
    let context = context.as_ptr();
    // SAFETY: the context is open.
    if unsafe { (*context).abi_compat }.addr() != MARK {
        return None;
    }
    // SAFETY: the mark says that the context is the last part of a `verbs_context`.
    let whole = unsafe { context.byte_sub(offset_of!(verbs_context, context)) };
    let whole = NonNull::new(whole.cast::<verbs_context>())?;
    // SAFETY: the size is in all of them, right before the context.
    let filled = unsafe { (*whole.as_ptr()).sz };
    // It grows at the front, so it has the last `filled` bytes.
    if filled < size_of::<verbs_context>() - field {
        return None;
    }
    // SAFETY: the part from this field on is there; the caller vouches for its type.
    unsafe { whole.byte_add(field).cast::<Option<C>>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{MaybeUninit, zeroed};
    use core::ptr;
    use std_alloc::boxed::Box;

    unsafe extern "C" fn open(_: *mut ibv_context, _: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
        ptr::null_mut()
    }
    unsafe extern "C" fn close(_: *mut ibv_xrcd) -> c_int {
        0
    }
    unsafe extern "C" fn srq(_: *mut ibv_context, _: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
        ptr::null_mut()
    }
    unsafe extern "C" fn number(_: *mut ibv_srq, _: *mut u32) -> c_int {
        0
    }
    unsafe extern "C" fn qp(_: *mut ibv_context, _: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        ptr::null_mut()
    }

    fn made(sz: usize, mark: usize, all: bool) -> bool {
        let mut whole = Box::new(MaybeUninit::<verbs_context>::zeroed());
        let raw = whole.as_mut_ptr();
        // SAFETY: zero is a valid value of each field that is read; the pointers stay inside.
        unsafe {
            (*raw).sz = sz;
            (*raw).open_xrcd = Some(open);
            (*raw).close_xrcd = Some(close);
            (*raw).create_srq_ex = Some(srq);
            (*raw).get_srq_num = Some(number);
            (*raw).create_qp_ex = all.then_some(qp as CreateQpEx);
            (*raw).context.abi_compat = ptr::without_provenance_mut(mark);
            let context = Context::new(&raw mut (*raw).context).expect("it is not null");
            XrcCalls::of(context).is_some()
        }
    }

    #[test]
    fn functions_are_found_as_the_header_finds_them() {
        let size = size_of::<verbs_context>();
        let from = size - offset_of!(verbs_context, create_qp_ex);
        for (sz, there) in [(size, true), (from, true), (from - 1, false), (0, false)] {
            assert_eq!(made(sz, usize::MAX, true), there, "{sz}");
        }
        assert!(!made(size, usize::MAX, false), "the driver lacks one");
        assert!(!made(size, u32::MAX as usize, true), "no mark, no front part");
        // SAFETY: zero is a valid value of each field.
        let mut old: ibv_context = unsafe { zeroed() };
        // SAFETY: the context has no front part, and says so.
        let old = unsafe { Context::new(&raw mut old) };
        assert!(XrcCalls::of(old.expect("it is not null")).is_none());
    }
}
