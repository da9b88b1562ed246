//! [`Host`]: the machine that checks read, and what is wanted of it.

use std::io;

use glob::{MatchOptions, Pattern};
use thiserror::Error;

use super::fix::{Rule, Setting};
use crate::{Cpus, Ids, Plan, ReadError, Root};

/// What the workers on this machine need.
#[derive(Clone, Debug)]
pub struct Wants {
    /// The cores that they run on. Default: the isolated ones.
    pub cores: Option<Ids>,
    /// Huge pages of 2 MiB on each node that they take memory from. Default: 64, which is 128 MiB.
    /// With the engine's default settings a receive queue takes 3 pages and each worker one for its
    /// sends, so that is enough for 24 workers if every two share a queue, as in a plan.
    pub hugepages: u64,
    /// The nodes that they take memory from. Default: all nodes with memory.
    pub nodes: Option<Ids>,
}

impl Wants {
    /// What the workers of a plan need.
    #[must_use]
    pub fn of(plan: &Plan) -> Wants {
        let bytes = plan.memory_by_node().into_values().max().unwrap_or(0);
        let hugepages = bytes.div_ceil(2 << 20);
        Wants { cores: Some(plan.cpus()), hugepages, nodes: Some(plan.memory_nodes()) }
    }
}

impl Default for Wants {
    fn default() -> Wants {
        Wants { cores: None, hugepages: 64, nodes: None }
    }
}

/// Why a machine, or a part of it, could not be checked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unread {
    /// The system refused to let it be read.
    #[error("{source}; is this the right user?")]
    Refused {
        /// The file, and the system's answer.
        #[from]
        source: ReadError,
    },
    /// A file contains something that the kernel does not write there.
    #[error("{file} contains `{text}`, which is not {wanted}")]
    Garbled {
        /// The file.
        file: String,
        /// Its text.
        text: String,
        /// What was expected.
        wanted: &'static str,
    },
    /// Only root may read more than the beginning of a device's configuration space.
    #[error("only the first {len} bytes of {file} may be read; run this as root")]
    Short {
        /// The file.
        file: String,
        /// Bytes read.
        len: usize,
    },
    /// Workers are wanted on cores that are not online.
    #[error("cores {cores} are not online on this machine; choose from {online}")]
    NoCore {
        /// The cores that are not online.
        cores: Ids,
        /// The cores that are.
        online: Ids,
    },
}

/// A machine, and what is wanted of it.
#[derive(Debug)]
pub struct Host<'a> {
    /// Where its files are read.
    pub root: &'a Root,
    /// Its CPUs.
    pub cpus: Cpus,
    /// The CPUs that workers run on or could run on.
    pub workers: Ids,
    /// True if those CPUs were named or are isolated; false if none are reserved for workers, so
    /// that `workers` is only a guess.
    pub reserved: bool,
    /// Huge pages of 2 MiB wanted on each of the nodes.
    pub hugepages: u64,
    /// Those nodes; `None` for all nodes with memory.
    pub nodes: Option<Ids>,
}

/// The files that a setting is about.
#[derive(Debug)]
pub(super) struct Matched {
    /// How many there are.
    pub(super) total: usize,
    /// The value in the last of them.
    pub(super) last: String,
    /// The files with a wrong value, and that value.
    pub(super) wrong: Vec<(String, String)>,
}

