//! The end of a whole worker: drained, or dropped with peers and letters in its mailbox; and
//! control planes that nobody steps.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::remote::RequestOp;
use crate::worker::core::SLEEP_TURNS;
use crate::worker::credit_return::GOODBYE_TURNS;
use crate::worker::turn::LOOK_TURNS;
use crate::wr::SendOp;

const COUNTED: Config = Config { recv_blocks: 160, peers: 16, window: 8, window_min: 8, ..CONFIG };

/// A dropped worker drops its mailbox's letters, and accepts no later ones: every grant comes back,
/// and the shared receives can be promised to the next worker's peers.
#[test]
fn a_dropped_worker_takes_its_letters_along() {
    let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, false));
    let (_, peers) = (connect(&mut one, &mut two), two.worker.peers());
    assert_eq!(peers, 1);
    // One letter comes before the end, and one queue pair after it.
    let seats = [two.intake.reserve().unwrap(), two.intake.reserve().unwrap()];
    let [early, late] = seats;
    let (first, second) = (two.qp(), two.qp());
    let numbers = (first.num(), second.num());
    assert!(two.intake.admit(first, early, None, None).is_ok());
    let Side { nic, worker, intake } = two;
    assert!(intake.is_open() && !intake.has_ended());
    drop(worker);
    assert!(!intake.is_open() && intake.has_ended());
    let back = intake.admit(second, late, None, None).expect_err("nobody takes it");
    assert_eq!(back.num(), numbers.1);
    assert!(!intake.up(numbers.0, Greeting::default()) && !intake.gone(numbers.0));
    assert_eq!(intake.reserve().err().map(|error| error.code()), Some(Code::Reset));
    drop(back);
    // All receives of the shared queue are available to another worker.
    let other = handled(&nic, &intake.shared, &COUNTED, Log::default());
    let mut windows = Vec::new();
    while let Ok(grant) = other.intake.reserve() {
        windows.push(grant);
    }
    assert_eq!(windows.len() as u32, COUNTED.peers);
}

/// A worker that is dropped tells the control planes of its peers, stepped or not.
#[test]
fn a_dropped_worker_tells_its_control_planes() {
    let one = side(&COUNTED, false);
    let plane = Arc::new(Plane::default());
    let watch: Arc<dyn Watch> = plane.clone();
    let intake = one.intake.watch(&watch);
    drop(one.worker);
    assert_eq!(plane.looks.load(Ordering::Relaxed), 1);
    let _ = intake.watch(&watch);
    assert_eq!(Arc::strong_count(&plane), 2, "it forgets them");
}

/// A worker that does not turn runs out of room for letters. Those about its own queue pairs are
/// kept nevertheless, in order.
#[test]
fn no_letter_about_a_peer_is_lost() {
    let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, false));
    let nums = connect(&mut one, &mut two);
    for _ in 0..100 {
        assert!(two.intake.up(nums.1, Greeting::default()));
    }
    assert!(two.intake.gone(nums.1));
    // Letters that may be refused are refused, with the queue pair, while others wait.
    let grant = two.intake.reserve().unwrap();
    assert!(two.intake.admit(two.qp(), grant, None, None).is_err());
    settle(&mut [&mut two]);
    assert_eq!(two.worker.handler().down.len(), 1);
    assert_eq!(two.worker.handler().down[0].1, DownReason::Disconnected);
    connect(&mut one, &mut two);
    assert_eq!(two.worker.peers(), 1, "and there is room again");
}

/// The side that receives the goodbye can tell it from a failure, however it learns of the end.
#[test]
fn a_finished_peer_is_no_failure() {
    for by_message in [false, true] {
        let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, false));
        let nums = connect(&mut one, &mut two);
        let (peer, back) = (one.only_peer(), two.only_peer());
        for n in 0..3 {
            one.worker.outbox().send(peer, &payload(n, 24)).unwrap();
        }
        one.worker.outbox().finish(peer);
        settle(&mut [&mut one, &mut two]);
        assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
        assert!(two.worker.handler().down.is_empty(), "nobody has told it");
        match by_message {
            true => two.worker.outbox().send(back, b"too late").unwrap(),
            false => assert!(two.intake.gone(nums.1)),
        }
        settle(&mut [&mut one, &mut two]);
        assert_in_order(two.worker.handler(), 3, 24);
        assert_eq!(two.worker.handler().down, [(back, DownReason::Finished)]);
    }
}

