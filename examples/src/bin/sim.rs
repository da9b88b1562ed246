//! Simulates the engine over a wire in virtual time.
//!
//! ```text
//! sim --seeds 2000                        seeds 0 to 1999
//! sim --seeds 2000 --first 5000           seeds 5000 to 6999
//! sim --seed 17                           one again, with every event and a hash of all of them
//! sim --seeds 2000 --plant lost-tail      with a mistake in the device, which must be found
//! sim --seeds 2000 --plant late-write     with one in the wire
//! ```
//! Each seed is two simulations: workers, and queue pairs without them. Where a mistake is planted
//! it is the one that can find it.
//! Ends with 0 if every seed held, with 1 at the first that did not.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Parser, ValueEnum};
use doorbell::error::SetupError;
use doorbell::provider::fault::Plant;
use doorbell::soft::sim::Mistake as Slip;
use doorbell_examples::sim::book::Counts;
use doorbell_examples::sim::{Report, bare, run};

#[derive(Parser)]
#[command(about = "Simulates the engine from seeds", version)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    first: u64,
    /// Run one seed, and print what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// A mistake to plant in the device, or in the wire.
    #[arg(long)]
    plant: Option<Mistake>,
}

/// Names of [`Plant`], and of those of the wire.
#[derive(Clone, Copy, ValueEnum)]
enum Mistake {
    /// A send's success is reported before the peer has taken it.
    EarlySlot,
    /// A post says that it took the whole list, and lost the end of it.
    LostTail,
    /// A receive is posted a second time.
    DoubleRepost,
    /// An atomic that arrives a second time is carried out a second time.
    ReplayedAtomic,
    /// A piece of a READ's answer that is sent again has the bytes of the piece before it.
    StaleRead,
    /// A message overtakes the WRITE before it.
    LateWrite,
    /// A datagram arrives without its end.
    ShortDatagram,
    /// A datagram says that it is from who sent the one before.
    WrongSender,
}

/// Where a mistake is.
#[derive(Clone, Copy)]
enum Planted {
    Device(Plant),
    Wire(Slip),
}

impl Mistake {
    fn planted(self) -> Planted {
        match self {
            Mistake::EarlySlot => Planted::Device(Plant::EarlySlot),
            Mistake::LostTail => Planted::Device(Plant::LostTail),
            Mistake::DoubleRepost => Planted::Device(Plant::DoubleRepost),
            Mistake::ReplayedAtomic => Planted::Wire(Slip::ReplayedAtomic),
            Mistake::StaleRead => Planted::Wire(Slip::StaleRead),
            Mistake::LateWrite => Planted::Wire(Slip::LateWrite),
            Mistake::ShortDatagram => Planted::Wire(Slip::ShortDatagram),
            Mistake::WrongSender => Planted::Wire(Slip::WrongSender),
        }
    }

    fn option(self) -> &'static str {
        match self {
            Mistake::EarlySlot => " --plant early-slot",
            Mistake::LostTail => " --plant lost-tail",
            Mistake::DoubleRepost => " --plant double-repost",
            Mistake::ReplayedAtomic => " --plant replayed-atomic",
            Mistake::StaleRead => " --plant stale-read",
            Mistake::LateWrite => " --plant late-write",
            Mistake::ShortDatagram => " --plant short-datagram",
            Mistake::WrongSender => " --plant wrong-sender",
        }
    }
}

/// Both simulations of a seed, or the one that can find what is planted.
fn simulate(
    seed: u64,
    planted: Option<Planted>,
    tell: bool,
) -> Result<Vec<(&'static str, Report)>, SetupError> {
    let workers = |plant| Ok(("workers", run(seed, plant, tell)?));
    let bare = |slip| Ok(("queue pairs", bare::run(seed, slip, tell)?));
    match planted {
        None => Ok(vec![workers(None)?, bare(None)?]),
        Some(Planted::Device(plant)) => Ok(vec![workers(Some(plant))?]),
        Some(Planted::Wire(slip)) => Ok(vec![bare(Some(slip))?]),
    }
}

/// The seed that runs, for a panic to name.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let planted = arguments.plant.map_or("", Mistake::option);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        failed(SEED.load(Ordering::Relaxed), planted, "an assertion of the engine does not hold");
    }));
    let (first, count) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.first, arguments.seeds),
    };
    let mut sum = Counts::default();
    let tell = arguments.seed.is_some();
    for seed in first..first.saturating_add(count) {
        SEED.store(seed, Ordering::Relaxed);
        let reports = match simulate(seed, arguments.plant.map(Mistake::planted), tell) {
            Ok(reports) => reports,
            Err(error) => {
                eprintln!("sim: seed {seed}: {error}");
                return ExitCode::from(2);
            }
        };
        for (what, report) in &reports {
            if let Some(failure) = &report.failure {
                failed(seed, planted, failure);
            }
            if tell {
                let (hash, events) = report.history;
                println!("seed {seed}, {what}: {events} events, history {hash:016x}");
            }
            add(&mut sum, report);
        }
        if reports.iter().any(|(_, report)| report.failure.is_some()) {
            return ExitCode::FAILURE;
        }
    }
    if tell {
        return ExitCode::SUCCESS;
    }
    println!(
        "{count} seeds held: {} messages on {} connections; {} ends told of a failure, \
         {} timeouts, {} retries exhausted, {} messages refused, {} posts cut short, \
         {} replies waited, {} additions; without workers {} requests went well, and {} datagrams \
         arrived",
        sum.messages,
        sum.conns,
        sum.downs,
        sum.timeouts,
        sum.exhausted,
        sum.refused,
        sum.partial,
        sum.deferred,
        sum.atomics,
        sum.requests,
        sum.datagrams
    );
    ExitCode::SUCCESS
}

fn failed(seed: u64, planted: &str, what: &str) {
    eprintln!("sim: seed {seed} fails: {what}; again with: cargo xtask sim --seed {seed}{planted}");
}

fn add(sum: &mut Counts, report: &Report) {
    let counts = &report.counts;
    sum.messages += counts.messages;
    sum.conns += counts.conns;
    sum.downs += counts.downs;
    sum.timeouts += counts.timeouts;
    sum.exhausted += counts.exhausted;
    sum.refused += counts.refused;
    sum.partial += counts.partial;
    sum.deferred += counts.deferred;
    sum.requests += counts.requests;
    sum.atomics += counts.atomics;
    sum.datagrams += counts.datagrams;
}
