//! The machines that hwloc recorded for its own tests, from Debian's source package, and the test
//! that compares `tune` with hwloc on each of them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::count::Count;
use crate::exec::{capture, must};
use crate::place::{self, cargo, program};
use crate::report::Report;
use crate::unpack::lock;

fn home() -> PathBuf {
    place::state().join("recorded")
}

/// Fetches the machines unless they are there; returns why they are not, if so.
pub(crate) fn lacks() -> Option<String> {
    if home().exists() {
        return None;
    }
    let why = fetch().err()?;
    let line = why.lines().last().unwrap_or_default();
    Some(format!("the machines that hwloc recorded cannot be fetched: {line}"))
}

/// Compares on each machine.
pub(crate) fn check() -> Outcome<Report> {
    let mut cargo = cargo();
    cargo.args(["test", "--package", "doorbell-tune", "--test", "recorded", "--", "--show-output"]);
    let done = capture(cargo.env("DOORBELL_RECORDED", home()))?;
    Ok(Report { count: Count::of_program(&done.text, done.ok), text: done.text })
}

/// Downloads the source package and unpacks the machines in it, each to a folder of its own. Only a
/// complete folder gets its final name.
fn fetch() -> Outcome<()> {
    let _lock = lock()?;
    let folder = home().with_extension("new");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .map_err(|cause| format!("cannot remove {}: {cause}", folder.display()))?;
    }
    let work = folder.join("work");
    download(&work)?;
    // Releases of Debian differ in how they compress it.
    for archive in archives(&work, "hwloc_") {
        let mut tar = program("tar");
        tar.args(["--wildcards", "-xf"]).arg(&archive).arg("-C").arg(&work);
        must(tar.args(["--strip-components=4", "*/tests/hwloc/linux/*.tar.bz2"]))?;
        fs::remove_file(&archive).map_err(|cause| cause.to_string())?;
    }
    for archive in archives(&work, "") {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        let machine = folder.join(name.trim_end_matches(".tar.bz2"));
        place::make(&machine)?;
        let mut tar = program("tar");
        // Thousands of files about memory modules, which no one reads.
        tar.arg("--exclude=memory[0-9]*").arg("-xjf").arg(&archive).arg("-C").arg(&machine);
        must(&mut tar)?;
    }
    fs::remove_dir_all(&work)
        .and_then(|()| fs::rename(&folder, home()))
        .map_err(|cause| format!("cannot move {} into place: {cause}", folder.display()))
}

/// Archives of files whose names begin like this. Debian's own changes are not wanted.
fn archives(folder: &Path, start: &str) -> Vec<PathBuf> {
    let wanted = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let end = name.split_once(".tar.").map(|(_, end)| end);
        let packed = end.is_some_and(|end| ["bz2", "gz", "xz"].contains(&end));
        packed && name.starts_with(start) && !name.contains(".debian.")
    };
    place::entries(folder).into_iter().filter(wanted).collect()
}

/// Downloads the source package to `work`. The lists of sources, which a new machine does not have,
/// are read from the same archives as those of programs, and kept in `work` too.
fn download(work: &Path) -> Outcome<()> {
    let (parts, lists) = (work.join("parts"), work.join("lists"));
    place::make(&parts)?;
    place::make(&lists.join("partial"))?;
    let etc = Path::new("/etc/apt");
    let mut files = place::entries(&etc.join("sources.list.d"));
    files.push(etc.join("sources.list"));
    for file in files {
        let (Ok(text), Some(name)) = (fs::read_to_string(&file), file.file_name()) else {
            continue;
        };
        place::write(&parts.join(name), &of_sources(&text))?;
    }
    let apt = || {
        let mut apt = program("apt-get");
        for option in [
            "Dir::Etc::sourcelist=/dev/null".to_owned(),
            format!("Dir::Etc::sourceparts={}", parts.display()),
            format!("Dir::State::Lists={}", lists.display()),
            format!("Dir::Cache={}", work.join("cache").display()),
            // Root's download would go to a user who cannot write to this folder.
            "APT::Sandbox::User=root".to_owned(),
        ] {
            apt.arg("-o").arg(option);
        }
        apt.current_dir(work);
        apt
    };
    // One unreachable archive of several makes the update fail; the next command shows whether it
    // was needed.
    capture(apt().arg("update"))?;
    must(apt().args(["source", "--download-only", "hwloc"])).map(drop)
}

/// A list of archives with the sources of each in place of its programs.
fn of_sources(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("deb ") {
        Some(rest) => format!("deb-src {rest}\n"),
        None if line.starts_with("Types:") => "Types: deb-src\n".to_owned(),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_lists_become_lists_of_sources() {
        assert_eq!(of_sources("deb [x] a b\n# deb c"), "deb-src [x] a b\n# deb c\n");
        assert_eq!(of_sources("Types: deb deb-src\nURIs: a"), "Types: deb-src\nURIs: a\n");
        assert_eq!(of_sources("deb-src a b"), "deb-src a b\n");
    }
}