/// Lets a 64th of the time pass after which a goodbye is enough: turns, or sleeps.
fn wait_for_goodbye(side: &mut Side, sleeps: bool) {
    if sleeps {
        for _ in 0..GOODBYE_TURNS / SLEEP_TURNS / 64 {
            let _ = side.worker.arm();
        }
    } else {
        // As many turns at once; then one that reviews a peer.
        side.worker.core.turn += GOODBYE_TURNS / 64;
        (0..16).for_each(|_| _ = side.worker.turn());
    }
}

/// Two peers at most, so that each second review is of the only one.
const FEW: Config = Config { peers: 2, ..COUNTED };

/// A process that ends does not repeat its request to disconnect, and the network may lose that.
/// The goodbye is enough, whether the worker spins or sleeps, and has sent a credit word or not.
#[test]
fn a_goodbye_ends_a_peer_whose_disconnect_was_lost() {
    for (sleeps, sent) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut one, mut two) = (side(&FEW, false), side(&FEW, false));
        let nums = connect(&mut one, &mut two);
        let (peer, back) = (one.only_peer(), two.only_peer());
        if sent {
            // A credit word asks for no completion, so it stays outstanding.
            one.worker.outbox().send(peer, &payload(0, 24)).unwrap();
            settle(&mut [&mut one, &mut two]);
            let _ = two.worker.arm();
            settle(&mut [&mut one, &mut two]);
        }
        one.worker.outbox().finish(peer);
        settle(&mut [&mut one, &mut two]);
        assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
        let outstanding = two.worker.core.sender.peers.get(back).unwrap().sq.outstanding();
        assert_eq!(outstanding > 0, sent);
        let mut waits = 0;
        while two.worker.handler().down.is_empty() && waits < 200 {
            waits += 1;
            wait_for_goodbye(&mut two, sleeps);
            // Its device refuses what comes for a queue pair that is gone.
            one.worker.turn();
        }
        assert!((64..80).contains(&waits), "{waits}: it waits for the connection manager first");
        assert_eq!(two.worker.handler().down, [(back, DownReason::Finished)]);
        assert_eq!(two.intake.next_closing(), Some(nums.1));
        assert_in_order(two.worker.handler(), usize::from(sent), 24);
        // The next peer in its slot has not said goodbye.
        connect(&mut one, &mut two);
        (0..80).for_each(|_| wait_for_goodbye(&mut two, sleeps));
        assert_eq!((two.worker.handler().down.len(), two.worker.peers()), (1, 1));
    }
}

/// A goodbye does not end a peer while a message to it may still be acknowledged.
#[test]
fn a_goodbye_waits_for_what_is_outstanding() {
    let config = Config { signal_every: 1, ..FEW };
    for sleeps in [false, true] {
        let (mut one, mut two) = (side(&FEW, false), side(&config, false));
        connect(&mut one, &mut two);
        let (peer, back) = (one.only_peer(), two.only_peer());
        one.worker.outbox().finish(peer);
        // It says goodbye, and takes nothing from now on.
        for _ in 0..1000 {
            if !two.worker.core.sender.peers.get(back).unwrap().said_goodbye() {
                one.worker.turn_full();
                two.worker.turn();
            }
        }
        assert!(two.worker.core.sender.peers.get(back).unwrap().said_goodbye());
        two.worker.outbox().send(back, &payload(0, 24)).unwrap();
        (0..200).for_each(|_| wait_for_goodbye(&mut two, sleeps));
        assert_eq!(two.worker.handler().down, []);
        settle(&mut [&mut one, &mut two]);
        assert_in_order(one.worker.handler(), 1, 24);
        assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
        (0..4).for_each(|_| wait_for_goodbye(&mut two, sleeps));
        assert_eq!(two.worker.handler().down, [(back, DownReason::Finished)]);
    }
}

