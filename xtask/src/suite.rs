//! The step in the virtual machine: builds the programs out here, runs `xtask/vm/suite.sh` in
//! there.

use std::time::Duration;

use crate::Outcome;
use crate::args::quoted;
use crate::count::Count;
use crate::exec::{Sink, capture};
use crate::machine::{Job, Shared};
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

/// Every program built for the suite. All are built with the feature `verbs`.
const PROGRAMS: &[Program] = &[
    Program {
        name: "conformance",
        build: &["test", "--no-run", "--package", "doorbell-cm", "--test", "conformance"],
    },
    Program {
        name: "verbs_rxe",
        build: &["test", "--no-run", "--package", "doorbell-cm", "--test", "verbs_rxe"],
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

/// A hung machine must not hang the ladder.
const LIMIT: Duration = Duration::from_secs(900);

/// Builds, boots, runs. A program that cannot be built is one failure; what does not need it runs.
pub(crate) fn check() -> Outcome<Report> {
    packages::ensure(&[Need::Verbs])?;
    let parts = setup::machine()?;
    let mut count = Count::default();
    let mut text = String::new();
    let mut line = String::new();
    for program in PROGRAMS {
        match build(program) {
            Ok(path) => {
                let path = quoted(&path);
                let variable = program.name.to_uppercase().replace('-', "_");
                line.push_str(&format!("{variable}={path} "));
            }
            Err(message) => {
                count += Count::one(false);
                text.push_str(&format!("{message}\n"));
            }
        }
    }
    line.push_str("bash xtask/vm/suite.sh");
    let machine = vm::usual(LIMIT);
    let shared = Shared::new()?;
    let job =
        Job { machine: &machine, shared: &shared, role: "command", line: &line, sink: Sink::Kept };
    match job.run(&parts, &|| false) {
        Ok((code, output)) => {
            count += Count::of_program(&output, code == 0);
            text.push_str(&output);
        }
        Err(message) => {
            // With what it had printed until then: those tests have run.
            count += Count::of_program(&message, false);
            text.push_str(&message);
        }
    }
    Ok(Report { count, text })
}

/// Builds one program; the path of what came out.
fn build(program: &Program) -> Outcome<String> {
    let mut cargo = cargo();
    cargo.args(program.build);
    cargo.args(["--features", "verbs", "--message-format", "json-render-diagnostics"]);
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
        let message = build(&none).expect_err("there is no such program");
        assert!(message.contains("`none-such` is missing"), "{message}");
    }
}
