//! Peers with connections. The traps are numbered: each is a mistake that other systems have made.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{Fabric, QpFields, run_sleeping};
use doorbell_engine::large::{Large, Received};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Message, Outbox, PeerId, Piece, RegionId, Retry, SendError, Token,
    Verdict,
};
use doorbell_seam::provider::{Access, Provider};
use doorbell_seam::wc::Status;

use crate::bed::{CONFIG, Pair, cases};

cases! {
    trap_1_a_single_send_rings_at_once_and_a_burst_does_not
    trap_2_idle_peers_hold_no_sends_that_others_need
    trap_3_two_sides_that_reply_to_each_other_never_stop
    trap_3_a_flood_stops_at_its_window_and_starves_nobody
    trap_3_many_idle_peers_share_few_receives
    trap_4_a_slow_receiver_costs_no_retry_of_a_second
    trap_4_timers_and_tries_are_those_of_the_configuration
    trap_5_a_full_send_queue_is_back_pressure
    trap_7_blocks_come_home_when_a_peer_goes
    trap_8_a_submission_wakes_a_resting_worker
    a_worker_sleeps_until_something_comes
    trap_9_the_first_message_brings_its_peer_up
    a_long_message_arrives_whole
    accepted_messages_arrive_before_the_end
}

/// Records what arrives and checks its order; replies or keeps it if told to.
#[derive(Default)]
struct Log {
    reply: bool,
    keep: bool,
    up: Vec<PeerId>,
    down: Vec<DownReason>,
    got: Vec<(PeerId, u32)>,
    tokens: Vec<Token>,
    work: Vec<u64>,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let number = message.bytes().first_chunk().map_or(u32::MAX, |n| u32::from_le_bytes(*n));
        self.got.push((message.peer(), number));
        if self.keep
            && let Some(token) = out.keep(&message)
        {
            self.tokens.push(token);
            return Verdict::Keep(token);
        }
        if self.reply { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
    }
    fn on_work(&mut self, key: u64, _: &mut Outbox<'_, P>) {
        self.work.push(key);
    }
}

type Logs<F> = Pair<F, Log, Log>;

fn replies() -> Log {
    Log { reply: true, ..Log::default() }
}

/// Sends the numbers `from .. to` in messages of this many bytes, as fast as they are accepted.
fn stream<F: Fabric>(pair: &mut Logs<F>, peer: PeerId, numbers: std::ops::Range<u32>, len: usize) {
    for number in numbers {
        let mut bytes = vec![0; len];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        pair.until("it is taken", |pair| pair.one.worker.outbox().send(peer, &bytes).is_ok());
    }
}

fn numbers(log: &Log) -> Vec<u32> {
    log.got.iter().map(|(_, number)| *number).collect()
}

fn trap_1_a_single_send_rings_at_once_and_a_burst_does_not<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &CONFIG, (Log::default(), Log::default()), 1);
    let peer = pair.one.worker.handler().up[0];
    pair.one.worker.outbox().send(peer, &7u32.to_le_bytes()).expect("sent");
    let before = pair.one.worker.stats().doorbells;
    pair.one.worker.turn();
    let after = pair.one.worker.stats();
    assert_eq!(after.doorbells, before + 1, "with the end of the turn");
    for number in 0..6u32 {
        pair.one.worker.outbox().send(peer, &number.to_le_bytes()).expect("sent");
    }
    pair.one.worker.turn();
    assert_eq!(pair.one.worker.stats().doorbells, after.doorbells + 1, "one for all of them");
    pair.until("all has come", |pair| pair.two.worker.handler().got.len() == 7);
}

fn trap_2_idle_peers_hold_no_sends_that_others_need<F: Fabric>(nic: &F) {
    let queue = Config { send_queue: 128, signal_every: 64, ..CONFIG };
    let config = Config { peers: 6, sends: 256, window: 0, recv_blocks: 512, ..queue };
    let mut pair = Logs::new(nic, &config, (Log::default(), Log::default()), 6);
    let peers = pair.one.worker.handler().up.clone();
    // Five peers leave as many sends without a completion as they may, and become idle. Together
    // they exceed what the worker may have in flight.
    for peer in &peers[..5] {
        stream(&mut pair, *peer, 0..63, 8);
    }
    stream(&mut pair, peers[5], 0..200, 8);
    pair.until("all has come", |pair| pair.two.worker.handler().got.len() == 515);
}

