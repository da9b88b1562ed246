//! What `overhead` counts: messages between two sides on one thread, which take turns; once between
//! workers, once between the bare device. Who waits for an echo has polled in vain before it comes,
//! as it would on a core of its own; that is not counted. Runs below
//! callgrind, which counts what happens inside [`counted_here`] or [`counted_there`] and writes a
//! file at each [`counted_case_end`].

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;

use arrayvec::ArrayVec;
use doorbell::Fabric;
use doorbell::wr::SendOp;
use serde::{Deserialize, Serialize};

use crate::bare::{Bare, Door, Shape, Verdict};
use crate::echo::{self, Caller};
use crate::error::Failure;
use crate::serve::Lot;
use crate::side::Session;
use crate::wire::{self, Request, Test};

/// Messages to a doorbell of a stream.
pub(crate) const BATCH: u32 = 16;

/// Rounds of a case before it is counted: several times round every queue.
const WARM: u64 = 2048;

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// Each comes back in its block; one in flight.
    Echo,
    /// One way, in batches.
    Stream,
}

/// One case: a file of callgrind's is of each, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) size: u32,
    pub(crate) path: Path,
    /// Between workers, or the bare device.
    pub(crate) worker: bool,
}

impl Case {
    /// Those of each size.
    pub(crate) fn all(sizes: &[u32]) -> Vec<Case> {
        let mut all = Vec::new();
        for &size in sizes {
            for path in [Path::Echo, Path::Stream] {
                all.extend([false, true].map(|worker| Case { size, path, worker }));
            }
        }
        all
    }
}

/// What the side that begins does. Callgrind knows it by its name.
#[inline(never)]
fn counted_here<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// What the other side does. Callgrind knows it by its name.
#[inline(never)]
fn counted_there<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// The end of a case. Callgrind knows it by its name.
#[inline(never)]
fn counted_case_end() {
    black_box(());
}

/// Goes through the cases: `messages` of each.
pub(crate) fn run<F: Fabric>(fabric: &F, sizes: &[u32], messages: u64) -> Result<(), Failure> {
    for case in Case::all(sizes) {
        let test = if case.path == Path::Echo { Test::Latency } else { Test::Rate };
        let request = Request { bare: !case.worker, ..Request::new(test, case.size) };
        match case.worker {
            true => {
                let (mut session, mut lot) = workers(fabric, &request)?;
                let mut pair = WorkerPair { session: &mut session, lot: &mut lot };
                Turns::new(case.path, messages).run(&mut pair, case.size)?;
            }
            false => {
                let (caller, server) = devices(fabric, &request)?;
                let size = case.size as usize;
                let mut pair = BarePair { caller, server, size, received: 0, wrong: 0 };
                Turns::new(case.path, messages).run(&mut pair, case.size)?;
            }
        }
        counted_case_end();
    }
    Ok(())
}

/// Two workers, connected; the second is served on another thread meanwhile.
fn workers<F: Fabric>(fabric: &F, request: &Request) -> Result<(Session<F>, Lot<F>), Failure> {
    let (to, from) = mpsc::channel();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let (mut lot, _) = Lot::open(fabric, Ipv4Addr::LOCALHOST.into(), request, 1)?;
            if let Some(addr) = lot.addr() {
                let _ = to.send(addr);
            }
            lot.take_in(&AtomicBool::new(false))?;
            Ok::<Lot<F>, Failure>(lot)
        });
        let session = match from.recv() {
            Ok(addr) => Some(Session::connect(fabric, request, 1, addr)?),
            Err(_) => None,
        };
        let lot = serving.join().map_err(|_| Failure::new("the serving side broke off"))??;
        let session = session.ok_or_else(|| Failure::new("no port to listen on"))?;
        Ok((session, lot))
    })
}

/// Two queue pairs, connected.
fn devices<F: Fabric>(fabric: &F, request: &Request) -> Result<(Caller<F>, Bare<F>), Failure> {
    let shape = Shape::echoes(request);
    let door = Door::open(fabric, Ipv4Addr::LOCALHOST.into())?;
    let addr = door.addr()?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| door.take(fabric, &shape));
        let caller = Caller::dial(fabric, request, addr);
        let server = serving.join().map_err(|_| Failure::new("the serving side broke off"))?;
        Ok((caller?, server?))
    })
}

/// Two sides that are driven by hand.
trait Pair {
    /// The first one sends a message, alone.
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure>;

