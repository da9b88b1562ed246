//! Where things are: the repository, the build's output, and what these commands keep.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;

/// The repository's root. `cargo run` names this package's folder; a copied binary falls back on
/// the folder it was built from.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| folder.into()),
        None => root().join("target"),
    }
}

/// `target/doorbell`: everything these commands fetch, remember and report.
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

/// A program started from the repository root. Administration programs (`modprobe`, `depmod`) live
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

/// Members of the workspace whose manifest declares `feature`, as `(package, folder)`.
pub(crate) fn packages_with(feature: &str) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for folder in members() {
        let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        if declares(&manifest, feature)
            && let Some(name) = package_name(&manifest)
        {
            found.push((name, folder));
        }
    }
    found
}

/// The folders of the workspace's members, as its manifest lists them.
pub(crate) fn members() -> Vec<PathBuf> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    listed(&manifest).map(|folder| root().join(folder)).collect()
}

/// The entries of the list of members.
fn listed(manifest: &str) -> impl Iterator<Item = &str> {
    let list = manifest.split_once("members = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split(',').map(|entry| entry.trim().trim_matches('"')).filter(|entry| !entry.is_empty())
}

fn declares(manifest: &str, feature: &str) -> bool {
    section(manifest, "features").any(|(key, _)| key == feature)
}

pub(crate) fn package_name(manifest: &str) -> Option<String> {
    let (_, value) = section(manifest, "package").find(|(key, _)| *key == "name")?;
    Some(value.trim_matches('"').to_owned())
}

/// The `key = value` lines of one section of a manifest.
pub(crate) fn section<'a>(
    manifest: &'a str,
    name: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[')
            && let Some(header) = header.strip_suffix(']')
        {
            inside = header == name;
            return None;
        }
        let (key, value) = line.split_once('=')?;
        inside.then(|| (key.trim().trim_matches('"'), value.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "\
[package]
name = \"a-b\"
version.workspace = true

[features]
default = []
verbs = [\"dep:rdma-sys\"]

[dependencies]
numa = \"1\"
";

    #[test]
    fn a_feature_is_found_in_its_own_section_only() {
        assert!(declares(MANIFEST, "verbs"));
        assert!(!declares(MANIFEST, "numa"));
        assert!(!declares(MANIFEST, "name"));
    }

    #[test]
    fn the_members_are_read() {
        let manifest = "[workspace]\nmembers = [\n    \"a\",\n    \"b/c\",\n]\n";
        assert_eq!(listed(manifest).collect::<Vec<_>>(), ["a", "b/c"]);
        assert!(members().iter().any(|folder| folder.ends_with("xtask")));
    }

    #[test]
    fn the_package_name_is_read() {
        assert_eq!(package_name(MANIFEST).as_deref(), Some("a-b"));
        assert_eq!(package_name("[features]\nname = \"x\"\n"), None);
    }
}
