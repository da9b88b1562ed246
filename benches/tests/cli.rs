//! The program as its users see it: which figures it writes, and where. Files of `cli` have what it
//! refuses, plans, and single subcommands.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "limits of a child process are set between fork and exec")]

#[path = "cli/alone.rs"]
mod alone;
#[path = "cli/compare.rs"]
mod compare;
#[path = "cli/every.rs"]
mod every;
#[path = "cli/load.rs"]
mod load;
#[path = "cli/plan.rs"]
mod plan;
#[path = "cli/ranks.rs"]
mod ranks;
#[path = "cli/refusals.rs"]
mod refusals;
#[path = "cli/slurm.rs"]
mod slurm;
#[path = "cli/traffic.rs"]
mod traffic;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use doorbell_tune::cores;
use serde_json::Value;

fn bench(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell-bench"));
    command.args(line.split_whitespace());
    command
        .env_remove("DOORBELL_DEVICE")
        .env_remove("DOORBELL_PLAN")
        .current_dir(std::env::temp_dir());
    command
}

/// True if there are two cores. Most tests here need them.
fn two_cores() -> bool {
    let found = cores().len() >= 2;
    if !found {
        println!("skipped: this machine has one core");
    }
    found
}

/// A file or folder for one test.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("doorbell-bench-{}-{name}", std::process::id()))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The program refuses: exit code, one line on standard error that has all of `parts`, and
/// nothing on standard output.
fn refuses(command: &mut Command, code: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{command:?}: {text}");
    assert!(text.starts_with("doorbell-bench: "), "{command:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{command:?}: {part:?} is not in {text:?}");
    }
    assert!(output.stdout.is_empty(), "{command:?}: {:?}", String::from_utf8_lossy(&output.stdout));
}

