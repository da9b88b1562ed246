//! The decisions of a seed before anything runs.

use doorbell::provider::fault::Odds;
use doorbell::soft::sim::{Patience, Prng, Weather};
use doorbell::worker::Config;

/// One side of the wire.
#[derive(Clone, Copy, Debug)]
pub struct SidePlan {
    /// Workers.
    pub workers: usize,
    /// Shared receive queues that they are spread over.
    pub queues: usize,
    /// Limits of each worker.
    pub config: Config,
}

/// The behaviour of the handlers: chances in 1024.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// An idle turn sends something.
    pub send: u32,
    /// The most messages in one burst.
    pub burst: u64,
    /// Before that, and once more after, a READ from the other side or an addition to its
    /// word.
    pub ask: u32,
    /// A message is replied to.
    pub reply: u32,
    /// A message is kept, to be replied to or given back later.
    pub keep: u32,
    /// A reply is replied to.
    pub reply_again: u32,
    /// A message makes its handler send another one.
    pub send_more: u32,
    /// A step brings trouble: a close, a death, a stall, a cut, or a jump of the clock.
    pub trouble: u32,
}

/// The plan.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Both sides.
    pub sides: [SidePlan; 2],
    /// Connections begin soon and end late, so that there are many at a time.
    pub crowd: bool,
    /// Connections at a time.
    pub conns: usize,
    /// Connections over the whole run.
    pub conns_max: usize,
    /// Steps before everything is brought to its end.
    pub steps: u64,
    /// The faults of the network.
    pub weather: Weather,
    /// How long senders wait.
    pub patience: Patience,
    /// The faults of the devices.
    pub odds: Odds,
    /// The sides do not know that they are workers: no credits.
    pub plain: bool,
    /// Retries without a receive; 7 is for ever.
    pub rnr_retry: u8,
    /// Time between retries, in nanoseconds.
    pub rnr_timer_ns: u64,
    /// The behaviour of the handlers.
    pub habits: Habits,
}

impl Plan {
    /// Draws everything.
    pub fn draw(prng: &mut Prng) -> Plan {
        // Sometimes more peers than a worker has batches, and often just two that reply to each
        // other.
        let crowd = prng.chance(24);
        let talk = !crowd && prng.chance(300);
        let conns = match () {
            () if crowd => prng.range(70, 100) as usize,
            () if talk => 1,
            () => prng.range(1, 6) as usize,
        };
        // A message that fits a block of this size goes inline.
        let sizes = if talk { &[64, 200][..] } else { &[64, 200, 1024, 2048, 4096, 6000] };
        let block_bytes = prng.pick(sizes);
        let mut sides = [side(prng, block_bytes, conns), side(prng, block_bytes, conns)];
        let (weather, patience) = (weather(prng), patience(prng));
        let steady = prng.chance(256);
        let odds = Odds {
            partial_post: if steady { 0 } else { prng.pick(&[0, 20, 200]) },
            refuse: if steady { 0 } else { prng.pick(&[0, 20, 300]) },
            early_doorbell: if steady { 0 } else { prng.pick(&[0, 20, 300]) },
            more: if steady { 0 } else { prng.pick(&[0, 20, 300]) },
            empty_poll: if steady { 0 } else { prng.pick(&[0, 20, 300]) },
            short_poll: if steady { 0 } else { prng.pick(&[0, 20, 300]) },
            doze: if steady { 0 } else { prng.pick(&[0, 0, 2, 20]) },
            refuse_command: 0,
        };
        let plain = prng.chance(64);
        let rnr_retry = match () {
            // With credits no retry is needed.
            () if strict(&sides, plain) => 0,
            () if prng.chance(700) => 7,
            () => prng.range(0, 6) as u8,
        };
        let mut habits = Habits {
            send: prng.pick(&[40, 200, 600]),
            burst: prng.pick(&[1, 4, 24]),
            ask: prng.pick(&[0, 200, 700]),
            reply: prng.pick(&[0, 300, 900]),
            keep: prng.pick(&[0, 50, 400]),
            reply_again: prng.pick(&[0, 100, 600]),
            send_more: prng.pick(&[0, 50, 300]),
            trouble: prng.pick(&[0, 2, 10, 40]),
        };
        if talk {
            sides.iter_mut().for_each(alone);
            habits = Habits { burst: 1, ask: 0, reply: 1000, reply_again: 1000, keep: 0, ..habits };
        }
        Plan {
            sides,
            crowd,
            conns,
            conns_max: conns + prng.below(12) as usize,
            steps: if crowd { 6000 } else { prng.range(300, 3000) },
            weather,
            patience,
            odds,
            plain,
            rnr_retry,
            rnr_timer_ns: prng.range(1000, 30_000),
            habits,
        }
    }
}

