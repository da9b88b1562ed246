//! A client of the benchmark.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use doorbell::clock_ns;
use doorbell::latency::Latency;
use doorbell::prelude::*;

use super::plan::Bench;
use super::workload::{Choice, key};
use crate::caller::Caller;
use crate::client::{Client, Counts, How, Outcome};
use crate::message::{Call, Op};

/// The driver measures the latency of one operation in eight, because reading the clock takes
/// time.
const SAMPLE: u64 = 8;

/// What the clients share: the number of the stage that they are in. Stage 0 loads; each later one
/// is a round of one way to get.
pub(super) struct Shared {
    stage: AtomicU32,
    /// Clients that have ended the stage.
    arrived: AtomicU32,
    /// When each stage began, and the last one ended.
    times: Vec<AtomicU64>,
}

impl Shared {
    pub(super) fn new(bench: &Bench) -> Shared {
        let stages = 1 + (bench.rounds as usize + 1) * bench.hows.len();
        let times = (0..=stages).map(|_| AtomicU64::new(0)).collect();
        Shared { stage: AtomicU32::new(0), arrived: AtomicU32::new(0), times }
    }

    /// Nanoseconds that a stage took; `None`: it has not ended.
    pub(super) fn took(&self, stage: usize) -> Option<u64> {
        let at = |n: usize| self.times.get(n).map(|time| time.load(Ordering::Relaxed));
        let (begin, end) = (at(stage)?, at(stage + 1)?);
        (end != 0).then(|| end.saturating_sub(begin))
    }

    /// Stages in all.
    fn stages(&self) -> u32 {
        self.times.len() as u32 - 1
    }
}

/// See the module.
pub struct Driver {
    hows: Vec<How>,
    list: Vec<Choice>,
    keys: Vec<[u8; 24]>,
    value: Vec<u8>,
    shared: Arc<Shared>,
    clients: u32,
    number: u32,
    records: u32,
    /// The stage it is in, and what is left to start and to end there.
    stage: u32,
    to_start: u64,
    to_end: u64,
    operations: u64,
    at: usize,
    /// Latency of each way to get, in nanoseconds, and what the client had done at its begin.
    pub(super) latency: Vec<Latency>,
    pub(super) done: Vec<Counts>,
    before: Counts,
    /// Gets that found nothing, and operations that failed.
    pub(super) missing: u64,
    pub(super) failed: u64,
    stop: Stop,
}

impl Driver {
    pub(super) fn new(
        bench: &Bench,
        number: u32,
        list: Vec<Choice>,
        shared: Arc<Shared>,
        stop: Stop,
    ) -> Driver {
        let hows = bench.hows.clone();
        let mine = part(bench.records.into(), number, bench.clients);
        Driver {
            latency: vec![Latency::new(); hows.len()],
            done: vec![Counts::default(); hows.len()],
            hows,
            list,
            keys: (0..bench.records).map(key).collect(),
            value: (0..bench.value_bytes).map(|n| b'a' + (n % 26) as u8).collect(),
            shared,
            clients: bench.clients,
            number,
            records: bench.records,
            stage: 0,
            to_start: mine,
            to_end: mine,
            operations: part(bench.operations, number, bench.clients),
            at: 0,
            before: Counts::default(),
            missing: 0,
            failed: 0,
            stop,
        }
    }

    /// The way to get of the present stage; `None` while it loads.
    fn way(&self) -> Option<usize> {
        let round = self.stage.checked_sub(1)?;
        Some(round as usize % self.hows.len())
    }

    /// True if the present stage counts: the first round does not.
    fn counts(&self) -> bool {
        self.stage as usize > self.hows.len()
    }

    /// Its part of the stage is done: waits for the others.
    fn arrive(&mut self, client: &Client) {
        if let Some(way) = self.way().filter(|_| self.counts()) {
            let (now, before) = (client.counts(), self.before);
            let done = &mut self.done[way];
            done.reads += now.reads - before.reads;
            done.torn += now.torn - before.torn;
            done.calls += now.calls - before.calls;
        }
        self.to_end = u64::MAX;
        // AcqRel: the last to arrive sees what the others did before, and begins the next stage.
        if self.shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.clients {
            self.shared.arrived.store(0, Ordering::Relaxed);
            let next = self.stage + 1;
            if let Some(time) = self.shared.times.get(next as usize) {
                time.store(clock_ns(), Ordering::Relaxed);
            }
            self.shared.stage.store(next, Ordering::Release);
        }
    }

    /// Begins the stage that the others have begun.
    fn begin(&mut self, stage: u32, client: &mut Client) {
        if stage >= self.shared.stages() {
            return self.stop.stop();
        }
        self.stage = stage;
        (self.to_start, self.to_end) = (self.operations, self.operations);
        self.before = client.counts();
        if let Some(way) = self.way() {
            client.set_how(self.hows[way]);
        }
    }

    fn start(&mut self, client: &mut Client) -> bool {
        let begins = self.stage > 0 && self.to_start.is_multiple_of(SAMPLE);
        let token = if begins { clock_ns() } else { 0 };
        let (record, update) = if self.stage == 0 {
            (self.number + (self.to_start as u32 - 1) * self.clients, true)
        } else {
            let Choice { record, update } = self.list[self.at % self.list.len()];
            (record, update)
        };
        let key = &self.keys[(record % self.records.max(1)) as usize];
        let (op, value) = if update { (Op::Put, &self.value[..]) } else { (Op::Get, &[][..]) };
        let started = client.start(Call { op, ttl: 0, key, value }, token);
        self.at += usize::from(started);
        self.to_start -= u64::from(started);
        started
    }
}

/// A client's part of a number.
fn part(all: u64, number: u32, clients: u32) -> u64 {
    let clients = u64::from(clients.max(1));
    all / clients + u64::from(u64::from(number) < all % clients)
}

impl Caller for Driver {
    fn next(&mut self, client: &mut Client) {
        if self.to_end == 0 {
            self.arrive(client);
        }
        if self.to_end == u64::MAX {
            let stage = self.shared.stage.load(Ordering::Acquire);
            if stage != self.stage {
                self.begin(stage, client);
            }
            return;
        }
        while self.to_start > 0 && client.is_ready() && self.start(client) {}
    }

    fn ended(&mut self, token: u64, outcome: Outcome<'_>) {
        self.to_end = self.to_end.saturating_sub(1);
        match outcome {
            Outcome::Value { value, .. } => {
                self.failed += u64::from(value.len() != self.value.len());
            }
            Outcome::Done { .. } => {}
            Outcome::Missing => self.missing += 1,
            Outcome::Refused(_) | Outcome::Lost => self.failed += 1,
        }
        if token != 0
            && self.counts()
            && let Some(way) = self.way()
        {
            self.latency[way].record(clock_ns().saturating_sub(token));
        }
    }

    fn lost(&mut self, _why: DownReason) {
        // At the end the first client that stops ends all connections.
        let over = self.shared.stage.load(Ordering::Relaxed) >= self.shared.stages();
        self.failed += u64::from(!over);
        self.stop.stop();
    }
}
