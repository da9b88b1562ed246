//! Memory windows.

use crate::rdma_core::ibv_mw;
use std_alloc::format;
use std_alloc::sync::Arc;

use super::device::Device;
use super::handles::Owned;
use super::objects;
use super::shim::refused;
use crate::error::SetupError;
use crate::provider::WindowKind;

/// A memory window of an RDMA device.
pub struct VerbsWindow {
    pub(crate) mw: Owned<ibv_mw>,
    pub(crate) kind: WindowKind,
    /// Counts as a user of its protection domain.
    _device: Arc<Device>,
}

impl VerbsWindow {
    pub(super) fn new(device: &Arc<Device>, kind: WindowKind) -> Result<VerbsWindow, SetupError> {
        let asked = || format!("a memory window of {}", device.caps().device);
        let mw = objects::alloc_mw(device.pd(), kind).map_err(|errno| refused(asked(), errno))?;
        Ok(VerbsWindow { mw, kind, _device: device.clone() })
    }

    /// The window for calls of libibverbs; alive as long as this value.
    pub fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }
}
