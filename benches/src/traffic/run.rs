//! Goes through the rows. Each round of a row measures Doorbell and the naive ring one after the
//! other with the same messages; the floor is measured between rounds, while nothing else runs.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use doorbell::Fabric;
use doorbell_tune as tune;

use crate::ask::cli::TrafficArgs;
use crate::ask::request::{Request, RowRequest, Test};
use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::machine::counters::Counter;
use crate::machine::floor::Floor;
use crate::machine::interrupt;
use crate::measure::live::Progress;
use crate::measure::record::{Placement, SCHEMA, round};
use crate::measure::run::Bench;
use crate::meet::line::{Answer, Line};
use crate::meet::tally::Tally;
use crate::traffic::drive::{Carrier, Driver};
use crate::traffic::ledger::Ledger;
use crate::traffic::link::Links;
use crate::traffic::naive::{self, Layout, Naive};
use crate::traffic::payload;
use crate::traffic::random::Random;
use crate::traffic::row::{self, Figures, Percentiles, Round};
use crate::traffic::rows::{self, Row, Shape, Turns};
use crate::traffic::schedule::{Trace, arrivals};
use crate::traffic::serve::Next;
use crate::traffic::shared::Memory;

/// Rounds of each row.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 3;

/// The peak is measured at most this often, until the cores have not moved meanwhile.
const PEAKS: u32 = 3;

/// Messages in flight while the peak is measured.
const DEPTH: u64 = naive::SLOTS / 2;

/// What to measure.
pub(crate) struct Plan {
    pub(crate) rows: Vec<Row>,
    pub(crate) seed: u64,
    /// The message of each row that gets a wrong byte.
    spoiled: Option<u64>,
    rounds: u32,
    /// Time of each contestant in a round.
    time: Duration,
    signal_every: u32,
    pub(crate) soft: bool,
}

impl Plan {
    /// # Errors
    /// An option does not fit: the set is fixed, and both sides share memory.
    pub(crate) fn new(args: &TrafficArgs) -> Result<Plan, Failure> {
        let common = &args.common;
        if !common.size.is_empty() {
            return Err(Failure::new("--size: traffic has sizes of its own; choose with --rows"));
        }
        if common.connect.is_some() || common.listen.is_some() {
            return Err(Failure::new(
                "traffic compares with a ring in shared memory, so both sides run on this machine; \
                 leave out --listen and --connect",
            ));
        }
        let rounds = args.rounds.unwrap_or(if common.quick { ROUNDS_QUICK } else { ROUNDS });
        Ok(Plan {
            rows: rows::chosen(&args.rows)?,
            seed: args.seed,
            spoiled: args.spoil.map(|sequence| payload::number(0, sequence)),
            rounds,
            time: common.time() / rounds,
            signal_every: common.signal_every,
            soft: true,
        })
    }
}

/// Measures all rows. Also returns what was counted of the caches, or why nothing was.
pub(crate) fn run<F: Fabric>(
    bench: &mut Bench<'_, F>,
    plan: &Plan,
) -> Result<(Vec<Figures>, String), Failure> {
    let rows = u32::try_from(plan.rows.len()).unwrap_or(u32::MAX);
    // Each row begins with the peaks.
    let mut progress = Progress::new(plan.rows.len(), plan.time * (2 * plan.rounds + 2) * rows);
    let mut results = Vec::with_capacity(plan.rows.len());
    for row in &plan.rows {
        if interrupt::is_asked() {
            break;
        }
        progress.begin(format!("traffic {}", row.name));
        results.push(measure(bench, plan, row)?);
        progress.done();
    }
    progress.finish();
    let counted = match Counter::cache_misses() {
        Ok(_) => "misses of the connecting side, in user space".to_owned(),
        Err(why) => why,
    };
    Ok((results, counted))
}

