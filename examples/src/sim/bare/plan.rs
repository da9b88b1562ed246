//! What a seed decides about queue pairs without workers.

use doorbell::provider::Sharing;
use doorbell::provider::fault::Odds;
use doorbell::soft::sim::{Patience, Prng, Weather};

use super::super::plan;
use super::sizes::{DEPTH, PIECE, RECEIVES};

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
    /// A step posts something, in 1024.
    pub pace: u32,
    /// Requests in one go at most.
    pub burst: u64,
    /// A burst is of short messages alone, in 1024.
    pub short: u32,
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
    /// What the devices do. They take every list, and hold no completion back: requests are counted
    /// here so that there is room for each, and a poll that finds nothing is believed.
    pub odds: Odds,
}

impl Plan {
    /// Draws everything.
    pub fn draw(prng: &mut Prng) -> Plan {
        let conns = prng.range(1, 4) as usize;
        let plan = Plan {
            sides: [side(prng), side(prng)],
            conns,
            conns_max: conns + prng.below(4) as usize,
            steps: prng.range(100, 800),
            weather: plan::weather(prng),
            patience: plan::patience(prng),
            asks: prng.range(1, 16) as u8,
            rnr_retry: if prng.chance(700) { 7 } else { prng.range(0, 6) as u8 },
            rnr_timer_ns: prng.range(1000, 30_000),
            pace: 500,
            burst: prng.pick(&[1, 4, 12]),
            short: prng.pick(&[0, 400, 1000]),
            signal: prng.pick(&[20, 100, 512, 1024]),
            wrong: prng.pick(&[0, 0, 4, 30]),
            trouble: prng.pick(&[0, 0, 2, 10]),
            mail: prng.pick(&[0, 100, 600]),
            longest: prng.pick(&[64, 600, 3000, PIECE]),
            odds: Odds {
                refuse: prng.pick(&[0, 20, 300]),
                early_doorbell: prng.pick(&[0, 20, 300]),
                more: prng.pick(&[0, 20, 300]),
                ..Odds::default()
            },
        };
        if prng.chance(300) { plan.talk() } else { plan }
    }

    /// One connection of two threads, with few completions of sends: what comes is usually one
    /// short message at a time, with nothing else to do.
    fn talk(self) -> Plan {
        let side = |side| SidePlan {
            sharing: Sharing::Exclusive,
            desks: 1,
            depth: DEPTH,
            receives: RECEIVES,
            mailers: 0,
            ..side
        };
        let (conns, steps, pace, burst) = (1, 1500, 100, 2);
        Plan {
            sides: self.sides.map(side),
            conns,
            steps,
            pace,
            burst,
            short: 1024,
            signal: 0,
            wrong: 0,
            mail: 0,
            ..self
        }
    }
}

fn side(prng: &mut Prng) -> SidePlan {
    SidePlan {
        sharing: if prng.chance(256) { Sharing::Shared } else { Sharing::Exclusive },
        desks: prng.range(1, 2) as usize,
        srq: prng.chance(512),
        depth: prng.range(2, DEPTH as u64) as usize,
        receives: prng.range(1, RECEIVES as u64) as usize,
        // Where there are none a poll is short.
        mailers: prng.pick(&[0, 0, 1, 2]),
    }
}
