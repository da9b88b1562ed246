//! Connections that workers own: the ids that stay with the control plane, and what the control
//! plane owes the worker for each. Shared by [`crate::Listener`] and [`crate::Dialer`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Greeting, Intake, PeerData, Refusal, Retry, Watch};
use doorbell_fabric::{
    Channel, CmError, CmId, ConnParam, Event, EventKind, Fabric, IdKey, IdOption, QpFields,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Qp, QpType};

use crate::leaving::Leaving;
use crate::peer_handle::PeerHandle;
use crate::{trace, worker_qp};

struct Connection<F: Fabric> {
    id: F::Id,
    qp_num: u32,
    /// Its event has said so.
    is_up: bool,
    intake: Intake<F>,
    /// If this side dialed.
    handle: Option<PeerHandle>,
}

/// What became of a connection.
pub(crate) enum Outcome {
    /// It is up.
    Up,
    /// It never came up: status and kind of the event, and the peer's reason if it gave one.
    Failed(EventKind, i32, Option<Refusal>),
    /// This side does not want it.
    Refused(Refusal),
}

/// A connection that was not handed over: its id, what to tell the peer, what to tell the caller.
pub(crate) struct NotHandedOver<F: Fabric> {
    pub(crate) id: F::Id,
    pub(crate) refusal: Refusal,
    pub(crate) error: CmError,
}

/// The connections of a listener or a dialer. When it is dropped, it ends them: it tells peers and
/// workers.
pub(crate) struct Connections<F: Fabric> {
    shared: Arc<Shared<F>>,
    pub(crate) channel: Arc<F::Channel>,
    /// A handle has asked for the end of its connection.
    pub(crate) called: Arc<AtomicBool>,
}

/// What workers see of [`Connections`]. If the program forgets to step, they look for ended peers.
struct Shared<F: Fabric> {
    /// Steps begun.
    steps: AtomicU64,
    /// `None` after the end.
    live: Mutex<Option<Live<F>>>,
}

impl<F: Fabric> Shared<F> {
    fn lock(&self) -> MutexGuard<'_, Option<Live<F>>> {
        // A thread that panicked was between two whole steps.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fabric> Watch for Shared<F> {
    fn steps(&self) -> u64 {
        // Relaxed, as where it is counted: it orders nothing.
        self.steps.load(Ordering::Relaxed)
    }

    fn look(&self) {
        // A thread that has the lock steps, or waits for events.
        if let Ok(mut live) = self.live.try_lock()
            && let Some(live) = live.as_mut()
        {
            live.look();
        }
    }
}

impl<F: Fabric> Connections<F> {
    pub(crate) fn new(fabric: &F) -> Result<Self, CmError> {
        let channel = Arc::new(fabric.open_channel()?);
        let called = Arc::<AtomicBool>::default();
        let live = Live {
            channel: channel.clone(),
            live: HashMap::new(),
            leaving: Leaving::of::<F>(),
            workers: Vec::new(),
            events: VecDeque::new(),
            ended: 0,
            called: called.clone(),
        };
        let (steps, live) = (AtomicU64::new(0), Mutex::new(Some(live)));
        Ok(Connections { shared: Arc::new(Shared { steps, live }), channel, called })
    }

    /// Calls `f` on what only an ended object has not.
    fn with<T: Default>(&self, f: impl FnOnce(&mut Live<F>) -> T) -> T {
        self.shared.lock().as_mut().map(f).unwrap_or_default()
    }

    pub(crate) fn has(&self, key: IdKey) -> bool {
        self.with(|live| live.live.contains_key(&key))
    }

