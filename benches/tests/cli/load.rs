//! `load`: rates that are kept and that are too much, arrivals, stalls, and the search for the best
//! rate.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{bench, check_run, figures, positive, refuses, scratch, two_cores, wait_for};

#[test]
fn load_says_when_a_rate_was_too_much() {
    if two_cores() {
        let line = "load --rate 200,1e8 --duration 0.05 --size 8,300";
        let document = figures(&mut bench(line));
        check_run(&document, "load", &[8, 8, 300, 300]);
        for (n, record) in document["results"].as_array().unwrap().iter().enumerate() {
            positive(record, "/messages_per_second");
            for name in ["p50", "p99", "p99_99", "max", "mean"] {
                positive(record, &format!("/rtt_ns/{name}"));
            }
            let offered = record["offered_per_second"].as_f64().unwrap();
            if n % 2 == 0 {
                assert_eq!(offered, 200.0);
                let counts = [&record["messages"], &record["unsent"]].map(Value::as_u64);
                assert_eq!(counts.into_iter().flatten().sum::<u64>(), 10, "{record:#}");
                positive(record, "/times_offered");
            } else {
                // No core sends that many. The times include those that waited: half of them waited
                // for a quarter of the time at least.
                positive(record, "/unsent");
                let kept = record["times_offered"].as_f64().unwrap();
                let sent = record["messages_per_second"].as_f64().unwrap();
                // It has four digits.
                assert!(kept < 0.9 && kept <= 1.01 * sent / offered + 1e-4, "{record:#}");
                assert!(record["rtt_ns"]["p50"].as_f64().unwrap() > 0.05e9 / 4.0);
            }
        }
        let line = "load --rate 1000 --duration 0.05 --threads --size 64";
        check_run(&figures(&mut bench(line)), "load", &[64]);
    }
}

#[test]
fn a_load_without_a_rate_is_refused() {
    refuses(&mut bench("load"), 1, &["--rate", "500k", "--slo p99.9=5us"]);
}

/// Each kind of arrivals has the rate that was asked for.
#[test]
fn rates_are_kept_for_each_kind_of_arrivals() {
    if !two_cores() {
        return;
    }
    let file = scratch("arrivals");
    let times: Vec<String> = (0..1000).map(|n| (n * n * 10).to_string()).collect();
    fs::write(&file, times.join("\n")).unwrap();
    for arrivals in ["fixed", "poisson", file.to_str().unwrap()] {
        let line = format!("load --rate 10k..20k --duration 0.2 --size 8 --arrivals {arrivals}");
        let document = figures(&mut bench(&line));
        check_run(&document, "load", &[8, 8]);
        for (record, rate) in document["results"].as_array().unwrap().iter().zip([10e3_f64, 20e3]) {
            assert_eq!(record["arrivals"], arrivals);
            assert_eq!(record["offered_per_second"], rate);
            // As many as are due in that time: by chance, a few more or less. Those of the end may
            // find no room if the other side does not get its core back in time.
            let of = |name: &str| record[name].as_f64().unwrap();
            let due = of("messages") + of("unsent");
            let spread = if arrivals == "fixed" { 1.0 } else { 5.0 * (rate * 0.2).sqrt() };
            assert!((due - rate * 0.2).abs() <= spread, "{record:#}");
            assert!(of("messages") > of("unsent"), "{record:#}");
        }
    }
    fs::remove_file(&file).unwrap();
}

/// The processor time of a process, in ticks of the kernel.
pub(crate) fn processor_time(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default().to_owned();
    rest.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum()
}

/// Sends a signal, by name.
pub(crate) fn signal(process: u32, name: &str) {
    let line = format!("kill -{name} {process}");
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success(), "{line}");
}

/// The serving process, when it has begun to run.
fn serving(parent: &Child) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = wait_for(|| {
        let text = fs::read_to_string(&children).unwrap_or_default();
        text.split_whitespace().next()?.parse::<u32>().ok()
    });
    // In ticks of ten milliseconds.
    wait_for(|| (processor_time(child) >= 10).then_some(()));
    child
}

