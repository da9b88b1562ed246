//! Sleeping without losing a wake-up, and without a thread of its own for the control plane.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{Backoff, Dialer, Listener, PeerState, WakeFd, clock_ns, run_sleeping};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, Retry, SharedRecv, Token,
    Verdict, Worker,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_seam::wc::Status;
use doorbell_soft::SoftDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Nothing that is waited for takes as long.
const LIMIT: Duration = Duration::from_secs(60);

const CONFIG: Config = Config {
    peers: 4,
    block_bytes: 256,
    recv_blocks: 64,
    send_blocks: 8,
    refill: 8,
    window: 10,
    window_min: 9,
    ..Config::DEFAULT
};

type Act = Box<dyn FnMut() + Send>;

/// Counts, and calls `idle` in a turn that found nothing.
#[derive(Default)]
struct Counts {
    peer: Option<PeerId>,
    got: u64,
    fired: Vec<(u64, u64)>,
    idle: Option<Act>,
    /// Messages that it has yet to send, whenever there is nothing else to do.
    sends: u64,
    /// The time at each piece of work.
    noted: Vec<u64>,
    stop: Option<&'static AtomicBool>,
    /// Keeps what comes, until a timer.
    keeps: bool,
    kept: Vec<Token>,
    down: Option<DownReason>,
}

impl<P: Provider> Handler<P> for Counts {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        match out.keep(&message) {
            Some(token) if self.keeps => {
                self.kept.push(token);
                Verdict::Keep(token)
            }
            _ => Verdict::Done,
        }
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down = Some(why);
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        if let Some(mut act) = self.idle.take() {
            act();
        }
        let peer = self.peer.filter(|_| self.sends > 0);
        while let Some(peer) = peer
            && self.sends > 0
            && out.send(peer, b"when there is credit").is_ok()
        {
            self.sends -= 1;
        }
    }
    fn on_work(&mut self, _: u64, out: &mut Outbox<'_, P>) {
        self.noted.push(out.now());
    }
    /// Sets the next timer, up to the last, and then stops the loop.
    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        self.fired.push((key, clock_ns()));
        self.kept.drain(..).for_each(|token| assert!(out.give_back(token)));
        if key < LAST {
            assert!(out.set_timer(out.now() + STEP_NS, key + 1).is_some());
        } else if let Some(stop) = self.stop {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

const STEP_NS: u64 = 3_000_000;
const LAST: u64 = 10;

type Side = (Worker<SoftDevice, Counts>, Intake<SoftDevice>);

fn side(nic: &SoftDevice) -> Side {
    side_with(nic, &CONFIG)
}

fn side_with(nic: &SoftDevice, config: &Config) -> Side {
    let memory = |bytes| Mapping::plain(bytes).unwrap();
    let shared = SharedRecv::new(nic, memory(config.recv_bytes()), config).unwrap();
    Worker::new(nic, &shared, memory(config.send_bytes()), Counts::default(), config).unwrap()
}

/// Waits until one of the descriptors is readable, up to `until`. True if one is.
fn wait(fds: &[&dyn AsFd], until: Option<Instant>) -> bool {
    let mut fds: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec::try_from(left).unwrap());
    poll(&mut fds, left.as_ref()).unwrap() > 0
}

fn is_readable(fd: &WakeFd) -> bool {
    wait(&[fd], Some(Instant::now()))
}

/// Two workers that are connected, with the control plane that keeps them so.
struct Pair {
    one: Side,
    two: Side,
    _dialer: Dialer<SoftDevice>,
    _listener: Listener<SoftDevice>,
    _nic: SoftDevice,
}

/// Connects two workers on this thread, which waits on descriptors only.
fn pair() -> Pair {
    pair_with(&CONFIG)
}

