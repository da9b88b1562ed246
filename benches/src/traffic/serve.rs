//! The serving side: a worker and the naive ring in turn, as the connecting side asks for them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, SharedRecv, Verdict, Worker};
use doorbell::{Fabric, Listener};
use serde::{Deserialize, Serialize};

use crate::ask::request::Request;
use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::meet::line::{Answer, Line};
use crate::meet::patience::{COLD_TURNS, FAREWELL, patience};
use crate::meet::tally::Tally;
use crate::meet::wire;
use crate::side::answers::Answers;
use crate::side::numbers::{config, memory};
use crate::traffic::naive::{Layout, Server};
use crate::traffic::random::Random;
use crate::traffic::shared::Memory;
use crate::traffic::work::Work;

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Next {
    Doorbell,
    Naive,
    /// The row is over.
    Nobody,
}

/// Serves one row.
pub(crate) fn serve<F: Fabric>(
    fabric: &F,
    ip: IpAddr,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let ask = request.traffic.ok_or_else(|| Failure::new("a row of traffic without a row"))?;
    let links = request.qps as usize;
    let handling = Clock::new().ticks_in(Duration::from_nanos(ask.handling_ns.into()));
    let work = || Work::new(links, handling, ask.random.map(|seed| Random::new(seed, HANDLING)));
    let layout = Layout { links, slots: ask.slots, bytes_max: request.size as usize };
    let mut naive = Server::new(&Arc::new(Memory::open(&ask.memory)?), &layout, work());
    let mut tally = Tally::default();
    let mut listener = Listener::bind(fabric, SocketAddr::new(ip, 0))?;
    let numbers = config(request, request.qps, fabric.caps())?;
    let shared =
        SharedRecv::new(fabric, memory(fabric, numbers.recv_bytes(), &mut tally)?, &numbers)?;
    let answering = Answering::new(work(), request.qps);
    let mapping = memory(fabric, numbers.send_bytes(), &mut tally)?;
    let (worker, intake) = Worker::new(fabric, &shared, mapping, answering, &numbers)?;
    listener.feed(intake);
    let addr = listener.local_addr().ok_or_else(|| Failure::new("the listener has no address"))?;
    line.say(&Answer::Ready(vec![addr]));
    let mut served = Served { worker, listener };
    // The connecting side's first word comes once all of its connections are there.
    served.run(wire::MARK)?;
    loop {
        let (received, wrong) = match line.hear::<Next>()? {
            Some(Next::Doorbell) => {
                served.run(wire::END)?;
                served.worker.handler_mut().work.take_counts()
            }
            Some(Next::Naive) => {
                naive.run();
                naive.work.take_counts()
            }
            Some(Next::Nobody) | None => break,
        };
        line.say(&Answer::Came { received, wrong });
    }
    served.part(request.qps)?;
    Ok(vec![tally])
}

/// The stream of random handler times.
const HANDLING: u64 = 1 << 32;

/// A worker and its listener.
struct Served<F: Fabric> {
    worker: Worker<F, Answering>,
    listener: Listener<F>,
}

impl<F: Fabric> Served<F> {
    /// Turns until every peer has sent that word.
    fn run(&mut self, word: u32) -> Result<(), Failure> {
        let mut idle = 0;
        while !self.worker.handler_mut().have_all_said(word) {
            if self.worker.turn() != 0 {
                idle = 0;
                continue;
            }
            idle += 1;
            // Connections come before the first word only.
            if idle >= COLD_TURNS || word == wire::MARK {
                idle = 0;
                while self.listener.step(Duration::ZERO)? {}
                self.worker.handler().check()?;
            }
        }
        Ok(())
    }

    /// Turns until every peer has left, or until time is up.
    fn part(&mut self, peers: u32) -> Result<(), Failure> {
        let until = Instant::now() + FAREWELL + patience(peers) - patience(0);
        while Instant::now() < until && self.worker.handler().downs < peers {
            self.listener.step(Duration::from_millis(1))?;
            self.worker.turn();
        }
        Ok(())
    }
}

/// The handler: takes a message as the naive ring does, and sends it back in place.
struct Answering {
    work: Work,
    peers: u32,
    /// The last word, and how many peers have said it.
    said: (u32, u32),
    answers: Answers,
    downs: u32,
    why: Option<DownReason>,
}

impl Answering {
    fn new(work: Work, peers: u32) -> Answering {
        let answers = Answers::new(peers as usize);
        Answering { work, peers, said: (0, 0), answers, downs: 0, why: None }
    }

    /// True once, when every peer has said that word and has its answer.
    fn have_all_said(&mut self, word: u32) -> bool {
        let all = self.said == (word, self.peers) && self.answers.is_empty();
        if all {
            self.said = (0, 0);
        }
        all
    }

    fn check(&self) -> Result<(), Failure> {
        match self.why {
            Some(why) => Err(Failure::new(format!(
                "the serving side lost a connection ({why:?}) before the end"
            ))),
            None => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn word<F: Fabric>(&mut self, peer: PeerId, word: u32, out: &mut Outbox<'_, F>) -> Verdict {
        let (last, count) = self.said;
        self.said = (word, if last == word { count + 1 } else { 1 });
        self.answers.owe(peer, wire::words(0, 0));
        self.answers.send(out);
        Verdict::Done
    }
}

impl<F: Fabric> Handler<F> for Answering {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, F>) -> Verdict {
        if let Some(word) = message.imm() {
            return self.word(message.peer(), word, out);
        }
        self.work.take(message.peer().index(), message.bytes());
        Verdict::Reply { len: message.len() }
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, F>) {
        if !self.answers.is_empty() {
            self.answers.send(out);
        }
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.downs += 1;
        self.why = Some(why);
    }
}
