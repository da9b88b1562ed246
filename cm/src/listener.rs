//! A listener that gives its connections to workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Greeting, Intake, Refusal, RefusalReason};
use doorbell_fabric::{CmError, CmId, EventKind, Fabric, PortSpace, QpFields};
use doorbell_seam::error::Code;

use crate::connections::{Connections, NotHandedOver, run};
use crate::request::{Answer, ConnectRequest};
use crate::trace;

/// What a program decides of each request.
type Decide<F> = Box<dyn FnMut(&ConnectRequest<'_>) -> Answer<F> + Send>;

/// A request that a [`Listener`] refused.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// Where it came from.
    pub addr: Option<SocketAddr>,
    /// What the peer was told.
    pub refusal: Refusal,
    /// This side's error with its cure, if something was missing.
    pub error: Option<CmError>,
}

/// Accepts connections and gives them to workers in turn. When it is dropped, its connections end:
/// peers and workers are told, and the workers' handlers see
/// [`DownReason::Disconnected`](doorbell_engine::worker::DownReason::Disconnected). So that peers
/// get everything that was accepted for them, drain the workers first. Over a network each peer is
/// told once, and the network may lose that. A connection that ends before is different: the kernel
/// repeats the request until the peer answers, for 20 s at most.
///
/// To make connections, call [`Listener::step`] when the listener's descriptor is readable, or
/// [`Listener::run`]. Even if nobody steps it, the worker notices the end of a peer: see
/// [`Watch`](doorbell_engine::worker::Watch).
pub struct Listener<F: Fabric> {
    // Before the connections: a listener that is gone raises no more events on their channel.
    listening: F::Id,
    connections: Connections<F>,
    intakes: Vec<Intake<F>>,
    next: usize,
    lost: u64,
    decide: Option<Decide<F>>,
    /// By the number of the reason.
    refused: [u64; RefusalReason::ALL.len()],
    last_refusal: Option<RefusedRequest>,
    fabric: F,
}

impl<F: Fabric> Listener<F> {
    /// Binds and listens. Port 0 takes a free one.
    ///
    /// # Errors
    /// An address that is not the device's, or a port in use.
    pub fn bind(fabric: &F, addr: SocketAddr) -> Result<Self, CmError> {
        let connections = Connections::new(fabric)?;
        let mut listening = fabric.create_id(Some(&connections.channel), PortSpace::Tcp)?;
        listening.bind(addr)?;
        listening.listen(0)?;
        Ok(Listener {
            listening,
            connections,
            intakes: Vec::new(),
            next: 0,
            lost: 0,
            decide: None,
            refused: [0; _],
            last_refusal: None,
            fabric: fabric.clone(),
        })
    }

    /// The device.
    pub fn nic(&self) -> &F {
        &self.fabric
    }

