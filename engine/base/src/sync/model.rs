//! The same for a model run, over loom's atomics: loom tries every order that the memory model
//! allows, also with one site weaker than the code says.
#![allow(missing_docs, reason = "as in `core`, or beside `real`")]

use core::any::Any;
use core::cell::RefCell;
use core::panic::Location;
use core::ptr::NonNull;
use std::boxed::Box;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic as loomed;

pub use loom::sync::atomic::Ordering;

/// A place in the code with an ordering stronger than Relaxed, or a fence.
pub type Site = Location<'static>;

/// State of a model run. All threads of a model run on one thread, which owns this.
#[derive(Default)]
struct Run {
    /// Words of shared memory, by address.
    words: HashMap<usize, Box<dyn Any>>,
    /// Words that are not used as atomics; their cells check who accesses them when.
    plain: HashMap<usize, UnsafeCell<()>>,
    /// Stored to before every use of an atomic.
    turn: Option<Rc<loomed::AtomicU32>>,
    /// The sites reached, over all runs.
    passed: BTreeSet<Site>,
    /// The sites to weaken.
    weak: Vec<Site>,
}

std::thread_local! {
    static RUN: RefCell<Run> = RefCell::default();
}

/// Forgets the words of the last run of a model. `turns` says whether all threads take turns in
/// this run.
pub fn begin_run(turns: bool) {
    let turn = turns.then(|| Rc::new(loomed::AtomicU32::new(0)));
    RUN.with_borrow_mut(|run| {
        run.turn = turn;
        run.words.clear();
        run.plain.clear();
    });
}

/// From here on, those sites have no ordering in this thread's models.
pub fn weaken(sites: &[Site]) {
    RUN.with_borrow_mut(|run| run.weak = sites.to_vec());
}

/// The sites that this thread's models have reached.
pub fn passed() -> BTreeSet<Site> {
    RUN.with_borrow(|run| run.passed.clone())
}

/// Records the site; true if it is to be weakened.
fn is_weak(site: &Site) -> bool {
    RUN.with_borrow_mut(|run| {
        let weak = run.weak.contains(site);
        if run.weak.is_empty() {
            run.passed.insert(*site);
        }
        weak
    })
}

/// Call this before each use of an atomic. Loom remembers only the last use of each atomic, and
/// treats only two uses of the same atomic as ones whose order may matter. So it misses orders that
/// do matter, for example where one thread reads, and another reads and then writes. With a store
/// to one common atomic before each use, loom tries them all.
fn take_turn() {
    let turn = RUN.with_borrow(|run| run.turn.clone());
    if let Some(turn) = turn {
        turn.store(0, Ordering::Relaxed);
    }
}

/// The ordering that a site gets for the one it asks for.
#[track_caller]
fn order(asked: Ordering) -> Ordering {
    let strong = asked != Ordering::Relaxed;
    if strong && is_weak(Location::caller()) { Ordering::Relaxed } else { asked }
}

/// The same for an exchange, which counts as one site.
#[track_caller]
fn orders(done: Ordering, failed: Ordering) -> (Ordering, Ordering) {
    (order(done), order(failed))
}

#[track_caller]
pub fn fence(asked: Ordering) {
    if !is_weak(Location::caller()) {
        loomed::fence(asked);
    }
}

/// The sleeper's barrier on all processors takes its effect here.
#[track_caller]
pub fn half_barrier() {
    fence(Ordering::SeqCst);
}

