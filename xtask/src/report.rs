//! The report of a step that is a function of ours.

use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::exec::capture;

/// A report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Passes and failures.
    pub(crate) count: Count,
    /// The text to print if something failed.
    pub(crate) text: String,
}

impl Report {
    /// Adds a command: one pass or one failure.
    pub(crate) fn run(&mut self, command: &mut Command) -> Outcome<()> {
        let done = capture(command)?;
        self.count += Count::one(done.ok);
        self.text.push_str(&done.text);
        Ok(())
    }
}
