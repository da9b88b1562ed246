//! [`Machine`]: the kernel's files about its limits, below one root folder.

use std::format;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::string::String;
use std::vec::Vec;

/// A machine whose limits can be read: this one, or a recorded one.
///
/// Before memory is mapped, only files of /proc and /sys are read. So a folder with copies of those
/// files gives the same answers as the machine they were copied from.
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

    /// The machine whose `proc` and `sys` are in the folder `root`. A file that is missing there
    /// counts as one that the kernel does not have.
    #[must_use]
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The text of a file, by its path on the machine.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()
    }

    /// The first line of a file that may be long.
    pub(super) fn first_line(&self, path: &str) -> Option<String> {
        let file = fs::File::open(self.root.join(path.trim_start_matches('/'))).ok()?;
        let mut line = Vec::new();
        BufReader::new(file).read_until(b'\n', &mut line).ok()?;
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    /// The number in a file. `None` for `max` and for anything else that is not a `u64`.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The figures in a file of lines such as `MemFree:   1234 kB`.
    pub(super) fn figures(&self, path: &str) -> Figures {
        Figures(self.text(path).unwrap_or_default())
    }

    /// The value of `name:` in the status of the calling thread, because capabilities and cpusets
    /// belong to a thread. A recorded machine has only the status of the process.
    pub(super) fn status(&self, name: &str) -> Option<String> {
        let text = self.text("/proc/thread-self/status");
        let text = text.or_else(|| self.text("/proc/self/status"))?;
        let start = format!("{name}:");
        Some(text.lines().find_map(|line| line.strip_prefix(&start))?.trim().into())
    }
}

/// The text of a file with lines of a name, a colon and a number of KiB, as in proc_meminfo(5).
#[derive(Debug)]
pub(super) struct Figures(String);

impl Figures {
    /// The figure with this name, bytes; 0 if there is none.
    pub(super) fn bytes(&self, name: &str) -> u64 {
        self.find(name).unwrap_or_default()
    }

    /// The figure with this name, bytes. A node's file has the node before the name:
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
    fn a_missing_file_gives_no_value() {
        let none = Machine::recorded("/nowhere/at/all");
        assert_eq!(none.number("/proc/sys/vm/overcommit_memory"), None);
        assert_eq!(none.status("VmLck"), None);
        assert!(Machine::this().status("VmLck").is_some());
    }
}
