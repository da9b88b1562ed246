//! `cargo xtask recorded`: machines that `hwloc-gather-topology` recorded, and the test that
//! compares `tune` with hwloc on each of them. Those of hwloc's own tests come from Debian's source
//! package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::exec::{capture, must};
use crate::packages::{self, Need};
use crate::place::{self, cargo, program};
use crate::report::Report;
use crate::unpack::lock;

/// Fewer would mean that the source package has changed.
const MACHINES_MIN: usize = 40;

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
    let found = place::entries(&home()).len();
    if found < MACHINES_MIN {
        return Err(format!(
            "{} has {found} machines, fewer than {MACHINES_MIN}: has the source package changed? \
             remove the folder to fetch them again",
            home().display()
        ));
    }
    let done = capture(&mut test(&home()))?;
    Ok(Report { count: Count::of_program(&done.text, done.ok), text: done.text })
}

/// The test, on the machines in the folders below this one.
fn test(folder: &Path) -> Command {
    let mut cargo = cargo();
    cargo.args(["test", "--quiet", "--package", "doorbell-tune", "--test", "recorded"]);
    cargo.args(["--", "--show-output"]).env("DOORBELL_RECORDED", folder);
    cargo
}

/// Prints the table of the machines in a folder, or of hwloc's own. Fails if one of them is read
/// otherwise than hwloc does, without a reason.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    packages::ensure(&[Need::Recorded])?;
    let folder = match words {
        [] => match lacks() {
            Some(why) => return Err(why),
            None => home(),
        },
        [folder] if !folder.starts_with('-') => std::path::absolute(folder)
            .map_err(|cause| format!("there is no folder `{folder}`: {cause}"))?,
        _ => return Err("recorded takes one folder, with a machine in each folder in it".into()),
    };
    if !place::entries(&folder).iter().any(|machine| machine.is_dir()) {
        let folder = folder.display();
        return Err(format!("{folder} has no folder in it; each machine is a folder there"));
    }
    let done = capture(&mut test(&folder))?;
    print!("{}", done.text);
    Ok(u8::from(!done.ok))
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
