//! The connecting side: goes through a plan, one record a step.

use std::io::IsTerminal;
use std::thread;
use std::time::Duration;

use doorbell_cm::Fabric;
use doorbell_tune as tune;
use indicatif::{ProgressBar, ProgressStyle};

use crate::clock::Clock;
use crate::error::Failure;
use crate::floor::Floor;
use crate::machine::Machine;
use crate::other::Other;
use crate::record::{Placement, Record, SCHEMA, round};
use crate::side::{self, Session};
use crate::wire::{Answer, Request, Tally, Test};
use crate::{latency, rate};

/// One figure to be had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) request: Request,
    /// Messages to a doorbell.
    pub(crate) batch: u32,
    pub(crate) time: Duration,
}

/// This side, and where it runs.
pub(crate) struct Bench<'a, F: Fabric> {
    pub(crate) fabric: &'a F,
    pub(crate) clock: Clock,
    /// This side's core, then the other side's, if that is on this machine.
    pub(crate) cores: Vec<usize>,
    pub(crate) other: Other,
    pub(crate) machine: Machine,
}

/// What a step gives on this side.
struct Outcome {
    half_rtt_ns: Option<crate::record::HalfRtt>,
    passed: Option<Duration>,
    messages: u64,
    lost: u64,
    tally: Tally,
}

/// Fails if a step asks for what the device cannot do; before any of them is begun.
pub(crate) fn check<F: Fabric>(fabric: &F, plan: &[Step]) -> Result<(), Failure> {
    plan.iter().try_for_each(|step| side::config(&step.request, fabric.caps()).map(drop))
}

impl<F: Fabric> Bench<'_, F> {
    /// Goes through the plan.
    pub(crate) fn run(&mut self, plan: &[Step]) -> Result<Vec<Record>, Failure> {
        let bar = bar(plan.len());
        let mut records = Vec::with_capacity(plan.len());
        for step in plan {
            // Drawn between figures only: while one is measured, nothing else runs here.
            bar.set_message(format!("{} B", step.request.size));
            bar.tick();
            records.push(self.step(step)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(records)
    }

    fn step(&mut self, step: &Step) -> Result<Record, Failure> {
        let before = self.floor()?;
        self.other.line.say(&step.request);
        let Answer::Ready(addr) = self.other.line.answer()? else {
            return Err(Failure::new("the other side says it is done before it began"));
        };
        let (fabric, clock, core) = (self.fabric, &self.clock, self.cores[0]);
        // On a thread of its own: this one stays free to go where the floor probe sends others.
        let outcome = thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                tune::pin(core)?;
                let mut session = Session::connect(fabric, &step.request, addr)?;
                measure(&mut session, step, clock)
            });
            measuring.join().map_err(|_| Failure::new("the measuring thread broke off"))?
        })?;
        let Answer::Done(theirs) = self.other.line.answer()? else {
            return Err(Failure::new("the other side begins again after the end"));
        };
        let after = self.floor()?;
        let floor = before.zip(after);
        let floor = floor.map(|(before_ns, after_ns)| Floor { before_ns, after_ns });
        self.note(&outcome.tally, &theirs);
        Ok(self.record(step, outcome, &theirs, floor))
    }

    /// The floor between the two sides, if both are on this machine.
    fn floor(&self) -> Result<Option<f64>, Failure> {
        match self.cores[..] {
            [here, there, ..] => Ok(Some(tune::floor([here, there])?)),
            _ => Ok(None),
        }
    }

    /// Keeps what is known of the memory.
    fn note(&mut self, ours: &Tally, theirs: &Tally) {
        self.machine.pages = match ours.pages == theirs.pages {
            true => ours.pages.clone(),
            false => format!("{} here, {} on the serving side", ours.pages, theirs.pages),
        };
        let notes = ours.notes.iter().chain(&theirs.notes).cloned();
        self.machine.notes.extend(notes);
        self.machine.notes.sort();
        self.machine.notes.dedup();
    }

    fn record(&self, step: &Step, ours: Outcome, theirs: &Tally, floor: Option<Floor>) -> Record {
        let Request { test, size, qps, workers, idle_qps, signal_every, soft, .. } = step.request;
        let messages = ours.messages;
        let per_message = |count: u64| round(count as f64 / messages.max(1) as f64, 4);
        let per_second =
            |count: u64| ours.passed.map(|passed| round(count as f64 / passed.as_secs_f64(), 0));
        let doorbells = match test {
            Test::Latency => ours.tally.doorbells + theirs.doorbells,
            Test::Rate => ours.tally.doorbells,
        };
        let polls = theirs.completions as f64 / theirs.busy_turns.max(1) as f64;
        Record {
            schema: SCHEMA,
            test,
            provider: if soft { "soft" } else { "verbs" },
            device: self.fabric.caps().device.clone(),
            size,
            batch: (test == Test::Rate).then_some(step.batch),
            qps,
            workers,
            idle_qps,
            signal_every,
            placement: Placement {
                cores: self.cores.clone(),
                sides: self.other.sides,
                floor_ns: floor.map(|floor| round(floor.ns(), 1)),
                mode: floor.map(|floor| floor.mode()),
            },
            half_rtt_ns: ours.half_rtt_ns.map(crate::record::HalfRtt::rounded),
            messages_per_second: per_second(messages),
            bytes_per_second: per_second(messages * u64::from(size)),
            doorbells_per_message: per_message(doorbells),
            completions_per_poll: round(polls, 3),
            allocations_per_message: per_message(ours.tally.allocations + theirs.allocations),
            messages,
            lost: ours.lost,
        }
    }
}

fn measure<F: Fabric>(
    session: &mut Session<F>,
    step: &Step,
    clock: &Clock,
) -> Result<Outcome, Failure> {
    let size = step.request.size as usize;
    match step.request.test {
        Test::Latency => {
            let measured = latency::measure(session, size, clock, step.time)?;
            Ok(Outcome {
                half_rtt_ns: Some(measured.half_rtt_ns),
                passed: None,
                // One there and one back.
                messages: measured.rounds * 2,
                lost: measured.wrong,
                tally: measured.tally,
            })
        }
        Test::Rate => {
            let streams = (step.request.qps as usize, step.batch);
            let measured = rate::measure(session, size, streams, step.time)?;
            Ok(Outcome {
                half_rtt_ns: None,
                passed: Some(measured.passed),
                messages: measured.messages,
                lost: measured.lost,
                tally: measured.tally,
            })
        }
    }
}

/// A bar on standard error, if somebody looks at it.
fn bar(steps: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
