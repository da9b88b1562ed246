//! One queue pair of a host: capsules in, data both ways, responses out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use doorbell::wc::WcOpcode;
use doorbell::wr::{PostCause, Remote, SendFlags, SendOp};
use doorbell::{Buffer, CmError, Fabric, Id, SendRequest};

use super::backing::{Backing, Job};
use super::pool::Pool;
use crate::session::{Answer, Place, Request, Session, Step, Work};
use crate::store::REGIONS;
use crate::subsystem::Counters;
use crate::wire::response::RESPONSE_BYTES;
use crate::wire::sgl::Keyed;
use crate::wire::status::Status;

/// Capsules that one turn takes from a queue at most, so that no queue starves the others.
const CAPSULES: usize = 64;
/// Responses that complete without a word to this side, at most. A completion wakes the loop only
/// to take a buffer back.
const SILENT: usize = 16;
/// How long a connected host may take to say which queue it is.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// An answer, with the data that goes before it.
struct Ready<F: Fabric> {
    answer: Answer,
    data: Option<(Buffer<F>, Keyed)>,
}

/// A request that waits for a buffer, with the data from its capsule.
struct Waiting {
    request: Request,
    data: Option<Vec<u8>>,
}

/// Why a queue ends.
#[derive(Debug)]
pub(super) enum End {
    /// The host has gone, or its controller.
    Gone,
    /// The host breaks the protocol.
    Breach,
    /// The host has been silent for too long.
    Silent,
}

/// A queue pair with its session.
pub(super) struct Queue<F: Fabric> {
    id: Id<F>,
    session: Session,
    depth: usize,
    pool: Pool<F>,
    inline: SendFlags,
    /// Requests whose READs are posted, oldest first.
    reads: VecDeque<Request>,
    waiting: VecDeque<Waiting>,
    answers: VecDeque<Ready<F>>,
    list: Vec<SendRequest<F>>,
    /// Commands without a posted answer.
    in_flight: usize,
    /// The set of its buffers that is registered for files.
    set: Option<u16>,
    /// Responses since the last that was signalled.
    silent: usize,
    born: Instant,
}

impl<F: Fabric> Queue<F> {
    /// A queue over an id that has its queue pair.
    pub(super) fn new(
        fabric: &F,
        id: Id<F>,
        session: Session,
        depth: usize,
        backing: &mut Backing<F>,
    ) -> Result<Queue<F>, CmError> {
        let inline = id.qp().is_some_and(|(_, caps)| caps.inline as usize >= RESPONSE_BYTES);
        let pool = Pool::new(fabric, depth)?;
        let set = backing.register(pool.regions());
        Ok(Queue {
            id,
            session,
            depth,
            pool,
            inline: if inline { SendFlags::INLINE } else { SendFlags::empty() },
            reads: VecDeque::new(),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            list: Vec::new(),
            in_flight: 0,
            set,
            silent: 0,
            born: Instant::now(),
        })
    }

    /// The id, for the connection.
    pub(super) fn id(&mut self) -> &mut Id<F> {
        &mut self.id
    }

    /// Commands of the queue at most.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// True while it waits for what wakes nobody: room in the send queue, or a free response.
    pub(super) fn is_waiting(&self) -> bool {
        !self.list.is_empty() || !self.answers.is_empty()
    }

    /// Looks after limits of time.
    pub(super) fn tick(&self, now: Instant) -> Result<(), End> {
        match self.session.controller() {
            Some(controller) if controller.is_ended() => Err(End::Gone),
            Some(controller) if self.session.is_admin() && controller.is_silent(now) => {
                Err(End::Silent)
            }
            None if now.saturating_duration_since(self.born) > CONNECT_LIMIT => Err(End::Breach),
            _ => Ok(()),
        }
    }

    /// One turn: completions, capsules, posts. True if there was anything to do. Buffers of
    /// capsules go to `refill`.
    pub(super) fn turn(
        &mut self,
        backing: &mut Backing<F>,
        refill: &mut Vec<Buffer<F>>,
    ) -> Result<bool, End> {
        let mut busy = self.sends(backing)?;
        for _ in 0..CAPSULES {
            let Some(done) = self.id.queues().poll_recv() else { break };
            busy = true;
            let (good, len) = (done.status.is_ok(), done.len);
            let Some(mut buffer) = done.buffer else { return Err(End::Breach) };
            let taken = if good { self.capsule(&mut buffer, len, backing) } else { Err(End::Gone) };
            refill.push(buffer);
            taken?;
        }
        if !self.waiting.is_empty() {
            self.start_waiting(backing)?;
        }
        self.post()?;
        Ok(busy)
    }

