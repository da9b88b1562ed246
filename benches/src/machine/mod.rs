//! The machine: what it is ([`Machine`]), its [`clock`], the [`floor`] between two cores, what a
//! process may open and what memory it takes ([`limits`]), how many [`allocations`] a thread makes,
//! its hardware [`counters`], other programs on its core ([`switches`]), Ctrl-C ([`interrupt`]);
//! what makes a build slower for a trial ([`planted`]); and the commit of the program.

pub(crate) mod allocations;
pub(crate) mod clock;
pub(crate) mod counters;
pub(crate) mod floor;
pub(crate) mod interrupt;
pub(crate) mod limits;
pub(crate) mod planted;
pub(crate) mod switches;

use std::fs;
use std::process::Command;

use doorbell_tune::{CoreList, cores};
use serde::Serialize;

use crate::machine::clock::Clock;

/// What is known of the machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    pub(crate) system: String,
    pub(crate) arch: &'static str,
    /// Cores this program may use.
    pub(crate) cores: String,
    pub(crate) clock: &'static str,
    /// Steps of the clock, in nanoseconds: single times are no finer.
    pub(crate) clock_step_ns: f64,
    /// `release`, or `debug`, whose figures mean nothing.
    pub(crate) build: &'static str,
    /// Page size of the messages' memory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pages: String,
    /// What the memory lacks, and the cure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Machine {
    /// Looks around. Call it before the thread is pinned.
    pub(crate) fn look(clock: &Clock) -> Machine {
        let line = |file: &str, key: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(key))?;
            let (_, value) = line.split_once([':', '='])?;
            Some(value.trim().trim_matches('"').to_owned())
        };
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            cpu: line("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            kernel: kernel.trim().to_owned(),
            system: line("/etc/os-release", "PRETTY_NAME=").unwrap_or_else(|| "unknown".into()),
            arch: std::env::consts::ARCH,
            cores: CoreList(&cores()).to_string(),
            clock: Clock::SOURCE,
            clock_step_ns: (clock.step_ns * 100.0).round() / 100.0,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            pages: String::new(),
            notes: Vec::new(),
        }
    }
}

/// The commit of the sources this program was built from, with `-dirty` if they have changed since.
/// Nothing if the sources are gone. `DOORBELL_COMMIT` says it instead: to find out, git reads all
/// sources, which takes minutes on an emulated machine.
pub(crate) fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var("DOORBELL_COMMIT") {
        return (!commit.is_empty()).then_some(commit);
    }
    let git = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR")])
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()?;
    let text = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !text.is_empty()).then_some(text)
}
