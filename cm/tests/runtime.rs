//! A runtime ends with the first failure of any of its parts, and its handlers come back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Answer, Backoff, CmError, Dialer, Idle, Listener, Runtime, Stop, Why, clock_ns};
use doorbell_engine::worker::{Config, DownReason, Handler, Message, Outbox, PeerId, Verdict};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;
use signal_hook::consts::{SIGINT, SIGTERM};

const CONFIG: Config =
    Config { peers: 8, block_bytes: 256, recv_blocks: 256, send_blocks: 8, ..Config::DEFAULT };

/// Runs a test on a thread of its own, so that one that hangs fails.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    let result = over.recv_timeout(Duration::from_secs(600));
    assert_ne!(result, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

/// A free port.
const ANYWHERE: &str = "127.0.0.1:0";

/// Replies, and panics at the word `panic`.
#[derive(Default)]
struct Echo {
    messages: u64,
}

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.messages += 1;
        assert_ne!(message.bytes(), b"panic", "asked to panic");
        Verdict::Reply { len: message.len() }
    }
}

/// Sends a word to each peer, and stops after one answer for each client.
struct Client {
    word: &'static [u8],
    stop: Stop,
    answers: u64,
    down: Option<DownReason>,
    left: Option<&'static AtomicU64>,
}

impl Client {
    fn new(word: &'static [u8], stop: Stop) -> Client {
        Client { word, stop, answers: 0, down: None, left: None }
    }
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.send(peer, self.word).unwrap();
    }
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        assert_eq!(message.bytes(), self.word);
        self.answers += 1;
        if self.left.is_none_or(|left| left.fetch_sub(1, Ordering::Relaxed) == 1) {
            self.stop.stop();
        }
        Verdict::Done
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down = Some(why);
        self.stop.stop();
    }
}

/// A server on a thread of its own; returns its result, and the number of messages it received.
struct Server {
    addr: SocketAddr,
    stop: Stop,
    thread: thread::JoinHandle<(Result<Why, CmError>, u64)>,
}

impl Server {
    fn start(workers: usize) -> Server {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
            for _ in 0..workers {
                runtime.add(Echo::default()).unwrap();
            }
            tell.send((runtime.listen(ANYWHERE).unwrap(), runtime.stopper())).unwrap();
            let result = runtime.run();
            (result, runtime.workers().iter_mut().map(|worker| worker.handler().messages).sum())
        });
        let (addr, stop) = told.recv().unwrap();
        Server { addr, stop, thread }
    }

    fn end(self) -> (Result<Why, CmError>, u64) {
        self.stop.stop();
        self.thread.join().unwrap()
    }
}

/// An address where nobody listens.
fn nobody() -> SocketAddr {
    let mut gone = Runtime::<_, Echo>::new(&SoftDevice::open().unwrap(), &CONFIG);
    gone.listen(ANYWHERE).unwrap()
}

fn client(word: &'static [u8]) -> Runtime<SoftDevice, Client> {
    let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
    let stop = runtime.stopper();
    runtime.add(Client::new(word, stop)).unwrap();
    runtime
}

#[test]
fn handlers_come_back_with_what_they_counted() {
    ends(|| {
        for idle in [Idle::Spin, Idle::Yield, Idle::Sleep { spin: 100 }] {
            let server = Server::start(2);
            let mut clients = client(b"hello");
            clients.when_idle(idle);
            clients.dial(server.addr).unwrap();
            assert_eq!(clients.run(), Ok(Why::Asked));
            assert_eq!(clients.workers()[0].handler().answers, 1, "{idle:?}");
            assert_eq!(server.end(), (Ok(Why::Asked), 1));
        }
    });
}

/// `Duration::MAX` is no limit: of a drain, of a try, and of the wait between tries.
#[test]
fn the_longest_limits_are_none() {
    ends(|| {
        let server = Server::start(1);
        let most = Duration::MAX;
        let never = Backoff { first: most, most, limit: most, tries: 0 };
        for drain in [Duration::ZERO, most] {
            let mut clients = client(b"hello");
            clients.drain_within(drain);
            clients.keep(nobody(), never).unwrap();
            clients.keep(server.addr, never).unwrap();
            assert_eq!(clients.run(), Ok(Why::Asked));
            assert_eq!(clients.workers()[0].handler().answers, 1);
        }
        assert_eq!(server.end(), (Ok(Why::Asked), 2));
    });
}

