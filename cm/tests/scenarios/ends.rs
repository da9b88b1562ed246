//! Ends: of workers beside others, of control planes, of peers whose end no control plane is told
//! of; and ends in order.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{CmError, Dialer, Fabric, Listener};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Message, Outbox, PeerId, RefusalReason, Verdict,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{CONFIG, LIMIT, Pair, Side, address, cases, until};

cases! {
    a_dropped_worker_gets_no_more_clients
    a_worker_ends_with_a_panic
    a_peers_end_is_seen_without_a_step
    an_early_message_comes_before_the_end_without_a_step
    a_dropped_control_plane_ends_its_connections
    each_control_plane_ends_its_own_connections
    a_drained_worker_finishes_its_peers
    an_id_waits_for_the_peer_to_answer_its_end
}

/// Records what happens; panics at the message `die`.
#[derive(Default)]
struct Log {
    replies: bool,
    up: Vec<PeerId>,
    down: Vec<DownReason>,
    got: usize,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        assert_ne!(message.bytes(), b"die", "as the test wants it");
        if self.replies { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
    }
}

type Logged<F> = Side<F, Log>;

fn side<F: Fabric>(nic: &F, replies: bool) -> Logged<F> {
    Side::new(nic, &CONFIG, Log { replies, ..Log::default() })
}

fn replies() -> Log {
    Log { replies: true, ..Log::default() }
}

/// A server with some workers, and a client.
struct Many<F: Fabric> {
    dialer: Dialer<F>,
    listener: Listener<F>,
    addr: SocketAddr,
    client: Logged<F>,
    workers: Vec<Option<Logged<F>>>,
}

impl<F: Fabric> Many<F> {
    fn new(nic: &F, count: usize) -> Many<F> {
        let mut listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
        let addr = listener.local_addr().expect("bound");
        let dialer = Dialer::new(nic).expect("a dialer");
        let workers: Vec<_> = (0..count).map(|_| Some(side(nic, true))).collect();
        workers.iter().flatten().for_each(|worker| listener.feed(worker.intake.clone()));
        Many { dialer, listener, addr, client: side(nic, false), workers }
    }

    fn dial(&mut self) -> Result<(), CmError> {
        let Many { dialer, listener, addr, client, .. } = self;
        thread::scope(|scope| {
            let dialing = scope.spawn(|| dialer.dial(*addr, &client.intake, LIMIT).map(drop));
            while !dialing.is_finished() {
                listener.step(Duration::from_millis(1)).expect("a step");
            }
            dialing.join().expect("it ends")
        })
    }

    fn turn(&mut self) {
        self.client.worker.turn();
        self.workers.iter_mut().flatten().for_each(|side| _ = side.worker.turn());
    }

    /// Turns and steps until it is so.
    fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !so(self) {
            self.dialer.step(Duration::ZERO).expect("a step");
            self.listener.step(Duration::ZERO).expect("a step");
            self.turn();
            assert!(begin.elapsed() < LIMIT, "not yet: {what}");
        }
    }

    fn down(&mut self) -> usize {
        self.client.worker.handler().down.len()
    }
}

/// A listener's worker goes: its peers are told, the others get its clients, and none of them is
/// disturbed. With no worker left, clients are refused with the reason, until there is one again.
fn a_dropped_worker_gets_no_more_clients<F: Fabric>(nic: &F) {
    let mut many = Many::new(nic, 2);
    for _ in 0..2 {
        many.dial().expect("connected");
    }
    many.turn();
    assert_eq!(many.workers.iter_mut().flatten().map(|w| w.worker.peers()).max(), Some(1));
    let gone = many.workers[0].take().expect("there");
    let gone_intake = gone.intake.clone();
    drop(gone);
    many.until("its peer is told", |many| many.down() == 1);
    assert_eq!((many.listener.workers(), many.listener.lost_workers()), (1, 1));
    for _ in 0..2 {
        many.dial().expect("connected to the other");
    }
    many.turn();
    assert_eq!(many.workers[1].as_ref().map(|side| side.worker.peers()), Some(3));
    assert_eq!(many.client.worker.peers(), 3);
    let error = many.dialer.dial(many.addr, &gone_intake, LIMIT).err().expect("it has ended");
    assert_eq!(error.code(), Code::Reset, "{error}");
    assert!(error.to_string().contains("the worker has ended"), "{error}");
    many.workers.clear();
    many.until("all are told", |many| many.down() == 4);
    assert_eq!((many.listener.workers(), many.listener.lost_workers()), (0, 2));
    let error = many.dial().expect_err("nobody is there");
    assert_eq!(error.code(), Code::Refused, "{error}");
    assert_eq!(many.listener.refused_for(RefusalReason::NoWorker), 1);
    let next = side(nic, true);
    many.listener.feed(next.intake.clone());
    many.workers.push(Some(next));
    many.dial().expect("connected again");
    many.until("it is up", |many| many.client.worker.peers() == 1);
    // A worker that is removed keeps its peer, and gets no other.
    let intake = many.workers[0].as_ref().map(|side| side.intake.clone()).expect("there");
    assert!(many.listener.remove(&intake) && !many.listener.remove(&intake));
    assert_eq!(many.dial().expect_err("nobody is there").code(), Code::Refused);
    assert_eq!(many.client.worker.peers(), 1);
}

