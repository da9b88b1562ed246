//! Which figures a command asks for.

use std::time::Duration;

use doorbell::worker::Config;

use crate::ask::cli::{
    BandwidthArgs, Common, CrowdArgs, DeviceArgs, LatencyArgs, LoadArgs, RateArgs, ReportArgs,
    SweepArgs,
};
use crate::ask::request::{Op, Request, Test, Transport};
use crate::ask::values::{Arrivals, Slo, Span};
use crate::error::Failure;

/// The usual sizes, in bytes.
const LATENCY_SIZES: &[u32] = &[8, 32, 64, 200, 1024, 4096];
const RATE_SIZES: &[u32] = &[8, 64, 200];
const LOAD_SIZES: &[u32] = &[64];
const BANDWIDTH_SIZES: &[u32] = &[4096, 65_536, 1 << 20, 16 << 20];

/// The usual batches of a report.
const REPORT_BATCHES: &[u32] = &[1, 16];

/// Rounds of `bandwidth`, in turn with memcpy: as many as a comparison needs.
const ROUNDS: u32 = 9;

/// Rounds with idle connections, in turn with none.
const ROUNDS_IDLE: u32 = 9;

/// Rounds of `sweep` that must be in one mode of the cores.
pub(crate) const SWEEP_ROUNDS: u32 = 15;

/// Pieces of a round of `sweep` besides those of the depths: a lone message without batching, with
/// it, and both again.
pub(crate) const SWEEP_LONE: u32 = 4;

/// Figures to measure.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) request: Request,
    /// Messages to a doorbell.
    pub(crate) batch: u32,
    /// Messages a second, for [`Test::Load`].
    pub(crate) rate: f64,
    /// When those are due.
    pub(crate) arrivals: Arrivals,
    /// Arrivals that are drawn follow from it.
    pub(crate) seed: u64,
    /// What the rate has to keep.
    pub(crate) slo: Option<Slo>,
    /// Search for the highest rate that keeps it, from `rate` on.
    pub(crate) search: bool,
    /// How often to try a rate. A search makes four times as many tries around the best one.
    pub(crate) tries: u32,
    /// Messages in flight, rising, for [`Test::Sweep`] and [`Test::Crowd`].
    pub(crate) depths: Vec<u32>,
    /// Time of each figure, over all of its rounds.
    pub(crate) time: Duration,
    /// How often each figure is measured, in turn with the others.
    pub(crate) rounds: u32,
}

impl Step {
    /// One run of the usual time.
    pub(crate) fn new(request: Request) -> Step {
        Step {
            request,
            batch: 1,
            rate: 0.0,
            arrivals: Arrivals::Fixed,
            seed: 1,
            slo: None,
            search: false,
            tries: 1,
            depths: Vec::new(),
            time: Duration::from_secs(2),
            rounds: 1,
        }
    }

    /// For people who wait for it.
    pub(crate) fn name(&self) -> String {
        let Request { test, size, .. } = self.request;
        let test = format!("{test:?}").to_lowercase();
        match test == "load" {
            true => format!("{test} {size} B {} /s", self.rate),
            false => format!("{test} {size} B"),
        }
    }

    /// How long it takes, about, with warming up; for a search longer.
    pub(crate) fn time_about(&self) -> Duration {
        self.time * 6 / 5 * if self.search { 25 } else { 1 }
    }

    /// Time of one piece.
    pub(crate) fn piece_time(&self) -> Duration {
        self.time / self.rounds
    }
}

/// The figures, in order.
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// The most workers that the serving side has.
    pub(crate) workers: u32,
    /// For a report: commands that measure the same figures again, one for each test.
    pub(crate) commands: Vec<String>,
    /// Fail if a figure breaks its limit.
    pub(crate) check: bool,
}

/// `latency`.
///
/// # Errors
/// A worker is asked for what only the device alone can do.
pub(crate) fn latency(args: &LatencyArgs) -> Result<Plan, Failure> {
    let mut plan = latencies(&args.common);
    let DeviceArgs { transport, no_srq } = args.alone;
    if !args.bare && (transport != Transport::Rc || no_srq) {
        return Err(Failure::new(
            "--transport uc and ud, and --no-srq, are for --bare: a worker counts on connections \
             that lose nothing, and its connections share one receive queue",
        ));
    }
    for step in &mut plan.steps {
        step.request.bare = args.bare;
        (step.request.transport, step.request.srq) = (transport, !no_srq);
        with_idle(step, args.idle_qps);
    }
    Ok(plan)
}