fn trap_3_two_sides_that_reply_to_each_other_never_stop<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &CONFIG, (replies(), replies()), 1);
    // The side that was dialed knows its peer before it is told that the peer is up.
    pair.until("both are told", |pair| {
        pair.tend();
        !pair.two.worker.handler().up.is_empty()
    });
    let (here, there) = (pair.one.worker.handler().up[0], pair.two.worker.handler().up[0]);
    // Each side fills the other's window with messages that bounce between them without end.
    for number in 0..64u32 {
        let _ = pair.one.worker.outbox().send(here, &number.to_le_bytes());
        let _ = pair.two.worker.outbox().send(there, &number.to_le_bytes());
        pair.turn();
    }
    pair.until("they go on", |pair| {
        pair.one.worker.handler().got.len().min(pair.two.worker.handler().got.len()) > 400
    });
    assert!(pair.one.worker.stats().credit_stalls > 0, "there was credit for all");
    assert_eq!(pair.one.worker.stats().errors, 0);
}

fn trap_3_a_flood_stops_at_its_window_and_starves_nobody<F: Fabric>(nic: &F) {
    let config = Config { keeps: 64, ..CONFIG };
    let slow = Log { keep: true, ..Log::default() };
    let mut pair = Logs::new(nic, &config, (Log::default(), slow), 2);
    let (flood, calm) = (pair.one.worker.handler().up[0], pair.one.worker.handler().up[1]);
    let mut last = Ok(());
    for _ in 0..50 {
        last = pair.one.worker.outbox().send(flood, &[0; 40]);
        pair.turn();
    }
    assert_eq!(last, Err(SendError::NoCredit));
    // The window, without the credit for a reply.
    pair.until("the window has come", |pair| pair.two.worker.handler().tokens.len() == 7);
    pair.two.worker.handler_mut().keep = false;
    stream(&mut pair, calm, 0..50, 40);
    pair.until("the other is served", |pair| pair.two.worker.handler().got.len() == 57);
    let tokens = std::mem::take(&mut pair.two.worker.handler_mut().tokens);
    for token in tokens {
        assert!(pair.two.worker.outbox().give_back(token));
    }
    pair.until("it goes on", |pair| pair.one.worker.outbox().send(flood, &[0; 40]).is_ok());
}

/// There are more peers than receives, and each peer has a window. A peer that floods uses only its
/// own window; eight that talk are served; and when all talk at once, all are served.
fn trap_3_many_idle_peers_share_few_receives<F: Fabric>(nic: &F) {
    const PEERS: usize = 40;
    let few = Config { peers: PEERS as u32, recv_blocks: 32, refill: 4, keeps: 64, ..CONFIG };
    let config = Config { overcommit: 16, ..few };
    let slow = Log { keep: true, ..Log::default() };
    let mut pair = Logs::new(nic, &config, (Log::default(), slow), PEERS);
    let peers = pair.one.worker.handler().up.clone();
    // Without the credit for a reply.
    let window = pair.one.worker.outbox().room(peers[0]) as usize;
    assert!((3..8).contains(&window), "{window}");
    while pair.one.worker.outbox().send(peers[0], &[0; 40]) != Err(SendError::NoCredit) {
        pair.turn();
    }
    pair.until("the flood has come", |pair| pair.two.worker.handler().tokens.len() == window);
    pair.two.worker.handler_mut().keep = false;
    for number in 0..20u32 {
        for peer in &peers[1..9] {
            stream(&mut pair, *peer, number..number + 1, 40);
        }
    }
    let mut all = window + 160;
    pair.until("eight are served", |pair| pair.two.worker.handler().got.len() == all);
    // Each sends its whole window, without a turn in between.
    for peer in &peers[9..] {
        let before = all;
        while pair.one.worker.outbox().send(*peer, &[0; 8]).is_ok() {
            all += 1;
        }
        assert!(all >= before + 3);
    }
    assert!(all > window + 160 + 64, "there are receives for all");
    pair.until("all are served", |pair| pair.two.worker.handler().got.len() == all);
    assert!(pair.one.worker.handler().down.is_empty());
}

