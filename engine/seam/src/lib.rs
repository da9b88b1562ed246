//! The seam between Doorbell's worker and its devices, `no_std`.
//!
//! - [`wr`] and [`wc`]: requests and completions, plain data; [`event`]: asynchronous events;
//! - [`provider`]: the traits that a device implements, and the types they use;
//! - [`remote`]: what a peer tells about memory that it exposes;
//! - [`error`]: errors of set-up calls.
//!
//! A device needs nothing else from Doorbell, and the worker knows no particular device.

#![no_std]

extern crate alloc as std_alloc;
#[cfg(test)]
extern crate std;

pub mod error;
pub mod event;
#[cfg(feature = "sim")]
pub mod prng;
pub mod provider;
pub mod remote;
pub mod wc;
pub mod wr;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
