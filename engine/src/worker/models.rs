//! Models of what other threads leave for a worker, and of its rest.

use core::cell::Cell;
use std::boxed::Box;

use loom::thread;
use std_alloc::sync::Arc;

use super::config::Config;
use super::mailbox::{Mail, Mailbox, OwnMailbox};
use super::promises::Promises;
use super::shared_state::{Handle, SharedState};
use super::watch::Closings;
use crate::sync::{AtomicU32, Ordering};
use doorbell_base::models::{Model, check};
use doorbell_soft::Soft;

pub(crate) const MODELS: &[Model] = &[
    ("work for a worker that goes to rest", work_wakes),
    ("letters for a worker that goes to rest", letters_wake),
    ("pieces of work", work_is_taken),
    ("letters", letters_are_taken),
    ("connections to be ended", closings_are_taken),
    ("letters for a worker that ends", letters_end),
    ("letters beyond the room", late_letters_are_taken),
    ("letters beyond the room of an empty queue", new_late_letters_are_taken),
    ("receives that are lent to a peer of another worker", promises_are_kept),
];

std::thread_local! {
    /// How often the worker was woken. All threads of a model run on one.
    static WAKES: Cell<u32> = const { Cell::new(0) };
}

fn sleeper(state: &SharedState) {
    WAKES.set(0);
    state.set_waker(Box::new(|| WAKES.set(WAKES.get() + 1)));
}

fn work_wakes() {
    check(|| {
        let state = Arc::new(SharedState::new(2, None));
        sleeper(&state);
        let handle = Handle(state.clone());
        let other = thread::spawn(move || assert!(handle.submit(1)));
        // As in `Worker::arm`.
        state.begin_rest();
        let rests = !state.has_work();
        other.join().expect("the submitter");
        assert!(!rests || WAKES.get() > 0, "the worker rests for ever");
    });
}

fn letters_wake() {
    check(|| {
        let mailbox = Arc::new(Mailbox::<Soft>::new(2, 2, None));
        sleeper(&mailbox.state);
        let theirs = mailbox.clone();
        let other = thread::spawn(move || assert!(theirs.put(Mail::Gone(1)).is_ok()));
        mailbox.state.begin_rest();
        let rests = !mailbox.has_mail();
        other.join().expect("the control plane");
        assert!(!rests || WAKES.get() > 0, "the worker rests for ever");
    });
}

/// One thread leaves one item, another leaves two. The worker looks twice, and once more when all
/// are there.
fn taken<T: Send + Sync + 'static>(
    left: T,
    leave: impl Fn(&T) + Copy + Send + 'static,
    mut look: impl FnMut(&T) -> u32,
) {
    let left = Arc::new(left);
    leave(&left);
    let theirs = left.clone();
    let other = thread::spawn(move || {
        leave(&theirs);
        leave(&theirs);
    });
    let first = look(&left) + look(&left);
    other.join().expect("the other thread");
    assert_eq!(first + look(&left), 3, "something is left, and nobody knows");
}

fn work_is_taken() {
    check(|| {
        let leave = |mailbox: &Mailbox<Soft>| assert!(Handle(mailbox.state.clone()).submit(1));
        taken(Mailbox::new(2, 4, None), leave, |mailbox| {
            // One at a time, because `Worker::do_work` may stop anywhere.
            let mut taken = 0;
            while mailbox.state.has_work() {
                taken += u32::from(mailbox.state.take().is_some());
            }
            taken
        });
    });
}

fn letters_are_taken() {
    check(|| {
        let leave = |mailbox: &Mailbox<Soft>| assert!(mailbox.put(Mail::Gone(1)).is_ok());
        taken(Mailbox::new(2, 4, None), leave, |mailbox| {
            let mut taken = 0;
            // As `Worker::admit`.
            if mailbox.has_mail() {
                while mailbox.take().is_some() {
                    taken += 1;
                }
            }
            taken
        });
    });
}

fn closings_are_taken() {
    check(|| {
        let leave = |closings: &Closings| assert!(closings.put(1));
        taken(Closings::new(2), leave, |closings| {
            let mut taken = 0;
            while closings.take().is_some() {
                taken += 1;
            }
            taken
        });
    });
}

/// A letter comes while the worker ends: it is taken back or dropped, and not left.
fn letters_end() {
    check(|| {
        let mailbox = OwnMailbox(Arc::new(Mailbox::<Soft>::new(2, 2, None)));
        let theirs = mailbox.0.clone();
        let other = thread::spawn(move || {
            let left = theirs.put(Mail::Gone(1)).is_ok();
            // If the worker had ended by then, the thread that asks later knows.
            assert!(left || !theirs.put_always(Mail::Gone(2)));
            theirs
        });
        drop(mailbox);
        let mailbox = other.join().expect("the control plane");
        assert!(mailbox.take().is_none(), "a letter is left for nobody");
        assert!(mailbox.put(Mail::Gone(1)).is_err());
    });
}

/// The worker takes letters while another thread leaves more than the queue has room for: all come,
/// in order. Of the three, `before` are there at the beginning.
fn late_letters_come_in_order(before: u32) {
    check(move || {
        let mailbox = Arc::new(Mailbox::<Soft>::small());
        assert!((0..before).all(|number| mailbox.put_always(Mail::Gone(number))));
        let theirs = mailbox.clone();
        let other = thread::spawn(move || {
            assert!((before..3).all(|number| theirs.put_always(Mail::Gone(number))));
        });
        let mut next = 0;
        let mut look = || {
            while mailbox.has_mail() {
                while let Some(Mail::Gone(number)) = mailbox.take() {
                    assert_eq!(number, next, "out of order");
                    next += 1;
                }
                thread::yield_now();
            }
        };
        look();
        other.join().expect("the control plane");
        look();
        assert_eq!(next, 3, "something is left, and nobody knows");
    });
}

fn late_letters_are_taken() {
    late_letters_come_in_order(2);
}

/// All of them come while the worker looks.
fn new_late_letters_are_taken() {
    late_letters_come_in_order(0);
}

/// A worker gives receives back that it has posted, and another lends them to a peer: they are
/// posted before that peer hears of them, and never lent twice.
fn promises_are_kept() {
    check(|| {
        let all = Config { recv_blocks: 4, window: 0, ..Config::DEFAULT };
        let shared = Arc::new((Promises::new(&all), AtomicU32::new(0)));
        shared.0.set_aside(1).expect("there are four");
        assert_eq!(shared.0.take_up_to(4), 3);
        let theirs = shared.clone();
        let other = thread::spawn(move || {
            theirs.1.store(2, Ordering::Relaxed);
            theirs.0.give_back(2);
            theirs.0.take_up_to(1)
        });
        let taken = shared.0.take_up_to(2);
        assert!(taken == 0 || shared.1.load(Ordering::Relaxed) == 2, "lent before it is posted");
        let others = other.join().expect("the other worker");
        assert_eq!(taken + others + shared.0.spare(), 2, "each is in one place");
    });
}

#[test]
fn models_nothing_left_for_a_worker_is_forgotten() {
    MODELS.iter().for_each(|(_, model)| model());
}
