//! `tune run`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use doorbell_tune::{PLAN_VARIABLE, Plan, run_on, take_memory};

use crate::commands::Policy;
use crate::failure::Failure;

/// Exit codes as of env(1): this program failed, the command cannot be run, there is none.
const OURS: u8 = 125;
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Run a program where a plan says
///
/// Its threads run on the CPUs of the plan's workers, its memory is of their nodes. The variable
/// DOORBELL_PLAN tells it the plan's path, so that it can pin each worker to its own CPU; threads
/// that nobody pins are not spread over isolated CPUs by the kernel. The program takes this one's
/// place: its exit code and signals are its own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune run --plan plan.toml -- doorbell-bench rate --workers 2
  tune run --plan plan.toml --with-housekeeping -- ./server

Exit code: the program's; 125 if the plan cannot be kept, 126 if the program cannot be run, 127 if
there is none.")]
pub(crate) struct RunArgs {
    /// The plan, as `tune plan` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// The CPUs for housekeeping, too: for a program that pins its workers itself
    #[arg(long)]
    with_housekeeping: bool,
    /// How strictly memory comes from the plan's nodes [default: as the plan says]
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let plan = Plan::load(&args.plan).map_err(ours)?;
    let cpus = match args.with_housekeeping {
        true => plan.cpus().or(&plan.housekeeping),
        false => plan.cpus(),
    };
    // Both outlive what follows: execve(2) keeps a thread's mask and memory policy.
    run_on(&cpus).map_err(ours)?;
    let memory = args.policy.map_or(plan.memory, Into::into);
    take_memory(memory, &plan.memory_nodes()).map_err(ours)?;
    let path = std::path::absolute(&args.plan).map_err(ours)?;
    let Some((program, words)) = args.command.split_first() else { return Ok(0) };
    let error = Command::new(program).args(words).env(PLAN_VARIABLE, path).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
    let text = format!(
        "asked to run {}, the system answered: {error}; name a program of PATH, or its path",
        program.to_string_lossy()
    );
    Err(Failure::new(text).with_code(code))
}

fn ours(error: impl std::error::Error) -> Failure {
    Failure::from(error).with_code(OURS)
}
