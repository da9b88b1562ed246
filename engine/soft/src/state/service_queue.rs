//! The queue pairs that need work without a message: they fail or flush, or something has come to
//! their inbox.

use std_alloc::vec::Vec;

use crate::model::limits::QPS;
use crate::room::{FixedCapacity, RemoveAt};
use crate::state::qp::QpContext;

/// The most polls for which the service queue waits: under a stream of messages each poll may find
/// something of the same link, or fill its list. A ring holds as many of the longest lent messages
/// as take about that many polls.
const WAIT_MAX: u32 = 600;

/// The numbers of those queue pairs, in the order in which they are served.
pub(crate) struct ServiceQueue {
    nums: Vec<u32>,
    /// The links are served first, in this many polls at most. A peer has left: on a NIC, sends to
    /// it fail when all retries have run out, long after everything has come that was under way.
    waits: u32,
}

impl ServiceQueue {
    pub(crate) fn new() -> ServiceQueue {
        ServiceQueue { nums: Vec::with_capacity(QPS), waits: 0 }
    }

    /// Lets the links be served first.
    pub(crate) fn wait_for_links(&mut self) {
        self.waits = WAIT_MAX;
    }

    /// True if the links are to be served first.
    pub(crate) fn waits(&self) -> bool {
        self.waits > 0
    }

    /// They were served, and something that counts came or not. If not, the service queue waits no
    /// more.
    pub(crate) fn links_served(&mut self, came: bool) {
        self.waits = if came { self.waits.saturating_sub(1) } else { 0 };
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.nums.is_empty()
    }

    /// The numbers, in their order.
    pub(crate) fn nums(&self) -> &[u32] {
        &self.nums
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.nums.len()
    }

    /// Puts a queue pair at the end, unless it is in the queue.
    pub(crate) fn schedule(&mut self, qp: &mut QpContext) {
        if !qp.is_scheduled {
            qp.is_scheduled = true;
            self.nums.put(qp.num);
        }
    }

    /// Takes the first number out. Its queue pair stays scheduled until it is served.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.nums.remove_at(0)
    }

    /// Puts a number that was taken out at the end: its queue pair is not done.
    pub(crate) fn put_back(&mut self, num: u32) {
        self.nums.put(num);
    }

    /// Takes out the number of a queue pair that goes.
    pub(crate) fn remove(&mut self, num: u32) {
        self.nums.retain(|it| *it != num);
    }
}
