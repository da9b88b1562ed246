//! `compare` and `--baseline`: the verdict, the exit code, and what is refused.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::load::signal;
use crate::{bench, figures, refuses, scratch, stderr, two_cores};

fn write(name: &str, document: &Value) -> PathBuf {
    let file = scratch(name);
    fs::write(&file, document.to_string()).unwrap();
    file
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().last().unwrap_or_default().to_owned()
}

/// The same run on a machine where every message takes a tenth longer.
fn slower(document: &Value) -> Value {
    let mut slower = document.clone();
    let records = slower["results"].as_array_mut().unwrap().iter_mut();
    for part in records.flat_map(|record| record["parts"].as_array_mut().unwrap()) {
        part["mean_ns"] = (part["mean_ns"].as_f64().unwrap() * 1.1).into();
    }
    slower
}

/// The times of a busy machine differ from part to part, and those of some parts by much. So these
/// are a run's own times, in which the parts are alike.
fn steady(mut document: Value) -> Value {
    for record in document["results"].as_array_mut().unwrap() {
        record["placement"]["switches_per_second"] = 0.into();
        let parts = record["parts"].as_array_mut().unwrap();
        assert!(parts.len() >= 9, "{parts:?}");
        for (n, part) in parts.iter_mut().enumerate() {
            assert!(part["mean_ns"].as_f64().unwrap() > 0.0, "{part}");
            part["mean_ns"] = (60.0 + n as f64 / 10.0).into();
        }
    }
    document
}

#[test]
fn a_run_beside_itself_is_no_different_and_beside_a_slower_one_slower() {
    if !two_cores() {
        return;
    }
    let document = figures(&mut bench("latency --duration 0.2 --size 8,64"));
    let own = write("own.json", &document);
    let steady = steady(document);
    let (one, two) = (write("one.json", &steady), write("two.json", &slower(&steady)));
    let table = scratch("compare.csv");
    let compare = |before: &Path, after: &Path, code: i32, verdict: &str| {
        let mut command = bench("compare");
        let output = command.args([before, after]).arg("--csv").arg(&table).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(last_line(&output), verdict);
        assert!(stderr(&output).is_empty(), "{}", stderr(&output));
    };
    compare(&own, &own, 0, "no difference: 2 figures");
    compare(&two, &one, 0, "faster: 2 of 2 figures");
    compare(&one, &two, 4, "slower: 2 of 2 figures");
    let csv = fs::read_to_string(&table).unwrap();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(
        csv.contains("\"latency 8 B\",mean ns") || csv.contains("latency 8 B,mean ns"),
        "{csv}"
    );
    [own, one, two, table].iter().for_each(|file| fs::remove_file(file).unwrap());
}

#[test]
fn a_run_ends_with_its_verdict_beside_the_baseline() {
    if !two_cores() {
        return;
    }
    let line = "latency --duration 0.2 --size 8";
    let mut far = figures(&mut bench(line));
    // A thousand times as fast as any machine, and as its floor.
    for part in far["results"][0]["parts"].as_array_mut().unwrap() {
        part["mean_ns"] = (part["mean_ns"].as_f64().unwrap() / 1000.0).into();
    }
    far["results"][0]["placement"]["floor_ns"] = Value::Null;
    let file = write("baseline.json", &far);
    let table = scratch("figures.csv");
    let mut command = bench(line);
    command.arg("--device=soft0");
    let output = command.arg("--baseline").arg(&file).arg("--csv").arg(&table).output().unwrap();
    // The cores may have moved between the runs.
    match last_line(&output).as_str() {
        "slower: 1 of 1 figures" => assert_eq!(output.status.code(), Some(4)),
        "undecided: no figure could be compared" => assert_eq!(output.status.code(), Some(3)),
        other => panic!("{other}: {}", stderr(&output)),
    }
    let csv = fs::read_to_string(&table).unwrap();
    assert!(csv.lines().next().unwrap().contains("half_rtt_ns.p50"), "{csv}");
    [file, table].iter().for_each(|file| fs::remove_file(file).unwrap());
}

