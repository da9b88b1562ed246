//! Processes that are killed (SIGKILL) at any instruction, on either side of a connection: whoever
//! they talked to hears of the end soon, loses nothing but what was on its way, has nothing left
//! over, and serves the next.
//!
//! The peer is this program, run again with a part to play. `DOORBELL_KILLS` says how often each
//! test kills; the default is a thousand kills of all tests together.
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

/// How long anything may take that must come.
const SOON: Duration = Duration::from_secs(10);

/// How long one look lasts at what may have come.
const LOOK: Duration = Duration::from_millis(1);

/// Bytes of any message at most.
const LONGEST: usize = 20_000;

/// Tests that kill, and how often they do it together.
const TESTS: u32 = 5;
const KILLS: u32 = 1000;

fn kills() -> u32 {
    std::env::var("DOORBELL_KILLS").map_or(KILLS / TESTS, |count| count.parse().unwrap())
}

/// Numbers that look random, the same each time.
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

/// Message `number`: its number, its length, and bytes that begin where its number says. Cheap, so
/// that who sends is killed in the device rather than here.
fn text(number: u32, longest: usize) -> Vec<u8> {
    static BYTES: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..256 + LONGEST).map(|at| at.wrapping_mul(31) as u8).collect());
    let length = 8 + number.wrapping_mul(2_654_435_761) as usize % (longest - 8);
    let from = number as usize % 256;
    let head = [number.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    [&head, &BYTES[from..from + length - 8]].concat()
}

/// The number of a message that is whole.
fn number_of(bytes: &[u8], longest: usize) -> u32 {
    let number = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let number = number.unwrap();
    assert!(bytes == text(number, longest), "message {number} is not what was sent");
    number
}

/// Plays a part if one was given; otherwise there is nothing to test here.
#[test]
fn the_other_process() {
    let Ok(given) = std::env::var(PART) else { return };
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

/// An address of this machine, with a port that is free.
fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An endpoint of that address, on the side that `hints` says.
fn endpoint(
    device: &SoftDevice,
    (addr, hints): (SocketAddr, Hints),
    init: Option<&QpInit<SoftDevice>>,
) -> Endpoint<SoftDevice> {
    Endpoint::create(device, &AddrInfo::of(addr, &hints), init).unwrap()
}

/// One at a time: what another has open would look left behind.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
