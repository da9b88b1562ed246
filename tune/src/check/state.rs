//! Reverts what a script has changed.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use super::host::chosen;
use crate::Root;

/// Why the state file cannot be used. Values that could not be restored are in [`Undone`] instead.
#[derive(Error)]
#[non_exhaustive]
pub enum UndoError {
    /// It cannot be read or written.
    #[error(
        "cannot use {}, which has the previous values: {source}",
        file.display()
    )]
    State {
        /// The state file.
        file: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// `tune` did not write one of its lines. Nothing was restored.
    #[error(
        "tune did not write line {line} of {}; nothing was restored",
        file.display()
    )]
    Garbled {
        /// The state file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
}

impl fmt::Debug for UndoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What happened to each value that had been changed, the last change first.
#[derive(Debug, Default)]
pub struct Undone {
    /// Files and services that were restored.
    pub restored: Vec<String>,
    /// Files of the kernel that a restart has reset since then.
    pub gone: Vec<String>,
    /// Those that could not be restored, and why. They stay in the state file.
    pub failed: Vec<String>,
}

impl Undone {
    /// True if nothing had been changed.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.restored.is_empty() && self.gone.is_empty() && self.failed.is_empty()
    }
}

/// Restores the values in the state file, and removes from it those that were restored.
///
/// # Errors
/// The state file cannot be read or written, or `tune` did not write it.
pub fn undo(root: &Root, state: &Path) -> Result<Undone, UndoError> {
    let fault = |source| UndoError::State { file: state.to_owned(), source };
    let text = match fs::read_to_string(state) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Undone::default()),
        Err(error) => return Err(fault(error)),
    };
    let mut changes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let garbled = || UndoError::Garbled { file: state.to_owned(), line: index + 1 };
        changes.push((Change::read(line).ok_or_else(garbled)?, line));
    }
    let start = root.text("/proc/sys/kernel/random/boot_id").unwrap_or_else(|| "-".to_owned());
    let (mut undone, mut left) = (Undone::default(), Vec::new());
    for (change, line) in changes.iter().rev() {
        let name = change.name.to_owned();
        if change.ends_with_a_restart() && change.start != start {
            undone.gone.push(name);
            continue;
        }
        match change.restore(root) {
            Ok(()) => undone.restored.push(name),
            Err(why) => {
                undone.failed.push(format!("{name}: {why}"));
                left.push(*line);
            }
        }
    }
    if left.is_empty() {
        fs::remove_file(state).map_err(fault)?;
    } else {
        left.reverse();
        fs::write(state, format!("{}\n", left.join("\n"))).map_err(fault)?;
    }
    Ok(undone)
}

/// One line of the state file.
#[derive(Debug)]
struct Change<'a> {
    /// The boot ID of the machine when the change was made.
    start: &'a str,
    name: &'a str,
    before: Before,
}

#[derive(Debug, PartialEq)]
enum Before {
    /// The file did not exist.
    NoFile,
    /// The file contained this.
    Held(Vec<u8>),
    /// The service was running.
    Active,
}

impl<'a> Change<'a> {
    fn read(line: &'a str) -> Option<Change<'a>> {
        let mut fields = line.split('\t');
        let (start, kind) = (fields.next()?, fields.next()?);
        let (name, before) = (fields.next()?, fields.next()?);
        let before = match (kind, before) {
            ("service", "active") => Before::Active,
            ("file", "absent") => Before::NoFile,
            ("file", held) => Before::Held(from_hex(held.strip_prefix("had:")?)?),
            _ => return None,
        };
        fields.next().is_none().then_some(Change { start, name, before })
    }

    /// True for a change that a restart of the machine reverts.
    fn ends_with_a_restart(&self) -> bool {
        self.before == Before::Active
            || self.name.starts_with("/sys/")
            || self.name.starts_with("/proc/")
    }

    fn restore(&self, root: &Root) -> Result<(), String> {
        match &self.before {
            Before::Active => start_service(self.name),
            Before::NoFile => match fs::remove_file(root.path(self.name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            },
            Before::Held(bytes) => refill(&root.path(self.name), bytes),
        }
    }
}

/// Makes a file contain `bytes` again. A file of the kernel that lists all possible words, with the
/// chosen one in brackets, accepts only that word, and then shows the same text.
fn refill(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let holds = || fs::read(path).is_ok_and(|now| now == bytes);
    if holds() {
        return Ok(());
    }
    let whole = fs::write(path, bytes);
    if holds() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(bytes);
    let word = chosen(&text);
    let answer = if word == text.trim() { whole } else { fs::write(path, word) };
    match answer {
        Err(error) => Err(error.to_string()),
        Ok(()) if holds() => Ok(()),
        Ok(()) => {
            let now = fs::read(path).unwrap_or_default();
            let now = String::from_utf8_lossy(&now);
            Err(format!("it contained `{}`, and now contains `{}`", text.trim(), now.trim()))
        }
    }
}

fn start_service(name: &str) -> Result<(), String> {
    match Command::new("systemctl").args(["start", name]).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("systemctl start {name} ended with {status}")),
        Err(error) => Err(format!("systemctl: {error}")),
    }
}

/// Reads bytes written as two hexadecimal digits each.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back() {
        let change = Change::read("id\tfile\t/sys/a\thad:5b615d\t").is_none();
        assert!(change, "a field too many");
        let change = Change::read("id\tfile\t/sys/a\thad:5b615d").unwrap();
        assert_eq!(change.before, Before::Held(b"[a]".to_vec()));
        assert!(change.ends_with_a_restart());
        let change = Change::read("-\tfile\t/etc/a\tabsent").unwrap();
        assert!(change.before == Before::NoFile && !change.ends_with_a_restart());
        for line in ["", "id\tfile\t/a", "id\tfile\t/a\t5b615d", "id\tservice\ta\tabsent"] {
            assert!(Change::read(line).is_none(), "{line}");
        }
    }
}