    /// Takes completed sends.
    fn sends(&mut self, backing: &mut Backing<F>) -> Result<bool, End> {
        let mut busy = false;
        while let Some(done) = self.id.queues().poll_send() {
            busy = true;
            if !done.status.is_ok() {
                return Err(End::Gone);
            }
            match (done.opcode, done.buffer) {
                (WcOpcode::Read, Some(buffer)) => {
                    let request = self.reads.pop_front().ok_or(End::Breach)?;
                    self.run(request, Some(buffer), backing)?;
                }
                (_, Some(buffer)) => self.pool.give(buffer),
                (_, None) => {}
            }
        }
        if busy {
            for buffer in self.id.queues().take_retired() {
                self.pool.give(buffer);
            }
        }
        Ok(busy)
    }

    fn capsule(
        &mut self,
        buffer: &mut Buffer<F>,
        len: usize,
        backing: &mut Backing<F>,
    ) -> Result<(), End> {
        // A host that sends more commands than its queue holds would use up what is not its own.
        if self.in_flight >= self.depth {
            return Err(End::Breach);
        }
        let step = self.session.take(buffer.get(..len).unwrap_or_default());
        match step {
            Step::Breach => return Err(End::Breach),
            Step::Gone => return Err(End::Gone),
            Step::Hold => {}
            Step::Answers(answers) => {
                self.in_flight += answers.len();
                for answer in answers {
                    self.answer(answer)?;
                }
            }
            Step::Request(request) => {
                self.in_flight += 1;
                self.begin(request, buffer, backing)?;
            }
        }
        Ok(())
    }

    /// Starts a request whose capsule is in `buffer`.
    fn begin(
        &mut self,
        request: Request,
        buffer: &mut Buffer<F>,
        backing: &mut Backing<F>,
    ) -> Result<(), End> {
        let Place::Capsule(range) = &request.place else {
            return self.start(Waiting { request, data: None }, backing);
        };
        let data = buffer.get_mut(range.clone()).ok_or(End::Breach)?;
        match &request.work {
            Work::Connect(_) => {
                let answer = self.session.finish(request, data, Status::SUCCESS);
                self.answer(answer)
            }
            Work::Io(io) if io.is_quick() => {
                let status = io.run(data);
                let answer = self.session.finish(request, &[], status);
                self.answer(answer)
            }
            Work::Io(_) => {
                let Some(mut place) = self.pool.take(data.len()) else {
                    let data = Some(data.to_vec());
                    self.waiting.push_back(Waiting { request, data });
                    return Ok(());
                };
                place.get_mut(..data.len()).ok_or(End::Breach)?.copy_from_slice(data);
                self.run(request, Some(place), backing)
            }
        }
    }

    /// Starts a request, or lets it wait for a buffer.
    fn start(&mut self, waiting: Waiting, backing: &mut Backing<F>) -> Result<(), End> {
        let len = waiting.request.data_len();
        if len == 0 {
            return self.run(waiting.request, None, backing);
        }
        let Some(mut buffer) = self.pool.take(len) else {
            self.waiting.push_back(waiting);
            return Ok(());
        };
        let Waiting { request, data } = waiting;
        if let (Some(data), Some(place)) = (data, buffer.get_mut(..len)) {
            place.copy_from_slice(&data);
        }
        match request.place {
            Place::Take(keyed) => {
                let op = SendOp::Read(Remote { addr: keyed.addr, rkey: keyed.key });
                self.list.push(SendRequest { buffer, len, op, flags: SendFlags::SIGNALED });
                self.reads.push_back(request);
                Ok(())
            }
            _ => self.run(request, Some(buffer), backing),
        }
    }

