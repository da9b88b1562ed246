//! Queue pairs. The connection manager makes and connects them; here they are posted to.
#![expect(unsafe_code, reason = "requests are linked by pointer for the driver")]

use core::mem::{MaybeUninit, zeroed};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::*;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use super::Verbs;
use super::cq::VerbsCq;
use super::device::{Ops, PostSend};
use super::srq::{VerbsSrq, accepted_of, post_chunks};
use crate::provider::{Qp, QpCaps};
use crate::wr::{PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr};

/// Where a queue pair came from: the identifier of its connection, which outlives it.
pub trait QpHome: Send + Sync + 'static {
    /// Destroys the queue pair. Called once, when its [`VerbsQp`] is dropped.
    fn destroy_qp(&self);
}

/// Whether a queue pair takes sends: opened by the connection manager as soon as the queue pair
/// is in RTS, and never closed, for in ERR sends are taken and flushed.
///
/// A device must not be asked: soft-RoCE refuses sends below RTS and carries them out later all
/// the same.
#[derive(Clone, Debug, Default)]
pub struct SendGate(Arc<AtomicBool>);

impl SendGate {
    /// The queue pair is in RTS, or in ERR.
    pub fn open(&self) {
        // Release: pairs with the load below, so that who posts comes after the calls that
        // brought the queue pair to its state.
        self.0.store(true, Ordering::Release);
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What a [`VerbsQp`] is made of.
pub struct QpParts<'a> {
    /// The queue pair, in INIT.
    pub qp: NonNull<ibv_qp>,
    /// The capacities that came back.
    pub caps: QpCaps,
    /// The device it is on.
    pub device: &'a Verbs,
    /// Where its sends complete.
    pub send_cq: &'a VerbsCq,
    /// Where its receives complete.
    pub recv_cq: &'a VerbsCq,
    /// Its shared receive queue, if it has none of its own.
    pub srq: Option<&'a VerbsSrq>,
    /// Says when sends are taken.
    pub gate: SendGate,
    /// Destroys it.
    pub home: Arc<dyn QpHome>,
}

/// A queue pair of an RDMA device.
pub struct VerbsQp {
    qp: NonNull<ibv_qp>,
    post_send: PostSend,
    /// The requests of one post, linked; as many as the send queue has slots.
    scratch: Box<[MaybeUninit<ibv_send_wr>]>,
    /// Pieces of requests that have several, side by side.
    pieces: Box<[MaybeUninit<ibv_sge>]>,
    caps: QpCaps,
    num: u32,
    takes_sends: bool,
    gate: SendGate,
    ops: Ops,
    shared_queue: bool,
    // Dropped after the queue pair was destroyed, in this order: the id, then what it used.
    home: Arc<dyn QpHome>,
    _used: (VerbsCq, VerbsCq, Option<VerbsSrq>, Verbs),
}

// SAFETY: libibverbs' calls on a queue pair may be made from any thread, and all other parts may
// move between threads; the pointers in the scratch memory are written anew by each post.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// Takes charge of a queue pair.
    ///
    /// # Safety
    /// `qp` was made on `device` with just these queues and capacities, nobody but
    /// `home.destroy_qp()` destroys it, and nobody else calls that.
    pub unsafe fn new(parts: QpParts<'_>) -> VerbsQp {
        let QpParts { qp, caps, device, send_cq, recv_cq, srq, gate, home } = parts;
        let slots = caps.send_wr as usize;
        // A request of one piece points to the caller's own.
        let pieces = if caps.send_sge > 1 { slots * caps.send_sge as usize } else { 0 };
        let ops = device.device().ops();
        VerbsQp {
            qp,
            post_send: ops.post_send,
            scratch: Box::new_uninit_slice(slots),
            pieces: Box::new_uninit_slice(pieces),
            caps,
            // SAFETY: the caller vouches for the queue pair.
            num: unsafe { (*qp.as_ptr()).qp_num },
            takes_sends: false,
            gate,
            ops,
            shared_queue: srq.is_some(),
            home,
            _used: (send_cq.clone(), recv_cq.clone(), srq.cloned(), device.clone()),
        }
    }

    /// The queue pair for calls of libibverbs; alive as long as this value.
    pub fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// True once sends are taken; asks the gate only until then.
    #[inline]
    fn takes_sends(&mut self) -> bool {
        self.takes_sends = self.takes_sends || self.gate.is_open();
        self.takes_sends
    }

