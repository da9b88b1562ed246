//! When a worker rings a doorbell: the policy, apart from the mechanism.
//!
//! - The first send after a short poll is probably a reply, and rings at once, so that the peer can
//!   begin with it while the other sends gather. On a device with an expensive doorbell it does so
//!   only if the poll found one message. If the peer's budget is used up, this send opens the
//!   budget, and still rings at once.
//! - After a short poll, the reply to a message also rings at once if the message behind it is of
//!   another queue pair, or there is none. On a device with an expensive doorbell the reply waits
//!   for the end of the turn.
//! - Later sends ring at the end of the turn, or when they fill a batch. On a device whose
//!   doorbell is a store, the batches of messages that are sent one by one begin small and double
//!   until a flush: the peer takes the first messages while this side writes the next.
//! - After a full poll more messages are waiting, so doorbells may wait for `Config::hold_turns`
//!   turns.
//!
//! With 8 peers at once, a message whose reply rings at once costs the server 660 instructions. A
//! deferred reply is written, and later copied to the slot, and costs 908. Near cores, medians of 9
//! rounds in turn: the p50 of a round trip went from 832 to 786 ns, the p90 from 1282 to 1082, the
//! p99 from 1973 to 1558. In other rounds the median did not change. With 2 and with 64 peers at
//! once no figure changed.

use super::config::{Config, POLL_BATCH};
use crate::provider::Doorbell;

/// The cost of a doorbell on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// A store: the device takes inline messages one by one.
    Store,
    /// More than a store.
    Dear,
}

/// What rings at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtOnce {
    Nothing,
    /// The next send, if it is a reply.
    Reply,
    Send,
}

/// The policy of one worker.
pub(super) struct DoorbellPolicy {
    at_once: AtOnce,
    /// Turns since the last flush.
    held_turns: u32,
    /// [`Config::hold_turns`]: the most turns there may be since the last flush.
    hold_turns: u32,
}

impl DoorbellPolicy {
    pub(super) fn new(config: &Config) -> DoorbellPolicy {
        DoorbellPolicy { at_once: AtOnce::Nothing, held_turns: 0, hold_turns: config.hold_turns }
    }

    /// A poll has found one completion alone.
    #[inline(always)]
    pub(super) fn polled_one(&mut self) {
        self.at_once = AtOnce::Send;
    }

    /// A poll has found `taken` completions.
    #[inline(always)]
    pub(super) fn polled(&mut self, taken: usize, cost: Cost) {
        let short = cost == Cost::Store && (1..POLL_BATCH).contains(&taken);
        self.at_once = if taken == 1 || short { AtOnce::Send } else { AtOnce::Nothing };
    }

    /// The completion that is dispatched next, one of `taken`, stands alone: the one behind it is
    /// of another queue pair, or there is none.
    #[inline(always)]
    pub(super) fn stands_alone(&mut self, taken: usize, cost: Cost) {
        if self.at_once == AtOnce::Nothing && cost == Cost::Store && taken < POLL_BATCH {
            self.at_once = AtOnce::Reply;
        }
    }

    /// The completion that is dispatched next is one of several of a queue pair.
    #[inline(always)]
    pub(super) fn stands_with_others(&mut self) {
        if self.at_once == AtOnce::Reply {
            self.at_once = AtOnce::Nothing;
        }
    }

    /// The completion was no message, so the next send is no reply.
    #[inline(always)]
    pub(super) fn polled_no_message(&mut self) {
        self.at_once = AtOnce::Nothing;
    }

    /// True if the next send rings at once.
    #[inline(always)]
    pub(super) fn is_first(&self) -> bool {
        self.at_once == AtOnce::Send
    }

    /// Whether the next send, which is no reply, rings at once.
    #[inline(always)]
    pub(super) fn next_send(&mut self) -> Doorbell {
        match core::mem::replace(&mut self.at_once, AtOnce::Nothing) {
            AtOnce::Send => Doorbell::Now,
            AtOnce::Reply | AtOnce::Nothing => Doorbell::Later,
        }
    }

    /// Whether the next send, which is a reply, rings at once.
    #[inline(always)]
    pub(super) fn next_reply(&mut self) -> Doorbell {
        match core::mem::replace(&mut self.at_once, AtOnce::Nothing) {
            AtOnce::Nothing => Doorbell::Later,
            AtOnce::Reply | AtOnce::Send => Doorbell::Now,
        }
    }

