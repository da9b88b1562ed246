//! `cargo xtask clauses`: the page that explains each clause and names the tests that show it.
//!
//! The inputs are `cm/conformance/clauses.txt` with the clauses, the suite's sources with the names
//! of its cases, and a record of each case's outcome for each device: `soft0.txt`, `rxe0.txt`.
//! `--record` runs the suite on both devices and writes the records; without it the command only
//! writes `cm/CLAUSES.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::Outcome;
use crate::args::quoted;
use crate::exec::{Sink, capture};
use crate::hazards;
use crate::machine::{Job, Shared};
use crate::packages::{self, Need};
use crate::place::{root, write};
use crate::{setup, suite, vm};

/// The devices of the table, in its order.
const DEVICES: [&str; 2] = ["soft0", "rxe0"];

/// The suite on rxe0, with the boot of an emulated machine.
const LIMIT: Duration = Duration::from_secs(600);

/// A heading of the list, with the text below it.
#[derive(Default)]
struct Group {
    title: String,
    clauses: Vec<Clause>,
}

/// One clause.
struct Clause {
    /// Its name, as `QP-11`.
    name: String,
    source: String,
    says: String,
    /// What a device cannot show of it: the device or `both`, and the reason.
    gaps: Vec<(String, String)>,
}

impl Clause {
    /// True if a man page promises it.
    fn is_promised(&self) -> bool {
        self.source.starts_with("man ")
    }
}

/// The outcome of each case on a device: empty if it held, else why it was skipped.
type Record = BTreeMap<String, String>;

/// The command.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    match words {
        [] => {}
        [word] if word == "--record" => record_all()?,
        _ => return Err("clauses takes nothing but --record".to_owned()),
    }
    write(&table_path(), &table()?)?;
    println!("written: {}", table_path().display());
    Ok(0)
}

fn folder() -> PathBuf {
    root().join("cm/conformance")
}

fn table_path() -> PathBuf {
    root().join("cm/CLAUSES.md")
}

fn read(path: &std::path::Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
}

/// Runs the suite on each device and records the outcomes.
fn record_all() -> Outcome<()> {
    packages::ensure(&[Need::Verbs])?;
    let program = suite::conformance()?;
    let soft = capture(crate::place::program(&program).arg("--show-output"))?;
    record("soft0", &soft.text)?;
    let (parts, machine, shared) = (setup::machine()?, vm::usual(LIMIT), Shared::new()?);
    let line = format!("DOORBELL_DEVICE=rxe0 {} --show-output", quoted(&program));
    let (role, sink) = ("command", Sink::Kept);
    let job = Job { machine: &machine, shared: &shared, role, line: &line, sink };
    let (_, text) = job.run(&parts, &|| false)?;
    record("rxe0", &text)
}

fn record(device: &str, output: &str) -> Outcome<()> {
    let mut text = String::new();
    for (case, reason) in parse(output)? {
        let result = if reason.is_empty() { "ok" } else { &reason };
        text.push_str(&format!("{case}: {result}\n"));
    }
    write(&folder().join(device).with_extension("txt"), &text)
}

