//! What the queue pairs of a domain share: receive queues with the receives prefetched from them,
//! completion queues, and the service queue of queue pairs that need work without a message.

use core::sync::atomic::Ordering;

use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::device::nic::Nic;
use crate::event::{AsyncKind, Object};
use crate::ext::xrc_part::XrcQueues;
use crate::model::buffers::Target;
use crate::model::cq::{CompletionQueue, Retire, Sink};
use crate::model::limits::QPS;
use crate::model::local_waker::LocalWaker;
use crate::model::recvq::{Prefetch, RecvQueue, Used};
use crate::provider::Sharing;
use crate::room::{Grow, Room};
use crate::state::inboxes::Inboxes;
use crate::state::link::CLOSED;
use crate::state::qp::{QpContext, Reserved, State};
use crate::sync::AtomicBool;
use crate::wc::{Status, Wc, WcFlags};
use crate::wr::{RecvWr, Sge};

/// A receive queue as one domain sees it.
pub(crate) struct RqUse {
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) prefetch: Prefetch,
    pub(crate) users: u32,
}

/// What the queue pairs of a domain share.
pub(crate) struct Resources {
    pub(crate) nic: Arc<Nic>,
    /// Commands wait.
    pub(crate) attention: Arc<AtomicBool>,
    pub(crate) local_waker: Arc<LocalWaker>,
    /// The domain's number.
    pub(crate) id: u32,
    pub(crate) rqs: Vec<RqUse>,
    /// The shared receive queues of XRC domains; only the shared domain has any.
    pub(crate) xrc: XrcQueues,
    pub(crate) cqs: Vec<CompletionQueue>,
    /// Numbers of queue pairs that need work without a message: they fail or flush, or something
    /// has come to their inbox.
    pub(crate) service_queue: Vec<u32>,
    pub(crate) inboxes: Inboxes,
    pub(crate) sharing: Sharing,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was consumed.
    Done,
    /// It stays, and the link stands still.
    Waits,
    /// No honest peer writes it: the link has to go.
    Hostile,
}

impl Resources {
    /// Puts a queue pair on the list of those that need work without a message.
    pub(crate) fn schedule(&mut self, qp: &mut QpContext) {
        if !qp.is_scheduled {
            qp.is_scheduled = true;
            self.service_queue.put(qp.num);
        }
    }

    /// Gives back prefetched receives that another domain waits for.
    pub(crate) fn give_back(&mut self) {
        for rq in &mut self.rqs {
            if rq.queue.is_wanted() && rq.prefetch.len() > 0 {
                rq.queue.give_back(&mut rq.prefetch);
            }
        }
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
        let exact = self.sharing == Sharing::Shared;
        let Some(rq) = self.rqs.get_mut(rq) else { return false };
        if rq.prefetch.len() == 0 && rq.queue.fetch(&mut rq.prefetch, exact) {
            self.nic.raise(AsyncKind::SrqLimitReached, Object::Srq(rq.queue.id().into()));
        }
        rq.prefetch.len() > 0
    }

    /// Prefetches the next receives, if none are left here and no domain lacks any.
    pub(crate) fn prefetch_ahead(&mut self, rq: usize) {
        let exact = self.sharing == Sharing::Shared;
        if let Some(rq) = self.rqs.get_mut(rq)
            && rq.prefetch.len() == 0
        {
            rq.queue.prefetch_ahead(&mut rq.prefetch, exact);
        }
    }

    /// `length` bytes of a receive of that queue, from `skip` on, if they may be written: they must
    /// be of the queue's protection domain (SRQ-1).
    pub(crate) fn buffer(
        &self,
        qp: &QpContext,
        wr: &RecvWr,
        (skip, length): (u32, u32),
    ) -> Option<Target<'_>> {
        let addr = wr.sge.addr + u64::from(skip);
        let rq = self.rqs.get(qp.rq)?;
        self.nic.memory.target(Sge { addr, length, ..wr.sge }, rq.queue.pd())
    }

    pub(crate) fn take_receive(&mut self, qp: &QpContext) -> Option<RecvWr> {
        let rq = self.rqs.get_mut(qp.rq)?;
        let wr = rq.prefetch.first().copied()?;
        rq.prefetch.advance(1);
        Some(wr)
    }

    #[inline(always)]
    pub(crate) fn succeed<S: Sink>(&mut self, qp: &mut QpContext, index: u32, sink: &mut S) {
        let entry = *qp.sq.entry(index);
        let opcode = entry.sent.opcode();
        let wc = Wc {
            wr_id: entry.wr_id,
            qp_num: qp.num,
            byte_len: entry.length,
            imm: 0,
            vendor_err: 0,
            status: Status::Success,
            opcode,
            flags: WcFlags::empty(),
            src_qp: 0,
        };
        self.put_send(qp, index, wc, sink);
    }

    #[inline(always)]
    pub(crate) fn put_send<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        index: u32,
        wc: Wc,
        sink: &mut S,
    ) {
        qp.sq.completed = index.wrapping_add(1);
        let retire = Retire { qp: qp.num, upto: qp.sq.completed, solicited: false };
        if sink.put(&mut self.cqs, qp.send_cq, wc, retire) {
            qp.sq.retired = qp.sq.completed;
        }
    }

    /// Moves a queue pair to ERR (SM-2, SM-3). Requests up to ring position `good_until` succeeded;
    /// the next one gets `cause` if there is one, and the others are flushed.
    pub(crate) fn fail_qp(&mut self, qp: &mut QpContext, good_until: u64, cause: Option<Status>) {
        if qp.state == State::Err {
            return;
        }
        // Its place in the backlog is skipped when its turn comes.
        qp.in_backlog = false;
        qp.reads.waits = false;
        qp.parked = None;
        (qp.open_on, qp.reserved) = (CLOSED, Reserved::NONE);
        qp.state = State::Err;
        self.nic.memory.table().qps[qp.num as usize % QPS].store(0, Ordering::Release);
        qp.failure.good_until = good_until;
        qp.failure.cause = cause;
        (qp.failure.poison, qp.failure.urged) = (None, false);
        self.schedule(qp);
    }
}

impl Resources {
    /// Adds a user of a receive queue, counted in `used`; returns its index here. `None`: no memory
    /// for it.
    pub(crate) fn use_queue(&mut self, queue: Arc<RecvQueue>, used: Used) -> Option<usize> {
        let found = self.rqs.iter().position(|rq| Arc::ptr_eq(&rq.queue, &queue));
        let free = || self.rqs.iter().position(|rq| rq.users == 0);
        let index = found.or_else(free).unwrap_or(self.rqs.len());
        if found.is_none() && !self.rqs.make_room(index + 1) {
            return None;
        }
        match self.rqs.get_mut(index) {
            Some(rq) if found.is_some() && rq.users > 0 => rq.users += 1,
            _ => {
                let prefetch = queue.attach(&self.local_waker, used)?;
                if !self.rqs.place(index, RqUse { prefetch, queue, users: 1 }) {
                    return None;
                }
            }
        }
        Some(index)
    }

    /// Removes a user.
    pub(crate) fn leave_queue(&mut self, index: usize) {
        let Some(rq) = self.rqs.get_mut(index) else { return };
        rq.users -= 1;
        if rq.users == 0 {
            rq.queue.detach(&mut rq.prefetch);
        }
    }
}
