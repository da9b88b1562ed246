//! A server process, clients whose histories are checked, and clients that are killed meanwhile.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod common;
#[path = "../../tests/process/mod.rs"]
mod process;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::prelude::*;
use doorbell::prng::Prng;
use doorbell::{Backoff, clock_ns};
use doorbell_kv::client::{How, Settings};
use doorbell_kv::guest;

use common::actor::{Actor, Book, Habits};
use process::{Running, program};

/// Without an operation in this time something hangs.
const LIMIT: Duration = Duration::from_secs(60);

const SLOT_BYTES: u32 = 320;
const WORKERS: u32 = 2;
const CLIENTS: u32 = 3;

const HABITS: Habits = Habits {
    slot_bytes: SLOT_BYTES,
    keys: 4,
    operations: 3000,
    depth: 4,
    mortal: 200,
    filler: 100,
    by_send: 200,
    start: 1024,
    ttl_max: 2_000_000,
    clock: clock_ns,
};

fn kv() -> std::process::Command {
    program(env!("CARGO_BIN_EXE_kv"))
}

/// Starts a server, and returns the words that name its port.
fn server(more: &[&str]) -> (Running, [String; 2]) {
    let slot = SLOT_BYTES.to_string();
    let words = ["serve", "--port", "0", "--slot-bytes", &slot];
    let mut server = Running::start(kv().args(words).args(more));
    let port = server.port();
    (server, port)
}

/// Operations that have been begun or ended.
fn ticks(book: &Mutex<Book>) -> (u64, u64) {
    let book = book.lock().unwrap_or_else(PoisonError::into_inner);
    (book.history.len() as u64, book.values)
}

/// Kills one client after the other in the middle of its work, until all operations have ended.
/// Returns their number.
fn kill_clients(book: &Mutex<Book>, port: &[String; 2], open: impl Fn() -> bool) -> u32 {
    let (mut kills, mut prng) = (0, Prng::new(clock_ns()));
    let (mut last, mut seen) = (ticks(book), Instant::now());
    while open() || kills < 3 {
        let slot = SLOT_BYTES.to_string();
        let words = ["bench", "--remote", "--workload", "a", "--records", "64", "--depth", "2"];
        let mut command = kv();
        command.args(words).args(["--slot-bytes", &slot, "--value-bytes", "200"]).args(port);
        let client = Running::start(&mut command);
        thread::sleep(Duration::from_millis(prng.range(50, 400)));
        drop(client); // kills it
        kills += 1;
        let now = ticks(book);
        if now != last {
            (last, seen) = (now, Instant::now());
        }
        assert!(seen.elapsed() < LIMIT || !open(), "no operation ends: {now:?}");
    }
    kills
}

#[test]
fn histories_hold_while_clients_are_killed() {
    let (server, port) = server(&["--slots", "16", "--slots-max", "4096"]);
    let at: SocketAddr = format!("127.0.0.1:{}", port[1]).parse().expect("an address");
    let nic = SoftDevice::open().expect("the soft device");
    let settings =
        Settings { depth: 4, slot_max: SLOT_BYTES, how: How::Read, parts: 1, mistake: None };
    let book = Arc::new(Mutex::new(Book::default()));
    let mut runtime = guest::runtime(&nic, (settings, WORKERS), CLIENTS);
    for number in 0..CLIENTS.into() {
        let actor = Actor::new(book.clone(), Prng::new(clock_ns() + number), HABITS, number);
        guest::add(&mut runtime, &nic, (settings, WORKERS), actor).expect("a client");
    }
    guest::keep(&mut runtime, at, WORKERS, Backoff::DEFAULT).expect("connections");
    let stop = runtime.stopper();
    let all = HABITS.operations * u64::from(CLIENTS);
    let kills = thread::scope(|scope| {
        let running = scope.spawn(|| runtime.run());
        let ended = || book.lock().unwrap_or_else(PoisonError::into_inner).ended;
        let kills = kill_clients(&book, &port, || ended() < all && !running.is_finished());
        stop.stop();
        running.join().expect("no panic").expect("the clients run");
        kills
    });
    let counts = runtime.workers().iter().map(|worker| worker.handler().client.counts());
    let counts: Vec<_> = counts.collect();
    println!("{kills} clients were killed; {counts:?}");
    assert!(counts.iter().all(|counts| counts.alone > 0), "no get was by READ alone");
    drop(runtime);
    server.signal("TERM");
    server.ends_with_all(0, &["worker 0: ", "worker 1: "]);
    let book = Arc::into_inner(book).expect("the clients are gone").into_inner();
    let book = book.unwrap_or_else(PoisonError::into_inner);
    assert_eq!(book.failure.or(book.history.check().err()), None);
}

#[test]
fn the_command_line_stores_and_finds() {
    let (server, port) = server(&[]);
    let run = |words: &[&str], code: i32, says: &str| {
        let mut command = kv();
        command.args(words).args(&port).args(["--slot-bytes", "320"]);
        Running::start(&mut command).ends_with(code, says);
    };
    run(&["get", "apple"], 1, "there is no such key");
    run(&["put", "apple", "red"], 0, "done, version");
    run(&["get", "apple"], 0, "red");
    run(&["get", "apple", "--get", "send"], 0, "red");
    run(&["put", "apple", &"x".repeat(600)], 1, "the server refuses: TooLong");
    run(&["delete", "apple"], 0, "done, version");
    run(&["delete", "apple"], 1, "there is no such key");
    run(&["put", "pear", "green", "--ttl-ms", "1"], 0, "done, version");
    run(&["get", "pear"], 1, "there is no such key");
    let bench = ["bench", "--remote", "--records", "100", "--operations", "2000"];
    let bench =
        [&bench[..], &["--rounds", "1", "--value-bytes", "100", "--workload", "b"]].concat();
    run(&bench, 0, "0 gets found nothing, 0 operations failed");
    for option in ["--workers", "--records", "--rounds", "--clients", "--depth", "--operations"] {
        run(&["bench", option, "0"], 2, option);
    }
    run(&["bench", "--records", "4294967295"], 2, "--records");
    for bytes in ["0", "4294967295"] {
        let mut line = kv();
        line.args(["get", "apple", "--slot-bytes", bytes]);
        Running::start(&mut line).ends_with(2, "--slot-bytes");
    }
    server.signal("TERM");
    server.ends_with(0, "worker 0: ");
}
