//! Which package may depend on which, which folder of a package may use which, and which files of a
//! package use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::members::{members, section};
use crate::uses::{self, Module};

/// Each package of the workspace, and those that it may depend on. Tests may depend on any.
const PACKAGES: &[(&str, &[&str])] = &[
    ("doorbell-alloc", &[]),
    ("doorbell-base", &[]),
    ("doorbell-seam", &["doorbell-alloc"]),
    ("doorbell-engine", &["doorbell-alloc", "doorbell-base", "doorbell-seam"]),
    ("doorbell-fabric", &["doorbell-seam"]),
    ("doorbell-soft", &["doorbell-alloc", "doorbell-base", "doorbell-seam", "doorbell-fabric"]),
    ("doorbell-verbs", &["doorbell-alloc", "doorbell-seam", "doorbell-fabric"]),
    (
        "doorbell-cm",
        &[
            "doorbell-alloc",
            "doorbell-seam",
            "doorbell-engine",
            "doorbell-fabric",
            "doorbell-soft",
            "doorbell-verbs",
        ],
    ),
    ("doorbell-dropin", &["doorbell-alloc", "doorbell-seam", "doorbell-fabric", "doorbell-soft"]),
    ("doorbell-tune", &[]),
    (
        "doorbell",
        &[
            "doorbell-alloc",
            "doorbell-seam",
            "doorbell-engine",
            "doorbell-soft",
            "doorbell-verbs",
            "doorbell-cm",
            "doorbell-tune",
        ],
    ),
    ("doorbell-tokio", &["doorbell"]),
    ("doorbell-top", &["doorbell"]),
    ("doorbell-bench", &["doorbell", "doorbell-tune"]),
    ("doorbell-examples", &["doorbell", "doorbell-tokio", "doorbell-tune"]),
    ("doorbell-exchange", &["doorbell"]),
    ("doorbell-kv", &["doorbell"]),
    ("doorbell-nvmf", &["doorbell"]),
    ("xtask", &[]),
];

/// The folders of a package, and what each may use: folders, or single files of them. Files
/// beside the folders, such as `lib.rs`, may use any.
const FOLDERS: &[(&str, Folders)] = &[(
    "doorbell-soft",
    &[
        ("model", &[]),
        ("shm", &["model"]),
        ("device", &["model", "shm"]),
        // A queue pair owns the state that raw frames and XRC add to it.
        ("state", &["model", "shm", "device", "ext/raw/state.rs", "ext/xrc_part.rs"]),
        // The domain keeps the queues of XRC, and a command brings them.
        ("steps", &["model", "shm", "device", "state", "ext/xrc_part.rs"]),
        // A handle is made with an extension's part, or passes a call on to it.
        ("handles", &["model", "shm", "device", "state", "steps", "ext"]),
        ("ext", &["model", "shm", "device", "state", "steps", "handles"]),
        ("wire", &["shm", "state", "steps"]),
        // `Fabric` offers every extension.
        ("control", &["model", "shm", "device", "state", "handles", "ext", "wire"]),
        ("sim", &["shm", "state", "handles", "wire"]),
    ],
)];

type Folders = &'static [(&'static str, &'static [&'static str])];

/// The broken rules, one line each.
pub(crate) fn broken() -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for member in members() {
        found.extend(package(&member.name, member.text()));
        let known = known(member.folder())?;
        found.extend(circle(&member.name, &known));
        if let Some((_, list)) = FOLDERS.iter().find(|(name, _)| *name == member.name) {
            found.extend(folders(&member.name, list, &known));
        }
    }
    Ok(found)
}

fn read(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).map_err(|cause| format!("cannot read {}: {cause}", file.display()))
}

