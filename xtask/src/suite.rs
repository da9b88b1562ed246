//! The steps in the virtual machine: build the programs outside, run a script of `xtask/vm` inside.

use std::time::Duration;

use crate::Outcome;
use crate::args::quoted;
use crate::count::Count;
use crate::exec::{Sink, capture};
use crate::machine::{Job, Machine, Shared};
use crate::place::cargo;
use crate::report::Report;
use crate::{members, setup, vm};

/// A program that the suite runs.
enum Program {
    /// The test of that name.
    Test(&'static str),
    /// The program of that name.
    Bin(&'static str),
}

/// The checks in one virtual machine.
struct Suite {
    script: &'static str,
    programs: &'static [Program],
    /// Cargo words that all of its programs are built with.
    features: &'static [&'static str],
    machine: Machine,
}

/// The programs beside an RDMA device. The script gets the path of each in a variable: its name in
/// capitals, with _ for -.
const RXE: &[Program] = &[
    CONFORMANCE,
    Program::Test("verbs_rxe"),
    Program::Test("scenarios"),
    Program::Test("hotpath"),
    Program::Bin("echo"),
    Program::Bin("doorbell-bench"),
    Program::Bin("interop"),
];
const CONFORMANCE: Program = Program::Test("conformance");

/// The programs of two machines.
const WIRE: &[Program] = &[Program::Bin("echo"), Program::Bin("interop")];

/// The programs that need a machine with two nodes.
const NUMA: &[Program] = &[
    Program::Test("numa"),
    Program::Test("mapping"),
    Program::Test("memlock"),
    Program::Test("run"),
    Program::Bin("tune"),
    Program::Bin("doorbell-bench"),
];

/// A machine that prints nothing for this long hangs. Each test prints, and ends sooner by itself.
const SILENCE: Duration = Duration::from_secs(1200);

/// Conformance and real peers beside an RDMA device.
pub(crate) fn check() -> Outcome<Report> {
    Suite {
        script: "suite.sh",
        programs: RXE,
        features: &["--features", "verbs"],
        machine: vm::usual(SILENCE),
    }
    .run()
}

/// The kernel's NVMe initiator with the target.
pub(crate) fn nvmf() -> Outcome<Report> {
    let (programs, features) = (&[Program::Bin("nvmf")], &["--features", "verbs"]);
    let machine = Machine { hugepages: 0, ..vm::usual(SILENCE) };
    Suite { script: "nvmf.sh", programs, features, machine }.run()
}

/// Placement and limits on a machine with two nodes.
pub(crate) fn numa() -> Outcome<Report> {
    // Each node holds the kernel's own data and a whole free GiB.
    let machine =
        Machine { cpus: 4, memory_mib: 8192, numa: true, hugepages: 0, ..vm::usual(SILENCE) };
    Suite { script: "numa.sh", programs: NUMA, features: &[], machine }.run()
}

impl Suite {
    /// Builds, boots, runs.
    fn run(&self) -> Outcome<Report> {
        let parts = setup::machine()?;
        let (mut report, variables) = built(self.programs, self.features);
        let line = format!("{variables}bash xtask/vm/{}", self.script);
        let shared = Shared::new()?;
        let machine = &self.machine;
        let job = Job { machine, shared: &shared, role: "command", line: &line, sink: Sink::Kept };
        report.add(job.run(&parts, &|| false));
        Ok(report)
    }
}

/// Two machines on a wire that loses packets.
pub(crate) fn wire() -> Outcome<Report> {
    let (mut report, variables) = built(WIRE, &["--features", "verbs"]);
    let [server, client] =
        ["server", "client"].map(|side| format!("{variables}bash xtask/vm/wire.sh {side}"));
    for side in vm::on_a_wire(SILENCE, "1%", [&server, &client])? {
        report.add(side);
    }
    Ok(report)
}

impl Report {
    /// The output of a machine.
    fn add(&mut self, ended: Outcome<(u8, String)>) {
        let (output, ok) = match ended {
            Ok((code, output)) => (output, code == 0),
            // With the output until then: those tests have run.
            Err(message) => (message, false),
        };
        self.count += Count::of_program(&output, ok);
        self.text.push_str(&output);
    }
}

/// Builds programs; returns the variables that name them to a script. One that cannot be built is
/// one failure; everything that does not need it still runs.
fn built(programs: &[Program], features: &[&str]) -> (Report, String) {
    let mut report = Report { count: Count::default(), text: String::new() };
    let mut variables = String::new();
    for program in programs {
        match build(program, features) {
            Ok(path) => {
                let variable = program.name().to_uppercase().replace('-', "_");
                variables.push_str(&format!("{variable}={} ", quoted(&path)));
            }
            Err(message) => {
                report.count += Count::one(false);
                report.text.push_str(&format!("{message}\n"));
            }
        }
    }
    (report, variables)
}

/// The conformance suite, built for any device; its path.
pub(crate) fn conformance() -> Outcome<String> {
    build(&CONFORMANCE, &["--features", "verbs"])
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Program::Test(name) | Program::Bin(name) => name,
        }
    }
}

/// Builds one program; returns its path.
fn build(program: &Program, features: &[&str]) -> Outcome<String> {
    let name = program.name();
    let package = members::with_target(name)?;
    let mut cargo = cargo();
    match program {
        Program::Test(_) => cargo.args(["test", "--no-run", "--package", &package, "--test", name]),
        Program::Bin(_) => cargo.args(["build", "--package", &package, "--bin", name]),
    };
    cargo.args(features).args(["--message-format", "json-render-diagnostics"]);
    let done = capture(&mut cargo)?;
    match executable(&done.text, name) {
        Some(path) if done.ok => Ok(path),
        _ => {
            let words = done.text.lines().filter(|line| !line.starts_with('{'));
            let words = words.collect::<Vec<_>>().join("\n");
            Err(format!("the program `{name}` is missing, cargo says:\n{words}"))
        }
    }
}

/// The path of a target's program, from cargo's messages.
fn executable(messages: &str, name: &str) -> Option<String> {
    let name = format!("\"name\":\"{name}\"");
    let message =
        messages.lines().find(|line| line.contains(&name) && line.contains("\"executable\":\""))?;
    let path = message.split_once("\"executable\":\"")?.1.split('"').next()?;
    Some(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_the_messages() {
        let messages = "\
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"lib\"},\"executable\":null}
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/t/other\"}
{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"interop\"},\"executable\":\"/t/interop\"}
";
        assert_eq!(executable(messages, "interop").as_deref(), Some("/t/interop"));
        assert_eq!(executable(messages, "lib"), None);
        assert_eq!(executable(messages, "conformance"), None);
    }

    #[test]
    fn a_missing_program_says_so() {
        let none = Program::Bin("none-such");
        let message = build(&none, &[]).expect_err("there is no such program");
        assert!(message.contains("program none-such"), "{message}");
    }
}
