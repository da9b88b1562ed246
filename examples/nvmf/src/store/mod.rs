//! Where the blocks of a namespace are kept: in memory or in a file.

mod file;
mod jobs;
mod memory;
mod ring;

use std::io;
use std::os::fd::RawFd;

pub use file::File;
pub use jobs::Jobs;
pub use memory::Memory;
pub use ring::{Ended, Move, REGIONS, Ring, Transfer};

/// Bytes that stay, by their offset. Callers keep to offsets below [`Store::len`].
pub trait Store: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if its calls return in less time than a switch to another thread takes.
    fn is_quick(&self) -> bool;

    /// The descriptor of the file under it, for a transfer of those bytes by io_uring; `None`
    /// without a file, or behind its end.
    fn descriptor(&self, _at: u64, _bytes: &[u8]) -> Option<RawFd> {
        None
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// The system's error, or an offset behind the end.
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// Writes bytes. They need not survive a loss of power before [`Store::flush`].
    ///
    /// # Errors
    /// As for [`Store::read`].
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()>;

    /// Writes zeros.
    ///
    /// # Errors
    /// As for [`Store::read`].
    fn zero(&self, at: u64, len: u64) -> io::Result<()>;

    /// Gives back the room of bytes, which then read as zeros.
    ///
    /// # Errors
    /// As for [`Store::read`].
    fn discard(&self, at: u64, len: u64) -> io::Result<()>;

    /// Makes everything written so far survive a loss of power.
    ///
    /// # Errors
    /// The system's error.
    fn flush(&self) -> io::Result<()>;
}

/// The error for bytes behind the end of a store.
fn behind() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "behind the end of the store")
}
