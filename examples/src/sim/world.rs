//! The world of one seed: two devices, their workers, the wire between them, and a control plane.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use doorbell::error::SetupError;
use doorbell::provider::fault::Fault;
use doorbell::provider::trace::Trace as Recorded;
use doorbell::provider::{Access, Provider, QpType, Region};
use doorbell::soft::sim::{Event, Prng, Wire};
use doorbell::soft::{Host, QpControl, Soft, SoftQpEx, SoftQpInit, Wiring};
use doorbell::wc::Status;
use doorbell::worker::{Greeting, Intake, PeerData, PeerResources, SharedRecv, Worker};

use super::book::{Book, Conn, End, Happening, Places, SHELF, State, shelf};
use super::clerk::Clerk;
use super::device::{Device, DeviceQp, Planted, memory, wrapped};
use super::plan::Plan;
use super::trace::{Trace, now, set_now};

/// A worker with its place in the world.
pub(super) struct Desk {
    pub(super) worker: Worker<Device, Clerk>,
    pub(super) intake: Intake<Device>,
    pub(super) side: usize,
    /// The shared receive queue of its side that it uses.
    pub(super) queue: usize,
    /// It does not turn before that time.
    pub(super) stalled_until: u64,
    turns: u64,
}

/// The control plane's state of a connection.
struct Call {
    desks: [usize; 2],
    controls: [QpControl; 2],
    /// The active side's queue pair and grant, until the passive side is ready.
    active: Option<(DeviceQp, PeerResources<Device>)>,
    /// The private data of each side.
    greetings: [Greeting; 2],
    /// Sides that were told, or will be, that it has ended.
    ending: bool,
    /// Sides that have the notice in their mailbox.
    told: [bool; 2],
    /// The wire has released it.
    closed: bool,
}

/// A notice of the control plane, on its way.
#[derive(Clone, Copy)]
enum Letter {
    /// The passive side is ready: the active side begins.
    Begin(usize),
    /// That side is connected.
    Up(usize, usize),
    /// That side's connection has ended.
    Gone(usize, usize),
}

/// The world of one seed.
pub struct World {
    // Desks first: queue pairs are gone before the memory of the links.
    pub(super) desks: Vec<Desk>,
    pub(super) devices: [Device; 2],
    pub(super) wire: Wire,
    pub(super) book: Rc<RefCell<Book>>,
    pub(super) plan: Plan,
    calls: Vec<Call>,
    letters: BTreeMap<(u64, u64), Letter>,
    posted: u64,
    /// Workers prepare to sleep now and then. That reviews the credit of all their peers, which
    /// otherwise takes more turns than a seed has.
    naps: bool,
    /// Some notices of an end are lost.
    loses_ends: bool,
}

/// How often a notice of an end is lost if they can be, out of 1024.
const LOST_ODDS: u32 = 64;

/// One seed in `NAPPING_SEEDS` has workers that prepare to sleep in every `NAP_TURNS`-th turn.
const NAPPING_SEEDS: u64 = 8;
const NAP_TURNS: u64 = 32;

impl World {
    /// Builds what a seed asks for.
    ///
    /// # Errors
    /// Too little memory, or a configuration that the engine refuses.
    pub fn new(seed: u64, planted: Option<Planted>, tell: bool) -> Result<World, SetupError> {
        set_now(0);
        let mut prng = Prng::new(seed);
        let plan = Plan::draw(&mut prng);
        let mut wire = Wire::new(prng.fork(), plan.weather, plan.patience, memory);
        let plant = match planted {
            Some(Planted::Device(plant)) => Some(plant),
            Some(Planted::Wire(mistake)) => {
                wire.plant(mistake);
                None
            }
            Some(Planted::LostEnd) | None => None,
        };
        let loses_ends = planted == Some(Planted::LostEnd);
        let book = Book::new(seed, prng.fork(), plan, Trace::new(tell));
        let book = Rc::new(RefCell::new(book));
        let devices = [(); 2].map(|()| {
            let soft = Recorded::new(Soft::new("sim0", Host::alone(now), None));
            Fault::new(soft, prng.fork(), plan.odds, plant)
        });
        let mut desks = Vec::new();
        for (side, nic) in devices.iter().enumerate() {
            let plan = plan.sides[side];
            let queues = (0..plan.queues)
                .map(|_| SharedRecv::new(nic, memory(plan.config.recv_bytes())?, &plan.config))
                .collect::<Result<Vec<_>, _>>()?;
            for number in 0..plan.workers {
                let clerk = Clerk { book: book.clone(), desk: desks.len(), side, kept: Vec::new() };
                let queue = number % plan.queues;
                let sends = memory(plan.config.send_bytes())?;
                let (mut worker, intake) =
                    Worker::new(nic, &queues[queue], sends, clerk, &plan.config)?;
                let places = u64::from(plan.config.requests);
                let bytes = places as usize * plan.config.block_bytes as usize;
                let word = bytes.next_multiple_of(8);
                let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                let region = nic.register(memory(word + 8 + SHELF)?, rights)?;
                let remote = Some(region.remote(word));
                let region = worker.adopt(region);
                let desk = desks.len();
                if worker.outbox().copy_in(region, word + 8, &shelf(desk, SHELF)).is_err() {
                    book.borrow_mut().fail(format!("desk {desk} has no shelf"));
                }
                book.borrow_mut().places[desk] = Places {
                    region: Some(region),
                    word,
                    remote,
                    free: (0..places).collect(),
                    ..Places::default()
                };
                desks.push(Desk { worker, intake, side, queue, stalled_until: 0, turns: 0 });
            }
        }
        let (calls, letters) = (Vec::new(), BTreeMap::new());
        let naps = seed % NAPPING_SEEDS == 1;
        let posted = 0;
        Ok(World { desks, devices, wire, book, plan, calls, letters, posted, naps, loses_ends })
    }

