//! How long a worker sleeps that waits for credit.
//!
//! Credit comes by an RDMA WRITE, which makes no completion at its target, so nobody wakes the
//! worker. It looks itself: soon at first, because most waits are short, and then less and less
//! often.

use core::time::Duration;

/// The first sleep. A sleep and its end take some microseconds.
const SHORTEST: Duration = Duration::from_micros(50);
/// Each sleep is twice as long as the one before, up to this. A worker that looks this often uses
/// about a hundredth of its core.
const LONGEST: Duration = Duration::from_millis(1);

/// The sleeps of a worker that waits for credit.
pub(super) struct CreditRest {
    next: Duration,
    /// The messages that had been sent at the last sleep.
    sent: u64,
}

impl CreditRest {
    pub(super) fn new() -> CreditRest {
        CreditRest { next: SHORTEST, sent: 0 }
    }

    /// How long the worker may sleep now. `sent` counts the messages that it has sent so far. If
    /// the count has changed since the last sleep, credit came, and a new wait begins.
    pub(super) fn next(&mut self, sent: u64) -> Duration {
        if core::mem::replace(&mut self.sent, sent) != sent {
            self.end();
        }
        let rest = self.next;
        self.next = (2 * rest).min(LONGEST);
        rest
    }

    /// The worker does not wait for credit any more.
    pub(super) fn end(&mut self) {
        self.next = SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_get_longer_until_credit_comes() {
        let mut rest = CreditRest::new();
        let mut micros = |sent| rest.next(sent).as_micros();
        assert_eq!([5; 7].map(&mut micros), [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!([6, 6, 7].map(&mut micros), [50, 100, 50]);
        rest.next(7);
        rest.end();
        assert_eq!(rest.next(7), SHORTEST);
    }
}
