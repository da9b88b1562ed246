//! Waking a peer that sleeps.
//!
//! The sleeper sets its word, makes every processor of its peers pass a barrier
//! ([`crate::Host::barrier`]), looks once more for work, and only then sleeps. The peer publishes
//! and then reads the word. Each side stores to one word and then reads the other's, so without the
//! barrier each could miss the other's store. With it, the last look sees a publication that was
//! made before the peer passed the barrier, and a later publication is followed by a read that
//! finds the sleeper asleep. So the peer needs no fence, only a compiler barrier, and pays for a
//! load of a line that nobody writes.
#![expect(unsafe_code, reason = "a word of shared memory")]

use core::ptr::NonNull;

use crate::provider::wake::Notifier;
use crate::shm::layout::{LinkHeader, Side};
use crate::sync::{AtomicU32, Ordering, half_barrier};

/// What wakes the domain at the other end of a link.
pub(crate) struct PeerWaker {
    asleep: NonNull<AtomicU32>,
    notifier: Option<Notifier>,
}

// SAFETY: an atomic word in memory that the link keeps, and a notifier that any thread may ring.
unsafe impl Send for PeerWaker {}

impl PeerWaker {
    /// For the domain on that side of a link. The link keeps its memory as long as this value
    /// lives.
    pub(crate) fn new(header: &LinkHeader, side: Side, notifier: Option<Notifier>) -> PeerWaker {
        PeerWaker { asleep: NonNull::from(header.asleep(side)), notifier }
    }

    /// Call it after publishing what the peer should see.
    #[inline(always)]
    pub(crate) fn check(&self) {
        half_barrier();
        // SAFETY: the link that owns this value keeps the memory.
        if unsafe { self.asleep.as_ref() }.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// The first thread to find the peer asleep wakes it; the others need not.
    #[cold]
    #[inline(never)]
    fn ring(&self) {
        // SAFETY: as above.
        let before = unsafe { self.asleep.as_ref() }.swap(0, Ordering::AcqRel);
        if let (true, Some(notifier)) = (before != 0, &self.notifier) {
            notifier.ring();
        }
    }
}