/// The dependencies of a package that are not in its list.
fn package(name: &str, manifest: &str) -> Vec<String> {
    let Some((_, may)) = PACKAGES.iter().find(|(known, _)| *known == name) else {
        return vec![format!("{name}: no list in xtask/src/arrows.rs says what it may know")];
    };
    section(manifest, "dependencies")
        .map(|(key, _)| key.split('.').next().unwrap_or(key))
        .filter(|key| PACKAGES.iter().any(|(known, _)| known == key) && !may.contains(key))
        .map(|key| format!("{name}: may not depend on {key} (xtask/src/arrows.rs)"))
        .collect()
}

/// Names the files of a package that reach themselves again through others. There may be none.
fn circle(name: &str, known: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let found = in_circles(known);
    let files = found.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    (!found.is_empty()).then(|| format!("{name}: these files form a circle: {files}"))
}

/// The arrows between folders of a package that its list does not allow, and those that the list
/// allows for nothing.
fn folders(name: &str, list: Folders, known: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let folder = |file: &str| file.split_once('/').map(|(folder, _)| folder.to_owned());
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    for (file, others) in known {
        let Some(from) = folder(file) else { continue };
        let Some((_, may)) = list.iter().find(|(known, _)| *known == from) else {
            found.push(format!("{name}: no list in xtask/src/arrows.rs says what {file} may use"));
            continue;
        };
        for other in others {
            let Some(to) = folder(other).filter(|to| *to != from) else { continue };
            match may.iter().find(|may| ***may == to || *may == other) {
                Some(may) => used.extend([(from.clone(), *may)]),
                None => {
                    found.push(format!("{name}: {file} may not use {other} (xtask/src/arrows.rs)"))
                }
            }
        }
    }
    let listed = list.iter().flat_map(|(from, may)| may.iter().map(|to| ((*from).to_owned(), *to)));
    let unused = listed.filter(|arrow| !used.contains(arrow));
    found.extend(unused.map(|(from, to)| {
        format!("{name}: xtask/src/arrows.rs allows {from} to use {to}, which it never does")
    }));
    found
}

/// The files of a package, and the files that each one uses. Tests and models do not count.
fn known(folder: &Path) -> Outcome<BTreeMap<String, BTreeSet<String>>> {
    let source = folder.join("src");
    let mut modules = BTreeMap::new();
    for start in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
        if start.is_file() && modules.is_empty() {
            collect(&source, &start, Vec::new(), &mut modules)?;
        }
    }
    Ok(uses::arrows(&modules))
}

/// Reads a module's file, and those of its submodules.
fn collect(
    source: &Path,
    file: &Path,
    path: Vec<String>,
    modules: &mut BTreeMap<Vec<String>, Module>,
) -> Outcome<()> {
    let name = file.strip_prefix(source).unwrap_or(file).display().to_string();
    let module = Module::parse(&name, &read(file)?);
    let own = path.iter().fold(source.to_path_buf(), |folder, part| folder.join(part));
    for child in module.children.clone() {
        let beside = own.join(format!("{child}.rs"));
        let within = own.join(&child).join("mod.rs");
        let Some(found) = [beside, within].into_iter().find(|file| file.is_file()) else {
            continue;
        };
        let path = path.iter().cloned().chain([child]).collect();
        collect(source, &found, path, modules)?;
    }
    modules.insert(path, module);
    Ok(())
}

/// The files that can be reached from themselves.
fn in_circles(known: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let leads_back = |start: &&String| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&String> = known[*start].iter().collect();
        while let Some(file) = next.pop() {
            if seen.insert(file) {
                next.extend(known.get(file).into_iter().flatten());
            }
        }
        seen.contains(start)
    };
    known.keys().filter(leads_back).cloned().collect()
}