    /// Records an event.
    pub(super) fn note(&self, happening: Happening) {
        self.book.borrow_mut().note(happening);
    }

    fn post(&mut self, delay: u64, letter: Letter) {
        self.posted += 1;
        self.letters.insert((now() + delay, self.posted), letter);
    }

    /// A random delay of the control plane.
    fn delay(&mut self) -> u64 {
        let mut book = self.book.borrow_mut();
        let most = if self.plan.crowd { 500 } else { book.prng.pick(&[1000, 10_000, 100_000]) };
        book.prng.range(100, most)
    }

    /// Begins a connection, if two workers are free for one.
    ///
    /// # Errors
    /// The device's refusal.
    pub(super) fn dial(&mut self) -> Result<(), SetupError> {
        let alive = self.calls.iter().filter(|call| !call.ending).count();
        if alive >= self.plan.conns || self.calls.len() >= self.plan.conns_max {
            return Ok(());
        }
        let desks = [0, 1].map(|side| {
            let mut book = self.book.borrow_mut();
            let all = (0..self.desks.len()).filter(|desk| self.desks[*desk].side == side);
            let free: Vec<usize> = all.filter(|desk| book.pending[*desk].is_none()).collect();
            (!free.is_empty()).then(|| book.prng.pick(&free))
        });
        let [Some(one), Some(two)] = desks else { return Ok(()) };
        let desks = [one, two];
        // If every receive may be promised to others, there is no connection.
        let seats = desks.map(|desk| self.desks[desk].intake.reserve());
        let [Ok(mine), Ok(theirs)] = seats else { return Ok(()) };
        let greetings = match self.plan.plain {
            true => [Greeting::default(); 2],
            false => {
                let data = [&mine, &theirs].map(|grant| grant.handshake(&PeerData::default()));
                let check = |n: usize| self.desks[desks[1 - n]].intake.check_peer(data[n].bytes());
                match [check(0), check(1)] {
                    [Ok(mine), Ok(theirs)] => [mine, theirs],
                    refused => {
                        self.book.borrow_mut().fail(format!("a handshake: {refused:?}"));
                        return Ok(());
                    }
                }
            }
        };
        let (active, passive) = (self.queue_pair(one)?, self.queue_pair(two)?);
        let controls = [&active, &passive].map(|qp| qp.inner().inner().control());
        let wiring = self.wiring();
        let conn = self.wire.connect([&controls[0], &controls[1]], [wiring; 2])?;
        let end = |desk| End {
            desk,
            state: State::Never,
            peer: None,
            sent: [0; 2],
            got: [0; 2],
            quiet: false,
        };
        {
            let mut book = self.book.borrow_mut();
            book.conns.push(Conn { ends: desks.map(end), excused: false });
            book.counts.conns += 1;
            for desk in desks {
                book.pending[desk] = Some(conn);
            }
            book.note(Happening::Dial { conn, desks });
        }
        if self.desks[two].intake.admit(passive, theirs, None, Some(greetings[0])).is_err() {
            self.book.borrow_mut().fail("a mailbox is full at a first letter");
        }
        let (active, told) = (Some((active, mine)), [false; 2]);
        let (ending, closed) = (false, false);
        self.calls.push(Call { desks, controls, active, greetings, ending, told, closed });
        let delay = self.delay();
        self.post(delay, Letter::Begin(conn));
        Ok(())
    }

