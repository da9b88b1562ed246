//! Core-pinned benchmarks of Doorbell: latency, rate and more between two processes of one machine,
//! two threads of one process, or two hosts, on any device.
//!
//! In data order: the options ([`ask`]), the machine ([`machine`]), how two sides meet ([`meet`]),
//! what one side does, with the device alone ([`bare`]) or with a worker ([`side`]), what is
//! measured ([`measure`]) and counted ([`mod@overhead`]), many kinds of [`mod@traffic`] beside a
//! naive ring, one run beside another ([`versus`]), and the output ([`tell`]).

mod ask;
mod bare;
mod error;
mod machine;
mod measure;
mod meet;
mod overhead;
mod side;
mod tell;
mod traffic;
mod versus;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use doorbell::soft::SoftDevice;
use doorbell::{Device, Fabric, Program};
use serde_json::Value;

use crate::ask::cli::{
    self, Cli, Cmd, Common, CompareArgs, ConnectArgs, OverheadArgs, ReportArgs, ResultsArgs,
    ServeArgs, TrafficArgs,
};
use crate::ask::plan::{self, Plan};
use crate::ask::{choose, placed};
use crate::error::Failure;
use crate::machine::Machine;
use crate::machine::clock::Clock;
use crate::machine::interrupt;
use crate::measure::record::{self, Document};
use crate::measure::run::{self, Bench};
use crate::measure::{connect, verdict};
use crate::meet::other::{self, Other, Place};
use crate::overhead::{count, counted, limits};
use crate::side::serve;
use crate::tell::page::{self, Beside, Sheets};
use crate::tell::sheet::{Out, Sheet};
use crate::tell::{csv, results, table};
use crate::traffic::row::Traffic;
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
        Cmd::Latency(args) => bench(&args.common, plan::latency(&args), None),
        Cmd::Rate(args) => bench(&args.common, plan::rate(&args), None),
        Cmd::Load(args) => bench(&args.common, plan::load(&args)?, None),
        Cmd::Sweep(args) => bench(&args.common, plan::sweep(&args), None),
        Cmd::Crowd(args) => bench(&args.common, plan::crowd(&args), None),
        Cmd::Bandwidth(args) => bench(&args.common, plan::bandwidth(&args), None),
        Cmd::Overhead(args) => overhead(&args),
        Cmd::Count(args) => counted::run(&SoftDevice::open()?, &args.size, args.messages),
        Cmd::Results(args) => results(&args),
        Cmd::Compare(args) => compare(&args),
        Cmd::Connect(args) => connect(&args),
        Cmd::ConnectServe(args) => connect::serve(&args),
        Cmd::Report(args) => bench(&args.common, plan::report(&args), Some(&args)),
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
        true => results::with_peers(args)?,
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
    let (before, after) = (versus::read(&args.before)?, versus::read(&args.after)?);
    let verdict = Verdict::of(&before, &after, args.least / 100.0);
    if let Some(file) = &args.csv {
        verdict.write_csv(file)?;
    }
    error::say(&verdict.text())?;
    verdict.exit()
}

/// Holds a run against an earlier one, if one is named. The verdict goes to standard output unless
/// that took the JSON.
fn beside_baseline(common: &Common, baseline: Option<&Value>, json: &str) -> Result<(), Failure> {
    let parsed = |json: &str| {
        let value: Result<Value, _> = serde_json::from_str(json);
        value.map_err(|error| Failure::new(format!("read the record: {error}")))
    };
    if let Some(file) = &common.csv {
        csv::records(file, &parsed(json)?)?;
    }
    let Some(baseline) = baseline else { return Ok(()) };
    let verdict = Verdict::of(baseline, &parsed(json)?, cli::LEAST / 100.0);
    match common.json.as_deref() == Some(Path::new("-")) {
        true => error::complain(&verdict.text().trim_end()),
        false => error::say(&format!("\n{}", verdict.text()))?,
    }
    verdict.exit()
}

/// The run of `--baseline`, read before anything is measured.
fn baseline(common: &Common) -> Result<Option<Value>, Failure> {
    common.baseline.as_deref().map(versus::read).transpose()
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

/// With `--verbose`, prints what the memory lacks.
fn notes(common: &Common, machine: &Machine) {
    if common.verbose {
        machine.notes.iter().for_each(|note| error::complain(&format_args!("note: {note}")));
    }
}

/// # Errors
/// Messages were lost.
fn lost(count: u64) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        lost => Err(Failure::new(format!("{lost} messages were lost or wrong: a bug"))),
    }
}

/// Chooses device, cores and the other side, and measures or serves.
fn bench(common: &Common, plan: Plan, report: Option<&ReportArgs>) -> Result<(), Failure> {
    let out = Out::open(common.json.as_deref())?;
    let beside = match report {
        Some(ReportArgs { compare, past, .. }) => Beside {
            peers: compare.as_deref().map(versus::read).transpose()?,
            past: past.as_deref().map(versus::read_all).transpose()?.unwrap_or_default(),
        },
        None => Beside::default(),
    };
    let report = report.map(|args| Sheets::open(&args.out)).transpose()?;
    let baseline = baseline(common)?;
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
    device.run(Main { common, plan, out, report, beside, baseline, called, ip, cores, soft })
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
    out: Out,
    report: Option<Sheets>,
    beside: Beside,
    baseline: Option<Value>,
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
        self.tell(&document)
    }
}

impl Main<'_> {
    /// Prints and writes the figures, and judges them.
    fn tell(self, document: &Document) -> Result<(), Failure> {
        let (json, is_standard) = (record::to_json(document)?, self.out.is_standard());
        self.out.tell(&json, &table::text(document))?;
        notes(self.common, &document.machine);
        if let Some(sheets) = self.report {
            let html = page::html(document, &json, &self.plan.commands, &self.beside)?;
            let paths = sheets.write(&json, &html)?;
            if !is_standard {
                error::say(&paths)?;
            }
        }
        lost(document.results.iter().map(|record| record.lost).sum())?;
        interrupt::check(document.results.len(), "figures")?;
        if self.plan.check {
            verdict::check(&document.results)?;
        }
        beside_baseline(self.common, self.baseline.as_ref(), &json)
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
