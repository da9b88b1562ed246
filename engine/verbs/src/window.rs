//! Memory windows.
#![expect(unsafe_code, reason = "windows are raw pointers of the driver")]

use core::ptr::NonNull;

use crate::rdma_core::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw};
use std_alloc::format;
use std_alloc::sync::Arc;

use super::device::Device;
use super::shim::{errno, refused};
use crate::error::SetupError;
use crate::provider::WindowKind;

/// A memory window of an RDMA device.
pub struct VerbsWindow {
    mw: NonNull<ibv_mw>,
    pub(super) kind: WindowKind,
    _device: Arc<Device>,
}

// SAFETY: libibverbs' calls on a memory window may be made from any thread.
unsafe impl Send for VerbsWindow {}
// SAFETY: as above.
unsafe impl Sync for VerbsWindow {}

impl VerbsWindow {
    pub(super) fn new(device: &Arc<Device>, kind: WindowKind) -> Result<VerbsWindow, SetupError> {
        // SAFETY: the domain lives as long as the device; the numbers of the kinds are C's.
        let mw = unsafe { ibv_alloc_mw(device.pd(), kind as u32) };
        let asked = || format!("a memory window of {}", device.caps().device);
        let mw = mw.and_then(NonNull::new).ok_or_else(|| refused(asked(), errno()))?;
        Ok(VerbsWindow { mw, kind, _device: device.clone() })
    }

    /// The window for calls of libibverbs; alive as long as this value.
    pub fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }
}

impl Drop for VerbsWindow {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and gone once, here. Should the driver refuse, it stays.
        unsafe { ibv_dealloc_mw(self.as_ptr()) };
    }
}
