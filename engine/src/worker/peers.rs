//! The worker's peers: one slot a connection, found by queue pair number.

use std_alloc::boxed::Box;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::config::{Config, SEND_BATCH};
use super::credit::{Credit, CreditGrant};
use super::handler::{DownReason, PeerId};
use super::wr_id::{self, INDEX_MASK};
use crate::provider::Provider;
use crate::room::{Room, never};

/// "No block": the send was inline, or its memory is not the worker's.
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// Marks a held block as one of the worker's own send blocks.
pub(super) const SEND_BLOCK: u32 = 1 << 31;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// The slot is free.
    Free,
    /// May receive; the handler does not know of it yet.
    Admitted,
    /// The handler knows it.
    Up,
    /// In error, draining since that turn; the handler is told at the end, if it knew.
    Closing {
        /// What to tell the handler.
        why: DownReason,
        /// The handler was told that it was up.
        known: bool,
        /// Turn in which it began.
        since: u64,
    },
}

/// One slot.
pub(super) struct Peer<P: Provider> {
    // The queue pair before its grant: nobody writes to a word that is given back.
    pub(super) qp: Option<P::Qp>,
    grant: Option<CreditGrant<P>>,
    pub(super) num: u32,
    pub(super) generation: u16,
    pub(super) state: PeerState,
    /// Sends taken, to the device or to the batch, and those known to be over; they wrap.
    pub(super) pushed: u32,
    pub(super) retired: u32,
    /// The last of them, which are in the batch still.
    pub(super) waiting: u32,
    /// Sends that no receive of the peer is used for; it wraps.
    non_messages: u32,
    /// Up to that many sends there is room in the send queue and credit, as far as is known.
    limit: u32,
    pub(super) credit: Credit,
    /// The next send that asks for a completion.
    signal_at: u32,
    /// Sends the device has and was not rung for, with those a reservation may add; and whether the
    /// peer is in the list of those that have some.
    pub(super) pending: u32,
    pub(super) is_listed: bool,
    /// Up to that many sends go the short way: it is up, nothing waits that they would overtake,
    /// and there is room.
    budget: u32,
    /// So many more go the shortest way, see [`Peer::begin_reservation`]. Meanwhile the budget is
    /// closed.
    pub(super) reserved: u32,
    /// Its number of sends, but for their index.
    wr_id_base: u64,
    /// Behind the last send that reads from a block, or has a token.
    holds_until: u32,
    /// Its batch of unsent messages, or `u32::MAX`.
    pub(super) batch: u32,
    /// Nothing new is taken for it: it is closed when the rest is acknowledged.
    pub(super) finishing: bool,
    /// Replies that wait for room in the send queue, or for credit.
    pub(super) deferred: u32,
    /// The last pass over the deferred replies in which one of this peer had to stay.
    pub(super) blocked_in: u64,
    /// The block each send in flight reads from, by send index.
    held: Box<[u32]>,
}

impl<P: Provider> Peer<P> {
    /// Its present name, in that slot.
    #[inline(always)]
    pub(super) fn id(&self, slot: u32) -> PeerId {
        PeerId { slot, generation: self.generation }
    }

    /// Sends handed to the device; it wraps.
    #[inline(always)]
    pub(super) fn posted(&self) -> u32 {
        self.pushed.wrapping_sub(self.waiting)
    }

    /// True if one more message may go. A fresh one leaves a credit for replies.
    #[inline(always)]
    pub(super) fn has_room<const FRESH: bool>(&self) -> bool {
        self.limit.wrapping_sub(self.pushed) > u32::from(FRESH)
    }

    /// True if one more message may go the short way. A fresh one leaves a credit for replies.
    #[inline(always)]
    pub(super) fn has_budget<const FRESH: bool>(&self) -> bool {
        // As a signed number: what went another way may have passed a closed budget.
        self.budget.wrapping_sub(self.pushed) as i32 > i32::from(FRESH)
    }

    /// True if the send pushed next asks for a completion.
    #[inline(always)]
    pub(super) fn signals(&self) -> bool {
        self.pushed == self.signal_at
    }

    /// The send pushed next asks for a completion.
    pub(super) fn want_signal(&mut self) {
        self.signal_at = self.pushed;
    }

