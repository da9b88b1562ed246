//! Calls of a driver for what queue pairs are made with by the extended call, each alone: a driver
//! may have some of them.
#![expect(unsafe_code, reason = "the functions lie in front of a raw pointer")]

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;

use rdma_sys::{ibv_flow, ibv_flow_attr, ibv_qp, verbs_context};

use super::Verbs;
pub use super::front::CreateQpEx;
use super::front::whole;

/// `ibv_create_flow` of a driver.
pub type CreateFlow = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow;
/// `ibv_destroy_flow` of a driver.
pub type DestroyFlow = unsafe extern "C" fn(*mut ibv_flow) -> c_int;

impl Verbs {
    /// The driver's own call for extended queue pairs, if it has one.
    pub fn create_qp_ex(&self) -> Option<CreateQpEx> {
        // SAFETY: that is the type of the field.
        unsafe { self.call(offset_of!(verbs_context, create_qp_ex)) }
    }

    /// The driver's own calls for rules of steering, if it has any.
    pub fn flow_calls(&self) -> Option<(CreateFlow, DestroyFlow)> {
        // SAFETY: these are the types of the fields.
        unsafe {
            let create = self.call(offset_of!(verbs_context, ibv_create_flow))?;
            Some((create, self.call(offset_of!(verbs_context, ibv_destroy_flow))?))
        }
    }

    /// The call that stands at an offset of the part in front of the context, if the driver's
    /// reaches so far, and has it.
    ///
    /// # Safety
    /// The field there is an `Option<C>`.
    unsafe fn call<C>(&self, field: usize) -> Option<C> {
        let context = NonNull::new(self.context())?;
        // SAFETY: the context is never closed.
        let whole = unsafe { whole(context, field) }?;
        // SAFETY: the part from this field on is there; the caller vouches for its type.
        unsafe { whole.byte_add(field).cast::<Option<C>>().read() }
    }
}
