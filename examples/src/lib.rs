//! Programs that use Doorbell: echo, and counterparts of well-known RDMA programs.
//!
//! The example of the repository's README is compiled and run here.
#![doc = include_str!("../../README.md")]

pub mod interop;
#[cfg(feature = "sim")]
pub mod sim;
