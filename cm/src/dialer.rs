//! The connecting side: dials peers for workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Intake, PEER_DATA_MAX, PeerData, Refusal};
use doorbell_fabric::{CmError, CmId, Event, EventKind, Fabric, IdKey, PortSpace, QpFields};
use doorbell_seam::error::Code;

use crate::connections::{Connections, NotHandedOver, Outcome, STEP, run};
use crate::peer_handle::{PeerHandle, PeerState};
use crate::redial::{Backoff, Kept};
use crate::stop::Stop;
use crate::trace;

/// Connects workers to listeners, and handles the events of these connections. When it is dropped,
/// its connections end, as those of a [`crate::Listener`] do. Its descriptor is readable when
/// [`Dialer::step`] has an event to handle. Even if nobody steps it, the worker notices the end of
/// a peer.
pub struct Dialer<F: Fabric> {
    connections: Connections<F>,
    dials: Vec<Dial<F>>,
    kept: Vec<Kept<F>>,
    stop: Stop,
    refusal: Option<Refusal>,
    fabric: F,
}

/// A dial in progress.
struct Dial<F: Fabric> {
    key: IdKey,
    handle: PeerHandle,
    data: PeerData,
    intake: Intake<F>,
    limit: Duration,
    /// When it expires; `None`: never.
    until: Option<Instant>,
    /// The id while address and route are resolved. `None` once `Connections` has it.
    id: Option<F::Id>,
}

impl<F: Fabric> Dial<F> {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl<F: Fabric> Drop for Dial<F> {
    fn drop(&mut self) {
        // If it has not come up, nobody will carry it on.
        self.handle.is_left();
    }
}

impl<F: Fabric> Dialer<F> {
    /// A dialer on a device.
    ///
    /// # Errors
    /// The system's limit on open files.
    pub fn new(fabric: &F) -> Result<Self, CmError> {
        let connections = Connections::new(fabric)?;
        let (dials, kept) = (Vec::new(), Vec::new());
        let (stop, refusal, fabric) = (Stop::default(), None, fabric.clone());
        Ok(Dialer { connections, dials, kept, stop, refusal, fabric })
    }

    /// Gives a dial up when the program is asked to end.
    pub(crate) fn stop_with(&mut self, stop: &Stop) {
        self.stop = stop.clone();
    }