    /// When to look again for what does not show in the descriptor: a connection that a worker or
    /// a handle wants ended, an event that a worker has taken from the channel, and an id whose
    /// peer does not answer.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.with(|live| {
            let idle = live.live.is_empty() && live.workers.is_empty() && live.events.is_empty();
            let soon = (!idle).then(|| Instant::now() + STEP);
            soon.into_iter().chain(live.leaving.next_deadline()).min()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.with(|live| live.live.len())
    }

    /// The attributes of their queue pairs, except those that workers have already given up.
    pub(crate) fn query_qps(&self) -> Vec<QpFields> {
        let query = |connection: &Connection<F>| connection.id.query_qp().ok();
        self.with(|live| live.live.values().filter_map(query).collect())
    }

    pub(crate) fn ended(&self) -> u64 {
        self.with(|live| live.ended)
    }

    /// See [`Live::hand_over`].
    pub(crate) fn hand_over(
        &mut self,
        id: F::Id,
        intake: &Intake<F>,
        greeting: Option<Greeting>,
        data: &PeerData,
        handle: Option<PeerHandle>,
        go: impl FnOnce(&mut F::Id, &ConnParam<'_>) -> Result<(), CmError>,
    ) -> Result<IdKey, NotHandedOver<F>> {
        let watch: Arc<dyn Watch> = self.shared.clone();
        match self.shared.lock().as_mut() {
            Some(live) => {
                let intake = live.meet(intake, &watch);
                live.hand_over(id, &intake, greeting, data, handle, go)
            }
            None => {
                let answer = "its listener or dialer has ended";
                let error =
                    CmError::new(Code::Reset, "connect a worker", answer).cure("make another one");
                Err(NotHandedOver { id, refusal: Refusal::no_worker(), error })
            }
        }
    }

    /// See [`Live::handle`].
    pub(crate) fn handle(&mut self, event: &Event<F>) -> Option<Outcome> {
        self.with(|live| live.handle(event))
    }

    /// Nobody waits for this connection any more.
    pub(crate) fn give_up(&mut self, key: IdKey) {
        self.with(|live| live.end(key, None));
    }

    /// Begins a step: ends connections that workers want ended, and those of workers that have
    /// ended, which it forgets.
    pub(crate) fn tend(&mut self) {
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
        self.with(Live::tend);
    }

    pub(crate) fn next(&self, limit: Duration) -> Result<Option<Event<F>>, CmError> {
        self.shared.lock().as_mut().map_or(Ok(None), |live| live.next(limit))
    }
}

impl<F: Fabric> Drop for Connections<F> {
    fn drop(&mut self) {
        let live = self.shared.lock().take();
        if let Some(mut live) = live {
            let watch: Arc<dyn Watch> = self.shared.clone();
            live.workers.iter().for_each(|worker| worker.unwatch(&watch));
            live.tend();
            live.end_those(|_| true);
        }
    }
}

/// The connections, under the lock.
struct Live<F: Fabric> {
    channel: Arc<F::Channel>,
    live: HashMap<IdKey, Connection<F>>,
    /// Ids of connections that this side has ended. They count as gone.
    leaving: Leaving<F::Id>,
    /// The workers that have had connections, by intakes of this control plane's own.
    workers: Vec<Intake<F>>,
    /// Events that a worker's look has taken from the channel, for the next steps.
    events: VecDeque<Event<F>>,
    ended: u64,
    called: Arc<AtomicBool>,
}

impl<F: Fabric> Live<F> {
    /// The intake of a worker for this control plane. From its first connection on, the worker
    /// looks at this control plane.
    fn meet(&mut self, intake: &Intake<F>, watch: &Arc<dyn Watch>) -> Intake<F> {
        if let Some(known) = self.workers.iter().find(|known| known.is_same(intake)) {
            return known.clone();
        }
        let own = intake.watch(watch);
        self.workers.push(own.clone());
        own
    }

    /// For a worker: handles the ends of connections, and leaves all other events to the next step.
    fn look(&mut self) {
        self.tend();
        // An error will be the next step's too.
        while let Ok(Some(event)) = self.channel.next(Duration::ZERO) {
            match event.kind {
                EventKind::Disconnected | EventKind::DeviceRemoval => {
                    // The worker learns that the peer is up before it learns of the end.
                    if let Some(at) = self.events.iter().position(|up| says_up(up, event.key))
                        && let Some(up) = self.events.remove(at)
                    {
                        self.handle(&up);
                    }
                    self.handle(&event);
                }
                _ => self.events.push_back(event),
            }
        }
    }

