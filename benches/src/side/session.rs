//! The connecting side of a run: one worker with its connections, and the loop that waits for the
//! other side.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::worker::{PeerId, SendError, SharedRecv, Worker};
use doorbell::{Dialer, Fabric};

use crate::ask::request::Request;
use crate::error::Failure;
use crate::machine::allocations::allocations;
use crate::machine::limits;
use crate::machine::planted::Planted;
use crate::meet::echoes::Echoes;
use crate::meet::patience::{COLD_TURNS, PATIENCE};
use crate::meet::tally::{Since, Tally};
use crate::meet::wire;
use crate::side::caller::{Caller, Order, Stream};
use crate::side::numbers::{config, memory};

/// The connecting side of a run: one worker with its connections.
pub(crate) struct Session<F: Fabric, O: Order = Stream> {
    pub(crate) worker: Worker<F, Caller<O>>,
    dialer: Dialer<F>,
    /// What this side knows of its memory.
    pub(crate) tally: Tally,
    idle: u32,
    /// Allocations of the control plane. They do not count.
    excluded: u64,
    /// Completions so far, and when the last of them was noticed.
    seen: (u64, Instant),
    /// When counting began.
    since: Since,
    pub(crate) planted: Planted,
}

impl<F: Fabric> Session<F> {
    /// [`Session::join`] for one stream.
    pub(crate) fn connect(
        fabric: &F,
        request: &Request,
        peers: u32,
        addr: SocketAddr,
    ) -> Result<Session<F>, Failure> {
        Session::join(fabric, request, peers, addr, Stream)
    }
}

impl<F: Fabric, O: Order> Session<F, O> {
    /// Makes a worker on the calling thread and gives it that many connections: first the busy
    /// ones, then the idle ones.
    pub(crate) fn join(
        fabric: &F,
        request: &Request,
        peers: u32,
        addr: SocketAddr,
        order: O,
    ) -> Result<Session<F, O>, Failure> {
        let config = config(request, peers, fabric.caps())?;
        let before = limits::resident();
        let mut tally = Tally::default();
        let shared =
            SharedRecv::new(fabric, memory(fabric, config.recv_bytes(), &mut tally)?, &config)?;
        let (size, peers) = (request.size as usize, config.peers as usize);
        let caller = Caller::new(size, order, peers, request.qps as usize);
        let memory = memory(fabric, config.send_bytes(), &mut tally)?;
        let (worker, intake) = Worker::new(fabric, &shared, memory, caller, &config)?;
        let mut dialer = Dialer::new(fabric)?;
        for _ in 0..config.peers {
            dialer.dial(addr, &intake, PATIENCE)?;
        }
        let seen = (0, Instant::now());
        let since = Since::now(&worker.stats());
        let (idle, excluded, planted) = (0, 0, Planted::default());
        let mut session = Session { worker, dialer, tally, idle, excluded, seen, since, planted };
        while session.worker.handler().peers.len() < config.peers as usize {
            session.turn()?;
        }
        // When this is answered, the other side's workers have all connections.
        session.settle(wire::MARK)?;
        session.tally.resident = limits::resident().saturating_sub(before);
        Ok(session)
    }

