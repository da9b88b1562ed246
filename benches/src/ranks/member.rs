//! One thread of a rank: a worker with its links, which calls its targets and answers its callers.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::worker::{Config, Intake, PeerId, SendError, SharedRecv, Worker};
use doorbell::{Dialer, Fabric, Listener, PeerState};
use doorbell_tune as tune;

use crate::ask::request::{Request, Test};
use crate::error::Failure;
use crate::machine::allocations::allocations;
use crate::machine::clock::{self, Clock};
use crate::machine::switches::Switches;
use crate::measure::times::{self, Times};
use crate::meet::patience::COLD_TURNS;
use crate::meet::tally::{Since, Tally};
use crate::meet::wire;
use crate::ranks::control::{Control, Event, Figures, PartSum, Way, phase};
use crate::ranks::party::{Party, call, seed};
use crate::ranks::pattern::Pattern;
use crate::ranks::sizes::{Sizes, Stream};
use crate::side::numbers::{config, memory};

/// Turns between two looks at the control plane on a core that several threads share.
const COLD_SHARED: u32 = 256;

/// Messages between two polls of a sender.
const POLL_EVERY: u32 = 16;

/// Messages of a stream between two looks at the clock.
const LOOK_EVERY: u64 = 1024;

/// What a thread does.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) test: Test,
    pub(crate) pattern: Pattern,
    pub(crate) sizes: Sizes,
    /// Messages to a doorbell.
    pub(crate) batch: u32,
    pub(crate) signal_every: u32,
    /// Links of each caller that carry nothing.
    pub(crate) idle_links: u32,
    pub(crate) rank: u32,
    /// The number of ranks.
    pub(crate) size: u32,
    pub(crate) core: usize,
    /// Other threads of the run have the same core.
    pub(crate) is_shared: bool,
    /// Where it listens.
    pub(crate) ip: IpAddr,
    /// For how long messages count.
    pub(crate) time: Duration,
    /// How long a connection may take.
    pub(crate) patience: Duration,
    pub(crate) clock: Clock,
}

/// The links of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) targets: u32,
    pub(crate) callers: u32,
    pub(crate) idle_out: u32,
    pub(crate) idle_in: u32,
}

impl Job {
    /// The ranks that it calls.
    fn targets(&self) -> Vec<u32> {
        self.pattern.targets(self.rank, self.size)
    }

    /// The ranks to which its idle links lead, in turn.
    fn idle_targets(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let targets = self.pattern.targets(rank, self.size);
        let count = if targets.is_empty() { 0 } else { self.idle_links as usize };
        (0..count).filter_map(move |n| targets.get(n % targets.len()).copied())
    }

    pub(crate) fn links(&self) -> Links {
        let others = (0..self.size).flat_map(|from| self.idle_targets(from));
        Links {
            targets: self.targets().len() as u32,
            callers: self.pattern.callers(self.rank, self.size),
            idle_out: self.idle_targets(self.rank).count() as u32,
            idle_in: others.filter(|to| *to == self.rank).count() as u32,
        }
    }

    /// The numbers of its worker.
    ///
    /// # Errors
    /// A size that the device does not carry.
    pub(crate) fn config<F: Fabric>(&self, fabric: &F) -> Result<Config, Failure> {
        let Links { targets, callers, idle_out, idle_in } = self.links();
        let idle_qps = idle_out + idle_in;
        let qps = (targets + callers).max(1);
        let (test, size, signal_every) = (self.test, self.sizes.most(), self.signal_every);
        let request = Request { qps, idle_qps, signal_every, ..Request::new(test, size) };
        config(&request, qps + idle_qps, fabric.caps())
    }
}

/// One rank that this thread calls.
struct Target {
    peer: PeerId,
    sizes: Stream,
    /// Messages sent to it in all.
    sent: u64,
}

/// A thread of a rank while it runs.
pub(crate) struct Member<'a, F: Fabric> {
    job: &'a Job,
    control: &'a Control,
    worker: Worker<F, Party>,
    intake: Intake<F>,
    listener: Listener<F>,
    dialer: Dialer<F>,
    targets: Vec<Target>,
    /// A payload of each size.
    payloads: Vec<Vec<u8>>,
    tally: Tally,
    idle: u32,
    /// Allocations of the control plane, which do not count.
    excluded: u64,
    sent: u64,
    bytes: u64,
}

