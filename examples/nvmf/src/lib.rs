//! An NVMe-oF target on the RDMA transport, an initiator as a library, and an NBD gateway, on
//! Doorbell's control plane and queue pairs.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | capsules, descriptors, pages: builders and parsers without I/O |
//! | [`subsystem`], [`controller`], [`session`] | the protocol's state, also without I/O |
//! | [`store`] | where blocks are kept |
//! | [`target`] | queue pairs, poll loops, moving data |
//! | [`initiator`] | the host's side |
//! | [`nbd`] | a gateway for programs that speak NBD |

pub mod admin;
pub mod controller;
pub mod initiator;
pub mod io;
pub mod nbd;
mod rest;
pub mod session;
pub mod store;
pub mod subsystem;
pub mod target;
pub mod wire;