/// Measures one row.
fn measure<F: Fabric>(
    bench: &mut Bench<'_, F>,
    plan: &Plan,
    row: &Row,
) -> Result<Figures, Failure> {
    let [here, there] = bench.cores[..] else {
        return Err(Failure::new("--cores: two are needed for traffic"));
    };
    // The same in every run, whichever rows were chosen.
    let n = rows::all().iter().position(|of| of.name == row.name).unwrap_or_default() as u64;
    let slots = if matches!(row.shape, Shape::Open { .. }) { naive::SLOTS } else { 1 };
    let layout = Layout { links: row.links, slots, bytes_max: row.size_max() as usize };
    let memory = Arc::new(Memory::new(layout.bytes())?);
    let request = Request {
        qps: row.links as u32,
        soft: plan.soft,
        signal_every: plan.signal_every,
        traffic: Some(RowRequest {
            memory: memory.at(),
            slots,
            handling_ns: row.handler.ns,
            random: row.handler.random.then_some(plan.seed ^ n),
        }),
        ..Request::new(Test::Traffic, row.size_max())
    };
    let line = &mut bench.other.line;
    line.say(&request);
    let Answer::Ready(addrs) = line.answer()? else { return Err(other_version()) };
    let addr = addrs.first().copied();
    let addr = addr.ok_or_else(|| Failure::new("the other side sent no address"))?;
    let (fabric, clock) = (bench.fabric, bench.clock);
    let mut figures = blank(row, plan, &fabric.caps().device, &bench.cores, bench.other.sides);
    let (ask_floor, asked) = mpsc::channel();
    let ours = thread::scope(|scope| {
        let (tell_floor, told) = mpsc::channel();
        let (memory, figures, request) = (&memory, &mut figures, &request);
        let measuring = scope.spawn(move || {
            tune::pin(here)?;
            let probe = Probe { ask: ask_floor, told };
            let contest =
                Contest::new(fabric, request, addr, (memory, &layout), &clock, (plan, n, row));
            contest?.run(line, &probe, figures)
        });
        // A pinned thread cannot start one on the other core, so the floor is measured here.
        while asked.recv().is_ok() {
            if tell_floor.send(tune::floor([here, there])).is_err() {
                break;
            }
        }
        measuring.join().map_err(|_| Failure::new("the measuring thread broke off"))?
    })?;
    let Answer::Done(theirs) = bench.other.line.answer()? else { return Err(other_version()) };
    bench.note(&ours, &Tally::sum(theirs.iter()));
    Ok(figures)
}

fn other_version() -> Failure {
    Failure::new("the other side answered something else; run the same version on both sides")
}

/// A row without figures.
fn blank(row: &Row, plan: &Plan, device: &str, cores: &[usize], sides: &'static str) -> Figures {
    Figures {
        schema: SCHEMA,
        test: "traffic",
        row: row.name.clone(),
        provider: if plan.soft { "soft" } else { "verbs" },
        device: device.to_owned(),
        size: row.size_max(),
        peers: row.links,
        handler_ns: (row.handler.ns > 0).then_some(row.handler.ns),
        handler_random: row.handler.random,
        placement: Placement { cores: cores.to_vec(), sides, ..Placement::default() },
        ..Figures::default()
    }
}

/// Asks the thread that is not pinned for the floor.
struct Probe {
    ask: mpsc::Sender<()>,
    told: mpsc::Receiver<Result<f64, tune::MeasureError>>,
}

impl Probe {
    fn floor(&self) -> Result<f64, Failure> {
        let gone = || Failure::new("the thread that measures the floor is gone");
        self.ask.send(()).map_err(|_| gone())?;
        Ok(round(self.told.recv().map_err(|_| gone())??, 1))
    }
}

/// Both contestants of a row.
struct Contest<'a, F: Fabric> {
    links: Links<F>,
    naive: Naive,
    plan: &'a Plan,
    row: &'a Row,
    /// The number of the row. Each row has messages of its own.
    n: u64,
    clock: Clock,
    payload: Vec<u8>,
    counter: Option<Counter>,
}

/// What one contestant did in one round.
struct Piece {
    percentiles: Percentiles,
    messages: u64,
    wrong: u64,
    cache_misses: Option<f64>,
}

