//! `tune`: shows what a machine has, plans where a program should run, and finds what slows it
//! down.

mod commands;
mod failure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{check, measure, plan, run, topology};
use crate::failure::{Failure, warn};

/// Plan where programs run on a machine, and find what slows them down.
#[derive(Debug, Parser)]
#[command(name = "tune", version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    Topology(topology::TopologyArgs),
    Check(check::CheckArgs),
    Plan(plan::PlanArgs),
    Run(run::RunArgs),
    Measure(measure::MeasureArgs),
}

fn main() -> ExitCode {
    match start(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            warn(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// Runs the command and returns its exit code. A wrong command line exits with 2 before this.
fn start(command: Cmd) -> Result<u8, Failure> {
    match command {
        Cmd::Topology(args) => topology::run(&args),
        Cmd::Check(args) => check::run(&args),
        Cmd::Plan(args) => plan::run(&args),
        Cmd::Run(args) => run::run(&args),
        Cmd::Measure(args) => measure::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
