//! Which files may contain `unsafe`. The workspace denies it, and a file that needs it expects the
//! lint with a reason. The lists here keep such files few: a new one fails the check.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::members::{apart, members};
use crate::place::files_below;

/// Code that begins with these words is unsafe. They are written in pieces, so that this file does
/// not count.
const STARTS: &[&str] = &[
    concat!("uns", "afe {"),
    concat!("uns", "afe fn "),
    concat!("uns", "afe impl"),
    concat!("uns", "afe trait "),
    concat!("uns", "afe extern "),
];

/// The most files of a package with `unsafe`: those that ship, and its tests, models and benches.
/// Lower a number as soon as there are fewer; a package without a line may have none.
const CEILINGS: &[(&str, usize, usize)] = &[
    ("doorbell-alloc", 9, 6),
    ("doorbell-alone", 1, 0),
    ("doorbell-base", 3, 0),
    ("doorbell-bench", 9, 3),
    ("doorbell-compare", 2, 0),
    ("doorbell-cm", 8, 12),
    ("doorbell-dropin", 43, 4),
    ("doorbell-engine", 10, 5),
    ("doorbell-examples", 2, 0),
    ("doorbell-kv", 1, 0),
    ("doorbell-nvmf", 1, 0),
    ("doorbell-seam", 8, 0),
    ("doorbell-soft", 25, 32),
    ("doorbell-tokio", 1, 1),
    ("doorbell-tune", 2, 0),
    ("doorbell-turn", 1, 0),
    ("doorbell-verbs", 12, 1),
];

/// Packages that name their files with `unsafe`. A file that no longer has any leaves the list.
const NAMED: &[(&str, &[&str])] = &[("doorbell-soft", SOFT), ("doorbell-verbs", VERBS)];

const SOFT: &[&str] = &[
    "src/control/forks.rs",
    "src/control/mod.rs",
    "src/control/sys.rs",
    "src/device/path.rs",
    "src/handles/seam.rs",
    "src/model/biased.rs",
    "src/model/buffers.rs",
    "src/model/memory.rs",
    "src/model/send_queue.rs",
    "src/shm/burst.rs",
    "src/shm/changes.rs",
    "src/shm/copy.rs",
    "src/shm/copy_x86.rs",
    "src/shm/inbox.rs",
    "src/shm/layout.rs",
    "src/shm/reader.rs",
    "src/shm/remote_map.rs",
    "src/shm/ring.rs",
    "src/state/link_scheduler.rs",
    "src/state/place.rs",
    "src/state/predicted.rs",
    "src/state/quiet.rs",
    "src/state/ready.rs",
    "src/steps/deferred.rs",
    "src/steps/domain.rs",
];

/// The calls of rdma-core and of the C library, and the traits of the seam that promise something.
const VERBS: &[&str] = &[
    "src/control/core.rs",
    "src/control/line.rs",
    "src/front.rs",
    "src/handles.rs",
    "src/lib.rs",
    "src/objects.rs",
    "src/poll.rs",
    "src/post.rs",
    "src/qp_calls.rs",
    "src/rdma_core.rs",
    "src/region.rs",
    "src/sys.rs",
];

/// The files of a package with `unsafe`, by their paths below its folder.
#[derive(Default)]
struct Found {
    shipped: Vec<String>,
    tests: Vec<String>,
}

/// The broken rules, one line each.
pub(crate) fn broken() -> Outcome<Vec<String>> {
    let packages: Vec<_> = members().into_iter().chain(apart()).collect();
    let mut all: BTreeMap<&str, Found> = BTreeMap::new();
    for file in files_below(&crate::place::root()) {
        // Packages lie in each other's folders: a file belongs to the innermost.
        let inside = packages.iter().filter(|package| file.starts_with(package.folder()));
        let package = inside.max_by_key(|package| package.folder().components().count());
        let Some(package) = package.filter(|_| has_unsafe(&file)) else { continue };
        let name = file.strip_prefix(package.folder()).unwrap_or(&file).display().to_string();
        let found = all.entry(package.name.as_str()).or_default();
        if is_test(&name) { found.tests.push(name) } else { found.shipped.push(name) }
    }
    Ok(all.iter().flat_map(|(name, found)| judge(name, found)).collect())
}

