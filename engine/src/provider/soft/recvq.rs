//! Receive queues: one type for a queue pair's own and for a shared one.
//!
//! Receives leave in the order they came (section 2.7), to whichever domain asks. A domain takes
//! a few at a time into a stash of its own, as a NIC fetches requests ahead, so that the lock is
//! taken once per stash and not once per message. A domain that finds nothing left raises
//! `wanted`; the others give their stash back on their next poll.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::vec;

use crate::wr::{PostCause, PostError, RecvWr};

/// Receives a domain fetches ahead at most.
pub(super) const STASH: usize = 32;

/// The queue proper: a ring of posted receives.
struct Ring {
    slots: Box<[RecvWr]>,
    head: u32,
    tail: u32,
}

impl Ring {
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
}

/// A receive queue.
pub(super) struct RecvQueue {
    /// Unique within the device.
    id: u32,
    ring: Mutex<Ring>,
    depth: u32,
    /// Domains that consume from it.
    users: AtomicU32,
    /// A domain found it empty while another may hold some ahead.
    wanted: AtomicBool,
}

impl RecvQueue {
    /// A queue for `depth` receives.
    pub(super) fn new(id: u32, depth: u32) -> RecvQueue {
        let size = depth.max(1).next_power_of_two() as usize;
        let slots = vec![RecvWr::default(); size].into_boxed_slice();
        RecvQueue {
            id,
            ring: Mutex::new(Ring { slots, head: 0, tail: 0 }),
            depth,
            users: AtomicU32::new(0),
            wanted: AtomicBool::new(false),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// One more domain consumes from here.
    pub(super) fn attach(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// One domain less.
    pub(super) fn detach(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds receives at the end: all, or those before the first that has no room (PL-5).
    pub(super) fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let mut ring = self.ring.lock();
        let room = self.depth - ring.len();
        let take = list.len().min(room as usize);
        let at = ring.tail as usize & (ring.slots.len() - 1);
        let straight = take.min(ring.slots.len() - at);
        ring.slots[at..at + straight].copy_from_slice(&list[..straight]);
        ring.slots[..take - straight].copy_from_slice(&list[straight..take]);
        ring.tail = ring.tail.wrapping_add(take as u32);
        if take < list.len() {
            return Err(PostError { accepted: take, cause: PostCause::Full });
        }
        Ok(())
    }

    /// Fills an empty stash. A shallow or nearly empty queue is handed out one by one, so that
    /// nobody keeps what another needs.
    #[cold]
    #[inline(never)]
    pub(super) fn fetch(&self, stash: &mut Stash, exact: bool) {
        let mut ring = self.ring.lock();
        let shared = self.users.load(Ordering::Relaxed).max(1);
        let share = ring.len() / (4 * shared);
        let ahead = if exact { 1 } else { share.clamp(1, STASH as u32) };
        let take = ahead.min(ring.len());
        let at = ring.head as usize & (ring.slots.len() - 1);
        let count = take as usize;
        let straight = count.min(ring.slots.len() - at);
        stash.wrs[..straight].copy_from_slice(&ring.slots[at..at + straight]);
        stash.wrs[straight..count].copy_from_slice(&ring.slots[..count - straight]);
        ring.head = ring.head.wrapping_add(take);
        (stash.next, stash.end) = (0, take);
        if take == 0 && shared > 1 {
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// True if another domain is out of receives.
    #[inline(always)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Puts a stash back at the front, in order. There is always room: `post` counts what is in
    /// the ring only, so a full ring keeps the stash where it is.
    #[cold]
    #[inline(never)]
    pub(super) fn give_back(&self, stash: &mut Stash) {
        let mut ring = self.ring.lock();
        self.wanted.store(false, Ordering::Relaxed);
        let mask = ring.slots.len() - 1;
        while stash.len() > 0 && ring.len() < ring.slots.len() as u32 {
            stash.end -= 1;
            ring.head = ring.head.wrapping_sub(1);
            let at = ring.head as usize & mask;
            ring.slots[at] = stash.wrs[stash.end as usize];
        }
    }

    /// Takes the oldest receive, for flushing a queue of one owner (SM-2).
    pub(super) fn pop(&self) -> Option<RecvWr> {
        let mut ring = self.ring.lock();
        if ring.len() == 0 {
            return None;
        }
        let at = ring.head as usize & (ring.slots.len() - 1);
        ring.head = ring.head.wrapping_add(1);
        Some(ring.slots[at])
    }

    /// Receives in the queue, without those fetched ahead.
    #[cfg(feature = "sim")]
    pub(super) fn posted(&self) -> u32 {
        self.ring.lock().len()
    }
}

/// Receives fetched ahead by one domain, oldest first from `next`.
pub(super) struct Stash {
    next: u32,
    end: u32,
    wrs: [RecvWr; STASH],
}

impl Default for Stash {
    fn default() -> Stash {
        Stash { wrs: [RecvWr::default(); STASH], next: 0, end: 0 }
    }
}

impl Stash {
    /// The oldest, left in place.
    #[inline(always)]
    pub(super) fn first(&self) -> Option<&RecvWr> {
        if self.next == self.end { None } else { self.wrs.get(self.next as usize) }
    }

    /// Takes away the oldest.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        debug_assert!(self.next < self.end);
        self.next += 1;
    }

    /// How many are left.
    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.end - self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::vec::Vec;

    fn wr(n: u64) -> RecvWr {
        RecvWr { wr_id: n, ..RecvWr::default() }
    }

    fn drain(queue: &RecvQueue, stash: &mut Stash) -> Vec<u64> {
        let mut seen = Vec::new();
        loop {
            if stash.len() == 0 {
                queue.fetch(stash, false);
            }
            let Some(first) = stash.first() else { return seen };
            seen.push(first.wr_id);
            stash.advance();
        }
    }

    /// PL-5: the walk stops at the first without room, what came before is posted.
    #[test]
    fn pl_5_post_beyond_depth_takes_the_first() {
        let queue = RecvQueue::new(0, 3);
        let list: Vec<_> = (0..5).map(wr).collect();
        let error = queue.post(&list).unwrap_err();
        assert_eq!((error.accepted, error.cause), (3, PostCause::Full));
        assert_eq!(drain(&queue, &mut Stash::default()), [0, 1, 2]);
    }

    /// Section 2.7: first in, first out, over stash and give-back.
    #[test]
    fn receives_leave_in_order_also_after_a_give_back() {
        let queue = RecvQueue::new(0, 256);
        queue.attach();
        queue.attach();
        let list: Vec<_> = (0..256).map(wr).collect();
        queue.post(&list).unwrap();
        let mut one = Stash::default();
        queue.fetch(&mut one, false);
        assert_eq!(one.len(), 32);
        one.advance();
        let mut two = Stash::default();
        let rest = drain(&queue, &mut two);
        assert_eq!(rest.first(), Some(&32));
        assert!(queue.is_wanted());
        queue.give_back(&mut one);
        assert!(!queue.is_wanted());
        assert_eq!(one.len(), 0);
        assert_eq!(drain(&queue, &mut two), (1..32).collect::<Vec<_>>());
    }
}
