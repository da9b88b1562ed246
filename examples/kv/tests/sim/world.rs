//! The world of a seed: a server's workers on one device, its clients on another, the wire between
//! them, a control plane that connects each client with each worker, and one that provides memory.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell::prelude::*;
use doorbell::provider::QpType;
use doorbell::provider::fault::{Fault, FaultQp};
use doorbell::soft::sim::{Prng, Wire};
use doorbell::soft::{Host, QpControl, Soft, SoftQpEx, SoftQpInit, Wiring};
use doorbell::wc::Status;
use doorbell::worker::{Greeting, PeerData, PeerResources};
use doorbell_kv::caller::ClientHandler;
use doorbell_kv::client::{Client, How, Settings};
use doorbell_kv::plant::Mistake;
use doorbell_kv::server::{Ask, Server, Setup, Supply, rights};
use doorbell_kv::table::Geometry;

use crate::clock::{AHEAD, now, set_now};
use crate::common::actor::{Actor, Book};
use crate::plan::Plan;

pub(crate) type Device = Fault<Soft>;
type DeviceRegion = <Device as Provider>::Region;

/// A worker's handler.
pub(crate) enum Part {
    Server(Box<Server<DeviceRegion>>),
    Client(Box<ClientHandler<Actor>>),
}

/// The handler, with the names of its connections.
pub(crate) struct Party {
    pub(crate) part: Part,
    conns: BTreeMap<usize, usize>,
    up: Vec<usize>,
    down: Vec<usize>,
}

impl Party {
    fn inner(&mut self) -> &mut dyn Handler<Device> {
        match &mut self.part {
            Part::Server(part) => &mut **part,
            Part::Client(part) => &mut **part,
        }
    }
}

impl Handler<Device> for Party {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, Device>) -> Verdict {
        self.inner().on_message(message, out)
    }
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, Device>) {
        let data = out.peer_info(peer).and_then(|info| info.data().first_chunk::<4>().copied());
        let conn = u32::from_le_bytes(data.expect("the number of the connection")) as usize;
        self.conns.insert(peer.index(), conn);
        self.up.push(conn);
        self.inner().on_peer_up(peer, out);
    }
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, Device>) {
        self.down.extend(self.conns.remove(&peer.index()));
        self.inner().on_peer_down(peer, why, out);
    }
    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, Device>,
    ) {
        self.inner().on_send_done(peer, token, result, out);
    }
    fn on_work(&mut self, key: u64, out: &mut Outbox<'_, Device>) {
        self.inner().on_work(key, out);
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, Device>) {
        self.inner().on_idle(out);
    }
}

/// A worker, its side (0: clients), and how its clock differs from the virtual time: by one part in
/// that number, slower or faster.
pub(crate) struct Desk {
    pub(crate) worker: Worker<Device, Party>,
    intake: Intake<Device>,
    side: usize,
    pub(crate) stalled_until: u64,
    offers: Option<Sender<Option<DeviceRegion>>>,
    clock: fn(u64) -> u64,
}

struct Conn {
    desks: [usize; 2],
    controls: [QpControl; 2],
    active: Option<(FaultQp<Soft>, PeerResources<Device>)>,
    greetings: [Greeting; 2],
    ending: bool,
    down: [bool; 2],
    closed: bool,
}

#[derive(Clone, Copy)]
enum Letter {
    Begin(usize),
    Up(usize, usize),
    Gone(usize, usize),
    Supply(usize, Geometry),
}

pub(crate) struct World {
    // Desks first: queue pairs are gone before the memory of the links.
    pub(crate) desks: Vec<Desk>,
    devices: [Device; 2],
    pub(crate) wire: Wire,
    pub(crate) book: Arc<Mutex<Book>>,
    pub(crate) plan: Plan,
    pub(crate) prng: Prng,
    conns: Vec<Conn>,
    asks: Receiver<Ask>,
    letters: BTreeMap<(u64, u64), Letter>,
    posted: u64,
    pub(crate) downs: u64,
}

fn memory(bytes: usize) -> Result<Mapping, doorbell::error::SetupError> {
    Ok(Mapping::plain(bytes).expect("memory"))
}

/// The clocks of clients: right, slow, and fast by less than they may be.
const CLOCKS: [fn(u64) -> u64; 3] =
    [|t| t + 77, |t| t - t / 2000, |t| 9_000_000_000 + t + t / 2000];