/// The panic of one handler ends the other workers and the control plane, and is the error.
#[test]
fn a_panic_of_a_handler_ends_everything_and_is_the_error() {
    ends(|| {
        let server = Server::start(2);
        let mut clients = client(b"panic");
        clients.dial(server.addr).unwrap();
        // The server's end is the end of the connection.
        assert_eq!(clients.run(), Ok(Why::Asked));
        assert!(clients.workers()[0].handler().down.is_some());
        let (result, messages) = server.thread.join().unwrap();
        let text = result.unwrap_err().to_string();
        assert!(text.contains("run worker 0") && text.contains("asked to panic"), "{text}");
        assert_eq!(messages, 1, "the handler came back");
    });
}

#[test]
fn a_worker_too_many_is_an_error_before_anything_runs() {
    ends(|| {
        let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &Config::DEFAULT);
        let added = (0..17).map(|_| runtime.add(Echo::default()).map(drop));
        let results: Vec<_> = added.collect();
        assert!(results[..15].iter().all(Result::is_ok), "{results:?}");
        let error = results[16].as_ref().unwrap_err();
        assert_eq!(error.code(), Code::NoMemory);
        assert!(error.to_string().contains("Config::recv_blocks"), "{error}");
    });
}

#[test]
fn set_up_that_cannot_work_is_an_error() {
    ends(|| {
        let nic = SoftDevice::open().unwrap();
        let mut empty = Runtime::<_, Echo>::new(&nic, &CONFIG);
        let text = empty.run().unwrap_err().to_string();
        assert!(text.contains("no worker"), "{text}");
        let addr = empty.listen(ANYWHERE).unwrap();
        let error = empty.listen(addr).unwrap_err();
        assert_eq!(error.code(), Code::AddrInUse, "{error}");
        let huge = Config { recv_blocks: (1 << 24) - 1, block_bytes: 1 << 20, ..Config::DEFAULT };
        let error = Runtime::new(&nic, &huge).add(Echo::default()).map(drop).unwrap_err();
        assert_eq!(error.code(), Code::NoMemory, "{error}");
        let wrong = Config { peers: 0, ..CONFIG };
        let error = Runtime::new(&nic, &wrong).add(Echo::default()).map(drop).unwrap_err();
        assert_eq!(error.code(), Code::Invalid, "{error}");
    });
}

#[test]
fn two_workers_do_not_spin_on_one_core() {
    ends(|| {
        let core = core_affinity::get_core_ids().unwrap()[0].id;
        let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
        for _ in 0..2 {
            runtime.add(Echo::default()).unwrap();
        }
        runtime.on_cores([core; 3]);
        runtime.stopper().stop();
        let text = runtime.run().unwrap_err().to_string();
        assert!(text.contains(&format!("two workers would spin on core {core}")), "{text}");
        runtime.when_idle(Idle::Yield);
        assert_eq!(runtime.run(), Ok(Why::Asked));
    });
}

#[test]
fn a_runtime_runs_once() {
    ends(|| {
        let mut failed = client(b"hello");
        failed.dial(nobody()).unwrap();
        failed.run().unwrap_err();
        let text = failed.run().unwrap_err().to_string();
        assert!(text.contains("it has run already"), "{text}");
    });
}

