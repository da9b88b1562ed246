//! The serving side: answers requests, one run each, until the other side ends.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Fabric, Listener};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell_tune as tune;

use crate::count;
use crate::error::Failure;
use crate::side::{self, COLD_TURNS, PATIENCE, Since};
use crate::wire::{self, Answer, Line, Request, Tally, Test, VERSION};

/// How long an ended run waits for the other side to hang up.
const FAREWELL: Duration = Duration::from_secs(2);

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
            Ok(tally) => line.say(&Answer::Done(tally)),
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
    config: &'a Config,
    place: &'a Place,
    /// Workers that have finished.
    finished: AtomicU32,
    /// One of them failed, or the connection did: the others stop.
    broken: AtomicBool,
}

/// One run: a thread per worker; the first one also makes the connections.
fn run<F: Fabric>(
    fabric: &F,
    place: &Place,
    request: &Request,
    line: &mut Line,
) -> Result<Tally, Failure> {
    let config = side::config(request, fabric.caps())?;
    let (finished, broken) = (AtomicU32::new(0), AtomicBool::new(false));
    let run = Run { fabric, request, config: &config, place, finished, broken };
    thread::scope(|scope| {
        let run = &run;
        let (shared_to, shared_from) = mpsc::channel::<SharedRecv<F>>();
        let (intake_to, intake_from) = mpsc::channel::<Intake<F>>();
        let first = scope.spawn(move || run.lead(shared_to, &intake_from, line));
        let mut others = Vec::new();
        // No queue comes if the first worker could not be made; it says why.
        if let Ok(shared) = shared_from.recv() {
            for n in 1..request.workers as usize {
                let (shared, intake_to) = (shared.clone(), intake_to.clone());
                others.push(scope.spawn(move || run.follow(n, &shared, intake_to)));
            }
        }
        drop(intake_to);
        let lost = |_| Failure::new("a worker of the serving side broke off");
        let mut tally = first.join().map_err(lost)??;
        for other in others {
            tally.add(other.join().map_err(lost)??);
        }
        Ok(tally)
    })
}

