//! The receive queues of a domain, each with the receives that the domain has prefetched from it.

use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::device::nic::Nic;
use crate::event::{AsyncKind, Object};
use crate::model::buffers::Target;
use crate::model::local_waker::LocalWaker;
use crate::model::recvq::{Prefetch, RecvQueue, Used};
use crate::provider::Sharing;
use crate::room::TryGrow;
use crate::state::qp::{Assembly, QpContext};
use crate::wr::{RecvWr, Sge};

/// A receive queue as one domain sees it.
pub(crate) struct RqUse {
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) prefetch: Prefetch,
    /// Where the last list of receives ended, at the last call of [`Receives::were_posted`].
    listed: u32,
    users: u32,
}

impl RqUse {
    /// See [`Receives::give_back`].
    #[cold]
    #[inline(never)]
    fn give_back(&mut self, nic: &Nic) -> bool {
        let gave = self.prefetch.len() > 0;
        if self.queue.give_back(&mut self.prefetch) {
            raise_limit(nic, &self.queue);
        }
        gave
    }
}

/// The receive queues of a domain, by the index that queue pairs and links name.
pub(crate) struct Receives {
    queues: Vec<RqUse>,
    nic: Arc<Nic>,
    /// A shared domain takes no more receives than it needs from a queue of several domains.
    exact: bool,
}

impl Receives {
    pub(crate) fn new(nic: Arc<Nic>, sharing: Sharing) -> Receives {
        Receives { queues: Vec::with_capacity(16), nic, exact: sharing == Sharing::Shared }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, rq: usize) -> Option<&mut RqUse> {
        self.queues.get_mut(rq)
    }

    /// True if no receive of that queue is prefetched. There may be none in the queue either.
    #[inline(always)]
    pub(crate) fn is_dry(&self, rq: usize) -> bool {
        self.queues.get(rq).is_some_and(|rq| rq.prefetch.len() == 0)
    }

    /// True if a list of receives was posted to that queue since the last call, and no other domain
    /// uses the queue.
    #[inline(always)]
    pub(crate) fn were_posted(&mut self, rq: usize) -> bool {
        let Some(rq) = self.queues.get_mut(rq) else { return false };
        let Some(listed) = rq.queue.listed() else { return false };
        core::mem::replace(&mut rq.listed, listed) != listed
    }

    /// Gives back prefetched receives that another domain has asked for. True if there were any. A
    /// domain that has none left must answer too, because the queue then finds out whether its
    /// limit is reached.
    pub(crate) fn give_back(&mut self) -> bool {
        let mut gave = false;
        for rq in &mut self.queues {
            if rq.prefetch.is_asked() && rq.users > 0 {
                gave |= rq.give_back(&self.nic);
            }
        }
        gave
    }

    /// True if there is a receive for the queue pair's next message.
    pub(crate) fn has_receive(&mut self, qp: &mut QpContext) -> bool {
        let found = self.has_receives(qp.rq);
        if found {
            qp.rnr_since_ns = None;
        }
        found
    }

    /// True if receives of that queue are prefetched; prefetches some if there are none.
    pub(crate) fn has_receives(&mut self, rq: usize) -> bool {
        let Some(rq) = self.queues.get_mut(rq) else { return false };
        if rq.prefetch.len() == 0 && rq.queue.fetch(&mut rq.prefetch, self.exact) {
            raise_limit(&self.nic, &rq.queue);
        }
        rq.prefetch.len() > 0
    }

    /// Prefetches the next receives, if none are left here and no domain lacks any.
    pub(crate) fn prefetch_ahead(&mut self, rq: usize) {
        if let Some(rq) = self.queues.get_mut(rq)
            && rq.prefetch.len() == 0
        {
            rq.queue.prefetch_ahead(&mut rq.prefetch, self.exact);
        }
    }

    /// Takes the oldest receive that is prefetched for the queue pair.
    pub(crate) fn take(&mut self, qp: &QpContext) -> Option<RecvWr> {
        let rq = self.queues.get_mut(qp.rq)?;
        let wr = rq.prefetch.first().copied()?;
        rq.prefetch.advance(1);
        Some(wr)
    }

    /// The receive for a message of an unreliable queue pair: the one that was begun, else the
    /// oldest posted.
    pub(crate) fn begun(&mut self, qp: &mut QpContext) -> Option<Assembly> {
        if qp.assembly.is_some() {
            return qp.assembly;
        }
        if !self.has_receive(qp) {
            return None;
        }
        self.take(qp).map(|wr| Assembly { wr, received: 0 })
    }

    /// Takes the oldest receive to be flushed, prefetched or not.
    pub(crate) fn flush_one(&mut self, qp: &QpContext) -> Option<RecvWr> {
        self.take(qp).or_else(|| self.queues.get(qp.rq)?.queue.pop())
    }

    /// `length` bytes of a receive of the queue pair, from `skip` on, if they may be written: they
    /// must be of the queue's protection domain (SRQ-1).
    pub(crate) fn buffer(
        &self,
        qp: &QpContext,
        wr: &RecvWr,
        (skip, length): (u32, u32),
    ) -> Option<Target<'_>> {
        let addr = wr.sge.addr + u64::from(skip);
        let rq = self.queues.get(qp.rq)?;
        self.nic.memory.target(Sge { addr, length, ..wr.sge }, rq.queue.pd())
    }

    /// Adds a user of a receive queue, counted in `used`; returns its index here. Another domain
    /// that gives receives back wakes this one by `waker`. `None`: no memory for it.
    pub(crate) fn enter(
        &mut self,
        queue: Arc<RecvQueue>,
        used: Used,
        waker: &Arc<LocalWaker>,
    ) -> Option<usize> {
        let found = self.queues.iter().position(|rq| Arc::ptr_eq(&rq.queue, &queue));
        let free = || self.queues.iter().position(|rq| rq.users == 0);
        let index = found.or_else(free).unwrap_or(self.queues.len());
        if found.is_none() && !self.queues.make_room(index + 1) {
            return None;
        }
        match self.queues.get_mut(index) {
            Some(rq) if found.is_some() && rq.users > 0 => rq.users += 1,
            _ => {
                let prefetch = queue.attach(waker, used)?;
                if !self.queues.place(index, RqUse { prefetch, queue, listed: 0, users: 1 }) {
                    return None;
                }
            }
        }
        Some(index)
    }

    /// Removes a user.
    pub(crate) fn leave(&mut self, index: usize) {
        let Some(rq) = self.queues.get_mut(index) else { return };
        rq.users -= 1;
        if rq.users == 0 && rq.queue.detach(&mut rq.prefetch) {
            raise_limit(&self.nic, &rq.queue);
        }
    }
}

/// Tells the program that fewer receives than the queue's limit are left.
fn raise_limit(nic: &Nic, queue: &RecvQueue) {
    nic.raise(AsyncKind::SrqLimitReached, Object::Srq(queue.id().into()));
}
