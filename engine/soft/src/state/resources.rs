//! What the queue pairs of a domain share: receive queues, completion queues, the service queue and
//! the inboxes. Each has a type of its own beside this one.

use core::sync::atomic::{Ordering, fence};

use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::ext::xrc_part::XrcQueues;
use crate::model::limits::QPS;
use crate::model::local_waker::LocalWaker;
use crate::model::pd::with_rights;
use crate::state::completions::{Completions, LostReceives};
use crate::state::inboxes::Inboxes;
use crate::state::link::CLOSED;
use crate::state::next_look::NextLook;
use crate::state::qp::{QpContext, Reserved, State};
use crate::state::receives::Receives;
use crate::state::service_queue::ServiceQueue;
use crate::sync::AtomicBool;
use crate::wc::Status;

/// What the queue pairs of a domain share.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct Resources {
    pub(crate) service_queue: ServiceQueue,
    pub(crate) receives: Receives,
    pub(crate) nic: Arc<Nic>,
    pub(crate) completions: Completions,
    /// Commands wait.
    pub(crate) attention: Arc<AtomicBool>,
    pub(crate) local_waker: Arc<LocalWaker>,
    /// The domain's number.
    pub(crate) id: u32,
    /// The shared receive queues of XRC domains; only the shared domain has any.
    pub(crate) xrc: XrcQueues,
    pub(crate) inboxes: Inboxes,
    /// Somebody polls soon even if the program does not: an acknowledgement may wait for a reply,
    /// and a message or a look for the next poll.
    pub(crate) attended: bool,
    pub(crate) lost_receives: LostReceives,
    pub(crate) next_look: NextLook,
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
    /// True if what concerns that completion queue may wait for the next poll: somebody polls soon,
    /// and nobody sleeps until an entry comes there.
    #[inline(always)]
    pub(crate) fn may_wait(&self, cq: usize) -> bool {
        self.attended && !self.completions.is_queue_armed(cq)
    }

    /// Something is due here at that time, and nobody announces it. A sleeper does not know that,
    /// unless it looks by then anyway. So each is woken once, and asks how long it may sleep.
    /// Several may sleep in the shared domain, and the first to wake clears the domain's notifier.
    /// That of its queue is a sleeper's own.
    pub(crate) fn look_again_at(&mut self, at: u64, now: u64) {
        if self.next_look.bring_forward(at, now) {
            self.local_waker.wake_from_inside();
            self.completions.ring_armed();
        }
    }

    /// Gives the peer of the queue pair what is allowed now, and takes the rest away.
    ///
    /// The peer looks at the word in the table before each access of its own, and this domain looks
    /// at the rights before it carries out a request. Both change here. Whoever tells the peer of
    /// the change does so after this store, so the peer's next look finds the new word. An access
    /// that the peer has begun before still ends. The word of lent messages stays as it is, because
    /// the messages under way name it.
    pub(crate) fn change_rights(&self, qp: &mut QpContext) {
        qp.rights = qp.allowed();
        if qp.word != 0 {
            let word = with_rights(qp.word, qp.rights);
            self.nic.memory.table().qps[qp.num as usize % QPS].store(word, Ordering::Release);
        }
    }

    /// From now on no peer uses memory through this queue pair, and none believes what it reads of
    /// a message that the queue pair has lent: see
    /// [`Borrowed`](crate::shm::remote_map::Borrowed). Call it before the sends are completed.
    pub(crate) fn take_word_back(&self, qp: &mut QpContext) {
        qp.word = 0;
        let (table, at) = (self.nic.memory.table(), qp.num as usize % QPS);
        table.qps[at].store(0, Ordering::Release);
        table.lenders[at].store(0, Ordering::Release);
        // The program may change the bytes of a message when its send has completed. Those stores
        // come after this fence.
        fence(Ordering::Release);
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
        self.take_word_back(qp);
        qp.failure.good_until = good_until;
        qp.failure.cause = cause;
        (qp.failure.poison, qp.failure.urged) = (None, false);
        self.service_queue.schedule(qp);
        // The next poll makes the completions. This may be the last one before a sleep.
        self.local_waker.wake_from_inside();
    }
}
