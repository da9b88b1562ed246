//! Models of a lock that belongs to one thread, and of others that take it.

use std::sync::Arc;

use doorbell_base::models::{Model, check};
use loom::thread;

use super::*;
use crate::sync::wrote;

pub(crate) const MODELS: &[Model] =
    &[("an owner and another", || meet(2, 1)), ("two owners in turn", || meet(1, 3))];

/// Numbers of threads.
const ONE: u64 = 64;
const OTHER: u64 = 128;

/// All run on one thread, and say who they are.
fn enter(lock: &Biased<u64>, me: u64) {
    let guard = match lock.enter(me) {
        Some(inside) => Guard { held: inside, of: lock, alone: PhantomData },
        None => lock.wait(me),
    };
    wrote((&raw const *guard).cast(), 8);
}

/// The owner enters so often, and another thread, which owns the lock from its second time on.
fn meet(own: usize, other: usize) {
    check(move || {
        let lock = Arc::new(Biased::new(0, Threads { numbered: true, ..Threads::UNKNOWN }));
        lock.wanted.store(1, Ordering::Relaxed);
        (0..2).for_each(|_| enter(&lock, ONE));
        lock.wanted.store(0, Ordering::Relaxed);
        let theirs = lock.clone();
        let thread = thread::spawn(move || (0..other).for_each(|_| enter(&theirs, OTHER)));
        (0..own).for_each(|_| enter(&lock, ONE));
        thread.join().expect("the other");
        enter(&lock, ONE);
    });
}

#[test]
fn models_a_lock_that_is_taken_away_keeps_others_out() {
    MODELS.iter().for_each(|(_, model)| model());
}
