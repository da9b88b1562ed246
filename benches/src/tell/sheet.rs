//! Files that figures are written to.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::{Failure, say};

/// Where `--json` sends the figures: `-` is standard output, instead of the table.
pub(crate) enum Out {
    Nowhere,
    Standard,
    File(Sheet),
}

impl Out {
    /// Opens the file, if a file is named.
    pub(crate) fn open(path: Option<&Path>) -> Result<Out, Failure> {
        match path {
            None => Ok(Out::Nowhere),
            Some(path) if path == Path::new("-") => Ok(Out::Standard),
            Some(path) => Sheet::open(path).map(Out::File),
        }
    }

    /// True if standard output takes the JSON, and so nothing else.
    pub(crate) fn is_standard(&self) -> bool {
        matches!(self, Out::Standard)
    }

    /// Prints the table, or the JSON instead; writes the file.
    pub(crate) fn tell(self, json: &str, table: &str) -> Result<(), Failure> {
        match self {
            Out::Standard => say(json),
            Out::Nowhere => say(table),
            Out::File(sheet) => say(table).and_then(|()| sheet.write(json)),
        }
    }
}

/// A file that is known to be writable before anything is measured.
pub(crate) struct Sheet {
    file: File,
    path: PathBuf,
    /// The file is new, and is removed again if nothing is written.
    fresh: bool,
}

impl Sheet {
    /// Opens or makes the file. What it holds stays until [`Sheet::write`].
    pub(crate) fn open(path: &Path) -> Result<Sheet, Failure> {
        let fresh = !path.exists();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| {
            let asked = format!("write {}", path.display());
            Failure::system(
                asked,
                &error,
                "name a file in a folder that exists and that you may write to",
            )
        })?;
        Ok(Sheet { file, path: path.to_owned(), fresh })
    }

    /// Writes the whole file.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        self.fresh = false;
        // A pipe or a terminal can be neither truncated nor rewound, and needs neither.
        let _ = self.file.set_len(0).and_then(|()| self.file.rewind());
        self.file.write_all(text.as_bytes()).map_err(|error| {
            let asked = format!("write {}", self.path.display());
            Failure::system(asked, &error, "is the disk full?")
        })
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        if self.fresh {
            // Best effort: an empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritten_sheet_leaves_nothing_behind() {
        let path = std::env::temp_dir().join(format!("doorbell-sheet-{}", std::process::id()));
        drop(Sheet::open(&path).unwrap());
        assert!(!path.exists());
        Sheet::open(&path).unwrap().write("a longer text").unwrap();
        drop(Sheet::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a longer text");
        Sheet::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        std::fs::remove_file(&path).unwrap();
        let missing = Sheet::open(&path.join("in").join("nowhere")).err().unwrap();
        assert!(missing.to_string().contains("folder that exists"), "{missing}");
    }
}
