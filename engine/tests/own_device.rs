//! A device of one's own: the whole of what the seam asks for a worker, over two queues in memory.
//! It is also the shortest answer to how much there is to write.
#![expect(unsafe_code, reason = "a device copies between registered memory")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use doorbell_alloc::Mapping;
use doorbell_engine::worker::{Config, DownReason, Handler, Intake, Message, Outbox, PeerData};
use doorbell_engine::worker::{PeerId, SharedRecv, Verdict, Worker};
use doorbell_seam::error::SetupError;
use doorbell_seam::provider::{
    Access, Caps, Datagrams, NoAddress, Polled, Poller, Provider, Qp, QpCaps, Region, Sharing, Srq,
};
use doorbell_seam::wc::{Status, Wc, WcOpcode};
use doorbell_seam::wr::{PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr};

type Shared<T> = Arc<Mutex<VecDeque<T>>>;

/// The device.
#[derive(Clone)]
struct Wire {
    caps: Arc<Caps>,
    /// Entries of the completion queue that was made last.
    cq_depth: Arc<AtomicU32>,
    is_cut: Arc<AtomicBool>,
    /// Its completion queues give a completion that came alone without a list.
    gives_one: bool,
}

impl Datagrams for Wire {
    type Ah = NoAddress;
}

impl Provider for Wire {
    type Region = Memory;
    type Cq = Shared<Wc>;
    type Poller = Reader;
    type Srq = Receives;
    type Qp = End;

    const OVER_NETWORK: bool = true;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&self, memory: Mapping, _: Access) -> Result<Memory, SetupError> {
        Ok(Memory(memory))
    }

    fn create_cq(&self, depth: u32, _: Sharing) -> Result<(Shared<Wc>, Reader), SetupError> {
        self.cq_depth.store(depth, Ordering::Relaxed);
        let cq = Shared::default();
        Ok((cq.clone(), Reader { cq, gives_one: self.gives_one }))
    }

    fn create_srq(&self, depth: u32) -> Result<Receives, SetupError> {
        Ok(Receives { depth, posted: Shared::default() })
    }
}

struct Memory(Mapping);

// SAFETY: a mapping stays at its address, readable and writable, as long as it lives.
unsafe impl Region for Memory {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn lkey(&self) -> u32 {
        1
    }
    fn rkey(&self) -> u32 {
        1
    }
    fn access(&self) -> Access {
        Access::LOCAL_WRITE
    }
    fn handle(&self) -> u64 {
        1
    }
}

struct Reader {
    cq: Shared<Wc>,
    gives_one: bool,
}

impl Poller for Reader {
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        let mut queue = self.cq.lock().unwrap();
        let count = queue.len().min(out.len());
        out.iter_mut().zip(queue.drain(..count)).for_each(|(place, wc)| *place = wc);
        count
    }

    fn poll_one(&mut self) -> Polled {
        let mut queue = self.cq.lock().unwrap();
        match queue.len() {
            1 if self.gives_one => queue.pop_front().map_or(Polled::Nothing, Polled::One),
            _ => Polled::More,
        }
    }
}

#[derive(Clone)]
struct Receives {
    depth: u32,
    posted: Shared<RecvWr>,
}

impl Srq for Receives {
    fn depth(&self) -> u32 {
        self.depth
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        self.posted.lock().unwrap().extend(list);
        Ok(())
    }
}

/// One end of a connection: where its completions go, and the other's receives and completions.
struct End {
    num: u32,
    peer_num: u32,
    caps: QpCaps,
    own: Shared<Wc>,
    receives: Shared<RecvWr>,
    peer: Shared<Wc>,
    is_cut: Arc<AtomicBool>,
    /// How often it was asked to prefetch.
    fetched: Arc<AtomicU32>,
}

impl End {
    fn complete(&self, wr_id: u64, status: Status) {
        let (qp_num, opcode) = (self.num, WcOpcode::Send);
        let wc = Wc { wr_id, qp_num, opcode, status, ..Wc::default() };
        self.own.lock().unwrap().push_back(wc);
    }
}

impl Qp for End {
    fn num(&self) -> u32 {
        self.num
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        for (accepted, wr) in list.iter().enumerate() {
            if self.is_cut.load(Ordering::Relaxed) {
                self.complete(wr.wr_id, Status::RetryExceeded);
                continue;
            }
            let full = PostError { accepted, cause: PostCause::Full };
            let (to, length, receive) = match wr.op {
                SendOp::Write(word) => (word.addr, wr.sge.length, None),
                _ => {
                    let receive = self.receives.lock().unwrap().pop_front().ok_or(full)?;
                    (receive.sge.addr, wr.sge.length.min(receive.sge.length), Some(receive.wr_id))
                }
            };
            let (from, to) = (wr.sge.addr as *const u8, to as *mut u8);
            // SAFETY: both pieces are registered: the sender's and the receive's by the contracts
            // of the two posts, and a word by the worker that has told its peer of it.
            unsafe { std::ptr::copy_nonoverlapping(from, to, length as usize) };
            if let Some(wr_id) = receive {
                let (qp_num, opcode) = (self.peer_num, WcOpcode::Recv);
                let wc = Wc { wr_id, qp_num, byte_len: length, opcode, ..Wc::default() };
                self.peer.lock().unwrap().push_back(wc);
            }
            if wr.flags.contains(SendFlags::SIGNALED) {
                self.complete(wr.wr_id, Status::Success);
            }
        }
        Ok(())
    }

