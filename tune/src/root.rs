//! Where a machine is read: its own files, or a recorded copy of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::ids::Ids;

/// The folder under which `/sys`, `/proc` and `/etc` are read: `/`, or a folder that holds a copy
/// of the files that matter. Names of files are given as on the machine itself, `/sys/...`.
///
/// Files under `/proc/self` are those of the program that asks; in a recorded machine, of the
/// program for which it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    base: PathBuf,
    /// Where what is read is copied to.
    copy: Option<PathBuf>,
}

/// A file that could not be read.
#[derive(Debug, Error)]
#[error("asked to read {}, the system answered: {source}", path.display())]
pub struct ReadError {
    /// The file, under the root.
    pub path: PathBuf,
    /// What the system answered.
    pub source: io::Error,
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

    /// The same machine; what is read of it from now on is copied to `folder`, which is then a
    /// recorded machine. A file that cannot be written is left out: whoever records reads the copy
    /// and compares.
    #[must_use]
    pub fn recorded_in(self, folder: impl Into<PathBuf>) -> Root {
        Root { copy: Some(folder.into()), ..self }
    }

    /// True for this machine, false for a recorded one: only on the former can anything be changed.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.base == Path::new("/")
    }

    /// Where `file` is under the root.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.base.join(file.trim_start_matches('/'))
    }

    /// True if there is such a file or folder.
    #[must_use]
    pub fn has(&self, file: &str) -> bool {
        self.path(file).exists()
    }

    /// A file's text, without spaces and line ends around it.
    ///
    /// # Errors
    /// It is not there, may not be read, or is no text.
    pub fn read(&self, file: &str) -> Result<String, ReadError> {
        let path = self.path(file);
        match fs::read_to_string(&path) {
            Ok(text) => {
                self.copy(file, |to| fs::write(to, &text));
                Ok(text.trim().to_owned())
            }
            Err(source) => Err(ReadError { path, source }),
        }
    }

    fn copy(&self, file: &str, write: impl FnOnce(&Path) -> io::Result<()>) {
        let Some(folder) = &self.copy else { return };
        let to = folder.join(file.trim_start_matches('/'));
        let parent = to.parent().map_or(Ok(()), fs::create_dir_all);
        // Whoever records finds out by comparing.
        let _ = parent.and_then(|()| write(&to));
    }

    /// A file's text; `None` where it cannot be read, which is how the kernel says that it does not
    /// have the thing.
    #[must_use]
    pub fn text(&self, file: &str) -> Option<String> {
        self.read(file).ok()
    }

    /// A file that holds one value.
    #[must_use]
    pub fn value<T: FromStr>(&self, file: &str) -> Option<T> {
        self.text(file)?.parse().ok()
    }

    /// A file that holds a list of CPUs or nodes (cpuset(7), list format).
    #[must_use]
    pub fn ids(&self, file: &str) -> Option<Ids> {
        self.value(file)
    }

    /// The value of the line that begins with `key` and a colon or an equals sign, as in
    /// `/proc/self/status` or `/etc/os-release`.
    #[must_use]
    pub fn field(&self, file: &str, key: &str) -> Option<String> {
        let text = self.text(file)?;
        let mut lines = text.lines().filter_map(|line| line.split_once([':', '=']));
        let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
        Some(value.trim().to_owned())
    }

    /// Names of what a folder holds, in order; none where it cannot be read.
    #[must_use]
    pub fn entries(&self, folder: &str) -> Vec<String> {
        let Ok(found) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names = Vec::new();
        for entry in found.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            // What is below is copied when it is read, but that it is there is known now.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.copy(&format!("{folder}/{name}"), |to| fs::create_dir_all(to));
            }
            names.push(name);
        }
        names.sort();
        names
    }

    /// The folder or file itself, with all symbolic links on the way followed; `None` where there
    /// is none.
    #[must_use]
    pub fn resolve(&self, file: &str) -> Option<PathBuf> {
        let found = fs::canonicalize(self.path(file)).ok()?;
        self.copy_link(file);
        Some(found)
    }

    /// Links of /sys lead to folders of /sys by relative paths: they do so in a copy, too.
    fn copy_link(&self, file: &str) {
        let Ok(target) = fs::read_link(self.path(file)) else { return };
        self.copy(file, |to| {
            std::os::unix::fs::symlink(&target, to)?;
            fs::create_dir_all(to.parent().unwrap_or(to).join(&target))
        });
    }

    /// The name at the end of where a symbolic link leads, such as the driver of a device; `None`
    /// where there is no such link.
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
    fn files_are_named_as_on_the_machine_itself() {
        let root = Root::at("/recorded");
        assert_eq!(root.path("/sys/devices"), Path::new("/recorded/sys/devices"));
        assert_eq!(root.path("sys/devices"), Path::new("/recorded/sys/devices"));
        assert_eq!(Root::system().path("/sys/devices"), Path::new("/sys/devices"));
        assert!(Root::system().is_system() && !root.is_system());
    }

    #[test]
    fn what_is_not_there_is_none_or_an_error_that_names_it() {
        assert_eq!(here().text("/sys/none-such"), None);
        assert!(here().entries("/sys").is_empty());
        let text = here().read("/sys/none-such").unwrap_err().to_string();
        assert!(text.contains("sys/none-such"), "{text}");
    }

    #[test]
    fn values_come_without_what_is_around_them() {
        assert!(here().entries("/src").contains(&"root.rs".to_owned()));
        assert_eq!(here().field("/Cargo.toml", "name"), Some("\"doorbell-tune\"".to_owned()));
        assert_eq!(here().field("/Cargo.toml", "none-such"), None);
        assert!(Root::system().ids("/sys/devices/system/cpu/online").is_some());
    }
}
