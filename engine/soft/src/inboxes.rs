//! The inboxes of a domain: which queue pairs take datagrams or frames.
//!
//! Full polls look at all of them. The short poll, which waits for one link's next message, looks
//! at one of them now and then, as it looks at idle links. A queue pair with a datagram in its
//! inbox is scheduled.

use std_alloc::vec::Vec;

use super::limits::QPS;
use super::qp_table::QpTable;
use crate::room::Room;

/// The numbers of those queue pairs.
pub(super) struct Inboxes {
    nums: Vec<u32>,
    /// The one to look at in the next short poll.
    next: usize,
}

impl Inboxes {
    pub(super) fn new() -> Inboxes {
        Inboxes { nums: Vec::with_capacity(QPS), next: 0 }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.nums.is_empty()
    }

    /// A queue pair takes datagrams from now on.
    pub(super) fn add(&mut self, num: u32) {
        self.nums.put(num);
    }

    /// A queue pair takes no more datagrams: it is gone.
    pub(super) fn remove(&mut self, num: u32) {
        self.nums.retain(|it| *it != num);
    }

    /// The number of the inbox at that place.
    pub(super) fn at(&self, place: usize) -> Option<u32> {
        self.nums.get(place).copied()
    }

    /// The number of the inbox to look at now, each in turn.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.next = if self.next + 1 < self.nums.len() { self.next + 1 } else { 0 };
        self.at(self.next)
    }

    /// Tells the senders whether the owner sleeps.
    pub(super) fn set_asleep(&self, qps: &QpTable, asleep: bool) {
        for num in &self.nums {
            if let Some(datagrams) = qps.get(*num).and_then(|qp| qp.datagrams.as_ref()) {
                datagrams.inbox.set_asleep(asleep);
            }
        }
    }
}
