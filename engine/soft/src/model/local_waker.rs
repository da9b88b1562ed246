//! How a domain goes to sleep, and what wakes it.
//!
//! A peer wakes it through the link ([`crate::shm::peer_waker`]). The control plane, and a thread
//! that posts receives the domain lacks, wake it through its [`LocalWaker`]. A datagram wakes it
//! through the inbox it goes to.

use crate::provider::wake::Notifier;
use crate::sync::{AtomicBool, Ordering, fence};

/// What wakes a domain of this process.
pub(crate) struct LocalWaker {
    asleep: AtomicBool,
    pub(crate) notifier: Option<Notifier>,
}

impl LocalWaker {
    pub(crate) fn new(notifier: Option<Notifier>) -> LocalWaker {
        LocalWaker { asleep: AtomicBool::new(false), notifier }
    }

    /// Call it after writing what the domain should see. SeqCst: either this thread sees that the
    /// domain sleeps, or the domain's last look before sleeping sees the write.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(notifier) = &self.notifier
        {
            notifier.ring();
        }
    }

    /// As [`LocalWaker::wake`], for a caller inside the domain: nobody enters it meanwhile to go to
    /// sleep. If the domain is awake, this is one load.
    #[inline]
    pub(crate) fn wake_from_inside(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    pub(crate) fn set(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// For a caller inside the domain. Relaxed: the domain's last thread has set it, and whoever
    /// clears it rings.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}
