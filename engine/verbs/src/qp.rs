//! Queue pairs. The connection manager makes and connects them; this file posts to them.
#![expect(unsafe_code, reason = "queue pairs are raw pointers of the driver")]

use core::mem::zeroed;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::rdma_core::{
    ibv_attach_mcast, ibv_bind_mw, ibv_detach_mcast, ibv_gid, ibv_modify_qp, ibv_mw_bind, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state,
};
use std_alloc::format;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::Verbs;
use super::cq::VerbsCq;
use super::device::Ops;
use super::posted::cause_of;
use super::send::{Sender, bind_info};
use super::shim::refused;
use super::srq::{VerbsSrq, post_chunks};
use super::window::VerbsWindow;
use super::xrc::VerbsXrcd;
use crate::error::SetupError;
use crate::provider::{Gid, Multicast, Qp, QpCaps, QpType, Window, WindowKind};
use crate::wr::{Binding, PostCause, PostError, RecvWr, SendFlags, SendWr};

/// The owner of a queue pair: the identifier of its connection, which outlives it.
pub trait QpHome: Send + Sync + 'static {
    /// Destroys the queue pair. Called once, when its [`VerbsQp`] is dropped.
    fn destroy_qp(&self);
}

/// What a [`VerbsQp`] is made of.
pub struct QpParts<'a> {
    /// Its transport.
    pub kind: QpType,
    /// The queue pair, in INIT.
    pub qp: NonNull<ibv_qp>,
    /// The capacities that came back.
    pub caps: QpCaps,
    /// The device it is on.
    pub device: &'a Verbs,
    /// The completion queues of its sends and receives; XRC_RECV has none.
    pub cqs: Option<(&'a VerbsCq, &'a VerbsCq)>,
    /// Its shared receive queue, if it has none of its own.
    pub srq: Option<&'a VerbsSrq>,
    /// Its domain, of XRC_RECV.
    pub xrcd: Option<&'a VerbsXrcd>,
    /// Destroys it.
    pub home: Arc<dyn QpHome>,
}

/// A queue pair of an RDMA device.
pub struct VerbsQp {
    qp: NonNull<ibv_qp>,
    sender: Sender,
    caps: QpCaps,
    num: u32,
    takes_sends: bool,
    ops: Ops,
    shared_queue: bool,
    /// The groups it is attached to: it cannot be destroyed in one (QX-14).
    groups: Vec<Gid>,
    // Dropped after the queue pair was destroyed, in this order: the id, then what it used.
    home: Arc<dyn QpHome>,
    _queues: (Option<(VerbsCq, VerbsCq)>, Option<VerbsSrq>),
    _used: (Option<VerbsXrcd>, Verbs),
}

// SAFETY: libibverbs' calls on a queue pair may be made from any thread, and all other parts may
// move between threads; the pointers in the sender are written anew by each post.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// Takes charge of a queue pair.
    ///
    /// # Safety
    /// `qp` was made on `device` with just these queues and capacities, nobody but
    /// `home.destroy_qp()` destroys it, and nobody else calls that.
    pub unsafe fn new(parts: QpParts<'_>) -> VerbsQp {
        let QpParts { kind, qp, caps, device, cqs, srq, xrcd, home } = parts;
        let ops = device.device().ops();
        VerbsQp {
            qp,
            sender: Sender::new(qp, ops.post_send, caps, kind),
            caps,
            // SAFETY: the caller vouches for the queue pair.
            num: unsafe { (*qp.as_ptr()).qp_num },
            takes_sends: false,
            ops,
            shared_queue: srq.is_some() || kind.is_xrc(),
            home,
            groups: Vec::new(),
            _queues: (
                cqs.map(|(send_cq, recv_cq)| (send_cq.clone(), recv_cq.clone())),
                srq.cloned(),
            ),
            _used: (xrcd.cloned(), device.clone()),
        }
    }

    /// The queue pair for calls of libibverbs; alive as long as this value.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// True from RTS on, also in ERR, where sends are flushed. The check is here because soft-RoCE
    /// refuses a send below RTS, and carries it out later all the same.
    #[inline]
    fn takes_sends(&mut self) -> bool {
        self.takes_sends || self.learn()
    }

    /// Reads the state that libibverbs notes at each `ibv_modify_qp`. The connection manager makes
    /// those calls, perhaps on another thread. An accepting side is in RTS before its answer
    /// leaves, so it is in RTS when the first message comes.
    #[cold]
    fn learn(&mut self) -> bool {
        // SAFETY: the queue pair lives until this value is dropped, the field is aligned, and
        // libibverbs writes it as a whole. The load is atomic so that it is read as a whole too.
        // Acquire: what is posted comes after the calls that brought the queue pair there.
        let state = unsafe {
            AtomicU32::from_ptr(&raw mut (*self.qp.as_ptr()).state).load(Ordering::Acquire)
        };
        self.takes_sends = state >= ibv_qp_state::IBV_QPS_RTS;
        self.takes_sends
    }
}