    /// One turn. While nothing comes, looks at the connections now and then.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> Result<usize, Failure> {
        let taken = self.worker.turn();
        if taken != 0 {
            self.idle = 0;
            return Ok(taken);
        }
        self.idle += 1;
        if self.idle >= COLD_TURNS {
            self.look()?;
        }
        Ok(0)
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.idle = 0;
        let before = allocations();
        while self.dialer.step(Duration::ZERO)? {}
        self.excluded += allocations() - before;
        if let Some(why) = self.worker.handler().down {
            return Err(Failure::new(format!(
                "the connection broke off ({why:?}); see what the other side printed"
            )));
        }
        let completions = self.worker.stats().completions;
        if completions != self.seen.0 {
            self.seen = (completions, Instant::now());
        } else if self.seen.1.elapsed() > PATIENCE {
            return Err(Failure::new(format!(
                "nothing has come back for {} s; is the other side still running?",
                PATIENCE.as_secs()
            )));
        }
        Ok(())
    }

    /// Sends now, with a doorbell of its own. Turns while there is no room.
    #[inline(always)]
    pub(crate) fn send_now(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), Failure> {
        match self.worker.outbox().send_now(peer, bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.is_back_pressure() => self.send(peer, bytes),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Sends to the first peer, now or with the next flush. False if there is no room.
    #[inline(always)]
    pub(crate) fn try_send(&mut self, bytes: &[u8], now: bool) -> Result<bool, Failure> {
        let first = self.worker.handler().peers[0];
        self.try_send_to(first, bytes, now)
    }

    /// Like [`Session::try_send`], to any peer.
    #[inline(always)]
    pub(crate) fn try_send_to(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        now: bool,
    ) -> Result<bool, Failure> {
        let mut out = self.worker.outbox();
        match if now { out.send_now(peer, bytes) } else { out.send(peer, bytes) } {
            Ok(()) => Ok(true),
            Err(error) if error.is_back_pressure() => Ok(false),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Sends with the next flush. Turns while there is no room.
    #[inline(always)]
    pub(crate) fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), Failure> {
        loop {
            match self.worker.outbox().send(peer, bytes) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_back_pressure() => self.turn()?,
                Err(error) => return Err(self.refused(error)),
            };
        }
    }

    /// Sends a list of messages with the next flush. Turns while there is no room.
    #[inline(always)]
    pub(crate) fn send_list(&mut self, peer: PeerId, mut list: &[&[u8]]) -> Result<(), Failure> {
        while let Err(error) = self.worker.outbox().send_list(peer, list) {
            if !error.cause.is_back_pressure() {
                return Err(self.refused(error.cause));
            }
            list = &list[error.accepted..];
            self.turn()?;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, error: SendError) -> Failure {
        match self.worker.handler().down {
            Some(why) => Failure::new(format!(
                "the connection broke off ({why:?}); see what the other side printed"
            )),
            None => error.into(),
        }
    }

    /// Sends `imm` to every busy peer and waits for the answers. Everything sent before has arrived
    /// by then. Returns the messages received and the messages wrong, summed over the answers.
    pub(crate) fn settle(&mut self, imm: u32) -> Result<(u64, u64), Failure> {
        let caller = self.worker.handler_mut();
        caller.expect_answers();
        let peers = caller.active;
        let word = wire::words(0, 0);
        for n in 0..peers {
            let peer = self.worker.handler().peers[n];
            loop {
                match self.worker.outbox().send_imm(peer, &word, imm) {
                    Ok(()) => break,
                    Err(error) if error.is_back_pressure() => self.turn()?,
                    Err(error) => return Err(self.refused(error)),
                };
            }
        }
        self.worker.outbox().flush();
        while (self.worker.handler().acks as usize) < peers {
            self.turn()?;
        }
        Ok(self.worker.handler().answers())
    }

    /// Counting begins here.
    pub(crate) fn mark(&mut self) {
        self.excluded = 0;
        self.since = Since::now(&self.worker.stats());
    }

    /// What this side did since counting began.
    pub(crate) fn tally(&self) -> Tally {
        self.since.tally(&self.worker.stats(), self.excluded)
    }
}

/// Echoes of a worker. A message rings the doorbell at once, or at the end of the turn as a batch
/// does.
pub(crate) struct Ping<'a, F: Fabric> {
    pub(crate) session: &'a mut Session<F>,
    pub(crate) batching: bool,
}

impl<F: Fabric> Echoes for Ping<'_, F> {
    #[inline(always)]
    fn echoes(&mut self) -> u64 {
        self.session.worker.handler().echoes
    }

    fn wrong(&mut self) -> u64 {
        self.session.worker.handler().wrong
    }

    #[inline(always)]
    fn round(&mut self, payload: &[u8], number: u64) -> Result<(), Failure> {
        let peer = self.session.worker.handler().peers[0];
        match self.batching {
            true => self.session.send(peer, payload)?,
            false => self.session.send_now(peer, payload)?,
        }
        while self.session.worker.handler().echoes == number {
            self.session.turn()?;
        }
        self.session.planted.work();
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.session.settle(wire::MARK)?;
        self.session.mark();
        Ok(())
    }

    fn end(&mut self) -> Result<Tally, Failure> {
        let tally = self.session.tally();
        self.session.settle(wire::END)?;
        Ok(tally)
    }
}
