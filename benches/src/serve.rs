//! The serving side: answers requests, one run each, until the other side ends.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::worker::{
    DownReason, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell::{Fabric, Listener};
use doorbell_tune as tune;

use crate::error::Failure;
use crate::side::{self, COLD_TURNS, FAREWELL, PATIENCE, Since};
use crate::wire::{self, Answer, Line, Request, Tally, Test, VERSION};
use crate::{bandwidth, count, echo, limits};

/// Where a serving side runs.
pub(crate) struct Place {
    /// The address it listens on.
    pub(crate) ip: IpAddr,
    /// A core for each worker.
    pub(crate) cores: Vec<usize>,
    /// True for a device in software.
    pub(crate) soft: bool,
}

/// Serves requests until the line ends, or one of them fails; that is told there, too.
///
/// # Errors
/// What failed.
pub(crate) fn serve<F: Fabric>(fabric: &F, place: &Place, line: &mut Line) -> Result<(), Failure> {
    while let Some(request) = line.hear::<Request>()? {
        match check(&request, place).and_then(|()| run(fabric, place, &request, line)) {
            Ok(tallies) => line.say(&Answer::Done(tallies)),
            Err(failure) => {
                line.say(&Answer::Failed(failure.to_string()));
                return Err(failure);
            }
        }
    }
    Ok(())
}

fn check(request: &Request, place: &Place) -> Result<(), Failure> {
    let cores = place.cores.len();
    if request.version != VERSION {
        return Err(Failure::new("run doorbell-bench of the same version on both sides"));
    }
    if request.soft != place.soft {
        return Err(Failure::new(
            "one side has a device in software, the other an RDMA device; name devices of one \
             kind with --device",
        ));
    }
    if request.workers == 0 || request.workers as usize > cores {
        return Err(Failure::new(format!(
            "--workers {}: the serving side has {cores} core(s) for them; give it more with \
             --cores",
            request.workers
        )));
    }
    if request.qps < request.workers {
        return Err(Failure::new(format!(
            "--qps {} leaves some of {} workers without a connection; give each at least one",
            request.qps, request.workers
        )));
    }
    Ok(())
}

/// What the threads of a run share.
struct Run<'a, F: Fabric> {
    fabric: &'a F,
    request: &'a Request,
    place: &'a Place,
    /// Workers that have finished.
    finished: AtomicU32,
    /// One of them failed, or the connection did: the others stop.
    broken: AtomicBool,
}

/// A worker, and who makes its connections, if that is this thread.
pub(crate) struct Lot<F: Fabric> {
    pub(crate) worker: Worker<F, Served>,
    listener: Option<Listener<F>>,
    peers: u32,
    /// What is known of its memory.
    tally: Tally,
}

impl<F: Fabric> Lot<F> {
    /// A first worker on a queue of its own, with a listener; the queue, for further workers.
    pub(crate) fn open(
        fabric: &F,
        ip: IpAddr,
        request: &Request,
        peers: u32,
    ) -> Result<(Lot<F>, SharedRecv<F>), Failure> {
        let before = limits::resident();
        let mut listener = Listener::bind(fabric, SocketAddr::new(ip, 0))?;
        let mut tally = Tally::default();
        let config = side::config(request, peers, fabric.caps())?;
        let memory = side::memory(config.recv_bytes(), &mut tally)?;
        let shared = SharedRecv::new(fabric, memory, &config)?;
        let (worker, intake) = worker(fabric, request, (0, peers), &shared, &mut tally)?;
        listener.feed(intake);
        tally.resident = limits::resident().saturating_sub(before);
        Ok((Lot { worker, listener: Some(listener), peers, tally }, shared))
    }

