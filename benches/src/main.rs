//! Core-pinned benchmarks of Doorbell: latency, rate and more between two processes of one machine,
//! two threads of one process, or two hosts, on any device.
//!
//! In data order: the options ([`ask`]), the machine ([`machine`]), how two sides meet ([`meet`]),
//! what one side does, with the device alone ([`bare`]) or with a worker ([`side`]), what is
//! measured ([`measure`]) and counted ([`mod@overhead`]), many kinds of [`mod@traffic`] beside a
//! naive ring, many [`ranks`], one run beside another ([`versus`]), and the output ([`tell`]).

mod ask;
mod bare;
mod error;
mod machine;
mod measure;
mod meet;
mod overhead;
mod ranks;
mod side;
mod tell;
mod traffic;
mod versus;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use doorbell::soft::SoftDevice;
use doorbell::{Device, Fabric, Program};
use serde_json::Value;

use crate::ask::cli::{
    Cli, Cmd, Common, CompareArgs, ConnectArgs, OverheadArgs, RankArgs, ReportArgs, ResultsArgs,
    ServeArgs, TrafficArgs,
};
use crate::ask::plan::{self, Plan};
use crate::ask::request::Test;
use crate::ask::{choose, placed};
use crate::error::Failure;
use crate::machine::Machine;
use crate::machine::clock::Clock;
use crate::machine::interrupt;
use crate::measure::connect;
use crate::measure::record::{self, Document};
use crate::measure::run::{self, Bench};
use crate::meet::other::{self, Other, Place};
use crate::overhead::{count, counted, limits};
use crate::ranks::launch::Launch;
use crate::ranks::local;
use crate::ranks::run::Asked;
use crate::side::serve;
use crate::tell::ending::{Ending, baseline, beside_baseline, lost, notes};
use crate::tell::sheet::{Out, Sheet};
use crate::tell::{results, table};
use crate::traffic::row::Traffic;
use crate::versus::turns::Turns;
use crate::versus::verdict::Verdict;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or version. If nobody reads it, nothing is lost.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            error::complain(&one_line(&error));
            return ExitCode::from(2);
        }
    };
    match start(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_said() {
                error::complain(&failure);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// What is wrong with the command line, without the usage text.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let what = "latency, rate, load, sweep, crowd, traffic, bandwidth or overhead";
        return format!("name what to measure: {what}; see --help");
    }
    // The first paragraph, and the tip. Missing arguments stand indented below its first line.
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let first = paragraphs.next().unwrap_or(&text);
    let tip = paragraphs.find(|paragraph| paragraph.starts_with("tip: "));
    let lines = [Some(first.strip_prefix("error: ").unwrap_or(first)), tip].into_iter().flatten();
    let lines: Vec<String> =
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    format!("{}; see --help", lines.join("; "))
}

fn start(mut command: Cmd) -> Result<(), Failure> {
    if let Some(common) = command.common() {
        placed::enter(common)?;
    }
    match command {
        Cmd::Serve(args) => {
            let device = Device::named(&args.device)?;
            let soft = choose::is_soft(&device);
            device.run(Parent { args: &args, soft })
        }
        Cmd::Latency(args) => bench(&args.common, plan::latency(&args)?, Some(&args.ranks), None),
        Cmd::Rate(args) => bench(&args.common, plan::rate(&args), Some(&args.ranks), None),
        Cmd::Load(args) => bench(&args.common, plan::load(&args)?, None, None),
        Cmd::Sweep(args) => bench(&args.common, plan::sweep(&args), None, None),
        Cmd::Crowd(args) => bench(&args.common, plan::crowd(&args), None, None),
        Cmd::Bandwidth(args) => bench(&args.common, plan::bandwidth(&args)?, None, None),
        Cmd::Overhead(args) => overhead(&args),
        Cmd::Count(args) => counted::run(&SoftDevice::open()?, &args.size, args.messages),
        Cmd::Results(args) => results(&args),
        Cmd::Compare(args) => compare(&args),
        Cmd::Connect(args) => connect(&args),
        Cmd::ConnectServe(args) => connect::serve(&args),
        Cmd::Report(args) => {
            bench(&args.common, plan::report(&args), Some(&args.ranks), Some(&args))
        }
        Cmd::Traffic(args) => traffic(&args),
    }
}

/// Counts, prints, and holds the figures against the limits.
fn overhead(args: &OverheadArgs) -> Result<(), Failure> {
    let out = Out::open(args.json.as_deref())?;
    let sheet = args.save.as_deref().map(Sheet::open).transpose()?;
    let machine = Machine::look(&Clock::new());
    let counted = count::count(args)?;
    let limits = sheet.is_some().then(|| limits::text(&counted)).transpose()?;
    let document = Document {
        results: counted.records.clone(),
        hot_function_bytes: counted.bytes.clone(),
        machine,
        commit: machine::commit(),
        command: command(),
        interrupted: false,
    };
    let mut text = table::text(&document);
    text.push_str(&table::hot_functions(&limits::bytes_beside_limits(&counted)));
    out.tell(&record::to_json(&document)?, &text)?;
    match (sheet, limits) {
        (Some(sheet), Some(limits)) => sheet.write(&limits),
        _ if args.check => limits::check(&counted),
        _ => Ok(()),
    }
}

