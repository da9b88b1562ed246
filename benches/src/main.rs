//! Core-pinned benchmarks of Doorbell: latency and rate between two processes of one machine,
//! two threads of one process, or two hosts, on any device.
//!
//! In data order: the command line ([`cli`]) and a plan's place ([`placed`]), which figures it asks
//! for ([`plan`]), the other side ([`other`], [`serve`]) and this one ([`run`], [`measure`]), what
//! they say to each other ([`wire`]), with a worker ([`side`]) or the device alone ([`bare`],
//! [`echo`], [`window`]), what is measured ([`latency`], [`rate`], [`load`], [`sweep`],
//! [`crowd`], [`bandwidth`], [`floor`], with [`clock`], [`count`] and [`limits`]), what is counted
//! ([`mod@overhead`], [`counted`]), and what comes out ([`piece`], [`record`], [`table`],
//! [`report`]).

mod bandwidth;
mod bare;
mod chart;
mod cli;
mod clock;
mod connect;
mod count;
mod counted;
mod crowd;
mod echo;
mod error;
mod floor;
mod latency;
mod limits;
mod load;
mod machine;
mod measure;
mod other;
mod overhead;
mod piece;
mod placed;
mod plan;
mod rate;
mod record;
mod report;
mod run;
mod serve;
mod side;
mod sweep;
mod table;
mod window;
mod wire;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use doorbell::soft::SoftDevice;
use doorbell::{Device, Fabric, Program};
use doorbell_tune as tune;

use crate::cli::{Cli, Cmd, Common, OverheadArgs, ServeArgs};
use crate::clock::Clock;
use crate::error::{Failure, say};
use crate::machine::Machine;
use crate::other::Other;
use crate::plan::Plan;
use crate::record::{Document, Sheet};
use crate::run::Bench;
use crate::serve::Place;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help and version; if nobody reads them, nothing is lost.
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
            error::complain(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// What the command line lacks, without the usage around it.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let what = "latency, rate, load, sweep, crowd, bandwidth or overhead";
        return format!("what is to be measured? say {what}; see --help");
    }
    // The first paragraph; required arguments stand indented below it.
    let text = error.to_string();
    let words: Vec<&str> = text.split("\n\n").next().unwrap_or(&text).split_whitespace().collect();
    let line = words.join(" ");
    format!("{}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

fn start(mut command: Cmd) -> Result<(), Failure> {
    if let Some(common) = command.common() {
        placed::enter(common)?;
    }
    match command {
        Cmd::Serve(args) => {
            let device = Device::named(&args.device)?;
            let soft = is_soft(&device);
            device.run(Parent { args: &args, soft })
        }
        Cmd::Latency(args) => bench(&args.common, plan::latency(&args), None),
        Cmd::Rate(args) => bench(&args.common, plan::rate(&args), None),
        Cmd::Load(args) => bench(&args.common, plan::load(&args), None),
        Cmd::Sweep(args) => bench(&args.common, plan::sweep(&args), None),
        Cmd::Crowd(args) => bench(&args.common, plan::crowd(&args), None),
        Cmd::Bandwidth(args) => bench(&args.common, plan::bandwidth(&args), None),
        Cmd::Overhead(args) => overhead(&args),
        Cmd::Count(args) => counted::run(&SoftDevice::open()?, &args.size, args.messages),
        Cmd::Connect(args) => connect::measure(&args),
        Cmd::ConnectServe(args) => connect::serve(&args),
        Cmd::Report(args) => bench(&args.common, plan::report(&args), Some(&args.out)),
    }
}

/// Counts, tells, and holds against the limits.
fn overhead(args: &OverheadArgs) -> Result<(), Failure> {
    let on_stdout = args.json.as_deref() == Some(Path::new("-"));
    let json = args.json.as_deref().filter(|_| !on_stdout).map(Sheet::open).transpose()?;
    let limits = args.save.as_deref().map(Sheet::open).transpose()?;
    let machine = Machine::look(&Clock::new());
    let results = overhead::count(args)?;
    let document = Document { results, machine, commit: machine::commit(), command: command() };
    let text = record::to_json(&document)?;
    match on_stdout {
        true => say(&text)?,
        false => say(&table::text(&document))?,
    }
    if let Some(sheet) = json {
        sheet.write(&text)?;
    }
    match limits {
        Some(sheet) => overhead::save(&document.results, sheet),
        None if args.check => overhead::check(&document.results),
        None => Ok(()),
    }
}

/// Chooses device, cores and the other side, and measures, or serves.
fn bench(common: &Common, plan: Plan, report: Option<&Path>) -> Result<(), Failure> {
    let on_stdout = common.json.as_deref() == Some(Path::new("-"));
    let json = common.json.as_deref().filter(|_| !on_stdout).map(Sheet::open).transpose()?;
    let report = report.map(report::Sheets::open).transpose()?;
    let mut called = None;
    let mut addr = common.addr.or(common.listen.map(|addr| addr.ip()));
    if let Some(to) = common.connect {
        let (other, local) = Other::call(to)?;
        (called, addr) = (Some(other), Some(local));
    }
    let device = Device::choose(common.device.as_deref(), addr)?;
    let soft = is_soft(&device);
    let ip = addr.or_else(|| own_address(&device)).ok_or_else(|| {
        Failure::new(format!("{} has no address; give one to its interface", device.name()))
    })?;
    let cores = cores(common, plan.workers)?;
    device.run(Main { common, plan, json, on_stdout, report, called, ip, cores, soft })
}

/// The cores of both sides, or of the one that is here. Read before anything is pinned.
fn cores(common: &Common, workers: u32) -> Result<Vec<usize>, Failure> {
    let allowed = tune::cores();
    let workers = workers as usize;
    let need = match (common.listen, common.connect) {
        (Some(_), _) | (_, Some(_)) => 1,
        _ => 1 + workers,
    };
    if common.cores.is_empty() {
        // Whoever serves another host does not know yet how many workers it wants.
        let wanted = if common.listen.is_some() { allowed.len() } else { need };
        return Ok(tune::choose(wanted)?);
    }
    let cores = &common.cores;
    let list = tune::CoreList(&allowed);
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        return Err(Failure::new(format!(
            "--cores: core {core} is not one this program may use; choose from {list}"
        )));
    }
    if cores.len() < need || (need > 1 && cores[1..].contains(&cores[0])) {
        return Err(Failure::new(format!(
            "--cores: {need} are needed, first the connecting side's, which it has for itself, \
             then one for each worker; choose from {list}, or from a plan for more workers \
             (tune plan --workers {need})"
        )));
    }
    Ok(cores.clone())
}

