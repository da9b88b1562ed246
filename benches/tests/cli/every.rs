//! Every subcommand for a tenth of a second; progress on a terminal and elsewhere; Ctrl-C.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::load::{processor_time, signal};
use crate::{bench, scratch, stderr, two_cores, wait_for};

/// The subcommands that the help lists.
fn subcommands() -> Vec<String> {
    let output = bench("--help").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let list = text.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    // Names stand two spaces in; explanations that go on stand further in.
    let named = list.lines().filter_map(|line| line.strip_prefix("  "));
    let names = named.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_subcommand_runs_for_a_tenth_of_a_second() {
    if !two_cores() {
        return;
    }
    let folder = scratch("every");
    fs::create_dir(&folder).unwrap();
    let run = folder.join("run.json").display().to_string();
    let time = "--duration 0.1 --device soft0";
    let line = |name: &str| match name {
        "latency" => Some(format!("latency {time} --size 8..32 --json {run}")),
        "rate" => Some(format!("rate {time} --size 8,64 --batch 1,16")),
        "load" => Some(format!("load {time} --rate 1k..4k --arrivals poisson --size 8")),
        "sweep" => Some(format!("sweep {time} --depth 1,8 --size 64")),
        "crowd" => Some(format!("crowd {time} --qps 2 --idle-qps 50 --receives 64 --size 64")),
        "bandwidth" => Some(format!("bandwidth {time} --size 4K --op write,read,send")),
        "connect" => Some(format!("connect {time}")),
        "traffic" => Some(format!("traffic {time} --rounds 2 --rows ping-8")),
        "report" => Some(format!("report {time} --size 8 --out {}", folder.display())),
        "compare" => Some(format!("compare {run} {run}")),
        // It counts instructions, and takes as long as those take.
        "overhead" => None,
        // It runs the others.
        "results" | "help" => None,
        other => panic!("no line for `{other}`"),
    };
    let names = subcommands();
    assert!(names.len() >= 13, "{names:?}");
    for line in names.iter().filter_map(|name| line(name)) {
        let output = bench(&line).output().unwrap();
        // Of so short a time nothing can be compared.
        let expected = if line.starts_with("compare") { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{line}: {}", stderr(&output));
        assert!(!output.stdout.is_empty(), "{line}");
        assert!(output.stderr.is_empty(), "{line}: {}", stderr(&output));
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_option_says_what_it_is_and_defaults_are_named() {
    for name in subcommands().iter().filter(|name| *name != "help") {
        let output = bench(&format!("{name} --help")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for (option, word) in
            [("--duration", "[default: 2, with --quick 0.3]"), ("--size", "default: ")]
        {
            let has = text.split("\n  ").any(|line| line.trim_start().starts_with(option));
            let told = text.split_whitespace().collect::<Vec<_>>().join(" ").contains(word);
            assert!(!has || told, "{name} {option}: {text}");
        }
    }
}

/// The first child of a process.
fn child_of(parent: &Child) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    wait_for(|| {
        let text = fs::read_to_string(&children).unwrap_or_default();
        text.split_whitespace().next()?.parse::<u32>().ok()
    })
}

#[test]
fn ctrl_c_ends_with_the_report_of_what_was_measured() {
    if !two_cores() {
        return;
    }
    let file = scratch("interrupted.json");
    // The first figure would take ten minutes, and so would each of the others.
    for line in ["latency --size 8..64", "rate --size 8..64", "load --rate 1k,2k --size 8"] {
        let line = format!("{line} --device soft0 --duration 600 --json {}", file.display());
        let parent = bench(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let child = child_of(&parent);
        // This is within the two minutes of warming up. Ctrl-C ends those too, without a figure.
        wait_for(|| (processor_time(child) >= 30).then_some(()));
        // As a terminal does it, both get the signal.
        signal(child, "INT");
        signal(parent.id(), "INT");
        let output = parent.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{line}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(text.lines().last().unwrap().contains("interrupted: 0 figures"), "{text}");
        let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(document["interrupted"], true);
        assert!(document["results"].as_array().unwrap().is_empty(), "{document:#}");
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn a_figure_that_ctrl_c_ends_counts_as_far_as_it_got() {
    if !two_cores() {
        return;
    }
    let file = scratch("cut.json");
    for line in ["latency --size 8..64", "rate --size 8..64", "load --rate 1k,2k --size 8"] {
        // The serving side's processor time passes the warming up, of 1.2 s, and then ends it.
        let line = format!("{line} --device soft0 --duration 6 --json {}", file.display());
        let parent = bench(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let child = child_of(&parent);
        wait_for(|| (processor_time(child) >= 180).then_some(()));
        signal(parent.id(), "INT");
        let output = parent.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{line}: {}", stderr(&output));
        let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let results = document["results"].as_array().unwrap();
        assert!(!results.is_empty(), "{document:#}");
        for record in results {
            assert_eq!(record["lost"], 0, "{record:#}");
            assert!(record["messages"].as_u64().unwrap() > 0, "{record:#}");
        }
        let table = String::from_utf8(output.stdout).unwrap();
        assert!(table.contains("on soft0") && table.contains("commit"), "{table}");
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn several_rounds_that_ctrl_c_cuts_short_are_left_out() {
    if !two_cores() {
        return;
    }
    for line in ["sweep --size 8", "crowd --idle-qps 50 --size 8", "bandwidth --size 4K"] {
        let line = format!("{line} --device soft0 --duration 900 --json -");
        let parent = bench(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let child = child_of(&parent);
        wait_for(|| (processor_time(child) >= 30).then_some(()));
        signal(parent.id(), "INT");
        let output = parent.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{line}: {}", stderr(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(document["results"].as_array().unwrap().is_empty(), "{document:#}");
    }
}

#[test]
fn a_long_run_prints_a_line_for_each_figure() {
    if !two_cores() {
        return;
    }
    // A search counts as twenty figures; this one ends early, because nothing keeps the objective.
    let line = "load --device soft0 --slo p50=1ns --rate 1 --size 8 --duration 0.5";
    let output = bench(line).output().unwrap();
    assert_eq!(stderr(&output), "doorbell-bench: 1 of 1 done: load 8 B 1 /s\n");
}

#[test]
fn a_terminal_shows_percentiles_while_they_are_measured() {
    if !two_cores() {
        return;
    }
    let line = format!(
        "{} latency --device soft0 --size 8 --duration 2",
        env!("CARGO_BIN_EXE_doorbell-bench")
    );
    // script(1) gives it a terminal.
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("latency 8 B") && text.contains("ns  p99 "), "{text}");
    assert!(text.contains("p50/floor"), "the table comes after it: {text}");
}