/// A handler panics, and its worker goes with it: as if it had been dropped.
fn a_worker_ends_with_a_panic<F: Fabric>(nic: &F) {
    let mut many = Many::new(nic, 2);
    for _ in 0..2 {
        many.dial().expect("connected");
    }
    many.until("both are up", |many| many.client.worker.handler().up.len() == 2);
    let peers = many.client.worker.handler().up.clone();
    // Either worker, whoever has the first peer.
    many.client.worker.outbox().send(peers[0], b"die").expect("sent");
    many.client.worker.outbox().flush();
    let begin = Instant::now();
    while many.workers.iter().all(Option::is_some) {
        for place in &mut many.workers {
            let mut worker = place.take().expect("there");
            // The worker is dropped by the panic, as on a thread that unwinds.
            let turned = AssertUnwindSafe(move || {
                worker.worker.turn();
                worker
            });
            *place = catch_unwind(turned).ok();
        }
        assert!(begin.elapsed() < LIMIT, "the message does not come");
    }
    many.until("its peer is told", |many| many.down() == 1);
    many.dial().expect("connected to the other");
    many.client.worker.outbox().send(peers[1], b"well").expect("sent");
    many.until("the other serves", |many| many.client.worker.handler().got == 1);
    assert_eq!(many.listener.lost_workers(), 1);
}

/// One side ends. The other's control plane is never stepped again; its worker only turns. It
/// learns of the end all the same, and nothing keeps the peer.
fn a_peers_end_is_seen_without_a_step<F: Fabric>(nic: &F) {
    let mut pair = Pair::new(nic, &CONFIG, (Log::default(), Log::default()), 2);
    pair.until("up", |pair| pair.one.worker.handler().up.len() == 2);
    let Pair { dialer, listener, mut one, two } = pair;
    drop((listener, two));
    until("the peers are gone", &mut one, |one| one.worker.peers() == 0);
    assert_eq!(one.worker.handler().down.len(), 2);
    assert_eq!(dialer.connections(), 0);
}

/// The dialing side is handed over and never told by a step that it is up. The peer sends and
/// ends. The worker's look finds both events: the message comes before the end.
fn an_early_message_comes_before_the_end_without_a_step<F: Fabric>(nic: &F) {
    let (mut one, mut two) = (side(nic, false), side(nic, false));
    let mut listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
    listener.feed(two.intake.clone());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let addr = listener.local_addr().expect("bound");
    let handle = dialer.start(addr, &[], &one.intake, LIMIT).expect("started");
    let begin = Instant::now();
    while dialer.connections() == 0 {
        dialer.step(Duration::ZERO).expect("a step");
        assert!(begin.elapsed() < LIMIT, "it is not handed over");
    }
    until("the server's peer is up", &mut two, |two| {
        for _ in 0..1000 {
            one.worker.turn();
        }
        listener.step(Duration::ZERO).expect("a step");
        two.worker.handler().up.len() == 1
    });
    let peer = two.worker.handler().up[0];
    two.worker.outbox().send(peer, b"early").expect("sent");
    two.worker.outbox().flush();
    for _ in 0..1000 {
        one.worker.turn();
        two.worker.turn();
    }
    drop((listener, two));
    until("the peer is gone", &mut one, |one| one.worker.peers() == 0);
    assert_eq!((one.worker.handler().got, one.worker.handler().up.len()), (1, 1));
    dialer.step(Duration::ZERO).expect("a step");
    let error = handle.last_error().expect("the reason").to_string();
    assert!(!error.contains("worker closed it"), "{error}");
}

/// A dialer that is dropped ends its connections at both sides, although its worker goes on.
fn a_dropped_control_plane_ends_its_connections<F: Fabric>(nic: &F) {
    let mut pair = Pair::new(nic, &CONFIG, (Log::default(), Log::default()), 1);
    pair.until("up", |pair| pair.one.worker.handler().up.len() == 1);
    let Pair { dialer, mut listener, mut one, mut two } = pair;
    drop(dialer);
    until("the peers are gone", &mut one, |one| {
        two.worker.turn();
        listener.step(Duration::ZERO).expect("a step");
        one.worker.peers() + two.worker.peers() == 0
    });
    assert_eq!(one.worker.handler().down, [DownReason::Disconnected]);
    assert_eq!(two.worker.handler().down.len(), 1);
}

