//! The extended calls of a device: functions that lie in front of its context.
//!
//! libibverbs lets a context grow at its front, and sets a mark in the old part. Inline code of its
//! header finds the functions; this is that code in Rust. rdma-sys has it too, but compares only 32
//! bits of the mark, and so finds no functions on 64 bit.
#![expect(unsafe_code, reason = "the functions lie in front of a raw pointer")]

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;

use crate::rdma_core::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_parent_domain_init_attr, ibv_pd, ibv_qp,
    ibv_qp_init_attr_ex, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_xrcd,
    ibv_xrcd_init_attr, verbs_context,
};

/// The value of `abi_compat` if there is a front part (`__VERBS_ABI_IS_EXTENDED`).
const MARK: usize = usize::MAX;

type OpenXrcd = unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
type CreateSrqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
/// `ibv_create_qp_ex` of a driver.
pub type CreateQpEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;

/// `ibv_create_cq_ex` of a driver.
pub(super) type CreateCqEx =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;

/// The driver's call for extended completion queues; `None` if its library or the driver lacks it.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn create_cq_ex(context: NonNull<ibv_context>) -> Option<CreateCqEx> {
    // SAFETY: the caller vouches for the context, and that is the type of the field.
    unsafe { call_of(context, offset_of!(verbs_context, create_cq_ex)) }
}

/// A driver's own call for extended queue pairs, if it has one.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn create_qp_ex(context: NonNull<ibv_context>) -> Option<CreateQpEx> {
    // SAFETY: the caller vouches for the context, and that is the type of the field.
    unsafe { call_of(context, offset_of!(verbs_context, create_qp_ex)) }
}

/// The call at an offset of the part in front of a context; `None` if that part does not reach so
/// far, or the driver lacks the call.
///
/// # Safety
/// The context is open, and the field there is an `Option<C>`.
pub(super) unsafe fn call_of<C>(context: NonNull<ibv_context>, field: usize) -> Option<C> {
    // SAFETY: the caller vouches for the context.
    let whole = unsafe { whole(context, field) }?;
    // SAFETY: the part from this field on is there; the caller vouches for its type.
    unsafe { whole.byte_add(field).cast::<Option<C>>().read() }
}

/// The driver's calls for thread domains and parent domains.
#[derive(Clone, Copy)]
pub(super) struct TdCalls {
    pub(super) alloc_td:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td,
    pub(super) dealloc_td: unsafe extern "C" fn(*mut ibv_td) -> c_int,
    pub(super) alloc_parent_domain:
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
}

impl TdCalls {
    /// Those of a context; `None` if its library or its driver lacks one.
    ///
    /// # Safety
    /// The context is open.
    pub(super) unsafe fn of(context: NonNull<ibv_context>) -> Option<TdCalls> {
        // The one that lies farthest in front, before both others.
        const FIRST: usize = offset_of!(verbs_context, alloc_parent_domain);
        // SAFETY: the caller vouches for the context.
        let whole = unsafe { whole(context, FIRST) }?.as_ptr();
        // SAFETY: the part from the first of these fields on is there.
        unsafe {
            Some(TdCalls {
                alloc_td: (*whole).alloc_td?,
                dealloc_td: (*whole).dealloc_td?,
                alloc_parent_domain: (*whole).alloc_parent_domain?,
            })
        }
    }
}

/// The driver's calls for extended reliable connections.
#[derive(Clone, Copy)]
pub(super) struct XrcCalls {
    pub(super) open_xrcd: OpenXrcd,
    pub(super) close_xrcd: unsafe extern "C" fn(*mut ibv_xrcd) -> c_int,
    pub(super) create_srq_ex: CreateSrqEx,
    pub(super) get_srq_num: unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int,
    pub(super) create_qp_ex: CreateQpEx,
}

impl XrcCalls {
    /// Those of a context; `None` if its library or its driver lacks one.
    ///
    /// # Safety
    /// The context is open.
    pub(super) unsafe fn of(context: NonNull<ibv_context>) -> Option<XrcCalls> {
        // The one that lies farthest in front; the others lie between it and the size.
        const FIRST: usize = offset_of!(verbs_context, create_qp_ex);
        // SAFETY: the caller vouches for the context.
        let whole = unsafe { whole(context, FIRST) }?;
        // SAFETY: the part from the first of these fields on is there.
        unsafe {
            let whole = whole.as_ptr();
            Some(XrcCalls {
                open_xrcd: (*whole).open_xrcd?,
                close_xrcd: (*whole).close_xrcd?,
                create_srq_ex: (*whole).create_srq_ex?,
                get_srq_num: (*whole).get_srq_num?,
                create_qp_ex: (*whole).create_qp_ex?,
            })
        }
    }
}

/// The context with its front part, if that contains the field at `offset`.
///
/// # Safety
/// The context is open. The caller reads nothing of the result before `offset`.
unsafe fn whole(context: NonNull<ibv_context>, offset: usize) -> Option<NonNull<verbs_context>> {
    // SAFETY: the caller vouches for the context.
    if unsafe { (*context.as_ptr()).abi_compat }.addr() != MARK {
        return None;
    }
    // SAFETY: the mark says that the context is the last part of a `verbs_context`.
    let whole = unsafe { context.byte_sub(offset_of!(verbs_context, context)) };
    let whole = whole.cast::<verbs_context>();
    // SAFETY: the size is in all of them, right before the context.
    let filled = unsafe { (*whole.as_ptr()).sz };
    // It grows at the front, so it has the last `filled` bytes.
    (filled >= size_of::<verbs_context>() - offset).then_some(whole)
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
            XrcCalls::of(NonNull::new_unchecked(&raw mut (*raw).context)).is_some()
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
        let old: ibv_context = unsafe { zeroed() };
        // SAFETY: the context has no front part, and says so.
        assert!(unsafe { XrcCalls::of(NonNull::from(&old)) }.is_none());
    }

    /// What the check of the size rests on.
    #[test]
    fn the_calls_lie_side_by_side() {
        let at = [
            offset_of!(verbs_context, create_qp_ex),
            offset_of!(verbs_context, get_srq_num),
            offset_of!(verbs_context, create_srq_ex),
            offset_of!(verbs_context, open_xrcd),
            offset_of!(verbs_context, close_xrcd),
            offset_of!(verbs_context, sz),
        ];
        assert!(at.is_sorted());
        let at = [
            offset_of!(verbs_context, alloc_parent_domain),
            offset_of!(verbs_context, dealloc_td),
            offset_of!(verbs_context, alloc_td),
            offset_of!(verbs_context, sz),
        ];
        assert!(at.is_sorted());
    }
}
