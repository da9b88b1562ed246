//! A child: one worker or two, connected, warmed up, sealed, counted.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use doorbell::alloc::Mapping;
use doorbell::soft::SoftDevice;
use doorbell::worker::{
    Config, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Stats, Verdict, Worker,
};
use doorbell::{CmError, Dialer, Listener};
use doorbell_tune as tune;

use crate::count::allocations;
use crate::seal::{leave, seal};
use crate::task::{LONG_SIZES, MARK, Path, Plant, Role, STREAM_BATCH, Side, Task};

const BATCH: usize = STREAM_BATCH as usize;

/// Few receives, so that the worker refills them all the time.
pub(crate) const CONFIG: Config = Config {
    peers: 1,
    block_bytes: 1024,
    recv_blocks: 128,
    refill: 16,
    window: 28,
    inline_bytes: 220,
    ..Config::DEFAULT
};

/// The same with blocks that hold the longest message.
const CONFIG_LONG: Config = Config { block_bytes: 20_480, ..CONFIG };
const LONGEST: usize = LONG_SIZES[1];

/// What the caller sends when all replies have come, in the place of a number.
const END: u64 = u64::MAX;

/// How long one side waits to be connected, and the process for its workers.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(300);

/// What a sealed thread leaves behind.
struct Left {
    done: AtomicBool,
    messages: AtomicU64,
    wrong: AtomicU64,
    doorbells: AtomicU64,
    returns: AtomicU64,
    idle_turns: AtomicU64,
    allocations: AtomicU64,
}

impl Left {
    const fn new() -> Left {
        Left {
            done: AtomicBool::new(false),
            messages: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            doorbells: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            idle_turns: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
        }
    }

    /// Waits until the thread has left, and prints its figures.
    fn tell(&self, side: Side, thread: &JoinHandle<()>) {
        let start = Instant::now();
        // Pairs with the release in `Hands::leave`: the figures were written before.
        while !self.done.load(Ordering::Acquire) {
            // A thread that ended by the bare system call never looks finished. One that panicked
            // does.
            assert!(!thread.is_finished(), "the {side} broke off");
            assert!(start.elapsed() < LIMIT, "the {side} is stuck");
            thread::sleep(Duration::from_millis(2));
        }
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let (messages, wrong) = (read(&self.messages), read(&self.wrong));
        let (doorbells, allocations) = (read(&self.doorbells), read(&self.allocations));
        let (returns, idle) = (read(&self.returns), read(&self.idle_turns));
        println!("{MARK}{side} {messages} {wrong} {doorbells} {allocations} {returns} {idle}");
    }
}

static SERVER: Left = Left::new();
static CALLER: Left = Left::new();

/// Does the task and ends the process.
pub(crate) fn run(task: Task) -> ! {
    let (to, from) = mpsc::channel();
    let server = (!matches!(task.role, Role::Caller(_)))
        .then(|| thread::spawn(move || serve(task, |addr| to.send(addr).unwrap())));
    let addr = match task.role {
        Role::Caller(addr) => addr,
        Role::Server | Role::Both => from.recv().unwrap(),
    };
    if task.role == Role::Server {
        println!("{MARK}{addr}");
    }
    let caller = (task.role != Role::Server).then(|| thread::spawn(move || call(task, addr)));
    if let Some(server) = &server {
        SERVER.tell(Side::Server, server);
    }
    if let Some(caller) = &caller {
        CALLER.tell(Side::Caller, caller);
    }
    // The connection lives as long as the process, so wait until the other side is done too.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::process::exit(0);
}

