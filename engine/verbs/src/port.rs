//! Ports (`ibv_query_port`, `ibv_query_gid`, `ibv_query_pkey`), and forks.

use std_alloc::format;
use std_alloc::string::String;

use super::device::{Device, Verbs};
use super::rdma_core;
use super::shim::{from_c, refused};
use crate::error::{Code, SetupError};
use crate::provider::{Gid, LinkLayer, PortAttr, PortState};

pub(super) fn query(device: &Device, port: u8) -> Result<PortAttr, SetupError> {
    let asked = format!("port {port} of {}", device.caps().device);
    check_port(device, port)?;
    let raw = device.context().query_port(port).map_err(|errno| refused(asked, errno))?;
    // Codes 1 to 5 are 256 to 4096 bytes.
    let bytes = |code: u32| if (1..=5).contains(&code) { 128 << code } else { 0 };
    let mut found = PortAttr::active(LinkLayer::from_raw(raw.link_layer), bytes(raw.max_mtu));
    found.state = PortState::from_raw(raw.state);
    found.active_mtu = bytes(raw.active_mtu);
    found.message_max = raw.max_msg_sz;
    found.gids = from_c(raw.gid_tbl_len);
    found.pkeys = raw.pkey_tbl_len.into();
    (found.lid, found.sm_lid) = (raw.lid, raw.sm_lid);
    Ok(found)
}

pub(super) fn gid(device: &Device, port: u8, index: u32) -> Result<Gid, SetupError> {
    let asked = || format!("GID {index} of port {port} of {}", device.caps().device);
    check_index(asked, index, query(device, port)?.gids)?;
    device.context().query_gid(port, index).map_err(|errno| refused(asked(), errno))
}

pub(super) fn pkey(device: &Device, port: u8, index: u32) -> Result<u16, SetupError> {
    let asked = || format!("partition key {index} of port {port} of {}", device.caps().device);
    check_index(asked, index, query(device, port)?.pkeys)?;
    device.context().query_pkey(port, index).map_err(|errno| refused(asked(), errno))
}

fn check_port(device: &Device, port: u8) -> Result<(), SetupError> {
    let caps = device.caps();
    if (1..=caps.ports).contains(&port) {
        return Ok(());
    }
    let asked = format!("port {port} of {}", caps.device);
    Err(SetupError::new(Code::Invalid, asked, format!("it has {}, from 1 on", caps.ports)))
}

fn check_index(asked: impl Fn() -> String, index: u32, count: u32) -> Result<(), SetupError> {
    if index < count {
        return Ok(());
    }
    Err(SetupError::new(Code::Invalid, asked(), format!("the table has {count} entries")))
}

/// Whether the library's memory is safe from forks (`enum ibv_fork_status`, same numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ForkState {
    /// It is not.
    Disabled = 0,
    /// It is, since [`Verbs::fork_init`].
    Enabled = 1,
    /// The kernel makes it safe.
    Unneeded = 2,
}

impl Verbs {
    /// Whether the library's own memory is safe from forks (`ibv_is_fork_initialized`). Without
    /// the library it is `Disabled`.
    pub fn fork_state() -> ForkState {
        if Verbs::load().is_err() {
            return ForkState::Disabled;
        }
        match rdma_core::fork_status() {
            1 => ForkState::Enabled,
            2 => ForkState::Unneeded,
            _ => ForkState::Disabled,
        }
    }

    /// Makes the library's own memory safe from forks (`ibv_fork_init`). Call it before any device
    /// is opened. Regions are safe without it: a child does not get their memory, or shares it.
    /// Kernels from 5.12 on do not need this call.
    ///
    /// # Errors
    /// `Invalid` if memory has been registered already; as for [`Verbs::load`]; otherwise the
    /// system's error.
    pub fn fork_init() -> Result<(), SetupError> {
        rdma_core::load("make forks safe")?;
        match rdma_core::fork_init() {
            0 => Ok(()),
            answer => Err(refused("make forks safe", answer)
                .cure("call it first of all, before a device is opened")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Either the kernel does it, or the call does, which comes first in this process.
    #[test]
    fn after_the_call_forks_are_safe() {
        Verbs::fork_init().expect("nothing was registered before");
        assert_ne!(Verbs::fork_state(), ForkState::Disabled);
    }
}
