//! Loops around the turn: until told to stop, with a clock, with rests.

use core::sync::atomic::{AtomicBool, Ordering};

use super::handler::Handler;
use super::outbox::Outbox;
use super::recv_blocks::Refill;
use super::turn::Worker;
use crate::provider::wake::WakeFds;
use crate::provider::{Poller, Provider};

/// While busy, read the clock on every 16th turn.
const CLOCK_TURNS: u64 = 16;

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Turns until `stop` is true.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// Turns until `stop` is true, with a clock for the timers. It reads the clock after every turn
    /// that finds nothing, and after every 16th that finds something.
    pub fn run_by(&mut self, stop: &AtomicBool, mut clock: impl FnMut() -> u64) {
        let mut busy = 0;
        while !stop.load(Ordering::Relaxed) {
            busy += 1;
            if self.turn() == 0 || busy >= CLOCK_TURNS {
                busy = 0;
                self.advance(clock());
            }
        }
    }

    /// Turns until `stop` is true, and rests after `spin` turns in a row that find nothing: it
    /// calls `rest` until there is something to do.
    ///
    /// `rest` gets the descriptors of the device, which is armed (CP-6), or `None` if the device
    /// cannot wake anybody. It should return when one of them is readable, when the waker of
    /// [`Worker::set_waker`] is called, or after a time of its choice. That time bounds the delay
    /// until `stop` is noticed and, without descriptors, until a completion is noticed.
    /// `doorbell_cm::run_sleeping` does this for threads.
    pub fn run_resting(
        &mut self,
        stop: &AtomicBool,
        spin: u64,
        mut rest: impl FnMut(Option<WakeFds>),
    ) {
        while !stop.load(Ordering::Relaxed) {
            if self.turn() == 0 && self.idle >= spin {
                self.rest_armed(|fds| {
                    if !stop.load(Ordering::Relaxed) {
                        rest(fds);
                    }
                });
            }
        }
    }

    /// Rests once, for callers with a loop of their own: see [`Worker::run_resting`]. It does not
    /// call `rest` if there is something to do. With timers, `rest` should return by
    /// [`Worker::next_timer`].
    #[inline(never)]
    pub fn rest_armed(&mut self, rest: impl FnOnce(Option<WakeFds>)) {
        // Announce, arm, poll again, rest: everything that comes after the announcement wakes the
        // worker.
        self.core.refill(Refill::All);
        self.core.sender.settle_credits();
        self.settled = false;
        self.publish_stats();
        self.check_health();
        let stalls = self.core.sender.accounts.stats.credit_stalls;
        self.core.mailbox.state.begin_rest();
        let fds = self.poller.wake_fds().filter(|_| self.poller.arm(false).is_ok());
        // A completion from before the arming wakes nobody.
        let taken = self.turn_full();
        let left = self.core.mailbox.has_mail() || self.core.mailbox.state.has_work();
        // Credit comes without a completion, so a worker that waits for it stays awake.
        let waits =
            self.core.sender.accounts.stats.credit_stalls != stalls || !self.core.is_settled();
        if taken == 0 && !left && !waits {
            rest(fds);
        }
        if fds.is_some() {
            self.poller.woken();
        }
        self.core.mailbox.state.end_rest();
    }

    /// Tells the worker the time, calls the handler for each timer that is due, and returns their
    /// number. `now` is in the unit of the caller's clock; a time before the last one counts as the
    /// last one. Sends of the handler go out with the next turn.
    pub fn advance(&mut self, now: u64) -> usize {
        self.core.timers.now = self.core.timers.now.max(now);
        let mut fired = 0;
        // If a handler sets a timer that is due at once, the next advance calls it.
        let most = self.core.timers.len();
        while fired < most
            && let Some(key) = self.core.timers.fire()
        {
            fired += 1;
            self.settled = false;
            self.handler.on_timer(key, &mut Outbox { core: &mut self.core });
        }
        fired
    }
}
