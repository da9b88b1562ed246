//! The steps in the virtual machine: build the programs outside, run a script of `xtask/vm` inside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use crate::Outcome;
use crate::args::quoted;
use crate::count::Count;
use crate::exec::{Sink, capture};
use crate::machine::{Job, Machine, Shared};
use crate::members::members;
use crate::place::{self, cargo};
use crate::report::Report;
use crate::{setup, vm};

/// A program that the suite runs.
enum Program {
    /// The test of that name.
    Test(&'static str),
    /// The program of that name.
    Bin(&'static str),
}

/// The packages that cargo is told to build together: together they agree on the features of what
/// they share, and so it is built once.
#[derive(Clone, Copy, PartialEq)]
enum Packages {
    /// All.
    All,
    /// Those with the feature `verbs`, and with it.
    Verbs,
}

/// The checks in one virtual machine.
struct Suite {
    script: &'static str,
    programs: &'static [Program],
    /// Which packages its programs are built with, so that they share what earlier steps built.
    packages: Packages,
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

const NVMF: &[Program] = &[Program::Bin("nvmf")];

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

/// Which packages each list is built with.
const PROGRAMS: &[(Packages, &[Program])] =
    &[(Packages::Verbs, RXE), (Packages::Verbs, NVMF), (Packages::All, NUMA)];

/// A machine that prints nothing for this long hangs. Each test prints, and ends sooner by itself;
/// those of `wire.sh` print at their end, after 1100 s at the latest.
const SILENCE: Duration = Duration::from_secs(1500);

/// Conformance and real peers beside an RDMA device.
pub(crate) fn check() -> Outcome<Report> {
    Suite {
        script: "suite.sh",
        programs: RXE,
        packages: Packages::Verbs,
        machine: vm::usual(SILENCE),
    }
    .run()
}

/// The kernel's NVMe initiator with the target.
pub(crate) fn nvmf() -> Outcome<Report> {
    let machine = Machine { hugepages: 0, ..vm::usual(SILENCE) };
    Suite { script: "nvmf.sh", programs: NVMF, packages: Packages::Verbs, machine }.run()
}

/// Placement and limits on a machine with two nodes.
pub(crate) fn numa() -> Outcome<Report> {
    // Each node holds the kernel's own data and a whole free GiB.
    let machine =
        Machine { cpus: 4, memory_mib: 8192, numa: true, hugepages: 0, ..vm::usual(SILENCE) };
    Suite { script: "numa.sh", programs: NUMA, packages: Packages::All, machine }.run()
}

impl Suite {
    /// Builds, boots, runs.
    fn run(&self) -> Outcome<Report> {
        let parts = setup::machine()?;
        let (mut report, variables) = built(self.programs, self.packages);
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
    let (mut report, variables) = built(WIRE, Packages::Verbs);
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

/// Builds the programs of all machines. It is a step of its own, because no other build may run at
/// that time: both would put their programs, with other features, in the same place.
pub(crate) fn build() -> Outcome<Report> {
    let mut report = Report::default();
    for (packages, programs) in PROGRAMS {
        let part = built(programs, *packages).0;
        report.count += if part.count.failed > 0 { part.count } else { Count::one(true) };
        report.text.push_str(&part.text);
    }
    Ok(report)
}

/// Where the built programs are, and what cargo said when one is missing.
type Ready = (BTreeMap<&'static str, String>, String);

/// The programs, built at the first call. Each has a copy of its own, which no later build
/// replaces.
fn ready(packages: Packages) -> &'static Ready {
    static ALL: OnceLock<Ready> = OnceLock::new();
    static VERBS: OnceLock<Ready> = OnceLock::new();
    let (once, folder) = match packages {
        Packages::All => (&ALL, "all"),
        Packages::Verbs => (&VERBS, "verbs"),
    };
    once.get_or_init(|| {
        let all = PROGRAMS.iter().filter(|(of, _)| *of == packages);
        let programs: Vec<&Program> = all.flat_map(|(_, programs)| *programs).collect();
        let folder = place::state().join("programs").join(folder);
        copies(&programs, packages, &folder).unwrap_or_else(|it| (BTreeMap::new(), it))
    })
}

fn copies(programs: &[&'static Program], packages: Packages, folder: &Path) -> Outcome<Ready> {
    let (messages, words) = messages(programs, packages)?;
    place::make(folder)?;
    let mut paths = BTreeMap::new();
    for program in programs {
        let Some(path) = executable(&messages, program) else { continue };
        let copy = folder.join(program.name());
        let failed = |cause| format!("cannot copy {path} to {}: {cause}", copy.display());
        fs::copy(&path, &copy).map_err(failed)?;
        paths.insert(program.name(), copy.display().to_string());
    }
    Ok((paths, words))
}

/// The variables that name programs to a script. One that could not be built is one failure;
/// everything that does not need it still runs.
fn built(programs: &[Program], packages: Packages) -> (Report, String) {
    let mut report = Report::default();
    let mut variables = String::new();
    let (paths, words) = ready(packages);
    for program in programs {
        let name = program.name();
        if let Some(path) = paths.get(name) {
            let variable = name.to_uppercase().replace('-', "_");
            variables.push_str(&format!("{variable}={} ", quoted(path)));
        } else {
            report.count += Count::one(false);
            report.text.push_str(&format!("the program `{name}` is missing\n"));
        }
    }
    if report.count.failed > 0 {
        report.text.push_str(&format!("cargo says:\n{words}\n"));
    }
    (report, variables)
}

/// The conformance suite, built for any device; its path.
pub(crate) fn conformance() -> Outcome<String> {
    let (paths, words) = ready(Packages::Verbs);
    let path = paths.get(CONFORMANCE.name());
    path.cloned().ok_or_else(|| format!("the conformance suite is missing, cargo says:\n{words}"))
}

/// Builds programs; returns cargo's messages, and what it said besides.
fn messages(programs: &[&'static Program], packages: Packages) -> Outcome<(String, String)> {
    let mut text = String::new();
    for command in [["test", "--no-run", "--no-fail-fast"].as_slice(), &["build", "--keep-going"]] {
        let kind = |program: &&&Program| program.is_test() == (command[0] == "test");
        let options = programs.iter().filter(kind).flat_map(|program| program.option());
        let options: Vec<&str> = options.collect();
        if options.is_empty() {
            continue;
        }
        let mut cargo = cargo();
        cargo.args(command).args(options).args(packages.words());
        cargo.args(["--message-format", "json-render-diagnostics"]);
        text.push_str(&capture(&mut cargo)?.text);
    }
    let (messages, words): (Vec<&str>, _) = text.lines().partition(|line| line.starts_with('{'));
    Ok((messages.join("\n"), words.join("\n")))
}

impl Packages {
    /// The words that choose them.
    fn words(self) -> Vec<String> {
        match self {
            Packages::All => vec!["--workspace".to_owned()],
            Packages::Verbs => {
                let named = members().into_iter().filter(|package| package.has_feature("verbs"));
                let named = named.flat_map(|package| ["--package".to_owned(), package.name]);
                named.chain(["--features", "verbs"].map(str::to_owned)).collect()
            }
        }
    }
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Program::Test(name) | Program::Bin(name) => name,
        }
    }

    fn is_test(&self) -> bool {
        matches!(self, Program::Test(_))
    }

    /// The words that choose it among the targets.
    fn option(&self) -> [&'static str; 2] {
        [if self.is_test() { "--test" } else { "--bin" }, self.name()]
    }
}

/// The path of a target's program, from cargo's messages.
fn executable(messages: &str, program: &Program) -> Option<String> {
    let name = format!("\"name\":\"{}\"", program.name());
    let kind = if program.is_test() { "\"kind\":[\"test\"]" } else { "\"kind\":[\"bin\"]" };
    let meant =
        |line: &&str| [&name, kind, "\"executable\":\""].iter().all(|part| line.contains(*part));
    let path = messages.lines().find(meant)?.split_once("\"executable\":\"")?.1;
    Some(path.split('"').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_the_messages() {
        let message = |kind, executable: &str| {
            let target = format!("{{\"kind\":[\"{kind}\"],\"name\":\"echo\"}}");
            format!("{{\"target\":{target},\"executable\":{executable}}}")
        };
        let messages =
            [message("lib", "null"), message("test", "\"/t/test\""), message("bin", "\"/t/echo\"")]
                .join("\n");
        let found = |program| executable(&messages, &program);
        assert_eq!(found(Program::Bin("echo")).as_deref(), Some("/t/echo"));
        assert_eq!(found(Program::Test("echo")).as_deref(), Some("/t/test"));
        assert_eq!(found(Program::Bin("conformance")), None);
    }

    #[test]
    fn every_program_of_a_machine_is_built() {
        let listed = |packages, program: &Program| {
            let mut all = PROGRAMS.iter().filter(|(of, _)| *of == packages);
            all.any(|(_, programs)| programs.iter().any(|it| it.name() == program.name()))
        };
        assert!(WIRE.iter().chain([&CONFORMANCE]).all(|it| listed(Packages::Verbs, it)));
    }

    #[test]
    fn a_missing_program_says_so() {
        const NONE: &Program = &Program::Bin("none-such");
        let (messages, words) = messages(&[NONE], Packages::All).expect("cargo runs");
        assert_eq!(executable(&messages, NONE), None);
        assert!(words.contains("no bin target named `none-such`"), "{words}");
    }
}
