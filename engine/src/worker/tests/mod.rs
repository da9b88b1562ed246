//! The worker over the soft device, in one thread: the test is the scheduler.

mod breaches;
mod credits;
mod datagrams;
mod doorbells;
mod drops;
mod ends;
mod finish;
mod half;
#[cfg(not(any(loom, miri)))]
mod hostile;
mod kept;
mod large;
mod lists;
mod own;
mod panics;
mod peers;
mod qp_domain;
mod replies;
mod requests;
mod rpc;
mod shared_state;

use std::sync::Arc;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

use doorbell_alloc::Mapping;

use super::*;
use crate::error::Code;
use crate::provider::{Provider, Qp};
use crate::wc::Status;
use crate::worker::accounts::SendStatus;
use crate::worker::core::Core;
use crate::wr::{SendFlags, SendOp, SendWr, Sge};
use doorbell_soft::{Host, LINK_BYTES, LinkShared, Soft, SoftQp, SoftQpEx, SoftQpInit, Wiring};

fn clock() -> u64 {
    0
}

const CONFIG: Config = Config {
    peers: 4,
    send_queue: 16,
    block_bytes: 512,
    recv_blocks: 64,
    send_blocks: 16,
    inline_bytes: 64,
    signal_every: 8,
    refill: 8,
    window: 0,
    window_min: 2,
    overcommit: 1,
    sends: 1024,
    hold_turns: 0,
    work: 4,
    keeps: 4,
    requests: 4,
    timers: 4,
    drain_turns: 1000,
    datagrams: 0,
    datagram_bytes: 256,
    destinations: 0,
    thread_domain: true,
    retry: Retry::DEFAULT,
};

/// One slot: each peer comes into that of the one before it.
const LONE: Config = Config { peers: 1, ..CONFIG };

/// Records everything, and echoes if told to.
#[derive(Default)]
struct Log {
    echo: bool,
    up: Vec<PeerId>,
    down: Vec<(PeerId, DownReason)>,
    got: Vec<(PeerId, Vec<u8>, Option<u32>)>,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        self.got.push((message.peer(), message.bytes().to_vec(), message.imm()));
        if self.echo { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }
    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        self.down.push((peer, why));
    }
}

struct Side<H: Handler<Soft> = Log> {
    nic: Soft,
    worker: Worker<Soft, H>,
    intake: Intake<Soft>,
}

fn worker(nic: &Soft, shared: &SharedRecv<Soft>, config: &Config, echo: bool) -> Side {
    handled(nic, shared, config, Log { echo, ..Log::default() })
}

fn handled<H: Handler<Soft>>(
    nic: &Soft,
    shared: &SharedRecv<Soft>,
    config: &Config,
    handler: H,
) -> Side<H> {
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    let (worker, intake) = Worker::new(nic, shared, memory, handler, config).unwrap();
    Side { nic: nic.clone(), worker, intake }
}

/// A worker on a device of its own, with a handler of its own.
fn side_of<H: Handler<Soft>>(config: &Config, handler: H) -> Side<H> {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let shared = shared(&nic, config);
    handled(&nic, &shared, config, handler)
}

fn side(config: &Config, echo: bool) -> Side {
    side_of(config, Log { echo, ..Log::default() })
}

fn shared(nic: &Soft, config: &Config) -> SharedRecv<Soft> {
    SharedRecv::new(nic, Mapping::plain(config.recv_bytes()).unwrap(), config).unwrap()
}

impl<H: Handler<Soft>> Side<H> {
    #[expect(unsafe_code, reason = "a thread domain is a promise")]
    fn qp(&self) -> SoftQp {
        let init = SoftQpInit {
            kind: crate::provider::QpType::Rc,
            send_cq: self.intake.cq(),
            recv_cq: self.intake.cq(),
            srq: Some(self.intake.srq()),
            caps: self.intake.qp_caps(),
            signal_all: false,
            ex: SoftQpEx::default(),
        };
        // SAFETY: the tests hand it to this worker, and run in one thread.
        unsafe { self.intake.nic() }.create_qp(&init).unwrap()
    }
}

