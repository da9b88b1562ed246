//! Cores and device from a plan of `tune`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::{bench, refuses, scratch, stderr, two_cores};

/// A plan for workers on the cores this program may use.
fn plan(name: &str, device: &str, cpus: &[usize]) -> PathBuf {
    let mut text = format!("version = 1\ndevice = \"{device}\"\nmemory = \"any\"\n");
    for cpu in cpus {
        text.push_str(&format!(
            "[[worker]]\ncpu = {cpu}\nnode = 0\nmemory_node = 0\nmemory_bytes = 0\nsrq = 0\n"
        ));
    }
    let file = scratch(name);
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn cores_and_device_come_from_a_plan() {
    if !two_cores() {
        return;
    }
    // The reverse of the default choice.
    let mut wanted = doorbell_tune::choose(2).unwrap();
    wanted.reverse();
    let file = plan("plan.toml", "soft0", &wanted);
    let figures = |command: &mut Command| -> Value {
        let output = command.args(["--json", "-"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let line = "latency --size 8 --duration 0.05";
    for json in [
        figures(bench(line).arg("--plan").arg(&file)),
        figures(bench(line).env("DOORBELL_PLAN", &file)),
    ] {
        let record = &json["results"][0];
        assert_eq!(record["device"], "soft0");
        assert_eq!(record["placement"]["cores"], serde_json::json!(wanted));
    }
    let other = plan("other.toml", "mlx5_77", &wanted);
    refuses(bench("latency --plan").arg(&other), 1, &["'mlx5_77'"]);
    let one = plan("one.toml", "soft0", &wanted[..1]);
    refuses(bench("latency --plan").arg(&one), 1, &["2 are needed", "tune plan --workers 2"]);
    let gone = plan("gone.toml", "soft0", &[wanted[0], 5000]);
    refuses(bench("latency --plan").arg(&gone), 1, &["5000", "tune plan"]);
    refuses(&mut bench("latency --plan /none-such"), 1, &["/none-such", "`tune plan`"]);
    refuses(&mut bench("latency --plan x --cores 0,1"), 2, &["--cores"]);
    [file, other, one, gone].iter().for_each(|file| fs::remove_file(file).unwrap());
}

#[test]
fn ranks_of_a_host_take_the_workers_of_a_plan_in_order() {
    if !two_cores() {
        return;
    }
    let mut wanted = doorbell_tune::choose(2).unwrap();
    wanted.reverse();
    let file = plan("ranks.toml", "soft0", &wanted);
    let line = "rate --ranks 2 --size 8 --duration 0.05 --json - --plan";
    let output = bench(line).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["results"][0]["per_rank"].as_array().unwrap();
    let cores: Vec<&Value> = rows.iter().map(|row| &row["cores"][0]).collect();
    assert_eq!(cores, [wanted[0], wanted[1]]);
    let one = plan("rank.toml", "soft0", &wanted[..1]);
    let parts = ["1 core(s) for 2 rank(s)", "name 2"];
    refuses(bench("rate --ranks 2 --plan").arg(&one), 1, &parts);
    [file, one].iter().for_each(|file| fs::remove_file(file).unwrap());
}