impl World {
    pub(crate) fn new(seed: u64, mistake: Option<Mistake>) -> World {
        set_now(0);
        let mut prng = Prng::new(seed);
        let plan = Plan::draw(&mut prng);
        let wire = Wire::new(prng.fork(), plan.weather, plan.patience, memory);
        let devices = [(); 2].map(|()| {
            Fault::new(Soft::new("sim0", Host::alone(now), None), prng.fork(), plan.odds, None)
        });
        let (send, asks) = channel();
        let (book, conns, letters) = (Arc::default(), Vec::new(), BTreeMap::new());
        let desks = Vec::new();
        let mut world = World {
            desks,
            devices,
            wire,
            book,
            plan,
            prng,
            conns,
            asks,
            letters,
            posted: 0,
            downs: 0,
        };
        world.book().history.compare_clocks(AHEAD, 0, 0);
        for number in 0..plan.clients {
            world.add_client(number, mistake);
        }
        for number in 0..plan.servers {
            world.add_server(number, mistake, send.clone());
        }
        world
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&mut self, side: usize, part: Part, clock: fn(u64) -> u64) -> usize {
        let (nic, config) = (&self.devices[side], &self.plan.config);
        let shared = SharedRecv::new(nic, memory(config.recv_bytes()).unwrap(), config);
        let party = Party { part, conns: BTreeMap::new(), up: Vec::new(), down: Vec::new() };
        let sends = memory(config.send_bytes()).unwrap();
        let (worker, intake) =
            Worker::new(nic, &shared.expect("a queue"), sends, party, config).expect("a worker");
        self.desks.push(Desk { worker, intake, side, stalled_until: 0, offers: None, clock });
        self.desks.len() - 1
    }

    fn add_client(&mut self, number: usize, mistake: Option<Mistake>) {
        let plan = self.plan;
        let settings = Settings {
            depth: plan.habits.depth,
            slot_max: plan.slot_bytes,
            how: How::Read,
            parts: plan.parts,
            mistake,
        };
        let clock = self.prng.pick(&[0, 1, 2]);
        let clock = CLOCKS[clock as usize % CLOCKS.len()];
        let client = Client::new(settings, plan.servers as u32, Box::new(move || clock(now())));
        let bytes = client.memory_bytes();
        let caller = Actor::new(self.book.clone(), self.prng.fork(), plan.habits, number as u64);
        let desk = self.add(0, Part::Client(Box::new(ClientHandler { client, caller })), clock);
        let worker = &mut self.desks[desk].worker;
        let region = worker.adopt_own(&self.devices[0], memory(bytes).unwrap()).expect("a region");
        if let Part::Client(part) = &mut worker.handler_mut().part {
            part.client.read_into(region);
        }
    }

    fn add_server(&mut self, number: usize, mistake: Option<Mistake>, asks: Sender<Ask>) {
        let Plan { homes, slot_bytes, servers, .. } = self.plan;
        let (number, of) = (number as u32, servers as u32);
        let seed = self.prng.word();
        let setup = Setup { shard: (number, of), homes_max: 64, seed, mistake };
        let geometry = Geometry { generation: 1, seed, homes, slot_bytes };
        let region = self.region(&geometry);
        let (offers, takes) = channel();
        let supply = Supply { asks, offers: takes };
        let clock = Box::new(|| now() + AHEAD);
        let server = Server::new(setup, (region, homes, slot_bytes), clock, supply);
        let desk = self.add(1, Part::Server(Box::new(server.expect("a table"))), |t| t + AHEAD);
        self.desks[desk].offers = Some(offers);
    }

    fn region(&self, geometry: &Geometry) -> DeviceRegion {
        self.devices[1].register(memory(geometry.bytes()).unwrap(), rights()).expect("a region")
    }

    fn post(&mut self, delay: u64, letter: Letter) {
        self.posted += 1;
        self.letters.insert((now() + delay, self.posted), letter);
    }

    fn delay(&mut self) -> u64 {
        let most = self.prng.pick(&[1000, 10_000, 50_000]);
        self.prng.range(100, most)
    }

    /// Connects each client with each worker of the server, where they are not.
    pub(crate) fn dial(&mut self) {
        for client in 0..self.plan.clients {
            for server in self.plan.clients..self.desks.len() {
                let live = |conn: &Conn| conn.desks == [client, server] && !conn.ending;
                if !self.conns.iter().any(live) {
                    self.connect([client, server]);
                }
            }
        }
    }

    fn connect(&mut self, desks: [usize; 2]) {
        let seats = desks.map(|desk| self.desks[desk].intake.reserve());
        let [Ok(mine), Ok(theirs)] = seats else { return };
        let number = PeerData::new(&(self.conns.len() as u32).to_le_bytes()).unwrap();
        let data = [&mine, &theirs].map(|grant| grant.handshake(&number));
        let check = |n: usize| self.desks[desks[1 - n]].intake.check_peer(data[n].bytes());
        let greetings = [check(0), check(1)].map(|greeting| greeting.expect("a handshake"));
        let [active, passive] = desks.map(|desk| self.queue_pair(desk));
        let controls = [&active, &passive].map(|qp| qp.inner().control());
        let ends = [&controls[0], &controls[1]];
        let conn = self.wire.connect(ends, [self.wiring(); 2]).expect("a line");
        let passive = self.desks[desks[1]].intake.admit(passive, theirs, None, Some(greetings[0]));
        assert!(passive.is_ok(), "a mailbox is full");
        let (active, down) = (Some((active, mine)), [false; 2]);
        let (ending, closed) = (false, false);
        self.conns.push(Conn { desks, controls, active, greetings, ending, down, closed });
        let delay = self.delay();
        self.post(delay, Letter::Begin(conn));
    }

