//! The signalled requests in flight on a link.

use std_alloc::boxed::Box;
use std_alloc::vec;

use crate::room::never;

/// The most signalled requests in flight on one link; more wait in the backlog.
const SIGNALED_MAX: u32 = 512;

/// A signalled request in flight.
#[derive(Clone, Copy, Default)]
pub(crate) struct Signaled {
    /// Ring position behind it.
    pub(crate) end: u64,
    /// Its queue pair.
    pub(crate) qp: u32,
    /// Its index in that queue pair's send queue.
    pub(crate) index: u32,
}

/// The signalled requests in flight of all queue pairs of a link, oldest first: completions are
/// found without a look at queue pairs that have none.
pub(crate) struct SignaledQueue {
    ring: Box<[Signaled]>,
    head: u32,
    tail: u32,
}

impl SignaledQueue {
    pub(super) fn new() -> SignaledQueue {
        let ring = vec![Signaled::default(); SIGNALED_MAX as usize].into_boxed_slice();
        SignaledQueue { ring, head: 0, tail: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    #[inline(always)]
    pub(crate) fn has_one(&self) -> bool {
        self.tail.wrapping_sub(self.head) == 1
    }
    /// The number of requests that were ever pushed, which wraps.
    #[inline(always)]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) < SIGNALED_MAX
    }
    #[inline(always)]
    pub(crate) fn push(&mut self, signaled: Signaled) {
        match self.ring.get_mut((self.tail & (SIGNALED_MAX - 1)) as usize) {
            Some(place) => *place = signaled,
            None => never(),
        }
        self.tail = self.tail.wrapping_add(1);
    }
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<Signaled> {
        if self.is_empty() {
            return None;
        }
        self.ring.get((self.head & (SIGNALED_MAX - 1)) as usize).copied()
    }
    /// Clears the owner of the entries of a queue pair: 0 is no number.
    pub(super) fn forget(&mut self, qp: u32) {
        let mut at = self.head;
        while at != self.tail {
            let entry = self.ring.get_mut((at & (SIGNALED_MAX - 1)) as usize);
            if let Some(entry) = entry.filter(|entry| entry.qp == qp) {
                entry.qp = 0;
            }
            at = at.wrapping_add(1);
        }
    }
    #[inline(always)]
    pub(crate) fn pop(&mut self) {
        self.head = self.head.wrapping_add(1);
    }
}
