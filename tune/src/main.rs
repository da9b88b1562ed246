//! `tune`: what a machine has, where a program should run on it, and what is wrong.

mod commands;
mod failure;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{check, measure, plan, run, topology};
use crate::failure::{Failure, complain};

/// Placement: cores, nodes, and what is wrong with them.
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
            complain(&failure.text);
            ExitCode::from(failure.code)
        }
    }
}

/// The command's exit code; 2 is a wrong command line.
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
    fn the_command_line_holds_together() {
        Cli::command().debug_assert();
    }
}