    /// Why a request can not be posted, before the driver is asked (its answers differ, SQ-4).
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Option<PostCause> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline && wr.length() > u64::from(self.caps.inline) {
            return Some(PostCause::InlineTooLong);
        }
        let too_many = wr.pieces() > self.caps.send_sge.max(1) as usize;
        too_many.then_some(PostCause::TooManyPieces)
    }

    /// Links requests from the front of the list: how many, and why not the next, if so.
    #[inline]
    fn link(&mut self, list: &[SendWr<'_>]) -> (usize, Option<PostCause>) {
        let first: *mut ibv_send_wr = self.scratch.as_mut_ptr().cast();
        let mut pieces_used = 0;
        let mut count = 0;
        for wr in list {
            let refusal = self.check(wr);
            if refusal.is_some() {
                return (count, refusal);
            }
            if count == self.scratch.len() {
                return (count, Some(PostCause::Full));
            }
            let (sg_list, num_sge) = gather(wr, &mut self.pieces, &mut pieces_used);
            let mut raw = EMPTY;
            raw.wr_id = wr.wr_id;
            raw.next = first.wrapping_add(count + 1);
            raw.sg_list = sg_list;
            raw.num_sge = num_sge;
            raw.send_flags = wr.flags.bits().into();
            if let SendOp::SendWithImm(imm) = wr.op {
                raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            self.scratch[count].write(raw);
            count += 1;
        }
        (count, None)
    }

    /// Posts the first `count` linked requests: one call, one doorbell.
    #[inline]
    fn ring(&mut self, count: usize) -> Result<(), PostError> {
        let first: *mut ibv_send_wr = self.scratch.as_mut_ptr().cast();
        let mut bad = ptr::null_mut();
        // SAFETY: `link` has written `count` requests, at least one, each pointing to the next;
        // the last now ends the list. Pieces lie in the caller's slice or in `pieces`; the
        // buffers are the caller's to vouch for.
        let answer = unsafe {
            (*first.add(count - 1)).next = ptr::null_mut();
            (self.post_send)(self.qp.as_ptr(), first, &raw mut bad)
        };
        if answer != 0 || !bad.is_null() {
            let accepted = accepted_of(first, bad, count);
            return Err(PostError { accepted, cause: cause_of(answer) });
        }
        Ok(())
    }
}

/// A SEND with nothing set.
const EMPTY: ibv_send_wr = {
    // SAFETY: zero is a valid value of each field, pointers included.
    let mut empty: ibv_send_wr = unsafe { zeroed() };
    empty.opcode = ibv_wr_opcode::IBV_WR_SEND;
    empty
};

/// The pieces of a request side by side: the caller's own if it is one, none if it is empty
/// (SQ-9; some devices read a length of 0 as 2 GiB), else copied to `store` from `used` on.
#[inline]
fn gather(
    wr: &SendWr<'_>,
    store: &mut [MaybeUninit<ibv_sge>],
    used: &mut usize,
) -> (*mut ibv_sge, i32) {
    if wr.more.is_empty() {
        return ((&raw const wr.sge).cast_mut().cast(), (wr.sge.length != 0).into());
    }
    let room = &mut store[*used..*used + wr.pieces()];
    let mut filled = 0;
    for sge in core::iter::once(&wr.sge).chain(wr.more) {
        if sge.length != 0 {
            room[filled].write(ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey });
            filled += 1;
        }
    }
    *used += filled;
    (room.as_mut_ptr().cast(), filled as i32)
}

/// The cause behind a driver's answer, of either sign (G-2); 0 with a refused request is S1's.
pub(super) fn cause_of(answer: i32) -> PostCause {
    match answer.saturating_abs() {
        libc::ENOMEM | libc::ENOSPC => PostCause::Full,
        0 => PostCause::Device(libc::EIO),
        errno => PostCause::Device(errno),
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
        let (count, refusal) = self.link(list);
        if count > 0 {
            self.ring(count)?;
        }
        match refusal {
            None => Ok(()),
            Some(cause) => Err(PostError { accepted: count, cause }),
        }
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
        self.gate.open();
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        self.home.destroy_qp();
    }
}
