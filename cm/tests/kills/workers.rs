//! Workers: one of two peers is killed, either the one that dialed or the one that listens. One
//! side asks; the other answers, in place or later. The survivor turns, or sleeps on its completion
//! channel, while another of its threads is the control plane.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{CmError, Dialer, Listener, message_memory, run_sleeping};
use doorbell_engine::worker::{
    Config, DownReason, Handle, Handler, Intake, Message, Outbox, PeerId, SendError, SharedRecv,
    Stats, Token, Verdict, Worker,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;

use crate::belongings::{assert_nothing_left, belongings};
use crate::kill::{
    Doom, Ends, FOR_EVER, Heard, Killer, Round, Stage, address_in, peer, say_address,
};
use crate::{Dice, LIFE, LOOK, SOON, alone, anywhere, kills, number_of, text};

/// Receives for six peers, so that those that do not come back when a peer dies are soon missed.
const CONFIG: Config = Config {
    peers: 6,
    block_bytes: 256,
    recv_blocks: 64,
    send_blocks: 8,
    refill: 8,
    window: 10,
    window_min: 9,
    ..Config::DEFAULT
};

/// The most bytes of a message: some go inline, others do not.
const MESSAGE: usize = 250;
/// One of this many messages is kept, and answered when the next has arrived.
const KEPT: u32 = 8;
/// Turns without work before a worker sleeps.
const SPIN: u64 = 100;

/// What other threads see of a conversation.
#[derive(Default)]
struct Seen {
    /// Number of peers that came up, that sent something, and that went down; and when the last one
    /// went.
    up: AtomicU32,
    heard: AtomicU32,
    down: AtomicU32,
    at: Mutex<Option<Heard>>,
}

/// A side that asks or answers.
struct Side {
    asks: bool,
    /// Number of questions for each peer.
    questions: u32,
    seen: Arc<Seen>,
    peer: Option<PeerId>,
    asked: u32,
    came: u32,
    kept: Option<(Token, usize)>,
}

impl Side {
    fn new(asks: bool, questions: u32) -> Side {
        let seen = Arc::default();
        Side { asks, questions, seen, peer: None, asked: 0, came: 0, kept: None }
    }

    /// Asks as many questions as there is room for.
    fn ask<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(peer) = self.peer.filter(|_| self.asks) else { return };
        while self.asked < self.questions && out.send(peer, &text(self.asked, MESSAGE)).is_ok() {
            self.asked += 1;
        }
    }

    /// Answers the message it has kept, then this one.
    fn answer<P: Provider>(&mut self, message: &Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        if let Some((token, len)) = self.kept.take() {
            // A last message may arrive after its peer is known to be gone; then it cannot be
            // answered.
            let replied = out.reply(token, len);
            assert!(matches!(replied, Ok(()) | Err(SendError::NotConnected)), "{replied:?}");
        }
        if self.came.is_multiple_of(KEPT)
            && let Some(token) = out.keep(message)
        {
            self.kept = Some((token, message.len()));
            return Verdict::Keep(token);
        }
        Verdict::Reply { len: message.len() }
    }
}

impl<P: Provider> Handler<P> for Side {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        assert_eq!(self.peer, Some(message.peer()));
        assert_eq!(number_of(message.bytes(), MESSAGE), self.came);
        self.came += 1;
        self.seen.heard.store(self.seen.up.load(Ordering::Relaxed), Ordering::Relaxed);
        if !self.asks {
            return self.answer(&message, out);
        }
        self.ask(out);
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        assert_eq!(self.peer, None, "two at a time");
        (self.peer, self.asked, self.came) = (Some(peer), 0, 0);
        self.seen.up.fetch_add(1, Ordering::Relaxed);
        self.ask(out);
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        assert_eq!(self.peer.take(), Some(peer));
        assert_ne!(why, DownReason::Closed);
        // The worker has dropped what was kept of this peer.
        self.kept = None;
        *self.seen.at.lock().unwrap() = Some(Heard::now());
        // Release: the survivor reads what was written before behind it.
        self.seen.down.fetch_add(1, Ordering::Release);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.ask(out);
    }
}

type OneWorker = Worker<SoftDevice, Side>;

fn worker(nic: &SoftDevice, side: Side) -> (OneWorker, Intake<SoftDevice>) {
    let memory = |bytes| message_memory(nic, bytes).unwrap();
    let shared = SharedRecv::new(nic, memory(CONFIG.recv_bytes()), &CONFIG).unwrap();
    Worker::new(nic, &shared, memory(CONFIG.send_bytes()), side, &CONFIG).unwrap()
}

/// The control plane of a side: a listener or a dialer.
trait Control: Sized {
    fn new(nic: &SoftDevice) -> Self;
    fn step(&mut self, limit: Duration) -> Result<bool, CmError>;
    fn connections(&self) -> usize;
}

impl Control for Listener<SoftDevice> {
    fn new(nic: &SoftDevice) -> Self {
        Listener::bind(nic, anywhere()).unwrap()
    }
    fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        Listener::step(self, limit)
    }
    fn connections(&self) -> usize {
        Listener::connections(self)
    }
}

