//! The decisions of a seed before anything runs.

use doorbell::provider::fault::Odds;
use doorbell::soft::sim::{Patience, Prng, Weather};
use doorbell::worker::Config;
use doorbell_kv::server::block_bytes;

use crate::clock::now;
use crate::common::actor::Habits;

/// The plan of a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) homes: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) habits: Habits,
    /// READs for one slot.
    pub(crate) parts: u32,
    /// Odds in 1024 that something goes wrong in a step.
    pub(crate) trouble: u32,
    pub(crate) weather: Weather,
    pub(crate) patience: Patience,
    pub(crate) odds: Odds,
    pub(crate) config: Config,
}

impl Plan {
    pub(crate) fn draw(prng: &mut Prng) -> Plan {
        let (servers, clients) = (prng.range(1, 2) as usize, prng.range(2, 4) as usize);
        let slot_bytes = prng.pick(&[128, 192, 320, 512]);
        let depth = prng.range(1, 3) as u32;
        let fair = prng.chance(256);
        let or = |prng: &mut Prng, list: &[u32]| if fair { 0 } else { prng.pick(list) };
        let delay_ns_min = prng.range(50, 500);
        let weather = Weather {
            loss: or(prng, &[0, 10, 100]),
            double: or(prng, &[0, 50, 300]),
            reorder: or(prng, &[0, 20, 300]),
            delay_ns_min,
            delay_ns_max: delay_ns_min + prng.pick(&[0, 300, 3000]),
        };
        let patience = Patience {
            timeout_ns: prng.range(30_000, 120_000),
            retry_cnt: prng.range(2, 7) as u8,
            window: prng.range(1, 32) as usize,
            kept: prng.range(1, 32) as usize,
        };
        let odds = Odds {
            partial_post: or(prng, &[0, 20, 200]),
            refuse: or(prng, &[0, 20, 300]),
            early_doorbell: or(prng, &[0, 20, 300]),
            more: or(prng, &[0, 20, 300]),
            empty_poll: or(prng, &[0, 20, 300]),
            short_poll: or(prng, &[0, 20, 300]),
            ..Odds::default()
        };
        let peers = clients.max(servers) as u32 + 2;
        let config = Config {
            peers,
            send_queue: 16,
            block_bytes: block_bytes(slot_bytes).next_multiple_of(64),
            recv_blocks: 2 * peers + 8 + prng.range(0, 32) as u32,
            send_blocks: prng.range(2, 16) as u32,
            inline_bytes: prng.pick(&[0, 64, 220]),
            signal_every: prng.range(1, 8) as u32,
            refill: 2,
            window: prng.pick(&[2, 8, 30]),
            window_min: 2,
            sends: 256,
            requests: depth,
            drain_turns: 50_000,
            ..Config::DEFAULT
        };
        let habits = Habits {
            slot_bytes,
            keys: prng.range(1, 8),
            operations: prng.range(20, 80),
            depth,
            mortal: prng.pick(&[0, 200, 700]),
            filler: prng.pick(&[0, 100, 500]),
            by_send: prng.pick(&[0, 200, 600]),
            start: 300,
            ttl_max: prng.pick(&[20_000, 100_000]),
            clock: now,
        };
        Plan {
            servers,
            clients,
            homes: prng.pick(&[2, 4, 16]),
            slot_bytes,
            habits,
            parts: prng.range(1, 5) as u32,
            trouble: prng.pick(&[0, 4, 12]),
            weather,
            patience,
            odds,
            config,
        }
    }
}