    /// Makes the queue pair of an id for a worker and hands it over, before the peer can send.
    /// `intake`: of [`Live::meet`].
    /// `greeting`: what the peer said in its request. `None` when this side connects: the peer has
    /// not answered yet. `data` goes to the peer.
    fn hand_over(
        &mut self,
        mut id: F::Id,
        intake: &Intake<F>,
        greeting: Option<Greeting>,
        data: &PeerData,
        handle: Option<PeerHandle>,
        go: impl FnOnce(&mut F::Id, &ConnParam<'_>) -> Result<(), CmError>,
    ) -> Result<IdKey, NotHandedOver<F>> {
        let failed = |id, refusal, error| Err(NotHandedOver { id, refusal, error });
        let grant = match intake.reserve() {
            Ok(grant) => grant,
            Err(error) => return failed(id, no_place(intake), error.into()),
        };
        let (handshake, watch) = (grant.handshake(data), grant.watch());
        let qp = match worker_qp::create(&mut id, intake, QpType::Rc) {
            Ok(qp) => qp,
            Err(error) => return failed(id, no_resources(&error), error),
        };
        let qp_num = qp.num();
        if let Err(qp) = intake.admit(qp, grant, id.peer_addr(), greeting) {
            drop(qp);
            let (refusal, error) = not_admitted(intake);
            return failed(id, refusal, error);
        }
        if let Some(handle) = &handle {
            handle.watches(watch);
        }
        // Every resource the device has.
        let Retry { rnr_retry, ack_timeout, retry_count, .. } = intake.retry();
        let private_data = handshake.bytes();
        let param = ConnParam { private_data, rnr_retry, retry_count, ..ConnParam::default() };
        let went = id.set_option(IdOption::AckTimeout(ack_timeout));
        if let Err(error) = went.and_then(|()| go(&mut id, &param)) {
            intake.gone(qp_num);
            return failed(id, no_resources(&error), error);
        }
        let key = id.key();
        let (is_up, intake) = (false, intake.clone());
        self.live.insert(key, Connection { id, qp_num, is_up, intake, handle });
        Ok(key)
    }

    /// Handles an event of a connection. Returns the outcome, if the event decides whether the
    /// connection comes up.
    fn handle(&mut self, event: &Event<F>) -> Option<Outcome> {
        match event.kind {
            EventKind::Established => {
                let connection = self.live.get_mut(&event.key)?;
                connection.is_up = true;
                let greeting = connection.intake.check_peer(connection.id.private_data());
                let greeting = match greeting {
                    Ok(greeting) => greeting,
                    Err(refusal) => {
                        trace::refused(connection.id.peer_addr(), &refusal);
                        self.remove(event.key, None);
                        return Some(Outcome::Refused(refusal));
                    }
                };
                // It fails only if the worker has already given the queue pair up.
                let _ = connection.id.set_rnr_timer(connection.intake.retry().rnr_timer);
                let (intake, qp_num) = (connection.intake.clone(), connection.qp_num);
                trace::connected(connection.id.peer_addr(), qp_num);
                if let Some(handle) = &connection.handle {
                    handle.is_up();
                }
                intake.up(qp_num, greeting);
                Some(Outcome::Up)
            }
            EventKind::Disconnected => {
                self.is_gone(event.key, "the peer ended it");
                None
            }
            EventKind::DeviceRemoval => {
                self.is_gone(event.key, "the device was removed");
                None
            }
            kind @ (EventKind::Rejected
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::AddrError
            | EventKind::RouteError) => {
                let refusal = Refusal::parse(&event.private_data);
                if let Some(live) = self.live.get(&event.key) {
                    trace::failed(live.id.peer_addr(), kind, event.status, refusal.as_ref());
                }
                self.remove(event.key, None);
                Some(Outcome::Failed(kind, event.status, refusal))
            }
            _ => None,
        }
    }

    /// The other side has ended a connection, or has answered its end. An id that leaves is not a
    /// live one, so only then the list of those is searched.
    fn is_gone(&mut self, key: IdKey, why: &str) {
        if self.live.contains_key(&key) {
            self.end(key, Some(why));
        } else {
            self.leaving.remove(key);
        }
    }

    /// Ends a connection that was up, or nearly. `why`: if this side did not want it.
    fn end(&mut self, key: IdKey, why: Option<&str>) {
        if let Some(live) = self.live.get(&key) {
            trace::ended(live.id.peer_addr(), live.qp_num, why);
        }
        self.remove(key, why);
    }

    /// Removes a connection: tells the worker and the peer. `why`: if it was up and this side did
    /// not want it. Its id is destroyed, or waits for the peer's answer if this side is the first
    /// to disconnect. One that is not up is destroyed at once: that rejects it, and no answer
    /// comes. It is up, too, if a look has taken the event that says so and no step has handled it.
    fn remove(&mut self, key: IdKey, why: Option<&str>) {
        if let Some(mut connection) = self.live.remove(&key) {
            self.ended += 1;
            if let Some(handle) = &connection.handle {
                let asked = || format!("stay connected to {}", handle.addr());
                handle.is_down(why.map(|why| CmError::new(Code::Reset, asked(), why)));
            }
            // Both ends disconnect (CM-10); one that never was connected cannot, which is fine.
            let asked = connection.id.disconnect().is_ok();
            connection.intake.gone(connection.qp_num);
            let is_up = connection.is_up || self.events.iter().any(|event| says_up(event, key));
            if asked && is_up && why.is_none() {
                self.leaving.add(key, connection.id);
            }
        }
    }

    /// Ends some of the connections.
    fn end_those(&mut self, which: impl Fn(&Connection<F>) -> bool) {
        let keys = self.live.iter().filter(|(_, live)| which(live)).map(|(key, _)| *key);
        for key in keys.collect::<Vec<_>>() {
            self.end(key, None);
        }
    }

    /// Ends connections that workers want ended, that handles want ended, and those of workers that
    /// have ended, which it forgets. Destroys ids whose peer has not answered for too long.
    fn tend(&mut self) {
        self.leaving.expire();
        for n in 0..self.workers.len() {
            while let Some(qp_num) = self.workers[n].next_closing() {
                let worker = self.workers[n].clone();
                self.end_those(|live| live.qp_num == qp_num && live.intake.is_same(&worker));
            }
        }
        if self.workers.iter().any(Intake::has_ended) {
            self.end_those(|live| live.intake.has_ended());
            self.workers.retain(|worker| !worker.has_ended());
        }
        // Acquire pairs with `PeerHandle::end`.
        if self.called.swap(false, Ordering::Acquire) {
            self.end_those(|live| live.handle.as_ref().is_some_and(PeerHandle::is_ending));
        }
    }

    /// The next event, if it comes within `limit`. It waits no longer than until the next id that
    /// leaves is due, and destroys that id then.
    fn next(&mut self, limit: Duration) -> Result<Option<Event<F>>, CmError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let due = self.leaving.next_deadline();
        let event = self.channel.next(due.map_or(limit, |at| limit.min(left(at))))?;
        if event.is_none() {
            self.leaving.expire();
        }
        Ok(event)
    }
}

