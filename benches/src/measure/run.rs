//! The connecting side: goes through a plan and writes a record for each figure.

use std::thread;

use doorbell::Fabric;
use doorbell_tune as tune;

use crate::ask::plan::Step;
use crate::ask::request::{Request, Test, Transport};
use crate::ask::values::Slo;
use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::machine::floor::Floor;
use crate::machine::switches::Switches;
use crate::machine::{Machine, interrupt, limits};
use crate::measure::all;
use crate::measure::live::Progress;
use crate::measure::outcome::{Outcome, Round};
use crate::measure::record::{Figures, HalfRtt, Kept, Part, Placement, Record, SCHEMA, round};
use crate::measure::searches::Searches;
use crate::measure::sweep::Rounds;
use crate::measure::tries;
use crate::meet::line::Answer;
use crate::meet::other::Other;
use crate::meet::tally::Tally;
use crate::side::numbers;

/// The part of the messages that may find no room where an objective is kept.
const UNSENT_MOST: f64 = 0.01;

/// If other programs take the core more often, in times a second, what is too slow may be theirs.
/// The kernel's own threads stay far below this.
pub(crate) const SWITCHES_MOST: f64 = 30.0;

/// How often a try may be repeated because other programs took the core.
const REPEATS_MOST: u32 = 2;

/// This side, and where it runs.
pub(crate) struct Bench<'a, F: Fabric> {
    pub(crate) fabric: &'a F,
    pub(crate) clock: Clock,
    /// This side's core, then the other side's if that is on this machine.
    pub(crate) cores: Vec<usize>,
    pub(crate) other: Other,
    pub(crate) machine: Machine,
}

/// Looks at every step before the first one begins.
///
/// # Errors
/// A step asks for what the device or the process cannot do.
pub(crate) fn check<F: Fabric>(
    fabric: &F,
    plan: &[Step],
    is_one_process: bool,
) -> Result<(), Failure> {
    for Step { request, .. } in plan {
        let connections: u32 = request.lots().iter().sum();
        limits::files_for(u64::from(connections) * if is_one_process { 2 } else { 1 })?;
        for peers in request.lots() {
            numbers::config(request, peers, fabric.caps())?;
        }
    }
    Ok(())
}