/// Failures after the threads have started: each ends them.
#[test]
fn failures_while_it_runs_end_it() {
    ends(|| {
        let nobody = nobody();
        let mut refused = client(b"hello");
        refused.dial(nobody).unwrap();
        let error = refused.run().unwrap_err();
        assert_eq!(error.code(), Code::Refused, "{error}");

        let mut kept = client(b"hello");
        let first = Duration::from_millis(1);
        kept.keep(nobody, Backoff { first, tries: 3, ..Backoff::DEFAULT }).unwrap();
        let error = kept.run().unwrap_err();
        assert_eq!(error.code(), Code::Refused, "{error}");

        let mut pinned = client(b"hello");
        pinned.listen(ANYWHERE).unwrap();
        pinned.on_cores([1 << 20]);
        let text = pinned.run().unwrap_err().to_string();
        assert!(text.contains("core 1048576"), "{text}");
    });
}

/// A request to one of several listeners does not wait for the others, which would take 5 ms each.
#[test]
fn idle_listeners_hold_nobody_up() {
    ends(|| {
        const LISTENERS: usize = 8;
        let nic = SoftDevice::open().unwrap();
        let mut server = Runtime::new(&nic, &CONFIG);
        server.add(Echo::default()).unwrap();
        let mut addr = None;
        for _ in 0..LISTENERS {
            let mut listener = Listener::bind(&nic, ANYWHERE.parse().unwrap()).unwrap();
            listener.on_request(|_| Answer::refuse("only to see how soon"));
            addr = Some(listener.local_addr().unwrap());
            server.add_listener(listener);
        }
        let (addr, stop) = (addr.unwrap(), server.stopper());
        thread::scope(|scope| {
            let server = scope.spawn(|| server.run().unwrap());
            let mut clients = client(b"hello");
            let intake = clients.intakes()[0].clone();
            let mut dialer = Dialer::new(clients.dialer().unwrap().nic()).unwrap();
            let mut errors = Vec::new();
            // On a busy machine some of the rounds are slow.
            let quick = (0..20).any(|_| {
                let begin = Instant::now();
                for _ in 0..10 {
                    let dialed = dialer.dial(addr, &intake, Duration::MAX);
                    errors.extend(dialed.err());
                    // It gives the connection's memory back.
                    clients.workers()[0].turn();
                }
                begin.elapsed() < Duration::from_millis(250)
            });
            stop.stop();
            server.join().unwrap();
            assert!(
                errors.len() >= 10 && errors.iter().all(|error| error.code() == Code::Refused),
                "{errors:?}"
            );
            assert!(quick, "they are held up");
        });
    });
}

/// Two programs that listen and dial each other: no dial waits for the other's.
#[test]
fn programs_that_dial_each_other_come_up() {
    ends(|| {
        static LEFT: AtomicU64 = AtomicU64::new(0);
        const SIDES: usize = 3;
        LEFT.store((SIDES * SIDES) as u64, Ordering::Relaxed);
        let stop = Stop::default();
        let mut sides: Vec<_> =
            (0..SIDES).map(|_| Runtime::new(&SoftDevice::open().unwrap(), &CONFIG)).collect();
        let addrs: Vec<_> = sides.iter_mut().map(|side| side.listen(ANYWHERE).unwrap()).collect();
        thread::scope(|scope| {
            for side in &mut sides {
                side.add(Mesh { stop: stop.clone(), left: &LEFT }).unwrap();
                addrs.iter().for_each(|addr| side.dial(addr).unwrap());
            }
            let mine: Vec<_> = sides.iter().map(Runtime::stopper).collect();
            for side in &mut sides {
                scope.spawn(|| assert_eq!(side.run(), Ok(Why::Asked)));
            }
            while !stop.is_stopped() {
                thread::sleep(Duration::from_millis(1));
            }
            mine.iter().for_each(Stop::stop);
        });
    });
}

/// Counts the connections that came up, on the side that dialed and on the side that was dialed.
struct Mesh {
    stop: Stop,
    left: &'static AtomicU64,
}

impl<P: Provider> Handler<P> for Mesh {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        // One for each connection: the dialed side answers nothing.
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stop.stop();
        }
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.send(peer, b"up").unwrap();
    }
}

