//! The soft device: RDMA in software, embedded, with no NIC, kernel module or root.
//!
//! The receiver's poll does the NIC's work. A post writes records to a ring in shared memory and
//! publishes them at once; the peer's poll moves each into the next posted receive and makes the
//! completion. The folders are layers, in this order; each uses those before it, and
//! `cargo xtask test --only tidy` holds the arrows:
//!
//! | folder | holds |
//! |---|---|
//! | `model` | verbs semantics that know no wire: keys, receive and completion queues, send slots |
//! | `shm` | shared memory: a link's layout, ring, slot, copies, wakers, inboxes |
//! | `device` | what queue pairs share: the tables, protection domains, neighbours |
//! | `state` | what a domain holds: links and their policies, queue pairs |
//! | `steps` | the steps of the data plane; the domain that runs them, and its commands |
//! | `handles`, `ext` | what programs hold: the core, and what few use (raw frames, XRC, ...) |
//! | `wire` | the far end of a link for another wire than shared memory |
//! | `control`, `sim` | connections between processes; a network in virtual time |
//!
//! A message passes, in this order: `handles/seam` → `steps/requester`, or `steps/deferred`
//! where it is published later → `shm/ring` → the peer's `steps/poll` → `shm/reader`, `shm/burst` →
//! `steps/receive` → `model/recvq` → `state/completion`, `model/cq`. A one-sided request goes the
//! same way to `steps/responder`, and its response comes back through `steps/read_response`.
//!
//! What one process shares is a [`Soft`]. Connections between processes are the business of the
//! control plane, which passes the memory of a [`LinkShared`] from one to the other.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc as std_alloc;
#[cfg(all(any(test, loom, feature = "sim"), not(feature = "std")))]
extern crate std;

mod device;
mod ext;
mod handles;
mod model;
mod shm;
mod state;
mod steps;

// The far end of a link, for another wire than shared memory.
#[cfg(any(feature = "std", feature = "sim"))]
pub mod wire;

// The control plane: connections between processes.
#[cfg(feature = "std")]
mod control;

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(any(test, feature = "sim"))]
#[cfg(not(any(loom, miri)))]
#[doc(hidden)]
pub mod scribbler;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
#[cfg(test)]
#[cfg(loom)]
mod weakened;

use doorbell_base::{prefetch, room, sync};
use doorbell_seam::{error, event, provider, wc, wr};

#[cfg(feature = "std")]
pub use self::control::{
    Attempt, Carrier, CarrierEnd, Parting, PeerQp, Requests, SOFT_DEVICE, SoftChannel, SoftDevice,
    SoftId, Uncancelled, Waiter,
};
pub use self::device::host::{Host, Member, Membership, Neighbours};
pub use self::device::path::{SoftAh, has_room};
pub use self::device::pd::SoftTd;
pub use self::ext::cq_ex::SoftPollerEx;
pub use self::ext::raw::{SEGMENT_HEADER_MAX, SoftFlow, SoftIndTable, SoftWq};
pub use self::ext::xrc::SoftXrcd;
pub use self::handles::create_qp::{SoftQpEx, SoftQpInit};
pub use self::handles::device::Soft;
pub use self::handles::poller::{LeftReceive, SoftCq, SoftPoller};
pub use self::handles::qp_control::{QpControl, Wiring};
pub use self::handles::queue_pair::{Flushes, SharedReceives, SharedSends, SoftQp};
pub use self::handles::region::{SoftRegion, SoftWindow};
pub use self::handles::srq::SoftSrq;
pub use self::model::biased::{Biased, Guard, Threads};
pub use self::model::buffers::ReadOnly;
pub use self::model::slot::FileName;
pub use self::model::table::DIRECTORY_BYTES;
pub use self::shm::changes::Changes;
pub use self::shm::inbox::{INBOX_BYTES, OpenNotifier};
pub use self::shm::layout::{LINK_BYTES, Side};
pub use self::shm::remote_map::{Attach, Look, Openers, RemoteMap};
pub use self::state::link_shared::LinkShared;

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