/// Runs the other commands and writes the page.
fn results(args: &ResultsArgs) -> Result<(), Failure> {
    let sheet = Sheet::open(&args.out)?;
    let page = match args.only_compare {
        true => results::with_sections(args)?,
        false => results::page(args, &Machine::look(&Clock::new()))?,
    };
    sheet.write(&page)?;
    error::say(&format!("{}\n", args.out.display()))
}

fn connect(args: &ConnectArgs) -> Result<(), Failure> {
    let out = Out::open(args.json.as_deref())?;
    let figures = connect::measure(args)?;
    out.tell(&record::to_json(&figures)?, &figures.line())
}

/// Holds one run against another.
fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let least = args.least / 100.0;
    let verdict = if args.command.is_empty() {
        Verdict::of(&versus::read(&args.before)?, &versus::read(&args.after)?, least)
    } else {
        let programs = [args.before.as_path(), &args.after];
        let sheet = args.json.as_deref().map(Sheet::open).transpose()?;
        let turns = Turns { programs, command: &args.command, rounds: args.rounds, least };
        let (verdict, rounds) = turns.run()?;
        sheet.map(|sheet| sheet.write(&record::to_json(&rounds)?)).transpose()?;
        verdict
    };
    if let Some(file) = &args.csv {
        verdict.write_csv(file)?;
    }
    error::say(&verdict.text())?;
    interrupt::check(verdict.rows.len(), "figures")?;
    verdict.exit()
}

/// Measures the rows of traffic.
fn traffic(args: &TrafficArgs) -> Result<(), Failure> {
    let plan = traffic::run::Plan::new(args)?;
    let common = &args.common;
    let out = Out::open(common.json.as_deref())?;
    let baseline = baseline(common)?;
    let device = Device::choose(common.device.as_deref(), common.addr)?;
    let soft = choose::is_soft(&device);
    let ip = choose::address(&device, common.addr)?;
    let cores = choose::cores(common, 1)?;
    device.run(Rows { common, plan, out, baseline, ip, cores, soft })
}

/// The program of `traffic`.
struct Rows<'a> {
    common: &'a Common,
    plan: traffic::run::Plan,
    out: Out,
    baseline: Option<Value>,
    ip: IpAddr,
    cores: Vec<usize>,
    soft: bool,
}

impl Program for Rows<'_> {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(mut self, fabric: F) -> Result<(), Failure> {
        self.plan.soft = self.soft;
        self.cores.truncate(2);
        let other = beside(&fabric, self.common, self.ip, &self.cores, self.soft)?;
        interrupt::watch()?;
        let clock = Clock::new();
        let machine = Machine::look(&clock);
        let mut bench = Bench { fabric: &fabric, clock, cores: self.cores, other, machine };
        let (results, cache_counters) = traffic::run::run(&mut bench, &self.plan)?;
        let document = Document {
            results,
            hot_function_bytes: BTreeMap::new(),
            machine: bench.machine,
            commit: machine::commit(),
            command: command(),
            interrupted: interrupt::is_asked(),
        };
        let traffic = Traffic { document, seed: self.plan.seed, cache_counters };
        let json = record::to_json(&traffic)?;
        self.out.tell(&json, &traffic.text())?;
        notes(self.common, &traffic.document.machine);
        lost(traffic.document.results.iter().map(|figures| figures.wrong).sum())?;
        interrupt::check(traffic.document.results.len(), "rows")?;
        beside_baseline(self.common, self.baseline.as_ref(), &json)
    }
}

/// The serving side on this machine: a thread or a process.
fn beside<F: Fabric>(
    fabric: &F,
    common: &Common,
    ip: IpAddr,
    cores: &[usize],
    soft: bool,
) -> Result<Other, Failure> {
    let place = Place { ip, cores: cores[1..].to_vec(), soft };
    match common.threads {
        true => {
            let fabric = fabric.clone();
            // A failure goes over the line.
            Other::thread(move |line| _ = serve::serve(&fabric, &place, line))
        }
        false => Other::process(&fabric.caps().device, &place),
    }
}

