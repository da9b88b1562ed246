//! `cargo xtask compare`: the soft device beside its peers, in turn, on this machine; with
//! `--device` an RDMA device ([`perftest`]).

use std::process::Command;

use crate::Outcome;
use crate::apart::COMPARE;
use crate::exec;
use crate::members::workspace;
use crate::packages::{self, Need};
use crate::perftest;
use crate::place::{cargo, program, state, target};

/// Fetches the peers, builds both programs, measures. Passes the arguments to the measuring program
/// unchanged, and returns its exit code.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    if perftest::is_meant(words) {
        return perftest::run(words);
    }
    packages::ensure(&[Need::Compare, Need::Peers])?;
    let mut bench = cargo();
    bench.args(["build", "--release", "--quiet", "--package", "doorbell-bench"]);
    let mut compare = cargo();
    compare.args(["build", "--release", "--quiet", "--locked", "--manifest-path"]);
    compare.arg(workspace(COMPARE)?.manifest());
    compare.arg("--target-dir").arg(target());
    for build in [&mut bench, &mut compare] {
        let code = status(build)?;
        if code != 0 {
            return Ok(code);
        }
    }
    let release = target().join("release");
    let mut compare = program(release.join(COMPARE));
    compare.arg("--bench").arg(release.join("doorbell-bench"));
    compare.arg("--out").arg(state().join("compare.json"));
    status(compare.args(words))
}

/// Runs a program to its end, with its output going to ours.
fn status(command: &mut Command) -> Outcome<u8> {
    let ended = command.status();
    ended.map(exec::code).map_err(|cause| format!("cannot start {}: {cause}", exec::line(command)))
}
