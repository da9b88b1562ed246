//! One side of a pair is killed at some moment: the other learns of it, and nothing is left over.

use std::env;
use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::links::talks;
use crate::pairs::{HERE, Meets, PORT, Sides, free_port, soft_sockets, started, turn, with_port};
use crate::side::{LIMIT, PAUSE, Side};

/// Rounds of the ordinary run; `DOORBELL_KILLS` says another number.
const ROUNDS: u64 = 20;
/// The latest moment of a kill, in milliseconds after the client has come.
const LATEST_MS: u64 = 150;
/// What perftest needs on most machines until it writes: it measures the clock, and passes its
/// parameters over TCP.
const PARAMETERS: Duration = Duration::from_secs(2);

fn rounds() -> u64 {
    env::var("DOORBELL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// Random moments.
struct Moments(u64);

impl Moments {
    fn new() -> Moments {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
        println!("seed {seed}");
        Moments(seed)
    }

    fn next(&mut self) -> Duration {
        // xorshift
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_millis(self.0 % LATEST_MS)
    }
}

#[test]
fn a_side_that_is_killed_is_missed_and_leaves_nothing() {
    let mut moments = Moments::new();
    let rping = ["rping", "-s", "-p", PORT];
    let pings = Sides::new(&rping, &["rping", "-c", "-a", HERE, "-p", PORT], Meets::Soft);
    let bench = ["ib_write_bw", "-d", "soft0", "-x", "0", "-F", "-D", "200"];
    let writes = Sides::same(&bench, Meets::Tcp);
    let (rounds, mut servers) = (rounds(), 0);
    for round in 0..rounds {
        // A server of perftest posts nothing, and so learns nothing, as with a NIC.
        let (sides, kill_server, first) = match round % 5 {
            0 | 2 => (&pings, false, Duration::ZERO),
            1 | 3 => (&pings, true, Duration::ZERO),
            _ => (&writes, true, PARAMETERS),
        };
        let after = first + moments.next();
        let Some((end, left)) = sides.kill_one(kill_server, after) else { return };
        let who = if kill_server { "client" } else { "server" };
        assert!(end.by_itself(), "round {round}, after {after:?}: the {who} goes on: {}", end.text);
        assert!(!end.crashed(), "round {round}, after {after:?}: the {who} crashed: {}", end.text);
        assert!(left.is_empty(), "round {round}, after {after:?}: {left:?} is left");
        servers += u64::from(kill_server);
    }
    println!("{rounds} kills, {servers} of them of servers: each was missed, and nothing is left");
}

/// Descriptors, mappings and threads of a process.
fn belongings(id: u32) -> [usize; 3] {
    let entries = |name: &str| fs::read_dir(format!("/proc/{id}/{name}")).unwrap().count();
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
    // The heaps of threads stay with the allocator.
    let maps = maps.lines().filter(|line| line.contains("memfd")).count();
    [entries("fd"), maps, entries("task")]
}

/// A server that goes on keeps nothing of clients that were killed, and serves the next one.
#[test]
fn a_server_keeps_nothing_of_clients_that_were_killed() {
    let _turn = turn();
    let mut moments = Moments::new();
    let port = free_port();
    let Some(server) = started(&["rping", "-s", "-P", "-p", PORT], Meets::Soft, port) else {
        return;
    };
    let client = ["rping", "-c", "-a", HERE, "-p", PORT];
    let visitors = || soft_sockets(port).filter(|words| words[5] == "03").count();
    let mut first = None;
    for round in 0..rounds() {
        let client = Side::start(with_port(&client, port).unwrap());
        // A client that dies before it is connected ends this server, as with a NIC.
        client.wait_for(|| talks(client.id()));
        thread::sleep(moments.next());
        client.stop();
        client.end();
        server.wait_for(|| visitors() == 0);
        // The first rounds fill what is kept for the next client.
        if round < 5 {
            first = Some(belongings(server.id()));
            continue;
        }
        let until = Instant::now() + LIMIT;
        while first.unwrap().iter().zip(belongings(server.id())).any(|(old, new)| *old < new) {
            let now = belongings(server.id());
            assert!(Instant::now() < until, "round {round}: {first:?} before, and {now:?} now");
            thread::sleep(PAUSE);
        }
    }
    let last = [&client[..], &["-C", "5"]].concat();
    Side::start(with_port(&last, port).unwrap()).end().success();
    server.stop();
}
