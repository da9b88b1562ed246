//! Work queues, and how frames are spread over them, inside their domain (QX-8).

use core::any::Any;

use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use super::super::completion::error_wc;
use super::super::cq::{CompletionQueue, Retire};
use super::super::nic::Nic;
use super::super::pd::Pd;
use super::super::recvq::RecvQueue;
use super::hash;
use crate::provider::{Access, CreateFlags, RxHash, WqState};
use crate::wc::Status;
use crate::wr::{PostCause, PostError, RecvWr};

/// What all handles on a work queue share.
pub(super) struct Queue {
    pub(super) num: u32,
    pub(super) flags: CreateFlags,
    pub(super) recvs: RecvQueue,
    pub(super) turn: Mutex<Turn>,
    /// The index of its completion queue, whose handle is kept.
    pub(super) cq: usize,
    pub(super) _kept: Arc<dyn Any + Send + Sync>,
    pub(super) nic: Arc<Nic>,
    pub(super) _pd: Pd,
}

/// What changes; looked at inside the domain only.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) state: WqState,
    /// The receive that comes next, once it was looked at.
    pub(super) first: Option<RecvWr>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.nic.free_number(self.num);
    }
}

impl Queue {
    /// The receive that was looked at counts as well.
    pub(super) fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let ahead = u32::from(self.turn.lock().first.is_some());
        let room = self.recvs.depth().saturating_sub(self.recvs.posted() + ahead) as usize;
        let beyond = list.len() > room;
        self.recvs.post(list.get(..room).unwrap_or(list))?;
        if beyond {
            return Err(PostError { accepted: room, cause: PostCause::Full });
        }
        Ok(())
    }

    /// From here on everything is flushed.
    pub(super) fn fail(&self, cqs: &mut [CompletionQueue]) {
        let mut turn = self.turn.lock();
        turn.state = WqState::Err;
        while let Some(wr) = turn.first.take().or_else(|| self.recvs.pop()) {
            self.complete(cqs, error_wc(wr.wr_id, self.num, Status::Flushed));
        }
    }

    /// The oldest receive, which stays where it is. In another state than RDY there is none: what
    /// is posted then is refused, or flushed at once.
    pub(super) fn first(&self) -> Option<RecvWr> {
        let mut turn = self.turn.lock();
        if turn.first.is_none() {
            turn.first = self.recvs.pop();
        }
        turn.first
    }

    /// True if the memory of a receive may be written, for the queue's own protection domain.
    pub(super) fn may_fill(&self, wr: &RecvWr, length: u32) -> bool {
        let needs = (Access::LOCAL_WRITE, self.recvs.pd());
        self.nic.memory.allows(wr.sge.lkey, wr.sge.addr, length, needs)
    }

    /// Takes the oldest receive away.
    pub(super) fn advance(&self) {
        self.turn.lock().first = None;
    }

    pub(super) fn complete(&self, cqs: &mut [CompletionQueue], wc: crate::wc::Wc) {
        if let Some(cq) = cqs.get_mut(self.cq) {
            cq.push(wc, Retire::default());
        }
    }
}

/// How the frames of a queue pair are spread.
pub(in super::super) struct Spread {
    /// A power of two of them.
    queues: Box<[Arc<Queue>]>,
    by: RxHash,
}

impl Spread {
    pub(super) fn over(queues: Box<[Arc<Queue>]>, by: RxHash) -> Spread {
        Spread { queues, by }
    }

    /// The queue that a frame goes to.
    pub(super) fn queue_of(&self, frame: &[u8]) -> Option<Arc<Queue>> {
        // Tables have a power of two of queues, and at least one.
        let place = hash::of(frame, &self.by) as usize & (self.queues.len() - 1);
        self.queues.get(place).cloned()
    }
}
