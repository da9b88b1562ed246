//! The seam between Doorbell's worker and its devices, `no_std`.
//!
//! - [`wr`] and [`wc`]: requests and completions, plain data; [`event`]: what happens beside them;
//! - [`provider`]: the traits a device implements, and what it is made and asked with;
//! - [`error`]: what set-up calls answer.
//!
//! A device needs nothing else of Doorbell, and the worker knows no device.

#![no_std]

extern crate alloc as std_alloc;
#[cfg(test)]
extern crate std;

pub mod error;
pub mod event;
#[cfg(feature = "sim")]
pub mod prng;
pub mod provider;
pub mod wc;
pub mod wr;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
