//! What a device can do: what it states, and what has to be tried.

use crate::rdma_core::{ibv_atomic_cap, ibv_device_cap_flags};

use super::handles::Context;
use super::objects::{self, Pd};
use super::shim::from_c;
use super::trial::Trial;
use crate::provider::{Atomics, Caps};

/// The capabilities of the device of that name, or an errno. `pd` is a domain to try things on.
pub(super) fn find(pd: &Pd, name: &str) -> Result<Caps, i32> {
    let mut caps = stated(pd.context(), name)?;
    let trial = Trial::new(pd);
    (caps.inline_max, caps.send_ops) = (trial.inline_max(), trial.send_ops());
    (caps.wc_fields, caps.cq_flags) = trial.cq_ex();
    (caps.parent_domains, caps.thread_domains) = trial.domains();
    caps.rereg = objects::rereg_offered(pd);
    Ok(caps)
}

/// The limits that the device states.
fn stated(context: Context, name: &str) -> Result<Caps, i32> {
    let attr = context.query_device()?;
    let mut message_max = u32::MAX;
    for port in 1..=attr.phys_port_cnt {
        message_max = message_max.min(context.query_port(port)?.max_msg_sz);
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
    caps.comp_vectors = context.comp_vectors();
    let rd_atomic_max = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom);
    // 255 means "the maximum" where the figure is used.
    caps.rd_atomic_max = u8::try_from(from_c(rd_atomic_max).min(254)).unwrap_or_default();
    Ok(caps)
}
