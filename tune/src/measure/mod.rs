//! What a plan rests on: how far cores are from each other, and nodes from memory.

mod bandwidth;
mod latency;

use serde::Serialize;
use thiserror::Error;

pub use latency::floor;

use crate::ids::Ids;
use crate::machine::Machine;
use crate::pin::PinError;
use crate::place::{self, PlaceError};

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The CPUs between which messages go. Each pair takes some ten milliseconds.
    pub cpus: Ids,
    /// Memory that the cores of a node read together, in bytes: more than their caches hold. 0
    /// leaves bandwidth out.
    pub memory_bytes: u64,
}

/// Figures of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The CPUs, ascending.
    pub cpus: Vec<usize>,
    /// Half a round trip from each to each, in nanoseconds, in the order of `cpus`; none from a CPU
    /// to itself.
    pub latency_ns: Vec<Vec<Option<f64>>>,
    /// From every node with CPUs to every node with memory.
    pub bandwidth: Vec<Bandwidth>,
}

/// How fast the cores of one node read the memory of one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The node of the cores.
    pub node: usize,
    /// Cores that read, all at once.
    pub cores: usize,
    /// The node of the memory.
    pub memory_node: usize,
    /// Bytes read a second, all together.
    pub bytes_per_second: f64,
}

/// Why there are no figures.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A CPU cannot be had.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The CPUs or the memory cannot be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is not that much memory.
    #[error("asked for {bytes} bytes to read, the system answered: {source}; ask for less")]
    Memory {
        /// Bytes for one core.
        bytes: usize,
        /// What mmap(2) answered.
        source: std::io::Error,
    },
    /// So much that the kernel might end programs to make room.
    #[error(
        "asked to read {bytes} bytes of node {node}, of which {free} are free; ask for half of \
         that at most"
    )]
    TooMuch {
        /// The node.
        node: usize,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// A core has no way to itself.
    #[error("asked for the way from core {0} to itself; name two cores")]
    Same(usize),
    /// A thread panicked: a bug.
    #[error("a measuring thread broke off")]
    Lost,
}

impl Measured {
    /// Measures this machine. Nothing else should run meanwhile. The calling thread may run on the
    /// CPUs of `scope` alone afterwards.
    ///
    /// # Errors
    /// A CPU or node of the scope is not there, or the kernel refuses.
    pub fn take(machine: &Machine, scope: &Scope) -> Result<Measured, MeasureError> {
        bandwidth::check(machine, scope)?;
        let nodes = bandwidth::pairs(machine, scope);
        // Isolated CPUs are in no mask before somebody asks for them.
        let readers = nodes.iter().flat_map(|pair| pair.cpus.iter()).collect::<Ids>();
        place::run_on(&scope.cpus.or(&readers))?;
        Ok(Measured {
            cpus: scope.cpus.iter().collect(),
            latency_ns: latency::matrix(scope.cpus.as_slice())?,
            bandwidth: nodes.iter().map(bandwidth::measure).collect::<Result<_, _>>()?,
        })
    }
}
