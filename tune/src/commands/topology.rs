//! `tune topology`.

use clap::Args;
use doorbell_tune::Cpus;

use crate::commands::Which;
use crate::failure::{Failure, say};

/// What the machine has.
#[derive(Debug, Args)]
#[command(after_help = "Example: tune topology --json")]
pub(crate) struct TopologyArgs {
    #[command(flatten)]
    which: Which,
    /// JSON instead of a tree
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TopologyArgs) -> Result<u8, Failure> {
    let cpus = Cpus::read(&args.which.root())?;
    if args.json {
        say(&format!("{}\n", serde_json::to_string_pretty(&cpus)?))?;
        return Ok(0);
    }
    let mut text = format!("CPUs {} run, {} may be used here\n", cpus.online, cpus.usable);
    for (what, ids) in [
        ("are switched off", &cpus.offline),
        ("are isolated (isolcpus)", &cpus.isolated),
        ("have no timer ticks (nohz_full)", &cpus.tickless),
    ] {
        if !ids.is_empty() {
            text.push_str(&format!("CPUs {ids} {what}\n"));
        }
    }
    say(&text)?;
    Ok(0)
}
