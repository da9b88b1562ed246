//! perftest: messages, WRITE, READ, atomics; latency and rate; and its main options.

use std::fs;
use std::path::Path;

use crate::pairs::{HERE, Meets, Sides, free_port, meet};
use crate::side::has;

/// The rows of perftest's table: a size, a number of messages, and figures.
fn rows(text: &str) -> usize {
    let is_row = |line: &&str| {
        let mut words = line.split_whitespace();
        (0..2).all(|_| words.next().is_some_and(|word| word.parse::<u64>().is_ok()))
            && words.next().is_some_and(|word| word.parse::<f64>().is_ok())
    };
    text.lines().filter(is_row).count()
}

/// Runs the program on both sides with these options.
fn measure(program: &str, options: &[&str], meets: Meets) -> Option<String> {
    let base = [program, "-d", "soft0", "-x", "0", "-F"];
    let text = Sides::same(&[&base[..], options].concat(), meets).run_client()?;
    assert_eq!(rows(&text), 1, "{program} {options:?}: {text}");
    Some(text)
}

/// A program, and options that it has. `-D` ends it by time, not by the number of messages.
type Line = (&'static str, &'static [&'static [&'static str]]);

const R: &[&str] = &["-R"];
const EVENTS: &[&str] = &["-e"];
const QPS: &[&str] = &["-q", "2"];
const SRQ: &[&str] = &["--use-srq"];
const INLINE: &[&str] = &["-I", "64"];
const MODERATION: &[&str] = &["-Q", "8"];
const BOTH_WAYS: &[&str] = &["-b"];
const DURATION: &[&str] = &["-D", "1"];

const PROGRAMS: &[Line] = &[
    ("ib_send_bw", &[R, EVENTS, QPS, SRQ, INLINE, MODERATION, BOTH_WAYS, DURATION]),
    ("ib_write_bw", &[R, QPS, INLINE, MODERATION, BOTH_WAYS, DURATION]),
    ("ib_read_bw", &[R, EVENTS, QPS, MODERATION, BOTH_WAYS, DURATION]),
    ("ib_atomic_bw", &[R, EVENTS, QPS, MODERATION, BOTH_WAYS, DURATION]),
    ("ib_send_lat", &[R, EVENTS, INLINE, DURATION]),
    ("ib_write_lat", &[R, INLINE, DURATION]),
    ("ib_read_lat", &[R, EVENTS, DURATION]),
    ("ib_atomic_lat", &[R, EVENTS, DURATION]),
];

/// In which of the runs 1 to 5 each option is on; in the run before them none is. Any two options
/// are on together in one run, and each is on without the other in another.
const ON: [[usize; 3]; 8] =
    [[1, 2, 3], [1, 2, 4], [1, 2, 5], [1, 3, 4], [1, 3, 5], [1, 4, 5], [2, 3, 4], [2, 3, 5]];

/// The runs of a program: every two of its options together, and each without the other. With
/// `DOORBELL_PERFTEST=all`, all combinations.
fn runs(options: &[&'static [&'static str]]) -> Vec<Vec<&'static str>> {
    let chosen: Vec<Vec<bool>> = match std::env::var("DOORBELL_PERFTEST").as_deref() {
        Ok("all") => (0..1 << options.len())
            .map(|set: u32| (0..options.len()).map(|n| set >> n & 1 != 0).collect())
            .collect(),
        _ => (0..6).map(|run| ON.iter().map(|on| on.contains(&run)).collect()).collect(),
    };
    let made = |chosen: Vec<bool>| {
        let mut on: Vec<&[&str]> =
            options.iter().zip(chosen).filter(|(_, on)| *on).map(|(option, _)| *option).collect();
        if on.contains(&DURATION) {
            // perftest refuses both together.
            on.retain(|option| *option != EVENTS);
        } else {
            // With `-e` it takes 16 completions for each event, and waits for ever if more came.
            on.push(&["-n", "32"]);
        }
        on.concat()
    };
    chosen.into_iter().map(made).collect()
}

#[test]
fn every_two_options_of_perftest_work_together() {
    let mut done = 0;
    for (program, options) in PROGRAMS {
        for run in runs(options) {
            let meets = if run.contains(&"-R") { Meets::Soft } else { Meets::Tcp };
            done += usize::from(measure(program, &run, meets).is_some());
        }
    }
    println!("{done} runs");
}

#[test]
fn perftest_runs_over_other_transports() {
    let runs: &[(&str, &[&str])] = &[
        ("ib_send_lat", &["-c", "UC"]),
        ("ib_send_lat", &["-c", "UD"]),
        ("ib_send_bw", &["-s", "2048", "-c", "UD"]),
        ("ib_write_bw", &["-s", "4096", "-c", "UC"]),
        ("ib_send_lat", &["-c", "XRC"]),
        ("ib_write_bw", &["-s", "4096", "-c", "XRC"]),
        ("ib_read_lat", &["-c", "XRC"]),
        ("ib_send_bw", &["-c", "XRC"]),
        ("ib_write_lat", &["-c", "XRC"]),
        ("ib_atomic_lat", &["-c", "XRC"]),
    ];
    for (program, more) in runs {
        measure(program, &[*more, &["-n", "200"]].concat(), Meets::Tcp);
    }
}

/// Raw frames between two addresses, which are this run's own.
#[test]
fn perftest_runs_over_raw_frames() {
    let [high, low] = free_port().to_be_bytes();
    let mac = |end: u8| format!("02:00:00:{high:02x}:{low:02x}:{end:02x}");
    let (server, client) = (mac(1), mac(2));
    let base = ["raw_ethernet_lat", "-d", "soft0", "-F", "-n", "200"];
    let first = [&base[..], &["--server", "-B", &server, "-E", &client]].concat();
    let second = [&base[..], &["--client", "-B", &client, "-E", &server]].concat();
    for text in meet(&first, &second, &server.replace(':', "")).into_iter().flatten() {
        assert_eq!(rows(&text), 1, "{text}");
    }
}

/// The library that `speed.sh` measures beside the drop-in carries each message of a ping-pong: the
/// flag of its lane counts them, both ways.
#[test]
fn the_least_library_carries_each_message() {
    if !has("ib_send_lat") {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name("../examples/libfloor.so");
    assert!(library.is_file(), "cargo build -p doorbell-dropin --example floor makes it");
    let memory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("floor");
    let _ = fs::remove_file(&memory);
    let set =
        format!("FLOOR='{}' LD_PRELOAD='{}':$LD_PRELOAD", memory.display(), library.display());
    let server = format!("{set} exec ib_send_lat -d soft0 -x 0 -F -n 1000 -p PORT");
    let client = format!("{server} {HERE}");
    let sides = Sides::new(&["sh", "-c", &server], &["sh", "-c", &client], Meets::Tcp);
    let text = sides.run_client().unwrap();
    assert_eq!(rows(&text), 1, "{text}");
    let lane = fs::read(&memory).unwrap();
    assert_eq!(u64::from_ne_bytes(lane[..8].try_into().unwrap()), 2000);
}