/// A program that says that a message takes so long.
fn build(name: &str, ns: f64) -> PathBuf {
    let program = scratch(name);
    let parts = json!([{"mean_ns": ns}]);
    let record =
        json!({"test": "latency", "size": 8, "parts": parts, "placement": {"mode": "NEAR"}});
    fs::write(&program, format!("#!/bin/sh\necho '{}'\n", json!({"results": [record]}))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn two_builds_in_turn_have_a_verdict() {
    let (one, two) = (build("usual", 60.0), build("slower", 66.0));
    let (table, rounds) = (scratch("turns.csv"), scratch("turns.json"));
    for (after, last, code) in
        [(&two, "slower: 1 of 1 figures", 4), (&one, "no difference: 1 figures", 0)]
    {
        let mut compare = bench("compare --rounds 12");
        compare.arg("--csv").arg(&table).arg("--json").arg(&rounds).args([&one, after]);
        let output = compare.args(["--", "latency", "--size", "8"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(last_line(&output), last);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("round ")).count(), 12, "{text}");
        let document: Value = serde_json::from_slice(&fs::read(&rounds).unwrap()).unwrap();
        assert_eq!(document["figures"][0]["rounds"].as_array().unwrap().len(), 12);
        assert_eq!(fs::read_to_string(&table).unwrap().lines().count(), 2);
    }
    [one, two, table, rounds].iter().for_each(|file| fs::remove_file(file).unwrap());
}

/// The program beside itself, each run a process. Other tests run meanwhile, so any verdict may
/// come; it must be of this one figure, and the code must be the verdict's.
#[test]
fn a_build_beside_itself_in_turn_has_a_verdict() {
    if !two_cores() {
        return;
    }
    let own = env!("CARGO_BIN_EXE_doorbell-bench");
    let mut compare = bench(&format!("compare {own} {own} --rounds 11 --least 50"));
    compare.args("-- latency --device soft0 --size 8 --duration 0.02".split_whitespace());
    let output = compare.output().unwrap();
    let code = match last_line(&output).as_str() {
        "no difference: 1 figures" | "faster: 1 of 1 figures" => 0,
        // The cores may have moved all the time.
        "undecided: no figure could be compared" => 3,
        "slower: 1 of 1 figures" => 4,
        other => panic!("{other}: {}", stderr(&output)),
    };
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
}

#[test]
fn ctrl_c_ends_the_rounds_with_a_report_of_those_that_were_measured() {
    let one = build("endless", 60.0);
    let mut compare = bench("compare --rounds 200");
    compare
        .args([&one, &one])
        .args(["--", "latency"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = compare.spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "round 1: 1.000");
    signal(running.id(), "INT");
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains("pairs of figures count")), "{rest:?}");
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(stderr(&output), "doorbell-bench: interrupted: 1 figures were measured\n");
    fs::remove_file(&one).unwrap();
}

#[test]
fn what_cannot_be_measured_in_turn_is_refused() {
    let compare = |line: &str| bench(&format!("compare {line}"));
    refuses(&mut compare("/none-such /none-such -- latency"), 1, &["/none-such", "two builds"]);
    refuses(&mut compare("/bin/true /bin/true -- latency"), 1, &["/bin/true", "no results"]);
    refuses(&mut compare("/bin/false /bin/false -- rate"), 1, &["/bin/false", "said nothing"]);
    refuses(&mut compare("a b -- latency --json=x"), 1, &["--json=x", "before the --"]);
    refuses(&mut compare("a b --rounds 10 -- latency"), 2, &["11..=200"]);
    refuses(&mut compare("a b --rounds 12"), 2, &["COMMAND"]);
}

#[test]
fn what_is_no_run_is_refused() {
    let file = scratch("no-run");
    fs::write(&file, "{}").unwrap();
    let name = file.display().to_string();
    refuses(&mut bench(&format!("compare {name} {name}")), 1, &[&name, "no results", "--json"]);
    fs::write(&file, "x").unwrap();
    refuses(&mut bench(&format!("compare {name} {name}")), 1, &[&name, "not JSON", "--json"]);
    fs::remove_file(&file).unwrap();
    refuses(&mut bench("compare /none-such /none-such"), 1, &["/none-such", "--json wrote"]);
    refuses(&mut bench("latency --baseline /none-such"), 1, &["/none-such", "--json wrote"]);
    refuses(&mut bench("compare a b --least 101"), 2, &["percent, 0 to 100"]);
    refuses(&mut bench("compare a"), 2, &["--help"]);
}
