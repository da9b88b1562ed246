//! Memory that a NIC may touch: mappings in huge pages, and pools of fixed blocks.
//!
//! A NIC reads and writes memory behind the program's back. So the memory must not move, must stay
//! mapped as long as the NIC may use it, and should be in large pages, because the NIC translates
//! addresses through a cache with few entries. This crate obtains such memory, reports what it
//! really got, and cuts it into blocks. It knows nothing of RDMA.
//!
//! From the operating system upwards:
//!
//! - [`MapRequest`] asks for memory (feature `std`, Linux): huge pages, a NUMA node, a memfd that
//!   another process can map, locking, prefaulting. Whatever the machine cannot give is a note in
//!   the [`MapReport`] that says how to fix it, or an error if the request is
//!   [`strict`](MapRequest::strict).
//! - [`Machine`] reads the limits that decide a request; [`MapRequest::outlook`] predicts its
//!   result from them, for this machine or a recorded one.
//! - [`Mapping::file`] makes memory of a file, or a copy of one.
//! - [`Mapping`] owns the bytes until it is dropped, and [`where_is`](fn@where_is) says on which
//!   NUMA node they are. Without `std`, a mapping is made from a static buffer or from raw parts.
//! - [`Arena`] cuts one region into pieces that never overlap, so that one registration serves them
//!   all.
//! - [`BlockPool`] hands out fixed blocks of a region by index. It takes constant time and never
//!   allocates. [`SharedPool`] stands behind the pools of several workers.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use doorbell_alloc::{BlockPool, Mapping};
//!
//! let memory = Mapping::huge(256 * 2048)?;
//! for note in memory.report().notes() {
//!     eprintln!("{note}"); // asked 2 MiB pages, got plain: 0 of 1 huge pages free; fix: echo ...
//! }
//!
//! let mut pool = BlockPool::over(memory.len(), 2048)?;
//! let block = pool.take().ok_or("a new pool has blocks")?;
//! let at = pool.offset(block).unwrap();
//! assert!(at + pool.block_size() <= memory.len());
//! pool.put(block);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "std"))]
//! # fn main() {}
//! ```
#![no_std]

extern crate alloc as std_alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(all(feature = "std", not(target_os = "linux")))]
compile_error!("feature `std` maps memory with Linux system calls; build without it elsewhere");

/// Compiles and runs the example of the README.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod arith;

mod pages;
mod place;

mod reason;
mod report;

mod mapping;

#[cfg(all(feature = "std", target_os = "linux"))]
mod linux;

mod arena;

mod pool;

pub use arena::{Arena, ArenaError, CACHE_LINE, Piece, WrongArena};
pub use arith::SizeError;
#[cfg(all(feature = "std", target_os = "linux"))]
pub use linux::{FileError, FileUse, Machine, MapError, MapRequest, MemfdError, View};
#[cfg(all(feature = "std", target_os = "linux"))]
pub use linux::{Where, where_is};
pub use mapping::{Mapping, Release};
pub use pages::{Ask, Pages};
pub use place::Place;
pub use pool::{BlockPool, LeakedBlocks, SharedPool};
pub use reason::{Limit, NodeFault, Reason};
pub use report::{MapReport, Shortfall};