fn pair_with(config: &Config) -> Pair {
    let nic = SoftDevice::open().unwrap();
    let (mut one, mut two) = (side_with(&nic, config), side_with(&nic, config));
    let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let mut dialer = Dialer::new(&nic).unwrap();
    assert!(listener.next_deadline().is_none() && dialer.next_deadline().is_none());
    listener.feed(two.1.clone());
    let begin = Instant::now();
    let dial = dialer.start(listener.local_addr().unwrap(), &[], &one.1, LIMIT).unwrap();
    while one.0.handler().peer.is_none() || two.0.handler().peer.is_none() {
        assert!(begin.elapsed() < LIMIT, "they do not connect");
        // Events wake it; the deadline is for other things, and not needed here.
        assert!(wait(&[&listener, &dialer], Some(begin + LIMIT)), "nothing comes");
        while listener.step(Duration::ZERO).unwrap() || dialer.step(Duration::ZERO).unwrap() {}
        one.0.turn();
        two.0.turn();
    }
    assert_eq!((dial.state(), dial.peer()), (PeerState::Up, one.0.handler().peer));
    assert!(dialer.next_deadline().is_some());
    Pair { one, two, _dialer: dialer, _listener: listener, _nic: nic }
}

/// A message that comes with the worker's last poll is found by it, or makes its descriptor
/// readable. So no message is missed, whenever it comes.
#[test]
fn nothing_escapes_a_worker_that_falls_asleep() {
    let pair = pair();
    let (sender, mut worker) = (Arc::new(Mutex::new(pair.one.0)), pair.two.0);
    let fd = WakeFd::of(&worker).unwrap();
    let peer = sender.lock().unwrap().handler().peer.unwrap();
    for round in 0..2000_u64 {
        while worker.turn() > 0 {}
        let lent = sender.clone();
        // Called in the turn of `arm`, after its poll.
        worker.handler_mut().idle = Some(Box::new(move || {
            let mut sender = lent.lock().unwrap();
            while sender.outbox().send(peer, &round.to_le_bytes()).is_err() {
                sender.turn();
            }
            sender.outbox().flush();
        }));
        if let Ok(armed) = worker.arm() {
            assert!(is_readable(&fd), "message {round}: it sleeps, and nobody wakes it");
            drop(armed);
        }
        while worker.handler().got <= round {
            worker.turn();
        }
        sender.lock().unwrap().turn();
    }
}

/// The descriptor of a worker tells of a message and of work, and of nothing else.
#[test]
fn a_descriptor_is_readable_while_there_is_something() {
    let mut pair = pair();
    let (sender, worker) = (&mut pair.one.0, &mut pair.two.0);
    let (fd, handle) = (WakeFd::of(worker).unwrap(), worker.handle());
    let peer = sender.handler().peer.unwrap();
    for round in 0..100 {
        while worker.arm().is_err() {}
        let armed = worker.arm().unwrap();
        assert!(!is_readable(&fd), "round {round}: nothing has come");
        if round % 2 == 0 {
            sender.outbox().send(peer, b"wake up").unwrap();
            sender.outbox().flush();
        } else {
            assert!(handle.submit(round));
        }
        assert!(is_readable(&fd), "round {round}");
        drop(armed);
        sender.turn();
    }
    assert_eq!(worker.handler().got, 50);
    drop(pair.two);
    assert!(!is_readable(&fd), "it may outlive its worker");
}

/// Timers end a sleep: each is called soon after it is due, and never before.
#[test]
fn timers_run_while_a_worker_sleeps() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let nic = SoftDevice::open().unwrap();
    let (mut worker, _intake) = side(&nic);
    worker.handler_mut().stop = Some(&STOP);
    let begin = clock_ns();
    worker.advance(begin);
    assert!(worker.outbox().set_timer(begin + STEP_NS, 1).is_some());
    run_sleeping(&mut worker, &STOP, 100, LIMIT);
    let Counts { fired, .. } = worker.handler();
    assert!(fired.iter().map(|(key, _)| *key).eq(1..=LAST));
    for (key, at) in fired.iter() {
        assert!(*at >= begin + *key * STEP_NS, "timer {key} came too soon");
    }
    // A busy machine delays some of them. Without timers each sleep lasts 100 ms.
    let times = std::iter::once(begin).chain(fired.iter().map(|(_, at)| *at)).collect::<Vec<_>>();
    assert!(times.windows(2).any(|pair| pair[1] - pair[0] < 50_000_000), "{times:?}");
    // It slept: a worker that spins for 30 ms turns a million times.
    let turns = worker.handle().stats().turns;
    assert!(turns < 20_000, "{turns} turns");
}

