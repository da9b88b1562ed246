//! A folder for the files of a test, for the tests of several packages.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// One whose path is short enough for socket files. It may be in memory.
    pub(crate) fn new(name: &str) -> Folder {
        Folder::below(&std::env::temp_dir(), name)
    }

    /// One on a disk.
    pub(crate) fn on_disk(name: &str) -> Folder {
        Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn below(place: &Path, name: &str) -> Folder {
        let path = place.join(format!("doorbell-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the path is text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
