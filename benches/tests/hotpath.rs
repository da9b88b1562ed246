//! What the data plane promises, shown by the machine: in steady state a worker on `soft0` makes
//! no system call and no allocation, between threads and between processes, for echoes and for a
//! stream in batches.
//!
//! * **System calls.** Both workers are warmed up, then their threads are sealed: a filter
//!   (`man 2 seccomp`) lets the kernel kill the process at any system call but the thread's own
//!   exit. Strict mode would let `read` and `write` pass; this lets nothing pass. Since a sealed
//!   thread can tell nothing but through memory, it happens in child processes: this program
//!   again, with the task in an environment variable.
//! * **Allocations.** The benchmarks' counting allocator counts them for each thread.
//!
//! A check that cannot fail shows nothing, so both are also run with a call or an allocation
//! planted in a handler, and have to find it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "prctl, and the exit system call of one thread")]

#[path = "../src/count.rs"]
mod count;

use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::{Ask, MapRequest};
use doorbell_cm::soft::SoftDevice;
use doorbell_cm::{Dialer, Listener};
use doorbell_engine::worker::{
    Config, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell_tune as tune;

/// Bytes of the messages: in the doorbell line, in one line more, the longest that go inline, and
/// ones that lie in a block.
const SIZES: [usize; 4] = [8, 64, 200, 1024];

/// Messages to a doorbell in a stream.
const BATCH: u64 = 16;

/// Messages of each size before the threads are sealed: several times round every queue.
const WARM: u64 = 160 * BATCH;

/// Few receives, so that they are refilled all the time.
const CONFIG: Config = Config {
    peers: 1,
    block_bytes: 1024,
    recv_blocks: 128,
    refill: 16,
    inline_bytes: 220,
    ..Config::DEFAULT
};

/// The child's task, and how long it may take before it is called stuck.
const VARIABLE: &str = "DOORBELL_HOTPATH";
const LIMIT: Duration = Duration::from_secs(300);

/// Which way the messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Each comes back in its block; one in flight.
    Echo,
    /// One way, in batches; the last one comes back.
    Stream,
}

/// What is planted in a handler, to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Nothing,
    Yield,
    Write,
    Allocation,
}

/// What a child is to do, as words in the environment.
#[derive(Clone, Copy, Debug)]
struct Task {
    path: Path,
    /// Messages of each size while sealed.
    count: u64,
    plant: Plant,
    /// The side it is planted in.
    at: &'static str,
}

impl Task {
    fn new(path: Path) -> Task {
        // On one core every message costs a turn of the scheduler.
        let count = if tune::cores().len() < 2 { 20 * BATCH } else { 50_000 };
        Task { path, count, plant: Plant::Nothing, at: "caller" }
    }

    fn planted(path: Path, plant: Plant, at: &'static str) -> Task {
        Task { path, count: 20 * BATCH, plant, at }
    }

    fn words(&self) -> String {
        format!("{:?} {} {:?} {}", self.path, self.count, self.plant, self.at)
    }

    fn read(words: &[&str]) -> Task {
        let path = if words[0] == "Echo" { Path::Echo } else { Path::Stream };
        let all = [Plant::Nothing, Plant::Yield, Plant::Write, Plant::Allocation];
        let plant = all.into_iter().find(|plant| format!("{plant:?}") == words[2]).unwrap();
        let at = if words[3] == "server" { "server" } else { "caller" };
        Task { path, count: words[1].parse().unwrap(), plant, at }
    }

    fn warm(&self) -> u64 {
        WARM * SIZES.len() as u64
    }

    fn all(&self) -> u64 {
        self.warm() + self.measured()
    }

    fn measured(&self) -> u64 {
        self.count * SIZES.len() as u64
    }
}

/// What a sealed thread leaves behind.
#[derive(Default)]
struct Left {
    done: AtomicBool,
    messages: AtomicU64,
    wrong: AtomicU64,
    doorbells: AtomicU64,
    allocations: AtomicU64,
}

static SERVER: Left = Left::new();
static CALLER: Left = Left::new();

impl Left {
    const fn new() -> Left {
        let zero = || AtomicU64::new(0);
        let _ = zero;
        Left {
            done: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            doorbells: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
        }
    }
}
