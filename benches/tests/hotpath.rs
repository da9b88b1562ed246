//! The promise of the data plane, shown by the machine: in steady state a worker on `soft0` makes
//! no system call and no allocation, between threads and between processes, for echoes and for a
//! stream in batches, also of messages in several fragments.
//!
//! * **System calls.** Both workers are warmed up, then their threads are sealed: a filter
//!   (`man 2 seccomp`) has the kernel kill the process at any system call but the thread's own
//!   exit. The strict mode would let `read` and `write` pass; this lets nothing pass. A sealed
//!   thread can leave word in memory only, so it lives in a child process: this program again,
//!   with its task in an environment variable.
//! * **Allocations.** The benchmarks' counting allocator counts them for each thread.
//!
//! Both checks also run with a system call or an allocation planted in a handler, and must find it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "the counting allocator, and sealing a thread")]

#[path = "hotpath/child.rs"]
mod child;
#[path = "../src/machine/allocations.rs"]
mod count;
#[path = "hotpath/forgotten.rs"]
mod forgotten;
#[path = "hotpath/seal.rs"]
mod seal;
#[path = "hotpath/task.rs"]
mod task;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use doorbell_tune as tune;

use task::{MARK, Path, Plant, Role, SIZES, STREAM_BATCH, Side, Task, VARIABLE};

/// Lets one test run at a time, since each has two spinning threads. On a single core every message
/// would wait for the scheduler twice, and the tests would take hours; so they need two cores.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let cores = tune::cores().len();
    assert!(cores >= 2, "this needs two cores, one for each side's thread, but there is {cores}");
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test by itself: the child processes of the others run this. Without a task it does
/// nothing.
#[test]
fn child_process() {
    match Task::from_environment() {
        Some(task) => child::run(task),
        None => println!("skipped: other tests run this one, in a process of its own"),
    }
}

/// Starts this program with a task.
fn start(task: Task) -> Running {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, task.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    Running { child, out }
}

/// A child at work.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

/// The next line from the task; empty at the end.
fn line(out: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        if out.read_line(&mut line).unwrap() == 0 {
            return line;
        }
        // The test harness may print on the same line before it.
        if let Some((_, words)) = line.split_once(MARK) {
            return words.trim().to_owned();
        }
    }
}

impl Running {
    /// Lets the child end, and waits until it has.
    fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        self.out.read_to_end(&mut rest).unwrap();
        self.child.wait().unwrap()
    }
}

/// The figures of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    messages: u64,
    wrong: u64,
    doorbells: u64,
    allocations: u64,
    /// Words of credit sent.
    returns: u64,
    /// Turns that found nothing.
    idle_turns: u64,
}

fn figures(line: &str, side: Side) -> Figures {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], side.to_string(), "{line:?}");
    let number = |n: usize| words[n].parse().unwrap();
    Figures {
        messages: number(1),
        wrong: number(2),
        doorbells: number(3),
        allocations: number(4),
        returns: number(5),
        idle_turns: number(6),
    }
}

/// Both sides in one process: their figures, or how it was ended.
fn threads(task: Task) -> Result<[Figures; 2], ExitStatus> {
    let mut both = start(task);
    let (server, caller) = (line(&mut both.out), line(&mut both.out));
    let ended = both.end();
    if !ended.success() {
        return Err(ended);
    }
    Ok([figures(&server, Side::Server), figures(&caller, Side::Caller)])
}

/// Each side in a process of its own: their figures, or how they were ended.
fn processes(task: Task) -> Result<[Figures; 2], [ExitStatus; 2]> {
    let mut server = start(task.of(Role::Server));
    let addr = line(&mut server.out).parse().unwrap();
    let mut caller = start(task.of(Role::Caller(addr)));
    // A killed side prints nothing, and the other would wait for it.
    let (served, called) = thread::scope(|scope| {
        let (server_out, caller_child) = (&mut server.out, &mut caller.child);
        let served = scope.spawn(move || {
            let served = line(server_out);
            if served.is_empty() {
                caller_child.kill().unwrap();
            }
            served
        });
        let called = line(&mut caller.out);
        if called.is_empty() {
            server.child.kill().unwrap();
        }
        (served.join().unwrap(), called)
    });
    let ended = [caller.end(), server.end()];
    if !ended.iter().all(ExitStatus::success) {
        return Err(ended);
    }
    Ok([figures(&served, Side::Server), figures(&called, Side::Caller)])
}

/// A worker sends a word of credit for this many messages at the least, and one after this many
/// idle turns in a row.
const WORD_MESSAGES: u64 = 8;
const PAUSE_TURNS: u64 = 1 << 14;

