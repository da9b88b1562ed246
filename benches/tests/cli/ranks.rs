//! Many ranks: below `mpirun`, started by `--ranks`, and by hand; and what happens if one does not
//! come, does not agree, dies or stops.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::load::{processor_time, signal};
use crate::{bench, positive, refuses, scratch, stderr, wait_for};

/// A command line of ranks, on soft.
pub(crate) fn line(rest: &str) -> String {
    format!("{rest} --device soft0 --duration 0.1")
}

/// Reads the JSON of rank 0.
pub(crate) fn read(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What is true of every record of ranks.
pub(crate) fn check(document: &Value, pattern: &str, ranks: usize) {
    for record in document["results"].as_array().unwrap() {
        assert_eq!((&record["pattern"], &record["ranks"]), (&pattern.into(), &ranks.into()));
        assert_eq!(record["placement"]["sides"], "ranks");
        assert_eq!((&record["lost"], &record["schema"]), (&0.into(), &1.into()), "{record:#}");
        assert_eq!(record["allocations_per_message"], 0.0, "{record:#}");
        positive(record, "/messages");
        let rows = record["per_rank"].as_array().unwrap();
        assert_eq!(rows.len(), ranks);
        let sum = |name: &str| -> f64 {
            rows.iter().map(|row| row[name].as_f64().unwrap_or_default()).sum()
        };
        let messages = record["messages"].as_f64().unwrap();
        assert_eq!(sum("messages"), messages);
        // Of round trips one way each.
        let ways = if record["test"] == "rate" { 1.0 } else { 2.0 };
        assert_eq!(ways * sum("received"), messages, "{record:#}");
        let (calls, links) = match pattern {
            "pairs" => (1, ranks / 2),
            "fan-in" => (1, ranks - 1),
            "fan-out" => (ranks - 1, ranks - 1),
            _ => (ranks - 1, ranks * (ranks - 1)),
        };
        let workers = record["workers"].as_u64().unwrap() as usize;
        assert_eq!(record["qps"], links * workers);
        assert_eq!((sum("targets"), sum("callers")), (links as f64, links as f64));
        for row in rows {
            let is_caller = row["targets"] != 0;
            assert!(!is_caller || row["targets"] == calls, "{row:#}");
            assert_eq!(row["messages"].as_u64().unwrap() > 0, is_caller, "{row:#}");
            assert!(row["callers"] == 0 || row["received"].as_u64().unwrap() > 0, "{row:#}");
            let name = if record["test"] == "rate" { "messages_per_second" } else { "half_rtt_ns" };
            assert_eq!(row.get(name).is_some(), is_caller, "{row:#}");
        }
        if record["test"] == "rate" {
            let whole = record["messages_per_second"].as_f64().unwrap();
            assert!((sum("messages_per_second") - whole).abs() <= ranks as f64, "{record:#}");
            return;
        }
        // Merged: the longest is that of the slowest rank, and the mean is that of all messages.
        let of = |record: &Value, name: &str| record["half_rtt_ns"][name].as_f64();
        let most = rows.iter().filter_map(|row| of(row, "max")).fold(0.0, f64::max);
        assert_eq!(of(record, "max"), Some(most));
        let part = |row: &Value| Some(of(row, "mean")? * row["messages"].as_f64()?);
        let mean = rows.iter().filter_map(part).sum::<f64>() / messages;
        assert!((of(record, "mean").unwrap() / mean - 1.0).abs() < 0.01, "{mean} {record:#}");
    }
}

fn mpirun(ranks: usize, line: &str) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_doorbell-bench")).args(line.split_whitespace());
    command.env_remove("DOORBELL_DEVICE").env_remove("DOORBELL_PLAN");
    command
}

fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no mpirun (openmpi-bin)");
    }
    found
}

#[test]
fn ranks_of_mpirun_take_their_place_from_the_environment() {
    if !has_mpirun() {
        return;
    }
    for (ranks, pattern, test) in [
        (2, "pairs", "latency --size 8,4K"),
        (4, "pairs", "rate --size 64 --batch 1,16"),
        (4, "fan-in", "latency --size 200"),
        (4, "fan-out", "rate --size 8"),
        (4, "all-to-all", "latency --size 8"),
    ] {
        let line = line(&format!("{test} --pattern {pattern} --json -"));
        let document = read(&mpirun(ranks, &line).output().unwrap());
        check(&document, pattern, ranks);
        assert_eq!(document["results"][0]["launcher"], "Open MPI");
    }
}

#[test]
fn a_rank_of_mpirun_that_cannot_begin_is_one_error_with_its_cure() {
    if !has_mpirun() {
        return;
    }
    let output = mpirun(3, &line("latency --pattern pairs")).output().unwrap();
    let text = stderr(&output);
    assert!(!output.status.success());
    let said: Vec<&str> = text.lines().filter(|line| line.starts_with("doorbell-bench")).collect();
    assert!(said.len() == 1 && said[0].contains("even number"), "{text}");
    let text = stderr(&mpirun(2, "sweep").output().unwrap());
    assert!(text.contains("sweep has two sides"), "{text}");
}