impl<F: Fabric> Run<'_, F> {
    /// The first worker, and the control plane.
    fn lead(
        &self,
        shared_to: mpsc::Sender<SharedRecv<F>>,
        intakes: &mpsc::Receiver<Intake<F>>,
        line: &mut Line,
    ) -> Result<Tally, Failure> {
        tune::pin(self.place.cores[0])?;
        let mut listener = Listener::bind(self.fabric, SocketAddr::new(self.place.ip, 0))?;
        let mut tally = Tally::default();
        let memory = side::memory(self.config.recv_bytes(), &mut tally)?;
        let shared = SharedRecv::new(self.fabric, memory, self.config)?;
        let (mut worker, intake) = self.worker(&shared, &mut tally)?;
        listener.feed(intake);
        if shared_to.send(shared).is_ok() {
            for _ in 1..self.request.workers {
                let intake = intakes.recv_timeout(PATIENCE);
                listener.feed(intake.map_err(|_| Failure::new("a worker did not start"))?);
            }
        }
        let addr = listener.local_addr().ok_or_else(|| Failure::new("no port to listen on"))?;
        line.say(&Answer::Ready(addr));
        self.take_in(&mut listener, &mut worker)?;
        let look = || {
            while listener.step(Duration::ZERO)? {}
            Ok(())
        };
        tally.add(self.work(&mut worker, look)?);
        // The other side hangs up; until then its last acknowledgement may be on its way, and
        // the other workers learn from here that it has.
        let until = Instant::now() + FAREWELL;
        let others = self.request.workers - 1;
        while Instant::now() < until
            && !(worker.handler().is_left() && self.finished.load(Ordering::Relaxed) == others)
        {
            listener.step(Duration::from_millis(1))?;
            worker.turn();
        }
        Ok(tally)
    }

    /// Another worker.
    fn follow(
        &self,
        n: usize,
        shared: &SharedRecv<F>,
        intakes: mpsc::Sender<Intake<F>>,
    ) -> Result<Tally, Failure> {
        tune::pin(self.place.cores[n])?;
        let mut tally = Tally::default();
        let (mut worker, intake) = self.worker(shared, &mut tally)?;
        let _ = intakes.send(intake);
        drop(intakes);
        let look = || match self.broken.load(Ordering::Relaxed) {
            true => Err(Failure::new("another worker of the serving side failed")),
            false => Ok(()),
        };
        tally.add(self.work(&mut worker, look)?);
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until && !worker.handler().is_left() {
            worker.turn();
        }
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(tally)
    }

    fn worker(
        &self,
        shared: &SharedRecv<F>,
        tally: &mut Tally,
    ) -> Result<(Worker<F, Served>, Intake<F>), Failure> {
        let memory = side::memory(self.config.send_bytes(), tally)?;
        let served = Served::new(self.request, self.config.peers as usize);
        Ok(Worker::new(self.fabric, shared, memory, served, self.config)?)
    }

    /// Connects: until every connection is there and the first word has come over one of them.
    fn take_in(
        &self,
        listener: &mut Listener<F>,
        worker: &mut Worker<F, Served>,
    ) -> Result<(), Failure> {
        let until = Instant::now() + PATIENCE;
        while worker.handler().event != Event::Mark {
            if Instant::now() > until {
                return Err(Failure::new(format!(
                    "{} of {} connections came within {} s",
                    listener.connections(),
                    self.config.peers,
                    PATIENCE.as_secs()
                )));
            }
            listener.step(Duration::from_millis(1))?;
            worker.turn();
        }
        while listener.step(Duration::ZERO)? {}
        Ok(())
    }

    /// Turns until every peer has said that it has ended; what was done since the mark. `look`
    /// is called now and then while nothing comes.
    fn work(
        &self,
        worker: &mut Worker<F, Served>,
        mut look: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let mut since = Since::now(worker.stats());
        let (mut idle, mut excluded) = (0, 0);
        loop {
            if worker.turn() != 0 {
                idle = 0;
            } else {
                idle += 1;
                if idle >= COLD_TURNS {
                    idle = 0;
                    let before = count::allocations();
                    look()?;
                    excluded += count::allocations() - before;
                    worker.handler().check()?;
                }
            }
            match worker.handler().event {
                Event::None => {}
                Event::Mark => {
                    worker.handler().event = Event::None;
                    (since, excluded) = (Since::now(worker.stats()), 0);
                }
                Event::End => {
                    let mut tally = since.tally(worker.stats(), excluded);
                    // The word that ended it, and its answer, are no measured messages.
                    let words = u64::from(worker.handler().ends);
                    tally.completions = tally.completions.saturating_sub(words);
                    tally.doorbells = tally.doorbells.saturating_sub(words);
                    return Ok(tally);
                }
            }
        }
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
struct Served {
    echo: bool,
    size: usize,
    /// By the peer's index.
    streams: Box<[Stream]>,
    event: Event,
    ups: u32,
    ends: u32,
    downs: u32,
    why: Option<DownReason>,
}

impl Served {
    fn new(request: &Request, peers: usize) -> Served {
        Served {
            echo: request.test == Test::Latency,
            size: request.size as usize,
            streams: vec![Stream::default(); peers].into(),
            event: Event::None,
            ups: 0,
            ends: 0,
            downs: 0,
            why: None,
        }
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

    /// A message with immediate data: answered with what has come so far.
    #[cold]
    #[inline(never)]
    fn word<F: Fabric>(
        &mut self,
        peer: PeerId,
        imm: Option<u32>,
        out: &mut Outbox<'_, F>,
    ) -> Verdict {
        let stream = &mut self.streams[peer.index()];
        if imm == Some(wire::MARK) {
            *stream = Stream { wrong: stream.wrong, ..Stream::default() };
            self.event = Event::Mark;
        } else {
            self.ends += 1;
            if self.ends == self.ups {
                self.event = Event::End;
            }
        }
        // A peer that cannot be answered is going down, and `check` says so.
        let _ = out.send_imm(peer, &wire::words(stream.received, stream.wrong), wire::ACK);
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
