//! A wire in virtual time: the soft device over a simulated network.
//!
//! Two devices, each with domains of its own, are joined by ports instead of shared memory. A port
//! is the far end of a link's memory. Between two ports lies a network that loses, doubles, delays
//! and reorders packets as a seed says. The ports hide that as a NIC does: packet numbers,
//! acknowledgements, go-back-N, a limit on retries. The code above the ring (states, accounting,
//! checks, RNR, flushes, and the worker) is the same as in production, so a seed that fails shows a
//! fault of that code.
//!
//! In the order in which a message meets them: a [`Port`] reads it from its sender's ring, [`flow`]
//! numbers and keeps it, [`net`] may carry it, and the other side's `flow` and port bring it to the
//! receiver's ring. [`wire`] drives all of this, and [`prng`] is the only source of chance.
//! Datagrams have no port: a [`relay`] takes them out of one inbox and puts them into another.
//! [`mistake`] lists the mistakes that can be planted in the wire, to see whether they are found.
//!
//! [`Port`]: super::wire::Port
//!
//! For simulation only: it allocates as it goes, and one thread runs everything.

mod flow;
mod mistake;
mod net;
mod relay;
#[cfg(test)]
mod tests;
mod wire;

pub use self::flow::Patience;
pub use self::mistake::Mistake;
pub use self::net::Weather;
pub use self::relay::Relay;
pub use self::wire::{Event, Memory, Wire};
pub use doorbell_seam::prng::{Prng, mix};

use doorbell_seam::prng;

use super::SoftSrq;

/// The receives that a shared queue holds now, without prefetched ones: for the account at the end
/// of a simulation, when no queue pair uses the queue any more.
pub fn posted(srq: &SoftSrq) -> u32 {
    srq.queue.posted()
}