    fn wiring(&self) -> Wiring {
        let Plan { rnr_retry, rnr_timer_ns, .. } = self.plan;
        Wiring {
            peer: 0,
            peer_rnr_retry: rnr_retry,
            rnr_timer_ns,
            initiator_depth: 4,
            responder_depth: 4,
        }
    }

    fn queue_pair(&self, desk: usize) -> Result<DeviceQp, SetupError> {
        let Desk { intake, side, .. } = &self.desks[desk];
        let device = &self.devices[*side];
        let cq = intake.cq();
        let qp = device.inner().inner().create_qp(&SoftQpInit {
            kind: QpType::Rc,
            send_cq: cq.inner().inner(),
            recv_cq: cq.inner().inner(),
            srq: Some(intake.srq().inner().inner()),
            caps: intake.qp_caps(),
            signal_all: false,
            ex: SoftQpEx::default(),
        })?;
        Ok(wrapped(device, qp, cq))
    }

    /// Something happens to a connection that may end it.
    pub(super) fn excuse(&self, conn: usize) {
        self.book.borrow_mut().conns[conn].excused = true;
    }

    /// The control plane ends a connection. Each side learns of it in its own time, `first` soon.
    pub(super) fn end(&mut self, conn: usize, first: Option<usize>) {
        if self.calls[conn].ending {
            return;
        }
        let delays = [0, 1].map(|side| if first == Some(side) { 0 } else { self.delay() });
        self.end_after(conn, delays);
    }

    /// The control plane ends a connection. Each side learns of it after a time of its own.
    pub(super) fn end_after(&mut self, conn: usize, delays: [u64; 2]) {
        self.calls[conn].ending = true;
        for (side, delay) in delays.into_iter().enumerate() {
            self.post(delay, Letter::Gone(conn, side));
        }
    }

    /// A mistake of the control plane: only that side learns that the connection has ended.
    #[cfg(test)]
    pub(super) fn end_one_side(&mut self, conn: usize, side: usize) {
        self.calls[conn].ending = true;
        self.post(0, Letter::Gone(conn, side));
    }

    /// One end of a connection fails by itself.
    pub(super) fn break_end(&mut self, conn: usize, side: usize, lost: bool) {
        self.excuse(conn);
        self.note(Happening::Fail { conn, side, lost });
        let control = &self.calls[conn].controls[side];
        if lost {
            control.fail_lost()
        } else {
            control.fail()
        }
        // A queue pair with nothing outstanding reports nothing, so its control plane does.
        self.end(conn, None);
    }

    /// Connections that the control plane has not begun to end.
    pub(super) fn alive(&self) -> Vec<usize> {
        (0..self.calls.len()).filter(|conn| !self.calls[*conn].ending).collect()
    }

    /// True if no notice of the control plane is on its way.
    pub(super) fn letters_done(&self) -> bool {
        self.letters.is_empty()
    }

    fn deliver(&mut self, letter: Letter) {
        let (conn, done) = match letter {
            Letter::Begin(conn) => return self.begin(conn),
            Letter::Up(conn, side) => {
                let Call { desks, controls, greetings, .. } = &self.calls[conn];
                let intake = &self.desks[desks[side]].intake;
                (conn, intake.up(controls[side].num(), greetings[1 - side]))
            }
            Letter::Gone(conn, side) => {
                self.excuse(conn);
                if self.loses_ends && self.book.borrow_mut().prng.chance(LOST_ODDS) {
                    return;
                }
                let call = &mut self.calls[conn];
                drop(call.active.take().filter(|_| side == 0));
                let num = call.controls[side].num();
                let done = self.desks[call.desks[side]].intake.gone(num);
                call.told[side] |= done;
                self.note(Happening::Gone { conn, side });
                (conn, done)
            }
        };
        if !done {
            self.book.borrow_mut().fail(format!("a mailbox is full at connection {conn}"));
        }
    }

    /// The passive side is ready. Sometimes it rejects.
    fn begin(&mut self, conn: usize) {
        let reject = self.book.borrow_mut().prng.chance(60);
        if reject {
            self.note(Happening::Reject { conn });
            self.excuse(conn);
            return self.end(conn, None);
        }
        let wiring = self.wiring();
        let call = &mut self.calls[conn];
        let Some((qp, grant)) = call.active.take() else { return };
        self.wire.start(conn, &call.controls[0], wiring);
        let intake = &self.desks[call.desks[0]].intake;
        if intake.admit(qp, grant, None, None).is_err() {
            self.book.borrow_mut().fail("a mailbox is full at a first letter");
        }
        for side in 0..2 {
            let delay = self.delay();
            self.post(delay, Letter::Up(conn, side));
        }
    }