    /// Where its connections are made.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr()
    }

    /// Turns until every connection is there and the first words have come over them.
    pub(crate) fn take_in(&mut self, broken: &AtomicBool) -> Result<(), Failure> {
        let before = limits::resident();
        let limit = side::patience(self.peers);
        let until = Instant::now() + limit;
        while self.worker.handler().event != Event::Mark {
            if Instant::now() > until {
                let came = self.listener.as_ref().map_or(0, Listener::connections);
                return Err(Failure::new(format!(
                    "{came} of {} connections came within {} s",
                    self.peers,
                    limit.as_secs()
                )));
            }
            match &mut self.listener {
                Some(listener) => _ = listener.step(Duration::from_millis(1))?,
                None => self.look(broken)?,
            }
            self.worker.turn();
        }
        self.worker.handler().event = Event::None;
        self.look(broken)?;
        if self.listener.is_some() {
            self.tally.resident += limits::resident().saturating_sub(before);
        }
        Ok(())
    }

    /// What the control plane has to say.
    fn look(&mut self, broken: &AtomicBool) -> Result<(), Failure> {
        match &mut self.listener {
            Some(listener) => while listener.step(Duration::ZERO)? {},
            None if broken.load(Ordering::Relaxed) => {
                return Err(Failure::new("another worker of the serving side failed"));
            }
            None => {}
        }
        self.worker.handler().check()
    }
}

/// Worker `n` of those that have so many peers together.
fn worker<F: Fabric>(
    fabric: &F,
    request: &Request,
    (n, peers): (u32, u32),
    shared: &SharedRecv<F>,
    tally: &mut Tally,
) -> Result<(Worker<F, Served>, Intake<F>), Failure> {
    let config = side::config(request, peers, fabric.caps())?;
    let memory = side::memory(config.send_bytes(), tally)?;
    let served = Served::new(request, n, peers as usize);
    Ok(Worker::new(fabric, shared, memory, served, &config)?)
}

/// One run: what was done in each piece.
fn run<F: Fabric>(
    fabric: &F,
    place: &Place,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let lost = |_| Failure::new("a worker of the serving side broke off");
    limits::files_for(request.lots().iter().sum::<u32>().into())?;
    if request.bare {
        // On a thread of its own, which can be pinned.
        return thread::scope(|scope| {
            let only = scope.spawn(|| {
                tune::pin(place.cores[0])?;
                match request.test {
                    Test::Bandwidth => bandwidth::serve(fabric, place.ip, request, line),
                    _ => echo::serve(fabric, place.ip, request, line),
                }
            });
            only.join().map_err(lost)?
        });
    }
    let (finished, broken) = (AtomicU32::new(0), AtomicBool::new(false));
    let run = Run { fabric, request, place, finished, broken };
    thread::scope(|scope| {
        let run = &run;
        let (shared_to, shared_from) = mpsc::channel::<Vec<SharedRecv<F>>>();
        let (intake_to, intake_from) = mpsc::channel::<Vec<Intake<F>>>();
        let first = scope.spawn(move || {
            let done = run.lead(shared_to, &intake_from, line);
            run.broken.store(done.is_err(), Ordering::Relaxed);
            done
        });
        let mut others = Vec::new();
        // No queues come if the first worker could not be made; it says why.
        if let Ok(shared) = shared_from.recv() {
            for n in 1..request.workers {
                let (shared, intake_to) = (shared.clone(), intake_to.clone());
                others.push(scope.spawn(move || run.follow(n, &shared, intake_to)));
            }
        }
        drop(intake_to);
        let mut tallies = first.join().map_err(lost)??;
        for other in others {
            let theirs = other.join().map_err(lost)??;
            tallies.iter_mut().zip(theirs).for_each(|(tally, other)| tally.add(other));
        }
        Ok(tallies)
    })
}