impl Side {
    /// Posts to a peer's queue pair past the worker, until it takes no more.
    #[expect(unsafe_code, reason = "posts")]
    fn fill_queue_pair(&mut self, peer: PeerId) {
        // Requests of no peer that the worker knows.
        let wr_id = wr_id::send(peer.slot, peer.generation.wrapping_add(1), 0);
        let (op, flags, sge) = (SendOp::Send, SendFlags::SIGNALED, Sge::default());
        let wr = SendWr { wr_id, op, flags, sge, more: &[] };
        let qp = self.worker.core.sender.peers.at(peer.slot).unwrap().qp.as_mut().unwrap();
        // SAFETY: the requests have no payload; the tests run in one thread.
        while unsafe { qp.post(&[wr]) }.is_ok() {}
    }

    fn only_peer(&mut self) -> PeerId {
        *self.worker.handler().up.last().unwrap()
    }
}

/// Queue pairs in two mailboxes, and the second one's data for the first.
struct Nums {
    one: u32,
    two: u32,
    greeting: Greeting,
}

/// Joins two queue pairs and puts them in the mailboxes, without a notice that they are up.
fn admit<A: Handler<Soft>, B: Handler<Soft>>(one: &mut Side<A>, two: &mut Side<B>) -> Nums {
    admit_over(Mapping::plain(LINK_BYTES).unwrap(), one, two).0
}

/// The same over that memory; returns the link and both sides' data.
fn admit_over<A: Handler<Soft>, B: Handler<Soft>>(
    memory: Mapping,
    one: &mut Side<A>,
    two: &mut Side<B>,
) -> (Nums, Arc<LinkShared>, [Greeting; 2]) {
    let seats = (one.intake.reserve().unwrap(), two.intake.reserve().unwrap());
    let (mut a, mut b) = (one.qp(), two.qp());
    let (maker, taker) = LinkShared::pair(memory).unwrap();
    let (maker, taker) = (Arc::new(maker), Arc::new(taker));
    a.attach(&maker);
    b.attach(&taker);
    // With credits every message has a receive: not one retry is needed.
    let counted = seats.0.window() > 0 && seats.1.window() > 0;
    let rnr_retry = if counted { 0 } else { 7 };
    let wiring = |peer| Wiring {
        peer,
        peer_rnr_retry: rnr_retry,
        rnr_timer_ns: 0,
        initiator_depth: 4,
        responder_depth: 4,
    };
    let nums = (a.num(), b.num());
    a.connect(&maker, wiring(nums.1));
    b.connect(&taker, wiring(nums.0));
    // The side that takes the request has the other's handshake at once; the side that sent it
    // waits for one.
    let data = PeerData::default();
    let greetings = [seats.0.handshake(&data), seats.1.handshake(&data)]
        .map(|data| Greeting::parse(data.bytes()).unwrap());
    assert!(one.intake.admit(a, seats.0, None, None).is_ok());
    assert!(two.intake.admit(b, seats.1, None, Some(greetings[0])).is_ok());
    (Nums { one: nums.0, two: nums.1, greeting: greetings[1] }, maker, greetings)
}

/// Connects two workers as the control plane does; returns the numbers of the queue pairs.
fn connect<A: Handler<Soft>, B: Handler<Soft>>(one: &mut Side<A>, two: &mut Side<B>) -> (u32, u32) {
    let nums = admit(one, two);
    assert!(one.intake.up(nums.one, nums.greeting) && two.intake.up(nums.two, Greeting::default()));
    one.worker.turn();
    two.worker.turn();
    (nums.one, nums.two)
}

fn settle(sides: &mut [&mut Side]) {
    for _ in 0..400 {
        for side in &mut *sides {
            side.worker.turn();
        }
    }
}

fn payload(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (n * 7 + i) as u8).collect()
}

#[test]
fn messages_and_replies_of_every_length_cross() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let lengths = [0, 1, 8, 40, 63, 64, 65, 200, 511, 512];
    for (n, length) in lengths.into_iter().enumerate() {
        one.worker.outbox().send(peer, &payload(n, length)).unwrap();
        settle(&mut [&mut one, &mut two]);
        let got = &one.worker.handler().got;
        assert_eq!(got.len(), n + 1, "length {length}");
        assert_eq!(got[n].1, payload(n, length));
    }
    one.worker.outbox().send_imm(peer, b"x", 77).unwrap();
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().got.last().unwrap().2, Some(77));
    let long = one.worker.outbox().send(peer, &[0; 513]);
    assert_eq!(long, Err(SendError::TooLong));
}

