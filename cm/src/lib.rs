//! The control plane of Doorbell: the RDMA connection manager, on both devices.
//!
//! Layer 0 is a safe face of the man pages: [`AddrInfo`], [`Id`], [`Endpoint`], events. Layer 1,
//! [`Listener`] and [`Dialer`], connects the workers of `doorbell-engine`.
//!
//! Everything is generic over a [`Fabric`]: a device with its connection manager. [`Device`]
//! chooses one at run time.

mod addr;
mod attr;
mod buffer;
pub mod c_names;
mod completion;
mod connections;
mod datagram;
mod device;
mod dialer;
mod endpoint;
mod error;
mod exposed;
mod extended;
mod external;
mod fabric;
mod frames;
mod id;
mod listener;
mod port;
mod qp;
mod queues;
mod redial;
mod rereg;
mod sleep;
mod spread;
mod state;
mod wait;
mod window;
mod worker_qp;
mod xrc;

pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use addr::{AddrInfo, Hints};
pub use attr::{ACCEPT_DATA_MAX, CONNECT_DATA_MAX, REJECT_DATA_MAX};
pub use attr::{ConnParam, Depths, IdOption, Join, PathRecord, PortSpace, QpAttr, Source};
pub use attr::{UDP_QKEY, UdParam};
pub use buffer::Buffer;
pub use completion::{Completion, SendRequest};
pub use datagram::Target;
pub use device::{Device, Program};
pub use dialer::Dialer;
pub use endpoint::Endpoint;
pub use error::{CmError, InUse, NotChanged, PostFailed, Refused};
pub use exposed::Exposed;
pub use extended::QpAttrEx;
pub use external::ExternalQp;
pub use fabric::{Channel, CmId, Event, EventKind, Fabric, IdKey, Rejection};
pub use id::Id;
pub use listener::Listener;
pub use port::Port;
pub use qp::QpInit;
pub use queues::{CompletionQueue, SharedReceive};
pub use redial::Backoff;
pub use rereg::ExposedChange;
pub use sleep::run_sleeping;
pub use spread::{IndirectionTable, WorkQueue};
pub use state::{Mtu, QpFields, QpState};
pub use window::Window;
pub use xrc::{SrqInit, XrcDomain};
