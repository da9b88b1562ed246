//! [`Check`]: one condition that costs latency or rate, and what a check says about it.

use serde::Serialize;

use super::fix::{Fix, Step};
use super::host::{Host, Unread};

/// One condition, and how to read, judge and fix it. Its cost is an order of magnitude with its
/// source, not a promise for one machine.
#[derive(Debug)]
pub struct Check {
    /// Its name, for `--only`.
    pub name: &'static str,
    /// What should be the case.
    pub should: &'static str,
    /// Why.
    pub why: &'static str,
    /// What it costs if that is not the case, and the source of the figure.
    pub cost: &'static str,
    /// Reads the machine and judges it.
    pub judge: fn(&Host<'_>, &Check) -> Result<Verdict, Unread>,
    /// What fixes it, at run time and at the next start.
    pub fixes: &'static [Fix],
}

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It costs latency or rate, or something fails.
    Bad,
    /// The machine could not be read.
    Unknown,
    /// It costs something in some cases, or the fix is a matter of judgement.
    Note,
    /// It is as it should be.
    Fine,
    /// The machine does not have what the check is about.
    Absent,
}

impl Severity {
    /// How it is printed.
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

/// What a check says about a machine.
#[derive(Debug)]
pub struct Verdict {
    /// How bad it is.
    pub severity: Severity,
    /// What is the case, in one line.
    pub is: String,
    /// What fixes it.
    pub steps: Vec<Step>,
}

impl Verdict {
    /// It is as it should be.
    pub(super) fn fine(is: impl Into<String>) -> Verdict {
        Verdict { severity: Severity::Fine, is: is.into(), steps: Vec::new() }
    }

    /// The machine does not have what the check is about.
    pub(super) fn absent(is: impl Into<String>) -> Verdict {
        Verdict { severity: Severity::Absent, is: is.into(), steps: Vec::new() }
    }

    /// It costs something, and these steps fix it.
    pub(super) fn bad(is: impl Into<String>, steps: Vec<Step>) -> Verdict {
        Verdict { severity: Severity::Bad, is: is.into(), steps }
    }

    /// It costs something in some cases, and these steps fix it.
    pub(super) fn note(is: impl Into<String>, steps: Vec<Step>) -> Verdict {
        Verdict { severity: Severity::Note, is: is.into(), steps }
    }
}
