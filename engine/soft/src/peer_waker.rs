//! Waking a peer that sleeps.
//!
//! The sleeper writes that it sleeps, makes every processor of its peers pass a barrier
//! ([`super::Host::barrier`]), looks once more for work, and only then sleeps. The peer publishes
//! and then reads the word. Both are two steps on two words, and without the barrier each side
//! could miss the other's. With it: a publication before the peer passed is seen by the last look;
//! one after it is followed by a read that finds the sleeper asleep. So the peer needs no fence of
//! its own, only that its compiler keeps the order, and pays a load of a line that nobody writes.
#![expect(unsafe_code, reason = "a word of shared memory")]

use core::ptr::NonNull;

use super::layout::{LinkHeader, Side};
use super::sync::{AtomicU32, Ordering, half_barrier};
use crate::provider::wake::Bell;

/// What wakes the domain at the other end of a link.
pub(super) struct PeerWaker {
    asleep: NonNull<AtomicU32>,
    bell: Option<Bell>,
}

// SAFETY: an atomic word in memory that the link keeps, and a bell that any thread may ring.
unsafe impl Send for PeerWaker {}

impl PeerWaker {
    /// For the domain on that side of a link, which keeps its memory as long as the alarm lives.
    pub(super) fn new(header: &LinkHeader, side: Side, bell: Option<Bell>) -> PeerWaker {
        PeerWaker { asleep: NonNull::from(header.asleep(side)), bell }
    }

    /// To be called after what the peer should see was published.
    #[inline(always)]
    pub(super) fn check(&self) {
        half_barrier();
        // SAFETY: the link that has this alarm keeps the memory.
        if unsafe { self.asleep.as_ref() }.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// The first to find it asleep rings; the others need not.
    #[cold]
    #[inline(never)]
    fn ring(&self) {
        // SAFETY: as above.
        let before = unsafe { self.asleep.as_ref() }.swap(0, Ordering::AcqRel);
        if let (true, Some(bell)) = (before != 0, &self.bell) {
            bell.ring();
        }
    }
}