/// Exactly `count` messages came, each once and in order.
fn assert_in_order(log: &Log, count: usize, length: usize) {
    assert_eq!(log.got.len(), count);
    for (n, (_, bytes, _)) in log.got.iter().enumerate() {
        assert_eq!(*bytes, payload(n, length), "message {n}");
    }
}

/// Every block is accounted for after everything has drained.
fn assert_blocks_home(side: &Side, config: &Config) {
    let send = side.worker.send_blocks_home();
    assert_eq!(send, config.send_blocks as usize, "send blocks");
}

/// One doorbell for a batch, and each batch is twice as large as the one before: 128 messages ring
/// after 8, 24, 56 and 120, and at the end of the turn.
#[test]
fn a_batch_rings_once() {
    let config = Config { send_queue: 256, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let before = one.worker.stats().doorbells;
    for n in 0..128 {
        one.worker.outbox().send(peer, &payload(n, 16)).unwrap();
    }
    one.worker.turn();
    assert_eq!(one.worker.stats().doorbells - before, 5);
    settle(&mut [&mut one, &mut two]);
    assert_in_order(two.worker.handler(), 128, 16);
}

/// A message with a doorbell of its own goes out at once, but not past those that wait; many of
/// them strand nothing.
#[test]
fn a_message_sent_now_rings_at_once_and_keeps_its_place() {
    for length in [16, 300] {
        let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        one.worker.outbox().send(peer, &payload(0, length)).unwrap();
        one.worker.outbox().send_now(peer, &payload(1, length)).unwrap();
        one.worker.turn();
        let before = one.worker.stats().doorbells;
        one.worker.outbox().send_now(peer, &payload(2, length)).unwrap();
        one.worker.turn();
        assert_eq!(one.worker.stats().doorbells - before, 1);
        let mut sent = 3;
        for _ in 0..200 {
            settle(&mut [&mut one, &mut two]);
            while one.worker.outbox().send_now(peer, &payload(sent, length)).is_ok() {
                sent += 1;
            }
        }
        settle(&mut [&mut one, &mut two]);
        assert!(sent > 1000);
        assert_in_order(two.worker.handler(), sent, length);
        assert_blocks_home(&one, &CONFIG);
    }
}

/// One in `signal_every` asks for a completion, no more.
#[test]
fn one_send_in_signal_every_asks_for_a_completion() {
    for now in [true, false] {
        let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
        connect(&mut one, &mut two);
        let (peer, before) = (one.only_peer(), one.worker.stats().completions);
        for n in 0..20 * CONFIG.signal_every as usize {
            let mut out = one.worker.outbox();
            let bytes = payload(n, 16);
            if now { out.send_now(peer, &bytes) } else { out.send(peer, &bytes) }.unwrap();
            settle(&mut [&mut one, &mut two]);
        }
        assert_eq!(one.worker.stats().completions - before, 20, "{now}");
    }
}

/// A message in a block, followed by an inline message in the same batch: the block comes home.
#[test]
fn a_block_before_an_inline_message_comes_home() {
    let config = Config { send_queue: 256, signal_every: 128, send_blocks: 4, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    for round in 0..40 {
        let sent = one.worker.outbox().send(peer, &payload(round, 300));
        assert_eq!(sent, Ok(()), "round {round}");
        one.worker.outbox().send(peer, &payload(round, 8)).unwrap();
        settle(&mut [&mut one, &mut two]);
    }
}

/// A full send queue is back-pressure. Selective signalling frees it again, whatever the pattern:
/// no number of messages can strand it.
#[test]
fn a_full_send_queue_is_back_pressure_and_never_strands() {
    for length in [16, 300] {
        let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        let mut sent = 0;
        while one.worker.outbox().send(peer, &payload(sent, length)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 16);
        assert_eq!(one.worker.outbox().room(peer), 0);
        assert_eq!(one.worker.outbox().send(peer, &[]), Err(SendError::Full));
        for burst in 1..200 {
            settle(&mut [&mut one, &mut two]);
            for _ in 0..burst % 23 {
                if one.worker.outbox().send(peer, &payload(sent, length)).is_ok() {
                    sent += 1;
                }
            }
        }
        assert!(sent > 16 + 1000, "{sent}");
        settle(&mut [&mut one, &mut two]);
        assert_in_order(two.worker.handler(), sent, length);
        assert_blocks_home(&one, &CONFIG);
    }
}

/// Two workers share one receive queue and its memory; both serve, and blocks circulate.
#[test]
fn two_workers_share_a_receive_queue() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let memory = shared(&nic, &CONFIG);
    let mut servers = [worker(&nic, &memory, &CONFIG, true), worker(&nic, &memory, &CONFIG, true)];
    let mut clients = [side(&CONFIG, false), side(&CONFIG, false)];
    for (client, server) in clients.iter_mut().zip(&mut servers) {
        connect(client, server);
    }
    for round in 0..300 {
        for client in &mut clients {
            let peer = client.only_peer();
            for n in 0..5 {
                client.worker.outbox().send(peer, &payload(round * 5 + n, 40)).unwrap();
            }
        }
        let [a, b] = &mut servers;
        let [c, d] = &mut clients;
        for _ in 0..20 {
            for side in [&mut *a, b, c, d] {
                side.worker.turn();
            }
        }
    }
    for client in &mut clients {
        assert_eq!(client.worker.handler().got.len(), 1500);
    }
    for server in &mut servers {
        assert_eq!(server.worker.stats().received, 1500);
    }
}

/// Many peers with unsent messages at once: more than there are batches.
#[test]
fn more_dirty_peers_than_batches() {
    let config = Config { peers: 100, recv_blocks: 256, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, true));
    for _ in 0..100 {
        connect(&mut one, &mut two);
    }
    let peers = one.worker.handler().up.clone();
    for (n, peer) in peers.iter().enumerate() {
        one.worker.outbox().send(*peer, &payload(n, 20)).unwrap();
    }
    settle(&mut [&mut one, &mut two]);
    let got = &one.worker.handler().got;
    assert_eq!(got.len(), 100);
    for (n, peer) in peers.iter().enumerate() {
        assert!(got.iter().any(|(from, bytes, _)| from == peer && *bytes == payload(n, 20)));
    }
}

