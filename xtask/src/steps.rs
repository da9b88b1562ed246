//! The ladder of checks, cheapest first: one table.

use crate::Outcome;
use crate::count::Count;
use crate::packages::Need;
use crate::{asan, bare, panics, sim, suite, tidy};

/// One rung.
#[derive(Debug)]
pub(crate) struct Step {
    /// What `--only` and `--skip` call it.
    pub(crate) name: &'static str,
    /// What a pass shows.
    pub(crate) shows: &'static str,
    /// What it does.
    pub(crate) work: Work,
}

/// What a step does.
#[derive(Debug)]
pub(crate) enum Work {
    /// A cargo command: one pass or one failure.
    Cargo(&'static [&'static str]),
    /// The same, and nothing after it makes sense if it fails.
    Build(&'static [&'static str]),
    /// A cargo command whose tests are counted.
    Tests(&'static [&'static str]),
    /// A function of ours.
    Own(fn() -> Outcome<Report>),
    /// The same, unless the first of the two says what is missing for it here.
    Able(fn() -> Option<String>, fn() -> Outcome<Report>),
}

/// What a step of ours found.
#[derive(Debug)]
pub(crate) struct Report {
    /// Passes and failures.
    pub(crate) count: Count,
    /// What to print if something failed.
    pub(crate) text: String,
}

/// In a cargo command: the packages that have a feature, and that feature. Without such a package
/// the step is skipped.
pub(crate) const FEATURES: &[(&str, &str, Need)] =
    &[(VERBS, "verbs", Need::Verbs), (NUMA, "numa", Need::Numa)];
const VERBS: &str = "@verbs";
const NUMA: &str = "@numa";

/// Every step, in order. An example that has to run to its end is one line here:
/// `Work::Cargo(&["run", "--release", "--package", "doorbell-examples", "--bin", …])`.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        shows: "the code is formatted",
        work: Work::Cargo(&["fmt", "--all", "--check", "--", "--color", "never"]),
    },
    Step { name: "tidy", shows: "the rules no lint knows hold", work: Work::Own(tidy::check) },
    Step {
        name: "clippy",
        shows: "no warning in any target",
        work: Work::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    },
    Step {
        name: "clippy-verbs",
        shows: "nor with the feature verbs",
        work: Work::Cargo(&["clippy", VERBS, "--all-targets", "--", "-D", "warnings"]),
    },
    Step {
        name: "clippy-numa",
        shows: "nor with the feature numa",
        work: Work::Cargo(&["clippy", NUMA, "--all-targets", "--", "-D", "warnings"]),
    },
    Step {
        name: "build",
        shows: "everything builds",
        work: Work::Build(&["test", "--workspace", "--no-run"]),
    },
    Step {
        name: "tests",
        shows: "unit, integration and doc tests",
        work: Work::Tests(&["test", "--workspace", "--no-fail-fast"]),
    },
    Step {
        name: "tests-verbs",
        shows: "unit tests with the feature verbs",
        work: Work::Tests(&["test", VERBS, "--lib", "--no-fail-fast"]),
    },
    Step {
        name: "tests-numa",
        shows: "hwloc and the kernel's files agree, with the feature numa",
        work: Work::Tests(&["test", NUMA, "--no-fail-fast"]),
    },
    Step {
        name: "bare",
        shows: "the datapath builds without an operating system, and runs without std",
        work: Work::Own(bare::check),
    },
    Step {
        name: "aarch64",
        shows: "no warning for aarch64 either, where nothing is run",
        work: Work::Own(bare::arm),
    },
    Step {
        name: "panics",
        shows: "no panic can be reached from a worker's turn: it links without",
        work: Work::Own(panics::check),
    },
    Step {
        name: "models",
        shows: "shared memory in every order its rules allow; no fence is idle",
        work: Work::Tests(&[
            "test",
            "--config",
            "build.rustflags=[\"--cfg\", \"loom\"]",
            "--target-dir",
            "target/models",
            "--package",
            "doorbell-soft",
            "--package",
            "doorbell-engine",
            "--no-default-features",
            "--release",
            "--lib",
            "models",
        ]),
    },
    Step {
        name: "asan",
        shows: "a peer that writes whatever it likes makes nobody leave its memory",
        work: Work::Able(asan::lacks, asan::check),
    },
    Step {
        name: "sim",
        shows: "2000 simulations hold, and find what is planted",
        work: Work::Own(sim::check),
    },
    Step {
        name: "vm",
        shows: "conformance and real peers on a kernel's RDMA device",
        work: Work::Own(suite::check),
    },
    Step {
        name: "vm-wire",
        shows: "two machines whose wire loses one packet in a hundred still finish",
        work: Work::Own(suite::wire),
    },
    Step {
        name: "vm-numa",
        shows: "memory and workers are where they were asked for, with two nodes",
        work: Work::Own(suite::numa),
    },
];
