//! The turn: poll, admit, dispatch, flush, refill.

use core::mem;

use std_alloc::vec::Vec;

use super::admit;
use super::core::Core;
use super::dispatch;
use super::doorbell_policy::Cost;
use super::drain;
use super::handler::Handler;
use super::message::DownReason;
use super::outbox::Outbox;
use super::recv_blocks::Refill;
use crate::provider::{Polled, Poller, Provider, Qp};
use crate::wc::{Status, Wc};

/// Every so many idle turns even a few released blocks go back to the shared queue.
const REFILL_IDLE_TURNS: u64 = 64;

/// Every so many turns other threads see new counters.
pub(super) const PUBLISH_TURNS: u64 = 1 << 12;

/// Of turns that find nothing, one in so many looks at everything. All the other numbers of idle
/// turns are multiples of it.
const FULL_IDLE_TURNS: u64 = 16;

/// Of turns of a conversation that leave nothing to do, one in so many does everything.
const FULL_BUSY_TURNS: u64 = 16;

/// After so many idle turns in a row as well: not between the messages of a lively conversation.
const PUBLISH_IDLE_TURNS: u64 = 64;

/// Idle turns after which peers are told of all they may send. Many: it looks at every peer.
const SETTLE_IDLE_TURNS: u64 = 16384;

/// Every so many idle turns the completion queue is asked whether it still works.
const HEALTH_IDLE_TURNS: u64 = 1 << 16;

/// One core's datapath. Not shared: it moves to its thread and stays there.
pub struct Worker<P: Provider, H: Handler<P>> {
    // The core first: its queue pairs are gone before the completion queue they report to.
    pub(super) core: Core<P>,
    pub(super) poller: P::Poller,
    /// Places for the completions of a poll, `POLL_BATCH` of them.
    pub(super) wcs: Vec<Wc>,
    /// Those of them, the first ones, that a handler's panic has left to be dispatched.
    pub(super) left: usize,
    /// Turns in a row that found nothing; and those of them that are not counted yet.
    pub(super) idle: u64,
    pub(super) uncounted: u64,
    /// Turns of a conversation that are not counted yet.
    pub(super) alone: u64,
    /// Nothing is left to do: another turn that finds nothing may be a short one.
    pub(super) settled: bool,
    /// The turn in which other threads see new counters.
    pub(super) publish_at: u64,
    pub(super) handler: H,
}

/// Completions that are being dispatched.
struct Round<'a, P: Provider, H: Handler<P>> {
    worker: &'a mut Worker<P, H>,
    wcs: Vec<Wc>,
    /// The next of them, and the one behind the last.
    next: usize,
    end: usize,
}