/// A worker that messages wake soon has not slept for long, so its sleeps count little, and a
/// goodbye is not enough yet.
#[test]
fn short_sleeps_count_little() {
    let [mut one, mut two, mut other] = [(); 3].map(|()| side(&FEW, false));
    connect(&mut one, &mut two);
    connect(&mut other, &mut two);
    let (peer, lively) = (one.only_peer(), other.only_peer());
    one.worker.outbox().finish(peer);
    settle(&mut [&mut one, &mut two]);
    let mut sleeps = 0;
    for _ in 0..10_000 {
        if sleeps > 2 * GOODBYE_TURNS / SLEEP_TURNS {
            break;
        }
        let _ = other.worker.outbox().send(lively, b"awake");
        other.worker.turn_full();
        two.worker.turn_full();
        sleeps += u64::from(two.worker.arm().is_ok());
    }
    assert!(sleeps > 2 * GOODBYE_TURNS / SLEEP_TURNS, "{sleeps}");
    assert_eq!(two.worker.handler().down, [], "{} messages", two.worker.handler().got.len());
}

/// Keeps the first message, and answers it when told to.
#[derive(Default)]
struct Slow {
    kept: Option<Token>,
    turns: u32,
    down: Vec<DownReason>,
}

impl<P: Provider> Handler<P> for Slow {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.kept = out.keep(&message);
        self.kept.map_or(Verdict::Done, Verdict::Keep)
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.turns += 1;
        if let Some(token) = self.kept.take_if(|_| self.turns > 40) {
            // Its peer may have been closed.
            let _ = out.reply(token, 4);
        }
    }
}

/// A drained worker answers what it kept, says goodbye, and accepts no new peers. It reports and
/// closes whatever it has no time for.
#[test]
fn a_drained_worker_answers_first() {
    for in_time in [true, false] {
        let (mut one, mut two) = (side(&COUNTED, false), side_of(&COUNTED, Slow::default()));
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        one.worker.outbox().send(peer, b"well").unwrap();
        for _ in 0..4 {
            one.worker.turn();
            two.worker.turn();
        }
        assert_eq!(two.worker.kept(), 1);
        let mut left = if in_time { 1000 } else { 20 };
        let undone = two.worker.drain(|| {
            one.worker.turn();
            left -= 1;
            left > 0
        });
        assert!(!two.intake.is_open() && !two.intake.has_ended());
        assert_eq!((two.worker.peers(), two.worker.kept()), (0, 0));
        assert_eq!(two.worker.handler().down, [DownReason::Closed]);
        let all = Undone { peers: 1, requests: 0, kept: 1 };
        assert_eq!(undone, if in_time { Undone::default() } else { all });
        one.worker.outbox().send(peer, b"more").unwrap();
        for _ in 0..400 {
            one.worker.turn();
            two.worker.turn();
        }
        let failed = DownReason::Failed(Status::RetryExceeded);
        let why = if in_time { DownReason::Finished } else { failed };
        assert_eq!(one.worker.handler().down, [(peer, why)]);
        assert_eq!(one.worker.handler().got.len(), usize::from(in_time));
    }
}

/// A drain has time, but a peer does not take everything: when `Config::drain_turns` are over it is
/// cut off, and the drain says so. The other peer's end is in order.
#[test]
fn a_drain_counts_peers_that_were_cut_off() {
    let (mut two, config) = (side(&COUNTED, false), Config { drain_turns: 100, ..COUNTED });
    for keeps in [false, true] {
        let mut one = side_of(&config, Slow::default());
        let mut silent = side(&COUNTED, false);
        connect(&mut one, &mut silent);
        connect(&mut one, &mut two);
        let peer = silent.only_peer();
        if keeps {
            silent.worker.outbox().send(peer, b"well").unwrap();
            silent.worker.turn();
            one.worker.turn();
            // It is not answered.
            assert!(one.worker.handler_mut().kept.take().is_some());
        } else {
            let first = one.worker.outbox().peers().next().unwrap();
            one.worker.outbox().send(first, b"to nobody").unwrap();
        }
        let mut left = 20 * config.drain_turns;
        let undone = one.worker.drain(|| {
            two.worker.turn();
            left -= 1;
            left > 0
        });
        assert_eq!(undone, Undone { peers: 1, requests: 0, kept: usize::from(keeps) });
        assert!(left > 0);
        let mut down = one.worker.handler().down.clone();
        down.sort_by_key(|why| *why == DownReason::CutOff);
        assert_eq!(down, [DownReason::Closed, DownReason::CutOff]);
    }
}