impl<'a, F: Fabric> Contest<'a, F> {
    fn new(
        fabric: &F,
        request: &Request,
        addr: SocketAddr,
        (memory, layout): (&Arc<Memory>, &Layout),
        clock: &Clock,
        (plan, n, row): (&'a Plan, u64, &'a Row),
    ) -> Result<Contest<'a, F>, Failure> {
        let ledger = || Ledger::new(row.links, clock);
        let links = Links::connect(fabric, request, addr, ledger()?)?;
        let naive = Naive::new(memory, layout, ledger()?);
        let payload = vec![0; row.size_max() as usize];
        let counter = Counter::cache_misses().ok();
        Ok(Contest { links, naive, plan, row, n, clock: *clock, payload, counter })
    }

    /// All rounds. Returns what is known of this side's memory.
    fn run(
        mut self,
        line: &mut Line,
        probe: &Probe,
        figures: &mut Figures,
    ) -> Result<Tally, Failure> {
        let (mut offered, mut peak, mut tries) = (None, None, 0);
        let mut before = probe.floor()?;
        if let Shape::Open { trace, percent } = self.row.shape {
            let (ours, naive) = loop {
                let peaks = self.peaks(trace, line, figures)?;
                let floors = [before, probe.floor()?];
                (before, tries) = (floors[1], tries + 1);
                peak = Some(row::mode(floors));
                if peak != Some(Floor::MIX) || tries == PEAKS {
                    break peaks;
                }
            };
            offered = Some(ours.min(naive) * f64::from(percent) / 100.0);
            let per_second = |rate: f64| Some(round(rate * 1e9 / self.clock.tick_ns, 0));
            figures.peak_per_second = per_second(ours);
            figures.naive_peak_per_second = per_second(naive);
            figures.offered_per_second = offered.and_then(per_second);
        }
        for n in 0..self.plan.rounds {
            // Whoever is first finds caches that the probe has used.
            let (ours, naive) = if n % 2 == 0 {
                let ours = self.piece(Next::Doorbell, line, n, offered)?;
                (ours, self.piece(Next::Naive, line, n, offered)?)
            } else {
                let naive = self.piece(Next::Naive, line, n, offered)?;
                (self.piece(Next::Doorbell, line, n, offered)?, naive)
            };
            let after = probe.floor()?;
            figures.wrong += ours.wrong + naive.wrong;
            figures.rounds.push(Round {
                floor_ns: [before, after],
                counts: true,
                messages: ours.messages,
                naive_messages: naive.messages,
                doorbell: ours.percentiles,
                naive: naive.percentiles,
                cache_misses: ours.cache_misses,
                naive_cache_misses: naive.cache_misses,
            });
            before = after;
        }
        figures.conclude(self.row.is_half(), peak);
        // The serving side waits until the connections are gone, as they are when this returns.
        line.say(&Next::Nobody);
        Ok(self.links.memory())
    }

    /// Messages per tick of both, with many in flight.
    fn peaks(
        &mut self,
        trace: Trace,
        line: &mut Line,
        figures: &mut Figures,
    ) -> Result<(f64, f64), Failure> {
        let ticks = self.clock.ticks_in(self.plan.time);
        let mut peaks = [0.0; 2];
        for (next, peak) in [Next::Doorbell, Next::Naive].into_iter().zip(&mut peaks) {
            let mut random = Random::new(self.plan.seed, self.stream(u64::MAX));
            let (payload, spoiled) = (&mut self.payload[..], None);
            line.say(&next);
            *peak = match next {
                Next::Doorbell => {
                    let carrier = &mut self.links;
                    let mut driver = Driver { carrier, now: clock::ticks, payload, spoiled };
                    driver.peak(trace, DEPTH, &mut random, ticks)?
                }
                _ => {
                    let carrier = &mut self.naive;
                    let mut driver = Driver { carrier, now: clock::ticks, payload, spoiled };
                    driver.peak(trace, DEPTH, &mut random, ticks)?
                }
            };
            figures.wrong += self.end(next, line)?;
        }
        Ok((peaks[0], peaks[1]))
    }

    /// One contestant in one round: a fifth of the time to warm up, then the messages that count.
    fn piece(
        &mut self,
        next: Next,
        line: &mut Line,
        n: u32,
        offered: Option<f64>,
    ) -> Result<Piece, Failure> {
        line.say(&next);
        let random = Random::new(self.plan.seed, self.stream(n.into()));
        let ticks = self.clock.ticks_in(self.plan.time);
        let (shape, links) = (self.row.shape, self.row.links);
        let (payload, spoiled) = (&mut self.payload[..], self.plan.spoiled);
        let counter = &mut self.counter;
        let (messages, misses) = match next {
            Next::Doorbell => {
                let carrier = &mut self.links;
                let driver = Driver { carrier, now: clock::ticks, payload, spoiled };
                traffic(driver, shape, links, offered, random, ticks, counter)?
            }
            _ => {
                let carrier = &mut self.naive;
                let driver = Driver { carrier, now: clock::ticks, payload, spoiled };
                traffic(driver, shape, links, offered, random, ticks, counter)?
            }
        };
        let wrong = self.end(next, line)?;
        let is_half = self.row.is_half();
        let percentiles = Percentiles::of(&self.ledger(next).times, is_half);
        let per_message = |count: u64| round(count as f64 / messages.max(1) as f64, 3);
        Ok(Piece { percentiles, messages, wrong, cache_misses: misses.map(per_message) })
    }

    /// The stream of random numbers for a round.
    fn stream(&self, round: u64) -> u64 {
        self.n.wrapping_shl(16).wrapping_add(round)
    }

    fn ledger(&mut self, next: Next) -> &mut Ledger {
        match next {
            Next::Doorbell => self.links.ledger(),
            _ => self.naive.ledger(),
        }
    }

    /// The contestant's turn is over. Returns how many messages were wrong on both sides or did not
    /// arrive.
    fn end(&mut self, next: Next, line: &mut Line) -> Result<u64, Failure> {
        match next {
            Next::Doorbell => self.links.end()?,
            _ => self.naive.end(),
        }
        let Answer::Came { received, wrong } = line.answer()? else { return Err(other_version()) };
        let ledger = self.ledger(next);
        let sent = std::mem::take(&mut ledger.sent);
        ledger.back = 0;
        Ok(wrong + std::mem::take(&mut ledger.wrong) + sent.abs_diff(received))
    }
}

