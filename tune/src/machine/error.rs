//! Why a machine could not be read.

use std::fmt;
#[cfg(feature = "numa")]
use std::path::PathBuf;

use thiserror::Error;

use crate::root::ReadError;

/// Why a machine could not be read.
#[derive(Error)]
#[non_exhaustive]
pub enum MachineError {
    /// A file that every machine must have cannot be read.
    #[error("{0}; a recorded machine is a folder with sys/devices/system/cpu in it")]
    Read(#[from] ReadError),
    /// hwloc failed.
    #[cfg(feature = "numa")]
    #[error(transparent)]
    Hwloc(#[from] HwlocError),
}

impl fmt::Debug for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why hwloc could not read a machine.
#[cfg(feature = "numa")]
#[derive(Error)]
#[non_exhaustive]
pub enum HwlocError {
    /// It could not read this machine.
    #[error("hwloc cannot read this machine: {0}; see lstopo(1)")]
    Load(String),
    /// It could not read a file.
    #[error(
        "hwloc cannot read the machine in {}: {answer}; write one with `lstopo FILE.xml`",
        path.display()
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The error of hwloc.
        answer: String,
    },
}

#[cfg(feature = "numa")]
impl fmt::Debug for HwlocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