fn trap_4_a_slow_receiver_costs_no_retry_of_a_second<F: Fabric>(nic: &F) {
    // Without credits, the device's own retries hold up the sender.
    let config = Config { window: 0, recv_blocks: 4, refill: 1, ..CONFIG };
    let mut pair = Logs::new(nic, &config, (Log::default(), Log::default()), 1);
    let peer = pair.one.worker.handler().up[0];
    let (mut sent, mut rounds) = (0, 0);
    pair.until("all has come", |pair| {
        // A round is a millisecond and a few turns, and on a busy machine it is longer: so the
        // rounds count, and not the time.
        rounds += 1;
        // It must learn that the connection is up, because that sets the timer.
        pair.tend();
        // Twice as many messages as receives before the receiver looks again, so that half of them
        // find none.
        for _ in 0..2 * config.recv_blocks {
            let number = u32::to_le_bytes(sent);
            sent += u32::from(sent < 100 && pair.one.worker.outbox().send(peer, &number).is_ok());
            pair.one.worker.turn();
        }
        thread::sleep(Duration::from_millis(1));
        pair.two.worker.handler().got.len() == 100
    });
    assert_eq!(numbers(pair.two.worker.handler()), (0..100).collect::<Vec<_>>());
    // The connection manager's own timer is 655 ms: every few messages would wait that long, on a
    // device that waits for it (soft takes a message as soon as there is a receive). That would be,
    // by estimate, 15 000 rounds.
    assert!(rounds < 9000, "{rounds} rounds");
}

/// QP-20, QP-21, CM-16: by default the connection manager sets 655 ms and 2.1 s.
fn trap_4_timers_and_tries_are_those_of_the_configuration<F: Fabric>(nic: &F) {
    let other = Retry { rnr_timer: 9, rnr_retry: 5, ack_timeout: 15, retry_count: 3 };
    for retry in [Retry::DEFAULT, other] {
        let config = Config { retry, ..CONFIG };
        let mut pair = Logs::new(nic, &config, (Log::default(), Log::default()), 2);
        let set = |qp: &QpFields| {
            // On soft nothing is lost on the way, and the receiver counts the tries.
            let counts = nic.caps().device != "soft0";
            let tries = (qp.rnr_retry, qp.retry_cnt);
            (qp.min_rnr_timer, qp.timeout) == (Some(retry.rnr_timer), Some(retry.ack_timeout))
                && (!counts || tries == (Some(retry.rnr_retry), Some(retry.retry_count)))
        };
        // The side that was dialed sets the timer when it hears that the connection is up.
        pair.until("all are set", |pair| {
            pair.tend();
            pair.query_qps().iter().all(|side| side.len() == 2 && side.iter().all(set))
        });
    }
}

fn trap_5_a_full_send_queue_is_back_pressure<F: Fabric>(nic: &F) {
    let config = Config { window: 0, ..CONFIG };
    let mut pair = Logs::new(nic, &config, (Log::default(), Log::default()), 1);
    let peer = pair.one.worker.handler().up[0];
    let mut full = 0;
    for number in 0..500u32 {
        loop {
            match pair.one.worker.outbox().send(peer, &number.to_le_bytes()) {
                Ok(()) => break,
                Err(SendError::Full) => full += 1,
                Err(other) => panic!("{other}"),
            }
            pair.turn();
        }
    }
    pair.until("all has come", |pair| pair.two.worker.handler().got.len() == 500);
    assert!(full > 0 && pair.one.worker.handler().down.is_empty());
    assert_eq!(numbers(pair.two.worker.handler()), (0..500).collect::<Vec<_>>());
}

fn trap_7_blocks_come_home_when_a_peer_goes<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &CONFIG, (Log::default(), replies()), 1);
    let peer = pair.one.worker.handler().up[0];
    // Messages in flight on both sides, in blocks of both.
    for _ in 0..6 {
        let _ = pair.one.worker.outbox().send(peer, &[1; 300]);
    }
    pair.turn();
    pair.one.worker.outbox().close(peer);
    pair.until("both hear of the end", |pair| {
        pair.tend();
        pair.one.worker.handler().down.len() + pair.two.worker.handler().down.len() == 2
    });
    assert_eq!(pair.one.worker.handler().down, [DownReason::Closed]);
    for worker in [&mut pair.one.worker, &mut pair.two.worker] {
        assert_eq!((worker.send_blocks_home(), worker.in_flight()), (16, 0));
        assert_eq!((worker.peers(), worker.kept()), (0, 0));
    }
}

