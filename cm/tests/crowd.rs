//! Ten thousand peers on one shared receive queue, of which a few talk. None of those starves,
//! nothing is lost, every block comes back, and idle peers take little memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "each connection is a socket, and a process may have few")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{Dialer, Listener};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Stats, Verdict,
    Worker,
};
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;

/// A crowd hangs if no peer and no message has come or gone for this long.
const STILL: Duration = Duration::from_secs(60);

const PEERS: u32 = 10_000;
const TALKERS: usize = 8;
/// Number of echoes of all talkers together.
const ECHOES: u64 = 40_000;
/// The most memory of an idle connection on each side, as the README says. One page more on both
/// sides fails.
const CONNECTION_BYTES: u64 = 18_000;
/// The most memory of both workers, for any number of peers.
const WORKERS_BYTES: u64 = 12 << 20;

const CONFIG: Config = Config {
    peers: PEERS,
    send_queue: 64,
    block_bytes: 256,
    recv_blocks: 4096,
    send_blocks: 64,
    signal_every: 16,
    window: 24,
    // Enough that the last peer gets a whole window, as the first does.
    overcommit: 64,
    ..Config::DEFAULT
};

/// Answers in place, or takes the answers. Each message must be its peer's next one.
#[derive(Default)]
struct Side {
    answers: bool,
    up: Vec<PeerId>,
    down: usize,
    /// Messages received, by the peer's index.
    came: Vec<u64>,
    wrong: u64,
}

impl<P: Provider> Handler<P> for Side {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        let next = &mut self.came[message.peer().index()];
        let number = message.bytes().first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        self.wrong += u64::from(number != Some(*next));
        *next += 1;
        if self.answers { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.down += 1;
    }
}

type OneWorker = Worker<SoftDevice, Side>;

fn worker(nic: &SoftDevice, config: &Config, answers: bool) -> (OneWorker, Intake<SoftDevice>) {
    let memory = |bytes| Mapping::plain(bytes).unwrap();
    let shared = SharedRecv::new(nic, memory(config.recv_bytes()), config).unwrap();
    let side = Side { answers, came: vec![0; config.peers as usize], ..Side::default() };
    Worker::new(nic, &shared, memory(config.send_bytes()), side, config).unwrap()
}

/// As many peers as this process may have sockets for; each needs two.
fn peers_that_may_be() -> u32 {
    const OTHERS: u64 = 64;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit, which is on this stack (getrlimit(2)).
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let most = limit.rlim_max;
    for max in [most.max(u64::from(2 * PEERS) + OTHERS), most] {
        let raised = libc::rlimit { rlim_cur: max, rlim_max: max };
        // SAFETY: the call reads one rlimit, which is on this stack (setrlimit(2)).
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0 {
            limit.rlim_cur = max;
            break;
        }
    }
    u32::try_from((limit.rlim_cur - OTHERS) / 2).unwrap_or(PEERS).min(PEERS)
}

/// Resident memory of this process, bytes (proc(5)).
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib << 10
}

/// Two workers with many connections between them, and the control planes that made these.
struct Crowd {
    dialer: Dialer<SoftDevice>,
    listener: Listener<SoftDevice>,
    one: OneWorker,
    two: OneWorker,
}

