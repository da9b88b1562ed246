//! The worker's account of one peer's send queue: what is in flight, what may follow, and what each
//! send holds.

use std_alloc::boxed::Box;
use std_alloc::vec;

use super::config::{Config, SEND_BATCH, STORE_BATCH};
use super::held::{Held, Holds};
use super::wr_id::{self, INDEX_MASK};
use crate::wr::{SendFlags, SendWr};

/// All counts wrap.
pub(super) struct SendQueue {
    /// Sends accepted, by the device or by a batch.
    pub(super) pushed: u32,
    /// Sends known to be over.
    pub(super) retired: u32,
    /// The last of the accepted sends, which are still in a batch.
    pub(super) waiting: u32,
    /// Sends that use no receive of the peer.
    pub(super) non_messages: u32,
    /// There are slots and credit up to this send, as far as is known.
    limit: u32,
    /// The next send that asks for a completion.
    signal_at: u32,
    /// After that one, one send in this many asks.
    signal_every: u32,
    /// Sends that wait for a doorbell, with the reserved ones.
    pub(super) pending: u32,
    /// The peer is in the list of peers with such sends.
    pub(super) is_listed: bool,
    /// Messages sent one by one for which the next doorbell rings, unless a flush comes before.
    batch: u32,
    /// Sends below this index go inline unchecked. It is open only if the peer is up, nothing waits
    /// before them, and there is room. Equal to `pushed` means closed.
    budget: u32,
    /// Messages reserved, see [`super::inline`].
    pub(super) reserved: u32,
    /// The `wr_id` of its sends, without their index.
    wr_id_base: u64,
    /// The first send after the last that holds something.
    holds_until: u32,
    /// Slots for messages.
    depth: u32,
    /// What each send in flight holds, by its index.
    held: Box<[Held]>,
}

/// See [`SendQueue::mark`].
pub(super) struct Mark {
    pushed: u32,
    waiting: u32,
    signal_at: u32,
}

impl SendQueue {
    /// The queue of an unused slot of the peer table.
    pub(super) fn new(config: &Config) -> SendQueue {
        // Two more than messages use: see `Config::qp_caps`.
        let held = (config.send_queue as usize + 2).next_power_of_two();
        SendQueue {
            pushed: 0,
            retired: 0,
            waiting: 0,
            non_messages: 0,
            limit: 0,
            signal_at: config.signal_every - 1,
            signal_every: config.signal_every,
            pending: 0,
            is_listed: false,
            batch: STORE_BATCH as u32,
            budget: 0,
            reserved: 0,
            wr_id_base: 0,
            holds_until: 0,
            depth: config.send_queue,
            held: vec![Held::NOTHING; held].into_boxed_slice(),
        }
    }

    /// Restarts the queue for the next peer in that slot.
    pub(super) fn reset(&mut self, slot: u32, generation: u16) {
        (self.pushed, self.retired, self.waiting) = (0, 0, 0);
        (self.non_messages, self.limit, self.holds_until) = (0, 0, 0);
        (self.budget, self.reserved, self.pending) = (0, 0, 0);
        self.leave_list();
        self.signal_at = self.signal_every - 1;
        self.wr_id_base = wr_id::send(slot, generation, 0);
    }

    /// Sends handed to the device.
    #[inline(always)]
    pub(super) fn posted(&self) -> u32 {
        self.pushed.wrapping_sub(self.waiting)
    }

