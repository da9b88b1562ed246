//! The datapath of Doorbell: what a core does between two messages. Always `no_std`.
//!
//! - [`worker`]: the loop that polls, dispatches and posts, over any device of `doorbell-seam`;
//! - [`rpc`]: calls and answers over a worker's messages;
//! - [`large`]: messages larger than a block;
//! - [`latency`]: a histogram of times; [`metrics`]: counters as text for Prometheus.
//!
//! Set-up allocates, through the global allocator. After it the data plane does not.
//!
//! Numbers such as RC-1 name clauses of `cm/CLAUSES.md`, which lists the rules of verbs.

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
