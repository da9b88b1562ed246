//! Memory and notifiers of other processes, opened by the names of their files.
//!
//! A process of the same user can open `/proc/PID/fd/N`. So no file has to be handed over, and
//! files that are newer than the connection are found as well. A file that is found is not trusted:
//! it must have the named inode, and be a memfd that is sealed against shrinking and has all its
//! pages.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use doorbell_alloc::{Mapping, View};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::wake::Notifier;

use super::sys::{self, Uncancelled, seal, seals};
use crate::{DIRECTORY_BYTES, FileName, Openers, ReadOnly, RemoteMap};

/// The most bytes of a peer's region that are mapped, because mapping builds the page tables for
/// all of them at once.
const VIEW_MAX: u64 = 64 << 30;

/// Makes a notifier; `None` if there are no descriptors left. It is a pipe whose two ends are one
/// descriptor: senders of datagrams open a notifier by its name, which an eventfd does not allow.
pub(super) fn notifier() -> Option<Notifier> {
    let (reader, _writer) = io::pipe().ok()?;
    notifier_from_peer(reader).ok()
}

/// Opens the notifier that another process of this user names.
pub(super) fn open_notifier(process: i32, name: FileName) -> Option<Notifier> {
    notifier_at(&format!("/proc/{process}/fd/{}", name.fd), Some(name.inode)).ok()
}

/// The notifier behind a descriptor that a peer handed over. An error if it is something else, or
/// this process has no descriptors left.
pub(super) fn notifier_from_peer(fd: impl AsFd) -> io::Result<Notifier> {
    notifier_at(&format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), None)
}

/// Opens a notifier again, so that no peer can make its reads and writes block. It is open for both
/// ends, so a write never fails for lack of a reader.
fn notifier_at(path: &str, inode: Option<u64>) -> io::Result<Notifier> {
    let _uncancelled = Uncancelled::new();
    let look = look_at(path)?;
    let found = look.metadata()?;
    let named = inode.is_none_or(|inode| found.ino() == inode);
    if !named || !found.file_type().is_fifo() || found.uid() != sys::user() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let here = format!("/proc/self/fd/{}", look.as_raw_fd());
    let mut both = OpenOptions::new();
    let file = both.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(here)?;
    let ring = |fd| {
        // If it fails, the pipe is full and the notifier has rung already.
        let _ = sys::write(fd, &[1]);
    };
    let clear = |fd| {
        let mut rings = [0_u8; 256];
        // Bounded, because somebody may ring all the time.
        for _ in 0..16 {
            match sys::read(fd, &mut rings) {
                Ok(got) if got == rings.len() => {}
                _ => return,
            }
        }
    };
    Ok(Notifier::new(file.as_raw_fd(), Arc::new(file), ring, clear))
}

/// Looks at a file without opening it: a peer may name a device or a pipe.
fn look_at(path: &str) -> io::Result<File> {
    let mut look = OpenOptions::new();
    look.read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)
}

/// The name of a file of this process.
pub(super) fn name_of(fd: RawFd) -> Option<FileName> {
    let number = u32::try_from(fd).ok()?;
    Some(FileName { fd: number, inode: sys::inode(fd)? })
}

/// Opens the memfd that another process of this user names.
fn open(process: i32, name: FileName, write: bool) -> Option<File> {
    let path = format!("/proc/{process}/fd/{}", name.fd);
    let look = look_at(&path).ok()?;
    let found = look.metadata().ok()?;
    if found.ino() != name.inode || !found.is_file() || found.uid() != sys::user() {
        return None;
    }
    let here = format!("/proc/self/fd/{}", look.as_raw_fd());
    let file = OpenOptions::new().read(true).write(write).open(here).ok()?;
    seals(&file).is_some_and(|seals| seals & libc::F_SEAL_SHRINK != 0).then_some(file)
}

/// True for memory of reserved huge pages. If a peer punches a hole there, and no huge page is left
/// to fill it, the next access kills this process.
fn may_lose_pages(file: &File) -> bool {
    sys::may_be_huge(file)
}

/// Maps a peer's region; `None` if it consists of huge pages (see [`may_lose_pages`]), or lacks
/// pages, which this process would have to provide.
pub(super) fn attach(process: i32, name: FileName, len: u64) -> Option<Mapping> {
    let _uncancelled = Uncancelled::new();
    let file = open(process, name, true)?;
    let found = file.metadata().ok()?;
    let whole = found.blocks() * 512 >= len;
    if len == 0 || len > VIEW_MAX || !whole {
        return None;
    }
    let len = usize::try_from(len).ok()?;
    Mapping::from_memfd(file.into(), len).ok().filter(|mapping| !mapping.pages().is_reserved())
}

