//! Work queues and indirection tables, which spread the frames of one queue pair (QX-8).

use spin::Mutex;
use std_alloc::format;
use std_alloc::sync::Arc;

use super::work_queue::{Queue, Spread, Turn};
use crate::error::{Code, SetupError};
use crate::handles::device::{Soft, check_depth};
use crate::handles::poller::SoftCq;
use crate::provider::{CreateFlags, RxHash, Sharing, WqFlags, WqState};
use crate::state::resources::Resources;
use crate::wr::{PostCause, PostError, RecvWr};

/// The most work queues in one table.
const TABLE_MAX: usize = 128;

/// A work queue of the soft device. It lives in the domain of its completion queue, which is the
/// shared domain.
#[derive(Clone)]
pub struct SoftWq {
    queue: Arc<Queue>,
    cq: SoftCq,
}

impl Soft {
    /// Makes a work queue for at least `depth` receives, in RESET (`ibv_create_wq`).
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit; a completion queue that is not
    /// [`Sharing::Shared`]; flags that do not exist.
    pub fn create_wq(&self, cq: &SoftCq, depth: u32, flags: WqFlags) -> Result<SoftWq, SetupError> {
        check_depth("work queue", depth, self.nic.caps.qp_wr_max)?;
        let refused = |code, answer| Err(SetupError::new(code, "a work queue", answer));
        if !WqFlags::all().contains(flags) {
            return refused(
                Code::Invalid,
                format!("there are no such flags as {:#x}", flags.bits()),
            );
        }
        if cq.domain.sharing() != Sharing::Shared {
            return refused(
                Code::NotSupported,
                "its completion queue belongs to one thread".into(),
            );
        }
        let Some(num) = self.nic.take_number() else {
            return refused(Code::NoMemory, "all numbers are in use".into());
        };
        let mut of_frames = CreateFlags::empty();
        of_frames.set(CreateFlags::SCATTER_FCS, flags.contains(WqFlags::SCATTER_FCS));
        of_frames.set(CreateFlags::CVLAN_STRIPPING, flags.contains(WqFlags::CVLAN_STRIPPING));
        let queue = Arc::new(Queue {
            num,
            flags: of_frames,
            recvs: self.nic.new_queue(depth, self.pd.mark()),
            turn: Mutex::default(),
            cq: cq.index,
            _kept: Arc::new(cq.clone()),
            nic: self.nic.clone(),
            _pd: self.pd.clone(),
        });
        Ok(SoftWq { queue, cq: cq.clone() })
    }

    /// Makes a table of work queues (`ibv_create_rwq_ind_table`).
    ///
    /// # Errors
    /// `Invalid`: the number of queues is not a power of two, or is over 128.
    pub fn create_rwq_ind_table(&self, queues: &[&SoftWq]) -> Result<SoftIndTable, SetupError> {
        if !queues.len().is_power_of_two() || queues.len() > TABLE_MAX {
            let asked = format!("a table of {} work queues", queues.len());
            let answer = format!("it takes a power of two, up to {TABLE_MAX}");
            return Err(SetupError::new(Code::Invalid, asked, answer));
        }
        Ok(SoftIndTable(queues.iter().map(|queue| (*queue).clone()).collect()))
    }
}

impl SoftWq {
    /// Runs `f` inside the queue's domain, which is locked meanwhile. It is the shared domain, so
    /// this is never `None`.
    fn enter<R>(&self, f: impl FnOnce(&mut Resources, &Queue) -> R) -> Option<R> {
        self.cq.domain.enter_shared(|state| f(&mut state.transport.res, &self.queue))
    }

    pub(crate) fn number(&self) -> u32 {
        self.queue.num
    }

    pub(crate) fn recv_depth(&self) -> u32 {
        self.queue.recvs.depth()
    }

    /// Takes the queue to another state.
    pub(crate) fn take_to(&self, to: WqState) -> Result<(), SetupError> {
        let changed = self.enter(|res, queue| {
            let from = queue.turn.lock().state;
            match (from, to) {
                (_, WqState::Reset) => {
                    *queue.turn.lock() = Turn::default();
                    while queue.recvs.pop().is_some() {}
                }
                (WqState::Reset | WqState::Ready, WqState::Ready) => {
                    queue.turn.lock().state = WqState::Ready;
                }
                (WqState::Ready | WqState::Err, WqState::Err) => queue.fail(res.completions.all()),
                (WqState::Reset, WqState::Err) | (WqState::Err, WqState::Ready) => {
                    let asked = format!("take a work queue from {from:?} to {to:?}");
                    return Err(SetupError::new(
                        Code::Invalid,
                        asked,
                        "there is no such transition",
                    ));
                }
            }
            Ok(())
        });
        changed.unwrap_or(Ok(()))
    }

    /// Posts receives; those that come in ERR are flushed.
    pub(crate) fn post_recvs(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let posted = self.enter(|res, queue| {
            let state = queue.turn.lock().state;
            if state == WqState::Reset && !list.is_empty() {
                return Err(PostError { accepted: 0, cause: PostCause::State });
            }
            let result = queue.post(list);
            if state == WqState::Err {
                queue.fail(res.completions.all());
            }
            result
        });
        posted.unwrap_or(Err(PostError { accepted: 0, cause: PostCause::State }))
    }
}

/// An indirection table of the soft device.
#[derive(Clone)]
pub struct SoftIndTable(Arc<[SoftWq]>);

impl SoftIndTable {
    /// How to spread frames over the queues of the table. `None` if a queue has its completions in
    /// another domain than that of `cq`.
    pub(crate) fn spread(&self, by: &RxHash, cq: &SoftCq) -> Option<Spread> {
        let here = |queue: &SoftWq| Arc::ptr_eq(&queue.cq.domain, &cq.domain);
        let queues = || self.0.iter().map(|queue| queue.queue.clone()).collect();
        self.0.iter().all(here).then(|| Spread::over(queues(), *by))
    }
}
