//! The imports of most programs: `use doorbell::prelude::*`.

pub use crate::alloc::Mapping;
pub use crate::provider::{Access, Provider, Region};
pub use crate::remote::RemoteMemory;
#[cfg(feature = "std")]
pub use crate::soft::SoftDevice;
pub use crate::wc::Status;
pub use crate::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, SendError, SharedRecv, Verdict,
    Worker,
};
#[cfg(feature = "std")]
pub use crate::{
    AddrInfo, Answer, Backoff, Buffer, CmError, ConnParam, Device, Dialer, Endpoint, Fabric, Hints,
    Id, Idle, Listener, PeerHandle, PeerState, Port, PortSpace, Program, QpInit, Runtime, Stop,
    Why, message_memory,
};
