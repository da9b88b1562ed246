//! The soft device behind the seam: what the seam calls `unsafe`, in one place. The safe rest of
//! each handle lies in its own file, and the other capabilities in `ext/extension.rs`.
#![expect(unsafe_code, reason = "implements unsafe methods; their contracts end here")]

use doorbell_alloc::Mapping;
use std_alloc::sync::Arc;

use crate::device::path::SoftAh;
use crate::device::pd::SoftTd;
use crate::error::{Code, SetupError};
use crate::ext::raw::SoftWq;
use crate::handles::datagram;
use crate::handles::device::{Soft, check_depth};
use crate::handles::poller::{SoftCq, SoftPoller};
use crate::handles::queue_pair::{SharedReceives, SharedSends, SoftQp};
use crate::handles::region::{SoftRegion, SoftWindow};
use crate::handles::srq::SoftSrq;
use crate::model::buffers::{Posted, Source};
use crate::model::slot::BOUND_BY_CALL;
use crate::provider::{
    Access, AddressVector, Caps, Datagrams, Doorbell, ExtendedCq, GRH_BYTES, InlineSend, Provider,
    Qp, QpCaps, Region, Sharing, Srq, ThreadDomains, Window, WindowKind, Wq, WqState,
};
use crate::state::place::Inside;
use crate::state::qp::State;
use crate::steps::admission::admissible;
use crate::steps::command::Command;
use crate::steps::deferred;
use crate::wc::{Wc, WcFlags};
use crate::wr::{Binding, PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};

impl Datagrams for Soft {
    type Ah = SoftAh;

    fn create_ah(&self, to: &AddressVector) -> Result<SoftAh, SetupError> {
        let gid = to.route.map(|route| route.gid).unwrap_or_default();
        SoftAh::new(&self.nic.caps.device, gid, self.nic.host.neighbours, &self.pd)
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        if wc.status.is_ok() && wc.flags.contains(WcFlags::GRH) {
            return Ok(AddressVector::to(datagram::sender_in(header)));
        }
        let answer = "the completion is not of a datagram with its header";
        Err(SetupError::new(Code::Invalid, "the address of a datagram's sender", answer))
    }
}

impl Provider for Soft {
    type Region = SoftRegion;
    type Cq = SoftCq;
    type Poller = SoftPoller;
    type Srq = SoftSrq;
    type Qp = SoftQp;

    fn caps(&self) -> &Caps {
        &self.nic.caps
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<SoftRegion, SetupError> {
        self.new_region(memory, access)
    }

    fn create_cq(&self, depth: u32, sharing: Sharing) -> Result<(SoftCq, SoftPoller), SetupError> {
        self.create_cq_on(depth, sharing, 0)
    }

    fn create_srq(&self, depth: u32) -> Result<SoftSrq, SetupError> {
        check_depth("shared receive queue", depth, self.nic.caps.srq_wr_max)?;
        let queue = Arc::new(self.nic.new_queue(depth, self.pd.mark()).shared());
        Ok(SoftSrq { xrc: None, nic: self.nic.clone(), queue, _pd: self.pd.clone() })
    }

    /// Memory that processes of this machine can map, if they find each other. The poster of a
    /// WRITE to it then carries it out itself, and no record goes through the ring.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        match &self.nic.host.neighbours {
            Some(neighbours) => (neighbours.memory)(len),
            None => crate::provider::heap::zeroed(len),
        }
    }

    unsafe fn for_one_thread(&self) -> Result<Option<Soft>, SetupError> {
        let caps = self.caps();
        if !(caps.thread_domains && caps.parent_domains) {
            return Ok(None);
        }
        // SAFETY: the caller's promise, passed on.
        let td = unsafe { self.alloc_td() }?;
        self.alloc_parent_domain(Some(&td)).map(Some)
    }
}

// SAFETY: the mapping is owned and stays at its address until the region is dropped.
unsafe impl Region for SoftRegion {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn lkey(&self) -> u32 {
        self.key
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn access(&self) -> Access {
        self.access
    }
    fn handle(&self) -> u64 {
        self.key.into()
    }
}

impl Srq for SoftSrq {
    fn depth(&self) -> u32 {
        self.queue.depth()
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        self.queue.post(list)
    }
}

impl SoftSrq {
    /// Posts one receive, if there is room and no domain waits for it. False: nothing was done, and
    /// the caller uses `Srq::post`.
    ///
    /// # Safety
    /// As for `Srq::post`.
    #[inline(always)]
    pub unsafe fn post_one(&self, wr: impl FnOnce() -> RecvWr) -> bool {
        self.queue.post_one(wr)
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
        unsafe {
            let wr = Posted::one(wr);
            self.domain.alone().post_at_once_first(self.context.get_alone(), wr)
        }
    }

