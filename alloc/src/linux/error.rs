//! Why memory could not be mapped.

use std::format;
use std::io;
use std::string::String;

use thiserror::Error;

use crate::arith::SizeError;
use crate::got::Shortfall;
use crate::pages::Pages;
use crate::place::Place;
use crate::why::Why;

/// Why [`MapRequest::map`](crate::MapRequest::map) gave no mapping.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0 or does not fit the address space.
    #[error("cannot map {len} bytes: {source}")]
    Size {
        /// Bytes asked for.
        len: usize,
        /// What is wrong with them.
        source: SizeError,
    },
    /// A strict request for huge pages, and the pool is short.
    #[error(
        "asked {needed} pages of {asked}, the pool{} has {free} free; mend: {cure}",
        of(*.node)
    )]
    NoHugePages {
        /// The kind asked for.
        asked: Pages,
        /// Pages needed.
        needed: usize,
        /// Pages free and not promised to others.
        free: usize,
        /// The node whose share of the pool it is; `None` for the whole machine.
        node: Option<u32>,
        /// The command that reserves enough.
        cure: String,
    },
    /// A strict request, and pages of the kind asked could not be had for another reason; or not
    /// even plain pages are to be had.
    #[error("asked {asked} pages, got none: {why}")]
    NoPages {
        /// The kind asked for.
        asked: Pages,
        /// What stood in the way, with the cure.
        why: Why,
    },
    /// [`Place::Only`] or a strict request, and the memory could not be had on the node.
    #[error("asked {asked}, got none: {why}")]
    Place {
        /// The node asked for.
        asked: Place,
        /// What stood in the way, with the cure.
        why: Why,
    },
    /// A strict request, and the pages could not be locked.
    #[error("{0}")]
    Lock(Shortfall),
    /// A system call failed.
    #[error("{call} for {len} bytes failed: {source}; mend: {cure}")]
    System {
        /// The call.
        call: &'static str,
        /// Bytes asked for.
        len: usize,
        /// What may help.
        cure: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

/// The words for a node's share.
fn of(node: Option<u32>) -> String {
    node.map(|node| format!(" of node {node}")).unwrap_or_default()
}

/// Why [`Mapping::from_memfd`](crate::Mapping::from_memfd) refused a descriptor. What came from
/// another process is not trusted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemfdError {
    /// The descriptor is not a memfd, or one that cannot be sealed.
    #[error("the descriptor is no sealable memfd: {0}; mend: send one made by a shared mapping")]
    NotMemfd(io::Error),
    /// The memfd may still shrink; reading past its end would kill this process (SIGBUS).
    #[error("the memfd may shrink under us (seals {seals:#x}); mend: its maker adds F_SEAL_SHRINK")]
    MayShrink {
        /// The seals it has, as in fcntl(2) `F_GET_SEALS`.
        seals: i32,
    },
    /// The memfd is shorter than claimed.
    #[error("the peer claims {claimed} bytes, the memfd has {size}; mend: send its true length")]
    Short {
        /// Bytes the memfd has.
        size: u64,
        /// Bytes claimed.
        claimed: usize,
    },
    /// Mapping it failed.
    #[error(transparent)]
    Map(#[from] MapError),
}
