//! The turn: poll, admit, dispatch, flush, refill.

use core::mem;

use std_alloc::vec::Vec;

use super::admit;
use super::core::Core;
use super::credit_rest::CreditRest;
use super::credit_return::CreditReturns;
use super::dispatch;
use super::doorbell_policy::Cost;
use super::drain;
use super::handler::Handler;
use super::message::DownReason;
use super::outbox::Outbox;
use super::recv_blocks::Refill;
use crate::provider::{Polled, Poller, Provider, Qp};
use crate::room::{FixedCapacity, TryGrow};
use crate::wc::{Status, Wc};

/// While idle, give free blocks back to the shared queue, however few, at this period in turns.
const REFILL_IDLE_TURNS: u64 = 64;

/// Publish the counters to other threads at this period in turns.
pub(super) const PUBLISH_TURNS: u64 = 1 << 12;

/// While idle, every 16th turn is a full one; the others only look for messages. All other periods
/// of idle turns are multiples of it.
const FULL_IDLE_TURNS: u64 = 16;

/// If turns take one completion each and leave nothing to do, every 16th is a full one.
const FULL_BUSY_TURNS: u64 = 16;

/// Publish the counters after this many idle turns in a row, too. It is more than pass between the
/// messages of a lively ping-pong.
const PUBLISH_IDLE_TURNS: u64 = 64;

/// Tell every peer of all its credit after this many idle turns in a row. Large, because it visits
/// each peer.
const SETTLE_IDLE_TURNS: u64 = 16384;

/// While idle, check at this period in turns that the completion queue still works.
const HEALTH_IDLE_TURNS: u64 = 1 << 16;

/// Look at this period in turns, at the least, whether a control plane is stepped. If it has done
/// no step in a whole period, the worker lets it look for the ends of its peers. With idle turns of
/// ten nanoseconds this is some 10 ms; a program that steps as often never sees it.
pub(super) const LOOK_TURNS: u64 = 1 << 20;

/// One core's datapath. One thread owns it; it may move to that thread, and is not shared.
pub struct Worker<P: Provider, H: Handler<P>> {
    pub(super) core: Core<P>,
    /// Turns in a row that found nothing, and the number of those that are not in the counters yet.
    pub(super) idle: u64,
    pub(super) uncounted: u64,
    /// Turns with one completion that are not in the counters yet.
    pub(super) alone: u64,
    /// Nothing is left to do: a turn that finds nothing may be a short one.
    pub(super) settled: bool,
    /// The turn in which the counters are published next.
    pub(super) publish_at: u64,
    /// The turn in which it looks next at control planes that are not stepped.
    pub(super) look_at: u64,
    pub(super) credit_rest: CreditRest,
    pub(super) handler: H,
}

/// Completions that are being dispatched.
struct Round<'a, P: Provider, H: Handler<P>> {
    worker: &'a mut Worker<P, H>,
    wcs: Vec<Wc>,
    /// The index of the next, and the end.
    next: usize,
    end: usize,
}

