//! [`Plan`]: which worker runs where. It is kept in a TOML file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::Ids;
use crate::place::{self, Memory, PlaceError};

/// Version of the file format.
pub(super) const VERSION: u32 = 1;

/// The environment variable with the path of a program's plan, which `tune run` sets:
/// `DOORBELL_PLAN`.
pub const PLAN_VARIABLE: &str = "DOORBELL_PLAN";

/// Where the workers of a program run: CPU, memory and shared receive queue of each.
/// [`Plan::make`] makes it, [`Plan::to_toml`] writes it, and [`Plan::load`] reads it.
///
/// ```
/// use doorbell_tune::{Machine, Memory, Plan, Request, Root};
///
/// let machine = Machine::read(&Root::system())?;
/// let request = Request {
///     workers: 1,
///     device: None, // or a NIC or RDMA device to be near to: Some("mlx5_0".to_owned())
///     housekeeping: 0,
///     siblings: false,
///     memory_bytes: 64 << 20,
///     memory: Memory::Bind,
/// };
/// let plan = Plan::make(&machine, &request)?;
/// let worker = &plan.workers[0];
/// println!("worker 0: CPU {}, memory of node {}", worker.cpu, worker.memory_node);
/// println!("{}", plan.to_toml()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of the file format: 1.
    pub version: u32,
    /// The device that the workers are near to; `None` if the place does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its NUMA node; `None` if there is none or the machine does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_node: Option<usize>,
    /// CPUs for everything else: control plane, interrupts, other programs.
    #[serde(default)]
    pub housekeeping: Ids,
    /// How strictly memory comes from the workers' nodes. Default: [`Memory::Bind`].
    #[serde(default)]
    pub memory: Memory,
    /// Remarks for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The workers, those nearest to the device first: at least one, each on a CPU of its own.
    #[serde(rename = "worker")]
    pub workers: Vec<Worker>,
}

/// Where one worker runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Its CPU.
    pub cpu: usize,
    /// The NUMA node of that CPU.
    pub node: usize,
    /// The NUMA node that its memory comes from: the same, or the nearest one with memory.
    pub memory_node: usize,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Number of its shared receive queue. Workers with the same number share one.
    pub srq: usize,
}

/// Why a plan cannot be used.
#[derive(Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file cannot be read.
    #[error(
        "cannot read the plan {}: {source}; make one with `tune plan`",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a plan.
    #[error("{} is not a plan: {what}; make one with `tune plan`", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl fmt::Debug for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Plan {
    /// Reads a plan from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a plan.
    pub fn load(path: &Path) -> Result<Plan, PlanError> {
        let text = fs::read_to_string(path)
            .map_err(|source| PlanError::Read { path: path.to_owned(), source })?;
        Plan::from_toml(&text).map_err(|what| PlanError::Form { path: path.to_owned(), what })
    }

    /// Reads the plan that [`PLAN_VARIABLE`] names; `None` if it is unset or empty.
    ///
    /// # Errors
    /// As for [`Plan::load`].
    pub fn from_env() -> Result<Option<Plan>, PlanError> {
        let path = std::env::var_os(PLAN_VARIABLE).filter(|path| !path.is_empty());
        path.map(|path| Plan::load(Path::new(&path))).transpose()
    }

    /// Reads a plan from its text. The error says what is wrong with it.
    fn from_toml(text: &str) -> Result<Plan, String> {
        let plan: Plan = toml::from_str(text).map_err(|error| {
            // The line and the message, without the excerpt.
            let line = error.span().map(|span| text[..span.start].lines().count().max(1));
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{line}{}", error.message())
        })?;
        if plan.version != VERSION {
            return Err(format!("its version is {}, this program reads {VERSION}", plan.version));
        }
        if plan.workers.is_empty() {
            return Err("it has no worker".to_owned());
        }
        if plan.cpus().len() < plan.workers.len() {
            return Err("two workers have the same CPU".to_owned());
        }
        Ok(plan)
    }

    /// The plan as TOML.
    ///
    /// # Errors
    /// A number is too large for TOML: 2⁶³ or more.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// The workers' CPUs.
    #[must_use]
    pub fn cpus(&self) -> Ids {
        self.workers.iter().map(|worker| worker.cpu).collect()
    }

    /// The nodes that the workers' memory comes from.
    #[must_use]
    pub fn memory_nodes(&self) -> Ids {
        self.workers.iter().map(|worker| worker.memory_node).collect()
    }

    /// Memory of all workers together, bytes, by node.
    #[must_use]
    pub fn memory_by_node(&self) -> BTreeMap<usize, u64> {
        let mut sums = BTreeMap::new();
        for worker in &self.workers {
            let sum: &mut u64 = sums.entry(worker.memory_node).or_default();
            *sum = sum.saturating_add(worker.memory_bytes);
        }
        sums
    }

    /// Restricts the calling thread to the plan's CPUs and memory. Threads and processes that it
    /// starts later inherit that. Each worker then pins its own thread ([`crate::pin()`]); the
    /// kernel may run other threads on any CPU of the plan, those for housekeeping included.
    ///
    /// # Errors
    /// A CPU or a node does not exist, or the kernel refuses.
    pub fn enter(&self) -> Result<(), PlaceError> {
        place::run_on(&self.cpus().or(&self.housekeeping))?;
        place::take_memory(self.memory, &self.memory_nodes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let worker = |cpu, srq| Worker { cpu, node: 1, memory_node: 1, memory_bytes: 4096, srq };
        Plan {
            version: VERSION,
            device: Some("mlx5_0".to_owned()),
            device_node: Some(1),
            housekeeping: "0,64".parse().unwrap(),
            memory: Memory::Bind,
            notes: vec!["CPUs 31 are switched off".to_owned()],
            workers: vec![worker(1500, 0), worker(9, 0), worker(10, 1)],
        }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let text = plan().to_toml().unwrap();
        assert_eq!(Plan::from_toml(&text), Ok(plan()), "{text}");
        assert_eq!(plan().cpus(), "9-10,1500".parse().unwrap());
        assert_eq!(plan().memory_by_node(), BTreeMap::from([(1, 3 * 4096)]));
    }

    #[test]
    fn a_person_can_write_a_short_one() {
        let text = "version = 1\n[[worker]]\ncpu = 3\nnode = 0\nmemory_node = 0\n\
                    memory_bytes = 1\nsrq = 0\n";
        let plan = Plan::from_toml(text).unwrap();
        assert_eq!((plan.memory, plan.cpus()), (Memory::Bind, "3".parse().unwrap()));
    }

    #[test]
    fn a_bad_plan_says_what_is_wrong_and_where() {
        let text = plan().to_toml().unwrap();
        for (from, to, what) in [
            ("version = 1", "version = 2", "its version is 2, this program reads 1"),
            ("cpu = 10", "cpu = 9", "two workers have the same CPU"),
            ("memory = \"bind\"", "memory = \"all\"", "line 5: "),
            ("housekeeping = \"0,64\"", "housekeeping = \"0-\"", "`0-` is not a list"),
            ("srq = 1", "srqs = 1", "unknown field `srqs`"),
        ] {
            assert!(text.contains(from), "{text}");
            let error = Plan::from_toml(&text.replace(from, to)).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        let none = Plan { workers: Vec::new(), ..plan() }.to_toml().unwrap();
        assert_eq!(Plan::from_toml(&none).unwrap_err(), "it has no worker");
        let error = Plan::load(Path::new("/none-such.toml")).unwrap_err().to_string();
        assert!(error.contains("/none-such.toml") && error.contains("`tune plan`"), "{error}");
    }
}
