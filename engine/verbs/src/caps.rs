//! What a device can do: what it states, and what has to be tried.
#![expect(unsafe_code, reason = "the device is asked through libibverbs")]

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::rdma_core::{
    ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_cap_flags, ibv_pd, ibv_port_attr,
    ibv_query_device, ibv_query_port,
};

use super::create_cq;
use super::parent;
use super::shim::from_c;
use super::trial::{Trial, rereg_offered};
use crate::provider::{Atomics, Caps};

/// The capabilities of the device of that name, or an errno. `pd` is a domain to try things on.
pub(super) fn find(
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    name: &str,
) -> Result<Caps, i32> {
    let mut caps = stated(context, name)?;
    if let Some(trial) = Trial::new(context, pd) {
        (caps.inline_max, caps.send_ops) = (trial.inline_max(), trial.send_ops());
    }
    caps.rereg = rereg_offered(pd);
    (caps.wc_fields, caps.cq_flags) = create_cq::offered(context);
    (caps.parent_domains, caps.thread_domains) = parent::offered(context, pd);
    Ok(caps)
}

/// The limits that the device states.
fn stated(context: NonNull<ibv_context>, name: &str) -> Result<Caps, i32> {
    let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the call fills the structure it is given; one of zeros is valid.
    let (answer, attr) =
        unsafe { (ibv_query_device(context.as_ptr(), attr.as_mut_ptr()), attr.assume_init()) };
    if answer != 0 {
        return Err(answer);
    }
    let mut message_max = u32::MAX;
    for port in 1..=attr.phys_port_cnt {
        message_max = message_max.min(port_attr(context, port)?.max_msg_sz);
    }
    let mut caps = Caps::named(name);
    caps.ports = attr.phys_port_cnt;
    caps.qp_max = from_c(attr.max_qp);
    caps.cq_max = from_c(attr.max_cq);
    caps.srq_max = from_c(attr.max_srq);
    caps.mr_max = from_c(attr.max_mr);
    caps.mw_max = from_c(attr.max_mw);
    caps.pd_max = from_c(attr.max_pd);
    caps.mcast_groups_max = from_c(attr.max_mcast_grp);
    caps.atomics = match attr.atomic_cap {
        ibv_atomic_cap::IBV_ATOMIC_HCA => Atomics::Hca,
        ibv_atomic_cap::IBV_ATOMIC_GLOB => Atomics::Global,
        _ => Atomics::None,
    };
    caps.qp_wr_max = from_c(attr.max_qp_wr);
    caps.send_sge_max = from_c(attr.max_sge);
    caps.cqe_max = from_c(attr.max_cqe);
    caps.srq_wr_max = from_c(attr.max_srq_wr);
    caps.message_max = message_max;
    caps.xrc = attr.device_cap_flags & ibv_device_cap_flags::IBV_DEVICE_XRC.0 != 0;
    caps.srq_resize = attr.device_cap_flags & ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE.0 != 0;
    // SAFETY: the context is open; the number never changes.
    caps.comp_vectors = from_c(unsafe { (*context.as_ptr()).num_comp_vectors });
    let rd_atomic_max = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom);
    // 255 means "the maximum" where the figure is used.
    caps.rd_atomic_max = u8::try_from(from_c(rd_atomic_max).min(254)).unwrap_or_default();
    Ok(caps)
}

/// The attributes of a port, or an errno.
pub(super) fn port_attr(context: NonNull<ibv_context>, port: u8) -> Result<ibv_port_attr, i32> {
    let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
    // SAFETY: the context is open. The exported call fills the older front part of the structure;
    // the rest stays zero, which is valid.
    let (answer, attr) = unsafe {
        let filled = ibv_query_port(context.as_ptr(), port, attr.as_mut_ptr().cast());
        (filled, attr.assume_init())
    };
    if answer == 0 { Ok(attr) } else { Err(answer) }
}
