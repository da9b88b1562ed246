//! The deadlines of a channel's ends, in the order of time: one of each end at most.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Deadlines {
    of: HashMap<u64, Instant>,
    order: BTreeSet<(Instant, u64)>,
}

impl Deadlines {
    /// The end with that key has this deadline from now on; `None`: no deadline.
    pub(super) fn set(&mut self, key: u64, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.of.insert(key, at),
            None => self.of.remove(&key),
        };
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.order.insert((at, key));
        }
    }

    /// The next one.
    pub(super) fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the next one if its time has come, and returns the key of its end.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u64> {
        let (_, key) = self.order.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(key, None);
        Some(key)
    }
}