    /// The send pushed last asks for a completion, and after it one in `every`.
    #[inline(always)]
    pub(super) fn has_signaled(&mut self, every: u32) {
        self.signal_at = self.pushed.wrapping_add(every - 1);
    }

    /// True if the send pushed last asks for a completion.
    pub(super) fn last_signals(&self, every: u32) -> bool {
        self.signal_at == self.pushed.wrapping_add(every - 1)
    }

    /// Messages have to look at everything again, from now on. A reservation has been ended before.
    #[inline(always)]
    pub(super) fn close_budget(&mut self) {
        debug_assert_eq!(self.reserved, 0);
        self.budget = self.pushed;
    }

    /// As many messages go the short way as there is room for.
    pub(super) fn open_budget(&mut self) {
        let room = self.limit.wrapping_sub(self.pushed).min(i32::MAX as u32);
        self.budget = self.pushed.wrapping_add(room);
    }

    /// The number of the send pushed next.
    #[inline(always)]
    pub(super) fn next_wr_id(&self) -> u64 {
        self.wr_id_base | u64::from(self.pushed & INDEX_MASK)
    }

    /// How many fresh messages may go the short way before one that is due to ask for a completion,
    /// with numbers that follow each other.
    #[inline(always)]
    pub(super) fn silent_room(&self) -> u32 {
        let spare = 1;
        let room = (self.budget.wrapping_sub(self.pushed) as i32).saturating_sub(spare).max(0);
        let silent = self.signal_at.wrapping_sub(self.pushed);
        let numbers = INDEX_MASK + 1 - (self.pushed & INDEX_MASK);
        silent.min(room as u32).min(numbers)
    }

    /// Begins a reservation, for which the budget is open: how many messages it is for, at most
    /// `most`. Only the next message may ask for a completion, and then it is for that one alone.
    #[inline(always)]
    pub(super) fn begin_reservation(&mut self, most: u32) -> u32 {
        let most = most.min(SEND_BATCH as u32 - self.pending);
        self.reserved = most.min(self.silent_room()).max(1);
        self.pending += self.reserved;
        self.budget = self.pushed;
        self.reserved
    }

    /// Ends a reservation: how many of it were not used. The budget is open as before.
    pub(super) fn end_reservation(&mut self) -> u32 {
        let left = core::mem::take(&mut self.reserved);
        self.pending -= left;
        self.open_budget();
        left
    }

    /// True if a send that is not over reads from a block, or has a token.
    #[inline(always)]
    pub(super) fn holds_any(&self) -> bool {
        self.holds_until.wrapping_sub(self.retired) as i32 > 0
    }

    /// Looks again: free slots of the send queue, and credits.
    #[cold]
    pub(super) fn measure(&mut self, send_queue: u32) -> (u32, u32) {
        let slots = send_queue.saturating_sub(self.pushed.wrapping_sub(self.retired));
        let allowed = self.grant.as_ref().map_or(0, CreditGrant::allowed);
        let credits = self.credit.left(self.pushed.wrapping_sub(self.non_messages), allowed);
        // Of one that finishes only replies go, one at a look: a fresh message wants two.
        let most = if self.finishing { 1 } else { u32::MAX };
        self.limit = self.pushed.wrapping_add(slots.min(credits).min(most));
        (slots, credits)
    }

    /// So many of its messages have left their blocks. True if the peer is to be told of credit
    /// from now on.
    #[inline(always)]
    pub(super) fn count_done(&mut self, count: u32) -> bool {
        let due = self.credit.until_return <= count;
        // Below zero until the step that follows, if it is due.
        self.credit.until_return = self.credit.until_return.wrapping_sub(count);
        due && self.credit_falls_due()
    }

    /// So many are done with that the peer is to be told. True if it was not to be already.
    #[cold]
    pub(super) fn credit_falls_due(&mut self) -> bool {
        self.credit.step(self.deferred > 0)
    }

    /// The send pushed last uses no receive of the peer.
    #[inline(always)]
    pub(super) fn count_non_message(&mut self) {
        self.non_messages = self.non_messages.wrapping_add(1);
        if self.limit.wrapping_add(1) == self.pushed {
            self.limit = self.pushed;
        }
    }