fn is_soft(device: &Device) -> bool {
    matches!(device, Device::Soft(_))
}

/// The address both sides use when none is named.
fn own_address(device: &Device) -> Option<IpAddr> {
    match device {
        Device::Soft(_) => Some(Ipv4Addr::LOCALHOST.into()),
        #[cfg(feature = "verbs")]
        Device::Verbs(device) => device.addresses().first().copied(),
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
        other::serve_parent(&fabric, self.args, self.soft)
    }
}

/// The program of everybody else.
struct Main<'a> {
    common: &'a Common,
    plan: Plan,
    json: Option<Sheet>,
    on_stdout: bool,
    report: Option<report::Sheets>,
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
            return other::listen(&fabric, &Place { ip, cores: self.cores, soft }, addr);
        }
        self.plan.steps.iter_mut().for_each(|step| step.request.soft = soft);
        run::check(&fabric, &self.plan.steps, self.common.threads)?;
        let other = match self.called.take() {
            Some(other) => {
                self.cores.truncate(1);
                other
            }
            None => {
                let place = Place { ip, cores: self.cores[1..].to_vec(), soft };
                match self.common.threads {
                    true => Other::thread(&fabric, place)?,
                    false => Other::process(&fabric.caps().device, &place)?,
                }
            }
        };
        let clock = Clock::new();
        let machine = Machine::look(&clock);
        let cores = self.cores.clone();
        let mut bench = Bench { fabric: &fabric, clock, cores, other, machine };
        let results = bench.run(&self.plan.steps)?;
        let machine = bench.machine;
        let document = Document { results, machine, commit: machine::commit(), command: command() };
        self.tell(&document)
    }
}

impl Main<'_> {
    /// Writes down and prints what came out.
    fn tell(self, document: &Document) -> Result<(), Failure> {
        let json = record::to_json(document)?;
        if self.on_stdout {
            say(&json)?;
        } else {
            say(&table::text(document))?;
        }
        if self.common.verbose {
            for note in &document.machine.notes {
                error::complain(&format_args!("note: {note}"));
            }
        }
        if let Some(sheet) = self.json {
            sheet.write(&json)?;
        }
        if let Some(sheets) = self.report {
            let paths = sheets.write(&json, &report::html(document, &self.plan.commands))?;
            if !self.on_stdout {
                say(&paths)?;
            }
        }
        match document.results.iter().map(|record| record.lost).sum::<u64>() {
            0 if self.plan.check => sweep::check(&document.results),
            0 => Ok(()),
            lost => Err(Failure::new(format!("{lost} messages were lost or wrong: a bug"))),
        }
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
