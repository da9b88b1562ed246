//! The clock and the history of a simulation. The history is always hashed, and printed on demand.

use std::cell::Cell;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The virtual time of this thread's simulation, in nanoseconds.
pub fn now() -> u64 {
    NOW.get()
}

/// Sets it.
pub fn set_now(now_ns: u64) {
    NOW.set(now_ns);
}

/// All events as one number.
#[derive(Debug, Default)]
pub struct Trace {
    history: Fnv,
    events: u64,
    tell: bool,
}

impl Trace {
    /// An empty history; `tell` prints each event as it is recorded.
    pub fn new(tell: bool) -> Trace {
        Trace { tell, ..Trace::default() }
    }

    /// Records an event at that time.
    pub fn note(&mut self, at: u64, event: &(impl Hash + Debug)) {
        self.events += 1;
        at.hash(&mut self.history);
        event.hash(&mut self.history);
        if self.tell {
            println!("{at:>10} {event:?}");
        }
    }

    /// The hash of the history so far, and its number of events.
    pub fn sum(&self) -> (u64, u64) {
        (self.history.finish(), self.events)
    }
}

/// FNV-1a, word by word: no random start, unlike the standard hasher.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56;
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    fn finish(&self) -> u64 {
        doorbell::soft::sim::mix(self.0)
    }
}
