//! The extended post: the functions in `struct ibv_qp_ex`.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;

use doorbell_seam::provider::AddressHandle;
use doorbell_seam::wr::{Destination, PostError, Remote, SendOp, SendWr, Sge};
use libc::c_int;

use crate::abi::*;
use crate::ah::Ah;
use crate::border::{ABSENT, Errno, INVALID, given, object, pointer, quick_code};
use crate::building::Building;
use crate::post::post_list;
use crate::qp::qp_at;
use crate::requests::pieces;
use crate::window;

/// The queue pair with its functions, if it was made with some.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(at: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        // SAFETY: the program's queue pair.
        unsafe {
            qp_at(at)?;
            let at = at.cast::<ibv_qp_ex>();
            if (*at).wr_start.is_some() { Ok(at) } else { Err(ABSENT) }
        }
    })
}

/// # Safety
/// It is a queue pair of ours.
pub(crate) unsafe fn set_functions(at: *mut ibv_qp_ex) {
    // SAFETY: as the caller says.
    unsafe {
        (*at).wr_atomic_cmp_swp = Some(atomic_cmp_swp);
        (*at).wr_atomic_fetch_add = Some(atomic_fetch_add);
        (*at).wr_bind_mw = Some(bind_mw);
        (*at).wr_local_inv = Some(local_inv);
        (*at).wr_rdma_read = Some(rdma_read);
        (*at).wr_rdma_write = Some(rdma_write);
        (*at).wr_rdma_write_imm = Some(rdma_write_imm);
        (*at).wr_send = Some(send);
        (*at).wr_send_imm = Some(send_imm);
        (*at).wr_send_inv = Some(send_inv);
        (*at).wr_set_ud_addr = Some(set_ud_addr);
        (*at).wr_set_xrc_srqn = Some(set_xrc_srqn);
        (*at).wr_set_inline_data = Some(set_inline_data);
        (*at).wr_set_inline_data_list = Some(set_inline_data_list);
        (*at).wr_set_sge = Some(set_sge);
        (*at).wr_set_sge_list = Some(set_sge_list);
        (*at).wr_start = Some(start);
        (*at).wr_complete = Some(complete);
        (*at).wr_abort = Some(abort);
    }
}

/// Runs a step of a post; what is wrong with it shows at its end.
unsafe fn step(at: *mut ibv_qp_ex, step: impl FnOnce(&mut Building) -> Result<(), Errno>) {
    quick_code(|| {
        // SAFETY: the program's queue pair.
        let qp = unsafe { qp_at(at.cast()) }?;
        qp.own.extended.step(step);
        Ok(())
    });
}

unsafe fn add(at: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: the program's queue pair, where it has left number and flags.
    unsafe {
        step(at, |building| {
            building.add((*at).wr_id, (*at).wr_flags, op);
            Ok(())
        });
    }
}

/// Begins a post, behind those of other threads.
unsafe extern "C" fn start(at: *mut ibv_qp_ex) {
    quick_code(|| {
        // SAFETY: the program's queue pair.
        unsafe { qp_at(at.cast()) }?.own.extended.start();
        Ok(())
    });
}

/// Gives a post up.
unsafe extern "C" fn abort(at: *mut ibv_qp_ex) {
    quick_code(|| {
        // SAFETY: the program's queue pair.
        unsafe { qp_at(at.cast()) }?.own.extended.end(Building::clear);
        Ok(())
    });
}

unsafe extern "C" fn atomic_cmp_swp(
    at: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: as the program vouches, here and below.
    unsafe { add(at, SendOp::CompareSwap { at: Remote { addr, rkey }, compare, swap }) }
}

unsafe extern "C" fn atomic_fetch_add(at: *mut ibv_qp_ex, rkey: u32, addr: u64, value: u64) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::FetchAdd { at: Remote { addr, rkey }, add: value }) }
}

unsafe extern "C" fn bind_mw(
    at: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as above; the window and the region are the program's.
    unsafe {
        step(at, |building| {
            let op = window::bind(mw, rkey, given(info)?)?;
            building.add((*at).wr_id, (*at).wr_flags, op);
            Ok(())
        });
    }
}

unsafe extern "C" fn local_inv(at: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::LocalInv(rkey)) }
}

unsafe extern "C" fn rdma_read(at: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::Read(Remote { addr, rkey })) }
}

unsafe extern "C" fn rdma_write(at: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::Write(Remote { addr, rkey })) }
}

unsafe extern "C" fn rdma_write_imm(at: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::WriteWithImm(Remote { addr, rkey }, u32::from_be(imm))) }
}

unsafe extern "C" fn send(at: *mut ibv_qp_ex) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::Send) }
}

unsafe extern "C" fn send_imm(at: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::SendWithImm(u32::from_be(imm))) }
}

unsafe extern "C" fn send_inv(at: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: as above.
    unsafe { add(at, SendOp::SendWithInv(rkey)) }
}

unsafe extern "C" fn set_ud_addr(at: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as above; the handle is the program's.
    unsafe {
        step(at, |building| {
            let ah = object::<Ah>(ah)?.own.ah.name();
            building.set_destination(Destination { ah, qpn, qkey });
            Ok(())
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(at: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as above.
    unsafe {
        step(at, |building| {
            building.set_srq(srqn);
            Ok(())
        });
    }
}

/// Bytes that the program wants sent.
unsafe fn bytes<'a>(at: *const c_void, length: usize) -> Result<&'a [u8], Errno> {
    match (at.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(INVALID),
        // SAFETY: the program's, for the call.
        _ => Ok(unsafe { std::slice::from_raw_parts(at.cast(), length) }),
    }
}

unsafe extern "C" fn set_inline_data(at: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as above.
    unsafe {
        step(at, |building| {
            building.add_inline(bytes(addr, length)?);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_inline_data_list(
    at: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as above; the list has as many entries.
    unsafe {
        step(at, |building| {
            building.add_inline(&[]);
            for n in 0..count {
                let buffer = given(list.wrapping_add(n))?;
                building.add_inline(bytes(buffer.addr, buffer.length)?);
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge(at: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    unsafe {
        step(at, |building| {
            building.set_pieces(&[Sge { addr, length, lkey }]);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge_list(at: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as above; the list has as many entries.
    unsafe {
        step(at, |building| {
            let count = c_int::try_from(count).map_err(|_| INVALID)?;
            building.set_pieces(pieces(list, count)?);
            Ok(())
        });
    }
}

/// Ends a post: its requests go to the device, in order. If the device would refuse one, none goes.
/// Only if a further thread fills the send queue meanwhile by `ibv_post_send`, some may have gone.
unsafe extern "C" fn complete(at: *mut ibv_qp_ex) -> c_int {
    quick_code(|| {
        // SAFETY: the program's queue pair.
        let qp = unsafe { qp_at(at.cast()) }?;
        let posted = qp.own.extended.end(|building| {
            if !qp.own.takes_sends() {
                building.fail(INVALID);
            }
            let check = |ahead, list: &[SendWr<'_>]| {
                // SAFETY: the queue pair is alive.
                unsafe { qp.own.sends.would_take(ahead, list) }.map_err(Errno::from)
            };
            building.complete(check, |list| {
                // SAFETY: the program keeps the buffers, by the contract of `ibv_wr_complete`;
                // inline bytes are copied during the call.
                let posted = unsafe { post_list(&qp.own, list) };
                posted.map_err(|PostError { cause, .. }| Errno::from(cause))
            })
        });
        qp.own.after_post();
        posted
    })
}
