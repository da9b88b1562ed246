//! The datapath of Doorbell, `no_std` always: what a core does between two messages.
//!
//! In the order a message meets them:
//!
//! - [`wr`] and [`wc`]: requests and completions, plain data; [`event`]: what happens beside them;
//! - [`provider`]: the seam, and behind it the devices;
//! - [`worker`]: the loop that polls, dispatches, posts;
//! - [`rpc`] and [`large`]: calls and answers, and messages larger than a block, over it, for who
//!   wants them.
//!
//! Set-up allocates (through the global allocator); after it the data plane does not.

#![no_std]

extern crate alloc as std_alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod error;
pub mod event;
pub mod large;
#[cfg(test)]
#[cfg(loom)]
mod models;
pub mod provider;
mod room;
pub mod rpc;
mod sync;
pub mod wc;
pub mod worker;
pub mod wr;
