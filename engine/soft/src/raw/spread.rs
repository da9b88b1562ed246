//! Work queues and tables of them, among which the frames of one queue pair are spread (QX-8).
#![expect(unsafe_code, reason = "enters the domain of a queue's completions")]

use spin::Mutex;
use std_alloc::format;
use std_alloc::sync::Arc;

use super::super::cq::Retire;
use super::super::domain::Resources;
use super::super::nic::Nic;
use super::super::pd::Pd;
use super::super::recvq::RecvQueue;
use super::super::requester::error_wc;
use super::super::{Soft, SoftCq, check_depth};
use super::hash;
use crate::error::{Code, SetupError};
use crate::provider::{Access, CreateFlags, RxHash, Sharing, Wq, WqFlags, WqState};
use crate::wc::Status;
use crate::wr::{PostCause, PostError, RecvWr};

/// Work queues in one table at most.
const TABLE_MAX: usize = 128;

/// A work queue of the soft device. It works inside the domain of its completion queue, which is
/// the shared one.
#[derive(Clone)]
pub struct SoftWq(Arc<Queue>);

/// What all handles on a work queue share.
pub(super) struct Queue {
    pub(super) num: u32,
    pub(super) flags: CreateFlags,
    recvs: RecvQueue,
    turn: Mutex<Turn>,
    cq: SoftCq,
    nic: Arc<Nic>,
    _pd: Pd,
}

/// What changes; looked at inside the domain only.
#[derive(Default)]
struct Turn {
    state: WqState,
    /// The receive that comes next, once it was looked at.
    first: Option<RecvWr>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.nic.free_number(self.num);
    }
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
        Ok(SoftWq(Arc::new(Queue {
            num,
            flags: of_frames,
            recvs: RecvQueue::new(self.nic.next_queue(), depth, self.pd.mark()),
            turn: Mutex::default(),
            cq: cq.clone(),
            nic: self.nic.clone(),
            _pd: self.pd.clone(),
        })))
    }

    /// Makes a table of work queues (`ibv_create_rwq_ind_table`).
    ///
    /// # Errors
    /// `Invalid`: their number is not a power of two, or over 128.
    pub fn create_rwq_ind_table(&self, queues: &[&SoftWq]) -> Result<SoftIndTable, SetupError> {
        if !queues.len().is_power_of_two() || queues.len() > TABLE_MAX {
            let asked = format!("a table of {} work queues", queues.len());
            let answer = format!("it takes a power of two, up to {TABLE_MAX}");
            return Err(SetupError::new(Code::Invalid, asked, answer));
        }
        Ok(SoftIndTable(queues.iter().map(|queue| queue.0.clone()).collect()))
    }
}

impl SoftWq {
    /// Runs `f` where nothing else happens to the queue.
    fn enter<R>(&self, f: impl FnOnce(&mut Resources, &Queue) -> R) -> R {
        let queue = &*self.0;
        // SAFETY: `enter` locks a shared domain, which this is.
        unsafe { queue.cq.domain.enter(|state| f(&mut state.transport.res, queue)) }
    }
}

impl Wq for SoftWq {
    fn num(&self) -> u32 {
        self.0.num
    }

    fn depth(&self) -> u32 {
        self.0.recvs.depth()
    }

    fn modify(&self, to: WqState) -> Result<(), SetupError> {
        self.enter(|res, queue| {
            let from = queue.turn.lock().state;
            match (from, to) {
                (_, WqState::Reset) => {
                    *queue.turn.lock() = Turn::default();
                    while queue.recvs.pop().is_some() {}
                }
                (WqState::Reset | WqState::Ready, WqState::Ready) => {
                    queue.turn.lock().state = WqState::Ready;
                }
                (WqState::Ready | WqState::Err, WqState::Err) => queue.fail(res),
                (WqState::Reset, WqState::Err) | (WqState::Err, WqState::Ready) => {
                    let asked = format!("take a work queue from {from:?} to {to:?}");
                    return Err(SetupError::new(Code::Invalid, asked, "there is no such way"));
                }
            }
            Ok(())
        })
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        self.enter(|res, queue| {
            let state = queue.turn.lock().state;
            if state == WqState::Reset && !list.is_empty() {
                return Err(PostError { accepted: 0, cause: PostCause::State });
            }
            let result = queue.post(list);
            if state == WqState::Err {
                queue.fail(res);
            }
            result
        })
    }
}

impl Queue {
    /// The receive that was looked at counts as well.
    fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
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
    pub(super) fn fail(&self, res: &mut Resources) {
        let mut turn = self.turn.lock();
        turn.state = WqState::Err;
        while let Some(wr) = turn.first.take().or_else(|| self.recvs.pop()) {
            self.complete(res, error_wc(wr.wr_id, self.num, Status::Flushed));
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

    pub(super) fn complete(&self, res: &mut Resources, wc: crate::wc::Wc) {
        if let Some(cq) = res.cqs.get_mut(self.cq.index) {
            cq.push(wc, Retire::default());
        }
    }
}

/// A table of work queues of the soft device.
#[derive(Clone)]
pub struct SoftIndTable(Arc<[Arc<Queue>]>);

/// How the frames of a queue pair are spread.
pub(in super::super) struct Spread {
    table: SoftIndTable,
    by: RxHash,
}

impl Spread {
    /// `None` if completions of the table's queues are not made in the domain of `cq`.
    pub(in super::super) fn new(table: &SoftIndTable, by: &RxHash, cq: &SoftCq) -> Option<Spread> {
        let here = |queue: &Arc<Queue>| Arc::ptr_eq(&queue.cq.domain, &cq.domain);
        let here = table.0.iter().all(here);
        here.then(|| Spread { table: table.clone(), by: *by })
    }

    /// The queue that a frame goes to.
    pub(super) fn queue_of(&self, frame: &[u8]) -> Option<Arc<Queue>> {
        // Tables have a power of two of queues, and at least one.
        let place = hash::of(frame, &self.by) as usize & (self.table.0.len() - 1);
        self.table.0.get(place).cloned()
    }
}
