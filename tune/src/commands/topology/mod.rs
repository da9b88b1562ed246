//! `tune topology`.

mod layout;
mod picture;
mod tree;

use std::path::PathBuf;

use clap::Args;

use crate::commands::{Which, write};
use crate::failure::{Failure, say};

/// What the machine has: packages, nodes, cores, devices
///
/// Packages, NUMA nodes with their memory, caches, cores with their hardware threads, NICs and RDMA
/// devices with their PCIe links. Memory is in GiB, caches in KiB and MiB, lanes in GT/s; in JSON
/// everything is in bytes and GT/s.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune topology
  tune topology --svg machine.svg
  tune topology --json | jq '.devices[] | {name, node}'")]
pub(crate) struct TopologyArgs {
    #[command(flatten)]
    which: Which,
    /// JSON instead of a tree
    #[arg(long)]
    json: bool,
    /// Draw a picture, too, in a file of that name
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &TopologyArgs) -> Result<u8, Failure> {
    let machine = args.which.machine()?;
    if let Some(file) = &args.svg {
        write(file, &picture::svg(&machine))?;
    }
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&machine)?),
        false => tree::text(&machine),
    };
    say(&text)?;
    Ok(0)
}