/// A timer fires in each kind of loop, never early, and not only when something else ends a sleep.
#[test]
fn timers_run_in_each_loop() {
    const AHEAD: u64 = 3_000_000;
    /// Much less than the longest sleep (100 ms).
    const IN_TIME: u64 = 50_000_000;
    /// A busy machine makes many timers late, a sleep that ignores them all.
    const TRIES: u32 = 300;

    struct Late {
        stop: Stop,
        due: u64,
        tries: u32,
    }
    impl<P: Provider> Handler<P> for Late {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            Verdict::Done
        }
        fn on_timer(&mut self, _: u64, out: &mut Outbox<'_, P>) {
            let now = out.now();
            assert!(now >= self.due, "at {now}, and due at {}", self.due);
            if now - self.due < IN_TIME {
                return self.stop.stop();
            }
            self.tries += 1;
            assert!(self.tries < TRIES, "no timer was in time");
            self.due = now + AHEAD;
            out.set_timer(self.due, 0).unwrap();
        }
    }
    ends(|| {
        for idle in [Idle::Spin, Idle::Yield, Idle::Sleep { spin: 0 }] {
            let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
            runtime.when_idle(idle);
            let due = clock_ns() + AHEAD;
            let late = Late { stop: runtime.stopper(), due, tries: 0 };
            runtime.add(late).unwrap().outbox().set_timer(due, 0).unwrap();
            assert_eq!(runtime.run(), Ok(Why::Asked), "{idle:?}");
        }
    });
}

/// At the end, a dial that waits for its answer is given up.
#[test]
fn a_stop_does_not_wait_for_a_dial() {
    ends(|| {
        // It listens, and nobody takes its requests.
        let nic = SoftDevice::open().unwrap();
        let mut silent = Runtime::<_, Echo>::new(&nic, &CONFIG);
        let addr = silent.listen(ANYWHERE).unwrap();
        let mut dialing = client(b"hello");
        dialing.dial(addr).unwrap();
        let stop = dialing.stopper();
        let begin = std::time::Instant::now();
        let waiting = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            stop.stop();
        });
        assert_eq!(dialing.run(), Ok(Why::Asked));
        // It takes some 50 ms. The limit leaves 300 times that, and lies below the dial's own 20 s.
        assert!(begin.elapsed() < Duration::from_secs(15), "it waited for the dial's 20 s");
        waiting.join().unwrap();
    });
}

/// A signal ends a run, also one after another; a signal of the run before does not count.
#[test]
fn a_signal_ends_a_run() {
    ends(|| {
        for signal in [SIGINT, SIGTERM, SIGINT] {
            let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
            runtime.add(Echo::default()).unwrap();
            runtime.stop_on_signals().unwrap();
            thread::scope(|scope| {
                let running = scope.spawn(|| runtime.run());
                signal_hook::low_level::raise(signal).unwrap();
                assert_eq!(running.join().unwrap(), Ok(Why::Signal(signal)));
            });
        }
    });
}

/// Runs a test of this file again, as a process of its own. Answers its end, and what it printed.
fn child(test: &str) -> (ExitStatus, String) {
    let program = std::env::current_exe().unwrap();
    let run = Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, "").output();
    let run = run.unwrap();
    (run.status, String::from_utf8(run.stdout).unwrap())
}

/// Set in the environment of a [`child`].
const CHILD: &str = "DOORBELL_TEST_CHILD";

fn echo_with_signals() -> Runtime<SoftDevice, Echo> {
    let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
    runtime.add(Echo::default()).unwrap();
    runtime.stop_on_signals().unwrap();
    runtime
}

#[test]
fn a_program_may_ask_twice_for_the_end_by_a_signal() {
    if std::env::var_os(CHILD).is_some() {
        return ends(|| {
            let mut runtime = echo_with_signals();
            runtime.stop_on_signals().unwrap();
            signal_hook::low_level::raise(SIGTERM).unwrap();
            println!("{:?}", runtime.run());
        });
    }
    let (end, text) = child("a_program_may_ask_twice_for_the_end_by_a_signal");
    assert!(end.success() && text.contains("Ok(Signal(15))"), "{end}: {text}");
}

