//! Queue pairs. The connection manager makes and connects them; `post.rs` posts to them.

use crate::rdma_core::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state};
use std_alloc::format;
use std_alloc::vec::Vec;

use super::device::Verbs;
use super::handles::{Owned, PostRecv, zero};
use super::send::Sender;
use super::shim::refused;
use crate::error::SetupError;
use crate::provider::{Gid, Multicast, QpCaps, QpType};

/// A queue pair of an RDMA device.
pub struct VerbsQp {
    pub(super) qp: Owned<ibv_qp>,
    pub(super) sender: Sender,
    pub(super) caps: QpCaps,
    pub(super) num: u32,
    takes_sends: bool,
    /// The driver's function that posts receives.
    pub(super) post_recv: PostRecv,
    /// It has no receives of its own.
    pub(super) shared_queue: bool,
    /// The groups it is attached to: it cannot be destroyed in one (QX-14).
    groups: Vec<Gid>,
    /// Counts as a user of its protection domain.
    _device: Verbs,
}

impl VerbsQp {
    /// A queue pair that was made on the device with these capacities. `shared_queue` is true if it
    /// has no receives of its own.
    pub(crate) fn new(
        qp: Owned<ibv_qp>,
        kind: QpType,
        caps: QpCaps,
        shared_queue: bool,
        device: &Verbs,
    ) -> VerbsQp {
        let ops = device.device().ops();
        VerbsQp {
            num: qp.number(),
            sender: Sender::new(qp.as_ptr(), ops.post_send, caps, kind),
            qp,
            caps,
            takes_sends: false,
            post_recv: ops.post_recv,
            shared_queue,
            groups: Vec::new(),
            _device: device.clone(),
        }
    }

    /// The queue pair for calls of libibverbs; alive as long as this value.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// The same, for this crate.
    pub(crate) fn raw(&self) -> &Owned<ibv_qp> {
        &self.qp
    }

    /// True from RTS on, also in ERR, where sends are flushed. The check is here because soft-RoCE
    /// refuses a send below RTS, and carries it out later all the same.
    #[inline]
    pub(super) fn takes_sends(&mut self) -> bool {
        self.takes_sends || self.learn()
    }

    /// Looks at the state. The connection manager changes it, perhaps on another thread. An
    /// accepting side is in RTS before its answer leaves, so it is in RTS when the first message
    /// comes.
    #[cold]
    fn learn(&mut self) -> bool {
        self.takes_sends = self.qp.state() >= ibv_qp_state::IBV_QPS_RTS;
        self.takes_sends
    }

    /// Moves it to ERR. A device that refuses this has failed itself, and flushes on its own.
    pub(super) fn to_err(&self) {
        let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..zero() };
        self.qp.modify(attr, ibv_qp_attr_mask::IBV_QP_STATE);
    }

    /// Moves it from SQE to RTS. A queue pair that is not in SQE refuses, and keeps its state.
    pub(super) fn sqe_to_rts(&self) {
        let attr = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            cur_qp_state: ibv_qp_state::IBV_QPS_SQE,
            ..zero()
        };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_CUR_STATE;
        self.qp.modify(attr, mask);
    }
}

impl Multicast for VerbsQp {
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        match self.qp.attach_mcast(group) {
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
        match self.qp.detach_mcast(group) {
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
    }
}
