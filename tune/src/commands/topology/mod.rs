//! `tune topology`.

mod layout;
mod picture;
mod tree;

use std::path::{Path, PathBuf};

use clap::Args;
use doorbell_tune::{Machine, Root};

use crate::commands::options::{Which, write};
use crate::failure::{Failure, say};

/// Show what the machine has: packages, nodes, cores, devices
///
/// Packages, NUMA nodes with their memory, caches, cores with their hardware threads, NICs and RDMA
/// devices with their PCIe links. Memory is in GiB, caches in KiB and MiB, the speed of a lane in
/// GT/s; in JSON all sizes are in bytes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune topology
  tune topology --svg machine.svg
  tune topology --record server-7 && tune plan --workers 4 --root server-7
  tune topology --json | jq '.devices[] | {name, node}'")]
pub(crate) struct TopologyArgs {
    #[command(flatten)]
    which: Which,
    /// Print JSON instead of a tree
    #[arg(long)]
    json: bool,
    /// Also record the machine in this folder, for --root here or elsewhere
    #[arg(long, value_name = "FOLDER", conflicts_with = "xml")]
    record: Option<PathBuf>,
    /// Also draw a picture into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &TopologyArgs) -> Result<u8, Failure> {
    let machine = args.which.machine()?;
    if let Some(folder) = &args.record {
        record(&args.which.root(), folder)?;
    }
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

/// Copies the files that a machine is read from.
fn record(root: &Root, folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        let folder = folder.display();
        return Err(Failure::new(format_args!("{folder} exists already; name a new folder")));
    }
    let machine = Machine::from_files(&root.clone().recorded_in(folder))?;
    let copy = Machine::from_files(&Root::at(folder))?;
    // Free memory may change between the two.
    let same = machine.cores == copy.cores
        && machine.cpus == copy.cpus
        && machine.devices == copy.devices
        && machine.memory_nodes == copy.memory_nodes;
    match same {
        true => Ok(()),
        false => Err(Failure::new(format_args!(
            "the copy in {} differs from the machine; is the disk full?",
            folder.display()
        ))),
    }
}
