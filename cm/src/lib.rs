//! The control plane of Doorbell: the RDMA connection manager, on both devices.
//!
//! Layer 0 is a safe form of the man pages' calls: [`AddrInfo`], [`Id`], [`Endpoint`], events.
//! Layer 1, [`Listener`] and [`Dialer`], connects the workers of `doorbell-engine`.
//!
//! Everything is generic over a [`Fabric`]: a device with its connection manager. [`Device`]
//! chooses one at run time.

mod buffer;
pub mod c_names;
mod completion;
mod connections;
mod cq;
mod datagram;
mod device;
mod dialer;
mod endpoint;
mod error;
mod export;
mod exposed;
mod external;
mod frames;
mod id;
mod init;
mod listener;
mod memory;
mod metrics;
mod peer_handle;
mod pin;
mod port;
mod posted;
mod qp;
mod redial;
mod request;
mod rereg;
mod rss;
mod runtime;
mod sleep;
mod srq;
mod stop;
mod target;
mod trace;
mod wait;
mod window;
mod worker_qp;
mod xrc;

pub use buffer::Buffer;
pub use completion::{Completion, SendRequest};
pub use cq::CompletionQueue;
pub use device::{Device, Program};
pub use dialer::Dialer;
pub use endpoint::Endpoint;
pub use error::{NotChanged, PostFailed, Refused};
pub use export::{Export, exporting_processes, read_metrics};
pub use exposed::Exposed;
pub use external::ExternalQp;
pub use id::{ByHand, Groups, Id, Queues};
pub use init::QpInit;
pub use listener::{Listener, RefusedRequest};
pub use memory::message_memory;
pub use peer_handle::{PeerHandle, PeerState};
pub use port::Port;
pub use redial::Backoff;
pub use request::{Answer, ConnectRequest};
pub use rereg::ExposedChange;
pub use rss::{IndirectionTable, WorkQueue};
pub use runtime::{Idle, Runtime};
pub use sleep::{clock_ns, run_sleeping};
pub use srq::{SharedReceive, SrqInit};
pub use stop::{Stop, Why};
pub use target::Target;
pub use wait::WakeFd;
pub use window::Window;
pub use xrc::XrcDomain;

pub use doorbell_fabric::{ACCEPT_DATA_MAX, CONNECT_DATA_MAX, REJECT_DATA_MAX};
pub use doorbell_fabric::{AddrInfo, Hints, Mtu, QpFields, QpState};
pub use doorbell_fabric::{Channel, CmId, Event, EventKind, Fabric, IdKey, Rejection};
pub use doorbell_fabric::{CmError, Credentials, InUse, QpAttr, QpAttrEx};
pub use doorbell_fabric::{ConnParam, Depths, IdOption, Join, PathRecord, PortSpace, Source};
pub use doorbell_fabric::{UDP_QKEY, UdParam};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