/// The end of one runtime leaves the signals to the others. After the last, they have their default
/// effect.
#[test]
fn a_signal_ends_the_runtimes_that_are_left() {
    if std::env::var_os(CHILD).is_some() {
        return ends(|| {
            let [mut ran, dropped, stopped, mut last] = [(); 4].map(|()| echo_with_signals());
            ran.stopper().stop();
            println!("{:?}", ran.run());
            drop(dropped);
            stopped.stopper().stop();
            signal_hook::low_level::raise(SIGTERM).unwrap();
            drop(stopped);
            println!("{:?}", last.run());
            signal_hook::low_level::raise(SIGINT).unwrap();
            println!("it goes on");
        });
    }
    let (end, text) = child("a_signal_ends_the_runtimes_that_are_left");
    let ends = text.contains("Ok(Asked)\nOk(Signal(15))\n") && !text.contains("it goes on");
    assert!(ends && end.signal() == Some(SIGINT), "{end}: {text}");
}

/// Each worker is on its core, and the other threads stay where they were.
#[test]
fn workers_run_on_their_cores() {
    struct Where(Stop, Vec<usize>);
    impl<P: Provider> Handler<P> for Where {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            Verdict::Done
        }
        fn on_timer(&mut self, _: u64, _: &mut Outbox<'_, P>) {
            self.1 = cores();
            self.0.stop();
        }
    }
    fn cores() -> Vec<usize> {
        core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect()
    }
    ends(|| {
        let before = cores();
        let core = before[before.len() - 1];
        let mut runtime = Runtime::new(&SoftDevice::open().unwrap(), &CONFIG);
        let stop = runtime.stopper();
        runtime.add(Where(stop, Vec::new())).unwrap().outbox().set_timer(0, 0).unwrap();
        runtime.on_cores([core]);
        assert_eq!(runtime.run(), Ok(Why::Asked));
        assert_eq!(runtime.workers()[0].handler().1, [core]);
        assert_eq!(cores(), before);
    });
}

/// A connection that the program dials by itself, before the run, is looked after in it.
#[test]
fn a_dialer_of_the_program_is_stepped() {
    ends(|| {
        let server = Server::start(1);
        let mut clients = client(b"hello");
        let intake = clients.intakes()[0].clone();
        let limit = Duration::from_secs(300);
        let peer = clients.dialer().unwrap().dial(server.addr, &intake, limit).unwrap();
        assert_eq!(peer.addr(), server.addr);
        assert_eq!(clients.run(), Ok(Why::Asked));
        assert_eq!(clients.workers()[0].handler().answers, 1);
        assert_eq!(server.end(), (Ok(Why::Asked), 1));
    });
}

/// What was sent before the end arrives, and the peer learns that the end was in order.
#[test]
fn the_end_sends_what_was_accepted_and_says_goodbye() {
    struct Burst(Stop);
    impl<P: Provider> Handler<P> for Burst {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            Verdict::Done
        }
        fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
            for _ in 0..20 {
                out.send(peer, &[7; 100]).unwrap();
            }
            self.0.stop();
        }
    }
    struct Count(Stop, u64, Option<DownReason>);
    impl<P: Provider> Handler<P> for Count {
        fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
            self.1 += 1;
            Verdict::Done
        }
        fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
            self.2 = Some(why);
            self.0.stop();
        }
    }
    ends(|| {
        for _ in 0..20 {
            let nic = SoftDevice::open().unwrap();
            let burst = Config { peers: 2, window_min: 64, ..CONFIG };
            let mut server = Runtime::new(&nic, &burst);
            let stop = server.stopper();
            server.add(Count(stop, 0, None)).unwrap();
            let addr = server.listen(ANYWHERE).unwrap();
            let mut burst = Runtime::new(&nic, &burst);
            burst.add(Burst(burst.stopper())).unwrap();
            burst.drain_within(Duration::from_secs(60));
            burst.dial(addr).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| assert_eq!(server.run(), Ok(Why::Asked)));
                assert_eq!(burst.run(), Ok(Why::Asked));
            });
            let Count(_, count, why) = server.workers()[0].handler();
            assert_eq!((*count, *why), (20, Some(DownReason::Finished)));
        }
    });
}
