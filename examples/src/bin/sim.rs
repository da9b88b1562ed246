//! Simulates the engine over a wire in virtual time.
//!
//! ```text
//! sim --seeds 2000                        seeds 0 to 1999
//! sim --seeds 2000 --first 5000           seeds 5000 to 6999
//! sim --seed 17                           one again, with every event and a hash of all of them
//! sim --seeds 2000 --plant lost-tail      with a mistake in the device, which must be found
//! ```
//! Ends with 0 if every seed held, with 1 at the first that did not.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Parser, ValueEnum};
use doorbell_engine::provider::fault::Plant;
use doorbell_examples::sim::book::Counts;
use doorbell_examples::sim::{Report, run};

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
    /// A mistake to plant in the device.
    #[arg(long)]
    plant: Option<Mistake>,
}

/// Names of [`Plant`].
#[derive(Clone, Copy, ValueEnum)]
enum Mistake {
    /// A send's success is reported before the peer has taken it.
    EarlySlot,
    /// A post says that it took the whole list, and lost the end of it.
    LostTail,
    /// A receive is posted a second time.
    DoubleRepost,
}

impl Mistake {
    fn plant(self) -> Plant {
        match self {
            Mistake::EarlySlot => Plant::EarlySlot,
            Mistake::LostTail => Plant::LostTail,
            Mistake::DoubleRepost => Plant::DoubleRepost,
        }
    }

    fn option(self) -> &'static str {
        match self {
            Mistake::EarlySlot => " --plant early-slot",
            Mistake::LostTail => " --plant lost-tail",
            Mistake::DoubleRepost => " --plant double-repost",
        }
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
    for seed in first..first.saturating_add(count) {
        SEED.store(seed, Ordering::Relaxed);
        let plant = arguments.plant.map(Mistake::plant);
        let report = match run(seed, plant, arguments.seed.is_some()) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("sim: seed {seed}: {error}");
                return ExitCode::from(2);
            }
        };
        if let Some(failure) = &report.failure {
            failed(seed, planted, failure);
        }
        if arguments.seed.is_some() {
            let (hash, events) = report.history;
            println!("seed {seed}: {events} events, history {hash:016x}");
            return ExitCode::from(u8::from(report.failure.is_some()));
        }
        if report.failure.is_some() {
            return ExitCode::FAILURE;
        }
        add(&mut sum, &report);
    }
    println!(
        "{count} seeds held: {} messages on {} connections; {} ends told of a failure, \
         {} timeouts, {} retries exhausted, {} messages refused, {} posts cut short, \
         {} replies waited",
        sum.messages,
        sum.conns,
        sum.downs,
        sum.timeouts,
        sum.exhausted,
        sum.refused,
        sum.partial,
        sum.deferred
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
}
