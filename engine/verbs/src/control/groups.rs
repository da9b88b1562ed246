//! Multicast groups of ids (CM-13).

use std::net::IpAddr;

use doorbell_fabric::CmError;
use doorbell_fabric::Join;
use doorbell_seam::error::Code;

use super::core::Core;
use super::record::Told;

/// Joins a group. librdmacm attaches the queue pair when it hands out the event.
pub(super) fn join(
    core: &Core,
    asked: &str,
    group: IpAddr,
    how: Join,
) -> Result<Option<Told>, CmError> {
    let told = core.join_group(group, how).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => {
            let answer = "the id is not bound, or past that, or no id of datagrams (CM-13)";
            CmError::new(Code::Invalid, asked, answer)
        }
        _ => CmError::from_io(asked, &error),
    })?;
    core.groups().push(group);
    Ok(told)
}

/// Leaves a group.
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
