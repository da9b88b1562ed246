//! Programs that use Doorbell: one page for each thing it does, and counterparts of well-known RDMA
//! programs.
//!
//! The example of the repository's README is compiled here.
#![doc = include_str!("../../README.md")]

pub mod cli;
pub mod control;
pub mod interop;
pub mod place;
#[cfg(feature = "sim")]
pub mod sim;
