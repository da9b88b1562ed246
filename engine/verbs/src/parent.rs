//! Thread domains and parent domains (`ibv_alloc_td`, `ibv_alloc_parent_domain`).
#![expect(unsafe_code, reason = "domains are allocated through libibverbs")]

use core::mem::zeroed;
use core::ptr::{self, NonNull};

use rdma_sys::{ibv_dealloc_pd, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::device::Device;
use super::front::TdCalls;
use super::shim::{errno, refused};
use crate::error::{Code, SetupError};

/// A thread domain of an RDMA device.
#[derive(Clone)]
pub struct VerbsTd(Arc<Td>);

struct Td {
    td: NonNull<ibv_td>,
    calls: TdCalls,
    device: Arc<Device>,
}

// SAFETY: it is only named to the library, whose calls may be made from any thread.
unsafe impl Send for Td {}
// SAFETY: as above.
unsafe impl Sync for Td {}

impl VerbsTd {
    pub(super) fn new(device: &Arc<Device>) -> Result<VerbsTd, SetupError> {
        let asked = || format!("a thread domain on {}", device.caps().device);
        let calls = calls_of(device).ok_or_else(|| failed(asked(), libc::EOPNOTSUPP))?;
        let mut init = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open.
        let td = unsafe { (calls.alloc_td)(device.context(), &raw mut init) };
        let td = NonNull::new(td).ok_or_else(|| failed(asked(), errno()))?;
        Ok(VerbsTd(Arc::new(Td { td, calls, device: device.clone() })))
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

/// A parent domain over the protection domain of `base`, with that thread domain.
pub(super) fn alloc(
    base: &Arc<Device>,
    td: Option<&VerbsTd>,
) -> Result<NonNull<ibv_pd>, SetupError> {
    let asked = || format!("a parent domain on {}", base.caps().device);
    if td.is_some_and(|td| td.0.device.context() != base.context()) {
        let answer = "the thread domain is of another device";
        return Err(SetupError::new(Code::Invalid, asked(), answer));
    }
    let calls = calls_of(base).ok_or_else(|| failed(asked(), libc::EOPNOTSUPP))?;
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_parent_domain_init_attr = unsafe { zeroed() };
    attr.pd = base.pd();
    attr.td = td.map_or(ptr::null_mut(), |td| td.0.td.as_ptr());
    // SAFETY: both domains are alive, and whoever gets the result keeps them so.
    let pd = unsafe { (calls.alloc_parent_domain)(base.context(), &raw mut attr) };
    NonNull::new(pd).ok_or_else(|| failed(asked(), errno()))
}

/// Whether there are parent domains, and thread domains: no call tells, so each is tried.
pub(super) fn offered(device: &Device) -> (bool, bool) {
    let Some(calls) = calls_of(device) else { return (false, false) };
    // SAFETY: zero is a valid value of each field.
    let mut parent: ibv_parent_domain_init_attr = unsafe { zeroed() };
    parent.pd = device.pd();
    let mut init = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: context and domain are alive; nothing uses what is made, which goes at once.
    unsafe {
        let pd = (calls.alloc_parent_domain)(device.context(), &raw mut parent);
        let td = (calls.alloc_td)(device.context(), &raw mut init);
        let parents = !pd.is_null() && ibv_dealloc_pd(pd) == 0;
        (parents, !td.is_null() && (calls.dealloc_td)(td) == 0)
    }
}

fn calls_of(device: &Device) -> Option<TdCalls> {
    // SAFETY: librdmacm keeps the context open while the process lives.
    unsafe { TdCalls::of(device.context_ref()) }
}

/// Drivers without them have several words for it.
fn failed(asked: String, errno: i32) -> SetupError {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS => {
            SetupError::new(Code::NotSupported, asked, "the driver has none")
                .cure("use the protection domain itself: it can do the same, with locks")
        }
        errno => refused(asked, errno),
    }
}
