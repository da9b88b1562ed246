//! Where a worker's queue pairs are made: on its own thread domain, if the device has them.
#![expect(unsafe_code, reason = "a thread domain is a promise")]

use super::config::Config;
use crate::error::SetupError;
use crate::provider::Provider;

/// Stands for the protection domain of `nic` when a worker's queue pairs are made.
pub(super) struct QpDomain<P: Provider> {
    pub(super) nic: P,
    /// It is a parent domain with a thread domain that no other worker uses.
    pub(super) own: bool,
}

impl<P: Provider> Clone for QpDomain<P> {
    fn clone(&self) -> Self {
        QpDomain { nic: self.nic.clone(), own: self.own }
    }
}

impl<P: Provider> QpDomain<P> {
    /// Completion queue, shared receive queue and memory stay on `nic`, because other threads use
    /// them.
    pub(super) fn new(nic: &P, config: &Config) -> Result<Self, SetupError> {
        let shared = || QpDomain { nic: nic.clone(), own: false };
        if !config.thread_domain {
            return Ok(shared());
        }
        const CURE: &str = "make fewer workers, or this one with Config::thread_domain off";
        let cured = |error: SetupError| error.cure(CURE);
        // SAFETY: only queue pairs are made on it. Its users have promised, by `Intake::nic`, to
        // give them to this worker or to nobody, and the worker posts to them from its own thread.
        // It polls a completion queue that is not on the thread domain and keeps its locks. The
        // control plane makes, connects and disconnects queue pairs from another thread, but posts
        // nothing, moves none to RESET, and destroys only those that the worker never had. If the
        // control plane moves a queue pair to ERR, a request that is not flushed at once is flushed
        // with the marker that the worker posts at the end of each peer.
        let own = unsafe { nic.for_one_thread() }.map_err(cured)?;
        Ok(own.map_or_else(shared, |nic| QpDomain { nic, own: true }))
    }
}
