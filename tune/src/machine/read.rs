//! Reads a machine: from the kernel's files or with hwloc.

use super::error::MachineError;
#[cfg(feature = "numa")]
use super::hwloc;
use super::model::Machine;
use super::sysfs;
use crate::root::Root;

impl Machine {
    /// Reads a machine. With the feature `numa`, this machine is read with hwloc. Without it, and
    /// for recorded machines, the kernel's files are read.
    ///
    /// # Errors
    /// The machine does not say which CPUs it has, or hwloc fails.
    pub fn read(root: &Root) -> Result<Machine, MachineError> {
        #[cfg(feature = "numa")]
        if root.is_system() {
            return hwloc::system();
        }
        Machine::from_files(root)
    }

    /// Reads a machine from the kernel's files.
    ///
    /// # Errors
    /// The machine does not say which CPUs it has.
    pub fn from_files(root: &Root) -> Result<Machine, MachineError> {
        Ok(sysfs::read(root)?)
    }

    /// Reads a machine from a file that `lstopo FILE.xml` wrote. The file does not say which CPUs
    /// are isolated, nor the width and speed of PCIe links.
    ///
    /// # Errors
    /// The file cannot be read, or hwloc did not write it.
    #[cfg(feature = "numa")]
    pub fn from_xml(file: &std::path::Path) -> Result<Machine, MachineError> {
        Ok(hwloc::xml(file)?)
    }
}
