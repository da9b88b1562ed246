//! The carrier of a device's links over another wire than shared memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use doorbell_alloc::{Ask, MapRequest};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::wake::Notifier;

use crate::wire::Port;
use crate::{Host, LINK_BYTES, QpControl};

/// Carries links over a wire of its own, see [`crate::wire`]. Each connection has a link; the two
/// sides meet as on any soft device, and the side that accepts hands the other one descriptor.
pub trait Carrier: Send + Sync {
    /// Begins to carry a link of the side that accepts; the descriptor goes to its peer.
    ///
    /// # Errors
    /// The wire cannot be set up.
    fn offer(&self, end: CarrierEnd) -> Result<OwnedFd, CmError>;

    /// Begins to carry a link of the side that was accepted, whose peer sent that descriptor.
    ///
    /// # Errors
    /// The wire cannot be set up.
    fn take(&self, end: CarrierEnd, file: OwnedFd) -> Result<(), CmError>;
}

/// This side's end of a carried link.
pub struct CarrierEnd {
    /// The far end of the domain's link.
    pub port: Port,
    /// The notifier that the domain rings while the thread that serves the port sleeps.
    pub notifier: Notifier,
    /// For [`Port::fall_asleep`].
    pub barrier: fn(),
}

impl CarrierEnd {
    /// A new link to the domain of `qp`, and the end that the carrier is given.
    pub(super) fn new(host: &Host, qp: &QpControl) -> Result<CarrierEnd, CmError> {
        let asked = || format!("{LINK_BYTES} bytes of memory for a connection");
        let memory = MapRequest::new(LINK_BYTES).pages(Ask::Plain).map();
        let memory = memory.map_err(|error| {
            CmError::new(Code::from_errno(error.errno()), asked(), error.to_string())
        })?;
        let notifier = (host.notifier)();
        let notifier = notifier.ok_or_else(|| {
            CmError::new(Code::Errno(libc::EMFILE), "wake a carrier", "no descriptors are left")
                .cure("close files, or raise ulimit -n")
        })?;
        let port = Port::over(memory, qp.notifier(), Some(notifier.clone()))?;
        qp.attach(port.link());
        Ok(CarrierEnd { port, notifier, barrier: host.barrier })
    }
}

/// The carrier of a device, and the host whose notifiers and barriers its ports use.
pub(super) struct Carried {
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) host: Host,
}
