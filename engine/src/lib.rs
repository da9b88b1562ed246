//! The datapath of Doorbell, `no_std` always: what a core does between two messages.
//!
//! - [`worker`]: the loop that polls, dispatches, posts, over any device of `doorbell-seam`;
//! - [`rpc`] and [`large`]: calls and answers, and messages larger than a block, over it;
//! - [`latency`] and [`metrics`]: how long calls took, and the counters as text for Prometheus.
//!
//! Set-up allocates (through the global allocator); after it the data plane does not.

#![no_std]

extern crate alloc as std_alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod large;
pub mod latency;
pub mod metrics;
#[cfg(test)]
#[cfg(loom)]
mod models;
pub mod rpc;
mod search;
pub mod worker;

use doorbell_base::{prefetch, room, sync};
use doorbell_seam::{error, provider, remote, wc, wr};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
