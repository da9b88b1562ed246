//! What a machine has: one model, which is filled from the kernel's files (`sysfs`) or by hwloc
//! (`hwloc`, feature `numa`).

mod cpus;
mod cpuset;
mod devices;
mod join;
mod model;

mod error;
#[cfg(feature = "numa")]
mod hwloc;
mod nodes;
mod packages;
mod sysfs;

mod read;

pub use cpus::Cpus;
pub use devices::{Device, DeviceKind, Link};
pub(crate) use devices::{is_pci, link};
#[cfg(feature = "numa")]
pub use error::HwlocError;
pub use error::MachineError;
pub use model::{Cache, Core, Machine, Node, Package};
pub(crate) use nodes::free;