impl<F: Fabric> Run<'_, F> {
    /// The first worker, and the control plane.
    fn lead(
        &self,
        shared_to: mpsc::Sender<Vec<SharedRecv<F>>>,
        intakes: &mpsc::Receiver<Vec<Intake<F>>>,
        line: &mut Line,
    ) -> Result<Vec<Tally>, Failure> {
        tune::pin(self.place.cores[0])?;
        let (mut lots, mut queues) = (Vec::new(), Vec::new());
        for peers in self.request.lots() {
            let (lot, shared) = Lot::open(self.fabric, self.place.ip, self.request, peers)?;
            lots.push(lot);
            queues.push(shared);
        }
        if shared_to.send(queues).is_ok() {
            for _ in 1..self.request.workers {
                let intakes = intakes.recv_timeout(PATIENCE);
                let intakes = intakes.map_err(|_| Failure::new("a worker did not start"))?;
                for (lot, intake) in lots.iter_mut().zip(intakes) {
                    lot.listener.iter_mut().for_each(|listener| listener.feed(intake.clone()));
                }
            }
        }
        let addrs = lots.iter().filter_map(Lot::addr).collect();
        line.say(&Answer::Ready(addrs));
        let tallies = self.pieces(&mut lots)?;
        // The other side hangs up; until then its last acknowledgement may be on its way, and
        // the other workers learn from here that it has.
        let others = self.request.workers - 1;
        self.part(&mut lots, || self.finished.load(Ordering::Relaxed) == others)?;
        Ok(tallies)
    }

    /// Another worker.
    fn follow(
        &self,
        n: u32,
        queues: &[SharedRecv<F>],
        intakes: mpsc::Sender<Vec<Intake<F>>>,
    ) -> Result<Vec<Tally>, Failure> {
        tune::pin(self.place.cores[n as usize])?;
        let (mut lots, mut own) = (Vec::new(), Vec::new());
        for (peers, shared) in self.request.lots().into_iter().zip(queues) {
            let mut tally = Tally::default();
            let (worker, intake) =
                worker(self.fabric, self.request, (n, peers), shared, &mut tally)?;
            lots.push(Lot { worker, listener: None, peers, tally });
            own.push(intake);
        }
        let _ = intakes.send(own);
        drop(intakes);
        let tallies = self.pieces(&mut lots)?;
        self.part(&mut lots, || true)?;
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(tallies)
    }

    /// Takes the connections in, then works through the pieces, the lots in turn.
    fn pieces(&self, lots: &mut [Lot<F>]) -> Result<Vec<Tally>, Failure> {
        for lot in lots.iter_mut() {
            lot.take_in(&self.broken)?;
        }
        let mut tallies = Vec::new();
        for piece in 0..self.request.pieces as usize {
            let at = piece % lots.len();
            let mut tally = std::mem::take(&mut lots[at].tally);
            tally.add(self.work(&mut lots[at])?);
            tallies.push(tally);
        }
        Ok(tallies)
    }

    /// Turns until every peer has said that it has ended; what was done since the mark.
    fn work(&self, lot: &mut Lot<F>) -> Result<Tally, Failure> {
        let mut since = Since::now(lot.worker.stats());
        let (mut idle, mut excluded) = (0, 0);
        loop {
            if lot.worker.turn() != 0 {
                idle = 0;
            } else {
                idle += 1;
                if idle >= COLD_TURNS {
                    idle = 0;
                    let before = count::allocations();
                    lot.look(&self.broken)?;
                    excluded += count::allocations() - before;
                }
            }
            let event = std::mem::replace(&mut lot.worker.handler().event, Event::None);
            match event {
                Event::None => {}
                Event::Mark => (since, excluded) = (Since::now(lot.worker.stats()), 0),
                Event::End => {
                    let mut tally = since.tally(lot.worker.stats(), excluded);
                    // The words that ended it, and their answers, are no measured messages.
                    let words = u64::from(lot.worker.handler().active);
                    tally.process = limits::resident();
                    tally.completions = tally.completions.saturating_sub(words);
                    tally.doorbells = tally.doorbells.saturating_sub(words);
                    return Ok(tally);
                }
            }
        }
    }

    /// Turns until every peer has left and `is_over`, or for some time.
    fn part(&self, lots: &mut [Lot<F>], is_over: impl Fn() -> bool) -> Result<(), Failure> {
        let peers: u32 = lots.iter().map(|lot| lot.peers).sum();
        let until = Instant::now() + FAREWELL + side::patience(peers) - PATIENCE;
        while Instant::now() < until
            && !(is_over() && lots.iter_mut().all(|lot| lot.worker.handler().is_left()))
        {
            for lot in lots.iter_mut() {
                if let Some(listener) = &mut lot.listener {
                    listener.step(Duration::from_millis(1))?;
                }
                lot.worker.turn();
            }
        }
        Ok(())
    }
}

