//! How a domain goes to sleep, and what wakes it.
//!
//! A peer wakes it through the link ([`super::peer_waker`]). The control plane, and a thread that
//! posts receives the domain lacks, wake it through its [`LocalWaker`]. A datagram wakes it through
//! the inbox it goes to.

use super::sync::{AtomicBool, Ordering, fence};
use crate::provider::wake::Bell;

/// What wakes a domain of this process.
pub(super) struct LocalWaker {
    asleep: AtomicBool,
    pub(super) bell: Option<Bell>,
}

impl LocalWaker {
    pub(super) fn new(bell: Option<Bell>) -> LocalWaker {
        LocalWaker { asleep: AtomicBool::new(false), bell }
    }

    /// Call it after writing what the domain should see. SeqCst: either this thread sees that the
    /// domain sleeps, or the domain's last look before sleeping sees the write.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(bell) = &self.bell
        {
            bell.ring();
        }
    }

    pub(super) fn set(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }
}
