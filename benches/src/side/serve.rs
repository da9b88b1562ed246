//! The serving side: answers requests, one run each, until the other side ends.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::Fabric;
use doorbell::worker::{Intake, SharedRecv};
use doorbell_tune as tune;

use crate::ask::request::{Request, Test, VERSION};
use crate::bare::{echo, target};
use crate::error::Failure;
use crate::machine::limits;
use crate::meet::line::{Answer, Line};
use crate::meet::other::Place;
use crate::meet::patience::{FAREWELL, PATIENCE, patience};
use crate::meet::tally::Tally;
use crate::side::lot::{Lot, worker};
use crate::traffic::serve as traffic;

/// Serves requests until the line ends or one of them fails. Reports the failure over the line too.
///
/// # Errors
/// The first request that failed.
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
        return Err(Failure::new("run the same version of doorbell-bench on both sides"));
    }
    if request.soft != place.soft {
        return Err(Failure::new(
            "one side has a device in software, the other an RDMA device; name two devices of the \
             same kind with --device",
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
    /// How many workers have finished.
    finished: AtomicU32,
    /// A worker or a connection failed: the other workers stop.
    broken: AtomicBool,
}

/// One run. Returns what was done in each piece.
fn run<F: Fabric>(
    fabric: &F,
    place: &Place,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let lost = |_| Failure::new("a worker of the serving side broke off");
    limits::files_for(request.lots().iter().sum::<u32>().into())?;
    if request.bare || request.test == Test::Traffic {
        // A thread of its own can be pinned.
        return thread::scope(|scope| {
            let only = scope.spawn(|| {
                tune::pin(place.cores[0])?;
                match request.test {
                    Test::Traffic => traffic::serve(fabric, place.ip, request, line),
                    Test::Bandwidth => target::serve(fabric, place.ip, request, line),
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
        // No queues come if the first worker failed. It reports why.
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
        // Wait until the other side hangs up: until then its last acknowledgement may be on its
        // way. The other workers hear of the end from this one.
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

    /// Takes the connections, then works through the pieces, the lots in turn.
    fn pieces(&self, lots: &mut [Lot<F>]) -> Result<Vec<Tally>, Failure> {
        for lot in lots.iter_mut() {
            lot.take_in(&self.broken)?;
        }
        let mut tallies = Vec::new();
        for piece in 0..self.request.pieces as usize {
            let at = piece % lots.len();
            let mut tally = std::mem::take(&mut lots[at].tally);
            tally.add(lots[at].work(&self.broken)?);
            tallies.push(tally);
        }
        Ok(tallies)
    }

    /// Turns until every peer has left and `is_over`, or until time is up.
    fn part(&self, lots: &mut [Lot<F>], is_over: impl Fn() -> bool) -> Result<(), Failure> {
        let peers: u32 = lots.iter().map(|lot| lot.peers).sum();
        let until = Instant::now() + FAREWELL + patience(peers) - PATIENCE;
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