/// Lets another thread of the model run.
pub fn pause() {
    loom::thread::yield_now();
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub struct $name(loomed::$name);

        #[expect(dead_code, reason = "each has what one of them needs")]
        impl $name {
            pub fn new(value: $value) -> $name {
                $name(loomed::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, asked: Ordering) -> $value {
                take_turn();
                self.0.load(order(asked))
            }

            #[track_caller]
            pub fn swap(&self, value: $value, asked: Ordering) -> $value {
                take_turn();
                self.0.swap(value, order(asked))
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                done: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                let (done, failed) = orders(done, failed);
                take_turn();
                self.0.compare_exchange(old, new, done, failed)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                done: Ordering,
                failed: Ordering,
                next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let (done, failed) = orders(done, failed);
                take_turn();
                self.0.fetch_update(done, failed, next)
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new(Default::default())
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicBool {
    /// Flags are raised by a store and lowered by an exchange, and loom lets an exchange miss a
    /// store that no memory lets it miss; but none that is an exchange too.
    #[track_caller]
    pub fn store(&self, value: bool, asked: Ordering) {
        take_turn();
        self.0.swap(value, order(asked));
    }
}

impl AtomicU32 {
    #[track_caller]
    pub fn fetch_add(&self, more: u32, asked: Ordering) -> u32 {
        take_turn();
        self.0.fetch_add(more, order(asked))
    }

    #[track_caller]
    pub fn fetch_sub(&self, less: u32, asked: Ordering) -> u32 {
        take_turn();
        self.0.fetch_sub(less, order(asked))
    }

    #[track_caller]
    pub fn store(&self, value: u32, asked: Ordering) {
        take_turn();
        self.0.store(value, order(asked));
    }
}

impl AtomicU64 {
    #[track_caller]
    pub fn store(&self, value: u64, asked: Ordering) {
        take_turn();
        self.0.store(value, order(asked));
    }
}

/// The word at an address, initially zero.
///
/// # Safety
/// The result is not used after the run of the model. No memory is touched.
#[expect(unsafe_code, reason = "has the form of the real one")]
#[expect(clippy::expect_used, reason = "a model fails by panicking")]
pub unsafe fn word<'a, T: Default + 'static>(at: NonNull<u8>) -> &'a T {
    RUN.with_borrow_mut(|run| {
        let word = run.words.entry(at.addr().get()).or_insert_with(|| Box::new(T::default()));
        let word = word.downcast_ref::<T>().expect("a word has one type");
        // SAFETY: the word is in a box that is kept until the next run begins.
        unsafe { NonNull::from(word).as_ref() }
    })
}

/// Bytes checked at both ends of a range: checking those in between would only take time.
const ENDS: usize = 64;

/// Calls `act` with the cell of each word in those bytes.
fn each_cell(at: *const u8, length: usize, act: impl Fn(&UnsafeCell<()>)) {
    let words = (0..length).step_by(8).filter(|word| *word < ENDS || word + ENDS >= length);
    RUN.with_borrow_mut(|run| {
        for word in words {
            act(run.plain.entry((at.addr() & !7) + word).or_insert_with(|| UnsafeCell::new(())));
        }
    });
}

/// Those bytes, of whole words that are not used as atomics, are written from here on: fails if
/// another thread may be reading them.
pub fn wrote(at: *const u8, length: usize) {
    each_cell(at, length, |cell| cell.with_mut(|_| ()));
}

/// Those bytes are read until here: fails if another thread may be writing them.
pub fn reads(at: *const u8, length: usize) {
    each_cell(at, length, |cell| cell.with(|_| ()));
}

/// A many-to-one queue. It is weaker than the real one: a reader that has not been told of an entry
/// may miss it.
pub struct ArrayQueue<T> {
    items: Mutex<VecDeque<T>>,
    most: usize,
    pushed: loomed::AtomicUsize,
    popped: AtomicUsize,
}

#[expect(clippy::unwrap_used, reason = "a model fails by panicking")]
impl<T> ArrayQueue<T> {
    pub fn new(most: usize) -> ArrayQueue<T> {
        ArrayQueue {
            items: Mutex::default(),
            most,
            pushed: loomed::AtomicUsize::new(0),
            popped: AtomicUsize::new(0),
        }
    }

    pub fn push(&self, item: T) -> Result<(), T> {
        {
            let mut items = self.items.lock().unwrap();
            if items.len() == self.most {
                return Err(item);
            }
            items.push_back(item);
        }
        take_turn();
        self.pushed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn pop(&self) -> Option<T> {
        take_turn();
        let heard = self.pushed.load(Ordering::Acquire);
        if heard == self.popped.load(Ordering::Relaxed) {
            return None;
        }
        self.popped.fetch_add(1, Ordering::Relaxed);
        self.items.lock().unwrap().pop_front()
    }
}
