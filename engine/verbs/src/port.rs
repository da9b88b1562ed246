//! Ports (`ibv_query_port`, `ibv_query_gid`, `ibv_query_pkey`), and forks.
#![expect(unsafe_code, reason = "ports are asked through libibverbs")]

use crate::rdma_core::{
    ibv_fork_init, ibv_gid, ibv_is_fork_initialized, ibv_query_gid, ibv_query_pkey,
};
use std_alloc::format;

use super::caps::port_attr;
use super::device::{Device, Verbs};
use super::rdma_core;
use super::shim::{errno, from_c, refused, to_c};
use crate::error::{Code, SetupError};
use crate::provider::{Gid, LinkLayer, PortAttr, PortState};

pub(super) fn query(device: &Device, port: u8) -> Result<PortAttr, SetupError> {
    let asked = format!("port {port} of {}", device.caps().device);
    check_port(device, port)?;
    let raw = port_attr(device.context_ref(), port).map_err(|errno| refused(asked, errno))?;
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
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: the context is open; the call fills the GID, whose bytes are valid either way.
    let (answer, gid) =
        unsafe { (ibv_query_gid(device.context(), port, to_c(index), &raw mut gid), gid.raw) };
    if answer == 0 { Ok(Gid(gid)) } else { Err(refused(asked(), errno())) }
}

pub(super) fn pkey(device: &Device, port: u8, index: u32) -> Result<u16, SetupError> {
    let asked = || format!("partition key {index} of port {port} of {}", device.caps().device);
    check_index(asked, index, query(device, port)?.pkeys)?;
    let mut key = 0;
    // SAFETY: the context is open; the call fills the key.
    let answer = unsafe { ibv_query_pkey(device.context(), port, to_c(index), &raw mut key) };
    match answer {
        0 => Ok(u16::from_be(key)),
        _ => Err(refused(asked(), errno())),
    }
}

fn check_port(device: &Device, port: u8) -> Result<(), SetupError> {
    let caps = device.caps();
    if (1..=caps.ports).contains(&port) {
        return Ok(());
    }
    let asked = format!("port {port} of {}", caps.device);
    Err(SetupError::new(Code::Invalid, asked, format!("it has {}, from 1 on", caps.ports)))
}

fn check_index(
    asked: impl Fn() -> std_alloc::string::String,
    index: u32,
    count: u32,
) -> Result<(), SetupError> {
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
        // SAFETY: takes nothing.
        match unsafe { ibv_is_fork_initialized() } {
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
        // SAFETY: takes nothing; the library refuses it when it is too late.
        match unsafe { ibv_fork_init() } {
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