    /// The address listened on, with the port that was taken.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listening.local_addr()
    }

    /// Adds a worker to those that get connections, at any time. One that drains
    /// ([`Worker::drain`](doorbell_engine::worker::Worker::drain)) gets no more. When a worker is
    /// dropped, the listener ends its connections, forgets it, and counts it in
    /// [`Listener::lost_workers`]. While it has no worker, the listener refuses each request
    /// ([`RefusalReason::NoWorker`]).
    pub fn feed(&mut self, intake: Intake<F>) {
        self.intakes.push(intake);
    }

    /// The worker gets no more connections of this listener. It keeps those it has, and the
    /// listener still handles their events. False: the worker was not fed.
    pub fn remove(&mut self, intake: &Intake<F>) -> bool {
        let before = self.intakes.len();
        self.intakes.retain(|known| !known.is_same(intake));
        self.intakes.len() < before
    }

    /// Number of workers that get connections now.
    pub fn workers(&self) -> usize {
        self.intakes.iter().filter(|intake| intake.is_open()).count()
    }

    /// Number of fed workers that had ended at the last step.
    pub fn lost_workers(&self) -> u64 {
        self.lost
    }

    /// Lets the program decide about each request: whether to accept it, by the peer's address or a
    /// shared secret, and which worker gets the connection. `decide` is called on the thread that
    /// steps the listener, but not for damaged requests and those of other versions, which are
    /// refused. Without `on_request` every request is accepted. The program sees the peer's bytes
    /// again in
    /// [`Handler::on_peer_up`](doorbell_engine::worker::Handler::on_peer_up), by
    /// [`Outbox::peer_info`](doorbell_engine::worker::Outbox::peer_info).
    ///
    /// Private data is not encrypted: a secret in it keeps out strangers, but nobody who can read
    /// the wire.
    pub fn on_request(
        &mut self,
        decide: impl FnMut(&ConnectRequest<'_>) -> Answer<F> + Send + 'static,
    ) {
        self.decide = Some(Box::new(decide));
    }

    /// The attributes of its connections' queue pairs, as the device reports them (`ibv_query_qp`),
    /// timers and retries included. In no order, and without those that have failed.
    pub fn query_qps(&self) -> Vec<QpFields> {
        self.connections.query_qps()
    }

    /// Number of present connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Number of connections that have ended.
    pub fn ended(&self) -> u64 {
        self.connections.ended()
    }

    /// Number of requests refused, for any reason.
    pub fn refused(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Number of requests refused for that reason.
    pub fn refused_for(&self, reason: RefusalReason) -> u64 {
        self.refused.get(reason as usize).copied().unwrap_or(0)
    }

    /// The last request that was refused, and why.
    pub fn last_refusal(&self) -> Option<&RefusedRequest> {
        self.last_refusal.as_ref()
    }

    /// When to call [`Listener::step`] even if the descriptor is not readable, because workers may
    /// want connections closed, or the peer of an ended connection does not answer. `None`: wait
    /// for the descriptor alone.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.connections.next_deadline()
    }

    /// One step: waits up to `limit` for an event and handles it. With a limit of zero it does not
    /// wait. It waits for less if an id whose peer does not answer is due before. True: there was
    /// an event, and there may be more.
    ///
    /// # Errors
    /// The connection manager's error. The failure of one connection is not an error.
    pub fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        self.connections.tend();
        let before = self.intakes.len();
        self.intakes.retain(|intake| !intake.has_ended());
        self.lost += (before - self.intakes.len()) as u64;
        let Some(mut event) = self.connections.next(limit)? else { return Ok(false) };
        match (event.kind, event.request.take()) {
            (EventKind::ConnectRequest, Some(request)) => self.take_in(request)?,
            _ => {
                self.connections.handle(&event);
            }
        }
        Ok(true)
    }

    /// Steps until `stop` is true.
    ///
    /// # Errors
    /// As for [`Listener::step`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), CmError> {
        run(stop, |limit| self.step(limit))
    }

    fn take_in(&mut self, request: F::Id) -> Result<(), CmError> {
        let greeting = match Greeting::parse(request.private_data()) {
            Ok(greeting) => greeting,
            Err(refusal) => {
                self.refuse(request, refusal, None);
                return Ok(());
            }
        };
        let answer = match &mut self.decide {
            Some(decide) => decide(&ConnectRequest::new::<F>(&request, greeting)),
            None => Answer::accept(),
        };
        if !answer.accepted {
            self.refuse(request, Refusal::program(answer.data), None);
            return Ok(());
        }
        let worker = answer.worker.or_else(|| self.next_intake()).filter(Intake::is_open);
        let Some(intake) = worker else {
            let asked = "accept a connection";
            let error = CmError::new(Code::Invalid, asked, "there is no worker that takes peers")
                .cure("feed() the listener with a worker");
            self.refuse(request, Refusal::no_worker(), Some(error));
            return Ok(());
        };
        if let Err(refusal) = intake.check_peer(request.private_data()) {
            self.refuse(request, refusal, None);
            return Ok(());
        }
        let (greeting, peer) = (Some(greeting), request.peer_addr());
        let handed = self.connections.hand_over(
            request,
            &intake,
            greeting,
            &answer.data,
            None,
            F::Id::accept,
        );
        match handed {
            Ok(_) => trace::accepted(peer),
            Err(NotHandedOver { id, refusal, error }) => self.refuse(id, refusal, Some(error)),
        }
        Ok(())
    }

    /// The next worker in turn that takes peers.
    fn next_intake(&mut self) -> Option<Intake<F>> {
        let count = self.intakes.len();
        let places = (0..count).map(|n| self.next.wrapping_add(n) % count);
        let place = { places }.find(|place| self.intakes[*place].is_open())?;
        self.next = place + 1;
        self.intakes.get(place).cloned()
    }

    /// Tells the peer why, instead of silence, and counts it. A peer that has already given up is
    /// fine.
    fn refuse(&mut self, mut request: F::Id, refusal: Refusal, error: Option<CmError>) {
        if let Some(count) = self.refused.get_mut(refusal.reason() as usize) {
            *count += 1;
        }
        trace::refused(request.peer_addr(), &refusal);
        self.last_refusal = Some(RefusedRequest { addr: request.peer_addr(), refusal, error });
        let _ = request.reject(refusal.to_private_data().bytes());
    }
}

impl<F: Fabric> AsFd for Listener<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connections.channel.as_fd()
    }
}
