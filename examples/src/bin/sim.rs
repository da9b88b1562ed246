//! Simulates the engine over a wire in virtual time.
//!
//! ```text
//! sim --seeds 2000                        seeds 0 to 1999
//! sim --seeds 2000 --first 5000           seeds 5000 to 6999
//! sim --seeds 10000 --within 120          as many of them as fit into two minutes
//! sim --seed 17                           one again, with every event and a hash of all of them
//! sim --seeds 2000 --plant lost-tail      with a mistake in the device, which must be found
//! sim --seeds 2000 --plant late-write     with one in the wire
//! sim --plants                            the names of all mistakes
//! ```
//! Each seed is two simulations: workers, and queue pairs without them. Ends with 0 if every seed
//! held, with 1 at the first that did not, and with 1 if many seeds never used a path of the seam.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use doorbell::error::SetupError;
use doorbell::provider::call::Lane;
use doorbell_examples::sim::book::Counts;
use doorbell_examples::sim::{PLANTS, Planted, Report, bare, run};

/// A run of at least this many seeds must use every path of the seam, in both worlds.
const SEEDS_FOR_ALL: u64 = 100;

/// Paths that a worker never uses.
const NOT_OF_WORKERS: &[Lane] = &[Lane::Poll, Lane::Next, Lane::Bind];

#[derive(Parser)]
#[command(about = "Simulates the engine from seeds", version)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0, conflicts_with = "seed")]
    first: u64,
    /// Begin no seed after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
    /// Run one seed, and print what happens.
    #[arg(long)]
    seed: Option<u64>,
    /// A mistake to plant in the device, or in the wire.
    #[arg(long, value_parser = PossibleValuesParser::new(PLANTS.iter().map(|plant| plant.0)))]
    plant: Option<String>,
    /// Print the names of all mistakes, and end.
    #[arg(long)]
    plants: bool,
}

/// Names of the two worlds of a seed.
const WORLDS: [&str; 2] = ["workers", "queue pairs"];

/// Both simulations of a seed; without the second if the first fails.
fn simulate(
    seed: u64,
    planted: Option<Planted>,
    tell: bool,
) -> Result<[Option<Report>; 2], SetupError> {
    let workers = run(seed, planted, tell)?;
    if workers.failure.is_some() {
        return Ok([Some(workers), None]);
    }
    Ok([Some(workers), Some(bare::run(seed, planted, tell)?)])
}

/// The current seed, for a panic to name.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.plants {
        PLANTS.iter().for_each(|(name, _)| say(name));
        return ExitCode::SUCCESS;
    }
    let plant = PLANTS.iter().find(|(name, _)| Some(*name) == arguments.plant.as_deref());
    let option = plant.map_or(String::new(), |(name, _)| format!(" --plant {name}"));
    let (usual, words) = (std::panic::take_hook(), option.clone());
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        failed(SEED.load(Ordering::Relaxed), &words, "an assertion of the engine does not hold");
    }));
    let (first, most) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.first, arguments.seeds),
    };
    let (begin, within) = (Instant::now(), arguments.within.map(Duration::from_secs));
    let mut count = 0;
    let mut sums = [Counts::default(); 2];
    let tell = arguments.seed.is_some();
    for seed in first..first.saturating_add(most) {
        if within.is_some_and(|within| begin.elapsed() >= within) {
            break;
        }
        count += 1;
        SEED.store(seed, Ordering::Relaxed);
        let reports = match simulate(seed, plant.map(|(_, planted)| *planted), tell) {
            Ok(reports) => reports,
            Err(error) => {
                eprintln!("sim: seed {seed}: {error}");
                return ExitCode::from(2);
            }
        };
        for ((world, report), sum) in WORLDS.iter().zip(&reports).zip(&mut sums) {
            let Some(report) = report else { continue };
            if tell {
                let (hash, events) = report.history;
                say(&format!("seed {seed}, {world}: {events} events, history {hash:016x}"));
            }
            if let Some(failure) = &report.failure {
                failed(seed, &option, &format!("{world}: {failure}"));
                return ExitCode::FAILURE;
            }
            sum.add(&report.counts);
        }
    }
    if tell {
        return ExitCode::SUCCESS;
    }
    print(first, count, &sums);
    if count >= SEEDS_FOR_ALL && plant.is_none() { covered(&sums) } else { ExitCode::SUCCESS }
}

/// Prints a line. Whoever reads it may have left.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints the sums over all seeds.
fn print(first: u64, count: u64, sums: &[Counts; 2]) {
    let [workers, bare] = sums;
    say(&format!(
        "{count} seeds from {first} held: {} messages on {} connections; {} ends told of a \
         failure, {} timeouts, {} retries exhausted, {} messages refused, {} posts cut short, \
         {} replies waited, {} additions; without workers {} requests went well, and {} datagrams \
         arrived",
        workers.messages + bare.messages,
        workers.conns + bare.conns,
        workers.downs + bare.downs,
        workers.timeouts + bare.timeouts,
        workers.exhausted + bare.exhausted,
        workers.refused + bare.refused,
        workers.partial,
        workers.deferred,
        workers.atomics + bare.atomics,
        bare.requests,
        bare.datagrams
    ));
    for (world, sum) in WORLDS.iter().zip(sums) {
        let lanes = Lane::ALL.map(|lane| format!("{lane:?} {}", sum.lanes[lane as usize]));
        say(&format!("{world} by path: {}", lanes.join(", ")));
    }
}

/// An error if a path of the seam was never used.
fn covered(sums: &[Counts; 2]) -> ExitCode {
    let unused = [sums[0].unused(NOT_OF_WORKERS), sums[1].unused(&[])];
    for (world, unused) in WORLDS.iter().zip(&unused) {
        if !unused.is_empty() {
            eprintln!("sim: {world}: no seed used {unused:?}");
        }
    }
    if unused.concat().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(seed: u64, option: &str, what: &str) {
    eprintln!("sim: seed {seed} fails: {what}; again with: cargo xtask sim --seed {seed}{option}");
}
