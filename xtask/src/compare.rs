//! `cargo xtask compare`: the soft device beside its peers, in turn, on this machine; with
//! `--results` it also writes the section on other libraries of `benches/RESULTS.md`; with
//! `--device` an RDMA device ([`perftest`]).

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Outcome;
use crate::apart::COMPARE;
use crate::bench::{self, RESULTS};
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
    println!("building what is compared, with link-time optimization: minutes the first time");
    // This one tells of the machine and writes the page; it measures nothing.
    let (mut build, page_writer) = bench::without_lto();
    let mut compare = cargo();
    compare.args(["build", "--release", "--quiet", "--locked", "--manifest-path"]);
    compare.arg(workspace(COMPARE)?.manifest());
    compare.arg("--target-dir").arg(target());
    for build in [&mut build, &mut compare] {
        let code = status(build)?;
        if code != 0 {
            return Ok(code);
        }
    }
    let file = state().join("compare.json");
    let mut compare = program(target().join("release").join(COMPARE));
    compare.arg("--bench").arg(&page_writer).arg("--out").arg(&file);
    compare.args(words.iter().filter(|word| *word != RESULTS));
    if !words.iter().any(|word| word == RESULTS) {
        // In place of this program, so that Ctrl-C reaches nobody who would not wait for it.
        let cause = compare.exec();
        return Err(format!("cannot start {}: {cause}", exec::line(&compare)));
    }
    match status(&mut compare)? {
        0 => {
            let mut page = program(page_writer);
            page.args(["results", "--only-compare", "--compare"]).arg(&file);
            status(&mut page)
        }
        code => Ok(code),
    }
}

/// Runs a program to its end, with its output going to ours.
fn status(command: &mut Command) -> Outcome<u8> {
    let ended = command.status();
    ended.map(exec::code).map_err(|cause| format!("cannot start {}: {cause}", exec::line(command)))
}
