//! What the program refuses, and what it says then.

use std::fs;
use std::process::Command;

use doorbell_tune::{CoreList, cores};

use crate::{bench, refuses, scratch, stderr, two_cores};

#[test]
fn an_unknown_device_is_refused_with_those_there_are() {
    refuses(&mut bench("latency --device mlx5_77"), 1, &["'mlx5_77'", "there is: soft0"]);
    refuses(bench("rate").env("DOORBELL_DEVICE", "nic7"), 1, &["'nic7'", "there is: soft0"]);
}

/// A slip of the fingers is answered with what was meant, or with what the value may be.
#[test]
fn a_wrong_word_is_answered_with_the_right_one() {
    for (line, part) in [
        ("lattency", "'latency'"),
        ("latency --devise soft0", "'--device'"),
        ("latency --cores a", "'a' for '--cores <A,B>': the number of a core, such as 1"),
        ("latency --size 5g", "'5g' for '--size <BYTES>': bytes below 4G, such as 64, 4K or 1M"),
        ("latency --size 64..8", "a range from a low to a high value"),
        ("load --rate 1k --slo p98=1us", "p99.9=5us; p50, p90, p99, p99.9, p99.99, max"),
        ("load --arrivals /none-such", "fixed, poisson or a file of times"),
        ("overhead --size x", "bytes below 4G"),
    ] {
        let output = bench(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        let text = stderr(&output);
        assert!(text.contains(part), "{line}: {text}");
    }
    // A size with a unit is a size: the refusal is that of the test, not of the command line.
    refuses(&mut bench("latency --size 2g"), 1, &["2147483648"]);
}

/// A core that is not there would stop the first command that measures time.
#[test]
fn a_program_that_the_page_needs_is_missed_before_anything_is_timed() {
    let folder = scratch("missing");
    fs::create_dir_all(&folder).unwrap();
    let line = format!("results --cores 4094,4095 --out {}/page.md", folder.display());
    let mut results = bench(&line);
    results.env("PATH", &folder);
    refuses(&mut results, 1, &["start valgrind", "apt-get install valgrind"]);
    std::os::unix::fs::symlink("/bin/true", folder.join("valgrind")).unwrap();
    refuses(&mut results, 1, &["start nm", "apt-get install binutils"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_address_of_another_host_is_refused_with_one_that_does() {
    for line in ["latency --addr 192.0.2.1", "rate --listen 192.0.2.1"] {
        refuses(bench(line).arg("--device=soft0"), 1, &["192.0.2.1", "use 127.0.0.1"]);
    }
}

#[test]
fn a_port_in_use_is_refused() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let parts = ["in use", "choose another port"];
    refuses(&mut bench(&format!("latency --device soft0 --listen {addr}")), 1, &parts);
}

#[test]
fn an_error_without_a_listener_says_how_to_start_one() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let parts = [&port.to_string(), "refused", "--listen first"];
    refuses(&mut bench(&format!("rate --connect {port}")), 1, &parts);
}

#[test]
fn a_size_out_of_range_is_refused_with_the_range() {
    if two_cores() {
        for size in ["0", "16777217"] {
            let line = format!("latency --device soft0 --size 8,{size}");
            refuses(&mut bench(&line), 1, &[&format!("--size {size}:"), "1 to 16777216 bytes"]);
        }
    }
}

#[test]
fn cores_that_do_not_do_are_refused_with_those_that_would() {
    let allowed = cores();
    let list = CoreList(&allowed).to_string();
    let first = allowed[0];
    let missing = format!("latency --cores {first},9999");
    refuses(&mut bench(&missing), 1, &["core 9999", &format!("choose from {list}")]);
    for line in [format!("latency --cores {first}"), format!("latency --cores {first},{first}")] {
        refuses(&mut bench(&line), 1, &["2 are needed", &format!("choose from {list}")]);
    }
    let workers = format!("rate --workers {}", allowed.len());
    refuses(&mut bench(&workers), 1, &["cores are needed", &list, "taskset"]);
}

#[test]
fn one_core_is_not_enough_not_even_for_threads() {
    let core = cores()[0];
    for line in ["latency", "latency --threads"] {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), env!("CARGO_BIN_EXE_doorbell-bench")]);
        command.args(line.split_whitespace());
        refuses(&mut command, 1, &["2 cores are needed", &format!("({core})"), "taskset"]);
    }
}

#[test]
fn a_place_for_the_figures_that_cannot_be_written_is_refused_before_measuring() {
    // It would measure for an hour, so the refusal came before.
    let path = scratch("nowhere").join("figures.json");
    let line = format!("latency --duration 3600 --json {}", path.display());
    refuses(&mut bench(&line), 1, &["figures.json", "folder that exists"]);
    let line = format!("results --out {}", path.display());
    refuses(&mut bench(&line), 1, &["figures.json", "folder that exists"]);
    let line = format!("results --out /dev/null --compare {}", path.display());
    refuses(&mut bench(&line), 1, &["figures.json", "cargo xtask compare"]);
    let file = scratch("file");
    fs::write(&file, "").unwrap();
    let line = format!("report --duration 3600 --out {}", file.join("in").display());
    refuses(&mut bench(&line), 1, &["make the folder", "--out"]);
    fs::remove_file(&file).unwrap();
    let line = "latency --duration 3600 --csv /none-such/x";
    refuses(&mut bench(line), 1, &["/none-such/x", "a folder that exists"]);
}

#[test]
fn a_command_line_that_says_nothing_is_refused() {
    for (line, part) in [
        ("", "latency, rate, load, sweep, crowd, traffic, bandwidth or overhead"),
        ("load --rate 0", "1 to 100000000"),
        ("load --rate NaN", "messages a second"),
        ("sweep --depth 0", "1..=512"),
        ("sweep --depth 513", "1..=512"),
        ("latency --size x", "--size"),
        ("latency --size 8,,9", "--size"),
        ("latency --cores a", "--cores"),
        ("latency --duration 0", "seconds"),
        ("rate --batch 65", "1..=64"),
        ("rate --signal-every 0", "--signal-every"),
        ("rate --idle-qps 16001", "0..=16000"),
        ("latency --idle-qps x", "--idle-qps"),
        ("latency --bare --idle-qps 3", "cannot be used with"),
        ("crowd --depth 0", "1..=512"),
        ("crowd --idle-qps 16001", "0..=16000"),
        ("bandwidth --op fetch", "write, read, send"),
        ("bandwidth --batch 0", "1..=128"),
        ("latency --listen nonsense:x", "--listen"),
        ("latency --threads --connect 127.0.0.1", "cannot be used with"),
        ("sideways", "sideways"),
    ] {
        refuses(&mut bench(line), 2, &[part, "--help"]);
    }
}