    /// The device.
    pub fn nic(&self) -> &F {
        &self.fabric
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

    /// Connects a worker to `addr`, and waits for that up to `limit`. The worker need not turn
    /// meanwhile; its handler learns of the peer in a later turn. If the handle is dropped, the
    /// connection stays up.
    ///
    /// # Errors
    /// `Refused`: nobody listens, or the peer rejected the request ([`Dialer::last_refusal`] has
    /// its reason). `TimedOut`: it was not up after `limit`. `NoMemory`: this worker has no slot or
    /// no receives for one more peer. `Reset`: the worker has ended, or drains. Otherwise the
    /// device's error, such as for an address that it cannot reach.
    pub fn dial(
        &mut self,
        addr: SocketAddr,
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<PeerHandle, CmError> {
        self.dial_with(addr, &[], intake, limit)
    }

    /// As [`Dialer::dial`], with up to 32 bytes for the peer's program, such as a name or a shared
    /// secret. It sees them before it accepts ([`crate::Listener::on_request`]), and when the
    /// connection is up.
    ///
    /// # Errors
    /// As for `dial`; `Invalid`: more than 32 bytes.
    pub fn dial_with(
        &mut self,
        addr: SocketAddr,
        data: &[u8],
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<PeerHandle, CmError> {
        let handle = self.start(addr, data, intake, limit)?;
        let asked = || format!("connect to {addr}");
        loop {
            match handle.state() {
                PeerState::Up => return Ok(handle),
                PeerState::Ended => {
                    let ended = || CmError::new(Code::Again, asked(), "this side ended it");
                    return Err(handle.last_error().unwrap_or_else(ended));
                }
                PeerState::Connecting if self.stop.is_stopped() => {
                    self.end_dials(
                        |dial| dial.handle.is_same(&handle),
                        || Some(CmError::new(Code::Again, asked(), "the program was asked to end")),
                    );
                }
                PeerState::Connecting => {
                    self.step(STEP)?;
                }
            }
        }
    }

    /// Begins to connect a worker to `addr`, and returns at once. Calls of [`Dialer::step`] do the
    /// rest. After `limit` at the latest the handle shows the outcome: [`PeerState::Up`], or
    /// [`PeerState::Ended`] with an error as of [`Dialer::dial`]. `data`: up to 32 bytes for the
    /// peer's program.
    ///
    /// # Errors
    /// `Invalid`: more than 32 bytes; an address that this device cannot reach; the system's limit
    /// on open files.
    pub fn start(
        &mut self,
        addr: SocketAddr,
        data: &[u8],
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<PeerHandle, CmError> {
        let data = peer_data(addr, data)?;
        let handle = PeerHandle::new(addr, false, &self.connections.called);
        self.connect(&handle, data, intake, limit)?;
        Ok(handle)
    }

    fn connect(
        &mut self,
        handle: &PeerHandle,
        data: PeerData,
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<(), CmError> {
        let until = Instant::now().checked_add(limit);
        trace::connecting(handle.addr());
        let mut id = self.fabric.create_id(Some(&self.connections.channel), PortSpace::Tcp)?;
        id.resolve_addr(None, handle.addr(), limit)?;
        let (key, handle, intake) = (id.key(), handle.clone(), intake.clone());
        self.dials.push(Dial { key, handle, data, intake, limit, until, id: Some(id) });
        Ok(())
    }

    /// Keeps a worker connected to `addr`. [`Dialer::step`] dials, and dials again whenever the
    /// connection ends or cannot be made, after the waits of `backoff`. The handler sees each
    /// connection as a new peer. [`PeerHandle::end`] ends this.
    pub fn keep(&mut self, addr: SocketAddr, intake: &Intake<F>, backoff: Backoff) -> PeerHandle {
        self.keep_always(addr, PeerData::default(), intake, backoff)
    }

    /// As [`Dialer::keep`], with up to 32 bytes for the peer's program each time it is dialed.
    ///
    /// # Errors
    /// `Invalid`: more than 32 bytes.
    pub fn keep_with(
        &mut self,
        addr: SocketAddr,
        data: &[u8],
        intake: &Intake<F>,
        backoff: Backoff,
    ) -> Result<PeerHandle, CmError> {
        Ok(self.keep_always(addr, peer_data(addr, data)?, intake, backoff))
    }

    fn keep_always(
        &mut self,
        addr: SocketAddr,
        data: PeerData,
        intake: &Intake<F>,
        backoff: Backoff,
    ) -> PeerHandle {
        let handle = PeerHandle::new(addr, true, &self.connections.called);
        self.kept.push(Kept::new(handle.clone(), data, intake.clone(), backoff));
        handle
    }

    /// The reason that the last dialed peer gave, if it refused and gave one.
    pub fn last_refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// The addresses of kept connections that were given up, with the reason.
    pub fn given_up<'a>(&'a self) -> impl Iterator<Item = (SocketAddr, &'a CmError)> {
        let error = |kept: &'a Kept<F>| kept.given_up().map(|error| (kept.handle.addr(), error));
        self.kept.iter().filter_map(error)
    }

    /// Begins to dial the kept connections that are due.
    fn redial(&mut self) {
        self.kept.retain(|kept| !kept.is_over());
        for n in 0..self.kept.len() {
            let (now, connections) = (Instant::now(), &self.connections);
            if self.kept[n].is_due(now, |key| connections.has(key)) {
                let Kept { handle, data, intake, backoff, .. } = &self.kept[n];
                let (handle, data, intake) = (handle.clone(), *data, intake.clone());
                match self.connect(&handle, data, &intake, backoff.limit) {
                    Ok(()) => self.kept[n].started(),
                    Err(error) => self.kept[n].tried(Instant::now(), Err((error, None))),
                }
            }
        }
    }

    /// Ends the dials whose time is over, and those that the program or the worker has ended.
    fn expire(&mut self) {
        let now = Instant::now();
        self.end_dials(|dial| dial.handle.is_ending(), || None);
        while let Some(at) = self.dials.iter().position(|dial| dial.is_over(now)) {
            let asked = format!("connect to {}", self.dials[at].handle.addr());
            let error = CmError::new(Code::TimedOut, asked, "the peer did not answer in time")
                .cure(
                    "is the program there still running, and does it run its listener \
                     (Runtime::run, Listener::step)?",
                );
            self.fail(at, Some(error), None);
        }
        // A worker may close a peer that is handed over and not yet up.
        let connections = &self.connections;
        let closed = |dial: &Dial<F>| dial.id.is_none() && !connections.has(dial.key);
        if let Some(at) = self.dials.iter().position(closed) {
            let asked = format!("connect to {}", self.dials[at].handle.addr());
            let closed = || CmError::new(Code::Again, asked, "this side's worker closed it");
            // If a worker's look has handled the end already, the handle has the error.
            let handle = &self.dials[at].handle;
            let ended = handle.state() == PeerState::Ended;
            let error = ended.then(|| handle.last_error()).flatten().unwrap_or_else(closed);
            self.fail(at, Some(error), None);
        }
    }

    /// Gives up some of the dials, with an error or without.
    fn end_dials(&mut self, which: impl Fn(&Dial<F>) -> bool, error: impl Fn() -> Option<CmError>) {
        while let Some(at) = self.dials.iter().position(&which) {
            self.fail(at, error(), None);
        }
    }

    /// A dial has failed.
    fn fail(&mut self, at: usize, error: Option<CmError>, reason: Option<Refusal>) {
        let dial = self.dials.swap_remove(at);
        self.connections.give_up(dial.key);
        self.refusal = reason;
        match (self.kept.iter_mut().find(|kept| kept.is_dialed(&dial.handle)), error) {
            (Some(kept), Some(error)) => kept.tried(Instant::now(), Err((error, reason))),
            (_, error) => dial.handle.failed(error, reason),
        }
    }

    /// Handles an event, and carries on the dial that it belongs to.
    fn handle(&mut self, event: &Event<F>) {
        let outcome = self.connections.handle(event);
        let Some(at) = self.dials.iter().position(|dial| dial.key == event.key) else { return };
        let dial = &mut self.dials[at];
        let addr = dial.handle.addr();
        let carried_on = match (outcome, event.kind) {
            (Some(Outcome::Failed(kind, status, reason)), _) => {
                return self.fail(at, Some(refusal(addr, kind, status, reason)), reason);
            }
            (Some(Outcome::Refused(reason)), _) => {
                let answer = format!("this side refused the peer's answer: {reason}");
                let asked = format!("connect to {addr}");
                Err(CmError::new(Code::Refused, asked, answer).cure(reason.cure()))
            }
            (Some(Outcome::Up), _) => {
                let dial = self.dials.swap_remove(at);
                self.refusal = None;
                let mut kept = self.kept.iter_mut();
                if let Some(kept) = kept.find(|kept| kept.is_dialed(&dial.handle)) {
                    kept.tried(Instant::now(), Ok(dial.key));
                }
                return;
            }
            (None, EventKind::AddrResolved) => {
                dial.id.as_mut().map_or(Ok(()), |id| id.resolve_route(dial.limit))
            }
            (None, EventKind::RouteResolved) => dial.id.take().map_or(Ok(()), |id| {
                let Dial { intake, data, handle, .. } = dial;
                let handle = Some(handle.clone());
                let connections = &mut self.connections;
                let handed = connections.hand_over(id, intake, None, data, handle, F::Id::connect);
                handed.map(drop).map_err(|NotHandedOver { error, .. }| error)
            }),
            (None, _) => Ok(()),
        };
        if let Err(error) = carried_on {
            self.fail(at, Some(error), None);
        }
    }

    /// When to call [`Dialer::step`] even if the descriptor is not readable: for dials, for kept
    /// connections, for ends that workers and handles ask for, and for ended connections whose peer
    /// does not answer. `None`: wait for the descriptor alone.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due().into_iter().chain(self.connections.next_deadline()).min()
    }

    /// When the first dial expires, or the first kept connection is to be dialed.
    fn due(&self) -> Option<Instant> {
        let dials = self.dials.iter().filter_map(|dial| dial.until);
        dials.chain(self.kept.iter().filter_map(Kept::due_at)).min()
    }

    /// One step: begins to dial the kept connections that are due, then waits up to `limit` for an
    /// event and handles it. With a limit of zero it does not wait. It waits for less if a dial, a
    /// kept connection or an id whose peer does not answer is due before. True: there was an event,
    /// and there may be more.
    ///
    /// # Errors
    /// The connection manager's error.
    pub fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        self.connections.tend();
        self.redial();
        self.expire();
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let wait = self.due().map_or(limit, |at| limit.min(left(at)));
        let Some(event) = self.connections.next(wait)? else {
            self.expire();
            return Ok(false);
        };
        self.handle(&event);
        Ok(true)
    }

    /// Steps until `stop` is true.
    ///
    /// # Errors
    /// As for [`Dialer::step`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), CmError> {
        run(stop, |limit| self.step(limit))
    }
}

impl<F: Fabric> AsFd for Dialer<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connections.channel.as_fd()
    }
}