impl<'a, F: Fabric> Member<'a, F> {
    /// Makes the worker on the calling thread, and listens.
    fn open(
        fabric: &F,
        job: &'a Job,
        thread: u32,
        control: &'a Control,
    ) -> Result<Member<'a, F>, Failure> {
        tune::pin(job.core)?;
        let config = job.config(fabric)?;
        let mut tally = Tally::default();
        let receives = memory(fabric, config.recv_bytes(), &mut tally)?;
        let shared = SharedRecv::new(fabric, receives, &config)?;
        let sends = memory(fabric, config.send_bytes(), &mut tally)?;
        let is_echo = job.test != Test::Rate;
        let peers = config.peers as usize;
        let party = Party::new((job.rank, thread), &job.sizes, is_echo, peers);
        let (worker, intake) = Worker::new(fabric, &shared, sends, party, &config)?;
        let mut listener = Listener::bind(fabric, SocketAddr::new(job.ip, 0))?;
        listener.feed(intake.clone());
        let (targets, payloads) = (Vec::new(), job.sizes.payloads());
        let (idle, excluded, sent, bytes) = (0, 0, 0, 0);
        let dialer = Dialer::new(fabric)?;
        Ok(Member {
            job,
            control,
            worker,
            intake,
            listener,
            dialer,
            targets,
            payloads,
            tally,
            idle,
            excluded,
            sent,
            bytes,
        })
    }

    /// Runs a thread of a rank from begin to end.
    ///
    /// # Errors
    /// The device refuses, or a link breaks.
    pub(crate) fn run(fabric: &F, job: &Job, control: &Control, way: &Way) -> Result<(), Failure> {
        let mut member = Member::open(fabric, job, way.thread, control)?;
        let addr = member.listener.local_addr();
        let addr = addr.ok_or_else(|| Failure::new("the device gave no port to listen on"))?;
        way.tell(Event::Listens(addr));
        let addrs = loop {
            match way.targets.try_recv() {
                Ok(addrs) => break addrs,
                Err(std::sync::mpsc::TryRecvError::Empty) => member.turn()?,
                Err(_) => return Ok(()),
            }
        };
        member.connect(&addrs, way.thread)?;
        way.tell(Event::Connected);
        member.rest_until(phase::WARM)?;
        let mut times = Times::new(&job.clock)?;
        member.call_in(phase::WARM, &mut times, &mut Vec::new())?;
        member.settle(wire::MARK)?;
        // All messages that do not count are here, and no other ones yet.
        let received = member.worker.handler().received();
        way.tell(Event::Marked);
        member.rest_until(phase::MEASURE)?;
        times.clear();
        let figures = member.measure(&mut times, received)?;
        way.tell(Event::Done(Box::new(figures)));
        // From here on others may leave.
        member.worker.handler_mut().is_over = true;
        member.rest_until(phase::LEAVE)
    }

    /// Dials each target, and waits until every caller is there.
    fn connect(&mut self, addrs: &[SocketAddr], thread: u32) -> Result<(), Failure> {
        let busy = self.job.targets();
        let idle: Vec<u32> = self.job.idle_targets(self.job.rank).collect();
        let calls = busy.iter().map(|to| (*to, false)).chain(idle.iter().map(|to| (*to, true)));
        for (to, is_idle) in calls {
            let addr = addrs.get(to as usize).copied();
            let addr = addr.ok_or_else(|| Failure::new("a rank has sent no address"))?;
            let data = call(self.job.rank, thread, is_idle);
            let handle = self.dialer.start(addr, &data, &self.intake, self.job.patience)?;
            let before = self.worker.handler().dialed.len();
            while self.worker.handler().dialed.len() == before {
                if handle.state() == PeerState::Ended {
                    let why = handle.last_error().map_or_else(String::new, |why| why.to_string());
                    return Err(Failure::new(format!("connect to rank {to} at {addr}: {why}")));
                }
                self.look()?;
                self.turn()?;
            }
            self.control.advance();
        }
        let links = self.job.links();
        let party = |member: &Self| {
            let party = member.worker.handler();
            (party.came, party.came_idle)
        };
        let mut before = party(self);
        while before != (links.callers, links.idle_in) {
            self.look()?;
            self.turn()?;
            if party(self) != before {
                before = party(self);
                self.control.advance();
            }
        }
        let job = self.job;
        let peers = self.worker.handler().dialed.iter().zip(busy);
        self.targets = peers
            .map(|(peer, to)| Target {
                peer: *peer,
                sizes: job.sizes.stream(seed(job.rank, to, thread)),
                sent: 0,
            })
            .collect();
        Ok(())
    }

    /// One turn. On a core of several threads, an empty one gives it to the others.
    #[inline(always)]
    fn turn(&mut self) -> Result<(), Failure> {
        let taken = self.worker.turn();
        if !self.worker.handler().owed.is_empty() {
            self.answer()?;
        }
        if taken != 0 {
            self.idle = 0;
            return Ok(());
        }
        self.idle += 1;
        if self.job.is_shared {
            thread::yield_now();
        }
        if self.idle >= if self.job.is_shared { COLD_SHARED } else { COLD_TURNS } {
            self.look()?;
        }
        Ok(())
    }

    /// Answers the words that came, as far as there is room.
    #[cold]
    #[inline(never)]
    fn answer(&mut self) -> Result<(), Failure> {
        while let Some((peer, words)) = self.worker.handler_mut().owed.pop() {
            match self.worker.outbox().send_imm(peer, &words, wire::ACK) {
                Ok(()) => {}
                Err(error) if error.is_back_pressure() => {
                    self.worker.handler_mut().owed.push((peer, words));
                    break;
                }
                Err(error) => return Err(self.refused(error)),
            }
        }
        self.worker.outbox().flush();
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.idle = 0;
        let before = allocations();
        while self.listener.step(Duration::ZERO)? {}
        while self.dialer.step(Duration::ZERO)? {}
        self.excluded += allocations() - before;
        if let Some(why) = self.worker.handler().down() {
            return Err(Failure::new(format!(
                "the connection to another rank broke off ({why:?}); see what that one printed"
            )));
        }
        match self.control.is_broken() {
            true => Err(Failure::said(1)),
            false => Ok(()),
        }
    }

    /// Turns until that phase begins.
    fn rest_until(&mut self, phase: u32) -> Result<(), Failure> {
        while self.control.phase() < phase {
            self.turn()?;
            if self.control.is_broken() {
                return Err(Failure::said(1));
            }
        }
        Ok(())
    }

    /// The messages that count. `received` came before them.
    fn measure(&mut self, times: &mut Times, received: u64) -> Result<Figures, Failure> {
        let mut parts = Vec::with_capacity(times::parts(self.job.time) as usize + 1);
        let switches = Switches::begin();
        let (sent, bytes) = (self.sent, self.bytes);
        let since = Since::now(&self.worker.stats());
        (self.excluded, self.tally.allocations) = (0, 0);
        let start = Instant::now();
        self.call_in(phase::MEASURE, times, &mut parts)?;
        let mut tally = since.tally(&self.worker.stats(), self.excluded);
        let (there, wrong) = self.settle(wire::END)?;
        let passed = start.elapsed();
        let switches = switches.and_then(|switches| switches.per_second());
        tally.add(self.tally.clone());
        let both_ways = if self.job.test == Test::Rate { 1 } else { 2 };
        Ok(Figures {
            messages: (self.sent - sent) * both_ways,
            bytes: (self.bytes - bytes) * both_ways,
            passed_ns: u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX),
            received: self.worker.handler().received() - received,
            lost: self.sent.abs_diff(there) + wrong + self.worker.handler().wrong,
            tally,
            counts: times.counts(),
            parts,
            switches,
        })
    }

    /// Calls the targets for as long as that phase lasts, once at least; or only answers if there
    /// are none.
    fn call_in(
        &mut self,
        phase: u32,
        times: &mut Times,
        parts: &mut Vec<PartSum>,
    ) -> Result<(), Failure> {
        if self.targets.is_empty() {
            return self.rest_until(phase + 1);
        }
        let count = times::parts(self.job.time);
        let part = self.job.time / count;
        let mut is_over = false;
        while !is_over {
            // The last part takes all that is left.
            let is_last = parts.len() + 1 >= count as usize;
            let (start, mut sum) = (Instant::now(), PartSum::default());
            let mut look_at = 0;
            loop {
                match self.job.test {
                    Test::Rate => self.stream(&mut sum)?,
                    _ => self.round_trips(times, &mut sum)?,
                }
                is_over = self.control.phase() != phase;
                if is_over {
                    break;
                }
                if sum.messages >= look_at {
                    look_at =
                        sum.messages + if self.job.test == Test::Rate { LOOK_EVERY } else { 1 };
                    if !is_last && start.elapsed() >= part {
                        break;
                    }
                }
            }
            sum.seconds = start.elapsed().as_secs_f64();
            parts.push(sum);
        }
        Ok(())
    }

    /// A round trip with each target, one after the other.
    fn round_trips(&mut self, times: &mut Times, sum: &mut PartSum) -> Result<(), Failure> {
        for n in 0..self.targets.len() {
            let (peer, at, number) = self.next(n);
            let size = self.payloads[at].len();
            wire::stamp(&mut self.payloads[at], number);
            let echoes = self.worker.handler().echoes;
            self.worker.handler_mut().sent(peer, size, number);
            let start = clock::ticks();
            self.send(peer, at, true)?;
            while self.worker.handler().echoes == echoes {
                self.turn()?;
            }
            let ticks = clock::ticks().saturating_sub(start);
            times.enter(ticks);
            let ns = ticks as f64 * self.job.clock.tick_ns;
            sum.messages += 2;
            sum.sum_ns += ns;
            sum.max_ns = sum.max_ns.max(ns);
        }
        Ok(())
    }

    /// A batch to each target.
    fn stream(&mut self, sum: &mut PartSum) -> Result<(), Failure> {
        let mut unpolled = 0;
        for n in 0..self.targets.len() {
            for _ in 0..self.job.batch {
                let (peer, at, number) = self.next(n);
                wire::stamp(&mut self.payloads[at], number);
                self.send(peer, at, self.job.batch == 1)?;
            }
            if self.job.batch > 1 {
                self.worker.outbox().flush();
            }
            sum.messages += u64::from(self.job.batch);
            unpolled += self.job.batch;
            if unpolled >= POLL_EVERY {
                unpolled = 0;
                self.turn()?;
            }
        }
        // With small batches to few targets.
        if unpolled > 0 {
            self.turn()?;
        }
        Ok(())
    }

    /// The next message to a target: its peer, which payload, and its number.
    #[inline(always)]
    fn next(&mut self, n: usize) -> (PeerId, usize, u64) {
        let target = &mut self.targets[n];
        let size = target.sizes.next();
        let number = target.sent;
        target.sent += 1;
        self.sent += 1;
        self.bytes += size as u64;
        let at = self.payloads.iter().position(|payload| payload.len() == size).unwrap_or(0);
        (target.peer, at, number)
    }

    /// Sends a payload, now or with the next flush. Turns while there is no room.
    #[inline(always)]
    fn send(&mut self, peer: PeerId, at: usize, now: bool) -> Result<(), Failure> {
        loop {
            let mut out = self.worker.outbox();
            let payload = &self.payloads[at];
            match if now { out.send_now(peer, payload) } else { out.send(peer, payload) } {
                Ok(()) => return Ok(()),
                Err(error) if error.is_back_pressure() => self.turn()?,
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, error: SendError) -> Failure {
        self.look().err().unwrap_or_else(|| error.into())
    }

    /// Marks the begin or the end on all links, and waits until the callers have done so too.
    /// Returns the messages that have arrived and those that were wrong, as the targets say.
    fn settle(&mut self, imm: u32) -> Result<(u64, u64), Failure> {
        self.worker.handler_mut().expect_answers();
        let word = wire::words(0, 0);
        for n in 0..self.targets.len() {
            let peer = self.targets[n].peer;
            loop {
                match self.worker.outbox().send_imm(peer, &word, imm) {
                    Ok(()) => break,
                    Err(error) if error.is_back_pressure() => self.turn()?,
                    Err(error) => return Err(self.refused(error)),
                }
            }
        }
        self.worker.outbox().flush();
        let (targets, callers) = (self.targets.len() as u32, self.job.links().callers);
        let mut before = 0;
        loop {
            let party = self.worker.handler();
            let marks = if imm == wire::MARK { party.marks } else { party.ends };
            let count = party.acks + marks;
            if count == targets + callers {
                return Ok(party.answers());
            }
            if count != before {
                before = count;
                self.control.advance();
            }
            self.turn()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_all_ranks_have_two_ends() {
        let job = |pattern, rank| Job {
            test: Test::Rate,
            pattern,
            sizes: Sizes::new(&[8], &[]),
            batch: 1,
            signal_every: 1,
            idle_links: 5,
            rank,
            size: 4,
            core: 0,
            is_shared: false,
            ip: [127, 0, 0, 1].into(),
            time: Duration::from_secs(1),
            patience: Duration::from_secs(1),
            clock: Clock { tick_ns: 1.0, step_ns: 1.0 },
        };
        for pattern in [Pattern::Pairs, Pattern::FanIn, Pattern::FanOut, Pattern::AllToAll] {
            let links: Vec<Links> = (0..4).map(|rank| job(pattern, rank).links()).collect();
            let sum = |of: fn(&Links) -> u32| links.iter().map(of).sum::<u32>();
            assert_eq!(sum(|of| of.targets), sum(|of| of.callers), "{pattern:?}");
            assert_eq!(sum(|of| of.idle_out), sum(|of| of.idle_in), "{pattern:?}");
            assert!(sum(|of| of.idle_out) >= 5, "{pattern:?}");
        }
        assert_eq!(job(Pattern::FanOut, 0).links().idle_out, 5);
        assert_eq!(job(Pattern::FanOut, 1).links().idle_in, 2);
    }
}