/// Runs, with success, and reads the record on standard output.
fn figures(command: &mut Command) -> Value {
    let output = command.args(["--device", "soft0", "--json", "-"]).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn positive(value: &Value, path: &str) {
    let figure = value.pointer(path).and_then(Value::as_f64);
    assert!(figure.is_some_and(|figure| figure > 0.0), "{path} in {value:#}");
}

fn check_run(document: &Value, test: &str, sizes: &[u64]) {
    let results = document["results"].as_array().unwrap();
    let found: Vec<u64> = results.iter().map(|record| record["size"].as_u64().unwrap()).collect();
    assert_eq!(found, sizes);
    for record in results {
        assert_eq!(record["schema"], 1);
        assert_eq!(record["test"], test);
        assert_eq!((&record["provider"], &record["device"]), (&"soft".into(), &"soft0".into()));
        assert_eq!(record["lost"], 0);
        assert_eq!(record["placement"]["cores"].as_array().unwrap().len(), 2);
        let mode = record["placement"]["mode"].as_str().unwrap();
        assert!(["NEAR", "FAR", "MIX"].contains(&mode), "{mode}");
        positive(record, "/placement/floor_ns");
        positive(record, "/messages");
        positive(record, "/doorbells_per_message");
        positive(record, "/completions_per_poll");
        assert_eq!(record["allocations_per_message"], 0.0, "{record:#}");
    }
    for path in ["/machine/cpu", "/machine/kernel", "/machine/pages", "/command"] {
        assert!(document.pointer(path).is_some_and(Value::is_string), "{path}");
    }
}

fn check_latency(document: &Value, sizes: &[u64]) {
    check_run(document, "latency", sizes);
    for record in document["results"].as_array().unwrap() {
        for name in ["p50", "p90", "p99", "p99_9", "p99_99", "max", "mean"] {
            positive(record, &format!("/half_rtt_ns/{name}"));
        }
        // One for each message, and some for words of credit. If other programs take the cores in
        // between, each pause sends a word, so at worst there is one behind every message. The test
        // `hotpath` counts the words.
        let doorbells = record["doorbells_per_message"].as_f64().unwrap();
        assert!((1.0..2.1).contains(&doorbells), "{record:#}");
    }
}

fn check_rate(document: &Value, sizes: &[u64]) {
    check_run(document, "rate", sizes);
    for record in document["results"].as_array().unwrap() {
        positive(record, "/messages_per_second");
        positive(record, "/bytes_per_second");
    }
}

#[test]
fn latency_between_processes_and_between_threads() {
    if two_cores() {
        let document = figures(&mut bench("latency --quick --duration 0.1 --size 1,8,64,4096"));
        check_latency(&document, &[1, 8, 64, 4096]);
        assert_eq!(document["results"][0]["placement"]["sides"], "processes");
        let document = figures(&mut bench("latency --quick --duration 0.1 --threads --size 200"));
        check_latency(&document, &[200]);
        assert_eq!(document["results"][0]["placement"]["sides"], "threads");
    }
}

#[test]
fn rate_between_processes_and_between_threads() {
    if two_cores() {
        let document = figures(&mut bench("rate --quick --duration 0.1 --size 1,16,200,5000"));
        check_rate(&document, &[1, 16, 200, 5000]);
        let batched = document["results"][1]["doorbells_per_message"].as_f64().unwrap();
        assert!(batched < 0.1, "16 messages to a doorbell, and {batched} doorbells a message");
        let document = figures(&mut bench("rate --duration 0.1 --threads --size 64 --batch 1"));
        check_rate(&document, &[64]);
    }
}

#[test]
fn rate_over_several_connections_and_workers() {
    if two_cores() {
        let line = "rate --duration 0.1 --size 32 --qps 3 --signal-every 1";
        let document = figures(&mut bench(line));
        check_rate(&document, &[32]);
        assert_eq!(document["results"][0]["qps"], 3);
        // Two workers on one core take turns: slow, but correct.
        let cores = cores();
        let (one, two) = (cores[0], cores[1]);
        let line = format!("rate --duration 0.1 --size 32 --workers 2 --cores {one},{two},{two}");
        let document = figures(&mut bench(&line));
        assert_eq!(document["results"][0]["lost"], 0);
        assert_eq!(document["results"][0]["workers"], 2);
        let line = format!("rate --workers 2 --qps 1 --cores {one},{two},{two}");
        refuses(&mut bench(&line), 1, &["--qps 1", "at least one"]);
    }
}

#[test]
fn idle_connections_are_compared_with_none_in_turn() {
    if two_cores() {
        for line in [
            "rate --duration 0.02 --size 32 --idle-qps 300",
            "latency --duration 0.02 --size 32 --idle-qps 300 --threads",
            "rate --duration 0.02 --size 32 --qps 3 --idle-qps 4 --batch 4",
        ] {
            let document = figures(&mut bench(line));
            let [without, with] = &document["results"].as_array().unwrap()[..] else {
                panic!("{document:#}")
            };
            assert!(
                without.get("idle_qps").is_none() && without.get("times_without_idle").is_none()
            );
            for record in [without, with] {
                assert_eq!(record["lost"], 0);
                positive(record, "/messages");
                assert_eq!(record["allocations_per_message"], 0.0, "{record:#}");
            }
            positive(with, "/times_without_idle");
            if with["idle_qps"] == 300 {
                // The tables of one connection take kilobytes.
                let threads = with["placement"]["sides"] == "threads";
                let most = if threads { 48_000.0 } else { 24_000.0 };
                let bytes = with["bytes_per_idle_connection"].as_f64().unwrap();
                assert!((500.0..most).contains(&bytes), "{bytes}");
                let theirs = with.get("bytes_per_idle_connection_serving");
                assert_eq!(theirs.is_none(), threads);
                let bytes = theirs.map_or(bytes, |bytes| bytes.as_f64().unwrap());
                assert!((500.0..most).contains(&bytes), "{bytes}");
            }
        }
    }
}

#[test]
fn a_few_talk_in_a_crowd_and_each_has_its_share() {
    if two_cores() {
        let line =
            "crowd --duration 0.05 --size 8,300 --qps 3 --idle-qps 300 --receives 64 --depth 40";
        let document = figures(&mut bench(line));
        let results = document["results"].as_array().unwrap();
        assert_eq!(results.len(), 4, "each size without and with those that rest");
        for (n, record) in results.iter().enumerate() {
            assert_eq!((&record["lost"], &record["errors"]), (&0.into(), &0.into()), "{record:#}");
            assert_eq!(record["allocations_per_message"], 0.0, "{record:#}");
            assert_eq!(record.get("idle_qps").is_some(), n % 2 == 1);
            positive(record, "/half_rtt_ns/p99_9");
            positive(record, "/resident_bytes");
            positive(record, "/resident_bytes_serving");
            let number = |name: &str| record[name].as_u64().unwrap();
            assert_eq!(number("receives"), 64);
            assert!((1..=64).contains(&number("receives_out_most")), "{record:#}");
            // Each of the three has 16 of the 48 receives that are not in a refill list, and would
            // have 40 messages in flight.
            positive(record, "/credit_stalls");
            let (least, most) = (number("least_messages"), number("most_messages"));
            // Equal windows give equal rates: to a quarter, and two windows at the ends.
            assert!(most - least <= most / 4 + 32 && most <= number("messages"), "{record:#}");
        }
    }
}

#[test]
fn more_connections_than_open_files_are_refused_with_the_cure() {
    if two_cores() {
        let mut command = bench("rate --device soft0 --idle-qps 1000");
        // SAFETY: setrlimit is async-signal-safe and touches no memory but the limit on this
        // stack.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit { rlim_cur: 256, rlim_max: 256 };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                Ok(())
            });
        }
        refuses(&mut command, 1, &["1002 connections", "may have 256", "ulimit -n", "--idle-qps"]);
    }
}

