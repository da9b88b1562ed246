//! A short example for each feature of Doorbell. Documentation only.
//!
//! | module | has examples of |
//! |---|---|
//! | [`devices`] | a program for any device, endpoints as in the man pages, a NIC |
//! | [`workers`] | a worker's configuration, waiting for room, calls, datagrams, tokio and epoll |
//! | [`connections`] | who may connect, an end in order, an end of one direction |
//! | [`memory`] | huge pages, files, one-sided requests of peers, messages without a copy |
//! | [`monitoring`] | metrics, a look into a running program, events, probes |

pub mod connections;
pub mod devices;
pub mod memory;
pub mod monitoring;
pub mod workers;