fn latencies(common: &Common) -> Plan {
    let sizes = common.sizes(LATENCY_SIZES);
    let steps = sizes.iter().map(|&size| step(common, Test::Latency, size, 1)).collect();
    Plan { steps, workers: 1, commands: Vec::new(), check: false }
}

/// Compares idle connections with none, in turn.
fn with_idle(step: &mut Step, idle_qps: u32) {
    if idle_qps > 0 {
        step.request.idle_qps = idle_qps;
        step.rounds = ROUNDS_IDLE;
        step.request.pieces = 2 * ROUNDS_IDLE;
    }
}

/// `rate`.
pub(crate) fn rate(args: &RateArgs) -> Plan {
    let mut plan = rates(&args.common, &args.batch);
    for step in &mut plan.steps {
        step.request.qps = args.qps.unwrap_or(args.ranks.workers);
        step.request.workers = args.ranks.workers;
        with_idle(step, args.idle_qps);
    }
    plan.workers = args.ranks.workers;
    plan
}

/// Where the search of `--slo` begins, messages a second.
const RATE_FIRST: f64 = 10e3;

/// `load`.
///
/// # Errors
/// No rate is named, and none follows from the other options.
pub(crate) fn load(args: &LoadArgs) -> Result<Plan, Failure> {
    let LoadArgs { common, arrivals, seed, slo, .. } = args;
    let sizes = common.sizes(LOAD_SIZES);
    let mut wanted = Span::all(&args.rate);
    if wanted.is_empty() {
        wanted.push(match (slo, arrivals) {
            (Some(_), _) => RATE_FIRST,
            (None, Arrivals::Recorded(recorded)) => recorded.rate(),
            (None, _) => {
                return Err(Failure::new(
                    "--rate: name the messages due each second, such as 500k or 10k..1M, or search \
                     with --slo p99.9=5us",
                ));
            }
        });
    }
    let search = slo.is_some() && wanted.len() == 1;
    // Of several rates each has its tries, in turn with those of the others.
    let passes = if slo.is_some() && !search { args.tries } else { 1 };
    let each = |&size| {
        let rates = (0..passes).flat_map(|_| wanted.iter());
        rates.map(move |&rate| Step {
            rate,
            arrivals: arrivals.clone(),
            seed: *seed,
            slo: *slo,
            search,
            tries: args.tries,
            ..step(common, Test::Load, size, 1)
        })
    };
    let steps = sizes.iter().flat_map(each).collect();
    Ok(Plan { steps, workers: 1, commands: Vec::new(), check: false })
}

/// `sweep`.
pub(crate) fn sweep(args: &SweepArgs) -> Plan {
    let common = &args.common;
    let sizes = common.sizes(LOAD_SIZES);
    let mut depths = args.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let each = |&size| {
        let mut step = step(common, Test::Sweep, size, 1);
        step.depths.clone_from(&depths);
        step.rounds = SWEEP_ROUNDS;
        // A round is a run of its own, because it may have to be repeated.
        step.request.pieces = depths.len() as u32 + SWEEP_LONE;
        step
    };
    let steps = sizes.iter().map(each).collect();
    Plan { steps, workers: 1, commands: Vec::new(), check: args.check }
}

/// `crowd`.
pub(crate) fn crowd(args: &CrowdArgs) -> Plan {
    let CrowdArgs { common, qps, idle_qps, receives, depth } = args;
    let sizes = common.sizes(LOAD_SIZES);
    let each = |&size| {
        let mut step = step(common, Test::Crowd, size, 1);
        (step.request.qps, step.request.receives) = (*qps, *receives);
        step.depths = vec![*depth];
        with_idle(&mut step, *idle_qps);
        step
    };
    let steps = sizes.iter().map(each).collect();
    Plan { steps, workers: 1, commands: Vec::new(), check: false }
}

/// `bandwidth`.
///
/// # Errors
/// The transport cannot do it.
pub(crate) fn bandwidth(args: &BandwidthArgs) -> Result<Plan, Failure> {
    let common = &args.common;
    let transport = args.transport;
    let is_carried = match transport {
        Transport::Rc => true,
        Transport::Uc => args.op.iter().all(|op| *op == Op::Write),
        Transport::Ud => false,
    };
    if !is_carried {
        return Err(Failure::new(
            "--transport: bandwidth of uc is of --op write: it has no READ, and nothing holds its \
             SENDs back when receives run out; ud has neither, see latency --bare --transport ud",
        ));
    }
    let sizes = common.sizes(BANDWIDTH_SIZES);
    let each = |&size| {
        args.op.iter().map(move |&op| {
            let mut step = step(common, Test::Bandwidth, size, 1);
            (step.rounds, step.request.pieces) = (ROUNDS, ROUNDS);
            (step.request.op, step.request.window) = (op, args.batch);
            step.request.bare = true;
            step.request.transport = transport;
            step
        })
    };
    let steps = sizes.iter().flat_map(each).collect();
    Ok(Plan { steps, workers: 1, commands: Vec::new(), check: false })
}

