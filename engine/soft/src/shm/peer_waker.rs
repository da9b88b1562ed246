//! Waking a peer that sleeps.
//!
//! The sleeper sets its word, makes every processor of its peers pass a barrier
//! ([`crate::Host::barrier`]), looks once more for work, and only then sleeps. The peer publishes
//! and then reads the word. Each side stores to one word and then reads the other's, so without the
//! barrier each could miss the other's store. With it, the last look sees a publication that was
//! made before the peer passed the barrier, and a later publication is followed by a read that
//! finds the sleeper asleep. So the peer needs no fence, only a compiler barrier, and pays for a
//! load of a line that nobody writes.

use spin::Once;
use std_alloc::sync::Arc;

use crate::prefetch::fetch_line;
use crate::provider::wake::Notifier;
use crate::shm::layout::{LinkHeader, Side, Word};
use crate::sync::{Ordering, half_barrier};

/// What wakes the domain at the other end of a link.
pub(crate) struct PeerWaker {
    asleep: Word,
    /// Set as soon as it is known.
    notifier: Arc<Once<Notifier>>,
}

impl PeerWaker {
    /// For the domain on that side of a link.
    pub(crate) fn new(header: &LinkHeader, side: Side, notifier: Arc<Once<Notifier>>) -> PeerWaker {
        PeerWaker { asleep: header.asleep_word(side), notifier }
    }

    /// Call it after publishing what the peer should see.
    #[inline(always)]
    pub(crate) fn check(&self) {
        half_barrier();
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Prefetches the word that the next check reads.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self) {
        fetch_line(core::ptr::from_ref(&*self.asleep).cast());
    }

    /// The first thread to find the peer asleep wakes it; the others need not.
    #[cold]
    #[inline(never)]
    fn ring(&self) {
        let before = self.asleep.swap(0, Ordering::AcqRel);
        if let (true, Some(notifier)) = (before != 0, self.notifier.get()) {
            notifier.ring();
        }
    }
}