/// A drain counts a peer that was cut off before and whose queue pair still drains, but none that
/// the handler closed or that has left.
#[test]
fn a_drain_counts_only_what_it_cuts_off() {
    let config = Config { drain_turns: 100, ..COUNTED };
    for (how, peers) in [(DownReason::CutOff, 1), (DownReason::Closed, 0)] {
        let (mut one, mut silent) = (side(&config, false), side(&config, false));
        connect(&mut one, &mut silent);
        let peer = one.only_peer();
        one.worker.outbox().send(peer, b"to nobody").unwrap();
        if how == DownReason::CutOff {
            one.worker.outbox().finish(peer);
            while one.intake.next_closing().is_none() {
                one.worker.turn();
            }
        } else {
            one.worker.outbox().flush();
            one.worker.outbox().close(peer);
            // It may go with the first turn of the drain.
            one.worker.count_undone();
            assert_eq!(one.worker.core.undone.peers, 0);
        }
        assert_eq!(one.worker.handler().down, []);
        let undone = one.worker.drain(|| false);
        assert_eq!(one.worker.handler().down, [(peer, how)]);
        assert_eq!(undone, Undone { peers, requests: 0, kept: 0 });
    }
}

/// A control plane that is stepped or not, and the number of looks at it.
#[derive(Default)]
struct Plane {
    steps: AtomicU64,
    looks: AtomicU64,
}

impl Watch for Plane {
    fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
}

/// A worker leaves control planes alone that are stepped, and looks at one that is not: while it is
/// idle, while it is busy, and each time it rests.
#[test]
#[cfg_attr(miri, ignore = "a million turns")]
fn a_forgotten_control_plane_is_looked_at() {
    let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let plane = Arc::new(Plane::default());
    let watch: Arc<dyn Watch> = plane.clone();
    let _ = one.intake.watch(&watch);
    let _ = one.intake.watch(&watch);
    let looks = || plane.looks.load(Ordering::Relaxed);
    for _ in 0..2 * LOOK_TURNS / 1000 {
        plane.steps.fetch_add(1, Ordering::Relaxed);
        (0..1000).for_each(|_| _ = one.worker.turn());
    }
    plane.steps.fetch_add(1, Ordering::Relaxed);
    assert_eq!(looks(), 0, "it is stepped");
    for _ in 0..2 * LOOK_TURNS + 10_000 {
        one.worker.turn();
    }
    let idle = looks();
    assert!((1..=2).contains(&idle), "{idle}");
    // Busy: no two turns in a row find nothing.
    for n in 0..LOOK_TURNS + 10_000 {
        let _ = one.worker.outbox().send(peer, &[n as u8; 8]);
        one.worker.turn();
        two.worker.turn();
    }
    assert_eq!(looks(), idle + 1);
    let _ = one.worker.arm();
    assert_eq!(looks(), idle + 2);
    one.intake.unwatch(&watch);
    let _ = one.worker.arm();
    assert_eq!((looks(), Arc::strong_count(&plane)), (idle + 2, 2));
}

/// The completion queue has failed: the queue pair goes before the handler hears that its request
/// is over, and may change the bytes.
#[test]
fn a_queue_pair_goes_before_its_requests_end() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let op = RequestOp::unchecked(SendOp::Send);
    let request = Request { op, pieces: &[], fence: false, token: 1 };
    one.worker.outbox().request(peer, &request).unwrap();
    one.worker.outbox().flush();
    one.worker.core.fail_all(DownReason::Failed(Status::Fatal));
    assert!(one.worker.core.sender.accounts.requests.has_ended());
    assert!(one.worker.core.sender.peers.at(peer.slot).unwrap().qp.is_none());
}
