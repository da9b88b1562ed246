//! The run of a rank: meets the others, goes through the figures with them, and for rank 0 returns
//! the records.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{Device, Fabric, Program};

use crate::ask::choose;
use crate::ask::cli::{Common, RankArgs};
use crate::ask::plan::Step;
use crate::ask::request::Test;
use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::machine::{self, Machine, interrupt, limits};
use crate::measure::live::Progress;
use crate::measure::record::{Document, Record};
use crate::meet::tally::Tally;
use crate::ranks::control::{Control, Event, Figures, Way, phase};
use crate::ranks::launch::Launch;
use crate::ranks::meet::Meeting;
use crate::ranks::member::{Job, Member};
use crate::ranks::net::Net;
use crate::ranks::pattern::Pattern;
use crate::ranks::place::{self, Place};
use crate::ranks::report::{self, Share, Stage};
use crate::ranks::sizes::Sizes;

/// What all ranks are asked for.
pub(crate) struct Asked<'a> {
    pub(crate) common: &'a Common,
    pub(crate) args: &'a RankArgs,
    pub(crate) steps: Vec<Step>,
    /// The command line, for the record.
    pub(crate) command: String,
}

/// A figure: a test with one size, or with a mix of sizes.
struct Figure {
    step: Step,
    sizes: Sizes,
    /// Sizes and weights of a mix.
    mix: Option<(Vec<u32>, Vec<u32>)>,
}

impl Asked<'_> {
    fn pattern(&self, launch: &Launch) -> Result<Pattern, Failure> {
        let usual = if launch.size.is_multiple_of(2) { Pattern::Pairs } else { Pattern::AllToAll };
        let pattern = self.args.pattern.unwrap_or(usual);
        pattern.check(launch.size).map(|()| pattern)
    }

    fn figures(&self) -> Result<Vec<Figure>, Failure> {
        let Some(weights) = &self.args.mix else {
            let one = |step: &Step| {
                let sizes = Sizes::new(&[step.request.size], &[]);
                Figure { step: step.clone(), sizes, mix: None }
            };
            return Ok(self.steps.iter().map(one).collect());
        };
        let mut figures: Vec<Figure> = Vec::new();
        let kind = |step: &Step| (step.request.test, step.batch);
        for step in &self.steps {
            if figures.iter().any(|known| kind(&known.step) == kind(step)) {
                continue;
            }
            let alike = self.steps.iter().filter(|other| kind(other) == kind(step));
            let sizes: Vec<u32> = alike.map(|step| step.request.size).collect();
            if !weights.is_empty() && weights.len() != sizes.len()
                || !weights.is_empty() && weights.iter().all(|weight| *weight == 0)
            {
                return Err(Failure::new(format!(
                    "--mix: {} weights for {} sizes; give each size of --size one, such as \
                     --size 8,64,4K --mix=70,20,10, and not only zeros",
                    weights.len(),
                    sizes.len()
                )));
            }
            let weights = match weights.is_empty() {
                true => vec![1; sizes.len()],
                false => weights.clone(),
            };
            let mixed = Sizes::new(&sizes, &weights);
            figures.push(Figure { step: step.clone(), sizes: mixed, mix: Some((sizes, weights)) });
        }
        Ok(figures)
    }

    /// What must be the same for all ranks, as a line that people can compare.
    fn line(&self) -> String {
        let mut words = Vec::new();
        for Step { request, batch, .. } in &self.steps {
            let test = format!("{:?}", request.test).to_lowercase();
            words.push(format!("{test} of {} bytes in batches of {batch}", request.size));
        }
        let RankArgs { mix, idle_links, workers, .. } = self.args;
        let time = self.common.time().as_secs_f64();
        let name = self.args.pattern.map_or("default", Pattern::name);
        let mix = mix.as_ref().map_or_else(String::new, |weights| format!(" --mix={weights:?}"));
        format!(
            "{}; --pattern {name} --duration {time} --workers {workers} --idle-links {idle_links} \
             --signal-every {}{mix}",
            words.join(", "),
            self.common.signal_every
        )
    }
}

