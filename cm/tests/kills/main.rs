//! Processes that are killed (SIGKILL) at any instruction, on either side of a connection. The peer
//! of a killed process notices soon, loses only what was in flight, leaks nothing, and serves the
//! next peer.
//!
//! The peer is this program, started again with a part to play. `DOORBELL_KILLS` sets how often
//! each test kills; by default all tests together kill a thousand times.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod belongings;
mod datagrams;
mod ids;
mod kill;
mod workers;

use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use doorbell_cm::{AddrInfo, Endpoint, Hints, QpInit};
use doorbell_soft::SoftDevice;

use kill::PART;

/// Longer than any one awaited event takes, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A peer that nobody kills ends by itself, after its survivor has had time to give up.
const LIFE: Duration = Duration::from_secs(4 * 60);

/// How long one look for an event lasts.
const LOOK: Duration = Duration::from_millis(1);

/// The most bytes of any message.
const LONGEST: usize = 20_000;

/// Number of tests that kill, and how often they kill together.
const TESTS: u32 = 5;
const KILLS: u32 = 1000;

fn kills() -> u32 {
    std::env::var("DOORBELL_KILLS").map_or(KILLS / TESTS, |count| count.parse().unwrap())
}

/// Pseudo-random numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }

    fn micros_below(&mut self, bound: u64) -> Duration {
        Duration::from_micros(self.below(bound))
    }
}

/// Message `number`: its number, its length, and bytes that depend on the number. Making it is
/// cheap, so that a sender is mostly killed in the device and not here.
fn text(number: u32, longest: usize) -> Vec<u8> {
    static BYTES: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..256 + LONGEST).map(|at| at.wrapping_mul(31) as u8).collect());
    let length = 8 + number.wrapping_mul(2_654_435_761) as usize % (longest - 8);
    let from = number as usize % 256;
    let head = [number.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    [&head, &BYTES[from..from + length - 8]].concat()
}

/// Checks that a message is complete; returns its number.
fn number_of(bytes: &[u8], longest: usize) -> u32 {
    let number = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = number.unwrap();
    assert!(bytes == text(number, longest), "message {number} differs from the one sent");
    number
}

/// Plays the part that was given; without one there is nothing to test here.
#[test]
fn the_other_process() {
    let Ok(given) = std::env::var(PART) else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let given: Vec<&str> = given.split(' ').collect();
    let [part, messages, addr] = given[..] else { panic!("{given:?} is no part") };
    let (messages, addr) = (messages.parse().unwrap(), addr.parse().unwrap());
    match part {
        "id-connects" => ids::connects(addr, messages),
        "id-listens" => ids::listens(addr, messages),
        "worker-dials" => workers::dials(addr, messages),
        "worker-listens" => workers::listens(addr),
        _ => datagrams::mails(addr),
    }
}

/// An address of this machine with a free port.
fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An endpoint of this address, on the side that `hints` names.
fn endpoint(
    device: &SoftDevice,
    (addr, hints): (SocketAddr, Hints),
    init: Option<&QpInit<SoftDevice>>,
) -> Endpoint<SoftDevice> {
    Endpoint::create(device, &AddrInfo::of(addr, &hints), init).unwrap()
}

/// Runs one test at a time, because what another test has open would count as leaked.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