/// After a long sleep, a handler that is called with work takes the present time for a
/// deadline, and not the time at which the worker fell asleep.
#[test]
fn a_worker_that_wakes_knows_the_time() {
    const ROUNDS: u64 = 10;
    let nic = SoftDevice::open().unwrap();
    let (mut worker, _intake) = side(&nic);
    let (stop, handle) = (AtomicBool::new(false), worker.handle());
    let mut submitted = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| run_sleeping(&mut worker, &stop, 10, LIMIT));
        for key in 0..ROUNDS {
            // Long enough that it sleeps.
            thread::sleep(Duration::from_millis(5));
            submitted.push(clock_ns());
            assert!(handle.submit(key));
        }
        thread::sleep(Duration::from_millis(5));
        stop.store(true, Ordering::Relaxed);
        assert!(handle.submit(ROUNDS));
    });
    let noted = &worker.handler().noted;
    // On a busy machine it is still about to fall asleep at times.
    let right = noted.iter().zip(&submitted).filter(|(now, at)| now >= at).count();
    assert!(right > 5, "its clock stood still: {noted:?} for {submitted:?}");
}

/// Retries for lack of a receive are 164 ms apart.
const SLOW_RETRIES: u8 = 28;

/// A message finds no receive while its receiver sleeps, because the handler keeps all blocks: for
/// `keep`, or for good. Returns both sides afterwards, and how often the receiver turned meanwhile.
fn starved(rnr_retry: u8, keep: Option<Duration>) -> (Pair, u64) {
    let retry = Retry { rnr_timer: SLOW_RETRIES, rnr_retry, ..Retry::DEFAULT };
    let config = Config { window: 0, recv_blocks: 16, refill: 4, retry, ..CONFIG };
    let mut pair = pair_with(&config);
    let (stop, (sender, receiver)) = (AtomicBool::new(false), (&mut pair.one.0, &mut pair.two.0));
    let handle = receiver.handle();
    receiver.handler_mut().keeps = true;
    let peer = sender.handler().peer.unwrap();
    let begin = Instant::now();
    receiver.advance(clock_ns());
    if let Some(keep) = keep {
        let at = clock_ns() + keep.as_nanos() as u64;
        assert!(receiver.outbox().set_timer(at, LAST).is_some());
    }
    thread::scope(|scope| {
        scope.spawn(|| run_sleeping(receiver, &stop, 10, LIMIT));
        for n in 0..=config.recv_blocks {
            while sender.outbox().send(peer, &[n as u8]).is_err() {
                sender.turn();
            }
        }
        // With a timer, the message gets its receive.
        let is_over = |sender: &Worker<_, Counts>| match keep {
            Some(keep) => begin.elapsed() > 2 * keep,
            None => sender.handler().down.is_some(),
        };
        while !is_over(sender) {
            assert!(begin.elapsed() < LIMIT, "the sender waits on");
            sender.turn();
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(handle.submit(0));
    });
    let turns = handle.stats().turns;
    (pair, turns)
}

/// RC-1: a worker that sleeps without receives wakes a few times, and refuses the message when the
/// retries of its sender end.
#[test]
fn a_sleeping_worker_without_receives_refuses_in_time() {
    let begin = Instant::now();
    let (pair, turns) = starved(2, None);
    assert!(begin.elapsed() >= 3 * Duration::from_micros(163_840));
    assert_eq!(pair.two.0.handler().got, 16);
    let why = DownReason::Failed(Status::RnrRetryExceeded);
    assert_eq!(pair.one.0.handler().down, Some(why));
    // Each sleep takes a dozen turns. A worker that wakes itself turns some 100 000 times.
    println!("{turns} turns in {:?}", begin.elapsed());
    assert!(turns < 5000, "{turns} turns in {:?}", begin.elapsed());
}

/// The message waits with or without a limit. When the handler gives the blocks back at a timer,
/// the message takes one before its retries end.
#[test]
fn a_sleeping_worker_takes_a_message_that_waited_when_it_posts_receives() {
    for rnr_retry in [2, 7] {
        let (pair, turns) = starved(rnr_retry, Some(Duration::from_millis(100)));
        let (sender, receiver) = (pair.one.0.handler(), pair.two.0.handler());
        assert_eq!((receiver.got, sender.down), (17, None));
        println!("{turns} turns");
        assert!(turns < 5000, "{turns} turns");
    }
}

/// A worker that waits for credit sleeps, although credit wakes nobody, and sends as soon as it has
/// come.
#[test]
fn a_worker_without_credit_sleeps_until_it_comes() {
    const MESSAGES: u64 = 30;
    let mut pair = pair();
    let (stop, (sender, receiver)) = (AtomicBool::new(false), (&mut pair.one.0, &mut pair.two.0));
    let handle = sender.handle();
    sender.handler_mut().sends = MESSAGES;
    receiver.handler_mut().keeps = true;
    receiver.advance(clock_ns());
    assert!(receiver.outbox().set_timer(clock_ns() + 300_000_000, LAST).is_some());
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| run_sleeping(sender, &stop, 10, LIMIT));
        while receiver.handler().got < MESSAGES && begin.elapsed() < LIMIT {
            receiver.turn();
            receiver.advance(clock_ns());
            let counts = receiver.handler_mut();
            if counts.fired.is_empty() {
                assert!(counts.got < MESSAGES, "it has credit for all messages");
                thread::sleep(Duration::from_millis(1));
            } else {
                counts.keeps = false;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(handle.submit(0));
    });
    assert_eq!((receiver.handler().got, sender.handler().sends), (MESSAGES, 0));
    let (turns, millis) = (handle.stats().turns, begin.elapsed().as_millis() as u64);
    println!("{turns} turns in {millis} ms");
    // A sleep of 1 ms takes a dozen turns. A worker that stays awake turns some 1000 times in 1 ms.
    assert!(turns < 3000 + 40 * millis, "{turns} turns in {millis} ms");
}

