//! What belongs to an id: its queue pair and its completion queues.
#![expect(unsafe_code, reason = "the C interface")]

use std::ptr;

use doorbell_fabric::{CmId, QpFields, QpState, UDP_QKEY};
use libc::c_int;

use crate::abi::*;
use crate::abi_context::*;
use crate::border::{ABSENT, Errno, INVALID, given, lock, number};
use crate::cq::{ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::create_ex::{ATTR_PD, ATTR_SEND_OPS, create_recv, is_extended};
use crate::extended_post::set_functions;
use crate::qp::{cap_of, create_by, ibv_destroy_qp, kind_of, plain};

use super::abi::rdma_cm_id;
use super::id::{home, id_at};
use super::xrcd::home_xrcd;

const UD: c_int = 4;
const XRC_SEND: c_int = 9;
const XRC_RECV: c_int = 10;

/// The result of one of our own calls that make something.
pub(crate) fn made<T>(at: *mut T) -> Result<*mut T, Errno> {
    if at.is_null() {
        let errno = std::io::Error::last_os_error().raw_os_error();
        return Err(Errno(errno.unwrap_or(libc::EINVAL)));
    }
    Ok(at)
}

/// A completion queue and its channel.
type Queue = (*mut ibv_cq, *mut ibv_comp_channel);

/// Makes a completion queue with a channel of its own.
unsafe fn queue_of(at: *mut rdma_cm_id, depth: u32) -> Result<Queue, Errno> {
    if depth == 0 {
        return Err(INVALID);
    }
    // SAFETY: our own calls, with what they gave; the id is alive.
    unsafe {
        let channel = made(ibv_create_comp_channel((*at).verbs))?;
        let depth = c_int::try_from(depth).map_err(|_| INVALID)?;
        let cq = ibv_create_cq((*at).verbs, depth, at.cast(), channel, 0);
        if cq.is_null() {
            let failed = made(cq);
            ibv_destroy_comp_channel(channel);
            return failed.map(|cq| (cq, channel));
        }
        Ok((cq, channel))
    }
}

/// The completion queue of an id for receives, made if there is none.
///
/// # Safety
/// The id is alive.
pub(crate) unsafe fn recv_queue(at: *mut rdma_cm_id, depth: u32) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        if (*at).recv_cq.is_null() {
            ((*at).recv_cq, (*at).recv_cq_channel) = queue_of(at, depth)?;
        }
        Ok((*at).recv_cq)
    }
}

/// Makes the completion queues that the program leaves to the library.
unsafe fn add_queues(at: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: the id is alive.
    unsafe {
        if attr.send_cq.is_null() {
            if (*at).send_cq.is_null() {
                ((*at).send_cq, (*at).send_cq_channel) = queue_of(at, attr.cap.max_send_wr)?;
            }
            attr.send_cq = (*at).send_cq;
        }
        if attr.recv_cq.is_null() && attr.qp_type != XRC_SEND {
            attr.recv_cq = recv_queue(at, attr.cap.max_recv_wr)?;
        }
    }
    Ok(())
}

/// Destroys those completion queues of the library's own that nothing uses.
///
/// # Safety
/// The id is alive.
pub(crate) unsafe fn drop_queues(at: *mut rdma_cm_id) {
    // SAFETY: the id is alive; the queues are its own.
    unsafe {
        for (cq, channel) in [
            (&raw mut (*at).send_cq, &raw mut (*at).send_cq_channel),
            (&raw mut (*at).recv_cq, &raw mut (*at).recv_cq_channel),
        ] {
            if !(*cq).is_null() && ibv_destroy_cq(*cq) == 0 {
                ibv_destroy_comp_channel(*channel);
                (*cq, *channel) = (ptr::null_mut(), ptr::null_mut());
            }
        }
    }
}

/// Makes the queue pair of an id.
///
/// # Safety
/// All is the program's.
pub(crate) unsafe fn create(
    at: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let id = id_at(at)?;
        if (*at).verbs.is_null() || !(*at).qp.is_null() {
            return Err(INVALID);
        }
        let pd = if pd.is_null() { home()?.pd() } else { pd };
        if attr.srq.is_null() && attr.qp_type != XRC_SEND {
            attr.srq = (*at).srq;
        }
        let set = match attr.qp_type {
            UD => QpFields { qkey: Some(UDP_QKEY), ..QpFields::to(QpState::Rts) },
            _ => QpFields::to(QpState::Init),
        };
        let set = QpFields { port: Some(1), ..set };
        let done = match attr.qp_type {
            // It has a domain, and no queues.
            XRC_RECV => create_recv(home_xrcd()?, attr.qp_context, set, |_, xrcd| {
                lock(&id.own.id).create_xrc_recv(xrcd)
            }),
            _ => add_queues(at, attr).and_then(|()| {
                create_by(pd, attr, set, |device, attr| lock(&id.own.id).create_qp(device, attr))
            }),
        };
        match done {
            Ok(qp) => {
                ((*at).qp, (*at).pd) = (qp, pd);
                attr.cap = cap_of(qp)?;
                Ok(())
            }
            Err(errno) => {
                drop_queues(at);
                Err(errno)
            }
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    at: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's id, domain and attributes.
    number(|| unsafe {
        given(attr)?;
        create(at, pd, &mut *attr).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp_ex(
    at: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the program's id and attributes.
    number(|| unsafe {
        let asked = given(attr)?;
        if asked.comp_mask & !(ATTR_PD | ATTR_SEND_OPS) != 0 {
            return Err(ABSENT);
        }
        let extended = is_extended(asked, kind_of(asked.qp_type)?)?;
        let pd = if asked.comp_mask & ATTR_PD == 0 { ptr::null_mut() } else { asked.pd };
        let mut attributes = plain(asked);
        create(at, pd, &mut attributes)?;
        if extended {
            set_functions((*at).qp.cast());
        }
        ((*attr).cap, (*attr).send_cq) = (attributes.cap, attributes.send_cq);
        ((*attr).recv_cq, (*attr).pd) = (attributes.recv_cq, (*at).pd);
        (*attr).comp_mask |= ATTR_PD;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_qp(at: *mut rdma_cm_id) {
    // SAFETY: the program's id; its queue pair is NULL or alive.
    unsafe {
        if id_at(at).is_ok() && !(*at).qp.is_null() {
            ibv_destroy_qp((*at).qp);
            (*at).qp = ptr::null_mut();
            drop_queues(at);
        }
    }
}