    /// Posts and rings for one more, after `post_at_once` or `post_deferred` took one.
    ///
    /// # Safety
    /// As for `Qp::post_inline`.
    #[inline(always)]
    pub(crate) unsafe fn post_at_once_next(&mut self, wr_id: u64, sge: Sge) -> bool {
        // SAFETY: as in `post_deferred_next`.
        unsafe {
            deferred::post_at_once_next(
                &mut Inside::new(),
                self.context.get_alone(),
                wr_id,
                payload(sge),
            )
        }
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
        unsafe {
            let wr = Posted::one(wr);
            self.domain.alone().post_deferred(self.context.get_alone(), wr)
        }
    }

    /// Posts one receive, if there is room and no domain waits for it. False: nothing was done, and
    /// the caller uses `Qp::post_recv`.
    ///
    /// # Safety
    /// As for `Qp::post_recv`.
    #[inline(always)]
    pub unsafe fn post_one_recv(&mut self, wr: impl FnOnce() -> RecvWr) -> bool {
        !self.shared_queue && self.queue.post_one(wr)
    }

    /// Posts one more without a doorbell, after `post_deferred` took one.
    ///
    /// # Safety
    /// As for `Qp::post_inline`.
    #[inline(always)]
    pub(crate) unsafe fn post_deferred_next(&mut self, wr_id: u64, sge: Sge) -> bool {
        // SAFETY: as in `post`: `post_deferred` takes nothing on a shared domain. Commands that the
        // control plane has left meanwhile wait for the next poll or doorbell.
        unsafe {
            deferred::post_deferred_next(
                &mut Inside::new(),
                self.context.get_alone(),
                wr_id,
                payload(sge),
            )
        }
    }
}

impl SharedReceives {
    /// Posts one receive, if the lock of the queue belongs to this thread, there is room, no domain
    /// waits for it, and `is_open` is true while the queue is locked. False: nothing was done, and
    /// the caller uses [`SoftQp::post_one_recv`] or `Qp::post_recv`. It makes no call, so the
    /// caller need not save registers.
    ///
    /// # Safety
    /// As for `Qp::post_recv`. If `is_open` is true, they are those of the queue pair
    /// ([`SharedReceives::are_of`]).
    #[inline(always)]
    pub unsafe fn post_one(
        &self,
        is_open: impl FnOnce() -> bool,
        wr: impl FnOnce() -> RecvWr,
    ) -> bool {
        self.queue.post_one_own(is_open, wr)
    }
}

impl SharedSends {
    /// Posts one request, if it leaves at once and is short, and the lock of the domain belongs to
    /// this thread. False: nothing was done, and the caller uses [`SharedSends::post_one`]. It
    /// makes no call before the message is published, so nothing is kept over one.
    ///
    /// # Safety
    /// As for [`SharedSends::post_one`].
    #[inline(always)]
    pub unsafe fn post_short<'a>(&self, wr: impl FnOnce() -> SendWr<'a>) -> bool {
        let Some(mut state) = self.domain.own() else { return false };
        // SAFETY: as in `post_one`.
        unsafe { state.post_short(self.context.get_alone(), Posted::one(&wr())) }
    }

    /// Posts one request. If it does not leave at once, `wr` makes it again: so one that leaves at
    /// once stays in registers.
    ///
    /// # Errors
    /// As for `Qp::post`. A queue pair of an exclusive domain takes none.
    ///
    /// # Safety
    /// As for `Qp::post`, and the queue pair is alive. `wr` makes the same request each time.
    #[inline(always)]
    pub unsafe fn post_one<'a>(&self, wr: impl Fn() -> SendWr<'a>) -> Result<(), PostError> {
        let Some(mut state) = self.domain.shared() else { return NOT_SHARED };
        // SAFETY: the shared domain is locked. The queue pair is alive, as the caller vouches, and
        // so is its context.
        unsafe {
            let context = self.context.get_alone();
            if state.post_at_once(context, Posted::one(&wr())) {
                state.remember_link(context);
                return Ok(());
            }
            state.post_list(context, Posted::list(&[wr()]))
        }
    }

    /// Posts a list.
    ///
    /// # Errors
    /// As for [`SharedSends::post_one`].
    ///
    /// # Safety
    /// As for `Qp::post`, and the queue pair is alive.
    pub unsafe fn post(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let Some(mut state) = self.domain.shared() else { return NOT_SHARED };
        // SAFETY: as in `post_one`.
        unsafe { state.post(self.context.get_alone(), Posted::list(list)) }
    }

    /// Fails if the queue pair would refuse one of a list that is posted behind `ahead` further
    /// requests. It posts nothing.
    ///
    /// # Errors
    /// As for [`SharedSends::post_one`].
    ///
    /// # Safety
    /// The queue pair is alive.
    pub unsafe fn would_take(&self, ahead: usize, list: &[SendWr<'_>]) -> Result<(), PostCause> {
        let Some(_locked) = self.domain.shared() else { return Err(PostCause::State) };
        // SAFETY: as in `post_one`.
        let context = unsafe { self.context.get_alone() };
        if (context.sq.room() as usize) < ahead + list.len() {
            return Err(PostCause::Full);
        }
        list.iter().try_for_each(|wr| admissible(context, wr))
    }
}

