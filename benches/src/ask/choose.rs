//! The device's address and the cores of a run.

use std::net::{IpAddr, Ipv4Addr};

use doorbell::Device;
use doorbell_tune as tune;

use crate::ask::cli::Common;
use crate::error::Failure;

/// The cores of both sides, or of the side that is here. Call it before anything is pinned.
pub(crate) fn cores(common: &Common, workers: u32) -> Result<Vec<usize>, Failure> {
    let allowed = tune::cores();
    let workers = workers as usize;
    let need = match (common.listen, common.connect) {
        (Some(_), _) | (_, Some(_)) => 1,
        _ => 1 + workers,
    };
    if common.cores.is_empty() {
        // A side that serves another host does not know yet how many workers that one wants.
        let wanted = if common.listen.is_some() { allowed.len() } else { need };
        return Ok(tune::choose(wanted)?);
    }
    let cores = &common.cores;
    let list = tune::CoreList(&allowed);
    if let Some(core) = cores.iter().find(|core| !allowed.contains(core)) {
        return Err(Failure::new(format!(
            "--cores: core {core} is not one this program may use; choose from {list}"
        )));
    }
    if cores.len() < need || (need > 1 && cores[1..].contains(&cores[0])) {
        return Err(Failure::new(format!(
            "--cores: {need} are needed, first the connecting side's, which nobody shares, then \
             one for each worker; choose from {list}, or from a plan for more workers \
             (tune plan --workers {need})"
        )));
    }
    Ok(cores.clone())
}

/// True for the device in software.
pub(crate) fn is_soft(device: &Device) -> bool {
    matches!(device, Device::Soft(_))
}

/// The address that both sides use: the one that was named, else the device's own.
///
/// # Errors
/// The device has none.
pub(crate) fn address(device: &Device, named: Option<IpAddr>) -> Result<IpAddr, Failure> {
    named.or_else(|| own_address(device)).ok_or_else(|| {
        Failure::new(format!("{} has no address; give one to its interface", device.name()))
    })
}

fn own_address(device: &Device) -> Option<IpAddr> {
    match device {
        Device::Soft(_) => Some(Ipv4Addr::LOCALHOST.into()),
        #[cfg(feature = "verbs")]
        Device::Verbs(device) => device.addresses().first().copied(),
    }
}