impl Control for Dialer<SoftDevice> {
    fn new(nic: &SoftDevice) -> Self {
        Dialer::new(nic).unwrap()
    }
    fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        Dialer::step(self, limit)
    }
    fn connections(&self) -> usize {
        Dialer::connections(self)
    }
}

/// The part of the process that dials the survivor and asks.
pub(crate) fn dials(addr: SocketAddr, questions: u32) {
    let nic = SoftDevice::open().unwrap();
    let (worker, intake) = worker(&nic, Side::new(true, questions));
    let mut dialer = <Dialer<SoftDevice> as Control>::new(&nic);
    dialer.dial(addr, &intake, SOON).unwrap();
    go_on(worker, dialer);
}

/// The part of the process that the survivor dials and that answers.
pub(crate) fn listens(_: SocketAddr) {
    let nic = SoftDevice::open().unwrap();
    let (worker, intake) = worker(&nic, Side::new(false, 0));
    let mut listener = <Listener<SoftDevice> as Control>::new(&nic);
    listener.feed(intake);
    say_address(listener.local_addr().unwrap());
    go_on(worker, listener);
}

/// Talks until this process is killed.
fn go_on(mut worker: OneWorker, mut control: impl Control) {
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        control.step(Duration::ZERO).unwrap();
        for _ in 0..64 {
            worker.turn();
        }
        assert_eq!(worker.handler().seen.down.load(Ordering::Relaxed), 0, "the survivor is gone");
    }
}

/// Stops a worker when it is dropped.
struct Stopping<'a>(&'a AtomicBool, Handle);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        // This wakes a sleeping worker. There is room, because nothing else is submitted.
        let _ = self.1.submit(0);
    }
}

/// A worker that survives its peers, and its control plane.
struct Survivor<C> {
    // The first field, so that it is dropped before its worker.
    control: C,
    worker: OneWorker,
    intake: Intake<SoftDevice>,
    seen: Arc<Seen>,
    _nic: SoftDevice,
}

impl<C: Control + Send> Survivor<C> {
    fn new(asks: bool) -> Survivor<C> {
        let nic = SoftDevice::open().unwrap();
        let side = Side::new(asks, 0);
        let seen = side.seen.clone();
        let (worker, intake) = worker(&nic, side);
        Survivor { control: C::new(&nic), worker, intake, seen, _nic: nic }
    }

    /// Runs the worker as `round` says while `control` runs the control plane.
    fn run<T>(&mut self, round: &Round, control: impl FnOnce(&mut C, &Seen) -> T) -> T {
        let (stop, handle) = (AtomicBool::new(false), self.worker.handle());
        // Dropped on a panic too, because the scope waits for the worker's thread.
        let stopping = Stopping(&stop, handle);
        let worker = &mut self.worker;
        worker.handler_mut().questions = round.requests;
        thread::scope(|scope| {
            let stop = &stop;
            let turning = scope.spawn(move || match round.asleep {
                true => run_sleeping(worker, stop, SPIN, SOON),
                false => worker.run(stop),
            });
            let done = control(&mut self.control, &self.seen);
            drop(stopping);
            turning.join().unwrap();
            done
        })
    }

    /// Asserts that there are no peers, and that all blocks have come back.
    fn assert_home(&mut self) {
        let end = Instant::now() + SOON;
        // Its mailbox holds only notices of peers that are gone.
        self.worker.turn();
        while self.worker.peers() > 0 || self.worker.in_flight() > 0 {
            assert!(Instant::now() < end, "{} peers do not go", self.worker.peers());
            self.worker.turn();
        }
        let Stats { received, refilled, strays, .. } = self.worker.stats();
        let (receives, sends) = (self.worker.recv_blocks_home(), self.worker.send_blocks_home());
        // Messages that came after their peer had gone do not count as received.
        let lent = received - refilled;
        assert!((lent..=lent + strays).contains(&(receives as u64)), "{receives}, not {lent}");
        assert_eq!((sends, self.worker.kept()), (CONFIG.send_blocks as usize, 0));
    }
}

/// Looks after the connection to one peer until the peer is dead and nothing is left of the
/// connection. Returns when that was, if there was a connection, or if `any` is set.
fn tend<C: Control>(control: &mut C, seen: &Seen, killer: &Killer, mut any: bool) -> Option<Heard> {
    let gone = seen.down.load(Ordering::Acquire);
    let mut end = None;
    loop {
        // Read this before the step: what a dead peer requested is already there.
        let dead = killer.is_done();
        let event = control.step(LOOK).unwrap();
        let connected = control.connections() > 0;
        any |= connected;
        if connected {
            killer.note(Stage::Met);
        }
        if seen.heard.load(Ordering::Relaxed) > gone {
            killer.note(Stage::Heard);
        }
        let down = seen.down.load(Ordering::Acquire);
        let over = !event && !connected && seen.up.load(Ordering::Relaxed) == down;
        if dead && over {
            let at = seen.at.lock().unwrap().filter(|_| down > gone);
            return any.then(|| at.unwrap_or_else(Heard::now));
        }
        if dead {
            let end = *end.get_or_insert_with(|| Instant::now() + SOON);
            assert!(Instant::now() < end, "the end of a peer is not noticed");
        }
    }
}