/// Runs this rank. Returns the document for rank 0, nothing for the others. `ready`: whether this
/// rank can begin; the others are told if it cannot.
///
/// # Errors
/// A rank failed. Only rank 0 has the text, unless it is gone.
pub(crate) fn run(
    asked: &Asked<'_>,
    launch: Launch,
    ready: Result<(), Failure>,
) -> Result<Option<Document>, Failure> {
    let meeting = Meeting {
        named: asked.args.rendezvous.clone(),
        asked: asked.line(),
        patience: asked.args.wait,
        launch,
    };
    let (mut net, local) = meeting.join()?;
    let go = || {
        ready?;
        match net.is_first() {
            true => interrupt::watch()?,
            // Rank 0 ends the run.
            false => interrupt::ignore()?,
        }
        check(&asked.steps)?;
        let what = (asked.pattern(&meeting.launch)?, asked.figures()?);
        with_device(asked, &meeting, what, &mut net, local)
    };
    go().or_else(|failure| net.fail(failure))
}

fn with_device(
    asked: &Asked<'_>,
    meeting: &Meeting,
    (pattern, figures): (Pattern, Vec<Figure>),
    net: &mut Net,
    local: IpAddr,
) -> Result<Option<Document>, Failure> {
    let common = asked.common;
    // Ranks of several hosts use the address by which they have met.
    let addr = common.addr.or(Some(local).filter(|ip| !ip.is_loopback()));
    let device = match Device::choose(common.device.as_deref(), addr) {
        Ok(device) => device,
        // They may have met over another network.
        Err(_) if common.addr.is_none() && common.device.is_some() => {
            Device::choose(common.device.as_deref(), None)?
        }
        Err(error) => return Err(error.into()),
    };
    let is_soft = choose::is_soft(&device);
    let addr = common.addr.or(addr.filter(|ip| addresses(&device).contains(ip)));
    let ip = choose::address(&device, addr)?;
    let clock = Clock::new();
    let machine = Machine::look(&clock);
    let own = Place::look(device.name(), is_soft, &machine.cpu, &machine.kernel);
    let places = net.gather("say where they are", &own, &mut || Ok(0))?;
    place::check(&places)?;
    let launch = &meeting.launch;
    let workers = asked.args.workers as usize;
    let here = place::local(&places, launch.rank);
    let own = place::cores(&common.cores, here, workers)?;
    let cores = net.gather("choose cores", &own, &mut || Ok(0))?;
    let patience = meeting.patience;
    let (rank, size, by) = (launch.rank, launch.size, launch.by);
    device.run(Ranked {
        asked,
        net,
        figures,
        pattern,
        places,
        cores,
        rank,
        size,
        by,
        ip,
        clock,
        machine,
        patience,
    })
}

/// The addresses of an RDMA device.
fn addresses(device: &Device) -> Vec<IpAddr> {
    match device {
        Device::Soft(_) => Vec::new(),
        #[cfg(feature = "verbs")]
        Device::Verbs(device) => device.addresses().to_vec(),
    }
}

/// The program of a rank.
struct Ranked<'a> {
    asked: &'a Asked<'a>,
    net: &'a mut Net,
    figures: Vec<Figure>,
    pattern: Pattern,
    places: Vec<Place>,
    /// The cores of each rank.
    cores: Vec<Vec<usize>>,
    rank: u32,
    size: u32,
    by: &'static str,
    ip: IpAddr,
    clock: Clock,
    machine: Machine,
    patience: Duration,
}

impl Program for Ranked<'_> {
    type Output = Result<Option<Document>, Failure>;

    fn run<F: Fabric>(mut self, fabric: F) -> Self::Output {
        let figures = std::mem::take(&mut self.figures);
        let time = figures.iter().map(|figure| figure.step.time_about()).sum();
        let is_first = self.net.is_first();
        let mut progress = is_first.then(|| Progress::new(figures.len(), time));
        let mut results = Vec::new();
        for figure in &figures {
            // All end together after Ctrl-C.
            let ends = self.net.gather("begin", &interrupt::is_asked(), &mut || Ok(0))?;
            if ends.first() == Some(&true) {
                break;
            }
            progress.iter().for_each(|progress| progress.begin(figure.step.name()));
            let record = self.figure(&fabric, figure)?;
            // After Ctrl-C there may be nothing.
            results.extend(record.filter(|of| of.messages > 0 || !interrupt::is_asked()));
            progress.iter_mut().for_each(Progress::done);
        }
        // Nobody leaves before all are through.
        self.net.gather("end", &(), &mut || Ok(0))?;
        progress.iter().for_each(Progress::finish);
        Ok(is_first.then(|| Document {
            results,
            hot_function_bytes: BTreeMap::new(),
            machine: self.machine,
            commit: machine::commit(),
            command: self.asked.command.clone(),
            interrupted: interrupt::is_asked(),
        }))
    }
}

