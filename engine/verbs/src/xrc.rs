//! Domains of extended reliable connections.

use crate::rdma_core::ibv_xrcd;
use spin::Mutex;
use std_alloc::format;
use std_alloc::sync::{Arc, Weak};

use super::front::XrcCalls;
use super::handles::{Context, Owned};
use super::objects::{self, Xrcd};
use super::shim::refused;
use crate::error::{Code, SetupError};
use crate::provider::Caps;

/// A domain of extended reliable connections of an RDMA device. Cloning gives another handle.
#[derive(Clone)]
pub struct VerbsXrcd(pub(crate) Xrcd);

/// The default XRC domain of a device, for as long as anybody has it.
#[derive(Default)]
pub(super) struct DefaultXrcd(Mutex<Weak<Owned<ibv_xrcd>>>);

impl DefaultXrcd {
    /// The domain, opened anew if nobody has it.
    pub(super) fn get(
        &self,
        open: impl FnOnce() -> Result<VerbsXrcd, SetupError>,
    ) -> Result<VerbsXrcd, SetupError> {
        let mut known = self.0.lock();
        if let Some(domain) = known.upgrade() {
            return Ok(VerbsXrcd(domain));
        }
        let new = open()?;
        *known = Arc::downgrade(&new.0);
        Ok(new)
    }
}

/// Fails if a device with those capabilities has no such connections, or its driver lacks a call.
pub(super) fn check(context: Context, caps: &Caps, asked: &str) -> Result<(), SetupError> {
    if caps.xrc && XrcCalls::of(context).is_some() {
        return Ok(());
    }
    let answer = format!("{} has no extended reliable connections (XRC)", caps.device);
    Err(SetupError::new(Code::NotSupported, asked, answer)
        .cure("use RC with a shared receive queue, or a device that has them"))
}

impl VerbsXrcd {
    /// `ibv_open_xrcd` without a file: a domain of this process.
    pub(super) fn open(context: Context, caps: &Caps) -> Result<VerbsXrcd, SetupError> {
        let asked = "an XRC domain";
        check(context, caps, asked)?;
        let xrcd = objects::open_xrcd(context).map_err(|errno| refused(asked, errno))?;
        Ok(VerbsXrcd(Arc::new(xrcd)))
    }

    /// The domain for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_xrcd {
        self.0.as_ptr()
    }
}