/// Warms up and sends a row's messages. Returns how many counted, and the cache misses meanwhile.
fn traffic<C: Carrier, N: FnMut() -> u64>(
    mut driver: Driver<'_, C, N>,
    shape: Shape,
    links: usize,
    offered: Option<f64>,
    mut random: Random,
    ticks: u64,
    counter: &mut Option<Counter>,
) -> Result<(u64, Option<u64>), Failure> {
    let warm_up = ticks / 5;
    match shape {
        Shape::PingPong { size, turns } => {
            let (size, peers) = (size as usize, (turns, links));
            // Every link is used, also one that is idle later.
            driver.ping(size, (Turns::InTurn, links), &mut random, warm_up)?;
            let before = start(&mut driver, counter);
            driver.ping(size, peers, &mut random, ticks)?;
            Ok(stop(&mut driver, counter, before))
        }
        Shape::Open { trace, .. } => {
            let mean = 1.0 / offered.unwrap_or(f64::MIN_POSITIVE).max(1e-9);
            let warm = arrivals(trace, mean, warm_up, &mut random);
            let dues = arrivals(trace, mean, ticks, &mut random);
            driver.open(&warm)?;
            let before = start(&mut driver, counter);
            driver.open(&dues)?;
            Ok(stop(&mut driver, counter, before))
        }
    }
}

/// Counting begins. Returns the messages so far.
fn start<C: Carrier, N>(driver: &mut Driver<'_, C, N>, counter: &mut Option<Counter>) -> u64 {
    let ledger = driver.carrier.ledger();
    ledger.restart();
    let before = ledger.back;
    counter.iter_mut().for_each(Counter::start);
    before
}

/// Counting ends. Returns the messages and the cache misses since it began.
fn stop<C: Carrier, N>(
    driver: &mut Driver<'_, C, N>,
    counter: &mut Option<Counter>,
    before: u64,
) -> (u64, Option<u64>) {
    let misses = counter.as_mut().and_then(Counter::stop);
    (driver.carrier.ledger().back - before, misses)
}
