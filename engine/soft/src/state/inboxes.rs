//! The inboxes of a domain: which queue pairs take datagrams or frames.
//!
//! Full polls look at all of them. The short poll, which waits for one link's next message, looks
//! at one of them now and then, as it looks at idle links. A queue pair with a datagram in its
//! inbox is scheduled.

use std_alloc::vec::Vec;

use crate::model::limits::QPS;
use crate::room::FixedCapacity;
use crate::state::qp::{QpContext, State};
use crate::state::qp_table::QpTable;

/// The numbers of those queue pairs.
pub(crate) struct Inboxes {
    nums: Vec<u32>,
    /// The one to look at in the next short poll.
    next: usize,
}

impl Inboxes {
    pub(crate) fn new() -> Inboxes {
        Inboxes { nums: Vec::with_capacity(QPS), next: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.nums.is_empty()
    }

    /// A queue pair takes datagrams from now on.
    pub(crate) fn add(&mut self, num: u32) {
        self.nums.put(num);
    }

    /// A queue pair takes no more datagrams: it is gone.
    pub(crate) fn remove(&mut self, num: u32) {
        self.nums.retain(|it| *it != num);
    }

    /// The number of the inbox at that place.
    pub(crate) fn at(&self, place: usize) -> Option<u32> {
        self.nums.get(place).copied()
    }

    /// The number of the inbox to look at now, each in turn.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.next = if self.next + 1 < self.nums.len() { self.next + 1 } else { 0 };
        self.at(self.next)
    }

    /// If the next datagram of one of them is not completely written: when the wait for its sender
    /// ends, the earliest of all, and the present. Nobody looks at the inbox of a queue pair in
    /// ERR.
    pub(crate) fn end_of_patience(&self, qps: &QpTable, clock: fn() -> u64) -> Option<(u64, u64)> {
        let takes = |qp: &&QpContext| qp.state != State::Err;
        let of = |num: &u32| qps.get(*num).filter(takes)?.datagrams.as_ref();
        let waits = self.nums.iter().filter_map(of).map(|datagrams| &datagrams.inbox);
        waits.filter(|inbox| inbox.waits_for_sender()).fold(None, |first, inbox| {
            let (first, now) = first.unwrap_or_else(|| (u64::MAX, clock()));
            Some((inbox.end_of_patience(now).min(first), now))
        })
    }

    /// Tells the senders whether the owner sleeps.
    pub(crate) fn set_asleep(&self, qps: &QpTable, asleep: bool) {
        for num in &self.nums {
            if let Some(datagrams) = qps.get(*num).and_then(|qp| qp.datagrams.as_ref()) {
                datagrams.inbox.set_asleep(asleep);
            }
        }
    }
}