    unsafe fn fetch_ahead(&mut self) {
        self.fetched.fetch_add(1, Ordering::Relaxed);
    }

    unsafe fn post_recv(&mut self, _: &[RecvWr]) -> Result<(), PostError> {
        Err(PostError { accepted: 0, cause: PostCause::State })
    }

    fn fail(&mut self) {}
}

#[derive(Default)]
struct Log {
    echo: bool,
    up: Option<PeerId>,
    down: Option<DownReason>,
    got: Vec<Vec<u8>>,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        if self.echo { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }

    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up = Some(peer);
    }

    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down = Some(why);
    }
}

const CONFIG: Config = Config { peers: 1, window: 0, ..Config::DEFAULT };

fn side(nic: &Wire, echo: bool) -> (Worker<Wire, Log>, Intake<Wire>) {
    side_of(nic, echo, &CONFIG)
}

fn side_of(nic: &Wire, echo: bool, config: &Config) -> (Worker<Wire, Log>, Intake<Wire>) {
    let shared = SharedRecv::new(nic, Mapping::plain(config.recv_bytes()).unwrap(), config);
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    let log = Log { echo, ..Log::default() };
    Worker::new(nic, &shared.unwrap(), memory, log, config).unwrap()
}

fn turn(sides: &mut [(Worker<Wire, Log>, Intake<Wire>); 2]) {
    for side in sides {
        side.0.turn();
    }
}

fn device() -> Wire {
    let mut caps = Caps::named("wire0");
    (caps.qp_wr_max, caps.cqe_max, caps.srq_wr_max) = (1 << 16, 1 << 20, 1 << 20);
    (caps.send_sge_max, caps.inline_max, caps.message_max) = (1, 4096, 1 << 20);
    let caps = Arc::new(caps);
    Wire { caps, cq_depth: Arc::default(), is_cut: Arc::default(), gives_one: false }
}

/// Connects two workers by queue pairs of these numbers. Returns how often the device is asked to
/// prefetch for each.
fn join(nic: &Wire, sides: [&Intake<Wire>; 2], nums: [u32; 2]) -> [Arc<AtomicU32>; 2] {
    let grants = sides.map(|side| side.reserve().ok().unwrap());
    let handshakes = grants.each_ref().map(|grant| grant.handshake(&PeerData::default()));
    let fetched = <[Arc<AtomicU32>; 2]>::default();
    for (n, grant) in grants.into_iter().enumerate() {
        let (own, peer) = (sides[n], sides[1 - n]);
        let end = End {
            num: nums[n],
            peer_num: nums[1 - n],
            caps: own.qp_caps(),
            own: own.cq().clone(),
            receives: peer.srq().posted.clone(),
            peer: peer.cq().clone(),
            is_cut: nic.is_cut.clone(),
            fetched: fetched[n].clone(),
        };
        let greeting = own.check_peer(handshakes[1 - n].bytes()).unwrap();
        assert!(own.admit(end, grant, None, Some(greeting)).is_ok());
        assert!(own.up(nums[n], greeting));
    }
    fetched
}

/// Connects the two; returns the first one's peer.
fn connect(nic: &Wire, sides: &mut [(Worker<Wire, Log>, Intake<Wire>); 2]) -> PeerId {
    let [one, two] = &*sides;
    join(nic, [&one.1, &two.1], [1, 2]);
    turn(sides);
    sides[0].0.handler().up.unwrap()
}

#[test]
fn workers_talk_over_a_device_of_ones_own() {
    let nic = device();
    let mut sides = [side(&nic, false), side(&nic, true)];
    let peer = connect(&nic, &mut sides);
    for n in 0..100_u8 {
        sides[0].0.outbox().send(peer, &[n; 40]).unwrap();
        (0..4).for_each(|_| turn(&mut sides));
    }
    let sent: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 40]).collect();
    assert_eq!(sides[1].0.handler().got, sent);
    assert_eq!(sides[0].0.handler().got, sent, "the echoes");
}