/// The output of the test harness, including the output of cases that held.
fn parse(output: &str) -> Outcome<Record> {
    let mut record = Record::new();
    let mut within = None;
    for line in output.lines() {
        let line = line.trim_end();
        if let Some((case, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            let Some((_, case)) = case.split_once("::cases::") else { continue };
            if result != "ok" {
                return Err(format!("the case {case} did not hold: {result}; mend it first"));
            }
            record.insert(case.to_owned(), String::new());
        } else if let Some(rest) = line.strip_prefix("---- ") {
            let case = rest.split_once("::cases::").and_then(|(_, rest)| rest.split_once(' '));
            within = case.map(|(case, _)| case.to_owned());
        } else if let (Some(case), Some(reason)) = (&within, line.strip_prefix("skipped: ")) {
            record.insert(case.clone(), format!("skipped: {reason}"));
        }
    }
    match record.is_empty() {
        true => Err(format!("no case has run:\n{output}")),
        false => Ok(record),
    }
}

/// The checked-in record of a device.
fn recorded(device: &str) -> Outcome<Record> {
    let text = read(&folder().join(device).with_extension("txt"))?;
    let line = |line: &str| {
        let (case, result) = line.split_once(": ")?;
        let reason = if result == "ok" { "" } else { result };
        Some((case.to_owned(), reason.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Reads the list; its first lines explain its format.
fn groups(list: &str) -> Outcome<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    let wrong = |line: &str, why: &str| Err(format!("clauses.txt: {why}: {line}"));
    for line in list.lines().filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("## ") {
            groups.push(Group { title: title.to_owned(), clauses: Vec::new() });
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let Some(group) = groups.last_mut() else { return wrong(line, "this needs a heading") };
        if let Some(gap) = line.strip_prefix("- ") {
            let gap = gap
                .split_once(": ")
                .filter(|(device, _)| *device == "both" || DEVICES.contains(device));
            match (gap, group.clauses.last_mut()) {
                (Some((device, why)), Some(clause)) => {
                    clause.gaps.push((device.to_owned(), why.to_owned()));
                }
                _ => return wrong(line, "this names no device, or no clause stands above it"),
            }
        } else {
            let parts: Vec<&str> = line.splitn(3, " | ").collect();
            let [name, source, says] = parts[..] else { return wrong(line, "this is no clause") };
            let [name, source, says] = [name, source, says].map(str::to_owned);
            group.clauses.push(Clause { name, source, says, gaps: Vec::new() });
        }
    }
    Ok(groups)
}

/// The names of all cases: the lines of each `cases!` block.
fn cases() -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for path in crate::place::entries(&root().join("cm/tests/conformance")) {
        let mut inside = false;
        for line in read(&path)?.lines() {
            match line {
                "cases! {" => inside = true,
                "}" => inside = false,
                _ if inside => found.extend(line.split_whitespace().map(str::to_owned)),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The clauses in a case's name: `ep_02_…_and_ep_04_…` is about EP-2 and EP-4.
fn named_after(case: &str) -> Vec<String> {
    let one = |part: &str| {
        let mut words = part.split('_');
        let (group, number) = (words.next()?, words.next()?);
        let plain = number.len() == 2 && group.bytes().all(|byte| byte.is_ascii_lowercase());
        let number: u32 = number.parse().ok().filter(|_| plain)?;
        Some(format!("{}-{number}", group.to_uppercase()))
    };
    case.split("_and_").filter_map(one).collect()
}

/// The whole page.
fn table() -> Outcome<String> {
    let (groups, cases) = (groups(&read(&folder().join("clauses.txt"))?)?, cases()?);
    let suite = Known { cases: &cases, records: &[recorded(DEVICES[0])?, recorded(DEVICES[1])?] };
    let clauses = || groups.iter().flat_map(|group| &group.clauses);
    let known: Vec<&str> = clauses().map(|clause| clause.name.as_str()).collect();
    for case in &cases {
        if let Some(clause) = named_after(case).iter().find(|name| !known.contains(&name.as_str()))
        {
            return Err(format!("the case {case} is named after {clause}, which is no clause"));
        }
    }
    let mut text = format!(
        "# Clauses\nWhat a device must do, in {} clauses. The code cites them by number. {} of \
         them are promises of man pages; the others come from rdma-core, the kernel, or the \
         InfiniBand specification (IBTA, volume 1). The conformance suite \
         (`cm/tests/conformance`) has {} cases; those with a clause's number in their name, or \
         a doc test that must not compile, show the clause.\n\nThe last two columns have the \
         outcome of the cases on each device. `cargo xtask clauses` writes this page from \
         `cm/conformance`; `--record` runs the suite first.\n",
        known.len(),
        clauses().filter(|clause| clause.is_promised()).count(),
        cases.len(),
    );
    for group in &groups {
        let [soft, rxe] = DEVICES;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## {}\n| clause | says | source | shown by | {soft} | {rxe} |\n\
             |---|---|---|---|---|---|\n",
            group.title
        );
        for clause in &group.clauses {
            text.push_str(&suite.row(clause)?);
        }
    }
    text.push_str("\n## Cases without a clause\n");
    for case in cases.iter().filter(|case| named_after(case).is_empty()) {
        let [soft, rxe] = [0, 1].map(|device| results(&[case], &suite.records[device]));
        let _ = writeln!(text, "- `{case}`: {soft}, {rxe}");
    }
    text.push_str(&hazards::table(&read(&folder().join("hazards.txt"))?, &suite)?);
    Ok(text)
}

/// The facts about the suite that the table of hazards needs.
struct Known<'a> {
    cases: &'a [String],
    records: &'a [Record; 2],
}

impl Known<'_> {
    /// The row of a clause.
    fn row(&self, clause: &Clause) -> Outcome<String> {
        let Clause { name, source, says, gaps } = clause;
        let shows = |case: &&String| named_after(case).contains(name);
        let cases: Vec<&String> = self.cases.iter().filter(shows).collect();
        let [soft, rxe] = [0, 1].map(|device| results(&cases, &self.records[device]));
        let mut shown_by: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        if shown_by.is_empty() {
            shown_by = unsayable(name)?;
        }
        if shown_by.is_empty() {
            return Err(format!("nothing shows {name}: {says}"));
        }
        let note = |(device, why): &(String, String)| match device.as_str() {
            "both" => format!("<br>*Not shown: {why}.*"),
            device => format!("<br>*Not shown on {device}: {why}.*"),
        };
        let notes: String = gaps.iter().map(note).collect();
        let shown_by = shown_by.join("<br>");
        Ok(format!("| {name} | {says}{notes} | {source} | {shown_by} | {soft} | {rxe} |\n"))
    }
}

impl hazards::Suite for Known<'_> {
    fn has(&self, case: &str) -> bool {
        self.cases.iter().any(|known| known == case)
    }

    fn results(&self, cases: &[&str]) -> [String; 2] {
        let names = cases.iter().map(|case| case.to_string()).collect::<Vec<_>>();
        let names: Vec<&String> = names.iter().collect();
        [0, 1].map(|device| results(&names, &self.records[device]))
    }

    fn file(&self, path: &str) -> Outcome<String> {
        read(&root().join(path))
    }
}

/// The files with a doc test for a clause that must not compile.
fn unsayable(clause: &str) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for path in crate::place::files_below(&root().join("cm/src")) {
        if hazards::refuses_to_compile(&read(&path)?, clause) {
            let name = path.strip_prefix(root()).unwrap_or(&path);
            names.push(format!("`{}`", name.display()));
        }
    }
    Ok(names)
}

/// The outcome of some cases on a device, in a cell.
fn results(cases: &[&String], record: &Record) -> String {
    let mut cells: Vec<&str> = Vec::new();
    for case in cases {
        let cell = match record.get(*case) {
            None => "not run yet",
            Some(reason) if reason.is_empty() => "ok",
            Some(reason) => reason,
        };
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells.join("<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_that_of_the_suite_as_it_is() {
        let want = table().unwrap();
        let have = read(&table_path()).unwrap();
        assert!(have == want, "cm/CLAUSES.md is stale: run cargo xtask clauses");
    }

    /// The clauses that a text cites, as `QP-11`, of existing groups.
    fn cited<'a>(text: &'a str, groups: &[&str]) -> Vec<&'a str> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
        let is_clause = |word: &&str| {
            word.split_once('-').is_some_and(|(group, number)| {
                groups.contains(&group) && number.parse::<u8>().is_ok()
            })
        };
        words.filter(is_clause).collect()
    }

    /// Checks that each clause cited by a source below a folder exists; counts the citations.
    fn check_citations(folder: &std::path::Path, known: &[&str], groups: &[&str]) -> usize {
        let mut count = 0;
        for path in crate::place::entries(folder) {
            if path.is_dir() {
                count += check_citations(&path, known, groups);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = read(&path).unwrap();
                for clause in cited(&text, groups) {
                    assert!(known.contains(&clause), "{}: no clause {clause}", path.display());
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn every_clause_that_is_cited_is_explained() {
        let list = groups(&read(&folder().join("clauses.txt")).unwrap()).unwrap();
        let names = list.iter().flat_map(|group| &group.clauses).map(|clause| &*clause.name);
        let known: Vec<&str> = names.collect();
        let groups: Vec<&str> = known.iter().map(|name| name.split('-').next().unwrap()).collect();
        assert_eq!(cited("a QP-11, (SQ-2); X-1, QP-x, UTF-8", &groups), ["QP-11", "SQ-2"]);
        let mut count = 0;
        for folder in crate::place::entries(&root()) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let left_out = name.starts_with('.') || name == "target" || name == "xtask";
            if folder.is_dir() && !left_out {
                count += check_citations(&folder, &known, &groups);
            }
        }
        assert!(count > 300, "{count} citations: the sources were not found");
    }

    #[test]
    fn names_tell_their_clauses() {
        assert_eq!(named_after("ep_08_each_request_has_one"), ["EP-8"]);
        assert_eq!(named_after("srq_02_takes_and_srq_03_its_depth"), ["SRQ-2", "SRQ-3"]);
        assert_eq!(named_after("cm_12_a_queue_pair_and_more"), ["CM-12"]);
        assert!(named_after("two_processes_exchange").is_empty());
        assert!(named_after("a_wait_ends").is_empty());
    }

    #[test]
    fn the_list_is_understood() {
        let list = "# note\n## Ids\nID-1 | man a, b | One.\n- soft0: it cannot\n\n\
                    ## States\nSM-1 | IBTA 10.3 | Two.\n";
        let groups = groups(list).unwrap();
        let [ids, states] = &groups[..] else { panic!("two headings") };
        assert!(ids.title == "Ids" && ids.clauses[0].is_promised());
        assert_eq!(ids.clauses[0].gaps, [("soft0".to_owned(), "it cannot".to_owned())]);
        assert!(!states.clauses[0].is_promised() && states.clauses[0].says == "Two.");
        for bad in ["ID-1 | a | One.", "## Ids\nID-1 One.", "## Ids\n- soft0: why"] {
            assert!(super::groups(bad).is_err(), "{bad}");
        }
        assert!(super::groups("## Ids\nID-1 | a | One.\n- mlx5: why").is_err(), "no such device");
    }

    #[test]
    fn a_clause_needs_something_that_shows_it() {
        let (cases, records) = (vec!["id_01_one".to_owned()], [Record::new(), Record::new()]);
        let suite = Known { cases: &cases, records: &records };
        let clause = |name: &str| Clause {
            name: name.to_owned(),
            source: "verbs.h".to_owned(),
            says: "One.".to_owned(),
            gaps: vec![("both".to_owned(), "it is late".to_owned())],
        };
        let row = "| ID-1 | One.<br>*Not shown: it is late.* | verbs.h | `id_01_one` \
                   | not run yet | not run yet |\n";
        assert_eq!(suite.row(&clause("ID-1")).unwrap(), row);
        assert!(suite.row(&clause("ID-99")).is_err());
    }

    #[test]
    fn the_harness_is_understood() {
        let output = "\
test ids::cases::id_02_one ... ok
test ids::cases::id_03_two ... ok
test processes::the_other_process ... ok

successes:

---- ids::cases::id_03_two stdout ----
skipped: it cannot

test result: ok. 3 passed
";
        let record = parse(output).unwrap();
        assert_eq!(record.len(), 2);
        assert_eq!((&*record["id_02_one"], &*record["id_03_two"]), ("", "skipped: it cannot"));
        assert!(parse("test a::cases::b ... FAILED\n").is_err());
        assert!(parse("nothing").is_err());
    }
}
