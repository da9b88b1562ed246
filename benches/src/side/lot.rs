//! One worker of the serving side, with the listener of its connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell::worker::{Intake, SharedRecv, Worker};
use doorbell::{Fabric, Listener};

use crate::ask::request::Request;
use crate::error::Failure;
use crate::machine::allocations::allocations;
use crate::machine::limits;
use crate::meet::patience::{COLD_TURNS, patience};
use crate::meet::tally::{Since, Tally};
use crate::side::numbers::{config, memory};
use crate::side::served::{Event, Served};

/// A worker, and its listener if this is the first worker of its queue.
pub(crate) struct Lot<F: Fabric> {
    pub(crate) worker: Worker<F, Served>,
    pub(crate) listener: Option<Listener<F>>,
    pub(crate) peers: u32,
    /// What is known of its memory.
    pub(crate) tally: Tally,
}

impl<F: Fabric> Lot<F> {
    /// The first worker of a new queue, with a listener. Also returns the queue, for more workers.
    pub(crate) fn open(
        fabric: &F,
        ip: IpAddr,
        request: &Request,
        peers: u32,
    ) -> Result<(Lot<F>, SharedRecv<F>), Failure> {
        let before = limits::resident();
        let mut listener = Listener::bind(fabric, SocketAddr::new(ip, 0))?;
        let mut tally = Tally::default();
        let numbers = config(request, peers, fabric.caps())?;
        let mapping = memory(fabric, numbers.recv_bytes(), &mut tally)?;
        let shared = SharedRecv::new(fabric, mapping, &numbers)?;
        let (worker, intake) = worker(fabric, request, (0, peers), &shared, &mut tally)?;
        listener.feed(intake);
        tally.resident = limits::resident().saturating_sub(before);
        Ok((Lot { worker, listener: Some(listener), peers, tally }, shared))
    }

    /// Where its connections are made.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.listener.as_ref()?.local_addr()
    }

    /// Turns until all connections are there and each busy one has sent its first word.
    pub(crate) fn take_in(&mut self, broken: &AtomicBool) -> Result<(), Failure> {
        let before = limits::resident();
        let limit = patience(self.peers);
        let until = Instant::now() + limit;
        while self.worker.handler().event != Event::Mark {
            if Instant::now() > until {
                let came = self.listener.as_ref().map_or(0, Listener::connections);
                return Err(Failure::new(format!(
                    "only {came} of {} connections came within {} s",
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
        self.worker.handler_mut().event = Event::None;
        self.look(broken)?;
        if self.listener.is_some() {
            self.tally.resident += limits::resident().saturating_sub(before);
        }
        Ok(())
    }

    /// Turns until every busy peer has marked the end. Returns what was done since the begin.
    pub(crate) fn work(&mut self, broken: &AtomicBool) -> Result<Tally, Failure> {
        let mut since = Since::now(&self.worker.stats());
        let (mut idle, mut excluded) = (0, 0);
        loop {
            if self.worker.turn() != 0 {
                idle = 0;
            } else {
                idle += 1;
                if idle >= COLD_TURNS {
                    idle = 0;
                    let before = allocations();
                    self.look(broken)?;
                    excluded += allocations() - before;
                }
            }
            let event = std::mem::replace(&mut self.worker.handler_mut().event, Event::None);
            match event {
                Event::None => {}
                Event::Mark => (since, excluded) = (Since::now(&self.worker.stats()), 0),
                Event::End => {
                    let mut tally = since.tally(&self.worker.stats(), excluded);
                    // The words that mark the end, and their answers, are no measured messages.
                    let words = u64::from(self.worker.handler().active);
                    tally.process = limits::resident();
                    tally.completions = tally.completions.saturating_sub(words);
                    tally.doorbells = tally.doorbells.saturating_sub(words);
                    return Ok(tally);
                }
            }
        }
    }

    /// Looks at the control plane.
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

/// Worker `n` of those that share that many peers.
pub(crate) fn worker<F: Fabric>(
    fabric: &F,
    request: &Request,
    (n, peers): (u32, u32),
    shared: &SharedRecv<F>,
    tally: &mut Tally,
) -> Result<(Worker<F, Served>, Intake<F>), Failure> {
    let numbers = config(request, peers, fabric.caps())?;
    let mapping = memory(fabric, numbers.send_bytes(), tally)?;
    let served = Served::new(request, n, peers as usize);
    Ok(Worker::new(fabric, shared, mapping, served, &numbers)?)
}