/// A worker that only receives posts nothing that could fail. Over a network it writes to its peer
/// now and then, and so notices that it is gone.
#[test]
fn a_receiver_notices_that_its_peer_is_gone() {
    let nic = device();
    let mut sides = [side(&nic, false), side(&nic, false)];
    connect(&nic, &mut sides);
    let [(receiver, _), _] = &mut sides;
    let mut rest = || {
        for _ in 0..10_000 {
            let _ = receiver.arm();
            receiver.turn();
        }
        (receiver.stats().credit_returns, receiver.handler().down)
    };
    let (words, down) = rest();
    assert!((2..=10).contains(&words) && down.is_none(), "{words} words, {down:?}");
    nic.is_cut.store(true, Ordering::Relaxed);
    let (_, down) = rest();
    assert_eq!(down, Some(DownReason::Failed(Status::RetryExceeded)));
}

/// This device writes messages and their completions when they are sent. A worker that is dropped
/// before it has polled gives the receives back.
#[test]
fn receives_of_completions_that_were_not_polled_go_back() {
    let nic = device();
    let mut sides = [side(&nic, false), side(&nic, true)];
    let peer = connect(&nic, &mut sides);
    let receives = sides[1].1.srq().posted.clone();
    let posted = || receives.lock().unwrap().len();
    for _ in 0..5 {
        sides[0].0.outbox().send(peer, &[7; 40]).unwrap();
    }
    sides[0].0.outbox().flush();
    assert_eq!(posted(), CONFIG.recv_blocks as usize - 5);
    let [_, (dropped, _)] = sides;
    drop(dropped);
    assert_eq!(posted(), CONFIG.recv_blocks as usize);
}

/// How often the device was asked to prefetch for each peer of a worker, in that many turns. In
/// each turn it gets one message of its last peer, or nothing. It has room for more peers.
fn fetches(peers: u32, turns: u32, is_busy: bool) -> Vec<u32> {
    let nic = Wire { gives_one: is_busy, ..device() };
    let config = Config { peers: 3 * peers, ..CONFIG };
    let mut sides = [side_of(&nic, false, &config), side_of(&nic, false, &config)];
    let [one, two] = &sides;
    let join = |n| join(&nic, [&one.1, &two.1], [n + 1, peers + n + 1]);
    let fetched: Vec<_> = (0..peers).map(join).collect();
    turn(&mut sides);
    let [(worker, _), (sender, _)] = &mut sides;
    let peer = sender.handler().up.unwrap();
    let counts = || fetched.iter().map(|[count, _]| count.load(Ordering::Relaxed));
    let before: Vec<_> = counts().collect();
    for _ in 0..turns {
        if is_busy {
            sender.outbox().send(peer, &[7; 40]).unwrap();
            sender.turn();
        }
        assert_eq!(worker.turn(), usize::from(is_busy));
    }
    counts().zip(before).map(|(count, before)| count - before).collect()
}

/// A worker without messages lets the device prefetch for one peer after the other, past the free
/// slots. It does so for a single peer too, and not for more peers than a near cache holds.
#[test]
fn an_idle_worker_prefetches_for_each_peer_in_turn() {
    for peers in [1, 2, 5] {
        let counts = fetches(peers, 64 * 300, false);
        let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
        assert!(least >= 30 && most - least <= 1, "{peers}: {counts:?}");
    }
    assert!(fetches(257, 64 * 300, false).iter().all(|count| *count == 0));
}

/// A worker that gets one message a turn does so as well, for the peers that rest meanwhile. A
/// single peer does not rest.
#[test]
fn a_busy_worker_prefetches_for_each_peer_in_turn() {
    for peers in [2, 5] {
        let counts = fetches(peers, 16 * 300, true);
        let (least, most) = (*counts.iter().min().unwrap(), *counts.iter().max().unwrap());
        assert!(least >= 30 && most - least <= 1, "{peers}: {counts:?}");
    }
    for peers in [1, 257] {
        assert!(fetches(peers, 16 * 300, true).iter().all(|count| *count == 0), "{peers}");
    }
}

/// Every receive of the shared queue may complete at one worker, also if that worker's own
/// configuration has fewer.
#[test]
fn the_completion_queue_has_room_for_all_shared_receives() {
    let nic = device();
    let large = Config { recv_blocks: 50_000, ..CONFIG };
    let memory = Mapping::plain(large.recv_bytes()).unwrap();
    let shared = SharedRecv::new(&nic, memory, &large).unwrap();
    for config in [CONFIG, large] {
        let memory = Mapping::plain(config.send_bytes()).unwrap();
        let worker = Worker::new(&nic, &shared, memory, Log::default(), &config).unwrap();
        let depth = nic.cq_depth.load(Ordering::Relaxed);
        assert_eq!(depth, 50_000 + config.send_queue + 1 + config.peers);
        drop(worker);
    }
}
