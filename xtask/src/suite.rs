//! The steps in the virtual machine: build the programs out here, run a script of `xtask/vm` in
//! there.

use std::time::Duration;

use crate::Outcome;
use crate::args::quoted;
use crate::count::Count;
use crate::exec::{Sink, capture};
use crate::machine::{Job, Machine, Shared};
use crate::packages::{self, Need};
use crate::place::cargo;
use crate::steps::Report;
use crate::{setup, vm};

/// A program that the suite runs, and the cargo words that build it.
struct Program {
    /// The name of the target; in capitals, and with _ for -, the suite's variable with its path.
    name: &'static str,
    build: &'static [&'static str],
}

/// What is checked in one virtual machine.
struct Suite {
    script: &'static str,
    programs: &'static [Program],
    /// Cargo words that all of its programs are built with.
    features: &'static [&'static str],
    machine: Machine,
}

/// The programs beside an RDMA device.
const RXE: &[Program] = &[
    Program {
        name: "conformance",
        build: &["test", "--no-run", "--package", "doorbell-cm", "--test", "conformance"],
    },
    Program {
        name: "verbs_rxe",
        build: &["test", "--no-run", "--package", "doorbell-cm", "--test", "verbs_rxe"],
    },
    Program {
        name: "scenarios",
        build: &["test", "--no-run", "--package", "doorbell-cm", "--test", "scenarios"],
    },
    Program { name: "echo", build: &["build", "--package", "doorbell-examples", "--bin", "echo"] },
    Program {
        name: "doorbell-bench",
        build: &["build", "--package", "doorbell-bench", "--bin", "doorbell-bench"],
    },
    Program {
        name: "interop",
        build: &["build", "--package", "doorbell-examples", "--bin", "interop"],
    },
];

/// The programs of two machines.
const WIRE: &[Program] = &[
    Program { name: "echo", build: &["build", "--package", "doorbell-examples", "--bin", "echo"] },
    Program {
        name: "interop",
        build: &["build", "--package", "doorbell-examples", "--bin", "interop"],
    },
];

/// The programs that need a machine with two nodes.
const NUMA: &[Program] = &[
    Program {
        name: "numa",
        build: &["test", "--no-run", "--package", "doorbell-alloc", "--test", "numa"],
    },
    Program {
        name: "memlock",
        build: &["test", "--no-run", "--package", "doorbell-alloc", "--test", "memlock"],
    },
    Program {
        name: "workers",
        build: &["test", "--no-run", "--package", "doorbell-tune", "--test", "workers"],
    },
    Program { name: "tune", build: &["build", "--package", "doorbell-tune", "--bin", "tune"] },
    Program {
        name: "doorbell-bench",
        build: &["build", "--package", "doorbell-bench", "--bin", "doorbell-bench"],
    },
];

/// A hung machine must not hang the ladder.
const LIMIT: Duration = Duration::from_secs(1500);

/// Conformance and real peers beside an RDMA device.
pub(crate) fn check() -> Outcome<Report> {
    packages::ensure(&[Need::Verbs])?;
    Suite {
        script: "suite.sh",
        programs: RXE,
        features: &["--features", "verbs"],
        machine: vm::usual(LIMIT),
    }
    .run()
}

/// Placement and limits on a machine with two nodes.
pub(crate) fn numa() -> Outcome<Report> {
    // Each node holds the kernel's own data and a whole free GiB besides.
    let machine =
        Machine { cpus: 4, memory_mib: 8192, numa: true, hugepages: 0, ..vm::usual(LIMIT) };
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
    packages::ensure(&[Need::Verbs])?;
    let (mut report, variables) = built(WIRE, &["--features", "verbs"]);
    let [server, client] =
        ["server", "client"].map(|side| format!("{variables}bash xtask/vm/wire.sh {side}"));
    for side in vm::on_a_wire(LIMIT, "1%", [&server, &client])? {
        report.add(side);
    }
    Ok(report)
}

impl Report {
    /// What a machine has printed.
    fn add(&mut self, ended: Outcome<(u8, String)>) {
        let (output, ok) = match ended {
            Ok((code, output)) => (output, code == 0),
            // With what it had printed until then: those tests have run.
            Err(message) => (message, false),
        };
        self.count += Count::of_program(&output, ok);
        self.text.push_str(&output);
    }
}

/// Builds programs; the variables that name them to a script. One that cannot be built is one
/// failure; what does not need it runs.
fn built(programs: &[Program], features: &[&str]) -> (Report, String) {
    let mut report = Report { count: Count::default(), text: String::new() };
    let mut variables = String::new();
    for program in programs {
        match build(program, features) {
            Ok(path) => {
                let variable = program.name.to_uppercase().replace('-', "_");
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
    build(&RXE[0], &["--features", "verbs"])
}

/// Builds one program; the path of what came out.
fn build(program: &Program, features: &[&str]) -> Outcome<String> {
    let mut cargo = cargo();
    cargo.args(program.build);
    cargo.args(features).args(["--message-format", "json-render-diagnostics"]);
    let done = capture(&mut cargo)?;
    match executable(&done.text, program.name) {
        Some(path) if done.ok => Ok(path),
        _ => {
            let words = done.text.lines().filter(|line| !line.starts_with('{'));
            let words = words.collect::<Vec<_>>().join("\n");
            Err(format!("the program `{}` is missing, cargo says:\n{words}", program.name))
        }
    }
}

/// The path of a target's program, in cargo's messages.
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
        let none = Program { name: "none-such", build: &["build", "--bin", "none-such"] };
        let message = build(&none, &[]).expect_err("there is no such program");
        assert!(message.contains("`none-such` is missing"), "{message}");
    }
}
