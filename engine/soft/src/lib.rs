//! The soft device: RDMA in software, embedded, with no NIC, kernel module or root.
//!
//! The receiver's poll does the NIC's work. A post writes records to a ring in shared memory and
//! publishes them at once; the peer's poll moves each into the next posted receive and makes the
//! completion. The modules below are in the order of the arrows: a file uses those above it.
//!
//! A message passes, in this order: `queue_pair` (the handle) → `requester`, or `deferred` where it
//! is published later → `ring` → the peer's `poll` → `reader`, `burst` → `receive` → `recvq` →
//! `completion`, `cq`. A one-sided request goes the same way to `responder`, and its response comes
//! back through `read_response`.
//!
//! What one process shares is a [`Soft`]. Connections between processes are the business of the
//! control plane, which passes the memory of a [`LinkShared`] from one to the other.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc as std_alloc;
#[cfg(all(any(test, loom, feature = "sim"), not(feature = "std")))]
extern crate std;

// Known to all.
mod limits;

// Verbs semantics: keys, receive queues, completion queues.
mod cq;
mod local_waker;
mod memory;
mod pieces;
mod reads;
mod recvq;
mod send_queue;

// Shared memory: its layout, a direction's two ends, what wakes a peer.
mod burst;
mod copy;
#[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
mod copy_x86;
mod inbox;
mod layout;
mod peer_waker;
mod reader;
mod remote_map;
mod ring;
mod wrap_policy;

// A link, and its policies.
mod link;
mod policy;
mod responses;

// The device, its protection domains, its neighbours.
mod host;
mod nic;
mod path;
mod pd;

// A queue pair.
mod qp;
mod qp_table;
mod xrc_part;

// The state of a domain.
mod completion;
mod inboxes;
mod link_scheduler;
mod predicted;
mod resources;
mod state;
mod transport;

// The steps of the data plane.
mod admission;
mod backlog;
mod deferred;
mod local_rdma;
mod poll;
mod read_response;
mod receive;
mod requester;
mod responder;
mod service;
mod sleep;
mod unreliable;
mod xrc_receive;

// Commands of the control plane, and the domain that carries them out.
mod command;
mod domain;
mod execute;

// The handles.
mod cq_ex;
mod create_qp;
mod datagram;
mod device;
mod extension;
mod poller;
mod qp_control;
mod queue_pair;
mod raw;
mod region;
mod reset_sqd;
mod seam;
mod srq;
mod xrc;
mod xrc_create;

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

use doorbell_base::{room, sync};
use doorbell_seam::{error, event, provider, wc, wr};

#[cfg(feature = "std")]
pub use self::control::{Carrier, CarrierEnd, SOFT_DEVICE, SoftChannel, SoftDevice, SoftId};
pub use self::cq_ex::SoftPollerEx;
pub use self::create_qp::{SoftQpEx, SoftQpInit};
pub use self::device::Soft;
pub use self::host::{Host, Member, Membership, Neighbours};
pub use self::inbox::{INBOX_BYTES, OpenBell};
pub use self::layout::{LINK_BYTES, Side};
pub use self::link::LinkShared;
pub use self::memory::{DIRECTORY_BYTES, FileName};
pub use self::path::SoftAh;
pub use self::pd::SoftTd;
pub use self::poller::{SoftCq, SoftPoller};
pub use self::qp_control::{QpControl, Wiring};
pub use self::queue_pair::SoftQp;
pub use self::raw::{SEGMENT_HEADER_MAX, SoftFlow, SoftIndTable, SoftWq};
pub use self::region::{SoftRegion, SoftWindow};
pub use self::remote_map::{Attach, RemoteMap};
pub use self::srq::SoftSrq;
pub use self::xrc::SoftXrcd;

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