impl Ranked<'_> {
    /// One figure. Returns its record for rank 0.
    fn figure<F: Fabric>(
        &mut self,
        fabric: &F,
        figure: &Figure,
    ) -> Result<Option<Record>, Failure> {
        let own = self.cores.get(self.rank as usize).cloned().unwrap_or_default();
        let shared = place::shared(&self.places, &self.cores);
        let jobs: Vec<Job> = own.iter().map(|core| self.job(figure, *core, &shared)).collect();
        let Some(job) = jobs.first() else {
            return Err(Failure::new("a rank needs a worker"));
        };
        job.config(fabric)?;
        let links = job.links();
        let count = links.targets + links.callers + links.idle_out + links.idle_in;
        limits::files_for(u64::from(count) * jobs.len() as u64)?;
        let shares = self.all(fabric, &jobs)?;
        if !self.net.is_first() {
            return Ok(None);
        }
        let tally = Tally::sum(shares.iter().flat_map(|of| &of.workers).map(|of| &of.tally));
        self.machine.pages.clone_from(&tally.pages);
        self.machine.notes.extend(tally.notes);
        self.machine.notes.sort();
        self.machine.notes.dedup();
        let stage = Stage {
            places: &self.places,
            cores: &self.cores,
            launcher: self.by,
            is_shared: shared.contains(&true),
        };
        let mix = figure.mix.as_ref().map(|(sizes, weights)| (&sizes[..], &weights[..]));
        report::record(job, mix, &shares, &stage).map(Some)
    }

    fn job(&self, figure: &Figure, core: usize, shared: &[bool]) -> Job {
        let request = &figure.step.request;
        Job {
            test: request.test,
            pattern: self.pattern,
            sizes: figure.sizes.clone(),
            batch: figure.step.batch,
            signal_every: request.signal_every,
            idle_links: self.asked.args.idle_links,
            rank: self.rank,
            size: self.size,
            core,
            is_shared: shared.get(self.rank as usize).copied().unwrap_or(false),
            ip: self.ip,
            time: figure.step.time,
            patience: self.patience,
            clock: self.clock,
        }
    }

    /// Runs the workers of this rank, in step with the other ranks. Returns the figures of all.
    fn all<F: Fabric>(&mut self, fabric: &F, jobs: &[Job]) -> Result<Vec<Share>, Failure> {
        let control = Control::new();
        let (to, events) = mpsc::channel();
        thread::scope(|scope| {
            let mut targets = Vec::new();
            for (thread, job) in (0..).zip(jobs) {
                let (to_thread, from_main) = mpsc::channel();
                targets.push(to_thread);
                let way = Way { thread, to: to.clone(), targets: from_main };
                let control = &control;
                scope.spawn(move || {
                    if let Err(failure) = Member::run(fabric, job, control, &way) {
                        control.set_broken();
                        way.tell(Event::Failed(failure));
                    }
                });
            }
            let done = Steps::new(jobs, &control, &events).go(self.net, &targets);
            if done.is_err() {
                control.set_broken();
            }
            control.enter(phase::LEAVE);
            done
        })
    }
}

/// How often the main thread looks while messages are measured, and otherwise.
const LOOK_MEASURING: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(2);

/// What the threads have told the main thread.
#[derive(Default)]
struct Told {
    listens: Vec<Option<SocketAddr>>,
    connected: usize,
    marked: usize,
    done: Vec<Option<Figures>>,
}

/// The steps of a figure, which all ranks take together.
struct Steps<'a> {
    control: &'a Control,
    events: &'a Receiver<(u32, Event)>,
    told: RefCell<Told>,
    workers: usize,
    time: Duration,
}

