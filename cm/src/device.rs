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
    /// `NoDevice`: no device has that name, and the error lists those that exist; or rdma-core's
    /// libraries are missing, and the error names the packages. Otherwise the device's error when
    /// it is opened.
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
        needs_library()?;
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

/// Fails if rdma-core's libraries cannot be loaded.
#[cfg(feature = "verbs")]
fn needs_library() -> Result<(), CmError> {
    Ok(doorbell_verbs::Verbs::load()?)
}

#[cfg(not(feature = "verbs"))]
fn needs_library() -> Result<(), CmError> {
    Ok(())
}

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

    /// Runs this test program again where a broken file stands in for each library. It would not
    /// start if it were linked to one.
    #[cfg(feature = "verbs")]
    #[test]
    fn without_the_libraries_there_is_the_soft_device_and_an_error_for_others() {
        use std::{env, fs, process};

        const FOLDER: &str = "doorbell-no-libraries";
        let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        if path.to_string_lossy().contains(FOLDER) {
            let any = "127.0.0.1".parse().unwrap();
            assert_eq!(Device::choose(None, Some(any)).unwrap().name(), "soft0");
            let Err(error) = Device::named("rxe0") else { panic!("it has opened") };
            assert_eq!(error.code(), Code::NoDevice);
            let text = error.to_string();
            assert!(text.contains("libibverbs.so.1") && text.contains("soft0"), "{text}");
            return;
        }
        let folder = env::temp_dir().join(format!("{FOLDER}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        for library in ["libibverbs.so.1", "librdmacm.so.1"] {
            fs::write(folder.join(library), "no library").unwrap();
        }
        let again = process::Command::new(env::current_exe().unwrap())
            .args(["without_the_libraries", "--nocapture"])
            .env("LD_LIBRARY_PATH", &folder)
            .env_remove(VARIABLE)
            .output()
            .unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = String::from_utf8_lossy(&again.stdout) + String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn an_unknown_device_is_an_error_that_lists_those_there_are() {
        let Err(error) = Device::choose(Some("mlx5_77"), None) else { panic!("it exists") };
        assert_eq!(error.code(), Code::NoDevice);
        let text = error.to_string();
        assert!(text.contains("'mlx5_77'") && text.contains("there is: soft0"), "{text}");
    }
}