/// The answer to a post by [`SharedSends`] in a domain of one thread.
const NOT_SHARED: Result<(), PostError> = Err(PostError { accepted: 0, cause: PostCause::State });

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
        unsafe {
            let list = Posted::list(list);
            self.domain.enter(|state| state.post(self.context.get_alone(), list))
        }
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
        unsafe { self.domain.alone().post_deferred_list(self.context.get_alone(), first, list) }
    }

    #[inline(always)]
    unsafe fn ring_doorbell(&mut self) {
        // SAFETY: as in `post`.
        unsafe { self.domain.enter(|state| state.ring_doorbell(self.context.get_alone())) }
    }

    unsafe fn fetch_ahead(&mut self) {
        // A shared domain would have to be locked.
        if self.domain.sharing() == Sharing::Exclusive {
            // SAFETY: as in `post`.
            unsafe { self.domain.alone().fetch_ahead(self.context.get_alone()) }
        }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        if self.shared_queue {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        let result = self.queue.post(list);
        if self.queue.is_flushed() {
            // SAFETY: as in `post`.
            unsafe { self.flush_again() };
        }
        result
    }

    fn fail(&mut self) {
        self.domain.ask(Command::Fail { num: self.num });
    }

    fn recover(&mut self) {
        self.domain.ask(Command::Recover { num: self.num });
    }
}

impl SoftQp {
    /// A receive was posted after the queue was flushed: in ERR it is flushed as well.
    ///
    /// # Safety
    /// As for `Qp::post_recv`.
    #[cold]
    #[inline(never)]
    unsafe fn flush_again(&mut self) {
        // SAFETY: as the caller vouches.
        unsafe {
            self.domain.enter(|state| {
                let qp = self.context.get_alone();
                match qp.state {
                    State::Err => {
                        let res = &mut state.transport.res;
                        res.service_queue.schedule(qp);
                        res.local_waker.wake_from_inside();
                    }
                    _ => self.queue.serves_again(),
                }
            });
        }
    }
}

/// The payload of an inline message.
///
/// # Safety
/// As for `Qp::post_inline`.
#[inline(always)]
unsafe fn payload<'a>(sge: Sge) -> Source<'a> {
    // SAFETY: as the caller vouches.
    unsafe { Source::new(sge.addr as *const u8, sge.length) }
}

impl ThreadDomains for Soft {
    type Td = SoftTd;

    unsafe fn alloc_td(&self) -> Result<SoftTd, SetupError> {
        Ok(SoftTd::new(&self.nic))
    }

    fn td_users(td: &SoftTd) -> usize {
        td.users()
    }

    fn alloc_parent_domain(&self, td: Option<&SoftTd>) -> Result<Soft, SetupError> {
        if td.is_some_and(|td| !Arc::ptr_eq(&td.nic, &self.nic)) {
            let answer = "the thread domain is of another device";
            return Err(SetupError::new(Code::Invalid, "a parent domain", answer));
        }
        Ok(Soft { pd: self.pd.within_parent(td), ..self.clone() })
    }
}

impl Window for SoftWindow {
    type Qp = SoftQp;

    unsafe fn bind(
        &mut self,
        qp: &mut SoftQp,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        self.kind.check_bound_by_call()?;
        let rkey = self.key & !0xff | self.key.wrapping_add(1) & 0xff;
        let window = self.handle() | BOUND_BY_CALL;
        let op = SendOp::Bind(Binding { window, rkey, ..binding });
        let wr = SendWr { wr_id, op, flags, sge: Sge::default(), more: &[] };
        // SAFETY: the caller's promise, passed on; the request has no buffers.
        unsafe { qp.post(&[wr]) }?;
        self.key = rkey;
        Ok(rkey)
    }

    fn kind(&self) -> WindowKind {
        self.kind
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn handle(&self) -> u64 {
        u64::from(self.key) | (self.kind as u64) << 32
    }
}

impl Wq for SoftWq {
    fn num(&self) -> u32 {
        self.number()
    }

    fn depth(&self) -> u32 {
        self.recv_depth()
    }

    fn modify(&self, to: WqState) -> Result<(), SetupError> {
        self.take_to(to)
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        self.post_recvs(list)
    }
}