impl Crowd {
    fn connect(config: &Config) -> Crowd {
        // Two devices, because one has too few numbers for the queue pairs of both sides.
        let (here, there) = (SoftDevice::open().unwrap(), SoftDevice::open().unwrap());
        let (one, intake) = worker(&here, config, false);
        let (two, serving) = worker(&there, config, true);
        let mut listener = Listener::bind(&there, "127.0.0.1:0".parse().unwrap()).unwrap();
        listener.feed(serving);
        let mut dialer = Dialer::new(&here).unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| listener.run(&stop).unwrap());
            let dialed =
                (0..config.peers).try_for_each(|_| dialer.dial(addr, &intake, STILL).map(drop));
            // First, since the listener's thread is waited for.
            stop.store(true, Ordering::Relaxed);
            dialed.unwrap();
        });
        let mut crowd = Crowd { dialer, listener, one, two };
        crowd.until("all are up", |crowd| {
            crowd.listener.step(Duration::ZERO).unwrap();
            let count = config.peers as usize;
            crowd.one.handler().up.len() == count && crowd.two.handler().up.len() == count
        });
        crowd
    }

    /// Changes when a peer or a message comes or goes.
    fn moves(&self) -> [u64; 4] {
        let [(a, b), (c, d)] = [&self.one, &self.two]
            .map(|worker| (worker.peers() as u64, worker.stats().completions));
        [a, b, c, d]
    }

    fn until(&mut self, what: &str, mut so: impl FnMut(&mut Crowd) -> bool) {
        let (mut since, mut seen) = (Instant::now(), self.moves());
        while !so(self) {
            self.one.turn();
            self.two.turn();
            let now = self.moves();
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            assert!(
                since.elapsed() < STILL,
                "nothing has moved for a long time, waiting for: {what}"
            );
        }
    }

    /// Before each turn every talker sends as much as it may, until all of them together have
    /// [`ECHOES`] echoes. Returns the number that each has then, and lets the other echoes arrive.
    fn talk(&mut self, talkers: &[PeerId]) -> Vec<u64> {
        let mut sent = vec![0_u64; talkers.len()];
        let each = |crowd: &mut Crowd| -> Vec<u64> {
            talkers.iter().map(|peer| crowd.one.handler().came[peer.index()]).collect()
        };
        self.until("all those echoes", |crowd| {
            for (peer, sent) in talkers.iter().zip(&mut sent) {
                // Some go inline and some in blocks.
                let mut bytes = [7; 200];
                let len = if sent.is_multiple_of(3) { 200 } else { 24 };
                bytes[..8].copy_from_slice(&sent.to_le_bytes());
                while crowd.one.outbox().send(*peer, &bytes[..len]).is_ok() {
                    *sent += 1;
                    bytes[..8].copy_from_slice(&sent.to_le_bytes());
                }
            }
            each(crowd).iter().sum::<u64>() >= ECHOES
        });
        let echoes = each(self);
        self.until("all have come back", |crowd| each(crowd) == sent);
        echoes
    }
}

/// Asserts that all blocks have come back and no peer is left.
fn assert_home(worker: &mut OneWorker, config: &Config) {
    let Stats { received, refilled, .. } = worker.stats();
    let (receives, sends) = (worker.recv_blocks_home(), worker.send_blocks_home());
    assert_eq!(received - refilled, receives as u64);
    assert_eq!((sends, worker.in_flight()), (config.send_blocks as usize, 0));
    assert_eq!((worker.peers(), worker.kept(), worker.handler().wrong), (0, 0, 0));
}

#[test]
fn of_ten_thousand_peers_the_few_that_talk_share_evenly() {
    let config = Config { peers: peers_that_may_be(), ..CONFIG };
    let before = resident();
    let mut crowd = Crowd::connect(&config);
    let grown = resident().saturating_sub(before);
    let most = WORKERS_BYTES + 2 * u64::from(config.peers) * CONNECTION_BYTES;
    assert!(grown <= most, "{grown} bytes for {} connections, {most} at most", config.peers);
    let peers = crowd.one.handler().up.clone();
    // The first peer, the last one, and some in between.
    let step = (peers.len() - 1) / (TALKERS - 1);
    let talkers: Vec<PeerId> = peers.iter().copied().step_by(step).take(TALKERS).collect();
    let echoes = crowd.talk(&talkers);
    let fair = ECHOES / TALKERS as u64;
    assert!(echoes.iter().all(|echoes| *echoes >= fair * 3 / 4), "{echoes:?}");
    // Each was limited by its own window, and all windows together are only a part of the queue.
    let (here, there) = (crowd.one.stats(), crowd.two.stats());
    assert!(here.credit_stalls > 0, "{here:?}");
    assert_eq!((here.errors, there.errors), (0, 0));
    let windows = u64::from(config.window) * TALKERS as u64;
    assert!(there.receives_out_most <= windows + u64::from(config.refill), "{there:?}");
    for peer in &peers {
        crowd.one.outbox().close(*peer);
    }
    crowd.until("all have gone", |crowd| {
        crowd.dialer.step(Duration::ZERO).unwrap();
        crowd.listener.step(Duration::ZERO).unwrap();
        crowd.one.handler().down == peers.len() && crowd.two.handler().down == peers.len()
    });
    assert_home(&mut crowd.one, &config);
    assert_home(&mut crowd.two, &config);
}
