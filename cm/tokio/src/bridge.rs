//! The worker's side of the crossing: a handler that runs the program's jobs and its [`Service`].

use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::provider::Provider;
use doorbell::rpc::{self, Calls, Incoming};
use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, SendError, Verdict};

use crate::crossing::Crossing;
use crate::job::{Control, Failure, Job, Kind, Report, Work};
use crate::service::{Recipient, Service};
use crate::waiting::{Held, Stage, Waiting};

/// Timers of jobs that wait for room have these keys, plus their slots. Those below belong to
/// [`Calls`].
const STALLED: u64 = 1 << 32;

/// What became of a job.
enum Attempt {
    Sent,
    Called(rpc::CallId),
    Stalled,
    Failed(Failure),
}

/// The handler of the worker.
pub(crate) struct Bridge<S> {
    service: S,
    crossing: Arc<Crossing>,
    calls: Calls,
    waiting: Waiting,
    /// Reports for which the driver's queue had no room.
    late: VecDeque<Report>,
}

impl<S: Service> Bridge<S> {
    /// Holds `jobs` jobs with payloads of `bytes` bytes, and `peers` peers.
    pub(crate) fn new(
        service: S,
        crossing: Arc<Crossing>,
        jobs: u32,
        bytes: usize,
        peers: u32,
    ) -> Bridge<S> {
        let (calls, waiting) = (Calls::new(jobs, bytes, 0), Waiting::new(jobs, peers));
        Bridge { service, crossing, calls, waiting, late: VecDeque::with_capacity(64) }
    }

    /// The jobs that the worker will not do any more.
    pub(crate) fn leave(&mut self) -> impl Iterator<Item = Box<Job>> {
        let late = self.late.drain(..).filter_map(|report| match report {
            Report::Done(job) => Some(job),
            _ => None,
        });
        self.waiting.take_all().chain(late)
    }

    /// Tells the driver, in order.
    fn report(&mut self, report: Report) {
        if !self.late.is_empty() {
            return self.late.push_back(report);
        }
        if let Err(report) = self.crossing.report(report) {
            self.late.push_back(report);
        }
    }

    fn report_late(&mut self) {
        while let Some(report) = self.late.pop_front() {
            if let Err(report) = self.crossing.report(report) {
                return self.late.push_front(report);
            }
        }
    }

    fn done(&mut self, mut job: Box<Job>, outcome: Result<(), Failure>) {
        job.outcome = outcome;
        self.report(Report::Done(job));
    }

    /// Leaves a message to a task, and keeps its block until the task has taken it: so the peer
    /// runs out of credit if no task takes its messages.
    fn leave_to_task<P: Provider>(
        &mut self,
        message: &Message<'_>,
        out: &mut Outbox<'_, P>,
    ) -> Verdict {
        if self.crossing.takes_no_messages() {
            return Verdict::Done;
        }
        // The worker may keep all its blocks.
        let token = out.keep(message);
        let mut letter = self.crossing.free_letter();
        (letter.peer, letter.token) = (Some(message.peer()), token);
        letter.bytes.extend_from_slice(message.bytes());
        self.report(Report::Message(letter));
        token.map_or(Verdict::Done, Verdict::Keep)
    }

    /// Ends a held job, and its timer.
    fn end<P: Provider>(
        &mut self,
        slot: u32,
        outcome: Result<(), Failure>,
        out: &mut Outbox<'_, P>,
    ) {
        let Some(Held { job, stage, .. }) = self.waiting.take(slot) else { return };
        match stage {
            Stage::Stalled(timer) => drop(timer.map(|timer| out.cancel_timer(timer))),
            Stage::Called(id) => drop(self.calls.cancel(out, id)),
        }
        self.done(job, outcome);
    }

    /// A job has come.
    fn run<P: Provider>(&mut self, job: Box<Job>, out: &mut Outbox<'_, P>) {
        if self.crossing.slots.is_unwanted(job.slot) {
            return self.done(job, Ok(()));
        }
        let Some(peer) = job.peer.filter(|peer| self.waiting.is_up(*peer)) else {
            return self.done(job, Err(Failure::Gone));
        };
        // Jobs for one peer keep their order.
        let attempt = match self.waiting.first(peer) {
            Some(_) => Attempt::Stalled,
            None => attempt(&mut self.calls, &job, peer, out),
        };
        match attempt {
            Attempt::Sent => self.done(job, Ok(())),
            Attempt::Failed(failure) => self.done(job, Err(failure)),
            Attempt::Called(id) => self.waiting.called(job, id),
            Attempt::Stalled => {
                let timer = match job.kind {
                    Kind::Request(at) => out.set_timer(at, STALLED + u64::from(job.slot)),
                    Kind::Send | Kind::FinishSending => None,
                };
                self.waiting.stall(job, peer, timer);
            }
        }
    }