/// Maps a peer's region for reading, with the checks of [`attach`]. Reserved huge pages are allowed
/// if the file is sealed against future writes, because then nobody can punch holes in it.
pub(super) fn look(process: i32, name: FileName, len: u64) -> Option<ReadOnly> {
    let _uncancelled = Uncancelled::new();
    let file = open(process, name, false)?;
    let found = file.metadata().ok()?;
    let whole = found.blocks() * 512 >= len;
    if len == 0 || len > VIEW_MAX || !whole || (may_lose_pages(&file) && !is_final(&file)) {
        return None;
    }
    // The file has all its pages, or gets pages of the ordinary size. It may have some beyond its
    // end, where a read kills this process: a view does not go there.
    View::of_memfd(&file, usize::try_from(len).ok()?).ok().and_then(ReadOnly::over)
}

/// True if nobody may map the file for writing any more, nor punch holes in it.
fn is_final(file: &File) -> bool {
    seals(file).is_some_and(|seals| seals & libc::F_SEAL_FUTURE_WRITE != 0)
}

/// The table of regions of a device. Its peers read it, and only this device writes it.
pub(super) struct Directory {
    pub(super) mapping: Mapping,
    pub(super) name: FileName,
}

impl Directory {
    pub(super) fn new() -> Result<Directory, CmError> {
        let failed = |error: &io::Error| CmError::from_io("a table of regions", error);
        let file = create().map_err(|error| failed(&error))?;
        let other = file.try_clone().map_err(|error| failed(&error))?;
        let mapping =
            Mapping::from_memfd(OwnedFd::from(file), DIRECTORY_BYTES).map_err(|error| {
                CmError::new(
                    Code::from_errno(error.errno()),
                    "a table of regions",
                    error.to_string(),
                )
            })?;
        // The mapping just made stays writable; later ones are not.
        seal(&other, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL).map_err(|e| failed(&e))?;
        let name = mapping.fd().and_then(name_of);
        let name = name.ok_or_else(|| failed(&io::Error::last_os_error()))?;
        Ok(Directory { mapping, name })
    }
}

/// A memfd of the directory's size, which cannot change.
fn create() -> io::Result<File> {
    let file = sys::memfd(c"doorbell-regions", libc::MFD_ALLOW_SEALING)?;
    file.set_len(DIRECTORY_BYTES as u64)?;
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// The memory of a peer's device, if its directory can be read here. If not, the peer's own polls
/// carry out the requests.
pub(super) fn remote_map(process: i32, directory: FileName) -> Option<RemoteMap> {
    let file = open(process, directory, false)?;
    if may_lose_pages(&file) {
        return None;
    }
    // Its file has pages of the ordinary size, so reading it never fails.
    let table = View::of_memfd(&file, DIRECTORY_BYTES).ok()?;
    RemoteMap::over(table, process, Openers { attach, look, notifier: open_notifier })
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_alloc::{Ask, MapRequest};

    fn me() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    fn region(bytes: usize) -> (Mapping, FileName) {
        let memory = MapRequest::new(bytes).pages(Ask::Plain).shared(true).map().unwrap();
        let name = name_of(memory.fd().unwrap()).unwrap();
        (memory, name)
    }

    #[test]
    fn a_file_other_than_the_named_one_is_not_mapped() {
        let (_memory, name) = region(8192);
        let other = FileName { inode: name.inode + 1, ..name };
        assert!(attach(me(), other, 8192).is_none(), "another inode");
        assert!(attach(me(), name, 1 << 20).is_none(), "longer than the file");
        assert!(attach(me(), name, 0).is_none());
        let (reader, _writer) = std::io::pipe().unwrap();
        let pipe = name_of(reader.as_raw_fd()).unwrap();
        assert!(attach(me(), pipe, 8192).is_none(), "a pipe");
        let file = File::open("/proc/self/exe").unwrap();
        let plain = name_of(file.as_raw_fd()).unwrap();
        assert!(attach(me(), plain, 4096).is_none(), "a file that may shrink");
    }

    /// A file with holes would be filled at our cost.
    #[test]
    fn a_sparse_file_is_not_mapped() {
        let sparse = MapRequest::new(1 << 20).pages(Ask::Plain).shared(true);
        let memory = sparse.lock(false).prefault(false).map().unwrap();
        let name = name_of(memory.fd().unwrap()).unwrap();
        assert!(attach(me(), name, 1 << 20).is_none());
    }

    /// A memfd of huge pages needs none before it is mapped.
    #[test]
    fn memory_that_may_lose_its_pages_is_known() {
        let create = |flags| sys::memfd(c"pages", flags);
        assert!(!may_lose_pages(&create(0).unwrap()));
        // Not every kernel has huge pages.
        if let Ok(huge) = create(libc::MFD_HUGETLB) {
            assert!(may_lose_pages(&huge));
        }
    }

    #[test]
    fn nobody_else_can_write_to_a_directory() {
        let directory = Directory::new().unwrap();
        let file = open(me(), directory.name, true).unwrap();
        assert!(Mapping::from_memfd(file.into(), DIRECTORY_BYTES).is_err());
        assert!(remote_map(me(), directory.name).is_some());
        assert!(remote_map(me(), FileName { inode: 1, ..directory.name }).is_none());
    }
}
