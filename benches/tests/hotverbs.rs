//! The promise of `hotpath` for requests that workers do not send by themselves: in steady state
//! datagrams, WRITEs, READs and atomics on `soft0` make no system call and no allocation, whether
//! the memory is mapped here or its owner's polls carry them out.
//!
//! One thread drives both ends, so nothing that either does goes unseen. As in `hotpath`, the
//! thread warms up, is sealed, and its allocations are counted, in a child process that runs this
//! program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "the counting allocator, sealing a thread, posts")]

#[path = "../src/machine/allocations.rs"]
mod count;
#[path = "hotverbs/pair.rs"]
mod pair;
#[path = "hotpath/seal.rs"]
mod seal;
#[path = "hotverbs/work.rs"]
mod work;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use work::{BATCH, DONE, Kind, ROUNDS, Task};

/// The environment variable with the task.
const VARIABLE: &str = "DOORBELL_HOTVERBS";

/// Stands before the answer.
const MARK: &str = "hotverbs: ";

/// How long a child may take.
const LIMIT: Duration = Duration::from_secs(300);

/// What is planted once while the thread is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Nothing,
    Call,
    Allocation,
}

/// Not a test by itself: the child processes of the others run this.
#[test]
fn child_process() {
    let Ok(text) = std::env::var(VARIABLE) else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let words: Vec<&str> = text.split(' ').collect();
    let kind = Kind::ALL.into_iter().find(|kind| format!("{kind:?}") == words[0]).unwrap();
    let plants = [Plant::Nothing, Plant::Call, Plant::Allocation];
    let plant = plants.into_iter().find(|plant| format!("{plant:?}") == words[2]).unwrap();
    let task = Task { kind, mapped: words[1] == "true", plant };
    let worker = thread::spawn(move || work::run(task));
    let start = Instant::now();
    let left = loop {
        if let Some(left) = DONE.read() {
            break left;
        }
        // A thread that ended by the bare system call never looks finished.
        assert!(!worker.is_finished(), "{task:?} broke off");
        assert!(start.elapsed() < LIMIT, "{task:?} is stuck");
        thread::sleep(Duration::from_millis(2));
    };
    println!("\n{MARK}{} {} {}", left[0], left[1], left[2]);
    std::io::stdout().flush().unwrap();
    // What the thread owns is never dropped.
    std::process::exit(0);
}

/// Requests done, wrong results and allocations; or how the child ended.
fn figures(kind: Kind, mapped: bool, plant: Plant) -> Result<[u64; 3], ExitStatus> {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, format!("{kind:?} {mapped} {plant:?}"))
        .output()
        .unwrap();
    if !done.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&done.stderr));
        return Err(done.status);
    }
    let text = String::from_utf8(done.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(MARK)).unwrap();
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    Ok([numbers[0], numbers[1], numbers[2]])
}

fn check(kind: Kind, mapped: bool) {
    let [done, wrong, allocations] = figures(kind, mapped, Plant::Nothing).unwrap();
    assert_eq!((done, wrong, allocations), (ROUNDS * BATCH, 0, 0), "{kind:?}, mapped: {mapped}");
}

#[test]
fn datagrams_call_and_allocate_nothing() {
    check(Kind::Datagram, false);
}

#[test]
fn writes_call_and_allocate_nothing() {
    for mapped in [false, true] {
        check(Kind::Write, mapped);
        check(Kind::WriteImm, mapped);
    }
}

#[test]
fn reads_call_and_allocate_nothing() {
    for mapped in [false, true] {
        check(Kind::Read, mapped);
    }
}

#[test]
fn atomics_call_and_allocate_nothing() {
    for mapped in [false, true] {
        check(Kind::Add, mapped);
        check(Kind::Swap, mapped);
    }
}

#[test]
fn a_planted_call_or_allocation_is_found() {
    for kind in [Kind::Datagram, Kind::Read] {
        let ended = figures(kind, false, Plant::Call).unwrap_err();
        assert_eq!(ended.signal(), Some(libc::SIGSYS), "{kind:?}: {ended}");
        let [_, wrong, allocations] = figures(kind, false, Plant::Allocation).unwrap();
        assert_eq!((wrong, allocations), (0, 1), "{kind:?}");
    }
}
