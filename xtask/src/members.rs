//! The packages of this repository, as their manifests describe them. Steps look up here which
//! package has a feature, a test or a program, so that moving one changes no step.

use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::place::{files_below, root};

/// A package of this repository.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    folder: PathBuf,
    text: String,
}

/// All packages, by folder.
fn packages() -> Vec<Package> {
    let manifests = files_below(&root());
    let manifests = manifests.into_iter().filter(|file| file.ends_with("Cargo.toml"));
    manifests
        .filter_map(|file| {
            let text = std::fs::read_to_string(&file).ok()?;
            Some(Package { name: name(&text)?, folder: file.parent()?.to_path_buf(), text })
        })
        .collect()
}

/// The packages of the repository's own workspace.
pub(crate) fn members() -> Vec<Package> {
    packages().into_iter().filter(|package| !package.is_apart()).collect()
}

/// The packages that are workspaces of their own.
pub(crate) fn apart() -> Vec<Package> {
    packages().into_iter().filter(Package::is_apart).collect()
}

/// The package of that name that is a workspace of its own.
pub(crate) fn workspace(name: &str) -> Outcome<Package> {
    let found = apart().into_iter().find(|package| package.name == name);
    found.ok_or_else(|| format!("no workspace here holds the package {name}"))
}

impl Package {
    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The text of its manifest.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The file of its manifest.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// True if its manifest declares the feature.
    pub(crate) fn has_feature(&self, feature: &str) -> bool {
        section(&self.text, "features").any(|(key, _)| key == feature)
    }

    /// True if it has loom's models of its memory orderings.
    pub(crate) fn has_models(&self) -> bool {
        section(&self.text, "target.'cfg(loom)'.dependencies").next().is_some()
    }

    /// True if its library does not use the standard library.
    pub(crate) fn is_bare(&self) -> bool {
        let library = std::fs::read_to_string(self.folder.join("src/lib.rs")).unwrap_or_default();
        library.lines().any(|line| line.starts_with("#![") && line.contains("no_std"))
    }

    /// True if it has a library whose source contains one of these words.
    pub(crate) fn mentions(&self, words: &[&str]) -> bool {
        if !self.folder.join("src/lib.rs").exists() {
            return false;
        }
        files_below(&self.folder.join("src")).iter().any(|file| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            words.iter().any(|word| text.contains(word))
        })
    }

    fn is_apart(&self) -> bool {
        self.text.lines().any(|line| line.trim() == "[workspace]")
    }
}

fn name(manifest: &str) -> Option<String> {
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

[[bin]]
name = \"tool\"

[dependencies]
numa = \"1\"
";

    fn package(text: &str) -> Package {
        Package { name: String::new(), folder: PathBuf::new(), text: text.to_owned() }
    }

    #[test]
    fn a_feature_is_found_in_its_own_section_only() {
        let package = package(MANIFEST);
        assert!(package.has_feature("verbs"));
        assert!(!package.has_feature("numa") && !package.has_feature("name"));
    }

    #[test]
    fn the_package_name_is_read() {
        assert_eq!(name(MANIFEST).as_deref(), Some("a-b"));
        assert_eq!(name("[features]\nname = \"x\"\n"), None);
    }

    #[test]
    fn models_and_workspaces_are_told_apart() {
        assert!(package("[target.'cfg(loom)'.dependencies]\nloom = \"1\"\n").has_models());
        assert!(!package("[dependencies]\nloom = \"1\"\n").has_models());
        assert!(package("[workspace]\n").is_apart() && !package(MANIFEST).is_apart());
    }

    #[test]
    fn this_package_is_a_member() {
        let names: Vec<String> = members().into_iter().map(|package| package.name).collect();
        assert!(names.iter().any(|name| name == env!("CARGO_PKG_NAME")), "{names:?}");
        let mentions = |package: &Package| package.mentions(&["fn "]);
        assert!(members().iter().any(mentions), "libraries are members");
        assert!(!members().iter().any(|package| package.name == "xtask" && mentions(package)));
        assert!(workspace("xtask").is_err());
    }
}
