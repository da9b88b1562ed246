//! Pages of this process: allocates new ones, and blocks writes to a range for a while.
#![expect(unsafe_code, reason = "moves pages")]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::c_int;

use crate::border::zeroed;

pub(crate) const PAGE: usize = 4096;
/// The longest range that is copied.
pub(crate) const LENGTH_MAX: usize = 1 << 30;

/// Pages that nobody knows yet; unmapped when dropped.
pub(crate) struct Pages {
    pub(crate) at: *mut c_void,
    pub(crate) length: usize,
}

impl Pages {
    pub(crate) fn new(how: c_int, fd: c_int, length: usize) -> Option<Pages> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = how | libc::MAP_POPULATE;
        // SAFETY: a new mapping, where the system wants it.
        let at = unsafe { libc::mmap(ptr::null_mut(), length, rights, how, fd, 0) };
        (at != libc::MAP_FAILED).then_some(Pages { at, length })
    }

    /// Moves the pages to that address with one system call. They replace the pages there.
    ///
    /// # Safety
    /// The pages at that address have the same length and the same bytes, and no thread writes to
    /// them meanwhile.
    pub(crate) unsafe fn move_to(self, start: usize) {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let to = start as *mut c_void;
        // SAFETY: as the caller says.
        let moved = unsafe { libc::mremap(self.at, self.length, self.length, how, to) };
        if moved != libc::MAP_FAILED {
            std::mem::forget(self);
        }
    }
}

// SAFETY: no thread owns pages.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody knows them.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// While this lives, threads that write to a range wait, and this thread takes no signals.
pub(crate) struct Held {
    faults: Option<OwnedFd>,
    signals: libc::sigset_t,
}

/// `struct uffdio_api`, `uffdio_register` and `uffdio_writeprotect` of <linux/userfaultfd.h>, and
/// their commands.
const API: [u64; 3] = [0xaa, WRITE_PROTECT | ALSO_SHARED, 0];
const WRITE_PROTECT: u64 = 1;
const ALSO_SHARED: u64 = 1 << 12;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const REGISTER_WRITES: u64 = 2;
const USER_MODE_ONLY: c_int = 1;

/// A descriptor that gets the faults of this process.
fn faults() -> Option<OwnedFd> {
    // Without privilege it holds up threads only while they run in the program, and a system call
    // that writes there fails.
    [0, USER_MODE_ONLY].into_iter().find_map(|mode| {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | mode) };
        let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: new, and nobody else's.
        let faults = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = API;
        // SAFETY: a structure of that command.
        (unsafe { libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) } == 0).then_some(faults)
    })
}

/// True if the system allows it at all.
pub(crate) fn can_hold() -> bool {
    faults().is_some()
}

impl Held {
    pub(crate) fn new(start: usize, length: usize) -> Option<Held> {
        let faults = faults()?;
        let (start, length) = (start as u64, length as u64);
        let mut all: libc::sigset_t = zeroed();
        let mut signals: libc::sigset_t = zeroed();
        // SAFETY: structures of those commands, and sets that are alive.
        unsafe {
            let mut wanted = [start, length, REGISTER_WRITES, 0];
            if libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, wanted.as_mut_ptr()) != 0 {
                return None;
            }
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut signals);
            let fd = faults.as_raw_fd();
            let held = Held { faults: Some(faults), signals };
            let mut protect = [start, length, 1];
            (libc::ioctl(fd, UFFDIO_WRITEPROTECT, protect.as_mut_ptr()) == 0).then_some(held)
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Lets all threads go on, and a handler of a signal write to the range.
        self.faults = None;
        // SAFETY: the set is alive.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, ptr::null_mut());
        }
    }
}