fn trap_8_a_submission_wakes_a_resting_worker<F: Fabric>(nic: &F) {
    /// Far more than the other thread takes from one submission to the next. Only a lost wake-up
    /// takes this long.
    const REST: Duration = Duration::from_secs(240);
    let mut pair = Logs::new(nic, &CONFIG, (Log::default(), Log::default()), 0);
    let handle = pair.one.worker.handle();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let worker = &mut pair.one.worker;
    thread::scope(|scope| {
        let resting = scope.spawn(|| {
            let me = thread::current();
            worker.set_waker(Box::new(move || me.unpark()));
            let mut late = 0;
            let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
            while !stopped() && late == 0 {
                worker.turn();
                if let Ok(_armed) = worker.arm()
                    && !stopped()
                {
                    let since = Instant::now();
                    thread::park_timeout(REST);
                    late += u32::from(since.elapsed() >= REST);
                }
            }
            late
        });
        for key in 0..200 {
            while !handle.submit(key) && !resting.is_finished() {
                thread::yield_now();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        // It may have seen the flag already, and left the mailbox full.
        while !resting.is_finished() && !handle.submit(200) {
            thread::yield_now();
        }
        assert_eq!(resting.join().expect("it ends"), 0, "a wake-up was lost");
    });
    for _ in 0..200 {
        worker.turn();
    }
    let work = &worker.handler().work;
    assert!(work.len() >= 200 && work.is_sorted());
}

/// CP-6: a message wakes a sleeping worker, even if it arrives while the worker is about to sleep.
/// Without messages the worker does not turn. Work and the stop flag wake it too.
fn a_worker_sleeps_until_something_comes<F: Fabric>(nic: &F) {
    /// Far more than an answer takes; a lost wake-up takes twice as long.
    const LATE: Duration = Duration::from_secs(120);
    let mut pair = Logs::new(nic, &CONFIG, (Log::default(), replies()), 1);
    let peer = pair.one.worker.handler().up[0];
    let handle = pair.two.worker.handle();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let Pair { one, two, .. } = &mut pair;
    let mut late = 0;
    let (turns, sent) = thread::scope(|scope| {
        let sleeping = scope.spawn(|| run_sleeping(&mut two.worker, &stop, 2, 2 * LATE));
        for number in 0..2000u32 {
            // Sometimes long enough for the worker to fall asleep, otherwise at any time before.
            match number % 100 {
                0 => thread::sleep(Duration::from_millis(2)),
                n => (0..n * 20).for_each(|_| std::hint::spin_loop()),
            }
            let since = Instant::now();
            while one.worker.outbox().send(peer, &number.to_le_bytes()).is_err()
                && since.elapsed() < LATE
            {
                one.worker.turn();
            }
            while one.worker.handler().got.len() <= number as usize && since.elapsed() < LATE {
                one.worker.turn();
            }
            late += u32::from(since.elapsed() >= LATE);
            if late > 0 {
                break;
            }
        }
        // More messages than it has credit to answer, from a side that does not turn. Credit wakes
        // nobody.
        let mut sent = 2000;
        let since = Instant::now();
        while late == 0 && since.elapsed() < Duration::from_millis(50) {
            sent += u32::from(one.worker.outbox().send(peer, &u32::to_le_bytes(sent)).is_ok());
            one.worker.outbox().flush();
        }
        while late == 0 && one.worker.handler().got.len() < sent as usize && since.elapsed() < LATE
        {
            one.worker.turn();
        }
        late += u32::from(since.elapsed() >= LATE);
        thread::sleep(Duration::from_millis(50));
        let before = handle.stats().turns;
        thread::sleep(Duration::from_millis(100));
        let turns = handle.stats().turns - before;
        let since = Instant::now();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(handle.submit(0));
        sleeping.join().expect("it ends");
        late += u32::from(since.elapsed() >= LATE);
        (turns, sent)
    });
    assert_eq!(late, 0, "a wake-up was lost");
    assert!(turns < 100, "it turned {turns} times while nothing came");
    assert_eq!(numbers(one.worker.handler()), (0..sent).collect::<Vec<_>>());
}

fn trap_9_the_first_message_brings_its_peer_up<F: Fabric>(nic: &F) {
    for _ in 0..10 {
        let mut pair = Logs::half(nic, &CONFIG, (Log::default(), Log::default()));
        pair.one.worker.turn();
        let peer = pair.one.worker.handler().up[0];
        stream(&mut pair, peer, 0..1, 4);
        pair.until("it has come", |pair| pair.two.worker.handler().got.len() == 1);
        let two = pair.two.worker.handler();
        assert_eq!(two.up, [two.got[0].0], "it is up before its message");
        pair.tend();
        pair.turn();
        assert_eq!(pair.two.worker.handler().up.len(), 1, "once");
    }
}

/// Offers and accepts long messages.
struct Hands {
    large: Large,
    region: Option<RegionId>,
    up: Vec<PeerId>,
    done: Vec<(u64, bool)>,
    came: Vec<(u32, Result<(), Status>)>,
}

impl Hands {
    fn new() -> Hands {
        let large = Large::new(4, 100);
        Hands { large, region: None, up: Vec::new(), done: Vec::new(), came: Vec::new() }
    }
}

impl<P: Provider> Handler<P> for Hands {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.large.received(&message) {
            Received::Offered(offer) => {
                let region = self.region.expect("memory");
                let to = Piece { region, offset: 0, length: offer.length() };
                self.large.take(out, offer, to, offer.tag()).expect("it can be taken");
            }
            Received::Done { key, taken } => self.done.push((key, taken)),
            Received::Foreign => {}
        }
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        let arrived = self.large.read(out, token, result);
        self.came.extend(arrived.map(|arrived| (arrived.offer.length(), arrived.result)));
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        while let Some(arrived) = self.large.progress(out) {
            self.came.push((arrived.offer.length(), arrived.result));
        }
    }
}

/// By rendezvous, with more than one READ.
fn a_long_message_arrives_whole<F: Fabric>(nic: &F) {
    const BYTES: usize = (1 << 20) + 12_345;
    let mut pair = Pair::new(nic, &CONFIG, (Hands::new(), Hands::new()), 1);
    let region = || {
        let memory = Mapping::plain(BYTES).expect("memory");
        nic.register(memory, Access::LOCAL_WRITE | Access::REMOTE_READ).expect("registered")
    };
    let (here, there) = (pair.one.worker.adopt(region()), pair.two.worker.adopt(region()));
    pair.two.worker.handler_mut().region = Some(there);
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 31 + n / 4096 + (n >> 20) * 7) as u8).collect();
    pair.one.worker.outbox().copy_in(here, 0, &bytes).expect("it fits");
    let peer = pair.one.worker.handler().up[0];
    let mut large = std::mem::replace(&mut pair.one.worker.handler_mut().large, Large::new(0, 0));
    let piece = Piece { region: here, offset: 0, length: BYTES as u32 };
    large.offer(&mut pair.one.worker.outbox(), peer, piece, 5, 6).expect("offered");
    pair.one.worker.handler_mut().large = large;
    pair.until("both sides are told", |pair| {
        let told = pair.one.worker.handler().done.len();
        told + pair.two.worker.handler().came.len() == 2
    });
    assert_eq!(pair.one.worker.handler().done, [(5, true)]);
    assert_eq!(pair.two.worker.handler().came, [(BYTES as u32, Ok(()))]);
    let mut read = vec![0; BYTES];
    pair.two.worker.outbox().copy_out(there, 0, &mut read).expect("it is there");
    assert!(read == bytes, "bytes are missing or wrong");
}

fn accepted_messages_arrive_before_the_end<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &CONFIG, (Log::default(), Log::default()), 1);
    let peer = pair.one.worker.handler().up[0];
    let mut sent = 0u32;
    let mut bytes = [0; 300];
    loop {
        bytes[..4].copy_from_slice(&sent.to_le_bytes());
        match pair.one.worker.outbox().send(peer, &bytes) {
            Ok(()) => sent += 1,
            Err(_) => break,
        }
    }
    assert!(sent > 4);
    pair.one.worker.outbox().finish(peer);
    assert_eq!(pair.one.worker.outbox().send(peer, &bytes), Err(SendError::NotConnected));
    pair.until("the end", |pair| {
        pair.tend();
        pair.one.worker.handler().down.len() + pair.two.worker.handler().down.len() == 2
    });
    assert_eq!(pair.one.worker.handler().down, [DownReason::Closed]);
    assert_eq!(numbers(pair.two.worker.handler()), (0..sent).collect::<Vec<_>>());
}
