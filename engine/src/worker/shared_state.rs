//! What other threads can do with a worker: give it work, wake it, and read its counters.

use spin::Once;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use super::stats::{PublishedStats, Stats};
use crate::provider::wake::Notifier;
use crate::sync::{ArrayQueue, AtomicBool, Ordering, fence};

/// Wakes a thread that rests.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The state that the worker shares with its handles.
pub(super) struct SharedState {
    work: ArrayQueue<u64>,
    has_work: AtomicBool,
    /// The worker's thread rests or is about to.
    resting: AtomicBool,
    /// The worker has ended. Never changes back.
    ended: AtomicBool,
    /// Makes the descriptors readable that the worker sleeps on, if the device has any.
    notifier: Option<Notifier>,
    waker: Once<Waker>,
    pub(super) published: PublishedStats,
}

impl SharedState {
    pub(super) fn new(work: u32, notifier: Option<Notifier>) -> SharedState {
        SharedState {
            work: ArrayQueue::new((work as usize).max(1)),
            has_work: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            notifier,
            waker: Once::new(),
            published: PublishedStats::new(),
        }
    }

    /// True if there is work. Acquire pairs with `submit`.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        self.has_work.load(Ordering::Acquire)
    }

    /// Takes the oldest piece of work; lowers the flag when there is none.
    pub(super) fn take(&self) -> Option<u64> {
        if let Some(key) = self.work.pop() {
            return Some(key);
        }
        // Lowered before the last look: later work raises the flag again.
        self.has_work.swap(false, Ordering::AcqRel);
        let last = self.work.pop();
        if last.is_some() {
            // It came after the flag was lowered, and may not be the only one; the caller may stop
            // here.
            self.has_work.store(true, Ordering::Relaxed);
        }
        last
    }

    /// Wakes the worker if it rests, because mail or work was left for it.
    pub(super) fn wake(&self) {
        // SeqCst, as in `begin_rest`: either this thread sees that the worker rests, or the worker
        // sees the mail or work before it rests. Without it a wake-up could be lost.
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) {
            if let Some(notifier) = &self.notifier {
                notifier.ring();
            }
            if let Some(waker) = self.waker.get() {
                waker();
            }
        }
    }

    /// The worker is about to rest; it checks for mail and work after this call.
    pub(super) fn begin_rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(super) fn end_rest(&self) {
        self.resting.store(false, Ordering::Relaxed);
    }

    /// The worker has ended. Relaxed: a hint, which orders nothing.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn set_waker(&self, waker: Waker) {
        self.waker.call_once(|| waker);
    }
}

/// A worker as other threads know it. Clones are handles to the same worker.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<SharedState>);

impl Handle {
    /// Gives the worker work: one of the next turns calls its handler's [`super::Handler::on_work`]
    /// with `key`. The keys of one thread keep their order. Wakes a worker that rests. False:
    /// `Config::work` keys wait already, because the worker does not turn, or it has ended
    /// ([`Handle::has_ended`]). A worker that ends drops the keys that it has not taken.
    #[must_use]
    pub fn submit(&self, key: u64) -> bool {
        if self.has_ended() {
            return false;
        }
        let fits = self.0.work.push(key).is_ok();
        self.0.has_work.store(true, Ordering::Release);
        self.0.wake();
        fits
    }

    /// True if the worker was dropped: it will do nothing more.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Wakes a worker that rests, without work for it: a loop that rests then looks at its `stop`.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// The worker's counters, at most some 4096 turns old. After 64 idle turns in a row, and before
    /// the worker sleeps, they are up to date. The worker does not stop for this, and the numbers
    /// are not all of the same moment.
    pub fn stats(&self) -> Stats {
        self.0.published.read()
    }
}
