//! The control planes of a worker's connections, as the worker sees them. It asks each of them to
//! end connections that are that one's. A worker leaves a control plane alone that the program
//! steps. If the program has forgotten one, the worker lets it look for peers that have ended,
//! because such a peer would otherwise stay for ever.

use spin::Mutex;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::sync::{ArrayQueue, AtomicBool, Ordering};

/// A control plane of a worker's connections.
pub trait Watch: Send + Sync {
    /// Changes with every step of the control plane.
    fn steps(&self) -> u64;

    /// Looks for connections that have ended, without waiting, and tells their workers. Does
    /// nothing while a step is under way. The worker calls this between turns that found nothing,
    /// or after very many; it may make system calls. If nothing has happened it does not allocate.
    fn look(&self);
}

/// Queue pairs of one control plane whose connections the worker wants ended.
pub(super) struct Closings {
    nums: ArrayQueue<u32>,
    flag: AtomicBool,
}

impl Closings {
    pub(super) fn new(peers: u32) -> Closings {
        // At most one for each peer; and some that the worker had no slot for.
        Closings { nums: ArrayQueue::new(peers as usize + 16), flag: AtomicBool::new(false) }
    }

    /// Asks the control plane to end a connection. False if too many requests wait.
    pub(super) fn put(&self, qp_num: u32) -> bool {
        let fits = self.nums.push(qp_num).is_ok();
        self.flag.store(true, Ordering::Release);
        fits
    }

    /// A queue pair whose connection the worker wants ended, if there is one.
    pub(super) fn take(&self) -> Option<u32> {
        if !self.flag.load(Ordering::Acquire) {
            return None;
        }
        if let Some(qp_num) = self.nums.pop() {
            return Some(qp_num);
        }
        self.flag.swap(false, Ordering::AcqRel);
        let last = self.nums.pop();
        if last.is_some() {
            // It came after the flag was lowered, and may not be the only one.
            self.flag.store(true, Ordering::Relaxed);
        }
        last
    }
}

/// A control plane, and the steps it had done when the worker last looked.
struct Watched {
    watch: Arc<dyn Watch>,
    steps: u64,
}

/// The control planes of one worker's connections.
#[derive(Default)]
pub(super) struct Watches(Mutex<Vec<Watched>>);

impl Watches {
    pub(super) fn add(&self, watch: &Arc<dyn Watch>) {
        let mut list = self.0.lock();
        if !list.iter().any(|known| Arc::ptr_eq(&known.watch, watch)) {
            list.push(Watched { watch: watch.clone(), steps: u64::MAX });
        }
    }

    pub(super) fn remove(&self, watch: &Arc<dyn Watch>) {
        self.0.lock().retain(|known| !Arc::ptr_eq(&known.watch, watch));
    }

    /// Lets each control plane look that has made no step since the last call. It does not wait.
    #[cold]
    pub(super) fn look(&self) {
        let Some(mut list) = self.0.try_lock() else { return };
        for Watched { watch, steps } in list.iter_mut() {
            let now = watch.steps();
            if core::mem::replace(steps, now) == now {
                watch.look();
            }
        }
    }

    /// Lets all of them look now.
    pub(super) fn look_now(&self) {
        self.0.lock().iter().for_each(|known| known.watch.look());
    }

    pub(super) fn clear(&self) {
        // Dropped outside the lock.
        let list = core::mem::take(&mut *self.0.lock());
        drop(list);
    }
}
