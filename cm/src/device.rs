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
    /// it is opened; so also if no device that opens owns `addr`, but one that does not open may.
    pub fn choose(name: Option<&str>, addr: Option<IpAddr>) -> Result<Device, CmError> {
        let variable = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        match name.or(variable.as_deref()) {
            Some(name) => Device::named(name),
            None => match addr.map_or(Ok(None), owner)? {
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
const CURE: &str = "this build knows no RDMA devices: build with the feature verbs for those";

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

/// The RDMA device that owns an address.
#[cfg(feature = "verbs")]
fn owner(addr: IpAddr) -> Result<Option<Device>, CmError> {
    use doorbell_verbs::Verbs;
    let opened = rdma_devices().into_iter().map(|name| Ok(Verbs::open(&name)?));
    let device = owner_of(addr, opened, |device| device.addresses().contains(&addr))?;
    Ok(device.map(Device::Verbs))
}

#[cfg(not(feature = "verbs"))]
fn owner(_addr: IpAddr) -> Result<Option<Device>, CmError> {
    Ok(None)
}

/// The first device that owns an address. Fails if none does, but one of those that could not be
/// opened may.
#[cfg(feature = "verbs")]
fn owner_of<D>(
    addr: IpAddr,
    opened: impl Iterator<Item = Result<D, CmError>>,
    owns: impl Fn(&D) -> bool,
) -> Result<Option<D>, CmError> {
    let mut failed = None;
    for device in opened {
        match device {
            Ok(device) if owns(&device) => return Ok(Some(device)),
            Ok(_) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) if !addr.is_loopback() && !addr.is_unspecified() => {
            let asked = format!("find the device that owns {addr}");
            Err(CmError::new(error.code(), asked, error.to_string())
                .cure(format!("or name the device to use: {VARIABLE}=soft0 needs no RDMA device")))
        }
        _ => Ok(None),
    }
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

    #[cfg(feature = "verbs")]
    #[test]
    fn a_device_that_does_not_open_is_no_reason_to_take_another_silently() {
        let failed = || Err(CmError::new(Code::NoMemory, "open mlx5_0", "too little memory"));
        let find = |addr: &str, own: &str| {
            let opened = [failed(), Ok("10.0.0.1"), failed()].into_iter();
            owner_of(addr.parse().unwrap(), opened, |device| *device == own)
        };
        assert_eq!(find("10.0.0.1", "10.0.0.1").unwrap(), Some("10.0.0.1"));
        for addr in ["127.0.0.1", "::1", "0.0.0.0"] {
            assert_eq!(find(addr, addr).unwrap(), None);
        }
        let error = find("10.0.0.2", "10.0.0.2").unwrap_err();
        assert_eq!(error.code(), Code::NoMemory);
        let text = error.to_string();
        for part in ["10.0.0.2", "open mlx5_0: too little memory", "DOORBELL_DEVICE=soft0"] {
            assert!(text.contains(part), "{text}");
        }
        let none = core::iter::empty::<Result<(), CmError>>();
        assert_eq!(owner_of("10.0.0.2".parse().unwrap(), none, |()| true).unwrap(), None);
    }

    #[test]
    fn an_unknown_device_is_an_error_that_lists_those_there_are() {
        let Err(error) = Device::choose(Some("mlx5_77"), None) else { panic!("it exists") };
        assert_eq!(error.code(), Code::NoDevice);
        let text = error.to_string();
        assert!(text.contains("'mlx5_77'") && text.contains("there is: soft0"), "{text}");
    }
}
