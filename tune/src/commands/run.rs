//! `tune run`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use doorbell_tune::{PLAN_VARIABLE, Plan, run_on, take_memory};

use crate::commands::options::Policy;
use crate::failure::Failure;

/// Exit codes as in env(1): this program failed, the command cannot be run, it was not found.
const OURS: u8 = 125;
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Run a program where a plan says
///
/// Its threads run on the CPUs of the plan's workers, and its memory comes from their nodes. The
/// variable DOORBELL_PLAN has the plan's path, so that the program can pin each worker to its own
/// CPU: the kernel does not spread threads over isolated CPUs by itself. The program replaces this
/// one, so its exit code and signals are its own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tune run --plan plan.toml -- doorbell-bench rate --workers 2
  tune run --plan plan.toml --with-housekeeping -- ./server

Exit code: that of the program; 125 if the plan cannot be applied, 126 if the program cannot be run,
127 if it was not found.")]
pub(crate) struct RunArgs {
    /// The plan, written by `tune plan`
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Also use the CPUs for housekeeping: for a program that pins its workers itself
    #[arg(long)]
    with_housekeeping: bool,
    /// How strictly memory comes from the plan's nodes [default: that of the plan]
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
    // execve(2) keeps the thread's mask and memory policy.
    run_on(&cpus).map_err(ours)?;
    let memory = args.policy.map_or(plan.memory, Into::into);
    take_memory(memory, &plan.memory_nodes()).map_err(ours)?;
    let path = std::path::absolute(&args.plan).map_err(ours)?;
    let Some((program, words)) = args.command.split_first() else { return Ok(0) };
    let error = Command::new(program).args(words).env(PLAN_VARIABLE, path).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
    let text = format!(
        "cannot run {}: {error}; name a program in PATH, or its path",
        program.to_string_lossy()
    );
    Err(Failure::new(text).with_code(code))
}

fn ours(error: impl std::error::Error) -> Failure {
    Failure::from(error).with_code(OURS)
}