#[test]
fn ranks_without_a_launcher_mix_sizes_beside_idle_links() {
    for (test, pattern) in [("rate", "all-to-all"), ("latency", "fan-in")] {
        let options = "--ranks 3 --size 8,300,4K --mix=70,20,10 --idle-links 7 --json -";
        let line = line(&format!("{test} --pattern {pattern} {options}"));
        let document = read(&bench(&line).output().unwrap());
        check(&document, pattern, 3);
        let [record] = &document["results"].as_array().unwrap()[..] else { panic!("{document:#}") };
        assert_eq!(record["sizes"], serde_json::json!([8, 300, 4096]));
        assert_eq!(record["weights"], serde_json::json!([70, 20, 10]));
        assert_eq!((&record["size"], &record["idle_links"]), (&4096.into(), &7.into()));
        if test == "rate" {
            // The mean size is 475.2 bytes.
            let of = |name: &str| record[name].as_f64().unwrap();
            let mean = of("bytes_per_second") / of("messages_per_second");
            assert!((mean / 475.2 - 1.0).abs() < 0.2, "{mean}");
        }
    }
    let line = line("rate --ranks 2 --workers 2 --size 8 --batch 16 --json -");
    let document = read(&bench(&line).output().unwrap());
    check(&document, "pairs", 2);
    assert_eq!(document["results"][0]["placement"]["cores"].as_array().unwrap().len(), 4);
    positive(&document, "/results/0/parts/0/messages_per_second");
}

