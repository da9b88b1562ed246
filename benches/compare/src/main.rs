//! Doorbell's soft device beside its peers: UCX over shared memory, iceoryx2, libfabric's shm.
//!
//! Each figure is taken in rounds, all peers in turn, each between two probes of the physical
//! floor. A round in which the cores moved, or others used them, is dropped and repeated. In data
//! order: the command line (here), what is compared ([`contest`]), the rounds ([`round`], with
//! [`floor`] and [`busy`]), the peers ([`peer`], with [`process`] and [`ice`]), and the output
//! ([`report`]).

mod busy;
#[path = "../../src/machine/clock.rs"]
#[expect(dead_code, reason = "the benchmarks use more of it")]
mod clock;
mod contest;
mod error;
#[path = "../../src/machine/floor.rs"]
mod floor;
mod ice;
mod peer;
mod process;
mod report;
mod round;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::contest::{Contest, Setting};
use crate::error::Failure;

/// Measures Doorbell's soft device and its peers in turn, on two cores of this machine.
#[derive(Debug, Parser)]
#[command(name = "doorbell-compare", version)]
struct Cli {
    #[command(subcommand)]
    peer: Option<Cmd>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Roles that only this program gives.
#[derive(Debug, Subcommand)]
enum Cmd {
    /// One side of iceoryx2
    #[command(hide = true)]
    Iceoryx2(ice::SideArgs),
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// Rounds of each figure, of which the median is taken [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Bytes of a message, 8 at least
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8,32,64,200",
        value_parser = clap::value_parser!(u32).range(8..=4096))]
    size: Vec<u32>,
    /// The core of the sending side, then the other's [default: chosen]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    cores: Vec<usize>,
    /// The benchmark program of Doorbell
    #[arg(long, value_name = "FILE", default_value = "target/release/doorbell-bench")]
    bench: PathBuf,
    /// Where the figures go as JSON
    #[arg(long, value_name = "FILE", default_value = "target/doorbell/compare.json")]
    out: PathBuf,
}

impl CompareArgs {
    /// Time of one figure of one round, after a fifth of it to warm up.
    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 800 })
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.peer {
        Some(Cmd::Iceoryx2(side)) => ice::run(side),
        None => compare(&cli.compare),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("doorbell-compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Every contest, the table, the file.
fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let cores = cores(args)?;
    report::writable(&args.out)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 5 });
    let setting = Setting { bench: args.bench.clone(), cores, time: args.time() };
    let mut results = Vec::new();
    for contest in Contest::all(&args.size) {
        eprint!("{contest} ...");
        let result = round::run(&contest, &setting, rounds)?;
        eprintln!(" {} rounds of {}, {} dropped", result.kept(), rounds, result.dropped.len());
        results.push(result);
    }
    let document = report::Document::new(&setting, rounds, results)?;
    print!("{}", report::text(&document));
    document.write(&args.out)?;
    println!("{}", args.out.display());
    Ok(())
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