/// The program's bytes for a peer.
fn peer_data(addr: SocketAddr, data: &[u8]) -> Result<PeerData, CmError> {
    PeerData::new(data).ok_or_else(|| {
        let asked = format!("connect to {addr} with {} bytes for its program", data.len());
        CmError::new(Code::Invalid, asked, format!("at most {PEER_DATA_MAX} fit"))
            .cure("send the rest as a message")
    })
}

/// What a failed connect means to the caller (ID-10).
fn refusal(addr: SocketAddr, kind: EventKind, status: i32, reason: Option<Refusal>) -> CmError {
    let asked = format!("connect to {addr}");
    if let Some(reason) = reason {
        let answer = format!("the peer refused it: {reason}");
        return CmError::new(Code::Refused, asked, answer).cure(reason.cure());
    }
    CmError::of_event(asked, kind, status)
}

#[cfg(test)]
mod tests {
    use doorbell_engine::worker::{Config, Handler, Message, Outbox, SharedRecv, Verdict, Worker};
    use doorbell_seam::provider::Provider;
    use doorbell_soft::SoftDevice;

    use super::*;
    use crate::message_memory;

    struct Nobody;

    impl<P: Provider> Handler<P> for Nobody {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            Verdict::Done
        }
    }

    /// A thread may look at the handle at any time.
    #[test]
    fn a_dial_that_fails_shows_its_end_with_its_error() {
        let nic = SoftDevice::open().unwrap();
        let config = Config { peers: 1, ..Config::DEFAULT };
        let memory = |bytes| message_memory(&nic, bytes).unwrap();
        let shared = SharedRecv::new(&nic, memory(config.recv_bytes()), &config).unwrap();
        let send = memory(config.send_bytes());
        let (_worker, intake) = Worker::new(&nic, &shared, send, Nobody, &config).unwrap();
        let mut dialer = Dialer::new(&nic).unwrap();
        let limit = Duration::from_secs(60);
        // Nobody listens there.
        let handle = dialer.start(([127, 0, 0, 1], 1).into(), &[], &intake, limit).unwrap();
        while dialer.connections.len() == 0 {
            let event = dialer.connections.next(limit).unwrap().unwrap();
            dialer.handle(&event);
        }
        let event = dialer.connections.next(limit).unwrap().unwrap();
        assert_eq!(event.kind, EventKind::Rejected);
        dialer.connections.handle(&event);
        assert_eq!((dialer.connections.len(), handle.state()), (0, PeerState::Connecting));
        dialer.handle(&event);
        assert_eq!(handle.state(), PeerState::Ended);
        assert_eq!(handle.last_error().map(|error| error.code()), Some(Code::Refused));
    }
}
