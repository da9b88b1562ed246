//! Where things are: the repository, the build's output, and what these commands keep.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;

/// The repository's root. `cargo run` sets this package's folder; a copied binary uses the folder
/// it was built from.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// Cargo's output folder.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => root().join("target"),
    }
}

/// `target/doorbell`: everything that these commands fetch, remember and report.
pub(crate) fn state() -> PathBuf {
    root().join("target").join("doorbell")
}

/// The folder a virtual machine may write to, and the host reads afterwards.
pub(crate) fn vm_out() -> PathBuf {
    state().join("vm-out")
}

/// Makes a folder and its parents.
pub(crate) fn make(folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder)
        .map_err(|cause| format!("cannot make the folder {}: {cause}", folder.display()))
}

/// Writes a whole file.
pub(crate) fn write(file: &Path, text: &str) -> Outcome<()> {
    std::fs::write(file, text).map_err(|cause| format!("cannot write {}: {cause}", file.display()))
}

/// The entries of a folder by name; none if it cannot be read.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(found) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A program started from the repository root. Administration programs (`modprobe`, `depmod`) lie
/// in folders that an ordinary user's `PATH` lacks.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).env("PATH", search_path());
    command
}

/// The cargo that runs this command.
pub(crate) fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// True if a program of that name can be found.
pub(crate) fn has_program(name: &str) -> bool {
    std::env::split_paths(&search_path()).any(|folder| folder.join(name).is_file())
}

fn search_path() -> String {
    let own = std::env::var("PATH").unwrap_or_default();
    format!("{own}:/usr/local/sbin:/usr/sbin:/sbin")
}

/// Files that people write: no hidden folders except `.cargo` and `.ci`, and no build output.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in entries(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".cargo" && name != ".ci";
        if path.is_symlink() || hidden || name == "target" {
            continue;
        }
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}