impl<P: Provider, H: Handler<P>> Drop for Round<'_, P, H> {
    #[inline(always)]
    fn drop(&mut self) {
        self.worker.core.wcs = mem::take(&mut self.wcs);
        if self.next < self.end {
            self.worker.leave(self.next, self.end);
        }
    }
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Does one bounded step, and returns the number of completions it handled.
    ///
    /// Poll comes before admit: a peer is put in the mailbox before it may send, so every queue
    /// pair that a poll names is known after it. Flush comes before refill: no reply waits for
    /// housekeeping.
    ///
    /// After a full poll, doorbells may wait for [`Config::hold_turns`](super::Config::hold_turns)
    /// turns. Before you stop calling `turn`, call [`Outbox::flush`], or turn until a turn returns
    /// 0.
    #[inline(always)]
    pub fn turn(&mut self) -> usize {
        match self.core.poller.poll_one() {
            Polled::Nothing if self.is_short_idle_turn() => 0,
            Polled::Nothing => self.work(0),
            Polled::One(wc) => self.turn_one(&wc),
            Polled::More => self.turn_full(),
        }
    }

    /// A turn that polls for a list.
    #[inline(never)]
    pub(super) fn turn_full(&mut self) -> usize {
        if self.core.left > 0 {
            return self.work(0);
        }
        let taken = self.core.poller.poll_more(&mut self.core.wcs);
        if taken == 0 && self.is_short_idle_turn() {
            return 0;
        }
        self.work(taken)
    }

    /// A turn that only waits. The shorter it is, the sooner the next message is seen. False: this
    /// turn must be a full one.
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

    /// True if nothing is left to do after all: sends between turns have rung already.
    #[inline(never)]
    fn settles(&mut self) -> bool {
        self.core.sender.accounts.count_singles();
        let accounts = &self.core.sender.accounts;
        let done = accounts.broken.is_empty() && !accounts.recv.is_refill_due();
        self.settled = self.core.is_settled() && done;
        self.settled
    }

    /// A turn with one completion. If that leaves nothing to do, the turn ends there.
    #[inline(always)]
    pub(super) fn turn_one(&mut self, wc: &Wc) -> usize {
        if self.core.mailbox.has_mail() {
            // The mail comes first, and the handler may panic at it. So the completion goes behind
            // those left from the previous turn. Inlined: a function would need the completion in
            // memory, in every turn.
            self.make_place();
            if let Some(place) = self.core.wcs.get_mut(self.core.left) {
                *place = *wc;
                self.core.left += 1;
            }
            return self.work(0);
        }
        self.core.sender.doorbells.polled_one();
        dispatch::dispatch(&mut self.core, &mut self.handler, wc);
        self.alone += 1;
        if self.alone == FULL_BUSY_TURNS
            || self.core.sender.accounts.recv.is_refill_due()
            || !self.core.is_settled()
        {
            self.alone -= 1;
            if self.alone + 1 == FULL_BUSY_TURNS && self.core.sender.peers.len() > 1 {
                self.core.sender.peers.fetch_ahead();
            }
            self.finish(1);
            return 1;
        }
        (self.idle, self.settled) = (0, true);
        1
    }

    /// Makes a place behind the completions that are left.
    #[cold]
    #[inline(never)]
    fn make_place(&mut self) {
        let places = self.core.left + 1;
        if self.core.wcs.len() < places && self.core.wcs.make_room(places) {
            self.core.wcs.put(Wc::default());
        }
    }

    /// The turn after a poll for a list.
    #[inline(never)]
    fn work(&mut self, taken: usize) -> usize {
        let wcs = mem::take(&mut self.core.wcs);
        let mut round = Round { worker: self, wcs, next: 0, end: taken };
        if round.worker.core.mailbox.has_mail() {
            round.end += mem::take(&mut round.worker.core.left);
            admit::admit(&mut round.worker.core, &mut round.worker.handler);
        }
        let taken = round.end;
        let cost = if P::Qp::POSTS_INLINE { Cost::Store } else { Cost::Dear };
        round.worker.core.sender.doorbells.polled(taken, cost);
        // Read in place: a copy by wider loads would wait for the stores that just wrote it.
        while round.next < round.end {
            let Round { worker, wcs, next, end } = &mut round;
            let (core, handler) = (&mut worker.core, &mut worker.handler);
            let (before, rest) = (*next, wcs.get(*next..*end).unwrap_or_default());
            match rest {
                [first, second, ..] if first.qp_num == second.qp_num => {
                    core.sender.doorbells.stands_with_others();
                    dispatch::run(core, handler, rest, next);
                }
                _ => core.sender.doorbells.stands_alone(taken, cost),
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

    /// A handler has panicked, and its caller may catch that: leaves the completions from `next` on
    /// for the next turn, which reads the mail first.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, next: usize, end: usize) {
        self.core.sender.accounts.stats.completions += next as u64;
        for at in next..end {
            let wc = self.core.wcs.get(at).copied();
            if let (Some(place), Some(wc)) = (self.core.wcs.get_mut(at - next), wc) {
                *place = wc;
            }
        }
        self.core.left = end - next;
        self.settled = false;
        self.core.mailbox.call();
    }

    /// The steps of a turn after its completions.
    #[inline(never)]
    fn finish(&mut self, taken: usize) {
        self.count(taken);
        let (core, handler) = (&mut self.core, &mut self.handler);
        if core.mailbox.state.has_work() {
            admit::do_work(core, handler);
        }
        // Most turns that only receive leave nothing, so they need one look and none of the steps.
        // `is_settled` does not look at peers that are to fail: each turn with one message calls
        // it, and there that look costs a reply 3 ns.
        let settled = core.is_settled() && core.sender.accounts.broken.is_empty();
        if settled {
            core.sender.doorbells.nothing_waits();
        } else {
            Self::end_turn(core, handler, taken);
        }
        if taken == 0 && self.idle.is_multiple_of(REFILL_IDLE_TURNS) {
            core.refill(Refill::All);
            core.sender.peers.fetch_ahead();
        } else {
            core.refill(Refill::Batch);
        }
        self.settled = settled || core.is_settled();
    }

    /// Reports requests and peers that have ended, returns credit and rings doorbells.
    #[inline(always)]
    fn end_turn(core: &mut Core<P>, handler: &mut H, taken: usize) {
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
            CreditReturns::tell_due(&mut core.sender);
        }
        if core.sender.doorbells.turn_ends(taken) {
            core.flush();
        }
    }

    /// Counts this turn, and the short ones before it.
    #[inline(always)]
    fn count(&mut self, taken: usize) {
        let idle = ::core::mem::take(&mut self.uncounted);
        let alone = ::core::mem::take(&mut self.alone);
        self.core.turn += 1 + idle + alone;
        self.core.sender.accounts.stats.turns += 1;
        self.core.sender.accounts.stats.count_short_turns(idle, alone);
        self.core.sender.accounts.count_singles();
        if self.core.turn >= self.publish_at {
            self.look_around();
        }
        if taken == 0 {
            self.rest();
        } else {
            self.idle = 0;
            self.core.sender.accounts.stats.count_polls(taken, 1);
        }
    }

    /// A completion queue that has failed ends all peers.
    pub(super) fn check_health(&mut self) {
        if self.core.poller.is_broken() {
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
            let now = self.core.clock();
            CreditReturns::settle(&mut self.core.sender, now);
        }
        if self.idle.is_multiple_of(HEALTH_IDLE_TURNS) {
            self.check_health();
        }
        self.handler.on_idle(&mut Outbox { core: &mut self.core });
    }

    /// What is done once in [`PUBLISH_TURNS`] turns.
    #[cold]
    #[inline(never)]
    fn look_around(&mut self) {
        self.publish_stats();
        let now = self.core.clock();
        self.core.credit_returns.review_some(&mut self.core.sender, now);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn publish_stats(&mut self) {
        self.publish_at = self.core.turn + PUBLISH_TURNS;
        self.core.sender.accounts.stats.peers = self.core.sender.peers.len() as u64;
        self.core.mailbox.state.published.publish(&self.core.sender.accounts.stats);
        if self.core.turn >= self.look_at {
            self.look_at = self.core.turn + LOOK_TURNS;
            self.core.mailbox.watches.look();
        }
    }
}
