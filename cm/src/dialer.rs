//! The connecting side: dials peers for workers.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Intake, PEER_DATA_MAX, PeerData, Refusal};
use doorbell_fabric::{CmError, CmId, EventKind, Fabric, IdKey, PortSpace, QpFields, Rejection};
use doorbell_seam::error::Code;

use crate::connections::{Connections, NotHandedOver, Outcome, STEP, run};
use crate::peer_handle::PeerHandle;
use crate::redial::{Backoff, Kept};
use crate::stop::Stop;
use crate::trace;

/// Connects workers to listeners, and looks after the connections. When it is dropped, its
/// connections end, as those of a [`crate::Listener`] do. The end of a peer is noticed even if
/// nobody steps the dialer.
pub struct Dialer<F: Fabric> {
    connections: Connections<F>,
    intakes: Vec<Intake<F>>,
    kept: Vec<Kept<F>>,
    stop: Stop,
    refusal: Option<Refusal>,
    fabric: F,
}

impl<F: Fabric> Dialer<F> {
    /// A dialer on a device.
    ///
    /// # Errors
    /// The system's limit on open files.
    pub fn new(fabric: &F) -> Result<Self, CmError> {
        let connections = Connections::new(fabric)?;
        let (intakes, kept) = (Vec::new(), Vec::new());
        let (stop, refusal) = (Stop::default(), None);
        Ok(Dialer { connections, intakes, kept, stop, refusal, fabric: fabric.clone() })
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

    /// Number of connections now.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connects a worker to `addr`, within `limit`. After this returns, the worker's next turn
    /// tells its handler of the peer. The worker may turn meanwhile, but need not. Dropping the
    /// handle leaves the connection up.
    ///
    /// # Errors
    /// `Refused`: nobody listens, or the peer rejected the request, with its reason
    /// ([`Dialer::last_refusal`]); `TimedOut`; an address that this device cannot reach; no room at
    /// this side. `Reset`: the worker has ended, or drains.
    pub fn dial(
        &mut self,
        addr: SocketAddr,
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<PeerHandle, CmError> {
        self.dial_with(addr, &[], intake, limit)
    }

    /// [`Dialer::dial`] with up to 32 bytes for the peer's program, such as a name or a shared
    /// secret: it sees them before it accepts ([`crate::Listener::on_request`]), and when the
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
        let data = peer_data(addr, data)?;
        let handle = PeerHandle::new(addr, &self.connections.called);
        self.connect(&handle, &data, intake, limit)?;
        Ok(handle)
    }

    fn connect(
        &mut self,
        handle: &PeerHandle,
        data: &PeerData,
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<IdKey, CmError> {
        self.refusal = None;
        let (addr, until) = (handle.addr(), Instant::now() + limit);
        trace::connecting(addr);
        let mut id = self.fabric.create_id(Some(&self.connections.channel), PortSpace::Tcp)?;
        let key = id.key();
        id.resolve_addr(None, addr, limit)?;
        self.wait_for(key, addr, EventKind::AddrResolved, until)?;
        id.resolve_route(limit)?;
        self.wait_for(key, addr, EventKind::RouteResolved, until)?;
        let handle = Some(handle.clone());
        let handed = self.connections.hand_over(id, intake, None, data, handle, F::Id::connect);
        handed.map_err(|NotHandedOver { error, .. }| error)?;
        if !self.intakes.iter().any(|known| known.is_same(intake)) {
            self.intakes.push(intake.clone());
        }
        self.wait_for(key, addr, EventKind::Established, until)?;
        Ok(key)
    }

    /// Keeps a worker connected to `addr`: [`Dialer::step`] dials it, and dials again whenever the
    /// connection ends or cannot be made, after the waits that `backoff` gives. The handler sees
    /// each connection as a new peer. [`PeerHandle::end`] stops it.
    pub fn keep(&mut self, addr: SocketAddr, intake: &Intake<F>, backoff: Backoff) -> PeerHandle {
        self.keep_always(addr, PeerData::default(), intake, backoff)
    }

    /// [`Dialer::keep`] with up to 32 bytes for the peer's program, each time it is dialed.
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
        let handle = PeerHandle::new(addr, &self.connections.called);
        self.kept.push(Kept::new(handle.clone(), data, intake.clone(), backoff));
        handle
    }

    /// The reason that the last dialed peer gave, if it refused and gave one.
    pub fn last_refusal(&self) -> Option<&Refusal> {
        self.refusal.as_ref()
    }

    /// The kept connections that were given up, with the reason, by address.
    pub fn given_up<'a>(&'a self) -> impl Iterator<Item = (SocketAddr, &'a CmError)> {
        let error = |kept: &'a Kept<F>| kept.given_up().map(|error| (kept.handle.addr(), error));
        self.kept.iter().filter_map(error)
    }

