//! memfds: made and sealed here, or received from a peer and checked.
#![expect(unsafe_code, reason = "memfd_create, fcntl and fstatfs have no safe form in std")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::vec::Vec;

use super::error::{MapError, MemfdError};
use super::machine::Machine;
use super::memory::{Memory, SHORT_OF_MEMORY, answer, system};
use super::{prefault, request, smaps};
use crate::arith;
use crate::got::Got;
use crate::mapping::Mapping;
use crate::pages::Pages;

/// Nobody may shrink the file under a mapping, grow it, or change these rules.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A sealed memfd of `len` bytes, a multiple of the page.
pub(super) fn create(len: usize, pages: Pages) -> Result<OwnedFd, MapError> {
    const CURE: &str = "close files, or raise ulimit -n";
    let kind = match pages {
        Pages::Huge1G => libc::MFD_HUGETLB | libc::MFD_HUGE_1GB,
        Pages::Huge2M => libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        Pages::Transparent | Pages::Plain => 0,
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the name is a C string with static lifetime.
    let fd = unsafe { libc::memfd_create(c"doorbell".as_ptr(), flags) };
    answer(fd).map_err(system("memfd_create", len, CURE))?;
    // SAFETY: the call answered a new descriptor that nothing else owns.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len as u64).map_err(system("ftruncate", len, SHORT_OF_MEMORY))?;
    // SAFETY: adding seals takes numbers and touches no memory of ours.
    answer(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }).map_err(system(
        "fcntl(F_ADD_SEALS)",
        len,
        "run kernel 4.16 or newer",
    ))?;
    Ok(file.into())
}

impl Mapping {
    /// Maps `len` bytes of a memfd that a peer sent, and obtains every page of it now.
    ///
    /// All `len` bytes are paid for at once: bound what a peer may claim before calling this.
    /// Beyond that the peer is not trusted: the memfd must be sealed against shrinking and must
    /// have the bytes claimed, or touching them would kill this process.
    ///
    /// What no seal prevents: a peer can punch holes, which read as zeros. To fill a hole in
    /// pages of the reserved pool takes a free huge page, and without one the touch is a signal
    /// (SIGBUS); so take such memory only from a peer that may as well end this process.
    ///
    /// # Errors
    /// [`MemfdError::NotMemfd`], [`MemfdError::MayShrink`], [`MemfdError::Short`], and
    /// [`MemfdError::Map`] for a length of 0 or a failed call.
    pub fn from_memfd(fd: OwnedFd, len: usize) -> Result<Self, MemfdError> {
        let size_error = |source| MapError::Size { len, source };
        if len == 0 {
            return Err(size_error(arith::SizeError::Zero).into());
        }
        check_seals(&fd)?;
        // After the seals: from here on the size cannot fall.
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
            None => request::lock(&Machine::this(), &memory),
        };
        let ordinary = || smaps::look(memory.range()).ordinary_pages(rounded);
        let got = reserved.unwrap_or_else(ordinary);
        let notes = Vec::from_iter(note);
        let got = Got { locked, shared: true, dumped: false, notes, ..Got::as_given(got) };
        Ok(memory.into_mapping(got))
    }
}

/// Whether the file behind `fd` can no longer shrink.
fn check_seals(fd: &OwnedFd) -> Result<(), MemfdError> {
    // SAFETY: reading the seals takes numbers and touches no memory of ours.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    answer(seals).map_err(MemfdError::NotMemfd)?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MemfdError::MayShrink { seals });
    }
    Ok(())
}

/// The page of a memfd: that of its file system, which for hugetlbfs is the huge page. (fstat's
/// block size is no guide: it is 2 MiB for ordinary memory that may become transparent huge
/// pages, and rounding to that would map past the end.)
fn page_bytes(fd: &OwnedFd) -> Result<usize, MapError> {
    let failed = system("fstatfs", 0, "none is known");
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs writes one statfs through the pointer, which points to room for one.
    answer(unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) }).map_err(&failed)?;
    // SAFETY: fstatfs answered 0, so it wrote the whole structure.
    let page = unsafe { stat.assume_init() }.f_bsize;
    usize::try_from(page).map_err(|error| failed(io::Error::other(error)))
}
