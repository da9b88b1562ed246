//! Loops around the turn: until told to stop, with a clock, with rests.

use core::sync::atomic::{AtomicBool, Ordering};

use super::drain::Undone;
use super::handler::Handler;
use super::outbox::Outbox;
use super::recv_blocks::Refill;
use super::turn::Worker;
use crate::provider::wake::WakeFds;
use crate::provider::{Poller, Provider};

/// Turns in which closed peers get their last completions.
const CLOSE_TURNS: u32 = 1 << 12;

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
        self.core.mailbox.watches.look();
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

    /// Ends all connections in order, and turns meanwhile. The worker takes no new peers from now
    /// on. To each peer goes everything that was accepted for it, and the answers to messages that
    /// the handler keeps ([`super::Outbox::keep`]); then a goodbye, after which the peer's handler
    /// sees [`DownReason::Finished`](super::DownReason::Finished). This side's handler sees
    /// `Closed`, after every request of that peer has ended.
    ///
    /// `more` is called after every turn and says whether there is time: false closes at once what
    /// is left. Without a clock it can count turns. Returns what had not ended by then.
    ///
    /// ```
    /// # use doorbell_engine::worker::{Handler, Worker};
    /// # use doorbell_seam::provider::Provider;
    /// use std::time::{Duration, Instant};
    ///
    /// # fn stop<P: Provider, H: Handler<P>>(mut worker: Worker<P, H>) {
    /// let end = Instant::now() + Duration::from_secs(1);
    /// let left = worker.drain(|| Instant::now() < end);
    /// if left.peers > 0 {
    ///     eprintln!("{} peers did not take everything in time", left.peers);
    /// }
    /// # }
    /// ```
    pub fn drain(&mut self, mut more: impl FnMut() -> bool) -> Undone {
        self.core.mailbox.close_to_peers();
        let mut left = Undone::default();
        loop {
            // Peers that were admitted before come up now.
            self.core.finish_all();
            self.settled = false;
            self.turn_full();
            if self.peers() == 0 && !self.core.mailbox.has_mail() {
                break;
            }
            if !more() {
                let (peers, requests, kept) = (self.peers(), self.pending(), self.kept());
                left = Undone { peers, requests, kept };
                break;
            }
        }
        self.core.close_all();
        for _ in 0..CLOSE_TURNS {
            if self.peers() == 0 {
                break;
            }
            self.settled = false;
            self.turn_full();
        }
        // The peers' control planes learn of the end from this side's, stepped or not.
        self.core.mailbox.watches.look_now();
        left
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