impl<'a> Host<'a> {
    /// Reads which CPUs the machine has.
    ///
    /// # Errors
    /// The machine does not say which CPUs are online, or workers are wanted on others.
    pub fn read(root: &'a Root, wants: &Wants) -> Result<Host<'a>, Unread> {
        let cpus = Cpus::read(root)?;
        let missing = wants.cores.clone().unwrap_or_default().without(&cpus.online);
        if !missing.is_empty() {
            return Err(Unread::NoCore { cores: missing, online: cpus.online });
        }
        let reserved = wants.cores.is_some() || !cpus.isolated.is_empty();
        let mut host = Host {
            root,
            cpus,
            workers: Ids::default(),
            reserved,
            hugepages: wants.hugepages,
            nodes: wants.nodes.clone(),
        };
        host.workers = match &wants.cores {
            Some(cores) => cores.clone(),
            None if reserved => host.cpus.isolated.clone(),
            // Most machines do their housekeeping on the first core.
            None => match host.cpus.online.first() {
                Some(first) => host.cpus.online.without(&host.siblings(first)?),
                None => Ids::default(),
            },
        };
        Ok(host)
    }

    /// The CPUs that are left for everything else.
    #[must_use]
    pub fn housekeeping(&self) -> Ids {
        self.cpus.online.without(&self.workers)
    }

    /// The hardware threads of the core that `cpu` belongs to, including `cpu`.
    pub(super) fn siblings(&self, cpu: usize) -> Result<Ids, Unread> {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        Ok(self.ids(&file)?.unwrap_or_else(|| Ids::from_iter([cpu])))
    }

    /// A file's text, trimmed; `None` if there is no such file.
    pub(super) fn text(&self, file: &str) -> Result<Option<String>, Unread> {
        match self.root.read(file) {
            Ok(text) => Ok(Some(text)),
            Err(error) if is_absent(&error.source) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A file's bytes; `None` if there is no such file.
    pub(super) fn bytes(&self, file: &str) -> Result<Option<Vec<u8>>, Unread> {
        let path = self.root.path(file);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(source) if is_absent(&source) => Ok(None),
            Err(source) => Err(ReadError { path, source }.into()),
        }
    }

    /// A file that holds one number.
    pub(super) fn number(&self, file: &str) -> Result<Option<u64>, Unread> {
        let Some(text) = self.text(file)? else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(garbled(file, &text, "a number")),
        }
    }

    /// A file that holds a list of CPUs or nodes. In some files the kernel writes `(null)` for
    /// none.
    pub(super) fn ids(&self, file: &str) -> Result<Option<Ids>, Unread> {
        match self.text(file)? {
            None => Ok(None),
            Some(text) if text == "(null)" => Ok(Some(Ids::default())),
            Some(text) => match text.parse() {
                Ok(ids) => Ok(Some(ids)),
                Err(_) => Err(garbled(file, &text, "a list such as 0-3,8")),
            },
        }
    }

    /// The value of a parameter on the kernel's command line; empty if the parameter has none.
    pub(super) fn parameter(&self, name: &str) -> Result<Option<String>, Unread> {
        let line = self.text("/proc/cmdline")?.unwrap_or_default();
        let mut words =
            line.split_whitespace().map(|word| word.split_once('=').unwrap_or((word, "")));
        Ok(words.find(|(word, _)| *word == name).map(|(_, value)| value.to_owned()))
    }

    /// The files that match a pattern (glob(7)), in the order of the numbers in their names.
    pub(super) fn files(&self, pattern: &str) -> Vec<String> {
        let base = self.root.path("/");
        let base = base.to_string_lossy();
        let under = format!("{}{}", Pattern::escape(&base), pattern.trim_start_matches('/'));
        let found = glob::glob_with(&under, MatchOptions::new()).into_iter().flatten().flatten();
        let mut files: Vec<String> = found
            .filter_map(|path| Some(format!("/{}", path.to_str()?.strip_prefix(base.as_ref())?)))
            .collect();
        files.sort_by_cached_key(|file| (numbers(file), file.clone()));
        files
    }

    /// A value of the table on this machine, with `$WORKERS`, `$HOUSEKEEPING` and `$HUGEPAGES`
    /// replaced.
    pub(super) fn filled(&self, value: &str) -> String {
        value
            .replace("$WORKERS", &self.workers.to_string())
            .replace("$HOUSEKEEPING", &self.housekeeping().to_string())
            .replace("$HUGEPAGES", &self.hugepages.to_string())
    }

    /// Compares the files of a setting with its value.
    pub(super) fn matched(&self, setting: &Setting) -> Result<Matched, Unread> {
        let value = self.filled(setting.value);
        let mut matched = Matched { total: 0, last: String::new(), wrong: Vec::new() };
        for file in self.files(setting.files) {
            // The files of a CPU vanish when it is switched off in the meantime.
            let Some(text) = self.text(&file)? else { continue };
            let now = chosen(&text).to_owned();
            let right = match setting.rule {
                Rule::Is => now == value,
                Rule::AtLeast => number_in(&file, &now)? >= number_in(&file, &value)?,
                Rule::Above { beside, above } => {
                    let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
                    match self.number(&format!("{folder}/{beside}"))? {
                        Some(number) if number > above => now == value,
                        _ => true,
                    }
                }
            };
            matched.total += 1;
            matched.last.clone_from(&now);
            if !right {
                matched.wrong.push((file, now));
            }
        }
        Ok(matched)
    }
}

/// The word in brackets, in a file that lists all possible words; else the whole text.
pub(super) fn chosen(text: &str) -> &str {
    let text = text.trim();
    let mut words = text.split_whitespace();
    words.find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap_or(text)
}

/// The CPU in `/sys/devices/system/cpu/cpu12/…`.
pub(super) fn cpu_of(file: &str) -> Option<usize> {
    file.strip_prefix("/sys/devices/system/cpu/cpu")?.split('/').next()?.parse().ok()
}

pub(super) fn garbled(file: &str, text: &str, wanted: &'static str) -> Unread {
    // A binary file may be long.
    let text = text.chars().take(60).collect();
    Unread::Garbled { file: file.to_owned(), text, wanted }
}

fn number_in(file: &str, text: &str) -> Result<u64, Unread> {
    text.parse().map_err(|_| garbled(file, text, "a number"))
}

/// The errors by which the kernel says that it does not have something.
fn is_absent(error: &io::Error) -> bool {
    let gone = [libc::ENODEV, libc::ENXIO, libc::EINVAL, libc::EOPNOTSUPP].map(Some);
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || gone.contains(&error.raw_os_error())
}

/// The numbers in a name, to sort cpu10 after cpu9.
fn numbers(file: &str) -> Vec<u64> {
    file.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_the_one_in_brackets() {
        assert_eq!(chosen("always defer [madvise] never\n"), "madvise");
        assert_eq!(chosen("performance\n"), "performance");
        assert_eq!(chosen("50000 100000\n"), "50000 100000");
    }

    #[test]
    fn files_come_in_the_order_of_their_numbers() {
        assert!(numbers("/cpu9/state10") < numbers("/cpu10/state2"));
        assert_eq!(cpu_of("/sys/devices/system/cpu/cpu12/cpuidle/state1/disable"), Some(12));
        assert_eq!(cpu_of("/sys/devices/system/cpu/cpufreq"), None);
    }
}
