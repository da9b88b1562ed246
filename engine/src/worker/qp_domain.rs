//! Where a worker's queue pairs are made: on a thread domain of its own, where there are any.
#![expect(unsafe_code, reason = "a thread domain is a promise")]

use super::config::Config;
use crate::error::SetupError;
use crate::provider::Provider;

/// What stands for the protection domain of `nic` when a worker's queue pairs are made.
pub(super) struct QpDomain<P: Provider> {
    pub(super) nic: P,
    /// It is a parent domain with a thread domain that no other worker has.
    pub(super) own: bool,
}

impl<P: Provider> Clone for QpDomain<P> {
    fn clone(&self) -> Self {
        QpDomain { nic: self.nic.clone(), own: self.own }
    }
}

impl<P: Provider> QpDomain<P> {
    /// Completion queue, shared receive queue and memory stay on `nic`: other threads use those.
    pub(super) fn new(nic: &P, config: &Config) -> Result<Self, SetupError> {
        let shared = || QpDomain { nic: nic.clone(), own: false };
        if !config.thread_domain {
            return Ok(shared());
        }
        const CURE: &str = "make fewer workers, or this one with Config::thread_domain off";
        let cured = |error: SetupError| error.cure(CURE);
        // SAFETY: only queue pairs are made on it, by whoever has promised `Intake::nic` to give
        // them to this worker or to nobody; and the worker posts to them from the thread it is on.
        // It polls a completion queue that is not on the thread domain, and keeps its locks. The
        // control plane makes, connects and disconnects, from another thread, and posts nothing;
        // it moves none to RESET, and destroys only what the worker never had. A request that is
        // not flushed at once because the control plane has moved the queue pair to ERR is flushed
        // with the marker that the worker posts at the end of each peer.
        let own = unsafe { nic.for_one_thread() }.map_err(cured)?;
        Ok(own.map_or_else(shared, |nic| QpDomain { nic, own: true }))
    }
}
