//! A plan: which worker runs where, with which memory, on which shared receive queue.

mod make;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use make::{MakeError, Request};

use crate::ids::Ids;
use crate::place::{self, Memory, PlaceError};

/// The form of the file.
const VERSION: u32 = 1;

/// The environment variable with the path of the plan a program runs under: `tune run` sets it.
pub const PLAN_VARIABLE: &str = "DOORBELL_PLAN";

/// Where the workers of a program run. Made by [`Plan::make`], kept in a TOML file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The form of this file: 1.
    pub version: u32,
    /// The device the workers are near to; none where it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its NUMA node; none where there is none or the machine does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_node: Option<usize>,
    /// CPUs for everything else: control plane, interrupts, other programs.
    #[serde(default)]
    pub housekeeping: Ids,
    /// How strictly memory comes from the workers' nodes.
    #[serde(default)]
    pub memory: Memory,
    /// What a person should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The workers, those nearest to the device first. At least one, each on a CPU of its own.
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
    /// The NUMA node its memory comes from: the same, or the nearest that has some.
    pub memory_node: usize,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The shared receive queue it takes from: workers with the same number share one.
    pub srq: usize,
}

/// Why a plan cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The file cannot be read.
    #[error(
        "asked to read the plan {}, the system answered: {source}; `tune plan` writes one",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The file is no plan.
    #[error("{} is no plan: {what}; `tune plan` writes one", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// The file cannot be read, or is no plan.
    pub fn load(path: &Path) -> Result<Plan, PlanError> {
        let text = fs::read_to_string(path)
            .map_err(|source| PlanError::Read { path: path.to_owned(), source })?;
        Plan::from_toml(&text).map_err(|what| PlanError::Form { path: path.to_owned(), what })
    }

    /// The plan that [`PLAN_VARIABLE`] names; none where it names none.
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn from_env() -> Result<Option<Plan>, PlanError> {
        let path = std::env::var_os(PLAN_VARIABLE).filter(|path| !path.is_empty());
        path.map(|path| Plan::load(Path::new(&path))).transpose()
    }

    /// Reads a plan's text; what is wrong with it, otherwise.
    fn from_toml(text: &str) -> Result<Plan, String> {
        let plan: Plan = toml::from_str(text).map_err(|error| {
            // The place, and what was expected; not the picture of it.
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
    /// A number that TOML cannot hold: more than 2⁶³.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// The workers' CPUs.
    #[must_use]
    pub fn cpus(&self) -> Ids {
        self.workers.iter().map(|worker| worker.cpu).collect()
    }

    /// The nodes the workers' memory comes from.
    #[must_use]
    pub fn memory_nodes(&self) -> Ids {
        self.workers.iter().map(|worker| worker.memory_node).collect()
    }

    /// Bytes of all workers together, by the node they come from.
    #[must_use]
    pub fn memory_by_node(&self) -> BTreeMap<usize, u64> {
        let mut sums = BTreeMap::new();
        for worker in &self.workers {
            let sum: &mut u64 = sums.entry(worker.memory_node).or_default();
            *sum = sum.saturating_add(worker.memory_bytes);
        }
        sums
    }

    /// Makes the calling thread, and the threads and processes it starts, run on the plan's CPUs
    /// with the plan's memory. A worker then pins its thread to its own ([`crate::pin()`]); whoever
    /// does not is on a CPU of the workers or for housekeeping, wherever the kernel puts it.
    ///
    /// # Errors
    /// A CPU or node is not there, or the kernel refuses.
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
    fn what_is_no_plan_says_what_is_wrong_and_where() {
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
