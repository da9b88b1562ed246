//! A kept connection: dialed again, after growing waits, whenever it has ended.

use std::time::{Duration, Instant};

use doorbell_engine::worker::{Intake, PeerData, Refusal};
use doorbell_fabric::{CmError, Fabric, IdKey};

use crate::peer_handle::PeerHandle;

/// How long to wait before dialing again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure, or after the end of a connection.
    pub first: Duration,
    /// The longest wait; each failure doubles the wait up to this.
    pub most: Duration,
    /// How long one try may take.
    pub limit: Duration,
    /// Consecutive failures after which it is given up; 0 means never.
    pub tries: u32,
}

impl Backoff {
    /// First wait 0.1 s, doubled up to 5 s; 1 s for each try; never gives up.
    pub const DEFAULT: Backoff = Backoff {
        first: Duration::from_millis(100),
        most: Duration::from_secs(5),
        limit: Duration::from_secs(1),
        tries: 0,
    };

    /// The wait after `failures` failures in a row.
    fn wait(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(doubled).min(self.most.max(self.first))
    }
}

/// The state of a kept connection.
enum State {
    /// It is being dialed.
    Dialing,
    /// It was up when last seen.
    Up(IdKey),
    /// It is tried again at that time; `None`: never.
    Due(Option<Instant>),
    /// It is no longer tried.
    GivenUp,
}

/// A kept connection.
pub(crate) struct Kept<F: Fabric> {
    pub(crate) handle: PeerHandle,
    pub(crate) data: PeerData,
    pub(crate) intake: Intake<F>,
    pub(crate) backoff: Backoff,
    state: State,
    failures: u32,
    /// Why the last try failed.
    error: Option<CmError>,
}

impl<F: Fabric> Kept<F> {
    pub(crate) fn new(
        handle: PeerHandle,
        data: PeerData,
        intake: Intake<F>,
        backoff: Backoff,
    ) -> Kept<F> {
        let state = State::Due(Some(Instant::now()));
        Kept { handle, data, intake, backoff, state, failures: 0, error: None }
    }

    /// True if its program has ended it.
    pub(crate) fn is_over(&self) -> bool {
        self.handle.is_ending()
    }

    /// True if it should be tried now. `alive` tells whether a connection is still up.
    pub(crate) fn is_due(&mut self, now: Instant, alive: impl Fn(IdKey) -> bool) -> bool {
        match self.state {
            State::Up(key) if !alive(key) => {
                self.state = State::Due(now.checked_add(self.backoff.wait(1)));
                false
            }
            State::Due(at) => at.is_some_and(|at| at <= now),
            State::Up(_) | State::Dialing | State::GivenUp => false,
        }
    }

    /// A try has begun.
    pub(crate) fn started(&mut self) {
        self.state = State::Dialing;
    }

    /// True if the try in progress is the dial with that handle.
    pub(crate) fn is_dialed(&self, handle: &PeerHandle) -> bool {
        matches!(self.state, State::Dialing) && self.handle.is_same(handle)
    }

    /// Records the result of a try: the connection, or the error and the peer's reason.
    pub(crate) fn tried(
        &mut self,
        now: Instant,
        result: Result<IdKey, (CmError, Option<Refusal>)>,
    ) {
        match result {
            Ok(key) => {
                (self.state, self.failures, self.error) = (State::Up(key), 0, None);
            }
            Err((error, refusal)) => {
                self.failures += 1;
                self.error = Some(error.clone());
                let often = self.backoff.tries > 0 && self.failures >= self.backoff.tries;
                let enough = often || self.intake.has_ended();
                let again = State::Due(now.checked_add(self.backoff.wait(self.failures)));
                self.state = if enough { State::GivenUp } else { again };
                self.handle.failed(Some(error), refusal);
                if enough {
                    self.handle.is_over();
                }
            }
        }
    }

    /// The time of the next try.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) => at,
            State::Up(_) | State::Dialing | State::GivenUp => None,
        }
    }

    /// The last failure, if it is given up.
    pub(crate) fn given_up(&self) -> Option<&CmError> {
        self.error.as_ref().filter(|_| matches!(self.state, State::GivenUp))
    }
}

impl<F: Fabric> Drop for Kept<F> {
    fn drop(&mut self) {
        self.handle.is_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most() {
        let backoff = Backoff { most: Duration::from_millis(900), ..Backoff::DEFAULT };
        let waits = [1, 2, 3, 4, 5, 40, u32::MAX].map(|n| backoff.wait(n).as_millis());
        assert_eq!(waits, [100, 200, 400, 800, 900, 900, 900]);
        let odd = Backoff { most: Duration::ZERO, ..backoff };
        assert_eq!(odd.wait(9), odd.first);
    }
}
