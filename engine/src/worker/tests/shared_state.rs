//! Work from other threads, and their view of the counters.

use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Counts the keys it is given, and checks their order.
#[derive(Default)]
struct Doer {
    next: u64,
    wrong: u64,
    done: Arc<AtomicU64>,
    /// Submits the next key itself, up to the tenth.
    again: Option<Handle>,
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

/// A worker that rests until it is woken, and for ever if it is not, misses neither work nor a
/// peer.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 3000;
    let mut one = side_of(&CONFIG, Doer::default());
    let (handle, stop) = (one.worker.handle(), Arc::new(AtomicBool::new(false)));
    let done = one.worker.handler().done.clone();
    let (worker, stopped) = (one.worker, stop.clone());
    let (thread, wrong) = thread::scope(|scope| {
        let mut worker = worker;
        let resting = scope.spawn(move || {
            let me = thread::current();
            worker.set_waker(Box::new(move || me.unpark()));
            worker.run_resting(&stopped, 3, |_| thread::park());
            worker.handler().wrong
        });
        for key in 0..ROUNDS {
            assert!(handle.submit(key));
            let start = Instant::now();
            while done.load(Ordering::Acquire) != key + 1 {
                if start.elapsed() > Duration::from_secs(20) {
                    stop.store(true, Ordering::Relaxed);
                    resting.thread().unpark();
                    panic!("work {key} is not done: the worker sleeps");
                }
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        resting.thread().unpark();
        (resting.thread().id(), resting.join().unwrap())
    });
    assert_ne!(thread, thread::current().id());
    assert_eq!(wrong, 0);
}

/// Work that came too late for a turn keeps the worker from resting.
#[test]
fn work_keeps_a_worker_from_resting() {
    let mut one = side_of(&Config { work: 1, ..CONFIG }, Doer::default());
    let (handle, stop) = (one.worker.handle(), AtomicBool::new(false));
    one.worker.handler().again = Some(handle.clone());
    let done = one.worker.handler().done.clone();
    let mut rests = Vec::new();
    assert!(handle.submit(0));
    one.worker.run_resting(&stop, 0, |_| {
        rests.push(done.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(rests, [10]);
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
    let (seen, real) = (one.worker.handle().stats(), *one.worker.stats());
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
