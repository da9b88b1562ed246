//! The building blocks of the datapath, `no_std`: [`room`], lists and a map that never
//! panic for lack of memory, [`sync`], atomics for memory that threads and processes share, and
//! [`prefetch`] of cache lines.
//!
//! In a model run (`--cfg loom`) the atomics are loom's, and `models` runs a crate's models with
//! each memory order weakened in turn.

#![no_std]

extern crate alloc as std_alloc;
#[cfg(any(test, loom))]
extern crate std;

#[cfg(loom)]
pub mod models;
pub mod prefetch;
pub mod room;
pub mod sync;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
