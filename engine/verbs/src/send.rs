//! How send requests are handed to the driver: one linked list, one call, one doorbell.

use core::mem::MaybeUninit;
use core::ptr;

use crate::rdma_core::{
    atomic_t, bind_mw_t, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_send_wr, ibv_sge,
    ibv_wr_opcode, qp_type_t, rdma_t, tso_t, ud_t, wr_t, xrc_t,
};
use std_alloc::boxed::Box;

use super::access::access_flags;
use super::handles::{PostSend, zero};
use crate::provider::{QpCaps, QpType};
use crate::wr::{Binding, Destination, PostCause, Remote, SendFlags, SendOp, SendWr};

/// Builds lists of requests in its own memory, for a queue pair.
pub(super) struct Sender {
    pub(super) qp: *mut ibv_qp,
    /// The driver's function that posts to it.
    pub(super) post_send: PostSend,
    caps: QpCaps,
    /// The type of the queue pair, which requests must fit.
    kind: QpType,
    /// The requests of one post, linked; as many as the send queue has slots. Fields that a request
    /// does not use keep old values.
    scratch: Box<[ibv_send_wr]>,
    /// Pieces of requests that have several, side by side.
    pieces: Box<[MaybeUninit<ibv_sge>]>,
}

impl Sender {
    /// For a queue pair with these capacities.
    pub(super) fn new(qp: *mut ibv_qp, post_send: PostSend, caps: QpCaps, kind: QpType) -> Sender {
        let slots = caps.send_wr as usize;
        // A request of one piece points to the caller's own.
        let pieces = if caps.send_sge > 1 { slots * caps.send_sge as usize } else { 0 };
        Sender {
            qp,
            post_send,
            caps,
            kind,
            scratch: (0..slots).map(|_| EMPTY).collect(),
            pieces: Box::new_uninit_slice(pieces),
        }
    }

    /// Why a request cannot be posted. It is checked here because drivers answer differently
    /// (SQ-4).
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Option<PostCause> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        if inline && wr.length() > u64::from(self.caps.inline) {
            return Some(PostCause::InlineTooLong);
        }
        if wr.pieces() > self.caps.send_sge.max(1) as usize {
            return Some(PostCause::TooManyPieces);
        }
        if wr.op.fits(self.kind) && wr.is_well_formed() { None } else { Some(PostCause::Malformed) }
    }

    /// Links requests from the front of the list, each to the next. Returns how many, and why the
    /// next is refused.
    #[inline]
    pub(super) fn link(&mut self, list: &[SendWr<'_>]) -> (usize, Option<PostCause>) {
        let first = self.scratch.as_mut_ptr();
        let mut pieces_used = 0;
        let mut count = 0;
        for wr in list {
            let refusal = self.check(wr);
            if refusal.is_some() {
                return (count, refusal);
            }
            let Some(raw) = self.scratch.get_mut(count) else {
                return (count, Some(PostCause::Full));
            };
            let (sg_list, num_sge) = gather(wr, &mut self.pieces, &mut pieces_used);
            raw.wr_id = wr.wr_id;
            raw.next = first.wrapping_add(count + 1);
            raw.sg_list = sg_list;
            raw.num_sge = num_sge;
            raw.send_flags = wr.flags.to_verbs();
            fill_in(wr.op, raw);
            count += 1;
        }
        (count, None)
    }

    /// The requests that were linked. The last is to end the list.
    #[inline]
    pub(super) fn first(&mut self) -> *mut ibv_send_wr {
        self.scratch.as_mut_ptr()
    }
}

/// A SEND with nothing set.
pub(super) const EMPTY: ibv_send_wr = {
    let mut empty: ibv_send_wr = zero();
    empty.opcode = ibv_wr_opcode::IBV_WR_SEND;
    empty
};

#[inline]
fn rdma(at: Remote) -> wr_t {
    wr_t { rdma: rdma_t { remote_addr: at.addr, rkey: at.rkey } }
}

#[inline]
fn atomic(at: Remote, compare_add: u64, swap: u64) -> wr_t {
    wr_t { atomic: atomic_t { remote_addr: at.addr, compare_add, swap, rkey: at.rkey } }
}

#[inline]
fn datagram(to: Destination) -> wr_t {
    let ah = ptr::with_exposed_provenance_mut(to.ah.0);
    wr_t { ud: ud_t { ah, remote_qpn: to.qpn, remote_qkey: to.qkey } }
}

/// Fills in the operation and its operands. Fields that it does not use keep their values.
#[inline]
pub(super) fn fill_in(op: SendOp, raw: &mut ibv_send_wr) {
    match op {
        SendOp::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
        SendOp::SendTo(to) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
            raw.wr = datagram(to);
        }
        SendOp::SendToWithImm(to, imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            raw.wr = datagram(to);
        }
        SendOp::SendWithImm(imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
        }
        SendOp::Write(at) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            raw.wr = rdma(at);
        }
        SendOp::WriteWithImm(at, imm) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            raw.wr = rdma(at);
        }
        SendOp::Read(at) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            raw.wr = rdma(at);
        }
        SendOp::CompareSwap { at, compare, swap } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr = atomic(at, compare, swap);
        }
        SendOp::FetchAdd { at, add } => {
            raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr = atomic(at, add, 0);
        }
        SendOp::Xrc { srq, op } => {
            fill_in(op.plain(), raw);
            raw.qp_type = qp_type_t { xrc: xrc_t { remote_srqn: srq } };
        }
        SendOp::SendWithInv(key) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        SendOp::LocalInv(key) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_LOCAL_INV;
            raw.imm_data_invalidated_rkey_union.invalidated_rkey = key;
        }
        SendOp::Tso(how) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_TSO;
            let hdr = ptr::with_exposed_provenance_mut(how.header as usize);
            let tso = tso_t { hdr, hdr_sz: how.header_len, mss: how.mss };
            raw.bind_mw_tso_union.tso = tso;
        }
        SendOp::Bind(binding) => {
            raw.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
            raw.bind_mw_tso_union.bind_mw = bind_mw_t {
                mw: binding.window as *mut ibv_mw,
                rkey: binding.rkey,
                bind_info: bind_info(&binding),
            };
        }
    }
}

/// The memory that a window is bound to, in C's form.
pub(super) fn bind_info(binding: &Binding) -> ibv_mw_bind_info {
    ibv_mw_bind_info {
        mr: binding.region as *mut ibv_mr,
        addr: binding.addr,
        length: binding.length,
        mw_access_flags: access_flags(binding.access).cast_unsigned(),
    }
}

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
