//! Queue pairs as their owners hold them.
#![expect(unsafe_code, reason = "the handles enter the domain their contract gives them")]

use core::ptr::NonNull;

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::device::path::Groups;
use crate::device::pd::Pd;
use crate::ext::xrc::SoftXrcd;
use crate::handles::poller::SoftCq;
use crate::handles::qp_control::{QpControl, Wiring};
use crate::model::recvq::RecvQueue;
use crate::provider::{Doorbell, InlineSend, Qp, QpCaps, QpType, Sharing};
use crate::state::link::LinkShared;
use crate::state::qp::{QpContext, State};
use crate::state::qp_table::Owned;
use crate::steps::command::Command;
use crate::steps::deferred;
use crate::steps::domain::Domain;
use crate::wr::{PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};

/// A queue pair of the soft device.
pub struct SoftQp {
    pub(crate) nic: Arc<Nic>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) context: NonNull<QpContext>,
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) num: u32,
    pub(crate) kind: QpType,
    pub(crate) caps: QpCaps,
    /// The key that tells the links of its connections apart.
    pub(crate) key: u32,
    pub(crate) shared_queue: bool,
    /// Objects that must outlive it.
    _kept: Kept,
    pub(crate) groups: Option<Arc<Groups>>,
    /// Alive as long as the queue pair.
    pub(crate) life: Arc<()>,
}

/// What a queue pair belongs to: completion queues and a protection domain, or an XRC domain.
pub(crate) type Kept = (Option<(SoftCq, SoftCq)>, Option<SoftXrcd>, Option<Pd>);

// SAFETY: the context lives in the domain until this handle asks for its destruction, and is
// touched only inside `Domain::enter`.
unsafe impl Send for SoftQp {}

impl SoftQp {
    /// Gives a queue pair to its domain.
    pub(crate) fn new(
        (nic, domain): (&Arc<Nic>, &Arc<Domain>),
        context: Box<QpContext>,
        caps: QpCaps,
        queue: Arc<RecvQueue>,
        kept: Kept,
    ) -> SoftQp {
        let (num, kind, key) = (context.num, context.kind, context.key);
        let shared_queue = context.rq_shared || kind.is_xrc() || context.is_spread();
        let context = NonNull::from(Box::leak(context));
        domain.command(Command::Add(Owned(context), queue.clone(), Default::default()));
        let (nic, domain, groups) = (nic.clone(), domain.clone(), None);
        let (_kept, life) = (kept, Arc::new(()));
        SoftQp {
            nic,
            domain,
            context,
            queue,
            num,
            kind,
            caps,
            key,
            shared_queue,
            _kept,
            groups,
            life,
        }
    }

    pub(crate) fn with_groups(mut self, groups: Option<Arc<Groups>>) -> SoftQp {
        self.groups = groups;
        self
    }

    /// The transport.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// What a link must join: the domain and the receive queue, as numbers of this device.
    pub fn place(&self) -> (u32, u32) {
        (self.domain.id, self.key)
    }

    /// Adds a new link to this queue pair's domain, before any queue pair connects over it.
    pub fn attach(&self, link: &Arc<LinkShared>) {
        self.control().attach(link);
    }

    /// See [`QpControl::connect`].
    pub fn connect(&mut self, link: &Arc<LinkShared>, wiring: Wiring) {
        self.control().connect(link, wiring);
    }

    /// The peer is gone for good: the oldest outstanding send ends with
    /// [`crate::wc::Status::RetryExceeded`], the rest is flushed.
    pub fn fail_lost(&mut self) {
        self.control().fail_lost();
    }

    /// A handle by which the control plane can connect and fail the queue pair that a worker
    /// owns.
    pub fn control(&self) -> QpControl {
        QpControl {
            domain: self.domain.clone(),
            num: self.num,
            queue: self.key,
            kind: self.kind,
            groups: self.groups.clone(),
            life: Arc::downgrade(&self.life),
        }
    }
}

impl SoftQp {
    /// The rest of `Qp::post_inline`, for a message without a reservation. It is a function of its
    /// own and takes numbers, because a request in memory would cost every caller, even one that
    /// never gets here.
    ///
    /// # Safety
    /// As there.
    #[cold]
    #[inline(never)]
    unsafe fn post_checked<const NOW: bool>(
        &mut self,
        wr_id: u64,
        signaled: bool,
        imm: Option<u32>,
        addr: u64,
        length: u32,
    ) -> bool {
        let mut flags = SendFlags::INLINE;
        flags.set(SendFlags::SIGNALED, signaled);
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        let sge = Sge { addr, length, lkey: 0 };
        let wr = SendWr { wr_id, op, flags, sge, more: &[] };
        // SAFETY: as the caller vouches.
        unsafe { if NOW { self.post_at_once(&wr) } else { self.post_deferred(&wr) } }
    }

