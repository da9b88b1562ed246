//! The table of hazards in `cm/CLAUSES.md`: mistakes that C answers with a crash, a leak or a hang,
//! from `cm/conformance/hazards.txt`, each with the test that shows it does no harm here.

use std::fmt::Write;

use crate::Outcome;

/// One hazard.
#[derive(Debug)]
struct Hazard<'a> {
    clause: &'a str,
    mistake: &'a str,
    in_c: &'a str,
    /// Cases of the suite, and files with doc tests that must not compile.
    shown_by: Vec<&'a str>,
}

/// The facts about the suite that the table needs.
pub(crate) trait Suite {
    /// True if there is such a case.
    fn has(&self, case: &str) -> bool;
    /// The outcome of some cases on each device; "ok" if all held.
    fn results(&self, cases: &[&str]) -> [String; 2];
    /// The text of a file of the repository.
    fn file(&self, path: &str) -> Outcome<String>;
}

/// The hazards of the list.
fn hazards(list: &str) -> Outcome<Vec<Hazard<'_>>> {
    let mut found: Vec<Hazard<'_>> = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        if let Some(shows) = line.strip_prefix("  ") {
            let hazard = found.last_mut().ok_or("hazards.txt: begins with no hazard")?;
            hazard.shown_by.push(shows.trim());
            continue;
        }
        let parts: Vec<&str> = line.split(" | ").collect();
        let [clause, mistake, in_c] = parts[..] else {
            return Err(format!("hazards.txt: this is no hazard: {line}"));
        };
        found.push(Hazard { clause, mistake, in_c, shown_by: Vec::new() });
    }
    Ok(found)
}

/// True if a source has a doc test that must not compile below a line that names the clause.
pub(crate) fn refuses_to_compile(source: &str, clause: &str) -> bool {
    let named = format!("({clause})");
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        let fence = lines.peek().is_some_and(|next| next.contains("```compile_fail"));
        if fence && line.trim_start().starts_with("///") && line.contains(&named) {
            return true;
        }
    }
    false
}

/// The table, at the end of the file.
///
/// # Errors
/// Fails for a hazard without a test, with only tests that do not exist, or whose tests the first
/// device skips.
pub(crate) fn table(list: &str, suite: &impl Suite) -> Outcome<String> {
    let hazards = hazards(list)?;
    let mut text = format!(
        "\n## Hazards\n{} mistakes that librdmacm or libibverbs answer with a crash, a leak or a \
         hang. Each case makes the mistake, within a limit of time.\n\n\
         | clause | mistake | in C | shown by | soft0 | rxe0 |\n|---|---|---|---|---|---|\n",
        hazards.len(),
    );
    for Hazard { clause, mistake, in_c, shown_by } in &hazards {
        let (files, cases): (Vec<&str>, Vec<&str>) =
            shown_by.iter().partition(|shows| shows.contains('/'));
        for file in &files {
            if !refuses_to_compile(&suite.file(file)?, clause) {
                return Err(format!("{file} has no doc test for {clause} that must not compile"));
            }
        }
        if let Some(case) = cases.iter().find(|case| !suite.has(case)) {
            return Err(format!("the hazard of {clause} names {case}, which is no case"));
        }
        if shown_by.is_empty() {
            return Err(format!("no test shows that this does no harm ({clause}): {mistake}"));
        }
        let [soft, rxe] = match cases.is_empty() {
            true => ["does not compile".to_owned(), "does not compile".to_owned()],
            false => suite.results(&cases),
        };
        if soft.contains("skipped") {
            return Err(format!("the hazard of {clause} is skipped on soft0: {soft}"));
        }
        let names: Vec<String> = shown_by.iter().map(|shows| format!("`{shows}`")).collect();
        let names = names.join("<br>");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {clause} | {mistake} | {in_c} | {names} | {soft} | {rxe} |");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known;

    impl Suite for Known {
        fn has(&self, case: &str) -> bool {
            case.starts_with("ep_")
        }

        fn results(&self, cases: &[&str]) -> [String; 2] {
            let skipped = cases.contains(&"ep_02_skipped");
            [if skipped { "skipped: no" } else { "ok" }.to_owned(), "ok".to_owned()]
        }

        fn file(&self, _: &str) -> Outcome<String> {
            Ok("    /// None at all (EP-14):\n    /// ```compile_fail,E0308\n".to_owned())
        }
    }

    #[test]
    fn a_hazard_needs_a_test_that_exists() {
        let with = |shows: &str| table(&format!("# note\nEP-14 | none | crashes\n{shows}"), &Known);
        let text = with("  ep_14_none\n  cm/src/endpoint.rs\n").expect("both exist");
        let row = "| EP-14 | none | crashes | `ep_14_none`<br>`cm/src/endpoint.rs` | ok | ok |";
        assert!(text.contains(row), "{text}");
        assert!(with("  cm/src/endpoint.rs\n").is_ok_and(|text| text.contains("not compile")));
        assert!(with("").is_err(), "nothing shows it");
        assert!(with("  qp_01_gone\n").is_err(), "no such case");
        assert!(with("  ep_02_skipped\n").is_err(), "it does not run");
        assert!(table("EP-1 | none | crashes\n  a/b.rs\n", &Known).is_err(), "another clause");
        assert!(table("  ep_14_none\n", &Known).is_err() && table("EP-1\n", &Known).is_err());
    }
}
