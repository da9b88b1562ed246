//! The seam between Doorbell's control plane and its devices: a connection manager as in the man
//! pages.
//!
//! - [`Fabric`]: a device with its connection manager; [`CmId`], [`Channel`], [`Event`]: what it
//!   hands out;
//! - [`AddrInfo`], [`QpAttr`], [`ConnParam`] and others: its arguments;
//! - [`QpState`], [`QpFields`]: the states of a queue pair, in one table for every device.

mod fabric;

mod addr;
mod attr;
pub mod extended;
mod state;

mod error;
mod failure;

pub use addr::{AddrInfo, Hints};
pub use attr::{ACCEPT_DATA_MAX, ACK_TIMEOUT_MAX, CONNECT_DATA_MAX, REJECT_DATA_MAX};
pub use attr::{ConnParam, Credentials, Depths, IdOption, Join, PathRecord, PortSpace, Source};
pub use attr::{UDP_QKEY, UdParam};
pub use error::{CmError, InUse};
pub use fabric::{Channel, CmId, Event, EventKind, Fabric, IdKey, QpAttr, QpAttrEx, Rejection};
pub use state::{Mask, Mtu, QpFields, QpState};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
