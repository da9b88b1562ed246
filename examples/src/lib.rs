//! Echo, and programs that talk to real RDMA peers.
//!
//! The README's example is compiled here, so that it stays true.
#![doc = include_str!("../../README.md")]

pub mod interop;
#[cfg(feature = "sim")]
pub mod sim;
