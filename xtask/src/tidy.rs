//! The repository's rules that no lint knows.

use std::fs;

use crate::count::Count;
use crate::place::{files_below, root};
use crate::report::Report;
use crate::{Outcome, arrows, unsafes};

/// Longest file, in lines, and longest line, in characters.
const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 100;

/// Words that must not be in a source file, and why. They are written in pieces, so that this file
/// keeps its own rule.
const WORDS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "unfinished"),
    (concat!("FIX", "ME"), "unfinished"),
    (concat!("XX", "X"), "unfinished"),
    (concat!("to", "do!"), "unfinished"),
    (concat!("unimpl", "emented!"), "unfinished"),
    (concat!("#[ign", "ore"), "a test that does not run"),
    (concat!("db", "g!("), "left over from debugging"),
];

/// Folders of one machine.
const FOLDERS: &[&str] = &[concat!("/wo", "rk"), concat!("/ro", "ot")];

/// Checks every file of the repository: one pass, or one failure for each broken rule.
pub(crate) fn check() -> Outcome<Report> {
    let mut found = Vec::new();
    let mut files = 0_u32;
    for file in files_below(&root()) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        files += 1;
        let name = file.strip_prefix(root()).unwrap_or(&file).display().to_string();
        found.extend(broken(&name, &text));
    }
    found.extend(arrows::broken()?);
    found.extend(unsafes::broken()?);
    if files == 0 {
        return Err(format!("no file below {}", root().display()));
    }
    let count = match u32::try_from(found.len()) {
        Ok(0) => Count::one(true),
        Ok(failed) => Count { failed, ..Count::default() },
        Err(_) => Count::one(false),
    };
    Ok(Report { count, text: found.join("\n") })
}

/// The broken rules of a file, one line each.
fn broken(name: &str, text: &str) -> Vec<String> {
    let rust = name.ends_with(".rs");
    let source = rust || [".sh", ".toml", ".py"].iter().any(|end| name.ends_with(end));
    let mut found = Vec::new();
    if rust && text.lines().count() > LINES_MAX {
        found.push(format!("{name}: more than {LINES_MAX} lines, split it"));
    }
    for (index, line) in text.lines().enumerate() {
        let mut say = |what: String| found.push(format!("{name}:{}: {what}", index + 1));
        // An address cannot be wrapped.
        if rust && line.chars().count() > COLUMNS_MAX && !line.contains("https://") {
            say(format!("more than {COLUMNS_MAX} columns"));
        }
        if rust && line.contains('\t') {
            say("a tab".to_owned());
        }
        for (word, why) in WORDS {
            if source && line.contains(word) {
                say(format!("`{word}`: {why}"));
            }
        }
        for folder in FOLDERS {
            if names_folder(line, folder) {
                say(format!("`{folder}`: a path of one machine"));
            }
        }
    }
    found
}

/// True if a line names an absolute folder itself or something below it: not `…/network`, not
/// `target/work`.
fn names_folder(line: &str, folder: &str) -> bool {
    let part_of_path = |c: char| c.is_alphanumeric() || "_-.$})~/".contains(c);
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + folder.len()..].chars().next();
        !before.is_some_and(part_of_path)
            && !after.is_some_and(|c| c.is_alphanumeric() || "_-".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_broken(name: &str, text: &str) -> bool {
        !broken(name, text).is_empty()
    }

    #[test]
    fn a_long_file_is_found() {
        let lines = |number| "// x\n".repeat(number);
        assert!(is_broken("a.rs", &lines(LINES_MAX + 1)));
        assert!(!is_broken("a.rs", &lines(LINES_MAX)));
        assert!(!is_broken("a.md", &lines(LINES_MAX + 1)));
    }

    #[test]
    fn a_long_line_is_found() {
        assert!(is_broken("a.rs", &"é".repeat(COLUMNS_MAX + 1)));
        assert!(!is_broken("a.rs", &"é".repeat(COLUMNS_MAX)));
        assert!(!is_broken("a.rs", &format!("// https://{}", "a".repeat(COLUMNS_MAX))));
    }

    #[test]
    fn a_tab_is_found() {
        assert!(is_broken("a.rs", "\tlet a = 1;"));
        assert!(!is_broken("a.md", "\tlet a = 1;"));
    }

    #[test]
    fn each_word_is_found() {
        for (word, _) in WORDS {
            for name in ["a.rs", "a.sh", "a.toml"] {
                assert!(is_broken(name, &format!("// {word}")), "{word} in {name}");
            }
        }
        assert!(!is_broken("a.rs", "// what is left to do"));
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        for folder in FOLDERS {
            for name in ["a.rs", "a.md", ".ci/run"] {
                assert!(is_broken(name, &format!("cd {folder}")), "{folder} in {name}");
                assert!(is_broken(name, &format!("x=\"{folder}/a\"")), "{folder} in {name}");
            }
            assert!(!is_broken("a.md", &format!("target{folder}/a")));
            assert!(!is_broken("a.md", &format!("{folder}s")));
            assert!(!is_broken("a.md", &format!("$HOME{folder}")));
        }
    }

    #[test]
    fn a_finding_names_file_and_line() {
        assert_eq!(broken("a.rs", "\n\t\n"), ["a.rs:2: a tab"]);
    }

    #[test]
    fn build_output_is_not_checked() {
        let files = files_below(&root());
        assert!(files.iter().any(|file| file.ends_with("xtask/src/tidy.rs")));
        assert!(!files.iter().any(|file| file.starts_with(root().join("target"))));
        assert!(!files.iter().any(|file| file.starts_with(root().join(".git"))));
    }
}