/// What the loop must know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    None,
    Mark,
    End,
}

/// A peer's stream.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Number of the message expected.
    next: u64,
    received: u64,
    wrong: u64,
}

impl Stream {
    /// A message that is not the one expected. If the number in it says which it is, those after
    /// it are expected, so that one gap counts once.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, bytes: &[u8]) {
        self.wrong += 1;
        if bytes.len() >= 8 {
            self.next = wire::sequence(bytes);
        }
    }
}

/// The handler of the serving side: sends echoes, or counts and checks.
pub(crate) struct Served {
    echo: bool,
    size: usize,
    /// By the peer's index.
    streams: Box<[Stream]>,
    event: Event,
    /// Connections of this worker that carry messages.
    active: u32,
    /// Of those, how many have said that measuring begins, or ends.
    marks: u32,
    ends: u32,
    ups: u32,
    downs: u32,
    why: Option<DownReason>,
}

impl Served {
    fn new(request: &Request, n: u32, peers: usize) -> Served {
        Served {
            echo: request.is_echo(),
            size: request.size as usize,
            streams: vec![Stream::default(); peers].into(),
            event: Event::None,
            active: request.active(n),
            marks: 0,
            ends: 0,
            ups: 0,
            downs: 0,
            why: None,
        }
    }

    /// Messages of the first peer's stream that came, and those of them that were wrong.
    pub(crate) fn came(&self) -> (u64, u64) {
        self.streams.first().map_or((0, 0), |stream| (stream.received, stream.wrong))
    }

    /// True if every peer that came has gone.
    fn is_left(&self) -> bool {
        self.downs == self.ups
    }

    fn check(&self) -> Result<(), Failure> {
        match self.why {
            Some(why) => Err(Failure::new(format!(
                "the serving side lost a connection ({why:?}) before the end"
            ))),
            None => Ok(()),
        }
    }

    /// A message with immediate data: answered with what has come since the last one.
    #[cold]
    #[inline(never)]
    fn word<F: Fabric>(
        &mut self,
        peer: PeerId,
        imm: Option<u32>,
        out: &mut Outbox<'_, F>,
    ) -> Verdict {
        let stream = std::mem::take(&mut self.streams[peer.index()]);
        let (said, event) = match imm {
            Some(wire::MARK) => (&mut self.marks, Event::Mark),
            _ => (&mut self.ends, Event::End),
        };
        *said += 1;
        if *said == self.active {
            (*said, self.event) = (0, event);
        }
        // A peer that cannot be answered is going down, and `check` says so.
        let _ = out.send_imm(peer, &wire::words(stream.received, stream.wrong), wire::ACK);
        // A turn may leave the bell to the next one, and another lot's turns may come first.
        out.flush();
        Verdict::Done
    }
}

impl<F: Fabric> Handler<F> for Served {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, F>) -> Verdict {
        if message.imm().is_some() {
            return self.word(message.peer(), message.imm(), out);
        }
        if self.echo {
            return Verdict::Reply { len: message.len() };
        }
        let stream = &mut self.streams[message.peer().index()];
        if !wire::is_stamped(message.bytes(), self.size, stream.next) {
            stream.miss(message.bytes());
        }
        stream.next = stream.next.wrapping_add(1);
        stream.received += 1;
        Verdict::Done
    }

    fn on_peer_up(&mut self, _peer: PeerId, _out: &mut Outbox<'_, F>) {
        self.ups += 1;
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.downs += 1;
        self.why = Some(why);
    }
}
