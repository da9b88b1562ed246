//! Which package may depend on which, and which files of a package use each other in a circle.

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
    ("doorbell-bench", &["doorbell", "doorbell-tune"]),
    ("doorbell-examples", &["doorbell", "doorbell-tune"]),
    ("xtask", &[]),
];

/// The broken rules, one line each.
pub(crate) fn broken() -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for member in members() {
        found.extend(package(&member.name, member.text()));
        found.extend(circle(&member.name, &known(member.folder())?));
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
    fn this_workspace_has_files() {
        let files =
            members().iter().map(|member| known(member.folder()).unwrap().len()).sum::<usize>();
        assert!(files > 200);
    }
}