#[test]
fn a_sweep_goes_from_one_in_flight_to_many() {
    if two_cores() {
        let document = figures(&mut bench("sweep --depth 512,1,16 --duration 0.02 --size 64"));
        check_run(&document, "sweep", &[64; 5]);
        let results = document["results"].as_array().unwrap();
        let depths: Vec<u64> = results.iter().map(|of| of["depth"].as_u64().unwrap()).collect();
        assert_eq!(depths, [1, 16, 512, 1, 1]);
        results[..3].iter().for_each(|record| positive(record, "/messages_per_second"));
        results[1..3].iter().for_each(|record| positive(record, "/times_best_below"));
        let doorbells = |n: usize| results[n]["doorbells_per_message"].as_f64().unwrap();
        // Not exactly one: on shared cores such a short run may count less, and each pause of the
        // other side may add a word of credit.
        assert!((0.9..2.1).contains(&doorbells(0)), "{}", doorbells(0));
        assert!(doorbells(1) < 0.5 && doorbells(2) < 0.25, "{} {}", doorbells(1), doorbells(2));
        assert_eq!(
            (&results[3]["batching"], &results[4]["batching"]),
            (&false.into(), &true.into())
        );
        results[3..].iter().for_each(|record| positive(record, "/half_rtt_ns/p50"));
        positive(&results[4], "/times_without_batching");
    }
}