    /// It sends a batch of them with one doorbell: they stand one after the other.
    fn send_batch(&mut self, payloads: &[u8], size: usize) -> Result<(), Failure>;

    /// The second one polls, and does with what has come what its path says.
    fn serve(&mut self, path: Path) -> Result<(), Failure>;

    /// The first one polls.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Messages that came back, or arrived, and those of them that were wrong.
    fn came(&mut self, path: Path) -> (u64, u64);
}

/// The order of things.
struct Turns {
    path: Path,
    /// Messages of a round.
    batch: u64,
    rounds: u64,
}

impl Turns {
    fn new(path: Path, messages: u64) -> Turns {
        let batch = if path == Path::Echo { 1 } else { u64::from(BATCH) };
        Turns { path, batch, rounds: messages / batch }
    }

    fn run(&self, pair: &mut impl Pair, size: u32) -> Result<(), Failure> {
        let size = size as usize;
        let mut payloads = wire::filled(size).repeat(self.batch as usize);
        let (before, wrong_before) = pair.came(self.path);
        for round in 0..WARM + self.rounds {
            for (n, payload) in payloads.chunks_mut(size).enumerate() {
                wire::stamp(payload, round * self.batch + n as u64);
            }
            let path = self.path;
            if path == Path::Echo {
                // Both wait: nothing is under way.
                pair.serve(path)?;
                pair.poll()?;
            }
            if round < WARM {
                send(pair, path, &payloads, size)?;
                pair.serve(path)?;
                pair.poll()?;
            } else {
                counted_here(|| send(pair, path, &payloads, size))?;
                counted_there(|| pair.serve(path))?;
                counted_here(|| pair.poll())?;
            }
            let (came, wrong) = pair.came(path);
            let expected = before + (round + 1) * self.batch;
            if came != expected || wrong != wrong_before {
                return Err(Failure::new(format!(
                    "{came} messages came where {expected} were expected, {wrong} of them wrong"
                )));
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn send(pair: &mut impl Pair, path: Path, payloads: &[u8], size: usize) -> Result<(), Failure> {
    match path {
        Path::Echo => pair.send(payloads),
        Path::Stream => pair.send_batch(payloads, size),
    }
}

struct WorkerPair<'a, F: Fabric> {
    session: &'a mut Session<F>,
    lot: &'a mut Lot<F>,
}

impl<F: Fabric> Pair for WorkerPair<'_, F> {
    #[inline(always)]
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        self.session.try_send(payload, true).map(drop)
    }

    #[inline(always)]
    fn send_batch(&mut self, payloads: &[u8], size: usize) -> Result<(), Failure> {
        let list: ArrayVec<_, { BATCH as usize }> = payloads.chunks_exact(size).collect();
        let peer = self.session.worker.handler().peers[0];
        self.session.send_list(peer, &list)?;
        self.session.worker.outbox().flush();
        Ok(())
    }

    #[inline(always)]
    fn serve(&mut self, _: Path) -> Result<(), Failure> {
        self.lot.worker.turn();
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        self.session.turn().map(drop)
    }

    fn came(&mut self, path: Path) -> (u64, u64) {
        match path {
            Path::Echo => {
                let caller = self.session.worker.handler();
                (caller.echoes, caller.wrong)
            }
            Path::Stream => self.lot.worker.handler().came(),
        }
    }
}

struct BarePair<F: Fabric> {
    caller: Caller<F>,
    server: Bare<F>,
    size: usize,
    /// What arrived one way.
    received: u64,
    wrong: u64,
}

impl<F: Fabric> Pair for BarePair<F> {
    #[inline(always)]
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        self.caller.bare.send(payload, SendOp::Send)
    }

    #[inline(always)]
    fn send_batch(&mut self, payloads: &[u8], size: usize) -> Result<(), Failure> {
        self.caller.bare.send_batch(payloads, size)
    }

    #[inline(always)]
    fn serve(&mut self, path: Path) -> Result<(), Failure> {
        if path == Path::Echo {
            return echo::answer(&mut self.server).map(drop);
        }
        let BarePair { server, received, wrong, size, .. } = self;
        let taken = server.poll(|message| {
            *wrong += u64::from(!wire::is_stamped(message.bytes, *size, *received));
            *received += 1;
            Verdict::Done
        });
        taken.map(drop)
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        self.caller.take()
    }

    fn came(&mut self, path: Path) -> (u64, u64) {
        match path {
            Path::Echo => (self.caller.echoes, self.caller.wrong),
            Path::Stream => (self.received, self.wrong),
        }
    }
}