impl Qp for VerbsQp {
    fn num(&self) -> u32 {
        self.num
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    #[inline]
    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        if !self.takes_sends() {
            return match list {
                [] => Ok(()),
                _ => Err(PostError { accepted: 0, cause: PostCause::State }),
            };
        }
        // SAFETY: the queue pair lives until this value is dropped; the caller vouches for the
        // buffers.
        unsafe { self.sender.post(list) }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        if self.shared_queue {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        let (post, qp) = (self.ops.post_recv, self.as_ptr());
        // SAFETY: the queue pair lives until this value is dropped, the chunk is a valid list,
        // and the caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(qp, first, bad) })
    }

    fn fail(&mut self) {
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair lives until this value is dropped; the mask names what is set.
        // A device that refuses this has failed itself, and flushes on its own.
        unsafe { ibv_modify_qp(self.as_ptr(), &raw mut attr, mask) };
    }

    fn recover(&mut self) {
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.cur_qp_state = ibv_qp_state::IBV_QPS_SQE;
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_CUR_STATE;
        // SAFETY: as in `fail`. A queue pair that is not in SQE refuses, and keeps its state.
        unsafe { ibv_modify_qp(self.as_ptr(), &raw mut attr, mask.0.cast_signed()) };
    }
}

impl Multicast for VerbsQp {
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        let gid = ibv_gid { raw: group.0 };
        // SAFETY: queue pair and GID are alive.
        match unsafe { ibv_attach_mcast(self.as_ptr(), &raw const gid, 0) } {
            0 => {
                if !self.groups.contains(&group) {
                    self.groups.push(group);
                }
                Ok(())
            }
            errno => Err(refused(format!("attach a queue pair to the group {group}"), errno)),
        }
    }

    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        let gid = ibv_gid { raw: group.0 };
        // SAFETY: queue pair and GID are alive.
        match unsafe { ibv_detach_mcast(self.as_ptr(), &raw const gid, 0) } {
            0 => {
                self.groups.retain(|known| *known != group);
                Ok(())
            }
            errno => Err(refused(format!("detach a queue pair from the group {group}"), errno)),
        }
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        for group in core::mem::take(&mut self.groups) {
            // If the device has detached it already, nothing is lost.
            let _ = self.detach_mcast(group);
        }
        self.home.destroy_qp();
    }
}

impl Window for VerbsWindow {
    type Qp = VerbsQp;

    unsafe fn bind(
        &mut self,
        qp: &mut VerbsQp,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        self.kind.check_bound_by_call()?;
        let refused = |cause| Err(PostError { accepted: 0, cause });
        if !qp.takes_sends() {
            return refused(PostCause::State);
        }
        let send_flags = flags.to_verbs();
        let mut bind = ibv_mw_bind { wr_id, send_flags, bind_info: bind_info(&binding) };
        // SAFETY: queue pair and window live until their values are dropped; the caller vouches
        // for the region.
        match unsafe { ibv_bind_mw(qp.as_ptr(), self.as_ptr(), &raw mut bind) } {
            0 => Ok(self.rkey()),
            answer => refused(cause_of(answer)),
        }
    }

    fn kind(&self) -> WindowKind {
        self.kind
    }
    fn rkey(&self) -> u32 {
        // SAFETY: the window is alive; drivers write the field inside `ibv_bind_mw` only, for
        // which this value is borrowed as the only one, as it is in `set_rkey`.
        unsafe { (*self.as_ptr()).rkey }
    }
    fn handle(&self) -> u64 {
        self.as_ptr() as u64
    }
    fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: as above; what C leaves to its users for windows of type 2.
        unsafe { (*self.as_ptr()).rkey = rkey };
    }
}
