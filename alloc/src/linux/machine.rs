//! [`Machine`]: the files in which a kernel tells of its limits, below one root.

use std::format;
use std::fs;
use std::path::PathBuf;
use std::string::String;

use super::nodes::NodeSet;

/// A machine to ask for its limits: this one, or a recorded one.
///
/// All that is read before memory is mapped is files of /proc and /sys, so a folder that holds
/// copies of them answers as the machine did that they were copied from.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The machine that runs this program.
    #[must_use]
    pub fn this() -> Self {
        Self::recorded("/")
    }

    /// The machine whose `proc` and `sys` lie in the folder `root`. A file that is missing there
    /// is one that kernel does not have.
    #[must_use]
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The text of a file, by its path on the machine.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()
    }

    /// The one number in a file. `max` and what does not fit is none.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The nodes listed in a file.
    pub(super) fn nodes(&self, path: &str) -> Option<NodeSet> {
        NodeSet::parse(&self.text(path)?)
    }

    /// Bytes of a line such as `MemFree:   1234 kB` in a file.
    pub(super) fn figures(&self, path: &str) -> Figures {
        Figures(self.text(path).unwrap_or_default())
    }

    /// What follows `name:` in the status of the calling thread: capabilities and cpusets are a
    /// thread's own. A recorded machine has but one, which is that of the process.
    pub(super) fn status(&self, name: &str) -> Option<String> {
        let text = self.text("/proc/thread-self/status");
        let text = text.or_else(|| self.text("/proc/self/status"))?;
        let start = format!("{name}:");
        Some(text.lines().find_map(|line| line.strip_prefix(&start))?.trim().into())
    }
}

/// A file of lines that end in a name, a colon and a number of KiB, as in proc_meminfo(5).
#[derive(Debug)]
pub(super) struct Figures(String);

impl Figures {
    /// The figure of a name, bytes; 0 if there is none.
    pub(super) fn bytes(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_default()
    }

    /// The figure of a name, bytes. A node's file has its number before the name:
    /// `Node 1 MemFree: 5 kB`.
    pub(super) fn find(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|line| {
            let (left, right) = line.split_once(':')?;
            if left.rsplit(' ').next() != Some(name) {
                return None;
            }
            right.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let figures = Figures("MemFree:  4 kB\nSwapFree:   1 kB\nBad: x kB\n".into());
        assert_eq!(figures.find("MemFree"), Some(4096));
        assert_eq!(figures.find("Free"), None);
        assert_eq!(figures.find("Bad"), None);
        assert_eq!(figures.bytes("None"), 0);
        let node = Figures("Node 1 MemFree:   8 kB\nNode 1 Active(file):  3 kB\n".into());
        assert_eq!(node.find("MemFree"), Some(8192));
        assert_eq!(node.find("Active(file)"), Some(3072));
    }

    #[test]
    fn a_file_that_is_not_there_says_nothing() {
        let none = Machine::recorded("/nowhere/at/all");
        assert_eq!(none.number("/proc/sys/vm/overcommit_memory"), None);
        assert_eq!(none.status("VmLck"), None);
        assert!(Machine::this().status("VmLck").is_some());
    }
}
