//! The result of all checks, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::condition::{Check, Severity, Verdict};
use super::fix::Step;
use super::host::Host;
use super::table::checks;

/// Judges a machine by the checks named in `only`, or by all checks if it is empty.
pub fn run(host: &Host<'_>, only: &[String]) -> Report {
    let asked = |check: &&Check| only.is_empty() || only.iter().any(|name| name == check.name);
    Report { findings: checks().filter(asked).map(|check| Finding::of(host, check)).collect() }
}

/// The result of one check, with its explanation.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is the case.
    pub is: String,
    /// What should be the case.
    pub should: &'static str,
    /// Why.
    pub why: &'static str,
    /// What it costs, and the source of the figure.
    pub cost: &'static str,
    /// What fixes it.
    pub fix: Vec<Step>,
}

impl Finding {
    pub(super) fn of(host: &Host<'_>, check: &'static Check) -> Finding {
        let verdict = (check.judge)(host, check).unwrap_or_else(|unread| Verdict {
            severity: Severity::Unknown,
            is: unread.to_string(),
            steps: Vec::new(),
        });
        let Check { name, should, why, cost, .. } = *check;
        let Verdict { severity, is, steps } = verdict;
        Finding { name, severity, is, should, why, cost, fix: steps }
    }
}

/// The results of all checks that ran.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One for each check, in the order of the table.
    pub findings: Vec<Finding>,
}

/// Steps printed for one finding; the script has all of them.
const SHOWN: usize = 3;
/// As wide as the columns of severities and names.
const INDENT: &str = "                                ";
const COLUMNS: usize = 100;

/// `head` and `text` in lines of at most 100 columns; each line after the first starts with
/// `indent`.
pub(super) fn wrapped(head: &str, text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let (mut line, mut started) = (head.to_owned(), false);
    for word in text.split_whitespace() {
        if started && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(&line);
            lines.push('\n');
            (line, started) = (indent.to_owned(), false);
        }
        if started {
            line.push(' ');
        }
        line.push_str(word);
        started = true;
    }
    lines + line.trim_end() + "\n"
}

impl Report {
    /// The exit code: 1 if something is bad, else 2 if something could not be read, else 0.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let has = |severity| self.count(severity) > 0;
        if has(Severity::Bad) { 1 } else { 2 * u8::from(has(Severity::Unknown)) }
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let Finding { name, severity, is, should, why, cost, fix } = finding;
            f.write_str(&wrapped(&format!("{:<16}{name:<16}", severity.word()), is, INDENT))?;
            if matches!(severity, Severity::Fine | Severity::Absent) {
                continue;
            }
            for (what, text) in [("should be", should), ("why", why), ("costs", cost)] {
                f.write_str(&wrapped(&format!("{:16}{what:<16}", ""), text, INDENT))?;
            }
            for step in fix.iter().take(SHOWN) {
                // Not wrapped, so that it can be copied.
                writeln!(f, "{:16}{:<16}{step}", "", "fix")?;
            }
            if fix.len() > SHOWN {
                let rest = fix.len() - SHOWN;
                writeln!(f, "{INDENT}and {rest} more: tune check --fix --only {name}")?;
            }
        }
        let kinds =
            [Severity::Bad, Severity::Unknown, Severity::Note, Severity::Fine, Severity::Absent];
        let counts = kinds.map(|kind| format!("{} {}", self.count(kind), kind.word()));
        writeln!(f, "{}", counts.join(", "))
    }
}