/// Every member of the workspace, to check that the list is complete.
#[cfg(test)]
fn unlisted() -> Vec<String> {
    let names: Vec<String> = members().into_iter().map(|member| member.name).collect();
    let listed = PACKAGES.iter().map(|(name, _)| (*name).to_owned());
    listed.filter(|name| !names.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        let folder = std::env::temp_dir().join(format!(
            "doorbell-arrows-{}-{:?}",
            std::process::id(),
            files.as_ptr()
        ));
        for (name, text) in files {
            let file = folder.join("src").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let known = known(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
        known
    }

    #[test]
    fn a_dependency_that_is_not_listed_is_found() {
        let manifest = "[package]\nname = \"doorbell-seam\"\n\n[dependencies]\nspin = \"1\"\n";
        assert!(package("doorbell-seam", manifest).is_empty());
        let up = format!("{manifest}doorbell-engine.workspace = true\n");
        assert_eq!(package("doorbell-seam", &up).len(), 1);
        let tests = format!("{manifest}\n[dev-dependencies]\ndoorbell-engine.workspace = true\n");
        assert!(package("doorbell-seam", &tests).is_empty());
        assert_eq!(package("doorbell-new", manifest).len(), 1);
    }

    #[test]
    fn the_list_of_packages_is_whole() {
        assert_eq!(unlisted(), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_found() {
        let lib = "mod a;\nmod b;\nmod c;\npub use self::a::A;\n";
        let line = tree(&[
            ("lib.rs", lib),
            ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("b.rs", "use super::c;\npub struct B(c::C);\n"),
            ("c.rs", "pub struct C;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ]);
        assert!(circle("p", &line).is_none(), "{line:?}");
        let round = tree(&[
            ("lib.rs", lib),
            ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("b.rs", "use super::c::C;\npub struct B(C);\n"),
            // By the name that the root manifest gives it.
            ("c.rs", "pub struct C(Option<Box<crate::A>>);\n"),
        ]);
        let names: Vec<_> = in_circles(&round).into_iter().collect();
        assert_eq!(names, ["a.rs", "b.rs", "c.rs"]);
    }

    #[test]
    fn a_circle_by_way_of_a_folder_is_found() {
        let round = tree(&[
            ("lib.rs", "mod a;\nmod z;\n"),
            ("a/mod.rs", "mod inner;\npub use self::inner::I;\n"),
            ("a/inner.rs", "use crate::z::{self, Z as Last};\npub struct I(Last);\n"),
            ("z.rs", "use crate::{a::I};\npub struct Z(Box<I>);\n"),
        ]);
        let names: Vec<_> = in_circles(&round).into_iter().collect();
        assert_eq!(names, ["a/inner.rs", "z.rs"]);
        assert!(circle("p", &round).is_some_and(|text| text.contains("a/inner.rs z.rs")));
    }

    #[test]
    fn an_arrow_between_folders_that_is_not_listed_is_found() {
        let known = |arrows: &[(&str, &str)]| {
            let mut known = BTreeMap::<String, BTreeSet<String>>::new();
            let allowed = [("a/x.rs", "b/y.rs"), ("b/z.rs", "c/only.rs")];
            for (from, to) in arrows.iter().chain(&allowed) {
                known.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            }
            known
        };
        let list: Folders = &[("a", &["b"]), ("b", &["c/only.rs"]), ("c", &[])];
        let wrong = |arrows: &[(&str, &str)]| folders("p", list, &known(arrows));
        assert_eq!(wrong(&[("a/x.rs", "a/w.rs"), ("lib.rs", "c/v.rs")]), Vec::<String>::new());
        assert_eq!(wrong(&[("b/z.rs", "a/x.rs")]).len(), 1, "up");
        assert_eq!(wrong(&[("b/z.rs", "c/other.rs")]).len(), 1, "another file");
        assert_eq!(wrong(&[("new/n.rs", "a/x.rs")]).len(), 1, "a folder without a list");
        let unused: Folders = &[("a", &["b", "c"]), ("b", &["c/only.rs"]), ("c", &[])];
        assert_eq!(folders("p", unused, &known(&[])).len(), 1, "an arrow that nobody needs");
    }

    #[test]
    fn this_workspace_has_files() {
        let files =
            members().iter().map(|member| known(member.folder()).unwrap().len()).sum::<usize>();
        assert!(files > 200);
    }
}
