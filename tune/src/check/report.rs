//! What came out, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::mend::{Mend, Setting, Step};
use super::{Check, Host, Unread};

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It costs latency or rate, or nothing works.
    Bad,
    /// Could not be read.
    Unknown,
    /// It costs something to some, or mending it is a decision.
    Note,
    /// As it should be.
    Fine,
    /// This machine does not have the thing.
    Absent,
}

impl Severity {
    /// The word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Bad => "bad",
            Severity::Unknown => "could not check",
            Severity::Note => "worth knowing",
            Severity::Fine => "fine",
            Severity::Absent => "not applicable",
        }
    }
}

/// What a check says of a machine.
#[derive(Debug)]
pub struct Verdict {
    /// How bad it is.
    pub severity: Severity,
    /// What is, in one line.
    pub is: String,
    /// What would mend it.
    pub steps: Vec<Step>,
}

impl Verdict {
    /// As it should be.
    pub(super) fn fine(is: impl Into<String>) -> Verdict {
        Verdict { severity: Severity::Fine, is: is.into(), steps: Vec::new() }
    }

    /// This machine does not have the thing.
    pub(super) fn absent(is: impl Into<String>) -> Verdict {
        Verdict { severity: Severity::Absent, is: is.into(), steps: Vec::new() }
    }

    /// It costs something, and these steps mend it.
    pub(super) fn bad(is: impl Into<String>, steps: Vec<Step>) -> Verdict {
        Verdict { severity: Severity::Bad, is: is.into(), steps }
    }

    /// It costs something to some, and these steps mend it.
    pub(super) fn note(is: impl Into<String>, steps: Vec<Step>) -> Verdict {
        Verdict { severity: Severity::Note, is: is.into(), steps }
    }
}

/// One check's answer, with all that is to be said about it.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The check.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is.
    pub is: String,
    /// What should be.
    pub should: &'static str,
    /// Why.
    pub why: &'static str,
    /// What it costs, and the source of that figure.
    pub cost: &'static str,
    /// What would mend it.
    pub mend: Vec<Step>,
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
        Finding { name, severity, is, should, why, cost, mend: steps }
    }
}

/// What all checks say.
#[derive(Debug, Serialize)]
pub struct Report {
    /// In the order of the table.
    pub findings: Vec<Finding>,
}

/// Commands shown of one finding; a script has all.
const SHOWN: usize = 3;
/// As far as the longest word and the longest name go.
const INDENT: &str = "                                ";
const COLUMNS: usize = 100;

/// Text behind `head`, in lines of at most 100 columns, those after the first behind `indent`.
pub(super) fn wrapped(head: &str, text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let (mut line, mut begun) = (head.to_owned(), false);
    for word in text.split_whitespace() {
        if begun && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(&line);
            lines.push('\n');
            (line, begun) = (indent.to_owned(), false);
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    lines + line.trim_end() + "\n"
}

impl Report {
    /// For scripts: 1 if something is bad, else 2 if something could not be read, else 0.
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
            let Finding { name, severity, is, should, why, cost, mend } = finding;
            f.write_str(&wrapped(&format!("{:<16}{name:<16}", severity.word()), is, INDENT))?;
            if matches!(severity, Severity::Fine | Severity::Absent) {
                continue;
            }
            for (what, text) in [("should be", should), ("why", why), ("costs", cost)] {
                f.write_str(&wrapped(&format!("{:16}{what:<16}", ""), text, INDENT))?;
            }
            for step in mend.iter().take(SHOWN) {
                // Not wrapped: it is to be copied.
                writeln!(f, "{:16}{:<16}{step}", "", "mend")?;
            }
            if mend.len() > SHOWN {
                let rest = mend.len() - SHOWN;
                writeln!(f, "{INDENT}and {rest} more: tune check --fix --only {name}")?;
            }
        }
        let kinds =
            [Severity::Bad, Severity::Unknown, Severity::Note, Severity::Fine, Severity::Absent];
        let counts = kinds.map(|kind| format!("{} {}", self.count(kind), kind.word()));
        writeln!(f, "{}", counts.join(", "))
    }
}

/// The judge of checks that are settings and nothing else: bad where a file differs.
pub(super) fn settings(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let (mut total, mut off, mut steps) = (0, Vec::new(), Vec::new());
    let mut held = String::new();
    for mend in check.mends {
        if let Mend::Write(setting) = mend {
            let matched = host.matched(setting)?;
            total += matched.total;
            held = matched.last;
            steps.extend(matched.off.iter().map(|(file, _)| write(host, setting, file)));
            off.extend(matched.off);
        }
    }
    let Some((file, now)) = off.first() else {
        return Ok(match total {
            0 => Verdict::absent("this machine has no such setting"),
            1 => Verdict::fine(held),
            _ => Verdict::fine(format!("{held}, {total} times")),
        });
    };
    let others = match total {
        1 => String::new(),
        _ => format!(" ({} of {total} differ)", off.len()),
    };
    steps.extend(words(host, check));
    Ok(Verdict::bad(format!("{file} holds `{now}`{others}"), steps))
}

/// The same, where a difference is a matter of taste.
pub(super) fn settings_noted(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let verdict = settings(host, check)?;
    Ok(match verdict.severity {
        Severity::Bad => Verdict { severity: Severity::Note, ..verdict },
        _ => verdict,
    })
}

/// One file of a setting, mended.
pub(super) fn write(host: &Host<'_>, setting: &Setting, file: &str) -> Step {
    Step::Write { file: file.to_owned(), value: host.filled(setting.value) }
}

/// The mends of a check that are not files: services, parameters, advice.
pub(super) fn words(host: &Host<'_>, check: &Check) -> Vec<Step> {
    let step = |mend: &Mend| match *mend {
        Mend::Write(_) => None,
        Mend::Service(name) => Some(Step::Stop(name.to_owned())),
        Mend::Kernel(text) => Some(Step::Kernel(host.filled(text))),
        Mend::Advice(text) => Some(Step::Advice(host.filled(text))),
    };
    check.mends.iter().filter_map(step).collect()
}
