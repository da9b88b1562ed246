//! [`Root`]: where a machine's files are read, on the machine itself or in a recorded copy.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::ids::Ids;
use crate::list;

/// The folder below which `/sys`, `/proc` and `/etc` are read: `/`, or a folder with copies of the
/// files that matter. Files are named by their path on the machine itself, `/sys/...`.
///
/// Files in `/proc/self` belong to this program; in a recorded machine, to the program that
/// recorded it.
///
/// ```
/// use doorbell_tune::{Machine, Root};
///
/// let folder = std::env::temp_dir().join(format!("doorbell-doc-{}", std::process::id()));
/// // Record this machine, then read the copy.
/// let here = Machine::from_files(&Root::system().recorded_in(&folder))?;
/// let copy = Machine::from_files(&Root::at(&folder))?;
/// assert_eq!(here.cores, copy.cores);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    base: PathBuf,
    /// The folder that every file is copied to when it is read.
    copy: Option<PathBuf>,
}

/// A file that could not be read.
#[derive(Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    /// The file, below the root.
    pub path: PathBuf,
    /// What the system answered.
    pub source: io::Error,
}

impl fmt::Debug for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Root {
    /// This machine.
    #[must_use]
    pub fn system() -> Root {
        Root::at("/")
    }

    /// A machine recorded in a folder.
    pub fn at(base: impl Into<PathBuf>) -> Root {
        Root { base: base.into(), copy: None }
    }

    /// The same machine. Every file that is read from now on is copied to `folder`, which becomes a
    /// recorded machine. Files that cannot be written there are left out; to find out, read the
    /// copy and compare.
    #[must_use]
    pub fn recorded_in(self, folder: impl Into<PathBuf>) -> Root {
        Root { copy: Some(folder.into()), ..self }
    }

    /// True for this machine, false for a recorded one, where nothing can be changed.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.base == Path::new("/")
    }

    /// The path of `file` below the root.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.base.join(file.trim_start_matches('/'))
    }

    /// True if there is such a file or folder.
    #[must_use]
    pub fn has(&self, file: &str) -> bool {
        self.path(file).exists()
    }

    /// A file's text, without spaces and line ends around it, nor the zero byte that some kernels
    /// end it with.
    ///
    /// # Errors
    /// It does not exist, may not be read, or is not text.
    pub fn read(&self, file: &str) -> Result<String, ReadError> {
        let path = self.path(file);
        match fs::read_to_string(&path) {
            Ok(text) => {
                self.copy(file, |to| fs::write(to, &text));
                Ok(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
            }
            Err(source) => Err(ReadError { path, source }),
        }
    }

    fn copy(&self, file: &str, write: impl FnOnce(&Path) -> io::Result<()>) {
        let Some(folder) = &self.copy else { return };
        let to = folder.join(file.trim_start_matches('/'));
        let parent = to.parent().map_or(Ok(()), fs::create_dir_all);
        // A file that is missing in the copy is found by comparing.
        let _ = parent.and_then(|()| write(&to));
    }

    /// A file's text; `None` if it cannot be read. Mostly that means that the machine does not have
    /// what the file is about.
    #[must_use]
    pub fn text(&self, file: &str) -> Option<String> {
        self.read(file).ok()
    }

    /// The value in a file that contains just one; `None` if it cannot be read or parsed.
    #[must_use]
    pub fn value<T: FromStr>(&self, file: &str) -> Option<T> {
        self.text(file)?.parse().ok()
    }

    /// The list of CPUs or nodes in a file (cpuset(7), list format).
    #[must_use]
    pub fn ids(&self, file: &str) -> Option<Ids> {
        self.value(file)
    }

    /// The CPUs in a file with a mask (cpuset(7), mask format), or else in one with a list: old
    /// kernels write only masks.
    pub(crate) fn set(&self, mask: &str, list: &str) -> Option<Ids> {
        let cpus = self.text(mask).and_then(|text| list::parse_mask(&text));
        cpus.map(|cpus| cpus.into_iter().collect()).or_else(|| self.ids(list))
    }

    /// The value in the line that starts with `key` and a colon or an equals sign, as in
    /// `/proc/self/status` or `/etc/os-release`.
    #[must_use]
    pub fn field(&self, file: &str, key: &str) -> Option<String> {
        let text = self.text(file)?;
        let mut lines = text.lines().filter_map(|line| line.split_once([':', '=']));
        let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
        Some(value.trim().to_owned())
    }

    /// The names of the entries of a folder, sorted; empty if it cannot be read.
    #[must_use]
    pub fn entries(&self, folder: &str) -> Vec<String> {
        let Ok(found) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names = Vec::new();
        for entry in found.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            // Files are copied when they are read, but a folder must exist in the copy at once.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.copy(&format!("{folder}/{name}"), |to| fs::create_dir_all(to));
            }
            names.push(name);
        }
        names.sort();
        names
    }

    /// The path of a file or folder with all symbolic links resolved; `None` if it does not exist.
    #[must_use]
    pub fn resolve(&self, file: &str) -> Option<PathBuf> {
        let found = fs::canonicalize(self.path(file)).ok()?;
        self.copy_link(file);
        Some(found)
    }

    /// Copies a link. Links in /sys are relative, so they work in the copy too.
    fn copy_link(&self, file: &str) {
        let Ok(target) = fs::read_link(self.path(file)) else { return };
        self.copy(file, |to| {
            std::os::unix::fs::symlink(&target, to)?;
            fs::create_dir_all(to.parent().unwrap_or(to).join(&target))
        });
    }

    /// The last part of the path that a symbolic link points to, such as the driver of a device;
    /// `None` if there is no such link.
    #[must_use]
    pub fn link(&self, file: &str) -> Option<String> {
        let target = fs::read_link(self.path(file)).ok()?;
        self.copy_link(file);
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

impl Default for Root {
    fn default() -> Root {
        Root::system()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Root {
        Root::at(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn files_are_named_by_their_path_on_the_machine() {
        let root = Root::at("/recorded");
        assert_eq!(root.path("/sys/devices"), Path::new("/recorded/sys/devices"));
        assert_eq!(root.path("sys/devices"), Path::new("/recorded/sys/devices"));
        assert_eq!(Root::system().path("/sys/devices"), Path::new("/sys/devices"));
        assert!(Root::system().is_system() && !root.is_system());
    }

    #[test]
    fn a_missing_file_is_none_or_an_error_that_names_it() {
        assert_eq!(here().text("/sys/none-such"), None);
        assert!(here().entries("/sys").is_empty());
        let text = here().read("/sys/none-such").unwrap_err().to_string();
        assert!(text.contains("sys/none-such"), "{text}");
    }

    #[test]
    fn values_are_trimmed() {
        assert!(here().entries("/src").contains(&"root.rs".to_owned()));
        assert_eq!(here().field("/Cargo.toml", "name"), Some("\"doorbell-tune\"".to_owned()));
        assert_eq!(here().field("/Cargo.toml", "none-such"), None);
        assert!(Root::system().ids("/sys/devices/system/cpu/online").is_some());
    }
}
