//! The shared receive queue of an id.
#![expect(unsafe_code, reason = "the C interface")]

use std::ptr;

use doorbell_seam::provider::QpType;
use libc::c_int;

use crate::abi::{ibv_pd, ibv_srq_init_attr};
use crate::abi_context::ibv_srq_init_attr_ex;
use crate::border::{Errno, INVALID, given, number};
use crate::srq::{create_srq_ex, ibv_destroy_srq};

use super::abi::rdma_cm_id;
use super::id::{home, id_at};
use super::qp::{drop_queues, made, recv_queue};
use super::xrcd::home_xrcd;

/// What the program does not name is the id's own.
unsafe fn create(at: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    const TYPE: u32 = 1;
    const PD: u32 = 2;
    const XRCD: u32 = 4;
    const CQ: u32 = 8;
    // SAFETY: the program's id and what the attributes name.
    unsafe {
        id_at(at)?;
        if (*at).verbs.is_null() || !(*at).srq.is_null() || attr.comp_mask & TYPE == 0 {
            return Err(INVALID);
        }
        if attr.comp_mask & PD == 0 || attr.pd.is_null() {
            attr.pd = if (*at).pd.is_null() { home()?.pd() } else { (*at).pd };
            attr.comp_mask |= PD;
        }
        if attr.srq_type == 1 {
            if attr.comp_mask & XRCD == 0 || attr.xrcd.is_null() {
                attr.xrcd = home_xrcd()?;
            }
            if attr.comp_mask & CQ == 0 || attr.cq.is_null() {
                attr.cq = recv_queue(at, attr.attr.max_wr)?;
            }
            attr.comp_mask |= XRCD | CQ;
        }
        (*at).srq = made(create_srq_ex((*at).verbs, attr))?;
        (*at).pd = attr.pd;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    at: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the program's id, domain and attributes.
    number(|| unsafe {
        let asked = given(init)?;
        id_at(at)?;
        let is_xrc = (*at).qp_type == QpType::XrcRecv as c_int;
        let mut attr = ibv_srq_init_attr_ex {
            srq_context: asked.srq_context,
            attr: asked.attr,
            comp_mask: 3,
            srq_type: is_xrc.into(),
            pd,
            xrcd: ptr::null_mut(),
            cq: ptr::null_mut(),
            tm_cap: [0; 2],
        };
        create(at, &mut attr)?;
        (*init).attr = attr.attr;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    at: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the program's id and attributes.
    number(|| unsafe {
        given(attr)?;
        create(at, &mut *attr).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_srq(at: *mut rdma_cm_id) {
    // SAFETY: the program's id; its queue is NULL or alive.
    unsafe {
        if id_at(at).is_ok() && !(*at).srq.is_null() && ibv_destroy_srq((*at).srq) == 0 {
            (*at).srq = ptr::null_mut();
            if (*at).qp.is_null() {
                drop_queues(at);
            }
        }
    }
}
