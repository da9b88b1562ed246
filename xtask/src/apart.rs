//! The packages that are workspaces of their own, which cargo's commands for all members skip.

use crate::Outcome;
use crate::count::Count;
use crate::exec::capture;
use crate::members::{apart, workspace};
use crate::place::{cargo, target};
use crate::report::Report;

/// The program that measures beside peers. No other program depends on the peers' crates.
pub(crate) const COMPARE: &str = "doorbell-compare";

/// Checks the format of every workspace: one pass or failure for each.
pub(crate) fn fmt() -> Outcome<Report> {
    let mut report = Report::default();
    report.run(cargo().args(["fmt", "--all", "--check", "--", "--color", "never"]))?;
    for package in apart() {
        let mut cargo = cargo();
        cargo.args(["fmt", "--check", "--manifest-path"]).arg(package.manifest());
        report.run(cargo.args(["--", "--color", "never"]))?;
    }
    Ok(report)
}

/// Lints and tests [`COMPARE`].
pub(crate) fn compare() -> Outcome<Report> {
    let manifest = workspace(COMPARE)?.manifest();
    let command = |name| {
        let mut cargo = cargo();
        cargo.args([name, "--locked", "--manifest-path"]).arg(&manifest);
        cargo.arg("--target-dir").arg(target());
        cargo
    };
    let mut report = Report::default();
    report.run(command("clippy").args(["--all-targets", "--", "-D", "warnings"]))?;
    let tests = capture(command("test").args(["--", "--show-output"]))?;
    report.count += Count::of_program(&tests.text, tests.ok);
    report.text.push_str(&tests.text);
    Ok(report)
}