/// One worker has a peer from a listener and another from a dialer. It closes one of them, and the
/// other's control plane is the first to step: that one leaves the connection alone, and the right
/// one ends it.
fn each_control_plane_ends_its_own_connections<F: Fabric>(nic: &F) {
    for dialed_ends in [true, false] {
        // Its clients come from the client of `many`; it dials the listener of `other`.
        let (mut many, mut other) = (Many::new(nic, 1), Many::new(nic, 1));
        many.dial().expect("connected");
        let mut accepted = Vec::new();
        many.until("its client is up", |many| {
            accepted = many.workers[0].as_mut().expect("there").worker.handler().up.clone();
            accepted.len() == 1
        });
        let mut both = many.workers[0].take().expect("there");
        std::mem::swap(&mut other.client, &mut both);
        other.dial().expect("connected");
        other.until("its server is up", |other| other.client.worker.handler().up.len() == 2);
        let dialed = other.client.worker.handler().up[1];
        let closed = if dialed_ends { dialed } else { accepted[0] };
        other.client.worker.outbox().close(closed);
        for _ in 0..3 {
            other.client.worker.turn();
            match dialed_ends {
                true => many.listener.step(Duration::ZERO).expect("a step"),
                false => other.dialer.step(Duration::ZERO).expect("a step"),
            };
        }
        assert_eq!((many.listener.connections(), other.dialer.connections()), (1, 1));
        many.listener.step(Duration::ZERO).expect("a step");
        other.dialer.step(Duration::ZERO).expect("a step");
        let left = (many.listener.connections(), other.dialer.connections());
        assert_eq!(left, if dialed_ends { (1, 0) } else { (0, 1) });
        // The far side is told.
        let begin = Instant::now();
        let far = |many: &mut Many<F>, other: &mut Many<F>| match dialed_ends {
            true => other.workers[0].as_mut().map_or(0, |side| side.worker.handler().down.len()),
            false => many.down(),
        };
        while far(&mut many, &mut other) == 0 {
            many.dialer.step(Duration::ZERO).expect("a step");
            other.listener.step(Duration::ZERO).expect("a step");
            many.turn();
            other.turn();
            assert!(begin.elapsed() < LIMIT, "the peer is not told");
        }
    }
}

/// A worker drains: its peers get everything that was accepted for them, and know that this was no
/// failure. Nobody steps the control plane of the draining side.
fn a_drained_worker_finishes_its_peers<F: Fabric>(nic: &F) {
    let config = Config { peers: 7, ..CONFIG };
    let mut pair = Pair::new(nic, &config, (Log::default(), replies()), 3);
    pair.until("up", |pair| pair.one.worker.handler().up.len() == 3);
    let Pair { mut dialer, listener, mut one, mut two } = pair;
    let peers = one.worker.handler().up.clone();
    let mut sent = 0;
    for peer in peers {
        while one.worker.outbox().send(peer, &[7; 100]).is_ok() {
            sent += 1;
        }
    }
    assert!(sent > 9);
    let begin = Instant::now();
    let undone = one.worker.drain(|| {
        two.worker.turn();
        begin.elapsed() < LIMIT
    });
    assert_eq!((undone.peers, undone.requests, one.worker.peers()), (0, 0, 0));
    assert_eq!(one.worker.handler().down, [DownReason::Closed; 3]);
    while two.worker.peers() > 0 {
        two.worker.turn();
        assert!(begin.elapsed() < LIMIT, "the peers stay");
    }
    assert_eq!(two.worker.handler().got, sent);
    assert_eq!(two.worker.handler().down, [DownReason::Finished; 3]);
    let addr = listener.local_addr().expect("bound");
    let error = dialer.dial(addr, &one.intake, LIMIT).err().expect("it drains");
    assert!(error.to_string().contains("drains"), "{error}");
}

/// One side ends its connection, and the other's control plane does not run yet. For the program
/// the connection has ended. Over a network its id lives on, so that the kernel repeats the request
/// if that was lost: the control plane has a deadline, until the other has answered.
fn an_id_waits_for_the_peer_to_answer_its_end<F: Fabric>(nic: &F) {
    let mut pair = Pair::new(nic, &CONFIG, (Log::default(), Log::default()), 1);
    pair.until("up", |pair| pair.one.worker.handler().up.len() == 1);
    let Pair { mut dialer, mut listener, one, mut two } = pair;
    let begin = Instant::now();
    // A control plane without workers and connections has no other deadline.
    drop(one);
    dialer.step(Duration::ZERO).expect("a step");
    assert_eq!((dialer.connections(), dialer.query_qps().len()), (0, 0));
    let Some(deadline) = dialer.next_deadline() else {
        assert!(!F::OVER_NETWORK, "the id does not wait");
        return;
    };
    assert!(F::OVER_NETWORK, "the device tells the peer by itself");
    assert!(deadline > begin + Duration::from_secs(12), "the kernel repeats nothing by then");
    until("the peer is told, and answers", &mut two, |two| {
        listener.step(Duration::ZERO).expect("a step");
        dialer.step(Duration::ZERO).expect("a step");
        two.worker.peers() == 0 && dialer.next_deadline().is_none()
    });
    assert!(Instant::now() < deadline, "the answer is not seen");
    assert_eq!((two.worker.handler().down.len(), listener.connections()), (1, 0));
}
