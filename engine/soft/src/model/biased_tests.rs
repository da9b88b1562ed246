use std::sync::Arc;
use std::thread;
use std::vec::Vec;

use super::*;
use crate::control::threads;

fn is_mine(lock: &Biased<u64>) -> bool {
    lock.owner.load(Ordering::Relaxed) & !PLACE == this_thread()
}

/// Takes the lock so often in a row that a new one is owned.
fn run(lock: &Biased<u64>) {
    (0..=FIRST_RUN).for_each(|_| *lock.lock() += 1);
}

fn elsewhere<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(f).join().unwrap())
}

#[test]
fn a_lock_belongs_to_the_thread_that_takes_it_in_a_row_until_another_comes() {
    let lock = Biased::new(0, threads());
    drop(lock.lock());
    assert!(!is_mine(&lock));
    run(&lock);
    assert!(is_mine(&lock));
    elsewhere(|| drop(lock.lock()));
    assert!(!is_mine(&lock));
    // Now it takes twice as many.
    run(&lock);
    assert!(!is_mine(&lock));
    run(&lock);
    assert!(is_mine(&lock));
    assert_eq!(*lock.lock(), 3 * u64::from(FIRST_RUN + 1));
}

#[test]
fn no_more_than_four_threads_own_a_lock_in_turn() {
    let lock = Biased::new(0, threads());
    lock.wanted.store(1, Ordering::Relaxed);
    // All live at once: a new thread may get the number of one that has ended.
    let turn = AtomicU32::new(0);
    let owned: Vec<bool> = thread::scope(|scope| {
        let threads = (0..6).map(|n| {
            let (lock, turn) = (&lock, &turn);
            scope.spawn(move || {
                while turn.load(Ordering::Acquire) != n {
                    thread::yield_now();
                }
                lock.wanted.store(1, Ordering::Relaxed);
                (0..4).for_each(|_| drop(lock.lock()));
                let owned = is_mine(lock);
                turn.store(n + 1, Ordering::Release);
                while turn.load(Ordering::Acquire) != 6 {
                    thread::yield_now();
                }
                owned
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(owned, [true, true, true, true, false, false]);
}

#[test]
fn threads_without_numbers_own_no_lock() {
    let lock = Biased::new(0, Threads::UNKNOWN);
    run(&lock);
    run(&lock);
    assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
    assert_eq!(*lock.lock(), 2 * u64::from(FIRST_RUN + 1));
}

/// Threads that own the lock in turn never meet inside: no step of a plain counter is lost.
#[test]
fn threads_never_meet_inside() {
    const ROUNDS: u64 = 300;
    const RUN: u64 = 200;
    let lock = Arc::new(Biased::new(0_u64, threads()));
    let threads = [(); 3].map(|()| {
        let lock = lock.clone();
        thread::spawn(move || {
            for _ in 0..ROUNDS {
                // Short runs are enough again.
                lock.wanted.store(4, Ordering::Relaxed);
                (0..RUN).for_each(|_| *lock.lock() += 1);
                thread::yield_now();
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*lock.lock(), 3 * ROUNDS * RUN);
    assert!(!lock.is_locked());
}

/// A panic inside lets go.
#[test]
fn a_panic_inside_lets_go() {
    let lock = Biased::new(0, threads());
    run(&lock);
    let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _guard = lock.lock();
        panic!("inside");
    }));
    assert!(panicked.is_err() && !lock.is_locked());
    elsewhere(|| *lock.lock() += 1);
}