/// The exit code follows from the figures, whatever the machine does meanwhile.
#[test]
fn the_exit_code_of_a_checked_sweep_follows_from_its_figures() {
    if two_cores() {
        let mut command = bench("sweep --check --depth 1,16 --duration 0.02 --size 64");
        let output = command.args(["--device", "soft0", "--json", "-"]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [one, many, off, on] = &document["results"].as_array().unwrap()[..] else {
            panic!("{document:#}")
        };
        let number = |record: &Value, name: &str| record[name].as_f64().unwrap();
        let rounds = number(one, "rounds");
        assert!(rounds + number(one, "rounds_left_out") <= 60.0, "{document:#}");
        for record in [many, off, on] {
            assert_eq!(number(record, "rounds"), rounds);
        }
        let holds =
            number(many, "times_best_below") >= 0.9 && number(on, "times_without_batching") <= 1.03;
        let code = match (rounds >= 15.0, holds) {
            (false, _) => 3,
            (true, true) => 0,
            (true, false) => 1,
        };
        assert_eq!(output.status.code(), Some(code), "{document:#}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("--check"), code != 0);
    }
}

#[test]
fn overhead_is_counted_on_both_sides() {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: there is no valgrind");
        return;
    }
    let document = figures(&mut bench("overhead --quick --size 8"));
    let bytes = document["hot_function_bytes"].as_object().unwrap();
    assert!(bytes.len() > 5, "{bytes:?}");
    assert!(bytes.values().all(|bytes| bytes.as_u64().is_some_and(|bytes| bytes > 0)), "{bytes:?}");
    let results = document["results"].as_array().unwrap();
    let case = |record: &Value| (record["path"].clone(), record["batch"].clone());
    let cases: Vec<(Value, Value)> = results.iter().map(case).collect();
    let expected = [("echo", 1), ("echo", 2), ("echo", 8), ("stream", 16)];
    assert_eq!(cases, expected.map(|(path, batch)| (path.into(), batch.into())));
    for record in results {
        assert_eq!((&record["test"], &record["lost"]), (&"overhead".into(), &0.into()));
        for side in ["here", "there"] {
            positive(record, &format!("/instructions/{side}/bare"));
            let [worker, bare, added] = ["worker", "bare", "added"]
                .map(|name| record["instructions"][side][name].as_f64().unwrap());
            assert!((worker - bare - added).abs() < 0.2, "{record:#}");
        }
        assert_eq!(record["instructions_per_message"], record["instructions"]["there"]["added"]);
        assert!(record.get("half_rtt_ns").is_none() && record.get("messages_per_second").is_none());
    }
}

#[test]
fn overhead_that_cannot_be_counted_is_refused() {
    refuses(bench("overhead").env("PATH", "/nowhere"), 1, &["valgrind", "apt-get install"]);
    refuses(&mut bench("overhead --size 8,221"), 1, &["--size 221", "1 to 220 bytes"]);
    refuses(&mut bench("overhead --device rxe0"), 1, &["soft0 alone"]);
    refuses(&mut bench("overhead --check --save x"), 2, &["cannot be used with"]);
    refuses(&mut bench("overhead --check --quick"), 2, &["cannot be used with"]);
}

#[test]
fn two_hosts_are_two_calls_of_the_program() {
    if two_cores() {
        let cores = cores();
        let listen = format!("rate --device soft0 --listen 127.0.0.1:0 --cores {}", cores[0]);
        let mut server = bench(&listen).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let addr = first.split_whitespace().find(|word| word.contains("127.0.0.1:")).unwrap();
        let connect = format!("--connect {addr} --cores {} --duration 0.1", cores[1]);
        let document = figures(&mut bench(&format!("rate --size 64,128 {connect}")));
        assert_eq!(document["results"][1]["lost"], 0);
        positive(&document, "/results/1/messages_per_second");
        let placement = &document["results"][1]["placement"];
        assert_eq!(placement["sides"], "hosts");
        assert!(placement.get("floor_ns").is_none(), "{placement}");
        // It serves one caller and ends with it.
        assert!(server.wait().unwrap().success());
    }
}

#[test]
fn figures_go_to_a_file_and_the_table_to_standard_output() {
    if two_cores() {
        let file = scratch("figures.json");
        let line =
            format!("latency --device soft0 --duration 0.05 --size 8 --json {}", file.display());
        let output = bench(&line).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let table = String::from_utf8(output.stdout.clone()).unwrap();
        for word in ["latency on soft0", "p99.9", "p50/floor", "kernel", "commit"] {
            assert!(table.contains(word), "{word} is not in {table}");
        }
        assert!(output.stderr.is_empty(), "{}", stderr(&output));
        check_latency(&serde_json::from_slice(&fs::read(&file).unwrap()).unwrap(), &[8]);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_report_is_a_page_and_a_record() {
    if two_cores() {
        let folder = scratch("report");
        let past = scratch("past");
        fs::create_dir(&past).unwrap();
        let line = format!("report --out {0} --past {0}", past.display());
        refuses(&mut bench(&line), 1, &["no .json file", "--json wrote"]);
        let run = figures(&mut bench("latency --duration 0.02 --size 8,64"));
        fs::write(past.join("1.json"), run.to_string()).unwrap();
        let line = format!("report --device soft0 --duration 0.02 --out {}", folder.display());
        let line = format!("{line} --past {}", past.display());
        let output = bench(&line).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let page = fs::read_to_string(folder.join("report.html")).unwrap();
        for word in ["<svg", "Timeline", "NEAR", "Commit", "doorbell-bench rate --size 8,64,200"] {
            assert!(page.contains(word), "{word} is not in the page");
        }
        // Nothing from elsewhere.
        for word in ["http", "src=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(word), "{word} is in the page");
        }
        // A drawing for a wide page and one for a phone, of each chart.
        assert_eq!(page.matches("<svg ").count(), 10);
        let record: Value =
            serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap();
        assert_eq!(record["results"].as_array().unwrap().len(), 18);
        [folder, past].iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
    }
}

#[test]
fn small_pages_and_a_small_memlock_are_notes_with_their_cure() {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    if two_cores() {
        let mut command = bench("latency --device soft0 --duration 0.02 --size 8 -v --json -");
        // SAFETY: setrlimit and prctl are async-signal-safe and touch no memory but the limit on
        // this stack. Without the capability the limit counts for root, too.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
                libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let pages = document["machine"]["pages"].as_str().unwrap().to_owned();
        if pages != "2 MiB" {
            let text = stderr(&output);
            assert!(text.lines().all(|line| line.starts_with("doorbell-bench: note: ")), "{text}");
            assert!(text.contains("ulimit -l") && text.contains("nr_hugepages"), "{text}");
        }
    }
}

#[test]
fn output_that_nobody_reads_is_no_panic() {
    if two_cores() {
        let mut command = bench("latency --device soft0 --duration 0.02 --size 8");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("standard output"), "{}", stderr(&output));
    }
}

#[test]
fn the_serving_process_dies_with_the_one_that_started_it() {
    if two_cores() {
        let mut parent = bench("latency --device soft0 --duration 600 --size 8").spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", parent.id());
        let child = wait_for(|| {
            let text = fs::read_to_string(&children).unwrap_or_default();
            text.split_whitespace().next().map(str::to_owned)
        });
        let folder = format!("/proc/{child}");
        // Wait until the child runs the program; it begins as a copy of its parent.
        wait_for(|| {
            let line = fs::read(Path::new(&folder).join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("serve").then_some(())
        });
        thread::sleep(Duration::from_millis(50));
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_for(|| is_over(&folder).then_some(()));
    }
}

/// Gone, or dead and not yet collected by its new parent.
fn is_over(folder: &str) -> bool {
    let stat = fs::read_to_string(Path::new(folder).join("stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not happen in time");
}
