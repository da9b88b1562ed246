//! Makes memfds whose size can no longer change.
#![expect(unsafe_code, reason = "memfd_create and fcntl have no safe form in std")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::error::{MapError, SHORT_OF_MEMORY, check, system};
use crate::pages::Pages;

/// Nobody may shrink or grow the file under a mapping.
const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Nobody may change the seals. Unless others may write, nobody may map the file for writing any
/// more, nor punch holes in it; mappings that exist stay writable.
const fn last_seals(others_write: bool) -> i32 {
    let write = if others_write { 0 } else { libc::F_SEAL_FUTURE_WRITE };
    libc::F_SEAL_SEAL | write
}

/// Makes a memfd of `len` bytes, a multiple of the page size. [`finish`] seals it for good once it
/// is mapped.
pub(super) fn create(len: usize, pages: Pages) -> Result<OwnedFd, MapError> {
    const FIX: &str = "close files, or raise ulimit -n";
    let kind = match pages {
        Pages::Huge1G => libc::MFD_HUGETLB | libc::MFD_HUGE_1GB,
        Pages::Huge2M => libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        Pages::Transparent | Pages::Plain => 0,
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the name is a C string with static lifetime.
    let fd = unsafe { libc::memfd_create(c"doorbell".as_ptr(), flags) };
    check(fd).map_err(system("memfd_create", len, FIX))?;
    // SAFETY: the call returned a new descriptor that nothing else owns.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len as u64).map_err(system("ftruncate", len, SHORT_OF_MEMORY))?;
    let fd = OwnedFd::from(file);
    seal(&fd, SIZE_SEALS).map_err(system("fcntl(F_ADD_SEALS)", len, "run kernel 4.16 or newer"))?;
    Ok(fd)
}

/// Adds the last seals to a memfd of `len` bytes that this process has mapped.
pub(super) fn finish(fd: &OwnedFd, len: usize, others_write: bool) -> Result<(), MapError> {
    let failed = system("fcntl(F_SEAL_FUTURE_WRITE)", len, "run kernel 5.1 or newer");
    seal(fd, last_seals(others_write)).map_err(failed)
}

fn seal(fd: &OwnedFd, seals: i32) -> io::Result<()> {
    // SAFETY: adding seals takes only numbers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })
}
