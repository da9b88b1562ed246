//! When a domain must look again although nobody wakes it.

use core::time::Duration;

/// The earliest time, on the device's clock, at which something is due in a domain that nobody
/// announces. Those who sleep have been told it, or are woken to hear it.
#[derive(Default)]
pub(crate) struct NextLook(Option<u64>);

impl NextLook {
    /// Something is due at that time. True if nobody expects a look by then.
    pub(crate) fn bring_forward(&mut self, at: u64, now: u64) -> bool {
        let expected = self.0.is_some_and(|next| now < next && next <= at);
        if !expected {
            self.0 = Some(at);
        }
        !expected
    }

    /// Forgets a time that has passed: the look that follows says anew what is due.
    pub(crate) fn renew(&mut self, clock: fn() -> u64) {
        if self.0.is_some_and(|at| at <= clock()) {
            self.0 = None;
        }
    }

    /// How long it is until that time.
    pub(crate) fn left(&self, clock: fn() -> u64) -> Option<Duration> {
        self.0.map(|at| Duration::from_nanos(at.saturating_sub(clock())))
    }
}
