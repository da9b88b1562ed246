//! Domains of extended reliable connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_fabric::{CmError, Fabric, InUse};
use doorbell_seam::error::Code;

/// A domain of extended reliable connections (`ibv_open_xrcd`). Its XRC_RECV queue pairs put each
/// message into the shared receive queue of the domain that the sender names (XRC-1). Cloning gives
/// another handle.
pub struct XrcDomain<F: Fabric>(Arc<Inner<F>>);

struct Inner<F: Fabric> {
    raw: F::Xrcd,
    users: AtomicUsize,
}

impl<F: Fabric> Clone for XrcDomain<F> {
    fn clone(&self) -> Self {
        XrcDomain(self.0.clone())
    }
}

impl<F: Fabric> XrcDomain<F> {
    /// Opens a domain, of this process alone.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`doorbell_seam::provider::Caps::xrc`]).
    pub fn open(device: &F) -> Result<XrcDomain<F>, CmError> {
        Ok(XrcDomain::over(device.open_xrcd()?))
    }

    /// The default XRC domain, one for each device (QP-16).
    ///
    /// # Errors
    /// As for [`XrcDomain::open`].
    pub fn common(device: &F) -> Result<XrcDomain<F>, CmError> {
        Ok(XrcDomain::over(device.default_xrcd()?))
    }

    fn over(raw: F::Xrcd) -> XrcDomain<F> {
        XrcDomain(Arc::new(Inner { raw, users: AtomicUsize::new(0) }))
    }

    /// Number of queue pairs and shared receive queues made with it that still exist.
    pub fn users(&self) -> usize {
        self.0.users.load(Ordering::Relaxed)
    }

    /// Closes it (`ibv_close_xrcd`). Dropping the last handle does so, too, once nothing belongs to
    /// the domain any more.
    ///
    /// # Errors
    /// `Busy` while something belongs to it; it comes back (QX-15).
    pub fn close(self) -> Result<(), InUse<XrcDomain<F>>> {
        match self.users() {
            0 => Ok(()),
            users => {
                let answer = format!("{users} queue pairs and receive queues are in it (QX-15)");
                let cause = CmError::new(Code::Busy, "close an XRC domain", answer);
                Err(InUse { cause: cause.cure("destroy those first"), back: self })
            }
        }
    }

    pub(crate) fn raw(&self) -> &F::Xrcd {
        &self.0.raw
    }

    pub(crate) fn count_user(&self, on: bool) {
        if on {
            self.0.users.fetch_add(1, Ordering::Relaxed);
        } else {
            self.0.users.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<F: Fabric> fmt::Debug for XrcDomain<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").field("users", &self.users()).finish_non_exhaustive()
    }
}
