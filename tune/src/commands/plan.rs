//! `tune plan`.

use std::path::PathBuf;

use clap::Args;
use doorbell_tune::{Plan, Request};

use crate::commands::options::{Policy, Which, bytes, write};
use crate::failure::{Failure, say};

/// Plan where workers run near a device, as TOML
///
/// Each worker gets a core of its own, memory of its node, and a shared receive queue together with
/// its neighbour. Cores near the device come first, and isolated cores before others. `tune run
/// --plan` and `doorbell-bench --plan` use the plan.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune plan --workers 4 --device mlx5_0 --out plan.toml
  tune plan --workers 2                       # for soft0, the device in memory
  tune plan --workers 64 --device mlx5_1 --root recorded/server-7")]
pub(crate) struct PlanArgs {
    /// Number of workers, each on a core of its own
    #[arg(long, value_name = "N")]
    workers: usize,
    /// The RDMA device or NIC to be near to, like mlx5_0 or eth0 [default: soft0, on no node]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Number of cores for the control plane, interrupts and other programs
    #[arg(long, value_name = "CORES", default_value_t = 1)]
    housekeeping: usize,
    /// Let two workers share a core if no other is left
    #[arg(long)]
    siblings: bool,
    /// Memory of each worker, in bytes, or with K, M or G for KiB, MiB or GiB
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = bytes)]
    memory: u64,
    /// How strictly memory comes from the workers' nodes
    #[arg(long, value_enum, default_value = "bind")]
    policy: Policy,
    /// Where to write the plan [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &PlanArgs) -> Result<u8, Failure> {
    let request = Request {
        workers: args.workers,
        device: args.device.clone(),
        housekeeping: args.housekeeping,
        siblings: args.siblings,
        memory_bytes: args.memory,
        memory: args.policy.into(),
    };
    let text = Plan::make(&args.which.machine()?, &request)?.to_toml()?;
    match &args.out {
        Some(file) => write(file, &text)?,
        None => say(&text)?,
    }
    Ok(0)
}
