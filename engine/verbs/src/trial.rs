//! What a device can do that no call tells: queue pairs and regions are made to see whether it
//! accepts them, and destroyed at once.
#![expect(unsafe_code, reason = "queue pairs and regions are made through libibverbs")]

use core::mem::zeroed;
use core::ptr::{self, NonNull};

use crate::rdma_core::{
    ibv_context, ibv_cq, ibv_create_cq, ibv_create_qp, ibv_dereg_mr, ibv_destroy_cq,
    ibv_destroy_qp, ibv_pd, ibv_qp_init_attr_ex, ibv_qp_type, ibv_reg_mr, ibv_rereg_mr,
};
use std_alloc::vec;

use super::access::access_flags;
use super::front::{self, CreateQpEx};
use crate::provider::{Access, AttrMask, QpType, ReregFlags, SendOps};

/// Inline limits tried, in bytes, largest first.
const INLINE_TRIED: [u32; 6] = [512, 256, 220, 128, 64, 32];

/// A completion queue, on which queue pairs are tried.
pub(super) struct Trial {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    cq: NonNull<ibv_cq>,
}

impl Trial {
    /// A trial on a domain of an open device; `None` if no completion queue can be made. Drop it
    /// before the domain.
    pub(super) fn new(context: NonNull<ibv_context>, pd: NonNull<ibv_pd>) -> Option<Trial> {
        let none = ptr::null_mut();
        // SAFETY: the context is open; no event channel is given.
        let cq = unsafe { ibv_create_cq(context.as_ptr(), 1, ptr::null_mut(), none, 0) };
        Some(Trial { context, pd, cq: NonNull::new(cq)? })
    }

    /// The largest of [`INLINE_TRIED`] that the device accepts, or 0.
    pub(super) fn inline_max(&self) -> u32 {
        let accepted = |bytes: &u32| {
            let mut init = self.small();
            init.cap.max_inline_data = *bytes;
            // SAFETY: domain and queue are alive; the queue pair was not used and goes at once. The
            // extended attributes begin with the plain ones.
            unsafe {
                let qp = ibv_create_qp(self.pd.as_ptr(), (&raw mut init).cast());
                !qp.is_null() && ibv_destroy_qp(qp) == 0
            }
        };
        INLINE_TRIED.into_iter().find(accepted).unwrap_or(0)
    }

    /// The operations that a queue pair can be made for (`send_ops_flags`).
    pub(super) fn send_ops(&self) -> SendOps {
        // SAFETY: the context is open.
        let Some(create) = (unsafe { front::create_qp_ex(self.context) }) else {
            return SendOps::empty();
        };
        let all = SendOps::of(QpType::Rc);
        if self.takes(create, all) {
            return all;
        }
        all.iter().filter(|op| self.takes(create, *op)).collect()
    }

    fn takes(&self, create: CreateQpEx, ops: SendOps) -> bool {
        let mut init = self.small();
        init.comp_mask = (AttrMask::PD | AttrMask::SEND_OPS_FLAGS).bits();
        init.pd = self.pd.as_ptr();
        init.send_ops_flags = ops.bits();
        // SAFETY: context, domain and queue are alive; the queue pair was not used and goes at
        // once.
        unsafe {
            let qp = create(self.context.as_ptr(), &raw mut init);
            !qp.is_null() && ibv_destroy_qp(qp) == 0
        }
    }

    /// The attributes of the smallest queue pair.
    fn small(&self) -> ibv_qp_init_attr_ex {
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.send_cq = self.cq.as_ptr();
        init.recv_cq = self.cq.as_ptr();
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: the queue was made in `new`, and no queue pair uses it any more.
        unsafe { ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// The changes of a region that the device can make. Each is tried on a small region of its own,
/// because by the man page a region is lost once a change of it has failed.
pub(super) fn rereg_offered(pd: NonNull<ibv_pd>) -> ReregFlags {
    const PIECE: usize = 64;
    let mut bytes = vec![0_u8; 2 * PIECE];
    let (first, second) = (bytes.as_mut_ptr(), bytes[PIECE..].as_mut_ptr());
    let (few, more) = (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let works = |change: &ReregFlags| {
        let moves = *change == ReregFlags::CHANGE_TRANSLATION;
        let (start, length) = if moves { (second, PIECE) } else { (ptr::null_mut(), 0) };
        let access = if *change == ReregFlags::CHANGE_ACCESS { access_flags(more) } else { 0 };
        let what = change.bits().into();
        // SAFETY: the domain is alive, and so are the bytes until the region is destroyed below;
        // nobody has its keys.
        unsafe {
            let mr = ibv_reg_mr(pd.as_ptr(), first.cast(), PIECE, access_flags(few));
            if mr.is_null() {
                return false;
            }
            let answer = ibv_rereg_mr(mr, what, pd.as_ptr(), start.cast(), length, access);
            ibv_dereg_mr(mr) == 0 && answer == 0
        }
    };
    ReregFlags::all().iter().filter(works).collect()
}
