//! The control planes of a worker's connections, as the worker sees them. A worker leaves a control
//! plane alone that the program steps. If the program has forgotten one, the worker lets it look
//! for peers that have ended, because such a peer would otherwise stay for ever.

use spin::Mutex;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

/// A control plane of a worker's connections.
pub trait Watch: Send + Sync {
    /// Changes with every step of the control plane.
    fn steps(&self) -> u64;

    /// Looks for connections that have ended, without waiting, and tells their workers. Does
    /// nothing while a step is under way. The worker calls this between turns that found nothing,
    /// or after very many; it may make system calls. If nothing has happened it does not allocate.
    fn look(&self);
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
