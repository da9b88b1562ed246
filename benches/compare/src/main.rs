//! Doorbell's soft device beside its peers: UCX over shared memory, iceoryx2, libfabric's shm; and
//! beside what the machine itself can do.
//!
//! Figures are taken in rounds, all peers in turn, each between two probes of the physical floor.
//! In data order: the command line (here), what is compared ([`contest`]), the rounds ([`round`],
//! with [`floor`] and [`busy`]), the peers ([`peer`], with [`process`] and [`ucx`]), the roles of
//! this program ([`ours`], [`ice`], [`limit`], with [`timing`] and [`payload`]), what came out
//! ([`outcome`], [`mod@verdict`]), and the output ([`report`]).

mod busy;
#[path = "../../src/machine/clock.rs"]
#[expect(dead_code, reason = "the benchmarks use more of it")]
mod clock;
mod contest;
mod error;
#[path = "../../src/machine/floor.rs"]
#[cfg_attr(not(test), expect(dead_code, reason = "the benchmarks use more of it"))]
mod floor;
#[path = "../../src/tell/grid.rs"]
mod grid;
mod ice;
mod limit;
mod ours;
mod outcome;
#[path = "../../src/traffic/payload.rs"]
mod payload;
mod peer;
mod process;
mod report;
mod round;
mod timing;
mod ucx;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::contest::{Contest, Setting};
use crate::error::Failure;
use crate::outcome::Outcome;
use crate::report::Document;
use crate::round::{Machine, Tries};

/// The exit code of a run that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

/// Measures Doorbell's soft device and its peers in turn, on two cores of this machine.
#[derive(Debug, Parser)]
#[command(name = "doorbell-compare", version)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Roles that only this program gives.
#[derive(Debug, Subcommand)]
enum Role {
    /// One side of Doorbell
    #[command(hide = true)]
    Doorbell(ours::SideArgs),
    /// One side of iceoryx2
    #[command(hide = true)]
    Iceoryx2(ice::SideArgs),
    /// What the machine itself can do
    #[command(hide = true)]
    Limit(limit::LimitArgs),
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// Rounds of each figure, of which the median is taken [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Fewer sizes, fewer and shorter rounds, and no settings of peers are tried
    #[arg(long)]
    quick: bool,
    /// Only two-sided messages of these sizes, in bytes, 8 at least [default: 8 to 1048576, and all
    /// other tests]
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    size: Vec<u32>,
    /// The core of the sending side, then the other's [default: chosen]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cores: Vec<usize>,
    /// The benchmark program of Doorbell
    #[arg(long, value_name = "FILE", default_value = "target/release/doorbell-bench")]
    bench: PathBuf,
    /// Where the figures go as JSON, after each round
    #[arg(long, value_name = "FILE", default_value = "target/doorbell/compare.json")]
    out: PathBuf,
}

impl CompareArgs {
    /// Time of one figure of one round, after a fifth of it to warm up.
    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 60 } else { 400 })
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.role {
        Some(Role::Doorbell(side)) => ours::run(side).map(|()| ExitCode::SUCCESS),
        Some(Role::Iceoryx2(side)) => ice::run(side).map(|()| ExitCode::SUCCESS),
        Some(Role::Limit(args)) => limit::run(args).map(|()| ExitCode::SUCCESS),
        None => compare(&cli.compare),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("doorbell-compare: {failure}");
        ExitCode::FAILURE
    })
}

/// Every contest, the tables, the file.
fn compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let cores = cores(args)?;
    report::writable(&args.out)?;
    let interrupted = on_signals()?;
    let rounds = args.rounds.unwrap_or(if args.quick { 2 } else { 5 });
    let set = Setting { bench: args.bench.clone(), cores, time: args.time() };
    let mut document = Document::new(&set, rounds)?;
    let note = |outcomes: &[Outcome], at: usize| {
        if let Some(last) = outcomes[at].rounds.last() {
            println!("{}", report::line(&outcomes[at], last));
        }
        document.update(outcomes);
        document.write(&args.out)
    };
    let mut run = Machine { set: &set, interrupted: &interrupted, note };
    let (contests, mut outcomes) = (Contest::all(&args.size, args.quick), Vec::new());
    let tries = if args.quick { Tries::Few } else { Tries::Many };
    let done = round::all(&contests, rounds, tries, &mut run, &mut outcomes);
    document.update(&outcomes);
    let is_over = interrupted.load(Ordering::Relaxed);
    if done.is_ok() && !is_over {
        document.finish();
    }
    print!("{}", document.text());
    document.write(&args.out)?;
    println!("all rounds: {}", args.out.display());
    done.map(|()| if is_over { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The first signal ends the run after the figure at hand, the second one ends the program.
fn on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&interrupted))
            .and_then(|_| flag::register(signal, Arc::clone(&interrupted)))
            .map_err(Failure::at("listen to signals"))?;
    }
    Ok(interrupted)
}

/// The two cores. Read before anything is pinned.
fn cores(args: &CompareArgs) -> Result<[usize; 2], Failure> {
    if args.cores.is_empty() {
        let chosen = doorbell_tune::choose(2)?;
        return Ok([chosen[0], chosen[1]]);
    }
    match args.cores[..] {
        [one, two] if one != two => Ok([one, two]),
        _ => Err(Failure::new("--cores: two different ones, like 1,0")),
    }
}