/// Messages due each second in a report.
const REPORT_RATES: [f64; 6] = [10e3, 100e3, 500e3, 1e6, 2e6, 4e6];

/// `report`: latencies, rates, and round trips under load.
pub(crate) fn report(args: &ReportArgs) -> Plan {
    let common = &args.common;
    let mut plan = latencies(common);
    plan.steps.extend(rates(common, REPORT_BATCHES).steps);
    let size = LOAD_SIZES[0];
    let load = |rate| Step { rate, ..step(common, Test::Load, size, 1) };
    let poisson = |step| Step { arrivals: Arrivals::Poisson, ..step };
    plan.steps.extend(REPORT_RATES.map(load).map(poisson));
    let due = REPORT_RATES.map(|rate| rate.to_string()).join(",");
    let sizes = |usual| list(&common.sizes(usual));
    let (latency, rate) = (sizes(LATENCY_SIZES), sizes(RATE_SIZES));
    let tests = [
        format!("latency --size {latency}"),
        format!("rate --size {rate} --batch {}", list(REPORT_BATCHES)),
        format!("load --size {size} --rate {due} --arrivals poisson"),
    ];
    let rest = rest(common);
    plan.commands.extend(tests.map(|test| format!("doorbell-bench {test}{rest}")));
    plan
}

fn rates(common: &Common, batches: &[u32]) -> Plan {
    let sizes = common.sizes(RATE_SIZES);
    let each = |&size| batches.iter().map(move |&batch| step(common, Test::Rate, size, batch));
    let steps = sizes.iter().flat_map(each).collect();
    Plan { steps, workers: 1, commands: Vec::new(), check: false }
}

fn step(common: &Common, test: Test, size: u32, batch: u32) -> Step {
    // `soft` is set later, when the device is open.
    let request = Request { signal_every: common.signal_every, ..Request::new(test, size) };
    Step { batch, time: common.time(), ..Step::new(request) }
}

/// The options of a command that matter for its figures.
fn rest(common: &Common) -> String {
    let mut text = format!(" --duration {}", common.time().as_secs_f64());
    if let Some(device) = &common.device {
        text.push_str(&format!(" --device {device}"));
    }
    if !common.cores.is_empty() {
        let cores: Vec<String> = common.cores.iter().map(usize::to_string).collect();
        text.push_str(&format!(" --cores {}", cores.join(",")));
    }
    if common.threads {
        text.push_str(" --threads");
    }
    if let Some(addr) = common.connect {
        text.push_str(&format!(" --connect {addr}"));
    }
    if let Some(addr) = common.addr {
        text.push_str(&format!(" --addr {addr}"));
    }
    if common.signal_every != Config::DEFAULT.signal_every {
        text.push_str(&format!(" --signal-every {}", common.signal_every));
    }
    text
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::ask::cli::{Cli, Cmd};

    /// The steps of a command.
    fn steps(line: &str) -> Vec<Step> {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Cmd::Latency(args) => latency(&args).unwrap().steps,
            Cmd::Rate(args) => rate(&args).steps,
            Cmd::Load(args) => load(&args).unwrap().steps,
            _ => panic!("{line}"),
        }
    }

    #[test]
    fn the_commands_of_a_report_measure_its_figures_again() {
        for options in ["", "--size 8,100 --signal-every 3 --duration 0.5", "--quick"] {
            let options = format!("{options} --device soft0 --addr 127.0.0.2 --cores 0,1");
            let words = format!("doorbell-bench report {options}");
            let Cmd::Report(args) = Cli::parse_from(words.split_whitespace()).command else {
                panic!("{words}")
            };
            let plan = report(&args);
            let again: Vec<Step> = plan.commands.iter().flat_map(|line| steps(line)).collect();
            let figures = |steps: &[Step]| -> Vec<_> {
                let of = |step: &Step| (step.request, step.batch, step.rate.to_bits(), step.time);
                steps.iter().map(of).collect()
            };
            assert_eq!(figures(&again), figures(&plan.steps));
            for command in &plan.commands {
                for part in ["--device soft0", "--addr 127.0.0.2", "--cores 0,1"] {
                    assert!(command.contains(part), "{command}");
                }
            }
        }
    }
}