    fn start_waiting(&mut self, backing: &mut Backing<F>) -> Result<(), End> {
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.start(waiting, backing)?;
        }
        Ok(())
    }

    /// Carries out a request whose buffer is there, at once or by a thread.
    fn run(
        &mut self,
        request: Request,
        buffer: Option<Buffer<F>>,
        backing: &mut Backing<F>,
    ) -> Result<(), End> {
        let (queue, _controller) = (self.id.key(), self.session.controller().cloned());
        let region = buffer.as_ref().map(Pool::region_of);
        let index = self.set.zip(region).map(|(set, region)| set * REGIONS as u16 + region);
        let status = Status::SUCCESS;
        match backing.give(Job { queue, request, buffer, index, status, _controller }) {
            Some(done) => self.finish(done),
            None => Ok(()),
        }
    }

    /// Answers a request that was carried out.
    pub(super) fn finish(&mut self, job: Job<F>) -> Result<(), End> {
        let Job { request, buffer, status, .. } = job;
        let len = request.data_len();
        let to_host = match request.place {
            Place::Give(keyed) if status.is_ok() => Some(keyed),
            _ => None,
        };
        let data = buffer.as_deref().and_then(|buffer| buffer.get(..len)).unwrap_or_default();
        let answer = self.session.finish(request, data, status);
        match (buffer, to_host) {
            (Some(buffer), Some(keyed)) => {
                self.answers.push_back(Ready { answer, data: Some((buffer, keyed)) });
            }
            (buffer, _) => {
                if let Some(buffer) = buffer {
                    self.pool.give(buffer);
                }
                self.answers.push_back(Ready { answer, data: None });
            }
        }
        Ok(())
    }

    /// Queues an answer that needs no request, with its data if it has any.
    fn answer(&mut self, mut answer: Answer) -> Result<(), End> {
        let data = answer.data.take();
        let Some((keyed, bytes)) = data else {
            self.answers.push_back(Ready { answer, data: None });
            return Ok(());
        };
        let taken = self.pool.take(bytes.len());
        let Some((mut buffer, len)) = taken.map(|buffer| (buffer, bytes.len())) else {
            // The host asked for more pages at once than the queue has buffers: it may ask again.
            let answer = Answer { status: Status::INTERNAL, invalidate: None, ..answer };
            self.answers.push_back(Ready { answer, data: None });
            return Ok(());
        };
        if let Some(place) = buffer.get_mut(..len) {
            place.copy_from_slice(&bytes);
        }
        let keyed = Keyed { len: len as u32, ..keyed };
        self.answers.push_back(Ready { answer, data: Some((buffer, keyed)) });
        Ok(())
    }

    /// Posts what is ready, with one doorbell: each answer right behind its data, which the
    /// connection keeps in this order. The data need not wait for earlier answers.
    fn post(&mut self) -> Result<(), End> {
        while !self.answers.is_empty() {
            let Some(mut buffer) = self.pool.response() else { break };
            let Some(Ready { answer, data }) = self.answers.pop_front() else { break };
            if let Some((buffer, keyed)) = data {
                let (len, remote) =
                    (keyed.len as usize, Remote { addr: keyed.addr, rkey: keyed.key });
                let (op, flags) = (SendOp::Write(remote), SendFlags::UNORDERED);
                self.list.push(SendRequest { buffer, len, op, flags });
            }
            buffer.copy_from_slice(&self.session.response(&answer).bytes());
            let op = answer.invalidate.map_or(SendOp::Send, SendOp::SendWithInv);
            let mut flags = self.inline;
            flags.set(SendFlags::SIGNALED, self.is_signaled());
            self.list.push(SendRequest { buffer, len: RESPONSE_BYTES, op, flags });
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        if self.list.is_empty() {
            return Ok(());
        }
        match self.id.queues().post_sends(&mut self.list) {
            Ok(()) => Ok(()),
            // The rest goes with a later turn.
            Err(failed) if failed.cause == PostCause::Full => Ok(()),
            Err(_) => Err(End::Gone),
        }
    }

    /// True if the next response asks for a completion, which also returns what went before. With
    /// four slots of the send queue for each command, some are always left for one that asks.
    fn is_signaled(&mut self) -> bool {
        let most = SILENT.min(self.depth / 4);
        self.silent = if self.silent >= most || self.pool.is_low() { 0 } else { self.silent + 1 };
        self.silent == 0
    }

    /// Ends the queue. Buffers of capsules that nobody has read go to `refill`.
    pub(super) fn close(
        mut self,
        end: &End,
        refill: &mut Vec<Buffer<F>>,
        backing: &mut Backing<F>,
    ) {
        if let Some(set) = self.set {
            backing.unregister(set);
        }
        let counters = &self.session.subsystem().counters;
        match end {
            End::Gone => {}
            End::Breach => Counters::add(&counters.breaches, 1),
            End::Silent => Counters::add(&counters.silent, 1),
        }
        self.session.end();
        // It may be that the connection never came up, or has ended already.
        let _ = self.id.disconnect();
        while let Some(done) = self.id.queues().poll_recv() {
            refill.extend(done.buffer);
        }
    }
}
