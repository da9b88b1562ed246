//! Waking a sleeping thread, through system descriptors of any kind.

use core::any::Any;
use core::fmt;
use std_alloc::sync::Arc;

/// A descriptor that any thread can make readable, a pipe or an eventfd in practice. Cloning gives
/// another handle.
#[derive(Clone)]
pub struct Notifier {
    fd: i32,
    ring: fn(i32),
    clear: fn(i32),
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Notifier {
    /// A notifier over descriptor `fd`, open as long as `keep` lives. `ring` makes it readable,
    /// `clear` makes it unreadable until the next `ring`; neither blocks.
    pub fn new(
        fd: i32,
        keep: Arc<dyn Any + Send + Sync>,
        ring: fn(i32),
        clear: fn(i32),
    ) -> Notifier {
        Notifier { fd, ring, clear, _keep: keep }
    }

    /// The descriptor, to wait on until it is readable.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// Wakes the thread that waits on the descriptor now, or the next one that does.
    pub fn ring(&self) {
        (self.ring)(self.fd);
    }

    /// Forgets the rings so far.
    pub fn clear(&self) {
        (self.clear)(self.fd);
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// The descriptors of a sleeping [`super::Poller`]: readable when there is a reason to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeFds {
    /// Something came for the thread that polls.
    pub device: i32,
    /// Another thread put something into this queue, if threads can.
    pub queue: Option<i32>,
}

impl WakeFds {
    /// Both; the same twice if there is but one.
    pub fn all(&self) -> [i32; 2] {
        [self.device, self.queue.unwrap_or(self.device)]
    }
}
