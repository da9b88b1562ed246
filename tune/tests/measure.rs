//! `tune measure` on this machine.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};

use doorbell_tune::{CoreList, Machine, Root, choose};
use serde_json::Value;

fn measure(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tune")).arg("measure").args(words).output().unwrap()
}

#[test]
fn figures_are_there_for_every_pair_of_cores_and_nodes() {
    let Ok(mut cpus) = choose(2) else {
        return println!("skipped: this machine has one core");
    };
    cpus.sort_unstable();
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join("heat.svg");
    let (path, list) = (svg.to_str().unwrap(), CoreList(&cpus).to_string());
    let output = measure(&["--cpus", &list, "--memory", "1M", "--json", "--svg", path]);
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cpus"], serde_json::json!(cpus));
    let half = json["latency_ns"][0][1].as_f64().unwrap();
    assert!(half > 0.0 && json["latency_ns"][1][0] == half && json["latency_ns"][0][0].is_null());
    let machine = Machine::read(&Root::system()).unwrap();
    let near = machine.nodes.iter().filter(|node| !node.cpus.and(&machine.cpus.usable).is_empty());
    let pairs = near.count() * machine.memory_nodes.len();
    assert_eq!(json["bandwidth"].as_array().unwrap().len(), pairs);
    let picture = std::fs::read_to_string(svg).unwrap();
    let tip = format!("<title>CPU {}, CPU {}: {half:.1} ns</title>", cpus[0], cpus[1]);
    assert!(picture.contains(&tip), "{tip}\n{picture}");
}

#[test]
fn a_failed_measurement_says_why() {
    for (words, part) in [
        (&["--cpus", "5000", "--memory", "0"][..], "5000"),
        (&["--memory", "1000000G"], "ask for at most half of that: use --memory"),
    ] {
        let output = measure(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && text.contains(part), "{text}");
    }
    assert_eq!(measure(&["--cpus", "x"]).status.code(), Some(2));
}
