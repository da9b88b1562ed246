//! Thread domains and parent domains (`ibv_alloc_td`, `ibv_alloc_parent_domain`).
#![expect(unsafe_code, reason = "domains are allocated through libibverbs")]

use core::mem::zeroed;
use core::ptr::{self, NonNull};

use crate::rdma_core::{
    ibv_context, ibv_dealloc_pd, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::front::TdCalls;
use super::shim::{errno, refused};
use crate::error::{Code, SetupError};

/// A thread domain of an RDMA device.
#[derive(Clone)]
pub struct VerbsTd(Arc<Td>);

struct Td {
    td: NonNull<ibv_td>,
    calls: TdCalls,
    context: NonNull<ibv_context>,
}

// SAFETY: it is only named to the library, whose calls may be made from any thread.
unsafe impl Send for Td {}
// SAFETY: as above.
unsafe impl Sync for Td {}

impl VerbsTd {
    /// One on the device of that name.
    pub(super) fn new(context: NonNull<ibv_context>, name: &str) -> Result<VerbsTd, SetupError> {
        let asked = || format!("a thread domain on {name}");
        let calls = calls_of(context).ok_or_else(|| failed(asked(), libc::EOPNOTSUPP))?;
        let mut init = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open.
        let td = unsafe { (calls.alloc_td)(context.as_ptr(), &raw mut init) };
        let td = NonNull::new(td).ok_or_else(|| failed(asked(), errno()))?;
        Ok(VerbsTd(Arc::new(Td { td, calls, context })))
    }

    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Drop for Td {
    fn drop(&mut self) {
        // SAFETY: parent domains hold a handle each, so none names it any more. Should the driver
        // refuse, it stays and nothing dangles.
        unsafe { (self.calls.dealloc_td)(self.td.as_ptr()) };
    }
}

/// A protection domain and its device.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    pub(super) context: NonNull<ibv_context>,
    pub(super) pd: NonNull<ibv_pd>,
    /// The device's name.
    pub(super) name: &'a str,
}

/// A parent domain over a protection domain, with that thread domain. The caller keeps both alive
/// as long as the result.
pub(super) fn alloc(base: Base<'_>, td: Option<&VerbsTd>) -> Result<NonNull<ibv_pd>, SetupError> {
    let asked = || format!("a parent domain on {}", base.name);
    if td.is_some_and(|td| td.0.context != base.context) {
        let answer = "the thread domain is of another device";
        return Err(SetupError::new(Code::Invalid, asked(), answer));
    }
    let calls = calls_of(base.context).ok_or_else(|| failed(asked(), libc::EOPNOTSUPP))?;
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_parent_domain_init_attr = unsafe { zeroed() };
    attr.pd = base.pd.as_ptr();
    attr.td = td.map_or(ptr::null_mut(), |td| td.0.td.as_ptr());
    // SAFETY: both domains are alive, and whoever gets the result keeps them so.
    let pd = unsafe { (calls.alloc_parent_domain)(base.context.as_ptr(), &raw mut attr) };
    NonNull::new(pd).ok_or_else(|| failed(asked(), errno()))
}

/// Whether a device has parent domains, and thread domains. No call tells, so each is tried.
pub(super) fn offered(context: NonNull<ibv_context>, pd: NonNull<ibv_pd>) -> (bool, bool) {
    let Some(calls) = calls_of(context) else { return (false, false) };
    // SAFETY: zero is a valid value of each field.
    let mut parent: ibv_parent_domain_init_attr = unsafe { zeroed() };
    parent.pd = pd.as_ptr();
    let mut init = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: context and domain are alive; what is made is freed before anybody uses it.
    unsafe {
        let pd = (calls.alloc_parent_domain)(context.as_ptr(), &raw mut parent);
        let td = (calls.alloc_td)(context.as_ptr(), &raw mut init);
        let parents = !pd.is_null() && ibv_dealloc_pd(pd) == 0;
        (parents, !td.is_null() && (calls.dealloc_td)(td) == 0)
    }
}

fn calls_of(context: NonNull<ibv_context>) -> Option<TdCalls> {
    // SAFETY: librdmacm keeps the context open while the process lives.
    unsafe { TdCalls::of(context) }
}

/// Drivers without these domains have several answers for that.
fn failed(asked: String, errno: i32) -> SetupError {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS => {
            SetupError::new(Code::NotSupported, asked, "the driver has none")
                .cure("use the protection domain itself: it can do the same, with locks")
        }
        errno => refused(asked, errno),
    }
}
