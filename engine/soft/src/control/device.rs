//! [`SoftDevice`]: a soft device with its place among the processes of this machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use super::carrier::{Carried, Carrier};
use super::files::Directory;
use super::host;
use super::links::Links;
use super::rendezvous::Rendezvous;
use super::spare::Spare;
use super::sys;
use super::waiting::Waiting;
use super::wire::Instance;
use crate::state::domain_state::DomainState;
use crate::{FileName, Soft, Threads};

/// The name of the default device.
pub const SOFT_DEVICE: &str = "soft0";

/// The soft device, open. Opening it twice gives two devices of one name: their queue pairs can
/// connect to each other, but a region or queue of one cannot be used with the other.
#[derive(Clone)]
pub struct SoftDevice(pub(super) Arc<DeviceInner>, pub(super) Soft);

/// What all handles of a device share. Besides it, a handle has only its protection domain.
pub(super) struct DeviceInner {
    pub(super) name: String,
    pub(super) instance: Instance,
    pub(super) soft: Soft,
    /// Where peers find its table of regions.
    pub(super) directory: FileName,
    pub(super) links: Links,
    pub(super) waiting: Waiting,
    /// Connects queue pairs by GID and number, once that is allowed.
    pub(super) rendezvous: OnceLock<Rendezvous>,
    /// Held while `rendezvous` is made.
    pub(super) making: Mutex<()>,
    /// How long a connection waits for somebody to listen.
    pub(super) patience: OnceLock<Duration>,
    pub(super) spare: Spare,
    keys: AtomicU64,
}

impl DeviceInner {
    pub(super) fn next_key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn rd_atomic_max(&self) -> u8 {
        self.soft.caps().rd_atomic_max
    }
}

impl SoftDevice {
    /// The time by the clock of completion timestamps
    /// ([`WcFields::COMPLETION_TIMESTAMP`](doorbell_seam::provider::WcFields)), in nanoseconds.
    pub fn clock(&self) -> u64 {
        (self.1.nic.host.clock)()
    }

    /// What a [`Biased`](crate::Biased) lock around calls of this device must know.
    pub fn threads(&self) -> Threads {
        self.1.nic.host.threads
    }

    /// Calls `told` with the number of each receive that ends without a completion that anybody can
    /// poll, because its queue pair is destroyed or reset. It tells only of receives whose
    /// completions go to a shared completion queue. `told` must not use this device.
    pub fn tell_lost_receives(&self, told: impl Fn(u64) + Send + 'static) {
        let listen = |state: &mut DomainState| state.transport.res.lost_receives.listen(told);
        self.1.shared.enter_shared(listen);
    }

    /// Opens [`SOFT_DEVICE`].
    ///
    /// # Errors
    /// Only if the system has no random bytes, no memory or no file descriptors left.
    pub fn open() -> Result<SoftDevice, CmError> {
        SoftDevice::named(SOFT_DEVICE)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Opens a soft device of another name. Devices of different names do not see each other.
    ///
    /// # Errors
    /// `Invalid`: the name is not 1 to 16 letters and digits.
    pub fn named(name: &str) -> Result<SoftDevice, CmError> {
        SoftDevice::make(name, None)
    }

    /// Opens a soft device whose connections use another wire than shared memory. Both sides of a
    /// connection need the same wire, so give such a device a name of its own. Datagrams do not use
    /// it.
    ///
    /// # Errors
    /// As for [`SoftDevice::named`].
    pub fn over(name: &str, carrier: Arc<dyn Carrier>) -> Result<SoftDevice, CmError> {
        SoftDevice::make(name, Some(carrier))
    }

    fn make(name: &str, carrier: Option<Arc<dyn Carrier>>) -> Result<SoftDevice, CmError> {
        let asked = || format!("open soft device '{name}'");
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if name.is_empty() || name.len() > 16 || !plain {
            let answer = "a name is 1 to 16 letters and digits";
            return Err(CmError::new(Code::Invalid, asked(), answer));
        }
        let mut instance = Instance::default();
        sys::random(&mut instance).map_err(|error| CmError::from_io(asked(), &error))?;
        let host = host::host().map_err(|error| CmError::from_io(asked(), &error))?;
        let links =
            carrier.map(|carrier| Links::carried(Carried { carrier, host })).unwrap_or_default();
        let directory = Directory::new()?;
        let soft = Soft::new(name, host, Some(directory.mapping));
        let inner = DeviceInner {
            name: name.to_owned(),
            instance,
            soft: soft.clone(),
            directory: directory.name,
            links,
            waiting: Waiting::default(),
            rendezvous: OnceLock::new(),
            making: Mutex::new(()),
            patience: OnceLock::new(),
            spare: Spare::new(),
            keys: AtomicU64::new(1),
        };
        Ok(SoftDevice(Arc::new(inner), soft))
    }
}