    /// Notes the block of send `index`.
    #[inline(always)]
    pub(super) fn hold(&mut self, index: u32, block: u32) {
        let at = index as usize & (self.held.len() - 1);
        if let Some(place) = self.held.get_mut(at) {
            *place = block;
        }
        if block != NO_BLOCK {
            self.holds_until = index.wrapping_add(1);
        }
    }

    /// Takes back the block of send `index`.
    #[inline(always)]
    pub(super) fn release(&mut self, index: u32) -> u32 {
        let at = index as usize & (self.held.len() - 1);
        self.held.get_mut(at).map_or(NO_BLOCK, |place| core::mem::replace(place, NO_BLOCK))
    }

    /// The whole index of a send in flight from its low bits, or `None` for one that is not.
    #[inline(always)]
    pub(super) fn in_flight(&self, low: u32) -> Option<u32> {
        let index = self.retired.wrapping_add(low.wrapping_sub(self.retired) & INDEX_MASK);
        let posted = self.posted();
        (index.wrapping_sub(self.retired) < posted.wrapping_sub(self.retired)).then_some(index)
    }
}

/// All slots, the free ones, and the way from a queue pair number to its slot.
pub(super) struct Peers<P: Provider> {
    slots: Vec<Peer<P>>,
    free: Vec<u32>,
    map: SlotMap,
    /// The slot that was asked for last by a number: often it is the next one as well.
    recent: u32,
    signal_every: u32,
}

impl<P: Provider> Peers<P> {
    pub(super) fn new(config: &Config) -> Self {
        let (peers, send_queue) = (config.peers, config.send_queue);
        // Two more than the queue: see `Config::qp_caps`.
        let held = (send_queue as usize + 2).next_power_of_two();
        let slots = (0..peers)
            .map(|_| Peer {
                qp: None,
                grant: None,
                num: EMPTY,
                generation: 0,
                state: PeerState::Free,
                pushed: 0,
                retired: 0,
                waiting: 0,
                non_messages: 0,
                limit: 0,
                credit: Credit::new(0),
                signal_at: config.signal_every - 1,
                pending: 0,
                is_listed: false,
                budget: 0,
                reserved: 0,
                wr_id_base: 0,
                holds_until: 0,
                batch: u32::MAX,
                finishing: false,
                deferred: 0,
                blocked_in: 0,
                held: vec![NO_BLOCK; held].into_boxed_slice(),
            })
            .collect();
        let free = (0..peers).rev().collect();
        let map = SlotMap::new(peers);
        Peers { slots, free, map, recent: 0, signal_every: config.signal_every }
    }

    /// Takes a slot for a queue pair; gives it back if all are taken.
    pub(super) fn insert(
        &mut self,
        num: u32,
        qp: P::Qp,
        grant: CreditGrant<P>,
    ) -> Result<u32, P::Qp> {
        let Some(slot) = self.free.pop() else { return Err(qp) };
        let Some(peer) = self.slots.get_mut(slot as usize) else { return Err(qp) };
        self.map.insert(num, slot);
        peer.qp = Some(qp);
        peer.credit = Credit::new(grant.window());
        peer.grant = Some(grant);
        peer.num = num;
        peer.state = PeerState::Admitted;
        (peer.pushed, peer.retired, peer.waiting) = (0, 0, 0);
        peer.signal_at = self.signal_every - 1;
        (peer.non_messages, peer.limit, peer.deferred, peer.blocked_in) = (0, 0, 0, 0);
        (peer.finishing, peer.pending, peer.is_listed) = (false, 0, false);
        (peer.budget, peer.reserved, peer.holds_until) = (0, 0, 0);
        peer.wr_id_base = wr_id::send(slot, peer.generation, 0);
        Ok(slot)
    }

    /// Frees a slot; its next user has another generation.
    pub(super) fn remove(&mut self, slot: u32) -> Option<P::Qp> {
        let peer = self.slots.get_mut(slot as usize)?;
        let qp = peer.qp.take();
        drop(peer.grant.take());
        self.map.remove(core::mem::replace(&mut peer.num, EMPTY));
        peer.state = PeerState::Free;
        peer.generation = peer.generation.wrapping_add(1);
        self.free.put(slot);
        qp
    }

