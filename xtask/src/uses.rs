//! Which files of a package use items of which others, from `use` declarations and paths.

use std::collections::{BTreeMap, BTreeSet};

/// What a file says about modules.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Its name below `src`.
    file: String,
    /// The modules that it declares in other files, other than for tests.
    pub(crate) children: Vec<String>,
    /// Imported names, and the paths they stand for.
    names: BTreeMap<String, Vec<String>>,
    /// All paths in it that begin with `crate`, `super` or `self`, and the imported ones.
    paths: BTreeSet<Vec<String>>,
    /// The words of its text, without imports.
    words: BTreeSet<String>,
}

impl Module {
    /// Reads a file's text.
    pub(crate) fn parse(file: &str, text: &str) -> Module {
        let text = without_tests(text);
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        module.children = text.lines().filter_map(child).map(str::to_owned).collect();
        let mut rest = text.as_str();
        let mut plain = String::new();
        while let Some(at) = next_use(rest) {
            plain.push_str(&rest[..at]);
            let Some(end) = rest[at..].find(';') else { break };
            let tree = rest[at..at + end].split_once("use ").map_or("", |(_, tree)| tree);
            module.bring_in(&mut Vec::new(), tree.trim());
            rest = &rest[at + end + 1..];
        }
        plain.push_str(rest);
        module.paths.extend(paths(&plain));
        let is_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        module.words = plain.split(|sign| !is_word(sign)).map(own).collect();
        module
    }

    /// Takes a tree of names apart: `a::{b, c as d, e::*}`.
    fn bring_in(&mut self, prefix: &mut Vec<String>, tree: &str) {
        if let Some((before, list)) = tree.split_once('{') {
            let depth = prefix.len();
            prefix.extend(before.split("::").map(str::trim).filter(|it| !it.is_empty()).map(own));
            for part in parts(list.strip_suffix('}').unwrap_or(list)) {
                self.bring_in(prefix, part.trim());
            }
            prefix.truncate(depth);
            return;
        }
        let (path, alias) = match tree.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim())),
            None => (tree, None),
        };
        let mut whole = prefix.clone();
        whole.extend(path.split("::").map(str::trim).filter(|it| !it.is_empty()).map(own));
        if whole.len() > 1 && whole.last().is_some_and(|last| last == "self") {
            whole.pop();
        }
        let Some(last) = whole.last().cloned() else { return };
        self.paths.insert(whole.clone());
        self.names.insert(alias.map_or(last, own), whole);
    }
}

fn own(text: &str) -> String {
    text.to_owned()
}

/// The text without comments, and without items for tests and models alone.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap_or(line)).peekable();
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        if !attribute.starts_with("#[cfg(test)]") && !attribute.starts_with("#[cfg(loom)]") {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        // The item: up to its semicolon, or to the brace that closes it.
        let indent = line.len() - attribute.len();
        while lines.peek().is_some_and(|line| line.trim_start().starts_with("#[")) {
            lines.next();
        }
        for line in lines.by_ref() {
            let depth = line.len() - line.trim_start().len();
            let ends = [";", "}", "},"].iter().any(|end| line.trim_end().ends_with(end));
            if depth == indent && ends {
                break;
            }
        }
    }
    kept
}

/// The name of a module that a line declares in another file.
fn child(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let line =
        line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).unwrap_or(line);
    line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")
}

/// Where the next `use` declaration begins.
fn next_use(text: &str) -> Option<usize> {
    text.match_indices("use ").map(|(at, _)| at).find(|at| {
        let before = text[..*at].rsplit('\n').next().unwrap_or("").trim();
        before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')')
    })
}

/// The parts of a list, split at commas outside of braces.
fn parts(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, sign) in list.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&list[start..]);
    found.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// Paths in the text that begin with `crate`, `super` or `self`.
fn paths(text: &str) -> BTreeSet<Vec<String>> {
    let is_word = |sign: char| sign.is_alphanumeric() || sign == '_' || sign == ':';
    text.split(|sign| !is_word(sign))
        .filter(|word| ["crate::", "super::", "self::"].iter().any(|it| word.starts_with(it)))
        .map(|word| word.split("::").filter(|part| !part.is_empty()).map(own).collect())
        .collect()
}

/// Which files use items of which others.
pub(crate) fn arrows(
    modules: &BTreeMap<Vec<String>, Module>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut arrows = BTreeMap::new();
    for (at, module) in modules {
        let mut to = BTreeSet::new();
        for path in &module.paths {
            // A file that re-exports an item without using it does not depend on it.
            let mut names = module.names.iter().filter(|(_, it)| *it == path);
            let passed_on = names.any(|(name, _)| !module.words.contains(name));
            if !passed_on && let Some(file) = resolve(modules, at, path, 0) {
                to.insert(file);
            }
        }
        to.remove(&module.file);
        arrows.insert(module.file.clone(), to);
    }
    arrows
}

/// The file that defines the item of a path, seen from a module; none if it belongs to another
/// package.
fn resolve(
    modules: &BTreeMap<Vec<String>, Module>,
    from: &[String],
    path: &[String],
    depth: usize,
) -> Option<String> {
    let mut at = from.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                at.pop();
                rest = &rest[1..];
            }
            rest = path.get(path.len() - rest.len() - 1..)?;
        }
        // A name of the module's own, or another package.
        name => {
            let module = modules.get(from)?;
            if !module.children.iter().any(|child| child == name) {
                return None;
            }
            at.push(name.to_owned());
        }
    }
    for part in &rest[1..] {
        let module = modules.get(&at)?;
        let below: Vec<String> = at.iter().cloned().chain([part.clone()]).collect();
        if modules.contains_key(&below) {
            at = below;
            continue;
        }
        return match module.names.get(part) {
            Some(_) if depth > 8 => None,
            Some(path) => resolve(modules, &at, path, depth + 1),
            None => Some(module.file.clone()),
        };
    }
    modules.get(&at).map(|module| module.file.clone())
}