/// Steps of a dialer return at once while a peer does not answer, and the dial ends when its time
/// is over.
#[test]
fn a_dialer_does_not_wait_for_a_silent_peer() {
    let nic = SoftDevice::open().unwrap();
    let (_worker, intake) = side(&nic);
    // It listens, and never takes a request.
    let silent = Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let mut dialer = Dialer::new(&nic).unwrap();
    let (addr, limit) = (silent.local_addr().unwrap(), Duration::from_millis(200));
    let backoff = Backoff { limit: LIMIT, ..Backoff::DEFAULT };
    // A kept connection does not block a step either.
    let kept = dialer.keep(addr, &intake, backoff);
    let soonest = Instant::now() + limit;
    let dial = dialer.start(addr, &[], &intake, limit).unwrap();
    let until = Instant::now() + limit;
    let mut steps = 0;
    while dial.state() == PeerState::Connecting {
        while dialer.step(Duration::ZERO).unwrap() {}
        steps += 1;
        assert!(dialer.next_deadline().is_some_and(|at| at <= until.max(Instant::now() + limit)));
        thread::yield_now();
    }
    assert!(Instant::now() >= soonest && steps > 1, "{steps} steps");
    let ended = (dial.state(), dial.last_error().map(|error| error.code()));
    assert_eq!(ended, (PeerState::Ended, Some(Code::TimedOut)));
    assert_eq!(kept.state(), PeerState::Connecting);
    drop(dialer);
    assert_eq!(kept.state(), PeerState::Ended, "nobody dials it any more");
}