/// Draws the faults of the network.
pub(super) fn weather(prng: &mut Prng) -> Weather {
    let fair = prng.chance(256);
    let delay_ns_min = prng.range(50, 500);
    Weather {
        loss: if fair { 0 } else { prng.pick(&[0, 10, 100, 250]) },
        double: if fair { 0 } else { prng.pick(&[0, 50, 300]) },
        reorder: if fair { 0 } else { prng.pick(&[0, 20, 300]) },
        delay_ns_min,
        delay_ns_max: delay_ns_min + prng.pick(&[0, 300, 3000]),
    }
}

/// Draws how long senders wait.
pub(super) fn patience(prng: &mut Prng) -> Patience {
    Patience {
        timeout_ns: prng.range(30_000, 120_000),
        retry_cnt: prng.range(1, 7) as u8,
        window: prng.range(1, 32) as usize,
        kept: prng.range(1, 32) as usize,
    }
}

/// True if both sides count what the other sends.
fn counted(sides: &[SidePlan; 2], plain: bool) -> bool {
    !plain && sides.iter().all(|side| side.config.window > 0)
}

/// True if every message finds a receive at once: one worker has all receives of its queue (the
/// device prefetches some for each), and no peer's slot is taken while it still has some.
fn strict(sides: &[SidePlan; 2], plain: bool) -> bool {
    let alone = |side: &SidePlan| side.workers == side.queues && side.config.drain_turns > 8;
    counted(sides, plain) && sides.iter().all(alone)
}

impl Plan {
    /// True if both sides count what the other sends.
    pub fn counted(&self) -> bool {
        counted(&self.sides, self.plain)
    }
}

/// A single worker on each side, with few completions of its sends: messages arrive one at a time,
/// each the next reply.
fn alone(side: &mut SidePlan) {
    (side.workers, side.queues) = (1, 1);
    let config = &mut side.config;
    (config.send_queue, config.signal_every) = (64, 32);
    config.inline_bytes = 220;
}

fn side(prng: &mut Prng, block_bytes: u32, conns: usize) -> SidePlan {
    let crowd = conns > 6;
    let workers = if crowd { 1 } else { prng.range(1, 3) as usize };
    let send_queue = prng.pick(&[4, 8, 16, 32]);
    let few = !crowd && prng.chance(100);
    // Sometimes too few, so that peers are turned away.
    let peers = if few { 1 } else { conns as u32 + 2 };
    // Sometimes hardly more than the windows of all peers need, so that these stay short.
    let base = 2 * peers * workers as u32;
    let recv_blocks = base + prng.range(8, if crowd { 256 } else { 64 }) as u32;
    let refill = prng.range(1, u64::from((recv_blocks - base) / 4)) as u32;
    let fits = refill * workers as u32 + base <= recv_blocks;
    let window = if fits { prng.pick(&[0, 2, 3, 8, 30, 100]) } else { 0 };
    let config = Config {
        peers,
        send_queue,
        block_bytes,
        recv_blocks,
        send_blocks: prng.range(1, 16) as u32,
        inline_bytes: prng.pick(&[0, 16, 64, 220]),
        signal_every: prng.range(1, u64::from(send_queue / 2)) as u32,
        refill,
        window,
        window_min: 2,
        sends: prng.pick(&[256, 400, 4000]),
        hold_turns: prng.range(0, 3) as u32,
        keeps: prng.range(1, 8) as u32,
        requests: prng.range(1, 8) as u32,
        drain_turns: if prng.chance(100) { prng.range(1, 8) } else { 50_000 },
        ..Config::DEFAULT
    };
    SidePlan { workers, queues: prng.range(1, workers.min(2) as u64) as usize, config }
}
