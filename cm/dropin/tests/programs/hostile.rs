//! A peer that writes anything to the memory that it shares with a process of the drop-in. Here the
//! test does, behind the back of both sides, so each has such a peer. Neither crashes, and a server
//! serves the next client. `DOORBELL_FUZZ` multiplies the rounds.

use std::env;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_soft::LINK_BYTES;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::links::{DATA, HEAD, LINES, RESPONSES, moved, shared, talks};
use crate::pairs::{HERE, Meets, PORT, free_port, started, turn, with_port};
use crate::side::Side;

/// Rounds with each pair of programs.
const ROUNDS: u64 = 8;
/// How long a round writes.
const ATTACK: Duration = Duration::from_millis(40);

/// A random number below a bound.
fn below(dice: &mut ChaCha8Rng, bound: u64) -> u64 {
    dice.next_u64() % bound
}

/// A word to write to: often one that both sides read now.
fn place(file: &File, dice: &mut ChaCha8Rng) -> u64 {
    let length = file.metadata().unwrap().len();
    let word = |dice: &mut ChaCha8Rng, from: u64, bytes: u64| from + below(dice, bytes / 8) * 8;
    if length != LINK_BYTES.next_multiple_of(4096) as u64 {
        return word(dice, 0, length);
    }
    let side = below(dice, 2);
    let direction = match below(dice, 4) {
        0 => return word(dice, 0, length),
        1 => return word(dice, 0, HEAD),
        2 => RESPONSES + side * (LINES + DATA[1]),
        _ => HEAD + side * (LINES + DATA[0]),
    };
    // The first records are the ones in use, as long as the ring is short.
    word(dice, moved(file) + direction, LINES + 1024)
}

/// Changes one word: to anything, to something small, by a bit, by a step, or to another word.
fn scribble(file: &File, dice: &mut ChaCha8Rng) {
    let (at, from) = (place(file, dice), place(file, dice));
    let mut bytes = [0; 8];
    let mut read = |at| file.read_exact_at(&mut bytes, at).map(|()| u64::from_le_bytes(bytes));
    let (Ok(word), Ok(other)) = (read(at), read(from)) else { return };
    let new = match below(dice, 5) {
        0 => dice.next_u64(),
        1 => below(dice, 300),
        2 => word ^ 1 << below(dice, 64),
        3 => word.wrapping_add(below(dice, 64) * 8),
        _ => other,
    };
    file.write_all_at(&new.to_le_bytes(), at).unwrap();
}

/// Writes to what those two share, until one of them has ended or the time is over.
fn attack(sides: [&Side; 2], seed: u64) {
    let mut dice = ChaCha8Rng::seed_from_u64(seed);
    let files = shared(sides[1].id());
    let until = Instant::now() + ATTACK;
    while Instant::now() < until && sides.iter().all(|side| side.has_ended().is_none()) {
        for file in &files {
            scribble(file, &mut dice);
        }
        thread::yield_now();
    }
}

fn rounds() -> u64 {
    let times = env::var("DOORBELL_FUZZ").ok().and_then(|text| text.parse::<u64>().ok());
    ROUNDS * times.unwrap_or(1)
}

/// Stops a process, which must not have crashed.
fn stop(side: Side, seed: u64) {
    let name = side.name.clone();
    side.stop();
    let end = side.end();
    assert!(!end.crashed(), "seed {seed}: {name} crashed: {}", end.text);
}

/// Connections by the connection manager. The server lives through all rounds.
#[test]
fn a_server_outlives_clients_that_scribble() {
    let _turn = turn();
    let port = free_port();
    let server = ["rping", "-s", "-P", "-p", PORT, "-S", "3000"];
    let Some(server) = started(&server, Meets::Soft, port) else { return };
    let client = ["rping", "-c", "-a", HERE, "-p", PORT, "-S", "3000"];
    for seed in 0..rounds() {
        let scribbler = Side::start(with_port(&client, port).unwrap());
        scribbler.wait_for(|| talks(scribbler.id()));
        attack([&server, &scribbler], seed);
        stop(scribbler, seed);
        assert!(server.has_ended().is_none(), "seed {seed}: the server has ended");
        let honest = [&client[..], &["-C", "3", "-V"]].concat();
        Side::start(with_port(&honest, port).unwrap()).end().success();
    }
    stop(server, 0);
}

/// Connections by number, of each kind, and datagrams.
#[test]
fn neither_side_of_a_pingpong_crashes() {
    let _turn = turn();
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_srq_pingpong", "ibv_ud_pingpong"] {
        for seed in 0..rounds() {
            let port = free_port();
            let server = [program, "-d", "soft0", "-g", "0", "-n", "100000000", "-p", PORT];
            let Some(one) = started(&server, Meets::Tcp, port) else { break };
            let client = [&server[..], &[HERE]].concat();
            let two = Side::start(with_port(&client, port).unwrap());
            two.wait_for(|| !shared(two.id()).is_empty());
            // Until both have met.
            thread::sleep(ATTACK);
            attack([&one, &two], seed);
            stop(one, seed);
            stop(two, seed);
        }
    }
}
