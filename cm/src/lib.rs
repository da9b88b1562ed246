//! The control plane of Doorbell: the RDMA connection manager, on both devices.
//!
//! Layer 0 is a safe form of the man pages' calls: [`AddrInfo`], [`Id`], [`Endpoint`], events.
//! Layer 1, [`Listener`] and [`Dialer`], connects the workers of `doorbell-engine`, and [`Runtime`]
//! runs a program's workers, its control plane and its end.
//!
//! Everything is generic over a [`Fabric`]: a device with its connection manager. [`Device`]
//! chooses one at run time.
//!
//! Numbers such as CM-13 name clauses of `cm/CLAUSES.md`, which lists the rules of verbs and of the
//! connection manager.
//!
//! The files below are grouped: the device; ids and queue pairs, memory and queues (Layer 0);
//! connections and the run of a program (Layer 1); metrics and traces.

mod device;
mod error;

pub mod c_names;
mod datagram;
mod endpoint;
mod external;
mod frames;
mod id;
mod init;
mod qp;
mod target;

mod buffer;
mod exposed;
mod memory;
mod rereg;
mod window;

mod completion;
mod cq;
mod posted;
mod rss;
mod srq;
mod xrc;

mod connections;
mod dialer;
mod leaving;
mod listener;
mod peer_handle;
mod port;
mod redial;
mod request;
mod worker_qp;

mod pin;
mod runtime;
mod sleep;
mod stop;
mod wait;

mod export;
mod metrics;
mod trace;

pub use device::{Device, Program};
pub use error::{NotChanged, PostFailed, Refused};

pub use endpoint::Endpoint;
pub use external::ExternalQp;
pub use id::{ByHand, Groups, Id, Queues};
pub use init::QpInit;
pub use target::Target;

pub use buffer::Buffer;
pub use exposed::Exposed;
pub use memory::message_memory;
pub use rereg::ExposedChange;
pub use window::Window;

pub use completion::{Completion, SendRequest};
pub use cq::CompletionQueue;
pub use rss::{IndirectionTable, WorkQueue};
pub use srq::{SharedReceive, SrqInit};
pub use xrc::XrcDomain;

pub use dialer::Dialer;
pub use listener::{Listener, RefusedRequest};
pub use peer_handle::{PeerHandle, PeerState};
pub use port::Port;
pub use redial::Backoff;
pub use request::{Answer, ConnectRequest};

pub use runtime::{Idle, Runtime};
pub use sleep::{clock_ns, run_sleeping};
pub use stop::{Stop, Why};
pub use wait::WakeFd;

pub use export::{Export, exporting_processes, read_metrics};

pub use doorbell_fabric::{ACCEPT_DATA_MAX, CONNECT_DATA_MAX, REJECT_DATA_MAX};
pub use doorbell_fabric::{AddrInfo, Hints, Mtu, QpFields, QpState};
pub use doorbell_fabric::{Channel, CmId, Event, EventKind, Fabric, IdKey, Rejection};
pub use doorbell_fabric::{CmError, Credentials, InUse, QpAttr, QpAttrEx};
pub use doorbell_fabric::{ConnParam, Depths, IdOption, Join, PathRecord, PortSpace, Source};
pub use doorbell_fabric::{UDP_QKEY, UdParam};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