/// True if the event says that the connection of that id is up.
fn says_up<F: Fabric>(event: &Event<F>, key: IdKey) -> bool {
    event.key == key && matches!(event.kind, EventKind::Established)
}

/// What to tell a peer for which a worker has no place.
fn no_place<F: Fabric>(intake: &Intake<F>) -> Refusal {
    match intake.is_open() {
        true => intake.no_place(),
        false => Refusal::no_worker(),
    }
}

/// What to tell the peer and the caller of a worker that does not take a queue pair.
fn not_admitted<F: Fabric>(intake: &Intake<F>) -> (Refusal, CmError) {
    let refusal = if intake.is_open() { Refusal::busy() } else { Refusal::no_worker() };
    (refusal, not_taken(intake, "hand a connection to a worker"))
}

/// What to tell the caller of it.
pub(crate) fn not_taken<F: Fabric>(intake: &Intake<F>, asked: &str) -> CmError {
    if !intake.is_open() {
        return CmError::new(Code::Reset, asked, "the worker ends").cure("use another worker");
    }
    CmError::new(Code::Busy, asked, "its mailbox is full")
        .cure("let the worker turn, or raise Config::peers")
}

/// What to tell the peer of an error of this side.
fn no_resources(error: &CmError) -> Refusal {
    Refusal::resources(error.code().errno())
}

