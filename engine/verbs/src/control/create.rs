//! Makes ids: plain ones, and endpoints that are ready to connect or to listen.
#![expect(unsafe_code, reason = "ids are made by librdmacm")]

use std::ffi::c_int;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use crate::rdma_core::*;
use doorbell_fabric::AddrInfo;
use doorbell_fabric::CmError;
use doorbell_fabric::PortSpace;
use doorbell_seam::error::Code;

use super::addr::{self, Raw, address_error};
use super::channel::VerbsChannel;
use super::core::Core;
use super::id::VerbsId;
use crate::Verbs;

/// The address is to be listened on: rdma-sys lacks the constant of `<rdma/rdma_cma.h>`.
const RAI_PASSIVE: c_int = 1;

/// `rdma_create_id`.
pub(super) fn id(
    device: &Verbs,
    channel: Option<&VerbsChannel>,
    space: PortSpace,
) -> Result<VerbsId, CmError> {
    let asked = "an id of the connection manager";
    let line = channel.map(VerbsChannel::line);
    let raw = line.map_or(ptr::null_mut(), |line| line.as_ptr());
    let mut new = ptr::null_mut();
    // SAFETY: the channel is NULL or alive; the call writes the id.
    let answer = unsafe { rdma_create_id(raw, &raw mut new, ptr::null_mut(), space as u32) };
    let new = NonNull::new(new).filter(|_| answer == 0).ok_or_else(|| CmError::last_os(asked))?;
    // SAFETY: the id was just made, on that channel or synchronous.
    let core = unsafe { Core::adopt(new, line) };
    let core = core.map_err(|error| CmError::from_io(asked, &error))?;
    Ok(VerbsId::new(core, device))
}

/// `rdma_create_ep` without a queue pair.
pub(super) fn endpoint(device: &Verbs, info: &AddrInfo) -> Result<VerbsId, CmError> {
    let asked = what(info);
    info.check_type()?;
    for addr in [info.local(), info.remote()].into_iter().flatten() {
        addr::check(device, &asked, addr)?;
    }
    if info.local().or(info.remote()).is_none() {
        return Err(CmError::new(Code::Invalid, asked, "there is no address in it"));
    }
    let (mut local, mut remote) = (info.local().map(Raw::new), info.remote().map(Raw::new));
    // SAFETY: zero is a valid value of each field.
    let mut raw: rdma_addrinfo = unsafe { zeroed() };
    raw.ai_flags = if info.is_passive() { RAI_PASSIVE } else { 0 };
    raw.ai_qp_type = info.qp_type() as c_int;
    raw.ai_port_space = info.space() as c_int;
    if let Some(local) = &mut local {
        raw.ai_family = local.family();
        raw.ai_src_len = local.len();
        raw.ai_src_addr = local.as_mut_ptr();
    }
    if let Some(remote) = &mut remote {
        raw.ai_family = remote.family();
        raw.ai_dst_len = remote.len();
        raw.ai_dst_addr = remote.as_mut_ptr();
    }
    let mut new = ptr::null_mut();
    // SAFETY: the structure and the addresses it points to live through the call, which keeps
    // none of them; no domain and no queue pair attributes.
    let answer =
        unsafe { rdma_create_ep(&raw mut new, &raw mut raw, ptr::null_mut(), ptr::null_mut()) };
    let new = NonNull::new(new)
        .filter(|_| answer == 0)
        .ok_or_else(|| address_error(device, asked.clone(), &std::io::Error::last_os_error()))?;
    // SAFETY: the id was just made, synchronous as all of rdma_create_ep.
    let core = unsafe { Core::adopt(new, None) };
    let id = VerbsId::new(core.map_err(|error| CmError::from_io(&asked, &error))?, device);
    id.check_device(&asked)?;
    Ok(id)
}

fn what(info: &AddrInfo) -> String {
    let name = |addr: Option<SocketAddr>| addr.map_or("any address".into(), |a| a.to_string());
    match (info.is_passive(), info.local()) {
        (true, local) => format!("an endpoint to listen on {}", name(local)),
        (false, None) => format!("an endpoint to connect to {}", name(info.remote())),
        (false, local) => {
            format!("an endpoint to connect from {} to {}", name(local), name(info.remote()))
        }
    }
}
