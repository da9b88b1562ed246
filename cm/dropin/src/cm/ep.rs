//! Endpoints: an id, bound or with a route, and its queue pair.
#![expect(unsafe_code, reason = "the C interface")]

use std::ptr;

use doorbell_fabric::{AddrInfo, Fabric, Hints};
use libc::c_int;

use crate::abi::{ibv_pd, ibv_qp_init_attr};
use crate::border::{Errno, given, lock, number, put};
use crate::context::device;
use crate::qp::kind_of;

use super::abi::{rdma_addrinfo, rdma_cm_id};
use super::addr::{PASSIVE, read};
use super::id::{Saved, give, id_at, keep_event, rdma_destroy_id, show_device, space_of};
use super::qp::{create, rdma_destroy_qp};
use super::srq::rdma_destroy_srq;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_ep(
    to: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the program's addresses, domain and attributes.
    number(|| unsafe {
        let info = given(res)?;
        let passive = info.ai_flags & PASSIVE != 0;
        let hints = Hints {
            passive,
            space: space_of(info.ai_port_space)?,
            from: read(info.ai_src_addr).ok(),
            qp_type: Some(kind_of(info.ai_qp_type)?),
        };
        let addr = read(if passive { info.ai_src_addr } else { info.ai_dst_addr })?;
        let id = device()?.device.create_endpoint(&AddrInfo::of(addr, &hints))?;
        let at = give(id, ptr::null_mut(), ptr::null_mut());
        if !passive {
            show_device(at);
            keep_event(at, ptr::null_mut(), None)?;
        }
        let done = add_qp(at, (pd, attr), passive, info.ai_qp_type).and_then(|()| put(to, at));
        if done.is_err() {
            rdma_destroy_ep(at);
        }
        done.map(|()| 0)
    })
}

unsafe fn add_qp(
    at: *mut rdma_cm_id,
    (pd, attr): (*mut ibv_pd, *mut ibv_qp_init_attr),
    passive: bool,
    kind: c_int,
) -> Result<(), Errno> {
    // SAFETY: as for `rdma_create_ep`.
    unsafe {
        if attr.is_null() {
            return Ok(());
        }
        if passive {
            let attr = ibv_qp_init_attr { qp_type: kind, ..*attr };
            *lock(&id_at(at)?.own.saved) = Some(Saved { pd, attr });
            return Ok(());
        }
        (*attr).qp_type = kind;
        create(at, pd, &mut *attr)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(at: *mut rdma_cm_id) {
    // SAFETY: the program's endpoint, which it no longer uses.
    unsafe {
        rdma_destroy_qp(at);
        rdma_destroy_srq(at);
        rdma_destroy_id(at);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_request(
    listener: *mut rdma_cm_id,
    to: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the program's listener, and room for a pointer.
    number(|| unsafe {
        let own = id_at(listener)?;
        let request = {
            let _asking = lock(&own.own.asking);
            // Other threads may use the listener while this one waits.
            let mut requests = lock(&own.own.id).requests()?;
            requests.next(None)?
        };
        let saved = *lock(&own.own.saved);
        let at = give(request, ptr::null_mut(), (*listener).context);
        show_device(at);
        keep_event(at, listener, None)?;
        if let Some(Saved { pd, mut attr }) = saved
            && let Err(errno) = create(at, pd, &mut attr)
        {
            // Destroying it tells the peer.
            rdma_destroy_ep(at);
            return Err(errno);
        }
        put(to, at)?;
        Ok(0)
    })
}