/// How long one wait of the control plane lasts, and so how late it notices that it is to stop.
pub(crate) const STEP: Duration = Duration::from_millis(5);

/// Steps until `stop` is true.
pub(crate) fn run(
    stop: &AtomicBool,
    mut step: impl FnMut(Duration) -> Result<bool, CmError>,
) -> Result<(), CmError> {
    while !stop.load(Ordering::Relaxed) {
        step(STEP)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use doorbell_engine::worker::{Config, Handler, Message, Outbox, SharedRecv, Verdict, Worker};
    use doorbell_fabric::PortSpace;
    use doorbell_seam::provider::Provider;
    use doorbell_soft::{SoftDevice, SoftId};

    use super::*;
    use crate::{Listener, message_memory};

    const LONG: Duration = Duration::from_secs(3600);

    struct Nobody;

    impl<P: Provider> Handler<P> for Nobody {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            Verdict::Done
        }
    }

    type Side = (Worker<SoftDevice, Nobody>, Intake<SoftDevice>);

    fn side(nic: &SoftDevice) -> Side {
        let config = Config { peers: 4, ..Config::DEFAULT };
        let memory = |bytes| message_memory(nic, bytes).unwrap();
        let shared = SharedRecv::new(nic, memory(config.recv_bytes()), &config).unwrap();
        Worker::new(nic, &shared, memory(config.send_bytes()), Nobody, &config).unwrap()
    }

    /// Connections to a listener. Their ids wait for answers as over a network.
    struct Ends {
        nic: SoftDevice,
        connections: Connections<SoftDevice>,
        one: Side,
        listener: Listener<SoftDevice>,
        _two: Side,
    }

    impl Ends {
        fn new(limit: Duration) -> Ends {
            let nic = SoftDevice::open().unwrap();
            let (one, two) = (side(&nic), side(&nic));
            let mut listener = Listener::bind(&nic, ([127, 0, 0, 1], 0).into()).unwrap();
            listener.feed(two.1.clone());
            let connections = Connections::new(&nic).unwrap();
            connections.with(|live| live.leaving.wait_for(limit));
            Ends { nic, connections, one, listener, _two: two }
        }

        /// The next event.
        fn event(&mut self) -> Event<SoftDevice> {
            loop {
                self.listener.step(Duration::ZERO).unwrap();
                if let Some(event) = self.connections.next(Duration::ZERO).unwrap() {
                    return event;
                }
            }
        }

        /// A connection to that address, with a request on its way.
        fn ask(&mut self, to: SocketAddr) -> IdKey {
            let channel = self.connections.channel.clone();
            let mut id = self.nic.create_id(Some(&channel), PortSpace::Tcp).unwrap();
            id.resolve_addr(None, to, LONG).unwrap();
            assert_eq!(self.event().kind, EventKind::AddrResolved);
            id.resolve_route(LONG).unwrap();
            assert_eq!(self.event().kind, EventKind::RouteResolved);
            let (intake, data) = (&self.one.1, PeerData::default());
            let asked = self.connections.hand_over(id, intake, None, &data, None, SoftId::connect);
            asked.map_err(|failed| failed.error).unwrap()
        }

        /// A connection that is up.
        fn connect(&mut self) -> IdKey {
            let key = self.ask(self.listener.local_addr().unwrap());
            let event = self.event();
            assert!(matches!(self.connections.handle(&event), Some(Outcome::Up)));
            key
        }

        /// The connections, those that have ended, and the ids that wait.
        fn counts(&self) -> (usize, u64, usize) {
            let leaving = self.connections.with(|live| live.leaving.len());
            (self.connections.len(), self.connections.ended(), leaving)
        }
    }

    #[test]
    fn the_id_of_an_ended_connection_waits_for_the_answer_and_does_not_count() {
        let mut ends = Ends::new(LONG);
        let key = ends.connect();
        ends.connections.give_up(key);
        assert_eq!(ends.counts(), (0, 1, 1));
        assert!(!ends.connections.has(key) && ends.connections.query_qps().is_empty());
        ends.connections.tend();
        assert_eq!(ends.counts(), (0, 1, 1));
        let event = ends.event();
        assert_eq!((event.kind, event.key), (EventKind::Disconnected, key));
        assert!(ends.connections.handle(&event).is_none());
        assert_eq!(ends.counts(), (0, 1, 0));
    }

    /// Soft raises the event at once. Until a step takes it, it is as if no answer had come.
    #[test]
    fn an_id_whose_peer_does_not_answer_is_destroyed_in_time() {
        let mut ends = Ends::new(LONG);
        let (first, before) = (ends.connect(), Instant::now());
        ends.connections.give_up(first);
        // With a worker it looks again soon, for what the worker wants.
        ends.connections.with(|live| live.workers.clear());
        ends.connections.tend();
        let deadline = ends.connections.next_deadline().unwrap();
        assert!(deadline >= before + LONG && deadline <= Instant::now() + LONG);
        let answer = ends.event();
        ends.connections.handle(&answer);
        assert_eq!(ends.connections.next_deadline(), None);
        ends.connections.with(|live| live.leaving.wait_for(Duration::ZERO));
        let second = ends.connect();
        ends.connections.give_up(second);
        assert_eq!(ends.counts(), (0, 2, 1));
        ends.connections.tend();
        assert_eq!(ends.counts(), (0, 2, 0));
    }

    /// Nobody steps, and a worker's look has taken the event.
    #[test]
    fn the_id_of_a_connection_waits_even_if_nobody_has_handled_that_it_is_up() {
        let mut ends = Ends::new(LONG);
        let key = ends.ask(ends.listener.local_addr().unwrap());
        while ends.connections.with(|live| live.events.is_empty()) {
            ends.listener.step(Duration::ZERO).unwrap();
            ends.connections.shared.look();
        }
        ends.connections.give_up(key);
        assert_eq!(ends.counts(), (0, 1, 1));
        while ends.counts().2 > 0 {
            let event = ends.event();
            assert!(ends.connections.handle(&event).is_none());
        }
    }

    /// Soft raises the answer at once. It is taken and not handled, as if it had not come.
    #[test]
    fn a_long_step_wakes_for_an_id_whose_peer_does_not_answer() {
        const LONG_STEP: Duration = Duration::from_secs(60);
        let mut ends = Ends::new(LONG_STEP / 100);
        let key = ends.connect();
        ends.connections.give_up(key);
        assert_eq!(ends.event().kind, EventKind::Disconnected);
        let before = Instant::now();
        while ends.connections.next(LONG_STEP).unwrap().is_some() {}
        assert_eq!(ends.counts(), (0, 1, 0));
        assert!(before.elapsed() < LONG_STEP);
    }

    /// The peer, or the device, has ended it: there is nobody to wait for.
    #[test]
    fn an_id_that_the_peer_has_ended_does_not_wait() {
        let mut ends = Ends::new(LONG);
        ends.connect();
        let address = ([127, 0, 0, 1], 0).into();
        ends.listener = Listener::bind(&ends.nic, address).unwrap();
        let event = ends.event();
        assert_eq!(event.kind, EventKind::Disconnected);
        ends.connections.handle(&event);
        assert_eq!(ends.counts(), (0, 1, 0));
    }

    /// It has not come up, so there is nothing to disconnect, and its id takes the request back.
    #[test]
    fn the_id_of_a_request_that_is_given_up_does_not_wait() {
        let mut ends = Ends::new(LONG);
        let key = ends.ask(ends.listener.local_addr().unwrap());
        assert_eq!(ends.event().kind, EventKind::Established);
        // Nobody has handled that.
        ends.connections.give_up(key);
        assert_eq!(ends.counts(), (0, 1, 0));
        let key = ends.ask(ends.listener.local_addr().unwrap());
        ends.connections.give_up(key);
        assert_eq!(ends.counts(), (0, 2, 0));
        ends.ask(([127, 0, 0, 1], 1).into());
        let event = ends.event();
        assert!(matches!(ends.connections.handle(&event), Some(Outcome::Failed(..))));
        assert_eq!(ends.counts(), (0, 3, 0));
    }
}
