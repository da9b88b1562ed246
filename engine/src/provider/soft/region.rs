//! Registered memory and memory windows, as their owners hold them.
#![expect(unsafe_code, reason = "a region says where its bytes are")]

use doorbell_alloc::Mapping;
use std_alloc::sync::Arc;

use super::nic::Nic;
use super::pd::Pd;
use crate::provider::{Region, Window, WindowKind};

/// Registered memory of the soft device.
pub struct SoftRegion {
    pub(super) nic: Arc<Nic>,
    pub(super) memory: Mapping,
    pub(super) key: u32,
    pub(super) _pd: Pd,
}

// SAFETY: the mapping is owned and stays at its address until the region is dropped.
unsafe impl Region for SoftRegion {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn lkey(&self) -> u32 {
        self.key
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn handle(&self) -> u64 {
        self.key.into()
    }
}

impl Drop for SoftRegion {
    fn drop(&mut self) {
        self.nic.memory.remove(self.key);
    }
}

/// In a window's handle: the request comes from [`Qp::bind`]. Windows of type 1 have no other way
/// (MW-2).
pub(super) const BOUND_BY_CALL: u64 = 1 << 40;

/// The kind of the window that a request binds; `None` if it may not be bound that way.
pub(super) fn bound_kind(handle: u64) -> Option<WindowKind> {
    let by_call = handle & BOUND_BY_CALL != 0;
    match (handle >> 32 & 0xff, by_call) {
        (1, true) => Some(WindowKind::One),
        (2, false) => Some(WindowKind::Two),
        _ => None,
    }
}

/// A memory window of the soft device.
pub struct SoftWindow {
    pub(super) nic: Arc<Nic>,
    pub(super) kind: WindowKind,
    pub(super) key: u32,
    pub(super) _pd: Pd,
}

impl Window for SoftWindow {
    fn kind(&self) -> WindowKind {
        self.kind
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn handle(&self) -> u64 {
        u64::from(self.key) | (self.kind as u64) << 32
    }
}

impl Drop for SoftWindow {
    fn drop(&mut self) {
        self.nic.memory.remove(self.key);
    }
}