impl<P: Provider, H: Handler<P>> Drop for Round<'_, P, H> {
    #[inline(always)]
    fn drop(&mut self) {
        self.worker.wcs = mem::take(&mut self.wcs);
        if self.next < self.end {
            self.worker.leave(self.next, self.end);
        }
    }
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// One bounded step; the number of completions it handled, or 1 where a handler's panic in the
    /// turn before had left some for it.
    ///
    /// Poll comes before admit: a peer is put in the mailbox before it may send, so after a poll
    /// every queue pair it named is known. Flush comes before refill: no reply waits for
    /// housekeeping. Only behind a full poll may bells wait, for [`Config::hold_turns`] turns: who
    /// stops turning calls [`Outbox::flush`], or turns until a turn finds nothing.
    #[inline(always)]
    pub fn turn(&mut self) -> usize {
        match self.poller.poll_one() {
            Polled::Nothing if self.is_short_idle_turn() => 0,
            Polled::Nothing => self.work(0),
            Polled::One(wc) => self.turn_one(&wc),
            Polled::More => self.turn_full(),
        }
    }

    /// A turn with a poll for a list.
    #[inline(never)]
    pub(super) fn turn_full(&mut self) -> usize {
        if self.left > 0 {
            return self.work(0);
        }
        let taken = self.poller.poll_more(&mut self.wcs);
        if taken == 0 && self.is_short_idle_turn() {
            return 0;
        }
        self.work(taken)
    }

    /// The turn of a worker that has nothing to do but to wait: the shorter it is, the sooner the
    /// next message is seen. One in 16 is a whole one. False: this has to be one.
    #[inline(always)]
    fn is_short_idle_turn(&mut self) -> bool {
        let called = self.core.mailbox.has_mail() || self.core.mailbox.state.has_work();
        if !(self.settled || self.settles())
            || called
            || (self.idle + 1).is_multiple_of(FULL_IDLE_TURNS)
        {
            return false;
        }
        self.idle += 1;
        self.uncounted += 1;
        self.handler.on_idle(&mut Outbox { core: &mut self.core });
        if self.core.sender.has_unsent() {
            self.core.flush();
            self.settled = false;
        }
        true
    }

    /// True if nothing is left to do after all: what was sent between turns has had its bell.
    #[inline(never)]
    fn settles(&mut self) -> bool {
        self.core.sender.count_singles();
        self.settled = self.core.is_settled() && !self.core.sender.accounts.recv.is_refill_due();
        self.settled
    }

    /// The turn of a conversation: one completion, and where it leaves nothing to do, no more than
    /// that. One in 16 is a whole one.
    #[inline(always)]
    fn turn_one(&mut self, wc: &Wc) -> usize {
        if self.core.mailbox.has_mail() {
            if self.left > 0 {
                // Behind what is left of the turn before. Here and not in a function of its own:
                // that would want the completion in memory, in every turn.
                if let Some(place) = self.wcs.get_mut(self.left) {
                    *place = *wc;
                    self.left += 1;
                    self.work(0);
                    return 1;
                }
                self.work(0);
            }
            admit::admit(&mut self.core, &mut self.handler);
        }
        self.core.sender.doorbells.polled_one();
        dispatch::dispatch(&mut self.core, &mut self.handler, wc);
        self.alone += 1;
        if self.alone == FULL_BUSY_TURNS
            || self.core.sender.accounts.recv.is_refill_due()
            || !self.core.is_settled()
        {
            self.alone -= 1;
            self.finish(1);
            return 1;
        }
        (self.idle, self.settled) = (0, true);
        1
    }

    /// The turn after a poll for a list.
    #[inline(never)]
    fn work(&mut self, taken: usize) -> usize {
        let wcs = mem::take(&mut self.wcs);
        let mut round = Round { worker: self, wcs, next: 0, end: taken };
        if round.worker.core.mailbox.has_mail() {
            round.end += mem::take(&mut round.worker.left);
            admit::admit(&mut round.worker.core, &mut round.worker.handler);
        }
        let taken = round.end;
        let cost = if P::Qp::POSTS_INLINE { Cost::Store } else { Cost::Dear };
        round.worker.core.sender.doorbells.polled(taken, cost);
        // Read in place: a copy of what was just written, by wider loads, would wait for it.
        while round.next < round.end {
            let Round { worker, wcs, next, end } = &mut round;
            let (core, handler) = (&mut worker.core, &mut worker.handler);
            let (before, rest) = (*next, wcs.get(*next..*end).unwrap_or_default());
            if rest.len() > 1 {
                dispatch::run(core, handler, rest, next);
            }
            if *next == before {
                *next += 1;
                if let Some(wc) = rest.first() {
                    dispatch::dispatch(core, handler, wc);
                }
            }
        }
        drop(round);
        self.finish(taken);
        taken
    }

    /// A handler has panicked, and its caller may catch that: the completions from `next` on are
    /// for the next turn, which looks after mail first.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, next: usize, end: usize) {
        self.core.sender.accounts.stats.completions += next as u64;
        for at in next..end {
            let wc = self.wcs.get(at).copied();
            if let (Some(place), Some(wc)) = (self.wcs.get_mut(at - next), wc) {
                *place = wc;
            }
        }
        self.left = end - next;
        self.settled = false;
        self.core.mailbox.call();
    }

    /// What a turn does after its completions.
    #[inline(never)]
    fn finish(&mut self, taken: usize) {
        self.count(taken);
        let (core, handler) = (&mut self.core, &mut self.handler);
        if core.mailbox.state.has_work() {
            admit::do_work(core, handler);
        }
        if core.sender.accounts.requests.has_ended() {
            drain::report_requests(core, handler);
        }
        if !core.finishing.is_empty() {
            core.progress_finishing();
        }
        if !core.closing.is_empty() {
            drain::report_drained(core, handler);
        }
        if !core.sender.accounts.credit_due.is_empty() {
            core.sender.return_credits();
        }
        if core.sender.doorbells.turn_ends(taken) {
            core.flush();
        }
        let rarely = self.idle != 0 && self.idle.is_multiple_of(REFILL_IDLE_TURNS);
        core.refill(if rarely { Refill::All } else { Refill::Batch });
        self.settled = core.is_settled();
    }

    /// Counts a turn, and those before it that were not.
    #[inline(always)]
    fn count(&mut self, taken: usize) {
        let idle = ::core::mem::take(&mut self.uncounted);
        let alone = ::core::mem::take(&mut self.alone);
        let turns = 1 + idle + alone;
        self.core.turn += turns;
        self.core.sender.accounts.stats.turns += turns;
        self.core.sender.accounts.stats.idle_turns += idle;
        self.core.sender.accounts.stats.count_polls(1, alone);
        self.core.sender.count_singles();
        if self.core.turn >= self.publish_at {
            self.publish_stats();
        }
        if taken == 0 {
            self.rest();
        } else {
            self.idle = 0;
            self.core.sender.accounts.stats.count_polls(taken, 1);
        }
    }

    /// A completion queue that gives nothing more ends all peers.
    pub(super) fn check_health(&mut self) {
        if self.poller.is_broken() {
            self.core.fail_all(DownReason::Failed(Status::Fatal));
        }
    }

    #[inline(always)]
    fn rest(&mut self) {
        self.idle += 1;
        self.core.sender.accounts.stats.idle_turns += 1;
        if self.idle == PUBLISH_IDLE_TURNS {
            self.publish_stats();
        }
        if self.idle == SETTLE_IDLE_TURNS {
            self.core.sender.settle_credits();
        }
        if self.idle.is_multiple_of(HEALTH_IDLE_TURNS) {
            self.check_health();
        }
        self.handler.on_idle(&mut Outbox { core: &mut self.core });
    }

    #[cold]
    #[inline(never)]
    pub(super) fn publish_stats(&mut self) {
        self.publish_at = self.core.turn + PUBLISH_TURNS;
        self.core.mailbox.state.published.publish(&self.core.sender.accounts.stats);
    }
}