/// Serves one peer that is killed before or after it has dialed.
fn serve(survivor: &mut Survivor<Listener<SoftDevice>>, round: &Round, ends: &mut Ends) {
    let addr = survivor.control.local_addr().unwrap();
    let killer = Killer::of(peer("worker-dials", round.requests, addr), round.doom);
    let heard = survivor.run(round, |listener, seen| tend(listener, seen, &killer, false));
    let killed = killer.wait();
    heard.into_iter().for_each(|heard| ends.note(killed, heard, !round.asleep));
    survivor.assert_home();
}

#[test]
fn a_killed_worker_that_dialed_is_outlived() {
    let _alone = alone();
    let mut survivor = Survivor::<Listener<SoftDevice>>::new(false);
    survivor.control.feed(survivor.intake.clone());
    outlive(Dice(17), |round, ends| serve(&mut survivor, round, ends));
}

/// Dials one peer that is killed before or after that.
fn visit(survivor: &mut Survivor<Dialer<SoftDevice>>, round: &Round, ends: &mut Ends) {
    let mut child = peer("worker-listens", 0, anywhere());
    let said = child.stdout.take();
    let killer = Killer::of(child, round.doom);
    let Some(addr) = address_in(said) else {
        killer.wait();
        return;
    };
    killer.note(Stage::Met);
    let intake = survivor.intake.clone();
    let heard = survivor.run(round, |dialer, seen| {
        let failed = dialer.dial(addr, &intake, SOON).err().map(|error| {
            assert!(matches!(error.code(), Code::Refused | Code::Reset), "{error}");
            Heard::now()
        });
        let home = tend(dialer, seen, &killer, true);
        failed.or(home)
    });
    let killed = killer.wait();
    heard.into_iter().for_each(|heard| ends.note(killed, heard, !round.asleep));
    survivor.assert_home();
}

#[test]
fn a_killed_worker_that_listens_is_outlived() {
    let _alone = alone();
    let mut survivor = Survivor::<Dialer<SoftDevice>>::new(true);
    outlive(Dice(19), |round, ends| visit(&mut survivor, round, ends));
}

/// Turns a worker whose control plane nobody steps, until its peer is gone.
fn turn_until_down(worker: &mut OneWorker, seen: &Seen, asleep: bool) {
    let begin = Instant::now();
    let waits = || seen.down.load(Ordering::Acquire) == 0 && begin.elapsed() < SOON;
    if asleep {
        let (stop, handle) = (AtomicBool::new(false), worker.handle());
        thread::scope(|scope| {
            let sleeping = scope.spawn(|| run_sleeping(worker, &stop, SPIN, SOON));
            while waits() {
                thread::sleep(LOOK);
            }
            drop(Stopping(&stop, handle));
            sleeping.join().unwrap();
        });
    }
    while waits() {
        worker.turn();
    }
    assert_eq!(seen.down.load(Ordering::Acquire), 1, "a killed peer is immortal");
}

/// A peer is killed, and the survivor's control plane is never stepped: the worker learns of it
/// while it turns, and while it sleeps. A peer that is only stopped is not taken for dead.
#[test]
fn a_killed_worker_is_outlived_without_a_step() {
    let _alone = alone();
    for (asks, asleep) in [(true, false), (false, false), (false, true)] {
        let mut survivor = Survivor::<Dialer<SoftDevice>>::new(asks);
        survivor.worker.handler_mut().questions = if asks { FOR_EVER } else { 0 };
        let mut child = peer("worker-listens", 0, anywhere());
        let addr = address_in(child.stdout.take()).unwrap();
        survivor.control.dial(addr, &survivor.intake, SOON).unwrap();
        let begin = Instant::now();
        while survivor.seen.up.load(Ordering::Relaxed) == 0
            || asks && survivor.worker.handler().came < 100
        {
            survivor.worker.turn();
            assert!(begin.elapsed() < SOON, "the peer does not talk");
        }
        signal(&child, "-STOP");
        // Some looks, each of which finds nothing: 2^20 turns each.
        for _ in 0..if asks { 5 << 19 } else { 1000 } {
            survivor.worker.turn();
        }
        assert_eq!(survivor.seen.down.load(Ordering::Acquire), 0, "it is only stopped");
        signal(&child, "-CONT");
        child.kill().unwrap();
        child.wait().unwrap();
        turn_until_down(&mut survivor.worker, &survivor.seen, asleep);
        survivor.assert_home();
    }
}

fn signal(child: &std::process::Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Kills as often as requested, and checks that nothing is left behind.
fn outlive(mut dice: Dice, mut one: impl FnMut(&Round, &mut Ends)) {
    for asleep in [false, true] {
        let round = Round { doom: Doom::late(), asleep, requests: FOR_EVER };
        one(&round, &mut Ends::default());
    }
    let before = belongings();
    let mut ends = Ends::default();
    for number in 0..kills() {
        one(&Round::roll(number, KEPT, &mut dice), &mut ends);
    }
    ends.check(kills() / 3);
    assert_nothing_left(&before);
}
