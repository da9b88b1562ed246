//! What `overhead` counts: messages between two sides that take turns on one thread, once with
//! workers and once with the device alone. Before an echo comes, both sides poll in vain, as they
//! would on cores of their own; those polls do not count. This runs below callgrind, which counts
//! inside [`counted_here`] or [`counted_there`] and writes a file at each [`counted_case_end`].

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;

use arrayvec::ArrayVec;
use doorbell::Fabric;
use doorbell::wr::SendOp;

use crate::ask::request::{Request, Test};
use crate::bare::device::{Bare, Shape, Verdict};
use crate::bare::echo::{self, Caller};
use crate::bare::open::Door;
use crate::error::Failure;
use crate::measure::record::Path;
use crate::meet::wire;
use crate::overhead::cases::{BATCH, Case};
use crate::side::lot::Lot;
use crate::side::session::Session;

/// Rounds of a case before counting begins: every queue wraps several times.
const WARM: u64 = 2048;

/// Runs what the sending side does. Callgrind finds it by its name.
#[inline(never)]
fn counted_here<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// Runs what the other side does. Callgrind finds it by its name.
#[inline(never)]
fn counted_there<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

/// The end of a case. Callgrind finds it by its name.
#[inline(never)]
fn counted_case_end() {
    black_box(());
}

/// Goes through the cases, with that many messages each.
pub(crate) fn run<F: Fabric>(fabric: &F, sizes: &[u32], messages: u64) -> Result<(), Failure> {
    for case in Case::all(sizes) {
        let test = if case.path == Path::Echo { Test::Latency } else { Test::Rate };
        let request = Request { bare: !case.worker, ..Request::new(test, case.size) };
        match case.worker {
            true => {
                let (mut session, mut lot) = workers(fabric, &request)?;
                let mut pair = WorkerPair { session: &mut session, lot: &mut lot };
                Turns::new(&case, messages).run_all(&mut pair, case.size)?;
            }
            false => {
                let (caller, server) = devices(fabric, &request)?;
                let size = case.size as usize;
                let mut pair = BarePair { caller, server, size, received: 0, wrong: 0 };
                Turns::new(&case, messages).run_all(&mut pair, case.size)?;
            }
        }
        counted_case_end();
    }
    Ok(())
}

/// Two connected workers. Another thread drives the second one until they are connected.
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
        let lot = serving.join().map_err(|_| Failure::new("the serving thread panicked"))??;
        let session = session.ok_or_else(|| Failure::new("no port to listen on"))?;
        Ok((session, lot))
    })
}

/// Two connected queue pairs.
fn devices<F: Fabric>(fabric: &F, request: &Request) -> Result<(Caller<F>, Bare<F>), Failure> {
    let shape = Shape::echoes(request);
    let door = Door::open(fabric, Ipv4Addr::LOCALHOST.into(), request.transport)?;
    let addr = door.addr()?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| door.take(fabric, &shape));
        let caller = Caller::dial(fabric, request, addr);
        let server = serving.join().map_err(|_| Failure::new("the serving thread panicked"))?;
        Ok((caller?, server?))
    })
}

/// Two sides that take turns.
trait Pair {
    /// The first side sends one message.
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure>;

    /// The first side sends a batch with one doorbell. The payloads follow each other in memory.
    fn send_batch(&mut self, payloads: &[u8], size: usize) -> Result<(), Failure>;

    /// The second side polls. It sends echoes back and counts streams.
    fn serve(&mut self, path: Path) -> Result<(), Failure>;

    /// The first side polls.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Messages that came back or arrived, and how many of them were wrong.
    fn came(&mut self, path: Path) -> (u64, u64);
}

/// The turns of one case.
struct Turns {
    path: Path,
    /// Messages of a round.
    batch: u64,
    rounds: u64,
}

impl Turns {
    fn new(case: &Case, messages: u64) -> Turns {
        let batch = u64::from(case.round);
        Turns { path: case.path, batch, rounds: messages / batch }
    }

    fn run_all(&self, pair: &mut impl Pair, size: u32) -> Result<(), Failure> {
        match self.path == Path::Echo && self.batch > 1 {
            true => self.run::<true>(pair, size),
            false => self.run::<false>(pair, size),
        }
    }

    /// `SEVERAL`: each message of a round is sent for itself, and each side may need several turns
    /// for all of them. Else the code that counts has no loops.
    fn run<const SEVERAL: bool>(&self, pair: &mut impl Pair, size: u32) -> Result<(), Failure> {
        let size = size as usize;
        let mut payloads = wire::filled(size).repeat(self.batch as usize);
        let (before, wrong_before) = pair.came(self.path);
        for round in 0..WARM + self.rounds {
            for (n, payload) in payloads.chunks_mut(size).enumerate() {
                wire::stamp(payload, round * self.batch + n as u64);
            }
            let path = self.path;
            if path == Path::Echo {
                // Both poll in vain, since nothing is under way.
                pair.serve(path)?;
                pair.poll()?;
            }
            let expected = before + (round + 1) * self.batch;
            let turns = if SEVERAL { self.batch } else { 1 };
            if round < WARM {
                send::<SEVERAL>(pair, path, &payloads, size)?;
            } else {
                counted_here(|| send::<SEVERAL>(pair, path, &payloads, size))?;
            }
            for _ in 0..turns {
                if round < WARM {
                    pair.serve(path)?;
                    pair.poll()?;
                } else {
                    counted_there(|| pair.serve(path))?;
                    counted_here(|| pair.poll())?;
                }
                if pair.came(path).0 >= expected {
                    break;
                }
            }
            let (came, wrong) = pair.came(path);
            if came != expected || wrong != wrong_before {
                return Err(Failure::new(format!(
                    "{came} messages came, {expected} were expected, {wrong} were wrong"
                )));
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn send<const SEVERAL: bool>(
    pair: &mut impl Pair,
    path: Path,
    payloads: &[u8],
    size: usize,
) -> Result<(), Failure> {
    match path {
        Path::Echo if !SEVERAL => pair.send(payloads),
        Path::Echo => {
            for payload in payloads.chunks_exact(size) {
                pair.send(payload)?;
            }
            Ok(())
        }
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
    /// Messages of a stream that arrived.
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
