//! The control plane of Doorbell: the RDMA connection manager, on both devices.
//!
//! Layer 0 is a safe face of the man pages: [`AddrInfo`], [`Id`], [`Endpoint`], events. Layer 1,
//! [`Listener`] and [`Dialer`], connects the workers of `doorbell-engine`.
//!
//! Everything is generic over a [`Fabric`]: a device with its connection manager. [`Device`]
//! chooses one at run time.

mod addr;
mod attr;
mod error;
mod fabric;

pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use addr::{AddrInfo, Hints};
pub use attr::{ConnParam, PortSpace, QpAttr};
pub use error::CmError;
pub use fabric::{Channel, CmId, Event, EventKind, Fabric, IdKey, Rejection};
