//! One side of a pair is killed at some moment: the other learns of it, and nothing is left over.

use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::pairs::{Meets, PORT, Sides, kill_one};

/// Rounds of the ordinary run; `DOORBELL_KILLS` says another number.
const ROUNDS: u64 = 20;
/// The latest moment of a kill, in milliseconds after the client has come.
const LATEST_MS: u64 = 150;
/// What perftest needs on most machines until it writes: it measures the clock, and passes its
/// parameters over TCP.
const PARAMETERS: Duration = Duration::from_secs(2);

const HERE: &str = "127.0.0.1";

#[test]
fn a_side_that_is_killed_is_missed_and_leaves_nothing() {
    let rounds = env::var("DOORBELL_KILLS").ok().and_then(|text| text.parse().ok());
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {random}");
    let pings = Sides {
        server: &["rping", "-s", "-p", PORT],
        client: &["rping", "-c", "-a", HERE, "-p", PORT],
        meets: Meets::Soft,
        ends: true,
    };
    let bench = ["ib_write_bw", "-d", "soft0", "-x", "0", "-F", "-D", "200", "-p", PORT];
    let writes = Sides {
        server: &bench,
        client: &[&bench[..], &[HERE]].concat(),
        meets: Meets::Tcp,
        ends: true,
    };
    for round in 0..rounds.unwrap_or(ROUNDS) {
        // xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let after = Duration::from_millis(random % LATEST_MS);
        // A server of perftest posts nothing, and so learns nothing, as with a NIC.
        let (sides, kill_server, first) = match round % 5 {
            0 | 2 => (&pings, false, Duration::ZERO),
            1 | 3 => (&pings, true, Duration::ZERO),
            _ => (&writes, true, PARAMETERS),
        };
        let Some(end) = kill_one(sides, kill_server, first + after) else { return };
        let who = if kill_server { "client" } else { "server" };
        assert!(end.by_itself, "round {round}, after {after:?}: the {who} goes on: {}", end.text);
    }
}