    /// One turn of a worker, and what follows from it at once.
    pub(super) fn turn(&mut self, desk: usize) -> usize {
        let place = &mut self.desks[desk];
        let full = place.worker.peers() == self.plan.sides[place.side].config.peers as usize;
        let (side, waits) = (place.side, self.book.borrow().pending[desk]);
        let told = waits.is_some_and(|conn| self.calls[conn].told[side]);
        place.turns += 1;
        let taken = match self.naps && place.turns.is_multiple_of(NAP_TURNS) {
            true => usize::from(place.worker.arm().is_err()),
            false => place.worker.turn(),
        };
        self.note(Happening::Turn { desk, taken });
        while let Some(num) = self.desks[desk].intake.next_closing() {
            let call = |call: &Call| call.desks[side] == desk && call.controls[side].num() == num;
            let Some(conn) = self.calls.iter().rposition(call) else {
                self.book.borrow_mut().fail(format!("desk {desk} closes an unknown number"));
                continue;
            };
            if full && waits == Some(conn) {
                // Refused: the table had no place for it.
                self.excuse(conn);
            }
            self.end(conn, None);
        }
        // A side that was told of the end before the turn, and is not up after it, never will be.
        let mut book = self.book.borrow_mut();
        if told && book.pending[desk] == waits {
            book.pending[desk] = None;
        }
        taken
    }

    /// Advances the time to `to`: the wire, the control plane.
    pub(super) fn advance(&mut self, to: u64) {
        self.note_passed();
        set_now(to.max(now()));
        self.wire.advance(now());
        for (at, event) in self.wire.events() {
            self.hear(at, &event);
        }
        while let Some(entry) = self.letters.first_entry() {
            if entry.key().0 > now() {
                break;
            }
            let letter = entry.remove();
            self.deliver(letter);
        }
        for conn in 0..self.calls.len() {
            self.let_go(conn);
        }
        if let Some(rule) = self.wire.broken() {
            self.book.borrow_mut().fail(format!("a device breaks its own rules: {rule}"));
        }
    }

    /// Counts the paths that messages took.
    fn note_passed(&mut self) {
        let mut book = self.book.borrow_mut();
        for (side, device) in self.devices.iter().enumerate() {
            for passed in device.inner().take_passed() {
                book.counts.pass(passed);
                book.note(Happening::Passed { side, passed });
            }
        }
    }

    /// Releases a connection's part of the wire once both its queue pairs are gone.
    fn let_go(&mut self, conn: usize) {
        let call = &mut self.calls[conn];
        let ends = &self.book.borrow().conns[conn].ends;
        if !call.closed && ends.iter().all(|end| end.state == State::Down) {
            call.closed = true;
            self.wire.close(conn);
        }
    }

    fn hear(&mut self, at: u64, event: &Event) {
        let mut book = self.book.borrow_mut();
        book.trace.note(at, event);
        match *event {
            Event::TimedOut { .. } => book.counts.timeouts += 1,
            Event::Exhausted { conn, .. } => {
                book.counts.exhausted += 1;
                // Its end comes next.
                book.came += 1;
                book.conns[conn].excused = true;
            }
            Event::Refused { conn, from, status, .. } => {
                book.counts.refused += 1;
                let status = Status::from_raw(status.into());
                let patience_over = status == Status::RnrRetryExceeded && self.plan.rnr_retry < 7;
                if patience_over {
                    book.conns[conn].excused = true;
                } else if status != Status::RetryExceeded || !book.conns[conn].excused {
                    book.fail(format!(
                        "connection {conn}: what side {from} sent is refused with {status:?}"
                    ));
                }
            }
            Event::Datagram { .. }
            | Event::Sent { .. }
            | Event::Arrived { .. }
            | Event::Taken { .. } => {}
        }
    }

    /// The time of the next event.
    pub(super) fn next_at(&self) -> Option<u64> {
        let letter = self.letters.first_key_value().map(|((at, _), _)| *at);
        [letter, self.wire.next_at()].into_iter().flatten().min()
    }

    /// The connection at that end is up.
    pub(super) fn is_up(&self, conn: usize, side: usize) -> bool {
        self.book.borrow().conns[conn].ends[side].state == State::Up
    }
}