/// The serving side, on a thread of its own.
fn serve(task: Task, tell: impl FnOnce(SocketAddr)) {
    let device = SoftDevice::open().unwrap();
    let mut listener = Listener::bind(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let (mut worker, intake) = worker(&device, &task, Side::Server);
    listener.feed(intake);
    tell(listener.local_addr().unwrap());
    let start = Instant::now();
    while worker.handler().messages == 0 {
        assert!(start.elapsed() < PATIENCE, "no connection came");
        listener.step(Duration::ZERO).unwrap();
        worker.turn();
    }
    turn_until(&mut worker, task.warm_messages());
    step_elsewhere(move |limit| listener.step(limit));
    sealed(&SERVER, worker, |worker| {
        turn_until(worker, task.warm_messages() + task.sealed_messages());
        // A long reply goes out in parts, by the turns of the side that sends it. The caller says
        // that it has the last one.
        while !worker.handler().ended {
            worker.turn();
        }
    });
}

/// Steps a control plane on a thread of its own, as programs do. If nobody stepped it, the worker
/// would look for ended peers itself, by a system call in each 2^20 turns. Returns when that thread
/// waits inside the step: it shares the core of this one, so it may get there late.
fn step_elsewhere(mut step: impl FnMut(Duration) -> Result<bool, CmError> + Send + 'static) {
    let (to, from) = mpsc::channel();
    thread::spawn(move || {
        // `PID/task/TID`
        to.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
        while step(LIMIT).is_ok() {}
    });
    let stat = path::Path::new("/proc").join(from.recv().unwrap()).join("stat");
    // The state comes after the name, which is in brackets (`man 5 proc_pid_stat`).
    let sleeps = |stat: String| stat.rsplit(") ").next().unwrap().starts_with('S');
    while !sleeps(fs::read_to_string(&stat).unwrap()) {
        thread::sleep(Duration::from_millis(1));
    }
}

fn turn_until(worker: &mut Worker<SoftDevice, Hands>, messages: u64) {
    while worker.handler().messages < messages {
        worker.turn();
    }
}

/// The calling side, on a thread of its own.
fn call(task: Task, addr: SocketAddr) {
    let device = SoftDevice::open().unwrap();
    let (mut worker, intake) = worker(&device, &task, Side::Caller);
    let mut dialer = Dialer::new(&device).unwrap();
    dialer.dial(addr, &intake, PATIENCE).unwrap();
    while worker.handler().peer.is_none() {
        worker.turn();
    }
    let payloads = vec![[0; LONGEST]; BATCH].into_boxed_slice().try_into().unwrap();
    let mut caller = Caller { peer: worker.handler().peer.unwrap(), payloads };
    let [warm, count] = task.counts();
    caller.call(&mut worker, task.path, warm);
    step_elsewhere(move |limit| dialer.step(limit));
    sealed(&CALLER, worker, |worker| {
        caller.call(worker, task.path, count);
        worker.outbox().send(caller.peer, &END.to_le_bytes()).unwrap();
        worker.outbox().flush();
    });
}

/// A worker on the core of its side.
fn worker(
    device: &SoftDevice,
    task: &Task,
    side: Side,
) -> (Worker<SoftDevice, Hands>, Intake<SoftDevice>) {
    tune::pin(tune::choose(2).unwrap()[side as usize]).unwrap();
    let config = if task.path.is_long() { &CONFIG_LONG } else { &CONFIG };
    let memory = Mapping::plain(config.recv_bytes()).unwrap();
    let shared = SharedRecv::new(device, memory, config).unwrap();
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    Worker::new(device, &shared, memory, Hands::new(task, side), config).unwrap()
}

/// Does the work while sealed, and leaves its figures behind.
fn sealed(
    left: &Left,
    mut worker: Worker<SoftDevice, Hands>,
    work: impl FnOnce(&mut Worker<SoftDevice, Hands>),
) -> ! {
    seal();
    worker.handler_mut().sealed = true;
    let messages = worker.handler().messages;
    let Stats { doorbells, credit_returns, idle_turns, .. } = worker.stats();
    let before = allocations();
    work(&mut worker);
    left.allocations.store(allocations() - before, Ordering::Relaxed);
    left.doorbells.store(worker.stats().doorbells - doorbells, Ordering::Relaxed);
    let returns = worker.stats().credit_returns - credit_returns;
    left.returns.store(returns, Ordering::Relaxed);
    left.idle_turns.store(worker.stats().idle_turns - idle_turns, Ordering::Relaxed);
    left.messages.store(worker.handler().messages - messages, Ordering::Relaxed);
    left.wrong.store(worker.handler().wrong, Ordering::Relaxed);
    left.done.store(true, Ordering::Release);
    leave()
}

/// The sending side.
struct Caller {
    peer: PeerId,
    payloads: Box<[[u8; LONGEST]; BATCH]>,
}

impl Caller {
    /// `count` messages of each size.
    fn call(&mut self, worker: &mut Worker<SoftDevice, Hands>, path: Path, count: u64) {
        for size in path.sizes() {
            if path.echoes() {
                self.echoes(worker, *size, count);
            } else {
                self.stream(worker, *size, count);
            }
        }
        let hands = worker.handler();
        if !path.echoes() {
            let echoes = hands.echoes;
            while worker.handler().echoes == echoes {
                worker.turn();
            }
        }
    }

    fn echoes(&mut self, worker: &mut Worker<SoftDevice, Hands>, size: usize, count: u64) {
        for _ in 0..count {
            let echoes = worker.handler().echoes;
            self.send(worker, size);
            worker.outbox().flush();
            while worker.handler().echoes == echoes {
                worker.turn();
            }
        }
    }

    fn stream(&mut self, worker: &mut Worker<SoftDevice, Hands>, size: usize, count: u64) {
        for number in 0..count / STREAM_BATCH {
            while u64::from(worker.outbox().room(self.peer)) < STREAM_BATCH {
                worker.turn();
            }
            // One by one, or as a list.
            if number % 2 == 0 {
                (0..STREAM_BATCH).for_each(|_| self.send(worker, size));
            } else {
                (0..BATCH).for_each(|n| self.stamp(worker, n, size));
                let list = self.payloads.each_ref().map(|payload| &payload[..size]);
                worker.outbox().send_list(self.peer, &list).unwrap();
            }
            worker.outbox().flush();
        }
    }

    fn send(&mut self, worker: &mut Worker<SoftDevice, Hands>, size: usize) {
        self.stamp(worker, 0, size);
        worker.outbox().send(self.peer, &self.payloads[0][..size]).unwrap();
    }

    /// Writes the next message: its number, at both ends.
    fn stamp(&mut self, worker: &mut Worker<SoftDevice, Hands>, n: usize, size: usize) {
        let hands = worker.handler_mut();
        let number = hands.messages.to_le_bytes();
        self.payloads[n][..8].copy_from_slice(&number);
        self.payloads[n][size - 8..size].copy_from_slice(&number);
        hands.messages += 1;
        hands.spring();
    }
}

/// The handler of both sides.
struct Hands {
    side: Side,
    path: Path,
    peer: Option<PeerId>,
    /// Messages sent by the caller, or received by the server.
    messages: u64,
    /// Messages that came to the caller.
    echoes: u64,
    /// Messages that differ from the one expected.
    wrong: u64,
    /// The server's last messages of a stream, which it sends back: before sealing, and of all.
    last: [u64; 2],
    sealed: bool,
    /// The caller has all replies.
    ended: bool,
    plant: Plant,
    null: File,
}

impl Hands {
    fn new(task: &Task, side: Side) -> Hands {
        let warm = task.warm_messages();
        Hands {
            side,
            path: task.path,
            peer: None,
            messages: 0,
            echoes: 0,
            wrong: 0,
            last: [warm, warm + task.sealed_messages()],
            sealed: false,
            ended: false,
            plant: task.plant(side),
            null: File::create("/dev/null").unwrap(),
        }
    }

    /// Once sealed, does what is planted, once.
    fn spring(&mut self) {
        if self.sealed && self.plant != Plant::Nothing {
            match std::mem::replace(&mut self.plant, Plant::Nothing) {
                Plant::Nothing => {}
                Plant::Yield => thread::yield_now(),
                Plant::Write => drop(self.null.write(&[0])),
                Plant::Allocation => drop(black_box(Box::new(7_u64))),
            }
        }
    }
}

impl Handler<SoftDevice> for Hands {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, SoftDevice>) -> Verdict {
        let first = message.bytes().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let last = message.bytes().last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        self.wrong += u64::from(first != last);
        if first == Some(END) {
            self.ended = true;
            return Verdict::Done;
        }
        let number = first.unwrap_or(u64::MAX);
        match self.side {
            Side::Caller => {
                self.echoes += 1;
                self.wrong += u64::from(number.wrapping_add(1) != self.messages);
                Verdict::Done
            }
            Side::Server => {
                self.wrong += u64::from(number != self.messages);
                self.messages += 1;
                self.spring();
                if self.path.echoes() || self.last.contains(&self.messages) {
                    Verdict::Reply { len: message.len() }
                } else {
                    Verdict::Done
                }
            }
        }
    }

    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, SoftDevice>) {
        self.peer = Some(peer);
    }
}
