//! Work queues and the spreading of frames over them, inside their domain (QX-8).

use core::any::Any;

use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use super::hash;
use crate::device::nic::Nic;
use crate::device::pd::Pd;
use crate::model::buffers::Target;
use crate::model::cq::{CompletionQueue, Retire};
use crate::model::recvq::RecvQueue;
use crate::provider::{CreateFlags, RxHash, WqState};
use crate::state::completion::error_wc;
use crate::wc::Status;
use crate::wr::{PostCause, PostError, RecvWr, Sge};

/// The part that all handles of a work queue share.
pub(super) struct Queue {
    pub(super) num: u32,
    pub(super) flags: CreateFlags,
    pub(super) recvs: RecvQueue,
    pub(super) turn: Mutex<Turn>,
    /// The index of its completion queue. `_kept` holds a handle of that queue.
    pub(super) cq: usize,
    pub(super) _kept: Arc<dyn Any + Send + Sync>,
    pub(super) nic: Arc<Nic>,
    pub(super) _pd: Pd,
}

/// The mutable state, used only inside the domain.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) state: WqState,
    /// The next receive, once it has been fetched.
    pub(super) first: Option<RecvWr>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.nic.free_number(self.num);
    }
}

impl Queue {
    /// The fetched receive counts toward the depth.
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

    /// Puts the queue in error: everything is flushed from here on.
    pub(super) fn fail(&self, cqs: &mut [CompletionQueue]) {
        let mut turn = self.turn.lock();
        turn.state = WqState::Err;
        while let Some(wr) = turn.first.take().or_else(|| self.recvs.pop()) {
            self.complete(cqs, error_wc(wr.wr_id, self.num, Status::Flushed));
        }
    }

    /// The oldest receive, left in place. There is none outside RDY: later posts are refused, or
    /// flushed at once.
    pub(super) fn first(&self) -> Option<RecvWr> {
        let mut turn = self.turn.lock();
        if turn.first.is_none() {
            turn.first = self.recvs.pop();
        }
        turn.first
    }

    /// The first bytes of a receive, if the queue's own protection domain may write them.
    pub(super) fn buffer(&self, wr: &RecvWr, length: u32) -> Option<Target<'_>> {
        self.nic.memory.target(Sge { length, ..wr.sge }, self.recvs.pd())
    }

    /// Removes the oldest receive.
    pub(super) fn advance(&self) {
        self.turn.lock().first = None;
    }

    pub(super) fn complete(&self, cqs: &mut [CompletionQueue], wc: crate::wc::Wc) {
        if let Some(cq) = cqs.get_mut(self.cq) {
            cq.push(wc, Retire::default(), 0);
        }
    }
}

/// How the frames of a queue pair are spread over work queues.
pub(crate) struct Spread {
    /// The number of queues is a power of two.
    queues: Box<[Arc<Queue>]>,
    by: RxHash,
}

impl Spread {
    pub(super) fn over(queues: Box<[Arc<Queue>]>, by: RxHash) -> Spread {
        Spread { queues, by }
    }

    /// The queue that receives a frame.
    pub(super) fn queue_of(&self, frame: &[u8]) -> Option<Arc<Queue>> {
        // The number of queues in a table is a power of two and at least one.
        let place = hash::of(frame, &self.by) as usize & (self.queues.len() - 1);
        self.queues.get(place).cloned()
    }
}