    /// The slot of a queue pair number.
    #[inline(always)]
    pub(super) fn find(&self, num: u32) -> Option<u32> {
        self.map.find(num)
    }

    /// The slot of a queue pair number, and the peer there.
    #[inline(always)]
    pub(super) fn of(&mut self, num: u32) -> Option<(u32, &mut Peer<P>)> {
        let slot = self.recent;
        if self.slots.get(slot as usize).is_some_and(|peer| peer.num == num) {
            return self.slots.get_mut(slot as usize).map(|peer| (slot, peer));
        }
        self.recent = self.map.find(num)?;
        Some((self.recent, self.slots.get_mut(self.recent as usize)?))
    }

    /// The peer in a slot.
    #[inline(always)]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Peer<P>> {
        self.slots.get_mut(slot as usize)
    }

    /// The same, to look at.
    pub(super) fn get_ref(&self, slot: u32) -> Option<&Peer<P>> {
        self.slots.get(slot as usize)
    }

    /// The peer a `PeerId` means, if it still is that one.
    #[inline(always)]
    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer<P>> {
        self.slots
            .get_mut(id.slot as usize)
            .filter(|peer| peer.generation == id.generation && peer.state != PeerState::Free)
    }

    /// The present name of a slot's peer.
    #[inline(always)]
    pub(super) fn id(&self, slot: u32) -> PeerId {
        let generation = self.slots.get(slot as usize).map_or(0, |peer| peer.generation);
        PeerId { slot, generation }
    }

    /// Slots in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Queue pair number to slot: open addressing, at most half full. Devices hand numbers out in
/// sequence, so the low bits are a good hash as they are.
struct SlotMap {
    cells: Box<[(u32, u32)]>,
}

/// No queue pair's number.
const EMPTY: u32 = u32::MAX;

impl SlotMap {
    fn new(peers: u32) -> SlotMap {
        let cells = (peers as usize * 2).next_power_of_two();
        SlotMap { cells: vec![(EMPTY, 0); cells].into_boxed_slice() }
    }

    #[inline(always)]
    fn find(&self, num: u32) -> Option<u32> {
        let mask = self.cells.len() - 1;
        let mut at = num as usize & mask;
        loop {
            let Some((key, slot)) = self.cells.get(at).copied() else {
                never();
                return None;
            };
            if key == num {
                return Some(slot);
            }
            if key == EMPTY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    fn insert(&mut self, num: u32, slot: u32) {
        let mask = self.cells.len() - 1;
        let mut at = num as usize & mask;
        while let Some(cell) = self.cells.get_mut(at) {
            if cell.0 == EMPTY {
                *cell = (num, slot);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    fn remove(&mut self, num: u32) {
        let mask = self.cells.len() - 1;
        let mut hole = num as usize & mask;
        while self.key(hole) != num {
            if self.key(hole) == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        // Entries behind the hole that may not stay behind it move up.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let key = self.key(at);
            if key == EMPTY {
                break;
            }
            let home = key as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                let entry = self.cells.get(at).copied();
                if let (Some(place), Some(entry)) = (self.cells.get_mut(hole), entry) {
                    *place = entry;
                }
                hole = at;
            }
        }
        if let Some(place) = self.cells.get_mut(hole) {
            place.0 = EMPTY;
        }
    }

    /// The number at a place.
    fn key(&self, at: usize) -> u32 {
        self.cells.get(at).map_or(EMPTY, |cell| cell.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain map, with numbers that collide, over many inserts and removes.
    #[test]
    fn the_map_agrees_with_a_plain_one() {
        let mut map = SlotMap::new(16);
        let mut plain = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for round in 0..100_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let num = (seed >> 33) as u32 % 24 * 32 + (seed >> 60) as u32 % 3;
            if plain.remove(&num).is_some() {
                map.remove(num);
            } else if plain.len() < 16 {
                plain.insert(num, round);
                map.insert(num, round);
            }
            for (num, slot) in &plain {
                assert_eq!(map.find(*num), Some(*slot));
            }
            assert_eq!(map.find(num), plain.get(&num).copied());
        }
    }
}
