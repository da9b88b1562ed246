//! Errors of mapping, and of the system calls behind it.

use core::fmt;
use std::format;
use std::io;
use std::string::String;

use thiserror::Error;

use crate::arith::SizeError;
use crate::pages::Pages;
use crate::place::Place;
use crate::reason::Reason;
use crate::report::Shortfall;

/// Why [`MapRequest::map`](crate::MapRequest::map) gave no mapping.
#[derive(Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0 or does not fit in the address space.
    #[error("cannot map {len} bytes: {source}")]
    Size {
        /// Bytes asked for.
        len: usize,
        /// What is wrong with the length.
        source: SizeError,
    },
    /// A strict request for huge pages, and the reserved pool has too few.
    #[error(
        "asked {needed} pages of {asked}, the pool{} has {free} free; fix: {fix}",
        of_node(*.node)
    )]
    NoHugePages {
        /// The kind asked for.
        asked: Pages,
        /// Pages needed.
        needed: usize,
        /// Pages that are free and not reserved by other mappings.
        free: usize,
        /// The node whose share of the pool is short; `None` for the whole machine.
        node: Option<u32>,
        /// The command that reserves enough pages.
        fix: String,
    },
    /// A strict request, and pages of the kind asked for are not available for another reason; or
    /// any request, and not even plain pages are available.
    #[error("asked {asked} pages, got none: {reason}")]
    NoPages {
        /// The kind asked for.
        asked: Pages,
        /// Why not, and what to do.
        reason: Reason,
    },
    /// [`Place::Only`] or a strict request, and the memory is not available on that node.
    #[error("asked {asked}, got none: {reason}")]
    Place {
        /// The node asked for.
        asked: Place,
        /// Why not, and what to do.
        reason: Reason,
    },
    /// A strict request, and the pages could not be locked.
    #[error("{0}")]
    Lock(Shortfall),
    /// A system call failed.
    #[error("{call} for {len} bytes failed: {source}; fix: {fix}")]
    System {
        /// The call.
        call: &'static str,
        /// Bytes asked for.
        len: usize,
        /// What may help.
        fix: &'static str,
        /// What the system answered.
        source: io::Error,
    },
}

impl MapError {
    /// The errno that says best what is missing: that of the system call that failed, such as
    /// EMFILE (24) if no descriptor is left for shared memory; else ENOMEM (12).
    pub fn errno(&self) -> i32 {
        match self {
            MapError::System { source, .. } => source.raw_os_error().unwrap_or(libc::ENOMEM),
            MapError::NoPages { reason: Reason::Refused { errno, .. }, .. } => *errno,
            _ => libc::ENOMEM,
        }
    }
}

impl fmt::Debug for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names the node whose share of the pool is meant, if it is one node's.
fn of_node(node: Option<u32>) -> String {
    node.map(|node| format!(" of node {node}")).unwrap_or_default()
}

/// Why [`Mapping::from_memfd`](crate::Mapping::from_memfd) refused a descriptor. A descriptor from
/// another process is not trusted.
#[derive(Error)]
#[non_exhaustive]
pub enum MemfdError {
    /// The descriptor is not a memfd, or the memfd cannot be sealed.
    #[error("the descriptor is not a sealable memfd: {0}; fix: send that of a shared mapping")]
    NotMemfd(io::Error),
    /// The memfd may still shrink, and a read past its end would kill this process (SIGBUS).
    #[error("the memfd may still shrink (seals {seals:#x}); fix: its owner must add F_SEAL_SHRINK")]
    MayShrink {
        /// Its seals, as fcntl(2) `F_GET_SEALS` returns them.
        seals: i32,
    },
    /// The memfd is shorter than the peer claims.
    #[error("the peer claims {claimed} bytes, the memfd has {size}; fix: send its true length")]
    Short {
        /// Bytes the memfd has.
        size: u64,
        /// Bytes claimed.
        claimed: usize,
    },
    /// The memfd could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl fmt::Debug for MemfdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl MemfdError {
    /// As [`MapError::errno`]; EINVAL (22) if the descriptor is not what it should be.
    pub fn errno(&self) -> i32 {
        match self {
            MemfdError::Map(error) => error.errno(),
            _ => libc::EINVAL,
        }
    }
}

/// Why [`Mapping::file`](crate::Mapping::file) gave no mapping.
#[derive(Error)]
#[non_exhaustive]
pub enum FileError {
    /// A device, a pipe or a folder has no bytes that can be mapped.
    #[error("the file is not a regular one; fix: copy what it holds into a file")]
    NotRegular,
    /// Other users could truncate the file, which would kill this process (SIGBUS).
    #[error(
        "other users may write to the file (owner {owner}, mode {mode:o}); \
         fix: chown it to this user and chmod go-w it, or use FileUse::Copy"
    )]
    OthersMayWrite {
        /// The user who owns it.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Somebody else holds the lock on the file.
    #[error("the file is locked; fix: end the process that maps it (lslocks names it)")]
    Locked,
    /// There is less to copy than was asked for.
    #[error("asked to copy {asked} bytes, the file has {size}; fix: ask for its true length")]
    Short {
        /// Bytes the file has.
        size: u64,
        /// Bytes asked for.
        asked: usize,
    },
    /// The memory could not be mapped, or a system call failed.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl fmt::Debug for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What helps when memory itself is short.
pub(super) const SHORT_OF_MEMORY: &str = "free memory, or raise the memory limit of this process";

/// The result of a system call that returns 0 or more on success, and -1 and errno on failure.
pub(super) fn check(code: i32) -> io::Result<()> {
    if code == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the error of a failed system call.
pub(super) fn system(
    call: &'static str,
    len: usize,
    fix: &'static str,
) -> impl Fn(io::Error) -> MapError {
    move |source| MapError::System { call, len, fix, source }
}