#[test]
fn a_report_of_ranks_has_a_place_for_each() {
    let folder = scratch("ranks");
    let line = line(&format!("report --ranks 2 --size 8 --out {}", folder.display()));
    let output = bench(&line).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    for word in ["pairs: 2 ranks started by doorbell-bench --ranks", "called by"] {
        assert!(table.contains(word) && page.contains(word), "{word} is not in {table}");
    }
    for word in ["Half round trip by rank", "Rate by rank", "8 B p99"] {
        assert!(page.contains(word), "{word}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A free port for one run, which other tests do not take.
fn rendezvous() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A rank as a person starts it, with the variables of Open MPI, for a tenth of a second.
fn by_hand(rank: (u32, u32), meet: &str, rest: &str) -> Command {
    by_hand_for(0.1, rank, meet, rest)
}

/// The same for that many seconds.
fn by_hand_for(time: f64, (rank, size): (u32, u32), meet: &str, rest: &str) -> Command {
    let options = format!("--device soft0 --duration {time} --rendezvous {meet}");
    let mut command = bench(&format!("{rest} {options}"));
    command
        .env("OMPI_COMM_WORLD_RANK", rank.to_string())
        .env("OMPI_COMM_WORLD_SIZE", size.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts ranks 1 and on, and runs rank 0. Returns what rank 0 and then the others printed.
fn together(mut first: Command, others: &mut [Command]) -> Vec<Output> {
    let children: Vec<Child> = others.iter_mut().map(|of| of.spawn().unwrap()).collect();
    let output = first.output().unwrap();
    let rest = children.into_iter().map(|child| child.wait_with_output().unwrap());
    [output].into_iter().chain(rest).collect()
}

#[test]
fn ranks_by_hand_meet_where_they_are_told() {
    let meet = rendezvous();
    let test = "latency --size 8 --json -";
    let all = together(by_hand((0, 2), &meet, test), &mut [by_hand((1, 2), &meet, test)]);
    check(&read(&all[0]), "pairs", 2);
    assert!(all[1].status.success() && all[1].stdout.is_empty(), "{}", stderr(&all[1]));
}

/// Rank 0 has one error with all of `parts`, and the others fail without a word.
fn fail_as_one(all: &[Output], parts: &[&str]) {
    let text = stderr(&all[0]);
    assert_eq!((all[0].status.code(), text.lines().count()), (Some(1), 1), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    for output in &all[1..] {
        assert!(!output.status.success());
        assert_eq!(stderr(output), "");
    }
}

#[test]
fn ranks_that_do_not_agree_are_one_error_with_its_cure() {
    let test = "latency --size 8";
    let meet = rendezvous();
    let all = together(by_hand((0, 4), &meet, test), &mut [by_hand((1, 2), &meet, test)]);
    fail_as_one(&all, &["rank 1", "one of 2 ranks", "one of 4", "same count"]);
    let meet = rendezvous();
    let others = &mut [by_hand((1, 2), &meet, "latency --size 16")];
    let all = together(by_hand((0, 2), &meet, test), others);
    fail_as_one(&all, &["latency of 16 bytes", "latency of 8 bytes", "the same options"]);
    let meet = rendezvous();
    let others = &mut [by_hand((1, 3), &meet, test), by_hand((1, 3), &meet, test)];
    let all = together(by_hand((0, 3), &meet, test), others);
    fail_as_one(&all, &["two processes say that they are rank 1", "a rank of its own"]);
    // A failure of one rank alone: its core is not there.
    let meet = rendezvous();
    let others = &mut [by_hand((1, 2), &meet, "latency --size 8 --cores 99999")];
    let all = together(by_hand((0, 2), &meet, test), others);
    fail_as_one(&all, &["rank 1", "core 99999", "--bind-to none"]);
}

#[test]
fn a_missing_rank_is_an_error_and_no_hang() {
    let meet = rendezvous();
    let test = "latency --size 8 --wait 0.5";
    let all = together(by_hand((0, 3), &meet, test), &mut [by_hand((1, 3), &meet, test)]);
    fail_as_one(&all, &["1 of 3 ranks did not come", ": 2;", &meet, "--wait"]);
    let parts = ["rank 1 calls rank 0", &meet, "--rendezvous HOST:PORT"];
    refuses(&mut by_hand((1, 2), &meet, test), 1, &parts);
    let text = "OMPI_COMM_WORLD_RANK=7 of OMPI_COMM_WORLD_SIZE=2";
    refuses(&mut by_hand((7, 2), &meet, test), 1, &[text, "count from 0"]);
    let mut alone = bench("latency");
    refuses(alone.env("PMIX_RANK", "0"), 1, &["PMIX_SIZE does not say", "mpirun or srun"]);
}

#[test]
fn a_rank_of_another_run_is_sent_away() {
    let meet = rendezvous();
    let test = "latency --size 8";
    let mut stranger = by_hand((1, 2), &meet, test);
    stranger.env("PMIX_NAMESPACE", "other");
    let stranger = stranger.spawn().unwrap();
    let first = by_hand((0, 2), &meet, test).spawn().unwrap();
    let said = stranger.wait_with_output().unwrap();
    assert!(stderr(&said).contains("another run"), "{}", stderr(&said));
    // The run goes on.
    assert!(by_hand((1, 2), &meet, test).output().unwrap().status.success());
    assert!(first.wait_with_output().unwrap().status.success());
}

/// Three ranks that measure for long, when each has run for a while.
fn running(options: &str) -> Vec<Child> {
    let meet = rendezvous();
    let test = format!("latency --size 8 --pattern fan-in {options}");
    let rank = |rank| by_hand_for(600.0, (rank, 3), &meet, &test).spawn().unwrap();
    let ranks: Vec<Child> = (0..3).map(rank).collect();
    for rank in &ranks {
        // In ticks of ten milliseconds.
        wait_for(|| (processor_time(rank.id()) >= 30).then_some(()));
    }
    ranks
}

fn outputs(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

#[test]
fn a_rank_that_dies_ends_the_run_with_its_name() {
    let ranks = running("");
    signal(ranks[2].id(), "KILL");
    let all = outputs(ranks);
    fail_as_one(&all[..2], &["rank 2 (", "has ended too early", "see what it printed"]);
}

#[test]
fn if_rank_0_dies_the_others_say_so() {
    let ranks = running("");
    signal(ranks[0].id(), "KILL");
    for output in &outputs(ranks)[1..] {
        let text = stderr(output);
        assert!(text.lines().count() == 1 && text.contains("rank 0 ("), "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_rank_that_stops_ends_the_run_after_a_while() {
    let ranks = running("--wait 3");
    let stopped = ranks[1].id();
    signal(stopped, "STOP");
    let mut ranks = ranks.into_iter();
    let (first, second, third) = (ranks.next(), ranks.next(), ranks.next());
    let mut all = outputs([first, third].into_iter().flatten().collect());
    signal(stopped, "CONT");
    all.extend(outputs(second.into_iter().collect()));
    fail_as_one(&all[..2], &["rank 1 (", "silent for 3 s", "is it stopped", "--wait"]);
    assert!(!all[2].status.success());
}

#[test]
fn if_rank_0_stops_the_others_say_so() {
    let mut ranks = running("--wait 3");
    let first = ranks.remove(0);
    signal(first.id(), "STOP");
    for output in outputs(ranks) {
        let text = stderr(&output);
        let parts = ["rank 0 (", "silent for 3 s", "is it stopped"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    signal(first.id(), "CONT");
    assert!(!outputs(vec![first])[0].status.success());
}

#[test]
fn ctrl_c_at_rank_0_ends_all_with_the_report_so_far() {
    let meet = rendezvous();
    // A minute in all.
    let rank = |rank| by_hand_for(5.0, (rank, 2), &meet, "rate --size 8..4K --json -");
    let ranks: Vec<Child> = (0..2).map(|n| rank(n).spawn().unwrap()).collect();
    for rank in &ranks {
        wait_for(|| (processor_time(rank.id()) >= 100).then_some(()));
    }
    signal(ranks[0].id(), "INT");
    let all = outputs(ranks);
    assert_eq!(all[0].status.code(), Some(130), "{}", stderr(&all[0]));
    let document: Value = serde_json::from_slice(&all[0].stdout).unwrap();
    assert_eq!(document["interrupted"], true);
    let results = document["results"].as_array().unwrap();
    assert!(results.len() < 10, "{document:#}");
    results.iter().for_each(|record| positive(record, "/messages"));
    assert!(all[1].status.success(), "{}", stderr(&all[1]));
}
