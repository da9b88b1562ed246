//! Multicast groups of ids (CM-13).
#![expect(unsafe_code, reason = "ids are raw pointers of librdmacm")]

use std::net::{IpAddr, SocketAddr};
use std::ptr;

use doorbell_fabric::CmError;
use doorbell_fabric::Join;
use doorbell_seam::error::Code;
use rdma_sys::*;

use super::addr::Raw;
use super::core::{Core, Told};

/// `rdma_join_multicast_ex`. librdmacm attaches the queue pair when it hands out the event.
pub(super) fn join(
    core: &Core,
    asked: &str,
    group: IpAddr,
    how: Join,
) -> Result<Option<Told>, CmError> {
    let mut addr = Raw::new(SocketAddr::new(group, 0));
    let mask = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS
        | rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    let mut attr = rdma_cm_join_mc_attr_ex {
        comp_mask: mask.0,
        join_flags: how as u32,
        addr: addr.as_mut_ptr().cast(),
    };
    let none = ptr::null_mut();
    let told = core
        // SAFETY: the id is alive, and so are attributes and address; no context.
        .call(|id| unsafe { rdma_join_multicast_ex(id, &raw mut attr, none) })
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => {
                let answer = "the id is not bound, or past that, or no id of datagrams (CM-13)";
                CmError::new(Code::Invalid, asked, answer)
            }
            _ => CmError::from_io(asked, &error),
        })?;
    core.groups().push(group);
    Ok(told)
}

/// `rdma_leave_multicast`.
pub(super) fn leave(core: &Core, group: IpAddr) -> Result<(), CmError> {
    let asked = format!("leave the multicast group {group}");
    core.leave_group(group).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            CmError::new(Code::AddrNotAvailable, asked, "the id has not joined it (CM-13)")
        }
        _ => CmError::from_io(asked, &error),
    })?;
    let mut groups = core.groups();
    if let Some(index) = groups.iter().position(|known| *known == group) {
        groups.swap_remove(index);
    }
    Ok(())
}
