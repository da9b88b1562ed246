//! Work from other threads, and their view of the counters.

use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use super::*;

/// Counts the keys it is given, and checks their order.
#[derive(Default)]
struct Doer {
    next: u64,
    wrong: u64,
    done: Arc<AtomicU64>,
    /// Submits the next key itself, up to the tenth.
    again: Option<Handle>,
    /// Submits a key in the next turn that finds nothing.
    idle: Option<(u64, Handle)>,
}

impl<P: Provider> Handler<P> for Doer {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
    fn on_work(&mut self, key: u64, _: &mut Outbox<'_, P>) {
        self.wrong += u64::from(key != self.next);
        self.next += 1;
        self.done.store(self.next, Ordering::Release);
        if let Some(again) = self.again.as_ref().filter(|_| key < 9) {
            assert!(again.submit(key + 1));
        }
    }
    fn on_idle(&mut self, _: &mut Outbox<'_, P>) {
        if let Some((key, handle)) = self.idle.take() {
            assert!(handle.submit(key));
        }
    }
}

/// Work arrives in order, and no more is accepted than may wait.
#[test]
fn work_comes_in_order_and_is_bounded() {
    let mut one = side_of(&CONFIG, Doer::default());
    let handle = one.worker.handle();
    let mut key = 0;
    for _ in 0..100 {
        let taken = (0..6).filter(|n| handle.submit(key + n)).count() as u64;
        assert_eq!(taken, 4);
        one.worker.turn();
        key += taken;
        assert_eq!((one.worker.handler().next, one.worker.handler().wrong), (key, 0));
    }
}

/// A worker that is gone takes no work.
#[test]
fn a_worker_that_has_ended_takes_no_work() {
    let one = side_of(&CONFIG, Doer::default());
    let handle = one.worker.handle();
    assert!(handle.submit(0) && !handle.has_ended() && !one.intake.has_ended());
    drop(one.worker);
    assert!(handle.has_ended() && one.intake.has_ended());
    assert!(!handle.submit(1), "there is room, but nobody to take it");
}

/// Where a thread sleeps until it is woken, and everybody can see whether it does.
#[derive(Default)]
struct Bed(AtomicU8);

impl Bed {
    const AWAKE: u8 = 0;
    const ASLEEP: u8 = 1;
    const WOKEN: u8 = 2;

    fn sleep(&self) {
        // A wake-up from before counts, as it does for a parked thread.
        let (awake, asleep) = (Bed::AWAKE, Bed::ASLEEP);
        let _ = self.0.compare_exchange(awake, asleep, Ordering::SeqCst, Ordering::SeqCst);
        while self.is_asleep() {
            thread::yield_now();
        }
        self.0.store(Bed::AWAKE, Ordering::SeqCst);
    }

    fn wake(&self) {
        self.0.store(Bed::WOKEN, Ordering::SeqCst);
    }

    fn is_asleep(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Bed::ASLEEP
    }
}

/// A worker that sleeps until it is woken, and for ever if not, misses nothing. Whether it has
/// missed work needs no clock: it sleeps, the submission is over, and the work is not done.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 20_000;
    let one = side_of(&CONFIG, Doer::default());
    let (handle, stop) = (one.worker.handle(), AtomicBool::new(false));
    let (bed, done) = (Arc::new(Bed::default()), one.worker.handler().done.clone());
    let waking = bed.clone();
    one.worker.set_waker(Box::new(move || waking.wake()));
    thread::scope(|scope| {
        let (stop, sleeping, mut worker) = (&stop, &bed, one.worker);
        let resting = scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                worker.turn();
                if let Ok(_armed) = worker.arm() {
                    sleeping.sleep();
                }
            }
            worker.handler().wrong
        });
        let mut lost = None;
        for key in 0..ROUNDS {
            if lost.is_some() {
                break;
            }
            // So that work comes at any moment of falling asleep.
            (0..key * 7 % 509).for_each(|_| std::hint::spin_loop());
            assert!(handle.submit(key));
            let is_done = || done.load(Ordering::SeqCst) == key + 1;
            // Whether it sleeps is looked at first: it falls asleep after it has done the work.
            while lost.is_none() && !is_done() {
                lost = Some(key).filter(|_| bed.is_asleep() && !is_done());
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
        while !resting.is_finished() {
            bed.wake();
            thread::yield_now();
        }
        assert_eq!((lost, resting.join().unwrap()), (None, 0), "it sleeps, and has work");
    });
}