    fn wiring(&self) -> Wiring {
        Wiring {
            peer: 0,
            peer_rnr_retry: 7,
            rnr_timer_ns: 5000,
            initiator_depth: 4,
            responder_depth: 4,
        }
    }

    fn queue_pair(&self, desk: usize) -> FaultQp<Soft> {
        let Desk { intake, side, .. } = &self.desks[desk];
        let (device, cq) = (&self.devices[*side], intake.cq());
        let init = SoftQpInit {
            kind: QpType::Rc,
            send_cq: cq.inner(),
            recv_cq: cq.inner(),
            srq: Some(intake.srq().inner()),
            caps: intake.qp_caps(),
            signal_all: false,
            ex: SoftQpEx::default(),
        };
        device.wrap(device.inner().create_qp(&init).expect("a queue pair"), cq)
    }

    /// The control plane ends a connection. Each side learns of it in its own time.
    pub(crate) fn end(&mut self, conn: usize) {
        if !std::mem::replace(&mut self.conns[conn].ending, true) {
            for side in 0..2 {
                let delay = self.delay();
                self.post(delay, Letter::Gone(conn, side));
            }
        }
    }

    /// One end of a connection fails, or its process is killed.
    pub(crate) fn break_end(&mut self, conn: usize, side: usize, lost: bool) {
        let control = &self.conns[conn].controls[side];
        if lost {
            control.fail_lost()
        } else {
            control.fail()
        }
        self.end(conn);
    }

    /// Connections that have not begun to end.
    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.conns.len()).filter(|conn| !self.conns[*conn].ending).collect()
    }

    fn deliver(&mut self, letter: Letter) {
        match letter {
            Letter::Begin(conn) => self.begin(conn),
            Letter::Up(conn, side) => {
                let Conn { desks, controls, greetings, .. } = &self.conns[conn];
                let num = controls[side].num();
                assert!(self.desks[desks[side]].intake.up(num, greetings[1 - side]));
            }
            Letter::Gone(conn, side) => {
                let conn = &mut self.conns[conn];
                drop(conn.active.take().filter(|_| side == 0));
                let num = conn.controls[side].num();
                assert!(self.desks[conn.desks[side]].intake.gone(num));
            }
            Letter::Supply(desk, geometry) => {
                let offer = (!self.prng.chance(100)).then(|| self.region(&geometry));
                let Desk { offers, worker, .. } = &self.desks[desk];
                let sent = offers.as_ref().is_some_and(|offers| offers.send(offer).is_ok());
                assert!(sent && worker.handle().submit(0));
            }
        }
    }

    fn begin(&mut self, number: usize) {
        let wiring = self.wiring();
        let conn = &mut self.conns[number];
        let Some((qp, grant)) = conn.active.take() else { return };
        self.wire.start(number, &conn.controls[0], wiring);
        assert!(self.desks[conn.desks[0]].intake.admit(qp, grant, None, None).is_ok());
        for side in 0..2 {
            let delay = self.delay();
            self.post(delay, Letter::Up(number, side));
        }
    }

    /// One turn of a worker, and what follows from it at once.
    pub(crate) fn turn(&mut self, desk: usize) -> usize {
        let Desk { worker, clock, .. } = &mut self.desks[desk];
        worker.advance(clock(now()));
        let taken = worker.turn();
        let side = self.desks[desk].side;
        while let Some(num) = self.desks[desk].intake.next_closing() {
            let is = |conn: &Conn| conn.desks[side] == desk && conn.controls[side].num() == num;
            let conn = self.conns.iter().rposition(is).expect("it is known");
            self.end(conn);
        }
        for conn in std::mem::take(&mut self.desks[desk].worker.handler_mut().down) {
            self.conns[conn].down[side] = true;
            self.downs += 1;
            if self.conns[conn].down == [true; 2] && !self.conns[conn].closed {
                self.conns[conn].closed = true;
                self.wire.close(conn);
            }
        }
        while let Ok(Ask { worker, geometry }) = self.asks.try_recv() {
            let delay = self.delay();
            self.post(delay, Letter::Supply(self.plan.clients + worker as usize, geometry));
        }
        taken
    }

    /// Advances the time to `to`: the wire, the control plane.
    pub(crate) fn advance(&mut self, to: u64) {
        set_now(to.max(now()));
        self.wire.advance(now());
        drop(self.wire.events());
        while let Some(entry) = self.letters.first_entry() {
            if entry.key().0 > now() {
                break;
            }
            let letter = entry.remove();
            self.deliver(letter);
        }
        if let Some(rule) = self.wire.broken() {
            self.book().failure = Some(format!("a device breaks its rules: {rule}"));
        }
    }

    /// The time of the next event.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let letter = self.letters.first_key_value().map(|((at, _), _)| *at);
        [letter, self.wire.next_at()].into_iter().flatten().min()
    }
}