#[test]
fn set_up_errors_name_the_wrong_number() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let short = Mapping::plain(4096).unwrap();
    let error = SharedRecv::new(&nic, short, &Config::DEFAULT).err().unwrap();
    let text = std::string::ToString::to_string(&error);
    assert!(
        text.contains("4096") && text.contains(&std::format!("{}", Config::DEFAULT.recv_bytes())),
        "{text}"
    );
    let bad = Config { send_queue: 3, ..CONFIG };
    let memory = Mapping::plain(1 << 20).unwrap();
    assert!(SharedRecv::new(&nic, memory, &bad).is_err());
    let odd = Config { block_bytes: 256, ..CONFIG };
    let memory = Mapping::plain(1 << 20).unwrap();
    let result = Worker::new(&nic, &shared(&nic, &CONFIG), memory, Log::default(), &odd);
    assert!(result.is_err());
}

/// The error of a device with shorter send queues names the longest that it takes.
#[test]
fn a_send_queue_beyond_the_device_is_told_the_longest() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let most = |qp_wr_max| {
        let mut caps = nic.caps().clone();
        caps.qp_wr_max = qp_wr_max;
        let config = Config { send_queue: 1 << 16, ..CONFIG };
        let error = setup::check_caps(&caps, &config).unwrap_err();
        let text = std::string::ToString::to_string(&error);
        let most = text.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
        assert!(text.contains("lower Config::send_queue to"), "{text}");
        let fits = setup::check_caps(&caps, &Config { send_queue: most, ..CONFIG });
        assert!(fits.is_ok() || most == 0);
        most
    };
    assert_eq!([0, 2, 3, 6, 1023, 1024, 1026].map(most), [0, 0, 1, 4, 512, 512, 1024]);
}
