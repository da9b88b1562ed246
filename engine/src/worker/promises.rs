//! The receives of a shared queue, as they are promised to peers: the sum that never exceeds what
//! there is.
//!
//! Each receive counts as often as it may be promised (`Config::overcommit`). The base windows of
//! `Config::peers` peers are set aside when the queue is made, and each worker sets aside what its
//! refill list may hold, as long as it lives. The rest is the *surplus*. Peers that use their
//! windows borrow it in equal shares, whichever came first, and give it back when they fall idle.
//! Workers that share a queue may have more peers together: their base windows come out of the
//! surplus while some is left.

use super::config::Config;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// See above. Shared by the workers of the queue.
pub(super) struct Promises {
    /// The surplus, lent or not.
    surplus: AtomicU32,
    /// The part of it that is not lent.
    spare: AtomicU32,
    /// Peers that share it.
    borrowers: AtomicU32,
    /// A peer found no base window. Set until somebody gives something back.
    refused: AtomicBool,
    /// Receives set aside for base windows that no peer has.
    aside: AtomicU32,
}

/// Where a base window comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// From those that were set aside.
    Aside,
    /// From the surplus, because the workers of the queue have more peers together.
    Surplus,
}

impl Promises {
    pub(super) fn new(config: &Config) -> Promises {
        let all = config.recv_blocks.saturating_mul(config.overcommit);
        let aside = if config.window == 0 { 0 } else { config.reserved().min(all) };
        Promises {
            surplus: AtomicU32::new(all - aside),
            spare: AtomicU32::new(all - aside),
            borrowers: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            aside: AtomicU32::new(aside),
        }
    }

    /// Takes `count` out of the surplus.
    ///
    /// # Errors
    /// What there is, if that is less.
    pub(super) fn set_aside(&self, count: u32) -> Result<(), u32> {
        self.take(|spare| spare.checked_sub(count))?;
        self.surplus.fetch_sub(count, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what was set aside.
    pub(super) fn put_aside(&self, count: u32) {
        self.surplus.fetch_add(count, Ordering::Relaxed);
        self.give_back(count);
    }

    /// A base window of `count`, from those set aside or else from the surplus.
    ///
    /// # Errors
    /// What is left of the surplus, if that is less.
    pub(super) fn take_base(&self, count: u32) -> Result<Base, u32> {
        // Relaxed: a count, which guards no other memory. Its receives are never lent.
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let less = |aside: u32| aside.checked_sub(count);
        if self.aside.fetch_update(set, get, less).is_ok() {
            return Ok(Base::Aside);
        }
        let taken = self.take(|spare| spare.checked_sub(count));
        if taken.is_err() {
            self.refused.store(true, Ordering::Relaxed);
        }
        taken.map(|_| Base::Surplus)
    }

    /// Gives a base window back to where it came from.
    pub(super) fn put_base(&self, count: u32, base: Base) {
        match base {
            Base::Aside => drop(self.aside.fetch_add(count, Ordering::Relaxed)),
            Base::Surplus => self.give_back(count),
        }
    }

    /// Borrows up to `count`: how many.
    pub(super) fn take_up_to(&self, count: u32) -> u32 {
        let before = self.take(|spare| Some(spare.saturating_sub(count))).unwrap_or_default();
        before.min(count)
    }

    /// Acquire pairs with the Release in `give_back`: the receives that another worker gave back
    /// are posted, before a peer of this one hears of them.
    fn take(&self, less: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        self.spare.fetch_update(Ordering::Acquire, Ordering::Relaxed, less)
    }

    /// Gives back what was borrowed. The receives are posted, or in a refill list that was set
    /// aside for, or the worker that has them posts them in the same turn. A worker that is dropped
    /// does so in its last turns.
    pub(super) fn give_back(&self, count: u32) {
        if count > 0 {
            self.spare.fetch_add(count, Ordering::Release);
            // Relaxed, here and below: it only steers.
            self.refused.store(false, Ordering::Relaxed);
        }
    }

    /// True if others need what a peer does not use: some are busy and there is less for them than
    /// `most`, or one was turned away.
    pub(super) fn are_wanted(&self, most: u32) -> bool {
        let busy = self.borrowers.load(Ordering::Relaxed) > 0 && self.spare() < most;
        busy || self.refused.load(Ordering::Relaxed)
    }

    /// What is not lent.
    pub(super) fn spare(&self) -> u32 {
        self.spare.load(Ordering::Relaxed)
    }

    /// One more peer shares the surplus.
    pub(super) fn join(&self) {
        // Relaxed, here and below: a figure that only steers.
        self.borrowers.fetch_add(1, Ordering::Relaxed);
    }

    /// One peer less does.
    pub(super) fn leave(&self) {
        self.borrowers.fetch_sub(1, Ordering::Relaxed);
    }

    /// What each of those peers may borrow.
    pub(super) fn share(&self) -> u32 {
        let surplus = self.surplus.load(Ordering::Relaxed);
        surplus / self.borrowers.load(Ordering::Relaxed).max(1)
    }
}