fn has_unsafe(file: &Path) -> bool {
    let rust = file.extension().is_some_and(|end| end == "rs");
    rust && fs::read_to_string(file).is_ok_and(|text| text.lines().any(is_unsafe))
}

/// True for a line of code, not of comments, that begins something unsafe.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    STARTS.iter().any(|start| code.contains(start))
}

/// True for a file that is in no library and no program.
fn is_test(name: &str) -> bool {
    let stem = name.trim_end_matches(".rs");
    let folder = |name: &str| stem.split('/').any(|part| part == name);
    let ends = ["tests", "models", "scribbler", "hostile"];
    ends.iter().any(|end| stem.ends_with(end)) || folder("tests") || folder("benches")
}

/// The rules that a package breaks.
fn judge(name: &str, found: &Found) -> Vec<String> {
    let limit = CEILINGS.iter().find(|(known, ..)| *known == name);
    let (shipped, tests) = limit.map_or((0, 0), |(_, shipped, tests)| (*shipped, *tests));
    let mut broken = Vec::new();
    for (what, files, most) in
        [("files", &found.shipped, shipped), ("test files", &found.tests, tests)]
    {
        if files.len() > most {
            let list = files.join(" ");
            broken.push(format!(
                "{name}: {} {what} with unsafe code, not {most}: {list}",
                files.len()
            ));
        }
    }
    if let Some((_, named)) = NAMED.iter().find(|(known, _)| *known == name) {
        let here = found.shipped.iter().map(String::as_str);
        let new = here.clone().filter(|file| !named.contains(file));
        broken.extend(new.map(|file| format!("{name}: {file} may not have unsafe code")));
        let gone = named.iter().filter(|file| !here.clone().any(|it| it == **file));
        broken.extend(gone.map(|file| format!("{name}: {file} has no unsafe code, but is listed")));
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_too_many_is_found() {
        let files = |number: usize| vec!["src/a.rs".to_owned(); number];
        let (name, shipped, tests) = CEILINGS[0];
        let found = |shipped, tests| Found { shipped: files(shipped), tests: files(tests) };
        assert!(judge(name, &found(shipped, tests)).is_empty());
        assert_eq!(judge(name, &found(shipped + 1, tests)).len(), 1);
        assert_eq!(judge(name, &found(shipped, tests + 1)).len(), 1);
        assert_eq!(judge("a package without a line", &found(1, 0)).len(), 1);
    }

    #[test]
    fn a_named_list_is_exact() {
        let (name, files) = NAMED[0];
        let list = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect();
        let found = |files: &[&str]| Found { shipped: list(files), tests: Vec::new() };
        assert!(judge(name, &found(files)).is_empty());
        assert_eq!(judge(name, &found(&files[1..])).len(), 1, "one is gone");
        let other = [&["src/other.rs"], &files[1..]].concat();
        assert_eq!(judge(name, &found(&other)).len(), 2, "one is new");
    }

    #[test]
    fn only_code_counts() {
        for start in STARTS {
            assert!(is_unsafe(&format!("    let a = {start}")), "{start}");
            assert!(!is_unsafe(&format!("    // {start}")), "{start}");
        }
        assert!(!is_unsafe(concat!("#![expect(uns", "afe_code)]")));
    }

    #[test]
    fn tests_are_told_from_what_ships() {
        for name in ["tests/a.rs", "src/tests/a.rs", "src/a_tests.rs", "src/models.rs"] {
            assert!(is_test(name), "{name}");
        }
        for name in ["src/a.rs", "src/testing.rs", "src/a/mod.rs"] {
            assert!(!is_test(name), "{name}");
        }
    }
}
