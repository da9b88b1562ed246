//! What a machine has: one model, filled from the kernel's files ([`sysfs`]) or by hwloc
//! (`hwloc`, feature `numa`).

mod cpus;
mod devices;
#[cfg(feature = "numa")]
mod hwloc;
pub(crate) mod sysfs;

use serde::Serialize;
use thiserror::Error;

pub use cpus::Cpus;
pub use devices::{Device, DeviceKind, Link};
pub(crate) use devices::{is_pci, link};
#[cfg(feature = "numa")]
pub use hwloc::HwlocError;

use crate::ids::Ids;
use crate::root::{ReadError, Root};

/// A machine. CPUs that are switched off are in [`Machine::cpus`] alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// The processor's name; `None` where the machine does not say.
    pub processor: Option<String>,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Sockets, ascending.
    pub packages: Vec<Package>,
    /// NUMA nodes, ascending. At least one.
    pub nodes: Vec<Node>,
    /// Nodes that have memory which this program may use.
    pub memory_nodes: Ids,
    /// Cores, in the order of their first CPU.
    pub cores: Vec<Core>,
    /// Caches for data, by level and then by their first CPU.
    pub caches: Vec<Cache>,
    /// NICs and RDMA devices, by name.
    pub devices: Vec<Device>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    /// The kernel's number.
    pub id: usize,
    /// Its CPUs.
    pub cpus: Ids,
}

/// A NUMA node: memory, and the CPUs it is near to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's number.
    pub id: usize,
    /// Its CPUs; none for memory that belongs to no socket.
    pub cpus: Ids,
    /// Its memory, in bytes; 0 where the slots are empty.
    pub memory_bytes: u64,
    /// How far each node is, in the order of [`Machine::nodes`]: 10 is here, 20 is twice as far
    /// (ACPI, System Locality Information Table). Empty where the machine does not say.
    pub distances: Vec<u64>,
}

/// A core: one or more CPUs that share all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its socket.
    pub package: usize,
    /// Its NUMA node.
    pub node: usize,
    /// Its hardware threads.
    pub cpus: Ids,
    /// True for the slower cores of a machine that has two kinds.
    pub slow: bool,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u8,
    /// Its size, in bytes.
    pub bytes: u64,
    /// The CPUs that share it.
    pub cpus: Ids,
}

/// Why a machine could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A file is missing without which nothing can be said.
    #[error("{0}; a recorded machine is a folder with sys/devices/system/cpu in it")]
    Read(#[from] ReadError),
    /// hwloc would not.
    #[cfg(feature = "numa")]
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
}

impl Machine {
    /// Reads a machine: this one by hwloc if the feature `numa` is on, else, and recorded ones
    /// always, by the kernel's files.
    ///
    /// # Errors
    /// It does not say which CPUs it has; or hwloc fails.
    pub fn read(root: &Root) -> Result<Machine, MachineError> {
        #[cfg(feature = "numa")]
        if root.is_system() {
            return hwloc::system();
        }
        Machine::from_files(root)
    }

    /// Reads a machine by the kernel's files.
    ///
    /// # Errors
    /// It does not say which CPUs it has.
    pub fn from_files(root: &Root) -> Result<Machine, MachineError> {
        Ok(sysfs::read(root)?)
    }

    /// Reads a machine that `lstopo FILE.xml` recorded. Such a file does not say which CPUs are
    /// isolated, nor the width and speed of PCIe links.
    ///
    /// # Errors
    /// The file cannot be read, or is none of hwloc's.
    #[cfg(feature = "numa")]
    pub fn from_xml(file: &std::path::Path) -> Result<Machine, MachineError> {
        Ok(hwloc::xml(file)?)
    }

    /// The node of that number.
    #[must_use]
    pub fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The device of that name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// How far memory of node `to` is from CPUs of node `from`: 10 is here. Where the machine does
    /// not say, 20 for another node.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> u64 {
        let usual = if from == to { 10 } else { 20 };
        let place = self.nodes.iter().position(|node| node.id == to);
        let known = place.and_then(|place| self.node(from)?.distances.get(place).copied());
        known.unwrap_or(usual)
    }
}