    /// Posts one inline SEND and rings its doorbell. False: nothing was done.
    ///
    /// # Safety
    /// As for `Qp::post`.
    #[inline(always)]
    pub(crate) unsafe fn post_at_once(&mut self, wr: &SendWr<'_>) -> bool {
        if self.domain.sharing() == Sharing::Shared {
            return false;
        }
        // SAFETY: as in `post`.
        unsafe { self.domain.alone().post_at_once_first(&mut *self.context.as_ptr(), wr) }
    }

    /// Posts and rings for one more, after `post_at_once` or `post_deferred` took one.
    ///
    /// # Safety
    /// As for `Qp::post_inline`.
    #[inline(always)]
    pub(crate) unsafe fn post_at_once_next(&mut self, wr_id: u64, sge: Sge) -> bool {
        // SAFETY: as in `post_deferred_next`.
        unsafe { deferred::post_at_once_next(&mut *self.context.as_ptr(), wr_id, sge) }
    }

    /// Posts one inline SEND without a doorbell. False: nothing was done.
    ///
    /// # Safety
    /// As for `Qp::post`.
    #[inline(always)]
    pub(crate) unsafe fn post_deferred(&mut self, wr: &SendWr<'_>) -> bool {
        // On a shared domain, one thread's missing doorbell would hold up the others.
        if self.domain.sharing() == Sharing::Shared {
            return false;
        }
        // SAFETY: as in `post`.
        unsafe { self.domain.alone().post_deferred(&mut *self.context.as_ptr(), wr) }
    }

    /// Posts one more without a doorbell, after `post_deferred` took one.
    ///
    /// # Safety
    /// As for `Qp::post_inline`.
    #[inline(always)]
    pub(crate) unsafe fn post_deferred_next(&mut self, wr_id: u64, sge: Sge) -> bool {
        // SAFETY: as in `post`: `post_deferred` takes nothing on a shared domain. Commands that the
        // control plane has left meanwhile wait for the next poll or doorbell.
        unsafe { deferred::post_deferred_next(&mut *self.context.as_ptr(), wr_id, sge) }
    }
}

impl Qp for SoftQp {
    fn num(&self) -> u32 {
        self.num
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    #[inline(always)]
    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: on an exclusive domain the caller is the polling thread, by the contract of
        // `Qp::post`; a shared one is locked. The context lives until this handle is dropped,
        // and `enter` has carried out the command that gave it to the domain.
        unsafe { self.domain.enter(|state| state.post(&mut *self.context.as_ptr(), list)) }
    }

    const POSTS_INLINE: bool = true;

    #[inline(always)]
    unsafe fn post_inline(&mut self, send: InlineSend, doorbell: Doorbell) -> bool {
        let InlineSend { wr_id, sge, imm, signaled } = send;
        let (plain, now) = (imm.is_none() && !signaled, doorbell == Doorbell::Now);
        // SAFETY: as the caller vouches.
        unsafe {
            let posted = plain
                && if now {
                    self.post_at_once_next(wr_id, sge)
                } else {
                    self.post_deferred_next(wr_id, sge)
                };
            if posted {
                return true;
            }
            if now {
                self.post_checked::<true>(wr_id, signaled, imm, sge.addr, sge.length)
            } else {
                self.post_checked::<false>(wr_id, signaled, imm, sge.addr, sge.length)
            }
        }
    }

    #[inline(always)]
    unsafe fn post_inline_list(&mut self, first: u64, list: &[&[u8]]) -> usize {
        if self.domain.sharing() == Sharing::Shared {
            return 0;
        }
        // SAFETY: as in `post`.
        unsafe { self.domain.alone().post_deferred_list(&mut *self.context.as_ptr(), first, list) }
    }

    #[inline(always)]
    unsafe fn ring_doorbell(&mut self) {
        // SAFETY: as in `post`.
        unsafe { self.domain.enter(|state| state.ring_doorbell(&mut *self.context.as_ptr())) }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        if self.shared_queue {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        let result = self.queue.post(list);
        // SAFETY: as in `post`.
        unsafe {
            self.domain.enter(|state| {
                let qp = &mut *self.context.as_ptr();
                if qp.state == State::Err {
                    state.transport.res.schedule(qp);
                }
            });
        }
        result
    }

    fn fail(&mut self) {
        self.domain.ask(Command::Fail { num: self.num, lost: false });
    }

    fn recover(&mut self) {
        self.domain.ask(Command::Recover { num: self.num });
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        if let Some(groups) = &self.groups {
            groups.end();
        }
        self.domain.end(Command::Destroy { num: self.num });
    }
}