    /// Dials the kept connections that are due.
    fn redial(&mut self) {
        self.kept.retain(|kept| !kept.is_over());
        for n in 0..self.kept.len() {
            let (now, connections) = (Instant::now(), &self.connections);
            if self.kept[n].is_due(now, |key| connections.has(key)) {
                let Kept { handle, data, intake, backoff, .. } = &self.kept[n];
                let (handle, data, intake) = (handle.clone(), *data, intake.clone());
                let result = self.connect(&handle, &data, &intake, backoff.limit);
                handle.is_refused(self.refusal);
                self.kept[n].tried(Instant::now(), result);
            }
        }
    }

    /// Handles events as they come, until the awaited one.
    fn wait_for(
        &mut self,
        key: IdKey,
        addr: SocketAddr,
        kind: EventKind,
        until: Instant,
    ) -> Result<(), CmError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.connections.give_up(key);
                let asked = format!("connect to {addr}");
                return Err(CmError::new(Code::TimedOut, asked, "the peer did not answer in time")
                    .cure("is the program there still running?"));
            }
            if self.stop.is_stopped() {
                self.connections.give_up(key);
                return Err(CmError::new(Code::Again, format!("connect to {addr}"), "stopped"));
            }
            let Some(event) = self.connections.next(left.min(STEP))? else { continue };
            let outcome = self.connections.handle(&event);
            if event.key != key {
                continue;
            }
            match outcome {
                Some(Outcome::Failed(kind, status, reason)) => {
                    self.refusal = reason;
                    return Err(refusal(addr, kind, status, reason));
                }
                Some(Outcome::Refused(reason)) => {
                    let asked = format!("connect to {addr}");
                    let answer = format!("this side refused the peer's answer: {reason}");
                    return Err(CmError::new(Code::Refused, asked, answer).cure(reason.cure()));
                }
                Some(Outcome::Up) | None => {}
            }
            if event.kind == kind {
                return Ok(());
            }
        }
    }

    /// One step: dials the kept connections that are due, then waits up to `limit` for an event and
    /// handles it. True if there was one.
    ///
    /// # Errors
    /// The connection manager's error.
    pub fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        self.connections.tend(&mut self.intakes);
        self.redial();
        let due = self.kept.iter().filter_map(Kept::due_at).min();
        let wait = due.map_or(limit, |at| limit.min(at.saturating_duration_since(Instant::now())));
        let Some(event) = self.connections.next(wait)? else { return Ok(false) };
        self.connections.handle(&event);
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

/// The program's bytes for a peer.
fn peer_data(addr: SocketAddr, data: &[u8]) -> Result<PeerData, CmError> {
    PeerData::new(data).ok_or_else(|| {
        let asked = format!("connect to {addr} with {} bytes for its program", data.len());
        CmError::new(Code::Invalid, asked, format!("at most {PEER_DATA_MAX} fit"))
    })
}

/// What a failed connect means to the caller (ID-10).
fn refusal(addr: SocketAddr, kind: EventKind, status: i32, reason: Option<Refusal>) -> CmError {
    let asked = format!("connect to {addr}");
    if let Some(reason) = reason {
        let answer = format!("the peer refused it: {reason}");
        return CmError::new(Code::Refused, asked, answer).cure(reason.cure());
    }
    match kind {
        EventKind::Rejected
            if status == Rejection::NoListener as i32 || status == -libc::ECONNREFUSED =>
        {
            CmError::new(Code::Refused, asked, "nobody listens there")
                .cure("start the server first, and check address and port")
        }
        EventKind::Rejected => {
            CmError::new(Code::Refused, asked, format!("the peer rejected it (status {status})"))
        }
        EventKind::Unreachable => {
            CmError::new(Code::TimedOut, asked, format!("no answer (status {status})"))
        }
        _ => CmError::new(Code::from_errno(status), asked, format!("{kind:?}, status {status}")),
    }
}
