//! Memory over a file, or a copy of one.
#![expect(unsafe_code, reason = "posix_fallocate and geteuid have no safe form in std")]

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::error::{FileError, MapError, system};
use super::memory::Memory;
use super::request::MapRequest;
use crate::arith;
use crate::mapping::Mapping;
use crate::pages::{Ask, Pages};
use crate::report::MapReport;

/// How [`Mapping::file`] uses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileUse {
    /// The bytes are copied into private memory, in huge pages where available. Later changes of
    /// the file have no effect, and nothing is written back. The file must have the requested
    /// length.
    Copy,
    /// The memory is the file: writes reach the file and other processes that map it.
    /// [`Mapping::file`] says who may.
    Shared,
}

impl Mapping {
    /// Memory that holds the first `len` bytes of a file.
    ///
    /// **A file that shrinks under a mapping** makes the next access beyond its end fail with
    /// SIGBUS, which ends the process. This cannot happen with [`FileUse::Copy`]. For
    /// [`FileUse::Shared`] this call prevents it as far as Linux allows:
    /// - The file must be a regular one of this user (or of root), and nobody else may write to it:
    ///   the modes `g+w` and `o+w` are refused. So no other user can truncate it.
    /// - The mapping holds an exclusive lock on the file (flock(2)) until it is dropped, and a file
    ///   that is locked already is refused. Processes of this user that take the lock before they
    ///   truncate stay out. A process of this user, or of root, that ignores the lock can still do
    ///   it: Linux has no lock that stops it.
    /// - All `len` bytes are allocated now, and a shorter file is extended with zeros. So a full
    ///   disk is an error of this call and not a SIGBUS of a later write.
    ///
    /// A disk that cannot read a page raises SIGBUS too. Use [`MapRequest::shared`] for memory that
    /// no process at all can shrink: it is a memfd sealed against that.
    ///
    /// A shared mapping is never lent as a slice, because other processes may write to it. Requests
    /// read and write it, and a peer with the rights reaches it, through this process: no peer maps
    /// the file. To have the bytes on the disk, keep a clone of the file
    /// ([`File::try_clone`]), and call [`File::sync_data`].
    ///
    /// A NIC pins what it registers. Linux 6.5 and later refuse that for shared mappings of most
    /// file systems, because pages written by DMA could miss the disk; files on tmpfs and hugetlbfs
    /// are accepted. The device in software takes any file.
    ///
    /// ```
    /// use doorbell_alloc::{FileUse, Mapping};
    /// # let path = std::env::temp_dir().join(format!("doorbell-doc-{}", std::process::id()));
    /// let mut options = std::fs::OpenOptions::new();
    /// let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
    /// let journal = Mapping::file(file, 1 << 16, FileUse::Shared)?; // extended if it is shorter
    /// assert!(journal.report().shared());
    ///
    /// let again = std::fs::File::open(&path)?;
    /// let mut copy = Mapping::file(again, 1 << 16, FileUse::Copy)?;
    /// assert_eq!(copy.as_mut_slice().map(|bytes| bytes[0]), Some(0));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn file(file: File, len: usize, how: FileUse) -> Result<Self, FileError> {
        match how {
            FileUse::Copy => copy(&file, len),
            FileUse::Shared => share(&file, len),
        }
    }
}

/// The first `len` bytes of a file, in private memory.
fn copy(file: &File, len: usize) -> Result<Mapping, FileError> {
    let size = file.metadata().map_err(system("fstat", len, "none is known"))?.len();
    if size < len as u64 {
        return Err(FileError::Short { size, asked: len });
    }
    let mut memory = MapRequest::new(len).pages(Ask::Best).map()?;
    let bytes = memory.as_mut_slice().and_then(|bytes| bytes.get_mut(..len)).unwrap_or_default();
    let fix = "open the file for reading, and let nobody shorten it meanwhile";
    file.read_exact_at(bytes, 0).map_err(system("pread", len, fix))?;
    Ok(memory)
}

/// The first `len` bytes of a file, as they are.
fn share(file: &File, len: usize) -> Result<Mapping, FileError> {
    let page = super::limits::page_bytes(Pages::Plain);
    let rounded = match len {
        0 => Err(arith::SizeError::Zero),
        _ => arith::round_up(len, page),
    };
    let rounded = rounded.map_err(|source| MapError::Size { len, source })?;
    let metadata = file.metadata().map_err(system("fstat", len, "none is known"))?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular);
    }
    // SAFETY: it only reads a number.
    let user = unsafe { libc::geteuid() };
    if ![0, user].contains(&metadata.uid()) || metadata.mode() & 0o022 != 0 {
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        return Err(FileError::OthersMayWrite { owner, mode });
    }
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(FileError::Locked),
        Err(TryLockError::Error(error)) => {
            return Err(system("flock", len, "use a file system with locks")(error).into());
        }
    }
    allocate(file, len).map_err(system("posix_fallocate", len, "free space on the disk"))?;
    // The map keeps the open file, and so its lock, when the descriptor is closed.
    let memory = Memory::of_file(file, rounded)?;
    memory.keep_from_dumps()?;
    let given = MapReport::as_given(Pages::Plain);
    Ok(memory.into_mapping(MapReport { shared: true, dumped: false, ..given }))
}

/// Allocates the first `len` bytes of a file; extends it if it is shorter.
fn allocate(file: &File, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the call takes only numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
