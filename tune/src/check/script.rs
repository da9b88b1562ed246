//! The shell script that fixes a machine while it runs.

use std::fmt;
use std::io::{self, Write};
use std::process::{Command, Stdio};

use super::condition::Severity;
use super::fix::{Step, quoted};
use super::report::Report;
use crate::Root;

/// The file in which a script saves the previous values, below the root.
pub const STATE: &str = "/var/lib/doorbell/tune.state";

/// The functions of every script: `put`, `stop` and what they need.
pub(super) const PRELUDE: &str = include_str!("prelude.sh");

/// A script that fixes whatever is bad and can be fixed at run time; with `all`, also what is worth
/// knowing. Other steps are in it as comments. The script saves the previous values in `state`; the
/// default is [`STATE`], below the root.
#[must_use]
pub fn script(report: &Report, all: bool, state: Option<&str>) -> String {
    let mut text = String::from("#!/bin/sh\n# Fixes what `tune check` found. Run it as root.\n");
    text.push_str("ROOT=${ROOT:-}\n");
    match state {
        Some(file) => push(&mut text, format_args!("STATE={}", quoted(file))),
        None => push(&mut text, format_args!("STATE=${{STATE:-$ROOT{STATE}}}")),
    }
    text.push_str(PRELUDE);
    for finding in &report.findings {
        let wanted = match finding.severity {
            Severity::Bad => true,
            Severity::Note => all,
            Severity::Unknown | Severity::Fine | Severity::Absent => false,
        };
        if !wanted || finding.fix.is_empty() {
            continue;
        }
        push(&mut text, format_args!("\n# {}: {}", finding.name, finding.is.replace('\n', " ")));
        for step in &finding.fix {
            match step {
                Step::Write { file, value } => {
                    push(&mut text, format_args!("put {} {}", quoted(file), quoted(value)));
                }
                Step::Stop(service) => push(&mut text, format_args!("stop {}", quoted(service))),
                step => push(&mut text, format_args!("# {}", step.to_string().replace('\n', " "))),
            }
        }
    }
    text.push_str("\nexit $failed\n");
    text
}

/// Runs a script of [`script()`] on a machine, and returns whether all steps worked. The script
/// reports each failure on standard error.
///
/// # Errors
/// The shell cannot be started.
pub fn run_script(root: &Root, script: &str) -> io::Result<bool> {
    let base = root.path("/");
    // The script puts `ROOT` in front of names that begin with a slash.
    let base = base.to_string_lossy();
    let mut shell = Command::new("sh");
    shell.arg("-s").env("ROOT", base.trim_end_matches('/')).env_remove("STATE");
    let mut child = shell.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    Ok(child.wait()?.success())
}

pub(super) fn push(text: &mut String, line: fmt::Arguments<'_>) {
    text.push_str(&line.to_string());
    text.push('\n');
}
