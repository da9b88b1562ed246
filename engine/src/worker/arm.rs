//! Going to sleep without losing a wake-up.

use core::fmt;
use core::time::Duration;

use super::credit_return::CreditReturns;
use super::handler::Handler;
use super::recv_blocks::Refill;
use super::turn::Worker;
use crate::provider::wake::WakeFds;
use crate::provider::{Poller, Provider};

/// The worker has something to do: turn it, and [`Worker::advance`] it if it has timers, before
/// you arm it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker has something to do: turn it, then arm it again")]
pub struct Busy;

/// A worker with nothing to do. Until this value is dropped, every completion, every letter of the
/// control plane and all submitted work makes its descriptors readable; credit does not, see
/// [`Armed::look_again`]. Made by [`Worker::arm`].
#[must_use = "a worker is armed until this is dropped"]
pub struct Armed<'w, P: Provider, H: Handler<P>> {
    worker: &'w mut Worker<P, H>,
    fds: Option<WakeFds>,
    look_again: Option<Duration>,
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Prepares the worker for a sleep: tells everybody that it sleeps, arms the device (CP-6), and
    /// takes one more turn, in this order. Whatever comes after the announcement makes the
    /// descriptors readable, and that turn finds what came before. So no wake-up is lost, whatever
    /// the caller waits with. Only credit makes nothing readable: [`Armed::look_again`] bounds the
    /// wait of a worker whose handler was refused a message or told of little room in that turn, or
    /// whose replies wait.
    ///
    /// Wait until a descriptor of [`Armed::fds`] is readable, no longer than until
    /// [`Armed::next_timer`], and no longer than [`Armed::look_again`]. Then drop the value,
    /// [`Worker::advance`] the worker if it has timers, and turn again. The wait may end early, for
    /// any reason. If nobody steps the worker's control plane, arm it again after 100 ms: it then
    /// looks for peers that have ended.
    ///
    /// # Errors
    /// [`Busy`]: there is something to do, and the worker is not armed.
    #[inline(never)]
    pub fn arm(&mut self) -> Result<Armed<'_, P, H>, Busy> {
        self.core.refill(Refill::All);
        let now = self.core.clock();
        CreditReturns::settle(&mut self.core.sender, now);
        self.settled = false;
        self.publish_stats();
        self.check_health();
        self.core.mailbox.watches.look();
        let stalls = self.core.sender.accounts.stats.credit_stalls;
        self.core.mailbox.state.begin_rest();
        let fds = self.core.poller.wake_fds().filter(|_| self.core.poller.arm(false).is_ok());
        // Whichever way this function ends, dropping this value undoes the two calls above.
        let mut armed = Armed { worker: self, fds, look_again: None };
        let worker = &mut *armed.worker;
        // A completion from before the worker was armed wakes nobody.
        let taken = worker.turn_full();
        let core = &mut worker.core;
        let left = core.mailbox.has_mail() || core.mailbox.state.has_work();
        let due = core.timers.next_at().is_some_and(|at| at <= core.timers.now);
        // A peer that broke a rule, or has gone, ends with the next turn that flushes.
        let broken = !core.sender.accounts.broken.is_empty();
        if taken > 0 || left || due || broken || !core.is_settled_but_for_replies() {
            return Err(Busy);
        }
        let look_again = core.poller.look_again();
        // A message was refused, and the handler may send it again.
        let refused = core.sender.accounts.stats.credit_stalls != stalls;
        let rest = if refused || core.waits_for_credit() {
            Some(worker.credit_rest.next(worker.core.sender.accounts.stats.sent))
        } else {
            worker.credit_rest.end();
            None
        };
        worker.core.count_sleep();
        armed.look_again = rest.into_iter().chain(look_again).min();
        Ok(armed)
    }
}

impl<P: Provider, H: Handler<P>> Armed<'_, P, H> {
    /// The descriptors to wait on. They stay the same as long as the worker lives. `None`: the
    /// device cannot wake anybody, so only the waker of [`Worker::set_waker`] is called, and a
    /// completion wakes nobody.
    pub fn fds(&self) -> Option<WakeFds> {
        self.fds
    }

    /// How long the wait may last, counted from when the worker was armed. `None`: until a
    /// descriptor is readable.
    ///
    /// The device sets a limit if it has something to do by itself ([`Poller::look_again`]). A
    /// worker that waits for credit sets one too, because a peer grants credit by an RDMA WRITE,
    /// which wakes nobody: 50 µs at first, and up to 1 ms while none comes.
    pub fn look_again(&self) -> Option<Duration> {
        self.look_again
    }

    /// When the next timer is due, on the clock of [`Worker::advance`]; `None` if none is set.
    pub fn next_timer(&self) -> Option<u64> {
        self.worker.next_timer()
    }
}

impl<P: Provider, H: Handler<P>> Drop for Armed<'_, P, H> {
    fn drop(&mut self) {
        if self.fds.is_some() {
            self.worker.core.poller.woken();
        }
        self.worker.core.mailbox.state.end_rest();
    }
}

impl<P: Provider, H: Handler<P>> fmt::Debug for Armed<'_, P, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Armed").field("fds", &self.fds).finish_non_exhaustive()
    }
}
