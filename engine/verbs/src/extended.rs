//! The driver's calls for objects that only extended queue pairs use. A driver may have some of
//! these calls and lack others.
#![expect(unsafe_code, reason = "the functions lie in front of a raw pointer")]

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;

use crate::rdma_core::{
    ibv_context, ibv_flow, ibv_flow_attr, ibv_qp, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_wq, ibv_wq_attr, ibv_wq_init_attr, verbs_context,
};

use super::Verbs;
pub use super::front::CreateQpEx;
use super::front::{self, call_of};

/// `ibv_create_flow` of a driver.
pub type CreateFlow = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow;
/// `ibv_destroy_flow` of a driver.
pub type DestroyFlow = unsafe extern "C" fn(*mut ibv_flow) -> c_int;

/// A driver's calls on work queues.
#[derive(Clone, Copy)]
pub(super) struct WqCalls {
    pub(super) create: unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
    pub(super) modify: unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int,
    pub(super) destroy: unsafe extern "C" fn(*mut ibv_wq) -> c_int,
}

/// A driver's calls on tables of work queues.
#[derive(Clone, Copy)]
pub(super) struct TableCalls {
    pub(super) create: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table,
    pub(super) destroy: unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int,
}

impl Verbs {
    /// The driver's own call for extended queue pairs, if it has one.
    pub fn create_qp_ex(&self) -> Option<CreateQpEx> {
        // SAFETY: the context is never closed.
        unsafe { front::create_qp_ex(NonNull::new(self.context())?) }
    }

    /// The driver's own calls for rules of steering, if it has any.
    pub fn flow_calls(&self) -> Option<(CreateFlow, DestroyFlow)> {
        // SAFETY: these are the types of the fields.
        unsafe {
            let create = self.call(offset_of!(verbs_context, ibv_create_flow))?;
            Some((create, self.call(offset_of!(verbs_context, ibv_destroy_flow))?))
        }
    }

    pub(super) fn wq_calls(&self) -> Option<WqCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(WqCalls {
                create: self.call(offset_of!(verbs_context, create_wq))?,
                modify: self.call(offset_of!(verbs_context, modify_wq))?,
                destroy: self.call(offset_of!(verbs_context, destroy_wq))?,
            })
        }
    }

    pub(super) fn table_calls(&self) -> Option<TableCalls> {
        // SAFETY: these are the types of the fields.
        unsafe {
            Some(TableCalls {
                create: self.call(offset_of!(verbs_context, create_rwq_ind_table))?,
                destroy: self.call(offset_of!(verbs_context, destroy_rwq_ind_table))?,
            })
        }
    }

    /// The call at that offset.
    ///
    /// # Safety
    /// As for [`call_of`].
    unsafe fn call<C>(&self, field: usize) -> Option<C> {
        // SAFETY: the context is never closed; the caller vouches for the type.
        unsafe { call_of(NonNull::new(self.context())?, field) }
    }
}
