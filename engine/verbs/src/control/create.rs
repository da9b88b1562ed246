//! Makes ids: plain ones, and endpoints that are ready to connect or to listen.

use std::net::SocketAddr;

use doorbell_fabric::AddrInfo;
use doorbell_fabric::CmError;
use doorbell_fabric::PortSpace;
use doorbell_seam::error::Code;

use super::addr::{self, address_error};
use super::channel::VerbsChannel;
use super::core::Core;
use super::id::VerbsId;
use super::line::NewId;
use crate::Verbs;

/// `rdma_create_id`.
pub(super) fn id(
    device: &Verbs,
    channel: Option<&VerbsChannel>,
    space: PortSpace,
) -> Result<VerbsId, CmError> {
    let new = NewId::create(channel.map(VerbsChannel::line), space);
    let core = new.and_then(Core::adopt);
    let core = core.map_err(|error| CmError::from_io("an id of the connection manager", &error))?;
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
    let new = NewId::endpoint(info).map_err(|error| address_error(device, &asked, &error))?;
    let core = Core::adopt(new).map_err(|error| CmError::from_io(&asked, &error))?;
    let id = VerbsId::new(core, device);
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
