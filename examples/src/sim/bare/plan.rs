//! The decisions of a seed about queue pairs without workers.

use doorbell::provider::fault::Odds;
use doorbell::provider::{Sharing, WindowKind};
use doorbell::soft::sim::{Patience, Prng, Weather};

use super::super::plan;
use super::sizes::{DEPTH, PIECE, RECEIVES};

/// One side of the wire.
#[derive(Clone, Copy, Debug)]
pub struct SidePlan {
    /// How it polls: one thread for each completion queue, or all of them in one domain.
    pub sharing: Sharing,
    /// Completion queues that the queue pairs are spread over.
    pub desks: usize,
    /// Its queue pairs share one receive queue.
    pub srq: bool,
    /// Send requests of a queue pair at a time.
    pub depth: usize,
    /// The most receives it posts, for each queue pair or for all together.
    pub receives: usize,
    /// UD queue pairs.
    pub mailers: usize,
    /// Its completion queues are extended ones.
    pub extended: bool,
    /// The windows that it opens for its peers.
    pub windows: WindowKind,
}

/// The plan.
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
    /// Time between retries, in nanoseconds.
    pub rnr_timer_ns: u64,
    /// The chance that a step posts something, in 1024.
    pub pace: u32,
    /// The most requests in one burst.
    pub burst: u64,
    /// The chance that a burst has only short messages, in 1024.
    pub short: u32,
    /// The chance that a request asks for a completion, in 1024.
    pub signal: u32,
    /// The chance that a request must be refused, in 1024.
    pub wrong: u32,
    /// The chance that a step brings a cut, a death, or a jump of the clock, in 1024.
    pub trouble: u32,
    /// The chance that a step sends a datagram, in 1024.
    pub mail: u32,
    /// The most bytes of a request.
    pub longest: usize,
    /// The faults of the devices. They accept every list, and hold no completion back: the world
    /// counts requests so that there is room for each, and trusts a poll that finds nothing.
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

    /// Draws which rare capabilities the sides use. They have a generator of their own, so that
    /// seeds keep their other decisions.
    #[must_use]
    pub fn with_rare(mut self, prng: &mut Prng) -> Plan {
        for side in &mut self.sides {
            side.extended = side.sharing == Sharing::Shared && prng.chance(512);
            side.windows = if prng.chance(340) { WindowKind::One } else { WindowKind::Two };
        }
        self.odds.refuse_command = prng.pick(&[0, 0, 300]);
        self
    }

    /// One connection of two threads, with few completions of sends: usually one short message
    /// arrives at a time, and there is nothing else to do.
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
        // Without datagrams a poll is short.
        mailers: prng.pick(&[0, 0, 1, 2]),
        extended: false,
        windows: WindowKind::Two,
    }
}