/// Doorbells that a side may ring beside one for each batch. If a batch of a stream finds the ring
/// full, the worker sends the rest from blocks, by another doorbell. A batch of messages of 1 KiB
/// is longer than the ring, and either half of it may find the ring full. Shorter messages do not
/// fill the ring before their credit ends.
fn rung_again(task: &Task, side: &str) -> u64 {
    match (task.path, side) {
        (Path::Stream, "caller") => 2 * task.counts()[1] / STREAM_BATCH,
        _ => 0,
    }
}

/// Every message arrived and was right, each doorbell is accounted for, and nothing was allocated.
/// There was no system call either, or the process would have died before it printed this.
fn check(task: &Task, [server, caller]: [Figures; 2]) {
    let messages = task.sealed_messages();
    assert!(messages > 2 * u64::from(child::CONFIG.recv_blocks), "receives go round");
    let batches = messages / STREAM_BATCH;
    // The caller's last one says that all replies have come.
    let (served, called) = match task.path {
        Path::Echo | Path::Long => (messages, messages + 1),
        // Each second batch is sent one by one, and rings for its first half already.
        Path::Stream => (1, batches + batches / 2 + 1),
        Path::LongStream => (1, batches + 1),
    };
    // Credits went both ways, or one.
    let few = messages / u64::from(child::CONFIG.recv_blocks);
    assert!(server.returns > few && (!task.path.echoes() || caller.returns > few), "{task}");
    for (side, figures, rung) in [("server", server, served), ("caller", caller, called)] {
        // A word of credit goes with other requests or rings a doorbell of its own.
        let Figures { doorbells, returns, idle_turns, .. } = figures;
        let most = rung + returns + rung_again(task, side);
        assert!((rung..=most).contains(&doorbells), "{task}, {side}: {figures:?}");
        // A word for many messages, and one in each pause of the other side.
        let most = messages / WORD_MESSAGES + idle_turns / PAUSE_TURNS + 1;
        assert!(returns <= most, "{task}, {side}: {figures:?}, and at most {most} words");
        let clean = Figures { messages, wrong: 0, doorbells, allocations: 0, returns, idle_turns };
        assert_eq!(figures, clean, "the {side} of {task}");
    }
}

#[test]
fn echoes_between_threads_call_and_allocate_nothing() {
    let (_alone, task) = (alone(), Task::new(Path::Echo));
    check(&task, threads(task).unwrap());
}

#[test]
fn a_stream_between_threads_calls_and_allocates_nothing() {
    let (_alone, task) = (alone(), Task::new(Path::Stream));
    check(&task, threads(task).unwrap());
}

#[test]
fn echoes_between_processes_call_and_allocate_nothing() {
    let (_alone, task) = (alone(), Task::new(Path::Echo));
    check(&task, processes(task).unwrap());
}

#[test]
fn a_stream_between_processes_calls_and_allocates_nothing() {
    let (_alone, task) = (alone(), Task::new(Path::Stream));
    check(&task, processes(task).unwrap());
}

/// Echoes and a stream.
#[test]
fn messages_of_several_fragments_call_and_allocate_nothing() {
    let _alone = alone();
    for path in [Path::Long, Path::LongStream] {
        let task = Task::new(path);
        check(&task, threads(task).unwrap());
        check(&task, processes(task).unwrap());
    }
}

#[test]
fn a_planted_system_call_is_found_on_either_side() {
    let _alone = alone();
    for path in Path::ALL {
        for plant in [Plant::Yield, Plant::Write] {
            for (n, side) in [Side::Caller, Side::Server].into_iter().enumerate() {
                let task = Task::planted(path, plant, side);
                let ended = threads(task).unwrap_err();
                assert_eq!(ended.signal(), Some(libc::SIGSYS), "{task}: {ended}");
                let ended = processes(task).unwrap_err();
                // Of the other side nothing is asserted: it is killed, or it has seen the end of
                // its peer and frees the connection, which is a call too.
                assert_eq!(ended[n].signal(), Some(libc::SIGSYS), "{task}: {ended:?}");
            }
        }
    }
}

#[test]
fn a_planted_allocation_is_counted_on_either_side() {
    let _alone = alone();
    for path in Path::ALL {
        for side in [Side::Server, Side::Caller] {
            let task = Task::planted(path, Plant::Allocation, side);
            let [server, caller] = threads(task).unwrap();
            let found = (server.allocations, caller.allocations);
            let planted = if side == Side::Server { (1, 0) } else { (0, 1) };
            assert_eq!(found, planted, "{task}");
            assert_eq!((server.wrong, caller.wrong), (0, 0), "{task}");
        }
    }
}

#[test]
fn each_size_takes_another_path() {
    // In the slot, in the lines after it, the longest inline, and in a block.
    let inline = child::CONFIG.inline_bytes as usize;
    assert!(SIZES[..3].iter().all(|size| *size <= inline) && SIZES[3] > inline);
}
