//! `cargo xtask clauses`: the table of what the conformance suite shows, clause by clause.
//!
//! `cm/conformance/clauses.txt` has the clauses, the suite's sources the names of its cases, and
//! a record for each device what became of them: `soft0.txt`, `rxe0.txt`. `--record` runs the suite
//! on both and writes the records; without it only `cm/CLAUSES.md` is written, from what is there.

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

/// One clause.
struct Clause {
    /// As `QP-11`.
    name: String,
    /// A man page of the mission promises it.
    promised: bool,
    says: String,
}

/// What became of each case on a device: empty if it held, else why it was left out.
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

/// Runs the suite on each device and writes down what came out.
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

/// What the test harness printed, with the output of cases that held.
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

/// The record of a device, as it is checked in.
fn recorded(device: &str) -> Outcome<Record> {
    let text = read(&folder().join(device).with_extension("txt"))?;
    let line = |line: &str| {
        let (case, result) = line.split_once(": ")?;
        let reason = if result == "ok" { "" } else { result };
        Some((case.to_owned(), reason.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn clauses() -> Outcome<Vec<Clause>> {
    let text = read(&folder().join("clauses.txt"))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some(name), Some(tag @ ("M" | "S")), Some(says)) => Ok(Clause {
                    name: name.to_owned(),
                    promised: tag == "M",
                    says: says.to_owned(),
                }),
                _ => Err(format!("clauses.txt: this is no clause: {line}")),
            }
        })
        .collect()
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

/// The clauses a case is named after: `ep_02_…_and_ep_04_…` is of EP-2 and of EP-4.
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

/// The whole file.
fn table() -> Outcome<String> {
    let (clauses, cases) = (clauses()?, cases()?);
    let records = [recorded(DEVICES[0])?, recorded(DEVICES[1])?];
    let shows = |clause: &Clause| -> Vec<&String> {
        cases.iter().filter(|case| named_after(case).contains(&clause.name)).collect()
    };
    let shown = clauses.iter().filter(|clause| !shows(clause).is_empty()).count();
    let promised: Vec<&Clause> = clauses.iter().filter(|clause| clause.promised).collect();
    let kept = promised.iter().filter(|clause| !shows(clause).is_empty()).count();
    let mut text = format!(
        "# Clauses\nWritten by `cargo xtask clauses`; `--record` runs the suite first.\n\n\
         {} cases of the conformance suite name {shown} of {} clauses, and {kept} of the {} that a \
         man page promises (**M**). Of a clause that cannot be broken a file is named, with a doc \
         test that does not compile. A clause without either may be shown by other tests; the \
         table does not know.\n\n\
         | clause | | says | cases | {} | {} |\n|---|---|---|---|---|---|\n",
        cases.len(),
        clauses.len(),
        promised.len(),
        DEVICES[0],
        DEVICES[1],
    );
    for clause in &clauses {
        let cases = shows(clause);
        let tag = if clause.promised { "**M**" } else { "" };
        let names: Vec<String> = cases.iter().map(|case| format!("`{case}`")).collect();
        let names = if names.is_empty() { unsayable(&clause.name)? } else { names.join("<br>") };
        let [soft, rxe] = [0, 1].map(|device| results(&cases, &records[device]));
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            "| {} | {tag} | {} | {names} | {soft} | {rxe} |",
            clause.name, clause.says
        );
    }
    let known: Vec<&str> = clauses.iter().map(|clause| clause.name.as_str()).collect();
    text.push_str("\n## Cases named after something else\n");
    for case in &cases {
        let after = named_after(case);
        if after.is_empty() {
            let case_list = [case];
            let [soft, rxe] = [0, 1].map(|device| results(&case_list, &records[device]));
            let _ = writeln!(text, "- `{case}`: {soft}, {rxe}");
        } else if let Some(clause) = after.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!("the case {case} is named after {clause}, which is no clause"));
        }
    }
    let known = Known { cases: &cases, records: &records };
    text.push_str(&hazards::table(&read(&folder().join("hazards.txt"))?, &known)?);
    Ok(text)
}

/// The suite as the table of hazards wants to know it.
struct Known<'a> {
    cases: &'a [String],
    records: &'a [Record; 2],
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

/// The files that show of a clause that what it forbids does not compile.
fn unsayable(clause: &str) -> Outcome<String> {
    let mut names = Vec::new();
    for path in crate::place::entries(&root().join("cm/src")) {
        if path.is_file() && hazards::refuses_to_compile(&read(&path)?, clause) {
            let name = path.strip_prefix(root()).unwrap_or(&path);
            names.push(format!("`{}`", name.display()));
        }
    }
    Ok(if names.is_empty() { "none".to_owned() } else { names.join("<br>") })
}

/// What became of some cases on a device, in a cell.
fn results(cases: &[&String], record: &Record) -> String {
    let mut cells: Vec<&str> = cases
        .iter()
        .map(|case| match record.get(*case) {
            None => "not run yet",
            Some(reason) if reason.is_empty() => "ok",
            Some(reason) => reason,
        })
        .collect();
    cells.dedup();
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

    #[test]
    fn names_tell_their_clauses() {
        assert_eq!(named_after("ep_08_each_request_has_one"), ["EP-8"]);
        assert_eq!(named_after("srq_02_takes_and_srq_03_its_depth"), ["SRQ-2", "SRQ-3"]);
        assert_eq!(named_after("cm_12_a_queue_pair_and_more"), ["CM-12"]);
        assert!(named_after("section_2_11_kinds").is_empty());
        assert!(named_after("a_wait_ends").is_empty());
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
