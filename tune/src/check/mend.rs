//! How a condition is mended: in the table for every machine, and as steps on this one.

use std::fmt;

use serde::Serialize;

/// What would mend a condition, on any machine. Values may say `$WORKERS`, `$HOUSEKEEPING` (lists
/// of CPUs) and `$HUGEPAGES` (pages of 2 MiB on a node).
#[derive(Clone, Copy, Debug)]
pub enum Mend {
    /// Values in files.
    Write(Setting),
    /// A service that is not to run.
    Service(&'static str),
    /// A parameter for the kernel's command line: only the next start can bring it.
    Kernel(&'static str),
    /// What a person has to do.
    Advice(&'static str),
}

/// Files of one kind, and the value they should hold.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The files, as a pattern (glob(7)).
    pub files: &'static str,
    /// The value.
    pub value: &'static str,
    /// Which of the files should hold it.
    pub rule: Rule,
}

/// Which files of a setting should hold its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Each; in one that lists words, the word in brackets counts.
    Is,
    /// Each, or a greater number.
    AtLeast,
    /// Those that have a file beside them with a number above this.
    Above {
        /// The name of that file.
        beside: &'static str,
        /// The number.
        above: u64,
    },
}

/// One thing to do on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A value into a file.
    Write {
        /// The file, as on the machine itself.
        file: String,
        /// The value.
        value: String,
    },
    /// A service to stop.
    Stop(String),
    /// A parameter for the kernel's command line.
    Kernel(String),
    /// What a person has to do.
    Advice(String),
}

impl Step {
    /// True if the machine can do it while it runs.
    #[must_use]
    pub fn is_now(&self) -> bool {
        matches!(self, Step::Write { .. } | Step::Stop(_))
    }
}

impl fmt::Display for Step {
    /// The command, or the advice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write { file, value } => write!(f, "echo {} > {}", quoted(value), quoted(file)),
            Step::Stop(service) => write!(f, "systemctl stop {}", quoted(service)),
            Step::Kernel(parameter) => write!(f, "on the kernel's command line: {parameter}"),
            Step::Advice(text) => f.write_str(text),
        }
    }
}

/// A word for a POSIX shell.
pub(super) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_command_a_shell_reads_back() {
        let step = Step::Write { file: "/sys/a b".to_owned(), value: "it's $HOME".to_owned() };
        assert_eq!(step.to_string(), "echo 'it'\\''s $HOME' > '/sys/a b'");
        assert_eq!(quoted("/proc/irq/12/smp_affinity_list"), "/proc/irq/12/smp_affinity_list");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("*"), "'*'");
    }

    #[test]
    fn only_what_can_be_done_now_is_done_now() {
        assert!(Step::Stop("irqbalance".to_owned()).is_now());
        assert!(!Step::Kernel("nosmt".to_owned()).is_now());
        assert!(!Step::Advice("ask".to_owned()).is_now());
    }
}
