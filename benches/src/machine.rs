//! The machine a figure was measured on, and the commit of the program.

use std::fs;
use std::process::Command;

use doorbell_tune::{CoreList, cores};
use serde::Serialize;

use crate::clock::Clock;
use crate::record::round;

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
    /// Single times are not finer than this, in nanoseconds.
    pub(crate) clock_step_ns: f64,
    /// `release`, or `debug`, whose figures mean nothing.
    pub(crate) build: &'static str,
    /// Pages under the messages' memory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pages: String,
    /// What the memory lacks, and what would mend it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Machine {
    /// Looks around. To be called before the thread is pinned.
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
            clock_step_ns: round(clock.step_ns, 2),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            pages: String::new(),
            notes: Vec::new(),
        }
    }
}

/// The commit of the sources this program was built from, `-dirty` if they have changed since;
/// none where the sources are not there any more.
pub(crate) fn commit() -> Option<String> {
    let git = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR")])
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()?;
    let text = String::from_utf8(git.stdout).ok()?.trim().to_owned();
    (git.status.success() && !text.is_empty()).then_some(text)
}