    /// Sends accepted and not over.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u32 {
        self.pushed.wrapping_sub(self.retired)
    }

    /// True if messages find no slot.
    pub(super) fn is_full(&self) -> bool {
        self.outstanding() >= self.depth
    }

    /// True if not even a credit word finds a slot: it may use one more than messages.
    pub(super) fn is_full_for_credit(&self) -> bool {
        self.outstanding() > self.depth
    }

    /// Messages sent.
    pub(super) fn messages(&self) -> u32 {
        self.pushed.wrapping_sub(self.non_messages)
    }

    /// True if one more message may be sent. A fresh one leaves a credit for replies.
    #[inline(always)]
    pub(super) fn has_room<const FRESH: bool>(&self) -> bool {
        self.limit.wrapping_sub(self.pushed) > u32::from(FRESH)
    }

    /// Free slots for messages.
    pub(super) fn free_slots(&self) -> u32 {
        self.depth.saturating_sub(self.outstanding())
    }

    /// The number of messages that may still be sent, as far as is known.
    pub(super) fn set_room(&mut self, room: u32) {
        self.limit = self.pushed.wrapping_add(room);
    }

    /// True if one more message may go inline. A fresh one leaves a credit for replies.
    #[inline(always)]
    pub(super) fn has_budget<const FRESH: bool>(&self) -> bool {
        // As a signed number: sends that take another way may have passed a closed budget.
        self.budget.wrapping_sub(self.pushed) as i32 > i32::from(FRESH)
    }

    /// True if the budget is closed, and not because of messages that wait for a doorbell.
    pub(super) fn is_used_up(&self) -> bool {
        self.pending == 0 && !self.has_budget::<false>()
    }

    /// Makes the next message check everything again. The caller has ended any reservation.
    #[inline(always)]
    pub(super) fn close_budget(&mut self) {
        debug_assert_eq!(self.reserved, 0);
        self.budget = self.pushed;
    }

    /// Lets as many messages go inline as there is room for.
    pub(super) fn open_budget(&mut self) {
        let room = self.limit.wrapping_sub(self.pushed).min(i32::MAX as u32);
        self.budget = self.pushed.wrapping_add(room);
    }

    /// True if the next send asks for a completion.
    #[inline(always)]
    pub(super) fn signals(&self) -> bool {
        self.pushed == self.signal_at
    }

    /// Makes the next send ask for a completion.
    pub(super) fn want_signal(&mut self) {
        self.signal_at = self.pushed;
    }

    /// Notes that the last send has asked for a completion.
    #[inline(always)]
    pub(super) fn has_signaled(&mut self) {
        self.signal_at = self.pushed.wrapping_add(self.signal_every - 1);
    }

    /// True if the last send has asked for a completion.
    pub(super) fn last_signals(&self) -> bool {
        self.signal_at == self.pushed.wrapping_add(self.signal_every - 1)
    }

    /// True if sends are outstanding that only a later one ends: the last has asked for no
    /// completion.
    pub(super) fn has_unsignaled(&self) -> bool {
        self.outstanding() > 0 && !self.last_signals()
    }

    /// The `wr_id` of the next send.
    #[inline(always)]
    pub(super) fn next_wr_id(&self) -> u64 {
        self.wr_id_base | u64::from(self.pushed & INDEX_MASK)
    }

    /// Adds a request that waits to be posted: it gets its number, and asks for a completion if
    /// that is due.
    #[inline(always)]
    pub(super) fn take(&mut self, wr: &mut SendWr<'_>) {
        let signals = self.signals();
        wr.wr_id = self.next_wr_id();
        self.push();
        self.waiting += 1;
        if signals {
            self.has_signaled();
            wr.flags |= SendFlags::SIGNALED;
        }
    }

    /// The state of the queue, for [`SendQueue::untake`].
    #[inline(always)]
    pub(super) fn mark(&self) -> Mark {
        Mark { pushed: self.pushed, waiting: self.waiting, signal_at: self.signal_at }
    }

    /// Drops the requests added since then, which were not posted after all.
    pub(super) fn untake(&mut self, mark: Mark) {
        Mark { pushed: self.pushed, waiting: self.waiting, signal_at: self.signal_at } = mark;
    }

    /// Drops all requests that wait to be posted, and closes the budget: they counted against it.
    pub(super) fn drop_waiting(&mut self) {
        self.pushed = self.posted();
        self.waiting = 0;
        self.close_budget();
    }

    /// Counts one more send.
    #[inline(always)]
    pub(super) fn push(&mut self) {
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Notes that the last send uses no receive of the peer.
    #[inline(always)]
    pub(super) fn count_non_message(&mut self) {
        self.non_messages = self.non_messages.wrapping_add(1);
        if self.limit.wrapping_add(1) == self.pushed {
            self.limit = self.pushed;
        }
    }

    /// The number of fresh messages with consecutive numbers that may go inline before one that
    /// asks for a completion.
    #[inline(always)]
    fn silent_room(&self) -> u32 {
        let spare = 1;
        let room = (self.budget.wrapping_sub(self.pushed) as i32).saturating_sub(spare).max(0);
        let silent = self.signal_at.wrapping_sub(self.pushed);
        let numbers = INDEX_MASK + 1 - (self.pushed & INDEX_MASK);
        silent.min(room as u32).min(numbers)
    }

    /// Begins a reservation, for which the budget must be open; returns its size. It is at most
    /// `most`, and ends with the batch at the latest. A message that asks for a completion is
    /// reserved alone.
    #[inline(always)]
    pub(super) fn begin_reservation(&mut self, most: u32) -> u32 {
        self.reserve_in(self.batch, most)
    }

    /// The same for messages of one list.
    #[inline(always)]
    pub(super) fn begin_list(&mut self, most: u32) -> u32 {
        self.reserve_in(SEND_BATCH as u32, most)
    }

    #[inline(always)]
    fn reserve_in(&mut self, batch: u32, most: u32) -> u32 {
        let most = most.min(batch.saturating_sub(self.pending));
        self.reserved = most.min(self.silent_room()).max(1);
        self.pending += self.reserved;
        self.budget = self.pushed;
        self.reserved
    }

    /// Ends a reservation; returns the unused part of it. The budget is open as before.
    pub(super) fn end_reservation(&mut self) -> u32 {
        let left = core::mem::take(&mut self.reserved);
        self.pending -= left;
        self.open_budget();
        left
    }

    /// True if the sends that wait for a doorbell are a full batch. Then the next batch is twice as
    /// large.
    pub(super) fn is_batch_full(&mut self) -> bool {
        let full = self.pending >= self.batch;
        if full {
            self.batch = (2 * self.batch).min(SEND_BATCH as u32);
        }
        full
    }

    /// True if the sends that wait for a doorbell are a full batch of a list.
    pub(super) fn is_list_full(&self) -> bool {
        self.pending >= SEND_BATCH as u32
    }

    /// The peer has left the list of those with sends that wait for a doorbell: the next batch is a
    /// small one again.
    pub(super) fn leave_list(&mut self) {
        self.batch = STORE_BATCH as u32;
        self.is_listed = false;
    }

    /// True if a send that is not over holds something.
    #[inline(always)]
    pub(super) fn holds_any(&self) -> bool {
        self.holds_until.wrapping_sub(self.retired) as i32 > 0
    }

    /// The number of received blocks that sends hold until they are over.
    pub(super) fn held_recv_blocks(&self) -> u32 {
        let held = |n: u32| {
            let at = self.retired.wrapping_add(n) as usize & (self.held.len() - 1);
            let held = self.held.get(at).map(|held| held.holds());
            u32::from(matches!(held, Some(Holds::RecvBlock(_))))
        };
        if self.holds_any() { (0..self.outstanding()).map(held).sum() } else { 0 }
    }

    /// Notes what send `index` holds.
    #[inline(always)]
    pub(super) fn hold(&mut self, index: u32, held: Held) {
        let at = index as usize & (self.held.len() - 1);
        if let Some(place) = self.held.get_mut(at) {
            *place = held;
        }
        if !held.is_nothing() {
            self.holds_until = index.wrapping_add(1);
        }
    }

    /// Retires the oldest send; returns what it held.
    #[inline(always)]
    pub(super) fn retire_one(&mut self) -> Held {
        let at = self.retired as usize & (self.held.len() - 1);
        self.retired = self.retired.wrapping_add(1);
        let place = self.held.get_mut(at);
        place.map_or(Held::NOTHING, |place| core::mem::replace(place, Held::NOTHING))
    }

    /// The whole index of a send in flight from its low bits, or `None` for one that is not.
    #[inline(always)]
    pub(super) fn in_flight(&self, low: u32) -> Option<u32> {
        let index = self.retired.wrapping_add(low.wrapping_sub(self.retired) & INDEX_MASK);
        let posted = self.posted();
        (index.wrapping_sub(self.retired) < posted.wrapping_sub(self.retired)).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(room: u32) -> SendQueue {
        let mut sq = SendQueue::new(&Config { signal_every: 8, ..Config::DEFAULT });
        sq.reset(3, 5);
        sq.set_room(room);
        sq.open_budget();
        sq
    }

    /// A reservation stops before the message that asks for a completion, leaves the last credit,
    /// and never exceeds one batch or its caller's limit.
    #[test]
    fn a_reservation_is_the_least_of_its_limits() {
        for (room, most, reserved) in [(100, 100, 7), (100, 3, 3), (5, 100, 4), (1, 100, 1)] {
            assert_eq!(queue(room).begin_list(most), reserved, "{room}, {most}");
        }
        let mut sq = queue(100);
        (sq.signal_at, sq.pending) = (90, SEND_BATCH as u32 - 2);
        assert_eq!(sq.begin_list(100), 2);
        let mut sq = queue(100);
        sq.pending = STORE_BATCH as u32 - 3;
        assert_eq!(sq.begin_reservation(100), 3);
    }

    /// Only received blocks count, and only until their sends are over.
    #[test]
    fn received_blocks_are_held_until_their_sends_are_over() {
        let mut sq = queue(100);
        assert_eq!(sq.held_recv_blocks(), 0);
        for held in [Held::recv_block(1), Held::send_block(2), Held::recv_block(3)] {
            sq.hold(sq.pushed, held);
            sq.push();
        }
        let left = [2, 1, 1, 0].map(|left| (sq.held_recv_blocks() == left, sq.retire_one()).0);
        assert_eq!(left, [true; 4]);
    }

    #[test]
    fn a_message_that_asks_for_a_completion_is_reserved_alone() {
        let mut sq = queue(100);
        sq.want_signal();
        assert_eq!(sq.begin_reservation(100), 1);
        assert!(sq.signals());
    }

    /// The budget is closed while messages are reserved, and then open again as far as before.
    #[test]
    fn the_end_of_a_reservation_gives_back_the_rest() {
        let mut sq = queue(10);
        assert_eq!(sq.begin_reservation(6), 6);
        assert!(!sq.has_budget::<false>());
        sq.push();
        sq.reserved -= 1;
        assert_eq!((sq.end_reservation(), sq.pending), (5, 1));
        assert!(sq.has_budget::<true>());
        assert_eq!(sq.begin_reservation(100), 6, "one of seven was sent");
    }

    /// A request that was added and not posted leaves no trace, even across the wrap of the counts.
    #[test]
    fn a_request_that_was_not_posted_leaves_no_trace() {
        let mut sq = queue(10);
        (sq.pushed, sq.retired) = (u32::MAX, u32::MAX);
        sq.want_signal();
        let mark = sq.mark();
        let mut wr = SendWr {
            wr_id: 0,
            op: crate::wr::SendOp::Send,
            flags: SendFlags::empty(),
            sge: crate::wr::Sge::default(),
            more: &[],
        };
        sq.take(&mut wr);
        assert!(wr.flags.contains(SendFlags::SIGNALED));
        assert_eq!((sq.pushed, sq.waiting, sq.outstanding()), (0, 1, 1));
        sq.untake(mark);
        assert_eq!((sq.pushed, sq.waiting, sq.signals()), (u32::MAX, 0, true));
    }

    /// Waiting requests are dropped when a peer has failed. No message may use their room.
    #[test]
    fn dropping_what_waits_opens_no_budget() {
        let mut sq = queue(10);
        for _ in 0..4 {
            sq.push();
            sq.waiting += 1;
        }
        sq.close_budget();
        sq.drop_waiting();
        assert_eq!((sq.pushed, sq.waiting), (0, 0));
        assert!(!sq.has_budget::<false>());
    }

    /// The low bits name a send in flight, and nothing else.
    #[test]
    fn only_sends_in_flight_are_found() {
        let mut sq = queue(10);
        (sq.pushed, sq.retired) = (INDEX_MASK + 3, INDEX_MASK - 1);
        assert_eq!(sq.in_flight(INDEX_MASK), Some(INDEX_MASK));
        assert_eq!(sq.in_flight(1), Some(INDEX_MASK + 2));
        assert_eq!((sq.in_flight(2), sq.in_flight(INDEX_MASK - 2)), (None, None));
    }
}
