//! What a seed decides about queue pairs without workers.

use doorbell::provider::Sharing;
use doorbell::soft::sim::{Patience, Prng, Weather};

use super::super::plan;

/// One side of the wire.
#[derive(Clone, Copy, Debug)]
pub struct SidePlan {
    /// Who polls: one thread for each completion queue, or all of them in one domain.
    pub sharing: Sharing,
    /// Completion queues that the queue pairs are spread over.
    pub desks: usize,
    /// Its queue pairs share one receive queue.
    pub srq: bool,
    /// Send requests of a queue pair at a time.
    pub depth: usize,
    /// Receives it posts at most, each queue pair or all together.
    pub receives: usize,
    /// Queue pairs of UD.
    pub mailers: usize,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Both sides.
    pub sides: [SidePlan; 2],
    /// Connections at a time.
    pub conns: usize,
    /// Connections over the whole run.
    pub conns_max: usize,
    /// Steps before everything is brought to its end.
    pub steps: u64,
    /// What the network does.
    pub weather: Weather,
    /// How long senders wait.
    pub patience: Patience,
    /// READs and atomics of a queue pair in flight.
    pub asks: u8,
    /// Retries without a receive; 7 is for ever.
    pub rnr_retry: u8,
    /// Time between them, in nanoseconds.
    pub rnr_timer_ns: u64,
    /// Requests in one go at most.
    pub burst: u64,
    /// A request asks for a completion, in 1024.
    pub signal: u32,
    /// A request is one that must be refused, in 1024.
    pub wrong: u32,
    /// A step brings a cut, a death, a jump of the clock, in 1024.
    pub trouble: u32,
    /// A step sends a datagram, in 1024.
    pub mail: u32,
    /// Bytes of a request at most.
    pub longest: usize,
}

impl Plan {
    /// Draws everything.
    pub fn draw(prng: &mut Prng) -> Plan {
        let conns = prng.range(1, 4) as usize;
        Plan {
            sides: [side(prng), side(prng)],
            conns,
            conns_max: conns + prng.below(4) as usize,
            steps: prng.range(100, 800),
            weather: plan::weather(prng),
            patience: plan::patience(prng),
            asks: prng.range(1, 16) as u8,
            rnr_retry: if prng.chance(700) { 7 } else { prng.range(0, 6) as u8 },
            rnr_timer_ns: prng.range(1000, 30_000),
            burst: prng.pick(&[1, 4, 12]),
            signal: prng.pick(&[100, 512, 1024]),
            wrong: prng.pick(&[0, 0, 4, 30]),
            trouble: prng.pick(&[0, 0, 2, 10]),
            mail: prng.pick(&[0, 100, 600]),
            longest: prng.pick(&[64, 600, 3000, super::PIECE]),
        }
    }
}

fn side(prng: &mut Prng) -> SidePlan {
    SidePlan {
        sharing: if prng.chance(256) { Sharing::Shared } else { Sharing::Exclusive },
        desks: prng.range(1, 2) as usize,
        srq: prng.chance(512),
        depth: prng.range(2, super::DEPTH as u64) as usize,
        receives: prng.range(1, super::RECEIVES as u64) as usize,
        mailers: prng.range(1, 2) as usize,
    }
}