impl<'a> Steps<'a> {
    fn new(jobs: &[Job], control: &'a Control, events: &'a Receiver<(u32, Event)>) -> Steps<'a> {
        let workers = jobs.len();
        let (listens, done) = (vec![None; workers], vec![None; workers]);
        let told = RefCell::new(Told { listens, done, ..Told::default() });
        let time = jobs.first().map_or(Duration::ZERO, |job| job.time);
        Steps { control, events, told, workers, time }
    }

    /// Takes in what the threads have told. Returns how far they are.
    fn watch(&self) -> Result<u64, Failure> {
        let mut told = self.told.borrow_mut();
        while let Ok((thread, event)) = self.events.try_recv() {
            let thread = thread as usize;
            match event {
                Event::Listens(addr) => told.listens[thread] = Some(addr),
                Event::Connected => told.connected += 1,
                Event::Marked => told.marked += 1,
                Event::Done(figures) => told.done[thread] = Some(*figures),
                // It stopped because another one failed, which tells why.
                Event::Failed(failure) if failure.is_said() => {}
                Event::Failed(failure) => return Err(failure),
            }
            self.control.advance();
        }
        Ok(self.control.progress())
    }

    fn go(
        &self,
        net: &mut Net,
        targets: &[mpsc::Sender<Vec<SocketAddr>>],
    ) -> Result<Vec<Share>, Failure> {
        let watch = &mut || self.watch();
        net.set_pace(LOOK);
        let told = |of: fn(&Told) -> usize| of(&self.told.borrow()) == self.workers;
        let listening = |told: &Told| told.listens.iter().flatten().count();
        net.wait("listen", watch, || told(listening))?;
        let own: Vec<SocketAddr> = self.told.borrow().listens.iter().flatten().copied().collect();
        let addrs = net.gather("listen", &own, watch)?;
        for (thread, to) in targets.iter().enumerate() {
            let of = |rank: &Vec<SocketAddr>| rank.get(thread).copied();
            // A thread that has ended has told why.
            let _ = to.send(addrs.iter().filter_map(of).collect());
        }
        net.wait("connect", watch, || told(|told| told.connected))?;
        net.gather("connect", &(), watch)?;
        self.phase(net, phase::WARM, self.time / 5)?;
        self.control.enter(phase::MARK);
        net.wait("finish warming up", watch, || told(|told| told.marked))?;
        net.gather("finish warming up", &(), watch)?;
        self.phase(net, phase::MEASURE, self.time)?;
        self.control.enter(phase::END);
        let done = |told: &Told| told.done.iter().flatten().count();
        net.wait("finish measuring", watch, || told(done))?;
        let workers = self.told.borrow_mut().done.iter_mut().filter_map(Option::take).collect();
        net.gather("give their figures", &Share { workers }, watch)
    }

    /// A phase of that length, by the clock of rank 0.
    fn phase(&self, net: &mut Net, phase: u32, time: Duration) -> Result<(), Failure> {
        let watch = &mut || self.watch();
        self.control.enter(phase);
        if net.is_first() {
            let start = Instant::now();
            let left = || time.saturating_sub(start.elapsed());
            while !left().is_zero() && !interrupt::is_asked() {
                net.set_pace(LOOK_MEASURING.min(left()));
                net.look("measure", watch)?;
            }
        }
        net.set_pace(LOOK_MEASURING);
        net.gather("measure", &(), watch)?;
        net.set_pace(LOOK);
        Ok(())
    }
}

/// The steps that ranks can measure.
///
/// # Errors
/// The test needs two sides.
pub(crate) fn check(steps: &[Step]) -> Result<(), Failure> {
    for Step { request, .. } in steps {
        let can = matches!(request.test, Test::Latency | Test::Rate);
        if !can || request.bare || request.idle_qps > 0 {
            let what = match (can, request.bare) {
                (false, _) => format!("{:?}", request.test).to_lowercase(),
                (true, true) => "--bare".to_owned(),
                (true, false) => "--idle-qps".to_owned(),
            };
            return Err(Failure::new(format!(
                "{what} has two sides and no ranks; start it without mpirun, srun and --ranks \
                 (ranks measure latency and rate, beside --idle-links)"
            )));
        }
    }
    Ok(())
}

/// What has no meaning between two sides.
///
/// # Errors
/// An option of ranks without ranks.
pub(crate) fn check_two_sides(args: &RankArgs, steps: &[Step]) -> Result<(), Failure> {
    let can_have_workers = steps.iter().all(|step| step.request.test == Test::Rate);
    let given = [
        ("--pattern", args.pattern.is_some()),
        ("--mix", args.mix.is_some()),
        ("--idle-links", args.idle_links > 0),
        ("--rendezvous", args.rendezvous.is_some()),
        ("--workers", args.workers > 1 && !can_have_workers),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(Failure::new(format!(
            "{name} is for ranks: start this by mpirun or srun, or add --ranks N for ranks on this \
             machine"
        ))),
        None => Ok(()),
    }
}