/// Chooses device, cores and the other side, and measures or serves.
fn bench(
    common: &Common,
    plan: Plan,
    ranks: Option<&RankArgs>,
    report: Option<&ReportArgs>,
) -> Result<(), Failure> {
    let is_two = common.listen.is_some() || common.connect.is_some();
    let launch = if is_two { None } else { Launch::look()? };
    match (launch, ranks) {
        (Some(launch), Some(args)) => return in_ranks(common, plan, (args, report), launch),
        (None, Some(args)) => {
            if let Some(size) = args.ranks {
                let (_others, launch) = local::start(size)?;
                return in_ranks(common, plan, (args, report), launch);
            }
            ranks::run::check_two_sides(args, &plan.steps)?;
        }
        (Some(launch), None) => ranks::run::check(&plan.steps).map_err(|failure| {
            // Each rank has the same reason.
            if launch.rank == 0 { failure } else { Failure::said(1) }
        })?,
        (None, None) => {}
    }
    let ending = Ending::open(common, &plan, report)?;
    let mut called = None;
    let mut addr = common.addr.or(common.listen.map(|addr| addr.ip()));
    if let Some(to) = common.connect {
        let (other, local) = Other::call(to)?;
        (called, addr) = (Some(other), Some(local));
    }
    let device = Device::choose(common.device.as_deref(), addr)?;
    let soft = choose::is_soft(&device);
    let ip = choose::address(&device, addr)?;
    let cores = choose::cores(common, plan.workers)?;
    device.run(Main { common, plan, ending, called, ip, cores, soft })
}

/// Measures as one of many ranks. Rank 0 reports.
fn in_ranks(
    common: &Common,
    mut plan: Plan,
    (args, report): (&RankArgs, Option<&ReportArgs>),
    launch: Launch,
) -> Result<(), Failure> {
    if report.is_some() {
        // Loads have two sides.
        plan.steps.retain(|step| step.request.test != Test::Load);
    }
    // Those are of two sides. The command line says how the ranks measure.
    plan.commands.clear();
    let (ending, ready) = match launch.rank {
        0 => match Ending::open(common, &plan, report) {
            Ok(ending) => (Some(ending), Ok(())),
            Err(failure) => (None, Err(failure)),
        },
        _ => (None, Ok(())),
    };
    let asked = Asked { common, args, steps: plan.steps, command: command() };
    let document = ranks::run::run(&asked, launch, ready)?;
    match (ending, document) {
        (Some(ending), Some(document)) => ending.tell(&document),
        _ => Ok(()),
    }
}

/// The program of the serving process.
struct Parent<'a> {
    args: &'a ServeArgs,
    soft: bool,
}

impl Program for Parent<'_> {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, fabric: F) -> Result<(), Failure> {
        let ServeArgs { addr, cores, parent, .. } = self.args;
        let Some(mut line) = other::parent(*parent) else { return Ok(()) };
        let place = Place { ip: *addr, cores: cores.clone(), soft: self.soft };
        interrupt::ignore()?;
        // A failure goes over the line, and the parent prints it.
        let _ = serve::serve(&fabric, &place, &mut line);
        Ok(())
    }
}

/// The program of all other commands.
struct Main<'a> {
    common: &'a Common,
    plan: Plan,
    ending: Ending<'a>,
    called: Option<Other>,
    ip: IpAddr,
    cores: Vec<usize>,
    soft: bool,
}

impl Program for Main<'_> {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(mut self, fabric: F) -> Result<(), Failure> {
        let (ip, soft) = (self.ip, self.soft);
        if let Some(addr) = self.common.listen {
            let place = Place { ip, cores: self.cores, soft };
            let mut line = other::listen(&fabric, &place, addr)?;
            return serve::serve(&fabric, &place, &mut line);
        }
        self.plan.steps.iter_mut().for_each(|step| step.request.soft = soft);
        run::check(&fabric, &self.plan.steps, self.common.threads)?;
        let other = match self.called.take() {
            Some(other) => {
                self.cores.truncate(1);
                other
            }
            None => beside(&fabric, self.common, ip, &self.cores, soft)?,
        };
        interrupt::watch()?;
        let clock = Clock::new();
        let machine = Machine::look(&clock);
        let cores = self.cores.clone();
        let mut bench = Bench { fabric: &fabric, clock, cores, other, machine };
        let results = bench.run(&self.plan.steps)?;
        let machine = bench.machine;
        let (commit, command) = (machine::commit(), command());
        let hot_function_bytes = BTreeMap::new();
        let interrupted = interrupt::is_asked();
        let document =
            Document { results, hot_function_bytes, machine, commit, command, interrupted };
        self.ending.tell(&document)
    }
}

/// This command line.
fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| format!(" {}", word.to_string_lossy()));
    format!("doorbell-bench{}", words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_line_is_told_in_one_line() {
        for words in [
            &["doorbell-bench", "latency", "--size", "x"][..],
            &["doorbell-bench", "rate", "--batch", "65"],
            &["doorbell-bench", "latency", "--threads", "--connect", "127.0.0.1"],
            &["doorbell-bench"],
        ] {
            let text = one_line(&Cli::try_parse_from(words).unwrap_err());
            assert!(!text.contains('\n') && text.ends_with("see --help"), "{text}");
        }
    }
}
