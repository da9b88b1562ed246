//! How a condition is fixed: on any machine ([`Fix`], in the table), and on this one ([`Step`]).

use std::fmt;

use serde::Serialize;

/// What fixes a condition on any machine. A value may contain `$WORKERS` and `$HOUSEKEEPING` (lists
/// of CPUs) and `$HUGEPAGES` (pages of 2 MiB on a node).
#[derive(Clone, Copy, Debug)]
pub enum Fix {
    /// Write a value into files.
    Write(Setting),
    /// Stop a service.
    Service(&'static str),
    /// Add a parameter to the kernel's command line. It takes effect at the next start.
    Kernel(&'static str),
    /// Something that a person has to do.
    Advice(&'static str),
}

/// Files of one kind, and the value that they should contain.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The files, as a pattern (glob(7)).
    pub files: &'static str,
    /// The value.
    pub value: &'static str,
    /// Which of the files should contain it.
    pub rule: Rule,
}

/// Which files of a setting should contain its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All of them. In a file that lists words, the word in brackets counts.
    Is,
    /// All of them, or a greater number.
    AtLeast,
    /// Those with a file next to them that contains a number above this one.
    Above {
        /// The name of that file.
        beside: &'static str,
        /// The number.
        above: u64,
    },
}

/// One step of a fix on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Write a value into a file.
    Write {
        /// The file, by its path on the machine itself.
        file: String,
        /// The value.
        value: String,
    },
    /// Stop a service.
    Stop(String),
    /// Add a parameter to the kernel's command line.
    Kernel(String),
    /// Something that a person has to do.
    Advice(String),
}

impl Step {
    /// True if it can be done while the machine runs.
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

/// `word`, quoted for a POSIX shell if it needs that.
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
    fn only_writes_and_stops_can_be_done_now() {
        assert!(Step::Stop("irqbalance".to_owned()).is_now());
        assert!(!Step::Kernel("nosmt".to_owned()).is_now());
        assert!(!Step::Advice("ask".to_owned()).is_now());
    }
}
