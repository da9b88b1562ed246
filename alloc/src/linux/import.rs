//! Maps a memfd that another process sent, after checking it.
#![expect(unsafe_code, reason = "fcntl and fstatfs have no safe form in std")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::vec::Vec;

use super::error::{MapError, MemfdError, check, system};
use super::machine::Machine;
use super::memory::Memory;
use super::{lock, prefault, smaps};
use crate::arith;
use crate::mapping::Mapping;
use crate::pages::Pages;
use crate::report::MapReport;

impl Mapping {
    /// Maps `len` bytes of a memfd that a peer sent, and obtains every page of it now.
    ///
    /// All `len` bytes are allocated at once, so check the length that a peer claims before this
    /// call. The memfd itself is checked here: it must be sealed against shrinking and be at least
    /// `len` bytes long, because a touch beyond its end would kill this process.
    ///
    /// No seal stops a peer from punching holes, which read as zeros. To touch a hole in memory of
    /// the reserved pool needs a free huge page; without one the kernel sends SIGBUS. So take huge
    /// pages only from a peer that you trust not to do this.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, MapRequest, Mapping};
    ///
    /// // One process makes the memory and sends the descriptor over a Unix socket (SCM_RIGHTS).
    /// let ours = MapRequest::new(100_000).pages(Ask::Plain).shared(true).map()?;
    /// let sent = ours.memfd().ok_or("a shared mapping has a memfd")?.try_clone_to_owned()?;
    ///
    /// // The other process maps it: both see the same bytes.
    /// let theirs = Mapping::from_memfd(sent, 100_000)?;
    /// assert_eq!(theirs.len(), ours.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MemfdError::NotMemfd`], [`MemfdError::MayShrink`], [`MemfdError::Short`], and
    /// [`MemfdError::Map`] for a length of 0 or a failed call.
    pub fn from_memfd(fd: OwnedFd, len: usize) -> Result<Self, MemfdError> {
        let size_error = |source| MapError::Size { len, source };
        if len == 0 {
            return Err(size_error(arith::SizeError::Zero).into());
        }
        require_seal(&fd)?;
        // The seal has been checked, so the size cannot fall any more.
        let file = File::from(fd);
        let size = file.metadata().map_err(system("fstat", len, "none is known"))?.len();
        if size < len as u64 {
            return Err(MemfdError::Short { size, claimed: len });
        }
        let fd = OwnedFd::from(file);
        let page = page_bytes(&fd)?;
        let rounded = arith::round_up(len, page).map_err(size_error)?;
        let reserved = [Pages::Huge1G, Pages::Huge2M].into_iter().find(|p| p.bytes() == page);

        let pages = reserved.unwrap_or(Pages::Plain);
        let memory = Memory::shared(fd, rounded, pages, false)?;
        memory.keep_from_dumps()?;
        prefault::populate(&memory, pages, 1)?;
        let (locked, note) = match reserved {
            Some(_) => (true, None),
            None => lock::lock(&Machine::this(), &memory),
        };
        let ordinary = || smaps::look(memory.range()).ordinary_pages(rounded);
        let pages = reserved.unwrap_or_else(ordinary);
        let notes = Vec::from_iter(note);
        let given = MapReport::as_given(pages);
        let report = MapReport { locked, shared: true, dumped: false, notes, ..given };
        Ok(memory.into_mapping(report))
    }
}

/// Checks that the file behind `fd` can no longer shrink.
pub(super) fn require_seal(fd: &impl AsRawFd) -> Result<(), MemfdError> {
    // SAFETY: reading the seals takes only numbers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    check(seals).map_err(MemfdError::NotMemfd)?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MemfdError::MayShrink { seals });
    }
    Ok(())
}

/// The page size of a memfd: that of its file system, which for hugetlbfs is the huge page. The
/// block size of fstat(2) is no substitute: it is 2 MiB for ordinary memory that may get
/// transparent huge pages, and rounding to that would map past the end.
fn page_bytes(fd: &OwnedFd) -> Result<usize, MapError> {
    let failed = system("fstatfs", 0, "none is known");
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs writes one structure, and the pointer points to room for one.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) }).map_err(&failed)?;
    // SAFETY: fstatfs returned 0, so it wrote the whole structure.
    let page = unsafe { stat.assume_init() }.f_bsize;
    usize::try_from(page).map_err(|error| failed(io::Error::other(error)))
}