    /// Tries the jobs that wait for room again.
    fn retry<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for _ in 0..self.waiting.stalled() {
            let Some(peer) = self.waiting.next_stalled() else { continue };
            while let Some(slot) = self.waiting.first(peer) {
                let Some(held) = self.waiting.get(slot) else { break };
                let attempt = attempt(&mut self.calls, &held.job, peer, out);
                if matches!(attempt, Attempt::Stalled) {
                    self.waiting.list(peer);
                    break;
                }
                let Some(Held { job, stage, .. }) = self.waiting.take(slot) else { break };
                if let Stage::Stalled(Some(timer)) = stage {
                    out.cancel_timer(timer);
                }
                match attempt {
                    Attempt::Called(id) => self.waiting.called(job, id),
                    Attempt::Failed(failure) => self.done(job, Err(failure)),
                    Attempt::Sent | Attempt::Stalled => self.done(job, Ok(())),
                }
            }
        }
    }
}

/// Sends a job, if there is room.
fn attempt<P: Provider>(
    calls: &mut Calls,
    job: &Job,
    peer: PeerId,
    out: &mut Outbox<'_, P>,
) -> Attempt {
    let sent = match job.kind {
        Kind::Send => out.send(peer, &job.bytes).map(|()| Attempt::Sent),
        Kind::FinishSending => {
            out.finish_sending(peer);
            Ok(Attempt::Sent)
        }
        Kind::Request(at) if at <= out.now() => return Attempt::Failed(Failure::Deadline),
        Kind::Request(at) => {
            let slot = u64::from(job.slot);
            calls.call(out, peer, &job.bytes, slot, Some(at)).map(Attempt::Called)
        }
    };
    match sent {
        Ok(done) => done,
        // A peer that is up and not connected is about to go down, with a reason.
        Err(error) if error.is_back_pressure() || error == SendError::NotConnected => {
            Attempt::Stalled
        }
        Err(error) => Attempt::Failed(Failure::NotSent(error)),
    }
}

impl<P: Provider, S: Service> Handler<P> for Bridge<S> {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let peer = message.peer();
        let verdict = match self.calls.incoming(out, &message) {
            Incoming::Call(payload) => {
                let len = payload.len();
                let mut answered = false;
                let written = rpc::answer(&mut message, |room| {
                    let written = self.service.request(peer, room, len);
                    answered = written.is_some();
                    written.unwrap_or(0)
                });
                match written {
                    Some(len) if answered => Verdict::Reply { len },
                    _ => Verdict::Done,
                }
            }
            Incoming::Answer { key, bytes } => {
                if let Some(Held { mut job, .. }) = self.waiting.take(key as u32) {
                    job.bytes.clear();
                    // As long as a block at most, for which there is room.
                    job.bytes.extend_from_slice(bytes);
                    self.done(job, Ok(()));
                }
                Verdict::Done
            }
            Incoming::Late => Verdict::Done,
            Incoming::Foreign => match self.service.message(peer, message.bytes()) {
                Recipient::Service => Verdict::Done,
                Recipient::Task => self.leave_to_task(&message, out),
            },
        };
        if self.waiting.stalled() > 0 {
            self.retry(out);
        }
        verdict
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.waiting.peer_up(peer);
        let dialed = out.peer_info(peer).is_some_and(|info| info.is_dialed());
        self.report(Report::Up(peer, dialed));
    }

    fn on_finished_sending(&mut self, peer: PeerId, _out: &mut Outbox<'_, P>) {
        self.report(Report::FinishedSending(peer));
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        while let Some(slot) = self.waiting.first(peer) {
            self.end(slot, Err(Failure::Down(why)), out);
        }
        while let Some(slot) = self.calls.lost(out, peer) {
            if let Some(Held { job, .. }) = self.waiting.take(slot as u32) {
                self.done(job, Err(Failure::Down(why)));
            }
        }
        self.waiting.peer_down(peer);
        self.report(Report::Down(peer, why));
    }

    fn on_work(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        let crossing = self.crossing.clone();
        for work in crossing.work() {
            match work {
                Work::Control(Control::Finish(peer)) => out.finish(peer),
                Work::Cancel(slot) if crossing.slots.is_abandoned(slot) => {
                    self.end(slot, Ok(()), out);
                }
                Work::Cancel(_) => {}
                Work::Taken(token) => drop(out.give_back(token)),
                Work::Job(job) => self.run(job, out),
            }
        }
    }

    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        if let Some(slot) = key.checked_sub(STALLED) {
            self.end(slot as u32, Err(Failure::Deadline), out);
        } else if let Some(slot) = self.calls.expired(key)
            && let Some(Held { job, .. }) = self.waiting.take(slot as u32)
        {
            self.done(job, Err(Failure::Deadline));
        }
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        if self.waiting.stalled() > 0 {
            self.retry(out);
        }
        if !self.late.is_empty() {
            self.report_late();
        }
    }
}