impl<F: Fabric> Bench<'_, F> {
    /// Goes through the plan.
    pub(crate) fn run(&mut self, plan: &[Step]) -> Result<Vec<Record>, Failure> {
        let time = plan.iter().map(Step::time_about).sum();
        let mut progress = Progress::new(plan.len(), time);
        let mut records = Vec::with_capacity(plan.len());
        for step in plan {
            if interrupt::is_asked() {
                break;
            }
            progress.begin(step.name());
            let mut found = self.step(step)?;
            for _ in 0..REPEATS_MOST {
                if step.search || !tries::outcome(&found).1 || interrupt::is_asked() {
                    break;
                }
                records.append(&mut found);
                found = self.step(step)?;
            }
            tries::count_if(&mut found, |_| true);
            records.append(&mut found);
            progress.done();
        }
        progress.finish();
        if plan.iter().any(|step| step.slo.is_some() && !step.search) {
            tries::mark_best(&mut records);
        }
        Ok(records)
    }

    fn step(&mut self, step: &Step) -> Result<Vec<Record>, Failure> {
        let round = match step.request.test {
            Test::Sweep => {
                let mut rounds = Rounds::default();
                while rounds.are_wanted() && !interrupt::is_asked() {
                    let round = self.round(step)?;
                    // Its pieces may have been cut short.
                    if !interrupt::is_asked() {
                        rounds.add(round);
                    }
                }
                if rounds.is_empty() {
                    return Ok(Vec::new());
                }
                rounds.merge(&step.depths)
            }
            _ if step.search => return self.search(step),
            _ => {
                let round = self.round(step)?;
                // Of one piece, what there is counts; of several, some may have been cut short.
                if interrupt::is_asked() && step.request.pieces > 1 {
                    return Ok(Vec::new());
                }
                round
            }
        };
        Ok(self.records(step, &round))
    }

    /// Searches for the highest rate that keeps the objective. Every try is a record.
    fn search(&mut self, step: &Step) -> Result<Vec<Record>, Failure> {
        let mut searches = Searches::from(step.rate, step.tries);
        let mut records = Vec::new();
        while let Some(rate) = searches.next() {
            if interrupt::is_asked() {
                break;
            }
            let step = Step { rate, ..step.clone() };
            let round = self.round(&step)?;
            let mut found = self.records(&step, &round);
            let (kept, disturbed) = tries::outcome(&found);
            let mode = round.floor.map(|floor| floor.mode());
            let counts = searches.tell(mode, rate, kept, disturbed);
            tries::count_if(&mut found, |_| counts);
            records.extend(found);
        }
        let decides = |record: &Record| searches.decides(record.placement.mode);
        tries::count_if(&mut records, |record| tries::counts(record) && decides(record));
        tries::mark(records.iter_mut(), searches.best().map(|rate| round(rate, 0)));
        Ok(records)
    }

    fn records(&mut self, step: &Step, round: &Round) -> Vec<Record> {
        let all = Tally::sum(round.theirs.iter());
        let records = round.outcomes.iter().zip(&round.theirs).map(|(outcome, theirs)| {
            self.note(&outcome.memory, &all);
            self.record(step, outcome, theirs, round)
        });
        // After Ctrl-C there may be nothing.
        records.filter(|record| record.messages > 0 || !interrupt::is_asked()).collect()
    }

    /// A run of both sides, and the floor before and after it.
    fn round(&mut self, step: &Step) -> Result<Round, Failure> {
        let before = self.floor()?;
        self.other.line.say(&step.request);
        let Answer::Ready(addrs) = self.other.line.answer()? else {
            return Err(Failure::new(
                "the other side ended before it began; run the same version on both sides",
            ));
        };
        let (fabric, clock, core) = (self.fabric, &self.clock, self.cores[0]);
        // Pin a thread of its own. This one stays free, because the floor probe starts others.
        let (mut outcomes, switches) = thread::scope(|scope| {
            let measuring = scope.spawn(|| {
                tune::pin(core)?;
                let switches = Switches::begin();
                let outcomes = all::measure(fabric, step, &addrs, clock)?;
                let switches = switches.and_then(|switches| switches.per_second());
                Ok::<_, Failure>((outcomes, switches))
            });
            measuring.join().map_err(|_| Failure::new("the measuring thread broke off"))?
        })?;
        let Answer::Done(theirs) = self.other.line.answer()? else {
            return Err(Failure::new(
                "the other side began again after the end; run the same version on both sides",
            ));
        };
        let after = self.floor()?;
        let floor = before.zip(after);
        let floor = floor.map(|(before_ns, after_ns)| Floor { before_ns, after_ns });
        // The other side took turns too.
        let turns = outcomes.len();
        let theirs = |n| Tally::sum(theirs.iter().skip(n).step_by(turns));
        let theirs: Vec<Tally> = (0..turns).map(theirs).collect();
        all::compare(step, self.other.sides == "threads", &mut outcomes, &theirs);
        Ok(Round { outcomes, theirs, floor, switches })
    }

    /// The floor between the two sides, if both are on this machine.
    fn floor(&self) -> Result<Option<f64>, Failure> {
        match self.cores[..] {
            [here, there, ..] => Ok(Some(tune::floor([here, there])?)),
            _ => Ok(None),
        }
    }

    /// Notes what both sides know of their memory.
    pub(crate) fn note(&mut self, ours: &Tally, theirs: &Tally) {
        self.machine.pages = match ours.pages == theirs.pages {
            true => ours.pages.clone(),
            false => format!("{} here, {} on the serving side", ours.pages, theirs.pages),
        };
        let notes = ours.notes.iter().chain(&theirs.notes).cloned();
        self.machine.notes.extend(notes);
        self.machine.notes.sort();
        self.machine.notes.dedup();
    }

    fn record(&self, step: &Step, ours: &Outcome, theirs: &Tally, run: &Round) -> Record {
        let Request { test, size, qps, workers, signal_every, soft, bare, op, .. } = step.request;
        let tally = ours.pieces.tally();
        let messages = ours.pieces.messages();
        let per_message = |count: u64| Some(round(count as f64 / messages.max(1) as f64, 4));
        let doorbells = match test {
            Test::Latency => tally.doorbells + theirs.doorbells,
            _ => tally.doorbells,
        };
        let polls = theirs.completions as f64 / theirs.busy_turns.max(1) as f64;
        let rate = ours.pieces.rate();
        let half = ours.pieces.half_rtt_ns();
        let (mut parts, is_load) = (ours.pieces.parts(), test == Test::Load);
        if is_load {
            parts = parts.into_iter().map(Part::doubled).collect();
        }
        let whole = half.map(HalfRtt::doubled).filter(|_| is_load);
        let slo = step.slo.zip(whole).map(|(Slo { percentile, limit_ns }, times)| {
            // A rate that is not kept has no percentile of its own.
            let unsent = ours.figures.unsent.unwrap_or(0) as f64;
            let is_kept = unsent <= UNSENT_MOST * (messages as f64 + unsent);
            let kept = is_kept && times.named(percentile) <= limit_ns;
            let disturbed = !kept && run.switches.is_some_and(|count| count >= SWITCHES_MOST);
            Kept { percentile, limit_ns, kept, best: false, disturbed }
        });
        let of_crowd = |count: u64| (test == Test::Crowd).then_some(count);
        Record {
            schema: SCHEMA,
            test,
            provider: if soft { "soft" } else { "verbs" },
            device: self.fabric.caps().device.clone(),
            size,
            op: (test == Test::Bandwidth).then_some(op),
            batch: ours.batch.or((test == Test::Rate).then_some(step.batch)),
            bare,
            transport: Some(step.request.transport).filter(|of| *of != Transport::Rc),
            no_srq: !step.request.srq,
            qps,
            workers,
            idle_qps: ours.idle_qps,
            signal_every,
            placement: Placement {
                cores: self.cores.clone(),
                sides: self.other.sides,
                floor_ns: run.floor.map(|floor| round(floor.ns(), 1)),
                mode: run.floor.map(|floor| floor.mode()),
                switches_per_second: run.switches.map(|switches| round(switches, 1)),
            },
            figures: Figures {
                half_rtt_ns: half.map(HalfRtt::rounded).filter(|_| !is_load),
                rtt_ns: whole.map(HalfRtt::rounded),
                slo,
                messages_per_second: rate.map(|rate| round(rate, 0)),
                bytes_per_second: rate.map(|rate| round(rate * f64::from(size), 0)),
                doorbells_per_message: per_message(doorbells),
                completions_per_poll: (test != Test::Bandwidth).then_some(round(polls, 3)),
                allocations_per_message: per_message(tally.allocations + theirs.allocations),
                receives: (test == Test::Crowd).then_some(step.request.receives),
                receives_out_most: of_crowd(theirs.receives_out_most),
                credit_stalls: of_crowd(tally.credit_stalls + theirs.credit_stalls),
                errors: of_crowd(tally.errors + theirs.errors),
                resident_bytes_serving: of_crowd(theirs.process),
                ..ours.figures.clone()
            },
            group: None,
            messages,
            lost: ours.pieces.lost(),
            part_seconds: (step.rounds == 1)
                .then(|| round(step.time.as_secs_f64() / parts.len().max(1) as f64, 6)),
            parts: parts.into_iter().map(Part::rounded).collect(),
        }
    }
}
