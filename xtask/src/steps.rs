//! The ladder of checks: one table. What is slow where a machine is emulated begins early, beside
//! the rest, in which the cheapest come first.

use crate::Outcome;
use crate::packages::Need;
use crate::report::Report;
use crate::{apart, asan, bare, panics, recorded, sim, suite, tidy};

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    /// Its name for `--only` and `--skip`.
    pub(crate) name: &'static str,
    /// What a pass shows.
    pub(crate) shows: &'static str,
    /// The system packages to install first.
    pub(crate) needs: &'static [Need],
    /// Its work.
    pub(crate) work: Work,
    /// Steps of one lane run one after the other, beside the other lanes.
    pub(crate) lane: Lane,
}

/// Lanes of steps that run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Steps that build and compute.
    Main,
    /// Steps in a virtual machine, which leaves much of a core idle. They begin where the first of
    /// them stands in the table.
    Machine,
    /// Steps that wait for lost packets.
    Wire,
}

/// The work of a step.
#[derive(Debug)]
pub(crate) enum Work {
    /// A cargo command: one pass or one failure.
    Cargo(&'static [&'static str]),
    /// The same; if it fails, no later step makes sense.
    Build(&'static [&'static str]),
    /// A cargo command whose tests are counted.
    Tests(&'static [&'static str]),
    /// A function of ours.
    Own(fn() -> Outcome<Report>),
    /// The same, unless the first function returns what is missing here.
    Able(fn() -> Option<String>, fn() -> Outcome<Report>),
}

/// Words in a cargo command that stand for the packages with a feature, built with it.
pub(crate) const FEATURES: &[(&str, &str)] =
    &[("@verbs", "verbs"), ("@numa", "numa"), ("@sim", "sim")];

/// A word in a cargo command that stands for the packages with loom's models.
pub(crate) const MODELS: &str = "@models";

const fn step(name: &'static str, shows: &'static str, needs: &'static [Need], work: Work) -> Step {
    Step { name, shows, needs, work, lane: Lane::Main }
}

impl Step {
    const fn beside(self, lane: Lane) -> Self {
        Self { lane, ..self }
    }
}

/// Every step, in order. An example that must run to its end is one line here:
/// `Work::Cargo(&["run", "--release", "--package", "doorbell-examples", "--bin", …])`.
pub(crate) const STEPS: &[Step] = &[
    step("fmt", "the code of every workspace is formatted", &[], Work::Own(apart::fmt)),
    step("tidy", "the rules no lint knows hold", &[], Work::Own(tidy::check)),
    step("build", "everything builds", &[], Work::Build(&["test", "--workspace", "--no-run"])),
    step(
        "build-machines",
        "what the virtual machines run builds",
        &[Need::Verbs],
        Work::Own(suite::build),
    ),
    step(
        "vm",
        "conformance and real peers on a kernel's RDMA device",
        &[Need::Verbs],
        Work::Own(suite::check),
    )
    .beside(Lane::Machine),
    step(
        "vm-nvmf",
        "the kernel's NVMe initiator uses a disk of the target, which may be killed",
        &[Need::Verbs],
        Work::Own(suite::nvmf),
    )
    .beside(Lane::Machine),
    step(
        "vm-wire",
        "two machines whose wire loses one packet in a hundred still finish",
        &[Need::Verbs],
        Work::Own(suite::wire),
    )
    .beside(Lane::Wire),
    step(
        "vm-numa",
        "memory and workers are where they were asked for, with two nodes",
        &[],
        Work::Own(suite::numa),
    )
    .beside(Lane::Machine),
    step(
        "clippy",
        "no warning in any target",
        &[],
        Work::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ),
    step(
        "clippy-features",
        "nor with the features verbs, numa and sim",
        &[Need::Verbs, Need::Numa],
        Work::Cargo(&[
            "clippy",
            "@verbs",
            "@numa",
            "@sim",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    ),
    step(
        "doc",
        "the documentation has no warning",
        &[],
        Work::Cargo(&[
            "doc",
            "--workspace",
            "--no-deps",
            "--config",
            "build.rustdocflags=[\"-D\", \"warnings\"]",
        ]),
    ),
    step(
        "doc-private",
        "nor has the documentation of private items",
        &[],
        Work::Cargo(&[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
            "--config",
            "build.rustdocflags=[\"-D\", \"warnings\"]",
        ]),
    ),
    step(
        "package",
        "every crate can be packaged",
        &[],
        Work::Cargo(&["package", "--workspace", "--no-verify", "--allow-dirty"]),
    ),
    step(
        "tests",
        "unit, integration and doc tests",
        &[Need::Tests],
        Work::Tests(&["test", "--workspace", "--no-fail-fast"]),
    ),
    step(
        "tests-observed",
        "readelf lists the probes, and tracing hears of connections, with both features",
        &[Need::Tests],
        Work::Tests(&[
            "test",
            "--package",
            "doorbell-engine",
            "--package",
            "doorbell-cm",
            "--features",
            "doorbell-engine/probes,doorbell-cm/tracing",
            "--test",
            "probes",
            "--test",
            "tracing",
        ]),
    ),
    step(
        "tests-verbs",
        "unit tests with the feature verbs",
        &[Need::Verbs],
        Work::Tests(&["test", "@verbs", "--lib", "--no-fail-fast"]),
    ),
    step(
        "tests-numa",
        "hwloc and the kernel's files agree, with the feature numa",
        &[Need::Numa],
        Work::Tests(&["test", "@numa", "--no-fail-fast"]),
    ),
    step(
        "recorded",
        "machines that hwloc recorded are read as hwloc does, and can be planned for",
        &[Need::Recorded],
        Work::Able(recorded::lacks, recorded::check),
    ),
    step(
        "compare",
        "the program that measures beside peers: no warning, and its tests",
        &[Need::Compare],
        Work::Own(apart::compare),
    ),
    step(
        "bare",
        "what needs no operating system builds without one, and runs without std",
        &[],
        Work::Own(bare::check),
    ),
    step(
        "aarch64",
        "no warning for aarch64 either, where nothing is run",
        &[],
        Work::Own(bare::arm),
    ),
    step(
        "panics",
        "no panic can be reached from a worker's turn: it links without",
        &[Need::Tests],
        Work::Own(panics::check),
    ),
    step(
        "overhead",
        "instructions for each message are within the limits of benches/overhead.json",
        &[Need::Tests],
        Work::Cargo(&[
            "run",
            "--release",
            "--package",
            "doorbell-bench",
            "--",
            "overhead",
            "--check",
        ]),
    ),
    step(
        "models",
        "shared memory in every order its rules allow; no fence is idle",
        &[],
        Work::Tests(&[
            "test",
            "--config",
            "build.rustflags=[\"--cfg\", \"loom\"]",
            "--target-dir",
            "target/models",
            MODELS,
            "--release",
            // The build takes longer than the run, and most of it was optimization.
            "--config",
            "profile.release.lto=\"off\"",
            "--config",
            "profile.release.codegen-units=16",
            "--config",
            "profile.release.opt-level=1",
            "--lib",
            "models",
        ]),
    ),
    step(
        "asan",
        "a peer that writes anything at all makes nobody leave its memory",
        &[],
        Work::Able(asan::lacks, asan::check),
    ),
    step(
        "sim",
        "2000 simulations hold, and new ones, and find what is planted",
        &[],
        Work::Own(sim::check),
    ),
];
