//! What to measure, and the resulting figures.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::ids::Ids;
use crate::pin::PinError;
use crate::place::PlaceError;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The CPUs to measure the latency between. Each pair takes about ten milliseconds.
    pub cpus: Ids,
    /// Memory that the cores of a node read together, bytes. It should be larger than their caches.
    /// With 0, bandwidth is not measured.
    pub memory_bytes: u64,
}

/// Latency between the cores of a machine, and bandwidth between its nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The CPUs, ascending.
    pub cpus: Vec<usize>,
    /// Half the round trip between each two CPUs, nanoseconds, in the order of `cpus`; `None` from
    /// a CPU to itself.
    pub latency_ns: Vec<Vec<Option<f64>>>,
    /// For every node with CPUs, the bandwidth to every node with memory.
    pub bandwidth: Vec<Bandwidth>,
}

/// How fast the cores of one node read the memory of another node, or of their own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The node of the cores.
    pub node: usize,
    /// Number of cores that read at the same time.
    pub cores: usize,
    /// The node of the memory.
    pub memory_node: usize,
    /// Bytes that all these cores together read in a second.
    pub bytes_per_second: f64,
}

/// Why a measurement failed.
#[derive(Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The CPUs or the memory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The memory could not be mapped.
    #[error("cannot map {bytes} bytes to read: {source}; ask for less")]
    Memory {
        /// Bytes for each core.
        bytes: usize,
        /// The error of mmap(2).
        source: std::io::Error,
    },
    /// So much memory was asked for that the kernel might kill programs to make room.
    #[error(
        "asked to read {bytes} bytes of node {node}, which has {free} bytes free or used for \
         cached files; ask for at most half of that: use --memory"
    )]
    TooMuch {
        /// The node.
        node: usize,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that are free, or that the kernel can free because they only cache files.
        free: u64,
    },
    /// The same core was named twice.
    #[error("there is no latency from core {0} to itself; name two cores")]
    Same(usize),
    /// A measuring thread panicked, which is a bug.
    #[error("a measuring thread panicked")]
    Lost,
}

impl fmt::Debug for MeasureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
