//! Memory that a NIC may touch: mappings, the pages under them, and pools of fixed blocks.
//!
//! A NIC reads and writes memory behind the program's back, so the memory must stay where it is,
//! stay as long as the NIC may use it, and should lie in large pages, because the NIC translates
//! addresses through a cache that holds few of them. This crate obtains such memory, says what
//! it really obtained, and cuts it into blocks. It knows nothing of RDMA.
//!
//! From the operating system upwards:
//!
//! - [`MapRequest`] asks for memory (feature `std`, Linux): huge pages, a memfd that a second
//!   process can map, locking, prefaulting. What could not be had is a note in [`Got`] with the
//!   command that mends it, or an error when the request is [`strict`](MapRequest::strict).
//! - [`Machine`] answers for the limits that decide a request, which are read before it is tried;
//!   [`MapRequest::outlook`] says what would come of it, here or on a recorded machine.
//! - [`Mapping`] owns the bytes until it is dropped, and [`where_is`](fn@where_is) tells the NUMA
//!   node of each of them. Without `std` a mapping can be made from a static or from parts.
//! - [`Arena`] cuts one region into pieces that never overlap, so that one registration serves all.
//! - [`BlockPool`] hands out fixed blocks of a region by index, in constant time, and never
//!   allocates after it was made; [`Depot`] is the stock behind the caches of several workers.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use doorbell_alloc::{BlockPool, Mapping};
//!
//! let memory = Mapping::huge(256 * 2048)?;
//! for note in memory.got().notes() {
//!     eprintln!("{note}"); // asked 2 MiB pages, got plain: 0 of 1 huge pages free; mend: echo ...
//! }
//!
//! let mut pool = BlockPool::over(memory.len(), 2048)?;
//! let block = pool.take().ok_or("a fresh pool has blocks")?;
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

#[cfg(all(feature = "std", target_os = "linux"))]
mod linux;

mod mapping;

mod got;
mod pages;
mod place;
mod why;

mod arena;

mod pool;

pub mod arith;

pub use arena::{Arena, ArenaError, CACHE_LINE, Foreign, Piece};
pub use arith::SizeError;
pub use got::{Got, Shortfall};
#[cfg(all(feature = "std", target_os = "linux"))]
pub use linux::{Machine, MapError, MapRequest, MemfdError, Where, where_is};
pub use mapping::{Mapping, Release};
pub use pages::{Ask, Pages};
pub use place::Place;
pub use pool::{BlockPool, Depot, NotHome};
pub use why::{Bound, Lack, Why};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
