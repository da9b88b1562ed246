//! The command beside a program that exports its metrics.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::metrics::Metrics;
use doorbell::worker::Stats;
use doorbell::{Export, exporting_processes, read_metrics};

fn top(words: &[&str]) -> Output {
    let mut top = Command::new(env!("CARGO_BIN_EXE_doorbell-top"));
    top.args(words).stdin(Stdio::null()).output().unwrap()
}

fn metrics(workers: u64) -> Metrics {
    let mut metrics = Metrics::new();
    for worker in 0..workers {
        let stats = Stats { peers: 3, received: 1000 + worker, ..Stats::default() };
        metrics.worker(&worker.to_string(), &stats);
    }
    metrics
}

/// One test, because a process has one export.
#[test]
fn it_shows_what_a_program_exports() {
    let process = std::process::id().to_string();
    let missing = top(&["--once", &process]);
    assert!(!missing.status.success());
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(said.contains("exports no metrics"), "{said}");

    let mut export = Export::open().unwrap();
    assert!(Export::open().is_err(), "a process has one");
    assert!(exporting_processes().unwrap().contains(&process));
    let stop = AtomicBool::new(false);
    // More than a socket takes at a time, so that the text goes out in several steps.
    let workers = 300;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                export.step(|| metrics(workers));
                thread::sleep(Duration::from_millis(1));
            }
        });
        let shown = top(&[&process]);
        let text = read_metrics(&process);
        stop.store(true, Ordering::Relaxed);
        let table = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
        let row = table.lines().find(|line| line.starts_with("299 ")).unwrap_or_default();
        let figures: Vec<&str> = row.split_whitespace().take(3).collect();
        assert_eq!(figures, ["299", "3", "1299"], "{table}");
        assert_eq!(text.unwrap(), metrics(workers).to_string());
    });
    drop(export);
    assert!(!exporting_processes().unwrap().contains(&process), "nothing stays behind");
}
