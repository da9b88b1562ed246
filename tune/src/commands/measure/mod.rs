//! `tune measure`.

mod heat;
mod table;

use std::path::PathBuf;

use clap::Args;
use doorbell_tune::{Ids, Machine, Measured, Root, Scope};

use crate::commands::options::{bytes, write};
use crate::failure::{Failure, say, warn};

/// Time that a pair of cores takes, seconds.
const PAIR_S: f64 = 0.01;

/// The memory to read is this many times the size of a node's caches.
const CACHES: u64 = 4;

/// The least memory to read, bytes.
const MEMORY_MIN: u64 = 256 << 20;

/// Measure how far cores are from each other, and nodes from memory
///
/// Prints half the round trip of a flag between each two cores, in nanoseconds, and how fast the
/// cores of each node together read the memory of each node, in GB/s. Nothing else should run
/// meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune measure
  tune measure --cpus 0-7,64 --memory 0 --svg latency.svg
  tune measure --json > measured.json")]
pub(crate) struct MeasureArgs {
    /// CPUs to measure between, such as 0-3,8; a pair takes 10 ms [default: one of each core]
    #[arg(long, value_name = "LIST")]
    cpus: Option<Ids>,
    /// Memory that a node's cores read, in bytes, or with K, M or G; 0 skips it [default: four
    /// times the size of its caches, at least 256M]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Print JSON instead of a table, in nanoseconds and bytes per second
    #[arg(long)]
    json: bool,
    /// Also draw heat maps into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &MeasureArgs) -> Result<u8, Failure> {
    let machine = Machine::read(&Root::system())?;
    let usable = |core: &doorbell_tune::Core| core.cpus.and(&machine.cpus.usable).first();
    let scope = Scope {
        cpus: args
            .cpus
            .clone()
            .unwrap_or_else(|| machine.cores.iter().filter_map(usable).collect()),
        memory_bytes: args.memory.unwrap_or_else(|| memory(&machine)),
    };
    let seconds = pairs(scope.cpus.len()) as f64 * PAIR_S;
    if seconds > 10.0 {
        warn(&format_args!("this takes about {seconds:.0} s; name fewer CPUs with --cpus"));
    }
    let measured = Measured::take(&machine, &scope)?;
    if let Some(file) = &args.svg {
        write(file, &heat::svg(&measured))?;
    }
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&measured)?),
        false => table::text(&machine, &measured),
    };
    say(&text)?;
    Ok(0)
}

fn pairs(cpus: usize) -> usize {
    cpus * cpus.saturating_sub(1) / 2
}

fn memory(machine: &Machine) -> u64 {
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let of_node = |node: &doorbell_tune::Node| {
        let near = machine
            .caches
            .iter()
            .filter(|cache| Some(cache.level) == last && !cache.cpus.and(&node.cpus).is_empty());
        near.map(|cache| cache.bytes).sum::<u64>()
    };
    let most = machine.nodes.iter().map(of_node).max().unwrap_or(0);
    most.saturating_mul(CACHES).max(MEMORY_MIN)
}