/// Work that came too late for a turn keeps the worker awake.
#[test]
fn work_keeps_a_worker_from_resting() {
    let mut one = side_of(&Config { work: 1, ..CONFIG }, Doer::default());
    let handle = one.worker.handle();
    one.worker.handler_mut().again = Some(handle.clone());
    let done = one.worker.handler().done.clone();
    assert!(handle.submit(0));
    // Each key submits the next, in the turn that arming takes.
    while one.worker.arm().is_err() {}
    assert_eq!(done.load(Ordering::Relaxed), 10);
}

/// Other threads see the worker's counters once it rests.
#[test]
fn counters_are_seen_from_outside() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    let (_, num) = connect(&mut one, &mut two);
    let peer = one.only_peer();
    for n in 0..200 {
        one.worker.outbox().send(peer, &payload(n, 20)).unwrap();
        if n % 10 == 9 {
            settle(&mut [&mut one, &mut two]);
        }
    }
    let (seen, real) = (one.worker.handle().stats(), one.worker.stats());
    assert_eq!((seen.sent, seen.received, seen.doorbells), (200, 200, real.doorbells));
    assert_eq!(seen.batches.iter().sum::<u64>(), real.doorbells);
    assert_eq!(seen.batches[3], 20, "ten at a time: {seen:?}");
    assert_eq!(seen.polls.iter().sum::<u64>(), real.turns - real.idle_turns);
    assert!((8..=20).contains(&seen.receives_out_most), "{seen:?}");
    assert_eq!(seen.refilled, real.refilled);
    // A peer that does not answer is counted under its status.
    assert!(two.intake.gone(num));
    two.worker.turn();
    one.worker.outbox().send(peer, b"anybody?").unwrap();
    settle(&mut [&mut one, &mut two]);
    let seen = one.worker.handle().stats();
    let (gone, flushed) = (Status::RetryExceeded as usize, Status::Flushed as usize);
    assert_eq!((seen.errors_by_status[gone], seen.errors), (1, 1 + seen.errors_by_status[flushed]));
}

/// The worker's own figures are right after every turn, short or not.
#[test]
fn figures_lack_no_turn() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    settle(&mut [&mut one, &mut two]);
    let (before, mut turns) = (two.worker.stats(), 0);
    for n in 1..=100 {
        one.worker.outbox().send_now(peer, &payload(n, 20)).unwrap();
        // An idle worker looks at everything in each 16th turn.
        for _ in 0..16 {
            two.worker.turn();
            turns += 1;
            let stats = two.worker.stats();
            assert_eq!(stats.turns - before.turns, turns);
            assert_eq!(stats.polls.iter().sum::<u64>(), stats.turns - stats.idle_turns);
            let [received, sent] = [stats.received - before.received, stats.sent - before.sent];
            assert_eq!(received, sent, "each is answered at once");
            assert!(stats.doorbells - before.doorbells >= sent, "{stats:?}");
        }
        assert_eq!(two.worker.stats().received - before.received, n as u64);
        one.worker.turn();
    }
}

/// The worker announces its sleep before it polls for the last time: work that comes with that
/// poll wakes.
#[test]
fn a_worker_announces_its_sleep_before_its_last_poll() {
    let mut one = side_of(&CONFIG, Doer::default());
    let (handle, wakes) = (one.worker.handle(), Arc::new(AtomicU64::new(0)));
    let counter = wakes.clone();
    let wake = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    one.worker.set_waker(Box::new(wake));
    for key in 0..100 {
        one.worker.turn();
        one.worker.handler_mut().idle = Some((key, handle.clone()));
        let _ = one.worker.arm();
        assert!(one.worker.handler().idle.is_none(), "arming takes a turn");
        assert_eq!(wakes.load(Ordering::Relaxed), key + 1);
        one.worker.turn();
        assert_eq!(one.worker.handler().next, key + 1);
    }
}

/// A timer that is due keeps the worker awake until it is told the time; one that is not due says
/// how long it may sleep.
#[test]
fn a_worker_with_a_due_timer_is_not_armed() {
    let mut one = side_of(&CONFIG, Doer::default());
    one.worker.turn();
    assert!(one.worker.arm().is_ok_and(|armed| armed.next_timer().is_none()));
    let mut out = one.worker.outbox();
    assert!(out.set_timer(0, 1).is_some() && out.set_timer(70, 2).is_some());
    assert_eq!(one.worker.arm().err(), Some(Busy));
    assert_eq!(one.worker.advance(0), 1);
    assert!(one.worker.arm().is_ok_and(|armed| armed.next_timer() == Some(70)));
}
