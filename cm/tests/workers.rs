//! Workers that the control plane connects: what they learn about each other in doing so.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{Backoff, Dialer, Listener};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, SendError, SharedRecv, Verdict,
    Worker,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;

const LIMIT: Duration = Duration::from_secs(60);

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

#[derive(Default)]
struct Log {
    up: Vec<PeerId>,
    got: u64,
    down: usize,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.down += 1;
    }
}

type Side = (Worker<SoftDevice, Log>, Intake<SoftDevice>);

fn worker(nic: &SoftDevice, config: &Config) -> Side {
    let shared =
        SharedRecv::new(nic, Mapping::plain(config.recv_bytes()).unwrap(), config).unwrap();
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    Worker::new(nic, &shared, memory, Log::default(), config).unwrap()
}

/// A server, and a client that connects until it is refused. Returns which side refused, and how
/// many connections were accepted before.
fn crowd(server: &Config, client: &Config) -> (Side, Side, u32, doorbell_cm::CmError) {
    let nic = SoftDevice::open().unwrap();
    let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut serving = worker(&nic, server);
    listener.feed(serving.1.clone());
    let dialing = worker(&nic, client);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (yes, no) = std::thread::scope(|scope| {
        let (stop, listener) = (&stop, &mut listener);
        scope.spawn(move || listener.run(stop).unwrap());
        let mut dialer = Dialer::new(&nic).unwrap();
        let mut yes = 0;
        let no = loop {
            match dialer.dial(addr, &dialing.1, LIMIT) {
                Ok(_) => yes += 1,
                Err(error) => break error,
            }
        };
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        // What is connected stays connected while the workers turn.
        std::mem::forget(dialer);
        (yes, no)
    });
    let start = Instant::now();
    while serving.0.handler().up.len() < yes as usize {
        assert!(start.elapsed() < LIMIT, "the listener's side is not up");
        listener.step(Duration::ZERO).unwrap();
        serving.0.turn();
    }
    std::mem::forget(listener);
    (serving, dialing, yes, no)
}

/// Each side knows how many messages the other accepts, and is told when it accepts more.
#[test]
fn workers_learn_each_others_windows() {
    let client = Config { window: 14, window_min: 14, recv_blocks: 128, ..CONFIG };
    let (mut serving, mut dialing, yes, _) = crowd(&CONFIG, &client);
    assert!(yes > 1);
    dialing.0.turn();
    let peers = dialing.0.handler().up.clone();
    assert_eq!(peers.len(), yes as usize);
    // One credit less than the window, because it is reserved for replies.
    assert_eq!(dialing.0.outbox().room(peers[0]), 9 - 1);
    let back = serving.0.handler().up[0];
    assert_eq!(serving.0.outbox().room(back), 14 - 1);
    for n in 0..100 {
        while dialing.0.outbox().send(peers[0], &[n; 200]).is_err() {
            dialing.0.turn();
            serving.0.turn();
        }
    }
    for _ in 0..100 {
        dialing.0.turn();
        serving.0.turn();
    }
    assert_eq!(serving.0.handler().got, 100);
    assert!(dialing.0.stats().credit_stalls > 0 && serving.0.stats().credit_returns > 5);
}

/// One connection more than the worker has receives set aside for. The side that has none left
/// refuses it, and the error gives the numbers.
#[test]
fn a_connection_too_many_is_refused_with_the_numbers() {
    let roomy = Config { recv_blocks: 1024, peers: 64, ..CONFIG };
    let (_, _, yes, no) = crowd(&roomy, &CONFIG);
    assert_eq!((yes, no.code()), (6, Code::NoMemory));
    let text = no.to_string();
    assert!(text.contains("slots for 6") && text.contains("Config::peers"), "{text}");
    let (_, _, yes, no) = crowd(&CONFIG, &roomy);
    assert_eq!((yes, no.code()), (6, Code::Refused), "{no}");
}

/// A server at this address, or at a free one, and its worker.
fn server(nic: &SoftDevice, addr: SocketAddr) -> (Listener<SoftDevice>, Side) {
    let mut listener = Listener::bind(nic, addr).unwrap();
    let side = worker(nic, &CONFIG);
    listener.feed(side.1.clone());
    (listener, side)
}

/// A connection that is kept comes up when there is a server, and again after it was lost. One with
/// a limited number of tries is given up after that many, and reports why.
#[test]
fn a_kept_connection_comes_back() {
    let nic = SoftDevice::open().unwrap();
    let (listener, first) = server(&nic, "127.0.0.1:0".parse().unwrap());
    let addr = listener.local_addr().unwrap();
    drop((listener, first));
    let short = Duration::from_millis(2);
    let backoff = Backoff { first: short, most: 4 * short, ..Backoff::DEFAULT };
    let mut dialing = worker(&nic, &CONFIG);
    let mut dialer = Dialer::new(&nic).unwrap();
    dialer.keep(addr, &dialing.1, backoff);
    for round in 1..=3 {
        // The worker may notice the end of the last connection before the dialer does.
        let start = Instant::now();
        while dialer.connections() > 0 {
            assert!(start.elapsed() < LIMIT, "round {round}: the dialer keeps what has ended");
            dialer.step(short).unwrap();
            dialing.0.turn();
        }
        // For a while there is no server.
        for _ in 0..5 {
            dialer.step(short).unwrap();
            dialing.0.turn();
        }
        assert_eq!(dialer.connections(), 0);
        let (mut listener, mut serving) = server(&nic, addr);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let listening = scope.spawn(|| listener.run(&stop).unwrap());
            let start = Instant::now();
            while dialing.0.handler().up.len() < round && start.elapsed() < LIMIT {
                dialer.step(short).unwrap();
                dialing.0.turn();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            listening.join().unwrap();
        });
        assert_eq!(dialing.0.handler().up.len(), round, "it does not come up");
        serving.0.turn();
        drop((listener, serving));
        let start = Instant::now();
        while dialing.0.handler().down < round {
            assert!(start.elapsed() < LIMIT, "round {round}: its end is not noticed");
            dialer.step(short).unwrap();
            dialing.0.turn();
        }
    }
    let backoff = Backoff { tries: 3, ..backoff };
    let nowhere = worker(&nic, &CONFIG);
    let mut dialer = Dialer::new(&nic).unwrap();
    dialer.keep(addr, &nowhere.1, backoff);
    let start = Instant::now();
    while dialer.given_up().next().is_none() {
        assert!(start.elapsed() < LIMIT, "it is not given up");
        dialer.step(short).unwrap();
    }
    let (given_up, error) = dialer.given_up().next().unwrap();
    assert_eq!((given_up, error.code()), (addr, Code::Refused));
}

/// A `main` that returns an error prints its `Debug` form: that is the text with the cure.
#[test]
fn errors_that_end_main_read_like_text() {
    fn same(error: &dyn std::error::Error, part: &str) {
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().contains(part), "{error}");
    }
    let nic = SoftDevice::open().unwrap();
    let listener = Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    same(&Listener::bind(&nic, addr).err().unwrap(), "bind to 127.0.0.1");
    let config = Config { peers: 0, ..CONFIG };
    let memory = Mapping::plain(CONFIG.recv_bytes()).unwrap();
    same(&SharedRecv::new(&nic, memory, &config).err().unwrap(), "peers must be 1 to 65536");
    same(&Mapping::plain(0).unwrap_err(), "request at least 1");
    same(&SendError::TooLongForPeer, "longer than the peer's blocks");
}