    /// The send that was to ring at once must open the budget first: then it rings at once.
    pub(super) fn not_yet(&mut self) {
        self.at_once = AtOnce::Send;
    }

    /// A turn has ended, and nothing waits for a doorbell.
    #[inline(always)]
    pub(super) fn nothing_waits(&mut self) {
        self.held_turns = 0;
    }

    /// Ends a turn with `taken` completions. True if all doorbells are to be rung.
    #[inline(always)]
    pub(super) fn turn_ends(&mut self, taken: usize) -> bool {
        let flush = taken < POLL_BATCH || self.held_turns >= self.hold_turns;
        self.held_turns = if flush { 0 } else { self.held_turns + 1 };
        flush
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hold_turns: u32) -> DoorbellPolicy {
        DoorbellPolicy::new(&Config { hold_turns, ..Config::DEFAULT })
    }

    /// The doorbells of the first three sends after a poll that took `taken`.
    fn sends(taken: usize, cost: Cost) -> [Doorbell; 3] {
        let mut policy = policy(2);
        policy.polled(taken, cost);
        [(); 3].map(|()| policy.next_send())
    }

    #[test]
    fn the_first_send_after_a_short_poll_rings_at_once() {
        use Doorbell::{Later, Now};
        for (taken, cost, first) in [
            (0, Cost::Store, Later),
            (1, Cost::Store, Now),
            (1, Cost::Dear, Now),
            (2, Cost::Store, Now),
            (2, Cost::Dear, Later),
            (POLL_BATCH - 1, Cost::Store, Now),
            (POLL_BATCH, Cost::Store, Later),
        ] {
            assert_eq!(sends(taken, cost), [first, Later, Later], "{taken}, {cost:?}");
        }
    }

    #[test]
    fn the_reply_to_a_message_that_stands_alone_rings_at_once() {
        use Doorbell::{Later, Now};
        for (taken, cost, first) in [
            (2, Cost::Store, Now),
            (POLL_BATCH - 1, Cost::Store, Now),
            (POLL_BATCH, Cost::Store, Later),
            (2, Cost::Dear, Later),
        ] {
            let mut policy = policy(2);
            policy.polled(taken, cost);
            let _ = policy.next_send();
            policy.stands_alone(taken, cost);
            let replies = [(); 2].map(|()| policy.next_reply());
            assert_eq!(replies, [first, Later], "{taken}, {cost:?}");
            policy.stands_alone(taken, cost);
            assert_eq!((policy.is_first(), policy.next_send()), (false, Later), "no reply");
            assert_eq!(policy.next_reply(), Later, "not the first send");
            policy.stands_alone(taken, cost);
            policy.stands_with_others();
            assert_eq!(policy.next_reply(), Later, "the handler of the one before did not reply");
        }
    }

    #[test]
    fn a_send_after_another_completion_is_no_reply() {
        let mut policy = policy(2);
        policy.polled_one();
        assert!(policy.is_first());
        policy.polled_no_message();
        assert_eq!(policy.next_send(), Doorbell::Later);
    }

    #[test]
    fn doorbells_wait_behind_full_polls_and_no_longer_than_configured() {
        for hold_turns in [0, 1, 3] {
            let mut policy = policy(hold_turns);
            for round in 0..3 {
                for turn in 0..hold_turns {
                    assert!(!policy.turn_ends(POLL_BATCH), "turn {turn} of round {round}");
                }
                assert!(policy.turn_ends(POLL_BATCH), "round {round}");
            }
        }
        let mut policy = policy(3);
        assert!(!policy.turn_ends(POLL_BATCH) && policy.turn_ends(POLL_BATCH - 1));
        let after = [(); 4].map(|()| policy.turn_ends(POLL_BATCH));
        assert_eq!(after, [false, false, false, true], "a flush begins the count anew");
        assert!(!policy.turn_ends(POLL_BATCH));
        policy.nothing_waits();
        let after = [(); 4].map(|()| policy.turn_ends(POLL_BATCH));
        assert_eq!(after, [false, false, false, true], "so does a turn with nothing to ring");
    }
}
