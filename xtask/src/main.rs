//! The commands of this repository: `cargo xtask COMMAND`.
//!
//! In reading order: [`place`] says where things are, [`members`] which packages there are,
//! [`exec`] runs programs, [`packages`] and [`setup`] fetch what the machine lacks, [`machine`] and
//! [`vm`] boot a kernel with an RDMA device, and [`ladder`] runs the table of checks in [`steps`].

mod apart;
mod args;
mod arrows;
mod asan;
mod bare;
mod bench;
mod clauses;
mod compare;
mod count;
mod exec;
mod hazards;
mod ladder;
mod machine;
mod members;
mod packages;
mod panics;
mod perftest;
mod place;
mod recorded;
mod report;
mod setup;
mod sim;
mod steps;
mod suite;
mod tidy;
mod toolchain;
mod trials;
mod unpack;
mod unsafes;
mod uses;
mod vm;

use std::process::ExitCode;

/// The result of a command: the exit code for the shell, or a sentence that says what went wrong
/// and how to fix it.
pub(crate) type Outcome<T> = Result<T, String>;

const HELP: &str = "\
cargo xtask COMMAND

  test [--only STEP,..] [--skip STEP,..]   all checks, in order; the last line counts them
  bench [ARGS]                             build and run the benchmark report; ARGS go to it
  bench --results [ARGS]                   measure everything and write benches/RESULTS.md
  compare [--rounds N] [--quick]           measure soft0 beside UCX, iceoryx2 and libfabric, in turn
  compare --results [--rounds N]           the same, and write its section of benches/RESULTS.md
  compare --device NAME [--addr IP] [--rounds N] [--quick] [--results]
                                           an RDMA device beside perftest and cmtime; rxe0 is
                                           that of the virtual machine where there is none
  trials [--compare] [--slo] [--count N]   whether the benchmark calls a slower build slower and the
                                           same build no different, and finds the best rate
  sim [--seeds N [--first S]] [--seed S]   simulate the engine from seeds, or one again
  clauses [--record]                       write cm/CLAUSES.md; run the suite on both devices first
  recorded [FOLDER]                        how tune reads recorded machines, one in each folder of
                                           FOLDER, beside hwloc [those of hwloc's own tests]
  vm run [OPTIONS] -- CMD                  CMD in a virtual machine with the RDMA device rxe0
  vm pair [OPTIONS] -- SERVER ::: CLIENT   two machines on one wire, 192.168.78.1 and .2
  vm ranks                                 ranks of the benchmark on two machines
  setup                                    fetch all that the commands above need, and no more

VM options
  --cpus N          processors of a machine (2; 4 with --numa)
  --memory SIZE     memory of a machine, in M or G (4G)
  --numa            two NUMA nodes of equal size (vm run)
  --hugepages N     N huge pages of 2 MiB, reserved before CMD starts
  --limit SECONDS   end a machine that takes longer (1200)
  --append WORDS    words for the kernel's command line, e.g. idle=poll
  --loss PERCENT    lose packets in both directions, e.g. 1% (vm pair)

CMD runs as root from the repository root and sees this machine's files. What it writes under
target/doorbell/vm-out/ comes back; /tmp is writable and vanishes. A CMD of one word with spaces
in it is a shell line.
";

const COMMANDS: &[&str] =
    &["test", "bench", "compare", "trials", "sim", "clauses", "recorded", "vm", "setup", "help"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match words.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &words[..]),
    };
    let outcome = match command {
        "test" => ladder::run(rest),
        "bench" => bench::run(rest),
        "compare" => compare::run(rest),
        "trials" => trials::run(rest),
        "sim" => sim::run(rest),
        "clauses" => clauses::run(rest),
        "recorded" => recorded::run(rest),
        "vm" => vm::run(rest),
        "setup" => setup::all().map(|()| 0),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(0)
        }
        other => {
            let meant = args::meant(other, COMMANDS);
            Err(format!("there is no command `{other}`; {meant}; cargo xtask help explains them"))
        }
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(1)
        }
    }
}