/// A load for four seconds, whose serving side stops for 50 ms in the middle. Returns for how long
/// it stopped, in nanoseconds, the record and the table.
fn stalled() -> (f64, Value, String) {
    let file = scratch("stall.json");
    let line = "load --rate 2k --arrivals poisson --duration 4 --size 8 --device soft0";
    let line = format!("{line} --json {}", file.display());
    let parent = bench(&line).stdout(Stdio::piped()).spawn().unwrap();
    let child = serving(&parent);
    // The first fifth of the time does not count.
    std::thread::sleep(Duration::from_millis(2500));
    signal(child, "STOP");
    let start = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    let stall = start.elapsed().as_nanos() as f64;
    signal(child, "CONT");
    let output = parent.wait_with_output().unwrap();
    assert!(output.status.success());
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    (stall, document["results"][0].clone(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_stall_of_the_serving_side_shows_in_full() {
    if !two_cores() {
        return;
    }
    let of = |record: &Value, name: &str| record["rtt_ns"][name].as_f64().unwrap();
    // On a busy machine messages may begin to count only after the stall.
    let mut run = stalled();
    for _ in 0..4 {
        let (stall, record, _) = &run;
        if of(record, "max") >= 0.95 * stall {
            break;
        }
        run = stalled();
    }
    let (stall, record, table) = run;
    // Of 8000 messages 100 were due meanwhile. The first waited for all of it, and the eighth,
    // which is the last of the slowest thousandth, for nearly as long.
    assert!(of(&record, "max") >= 0.95 * stall, "{stall} {record:#}");
    assert!(of(&record, "p99_9") >= 0.8 * stall, "{stall} {record:#}");
    // One part of the time has it.
    let parts = record["parts"].as_array().unwrap();
    let longest = |part: &Value| part["max_ns"].as_f64().unwrap();
    let stalled = parts.iter().filter(|part| longest(part) >= 0.95 * stall).count();
    assert!(stalled >= 1, "{record:#}");
    // The table names the stall, and the part that has it: the timeline draws the same parts.
    let line = table.lines().find(|line| line.contains("stalls in")).unwrap();
    let longest = parts.iter().map(longest).fold(0.0, f64::max);
    assert!(line.contains(&format!("the longest took {:.1} ms", longest / 1e6)), "{line}");
}

#[test]
fn a_search_ends_at_the_highest_rate_that_keeps_the_objective() {
    if !two_cores() {
        return;
    }
    // What nothing keeps, down to a message a second: the search ends without a rate.
    let line = "load --slo p50=1ns --rate 4 --duration 0.005 --size 8";
    let document = figures(&mut bench(line));
    let tries = document["results"].as_array().unwrap();
    assert!(tries.iter().all(|of| of["slo"]["kept"] == false), "{document:#}");
    assert_eq!(tries.last().unwrap()["offered_per_second"], 1.0);
    // What all rates keep that the cores can send. How far they get is the machine's affair.
    let line = "load --slo p50=1s --rate 1k --duration 0.02 --size 8 --arrivals poisson";
    let document = figures(&mut bench(line));
    let tries = document["results"].as_array().unwrap();
    let rate = |of: &&Value| of["offered_per_second"].as_f64().unwrap();
    let best = tries.iter().find(|of| of["slo"]["best"] == true).unwrap();
    assert_eq!(best["slo"]["kept"], true, "{document:#}");
    positive(best, "/rtt_ns/p50");
    // A higher rate failed, unless there is none.
    let mut higher = tries.iter().filter(|of| rate(of) > rate(&best));
    assert!(higher.any(|of| of["slo"]["kept"] == false) || rate(&best) == 1e8, "{document:#}");
}

/// Several rates are no search: each has its tries, in turn with the others.
#[test]
fn the_best_of_several_rates_is_the_highest_that_most_tries_keep() {
    if !two_cores() {
        return;
    }
    let line = "load --slo p50=1s --rate 1k,2k,1e8 --tries 3 --duration 0.02 --size 8";
    let document = figures(&mut bench(line));
    let tries = document["results"].as_array().unwrap();
    let rate = |of: &Value| of["offered_per_second"].as_f64().unwrap();
    // A try that other programs disturbed is repeated.
    let mut rates: Vec<f64> = tries.iter().map(rate).collect();
    rates.dedup();
    assert_eq!(rates, [1e3, 2e3, 1e8].repeat(3));
    let counted = |at: f64| {
        let counts = move |of: &&Value| rate(of) == at && of["slo"]["disturbed"] != true;
        tries.iter().filter(counts)
    };
    let kept = |at: f64| counted(at).filter(|of| of["slo"]["kept"] == true).count();
    assert_eq!(kept(1e8), 0, "no core sends that many");
    let best = [1e3, 2e3].into_iter().rfind(|rate| 2 * kept(*rate) > counted(*rate).count());
    for of in tries {
        let is_best = Some(rate(of)) == best && of["slo"]["kept"] == true;
        assert_eq!(of["slo"]["best"], is_best, "{document:#}");
    }
    refuses(&mut bench("load --rate 1k --tries 3"), 2, &["--slo"]);
}
