//! [`Device`]: which device a program runs on, chosen at run time.

use std::net::IpAddr;

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;

use doorbell_soft::{SOFT_DEVICE, SoftDevice};

/// The environment variable that names the device.
const VARIABLE: &str = "DOORBELL_DEVICE";

/// An open device of this machine.
pub enum Device {
    /// The soft device, which every machine has.
    Soft(SoftDevice),
    /// An RDMA device through rdma-core.
    #[cfg(feature = "verbs")]
    Verbs(doorbell_verbs::Verbs),
}

/// A program that runs on any device.
pub trait Program {
    /// Its result.
    type Output;

    /// Runs on that device.
    fn run<F: Fabric>(self, fabric: F) -> Self::Output;
}

impl Device {
    /// Chooses a device: the one named; else the one that `DOORBELL_DEVICE` names; else the RDMA
    /// device that owns `addr`; else `soft0`.
    ///
    /// # Errors
    /// `NoDevice`: no device has that name; the error lists those that exist. Otherwise the
    /// device's error when it is opened.
    pub fn choose(name: Option<&str>, addr: Option<IpAddr>) -> Result<Device, CmError> {
        let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        match name.or(variable.as_deref()) {
            Some(name) => Device::named(name),
            None => match addr.and_then(owner) {
                Some(device) => Ok(device),
                None => SoftDevice::open().map(Device::Soft),
            },
        }
    }

    /// Opens the device of that name.
    ///
    /// # Errors
    /// As for [`Device::choose`].
    pub fn named(name: &str) -> Result<Device, CmError> {
        if name == SOFT_DEVICE {
            return SoftDevice::open().map(Device::Soft);
        }
        if rdma_devices().iter().any(|device| device == name) {
            return open(name);
        }
        let answer = format!("there is no such device here; there is: {}", names().join(", "));
        Err(CmError::new(Code::NoDevice, format!("use device '{name}'"), answer).cure(CURE))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        match self {
            Device::Soft(device) => device.name(),
            #[cfg(feature = "verbs")]
            Device::Verbs(device) => device.name(),
        }
    }

    /// Runs a program on the device.
    pub fn run<P: Program>(self, program: P) -> P::Output {
        match self {
            Device::Soft(device) => program.run(device),
            #[cfg(feature = "verbs")]
            Device::Verbs(device) => program.run(device),
        }
    }
}

/// The names of the devices of this machine that this build can use.
fn names() -> Vec<String> {
    let mut names = vec![SOFT_DEVICE.to_owned()];
    names.extend(rdma_devices());
    names
}

#[cfg(feature = "verbs")]
const CURE: &str = "choose one of these; an RDMA device shows up when its driver is loaded";
#[cfg(not(feature = "verbs"))]
const CURE: &str = "this build knows no RDMA devices: build with --features verbs for those";

#[cfg(feature = "verbs")]
fn rdma_devices() -> Vec<String> {
    doorbell_verbs::Verbs::devices()
}

#[cfg(not(feature = "verbs"))]
fn rdma_devices() -> Vec<String> {
    Vec::new()
}

#[cfg(feature = "verbs")]
fn open(name: &str) -> Result<Device, CmError> {
    Ok(Device::Verbs(doorbell_verbs::Verbs::open(name)?))
}

#[cfg(not(feature = "verbs"))]
fn open(name: &str) -> Result<Device, CmError> {
    Err(CmError::new(Code::NoDevice, format!("use device '{name}'"), "not in this build")
        .cure(CURE))
}

/// The RDMA device that owns an address; a device that cannot be opened does not count.
#[cfg(feature = "verbs")]
fn owner(addr: IpAddr) -> Option<Device> {
    use doorbell_verbs::Verbs;
    let opened = rdma_devices().into_iter().filter_map(|name| Verbs::open(&name).ok());
    opened.into_iter().find(|device| device.addresses().contains(&addr)).map(Device::Verbs)
}

#[cfg(not(feature = "verbs"))]
fn owner(_addr: IpAddr) -> Option<Device> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_device_is_always_there() {
        assert_eq!(Device::named("soft0").unwrap().name(), "soft0");
    }

    #[test]
    fn an_unknown_device_is_an_error_that_lists_those_there_are() {
        let Err(error) = Device::choose(Some("mlx5_77"), None) else { panic!("it exists") };
        assert_eq!(error.code(), Code::NoDevice);
        let text = error.to_string();
        assert!(text.contains("'mlx5_77'") && text.contains("there is: soft0"), "{text}");
    }
}
