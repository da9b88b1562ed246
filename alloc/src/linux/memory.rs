//! [`Memory`]: a mapped range before it becomes a [`Mapping`], and the calls made on it.
#![expect(unsafe_code, reason = "mmap, madvise and mlock on raw ranges; the release hook")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::boxed::Box;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};

use super::error::MapError;
use super::limits;
use crate::arith;
use crate::got::Got;
use crate::mapping::Mapping;
use crate::pages::Pages;

/// What helps when memory itself is short.
pub(super) const SHORT_OF_MEMORY: &str = "free memory, or raise the memory limit of this process";

/// A mapped range: `len` bytes from `skip` of the map, and the memfd behind it if shared.
#[derive(Debug)]
pub(super) struct Memory {
    map: MmapRaw,
    fd: Option<OwnedFd>,
    skip: usize,
    len: usize,
}

impl Memory {
    /// Maps private memory of `len` bytes, a multiple of the page.
    pub(super) fn private(len: usize, pages: Pages) -> Result<Self, MapError> {
        let failed = system("mmap", len, SHORT_OF_MEMORY);
        let mut options = MmapOptions::new();
        let mut slack = 0;
        match pages {
            Pages::Huge1G | Pages::Huge2M => {
                // A cast of 21 or 30 to u8 loses nothing.
                options.huge(Some(pages.bytes().trailing_zeros() as u8));
            }
            // Kernels before 6.7 place a map on any base page. A huge page's worth of address
            // space more, never touched, leaves room to start on a huge page, and keeps areas
            // of two mappings from being joined and counted as one.
            Pages::Transparent => slack = pages.bytes(),
            Pages::Plain => {}
        }
        let size = |source| MapError::Size { len, source };
        let whole = arith::round_up(len.saturating_add(slack), limits::page_bytes(Pages::Plain));
        let map = MmapRaw::from(options.len(whole.map_err(size)?).map_anon().map_err(failed)?);
        let skip = if slack == 0 { 0 } else { map.as_ptr().align_offset(slack) };
        Ok(Self { map, fd: None, skip, len })
    }

    /// Maps the first `len` bytes of a memfd, a multiple of its page.
    pub(super) fn shared(fd: OwnedFd, len: usize) -> Result<Self, MapError> {
        let map = MmapOptions::new().len(len).map_raw(&fd);
        let map = map.map_err(system("mmap", len, SHORT_OF_MEMORY))?;
        Ok(Self { map, fd: Some(fd), skip: 0, len })
    }

    /// Length of the range, bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The range.
    pub(super) fn range(&self) -> (NonNull<u8>, usize) {
        // SAFETY: `skip` is less than the map's length, which is `len` plus one huge page if
        // `skip` is not 0, and `len` otherwise; a map's address is never null.
        let ptr = unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(self.skip)) };
        (ptr, self.len)
    }

    /// Asks for transparent huge pages (`MADV_HUGEPAGE`).
    pub(super) fn prefer_huge(&self) -> Result<(), MapError> {
        const CURE: &str = "build the kernel with transparent huge pages";
        self.advise(libc::MADV_HUGEPAGE).map_err(system("madvise(MADV_HUGEPAGE)", self.len, CURE))
    }

    /// Keeps the range out of children (`MADV_DONTFORK`): after a fork, copy-on-write would move
    /// this process to other pages than those the NIC writes to.
    pub(super) fn keep_from_children(&self) -> Result<(), MapError> {
        const CURE: &str = "none is known: the call fails only on memory that is not mapped";
        self.advise(libc::MADV_DONTFORK).map_err(system("madvise(MADV_DONTFORK)", self.len, CURE))
    }

    /// Obtains every page now, keeping what is in it.
    pub(super) fn populate(&self, pages: Pages) -> Result<(), MapError> {
        let error = match self.advise(libc::MADV_POPULATE_WRITE) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => error,
            Err(error) => match self.populate_by_touch(pages, error) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
        };
        Err(system("madvise(MADV_POPULATE_WRITE)", self.len, SHORT_OF_MEMORY)(error))
    }

    /// Obtains every page on a kernel before 5.14, which answers EINVAL to
    /// `MADV_POPULATE_WRITE`. A touch that finds no page is a signal, so the pages of a memfd
    /// are allocated first, and private pages of the reserved pool, which cannot be, are refused.
    fn populate_by_touch(&self, pages: Pages, unknown: io::Error) -> io::Result<()> {
        match &self.fd {
            Some(fd) => {
                let len = libc::off_t::try_from(self.len).map_err(io::Error::other)?;
                // SAFETY: fallocate takes numbers and touches no memory of ours.
                answer(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len) })?;
            }
            None if pages.is_reserved() => return Err(unknown),
            None => {}
        }
        self.touch(limits::page_bytes(Pages::Plain));
        Ok(())
    }

    /// Writes to one byte a page without changing it: a peer may already use the memory.
    fn touch(&self, page: usize) {
        let (ptr, len) = self.range();
        for offset in (0..len).step_by(page) {
            // SAFETY: the offset lies in the range, which is mapped for writing and lives as
            // long as `self`; a byte is always aligned, and no reference to it exists here.
            let byte = unsafe { AtomicU8::from_ptr(ptr.as_ptr().add(offset)) };
            byte.fetch_or(0, Ordering::Relaxed);
        }
    }

    /// Locks the range into memory (mlock(2)).
    pub(super) fn lock(&self) -> io::Result<()> {
        let (ptr, len) = self.range();
        // SAFETY: mlock changes no byte; the range is mapped as long as `self` lives.
        answer(unsafe { libc::mlock(ptr.as_ptr().cast(), len) })
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        let (ptr, len) = self.range();
        // SAFETY: the range is mapped as long as `self` lives, and none of the three advices
        // used in this file (huge pages, not in children, populate) changes a byte of it.
        answer(unsafe { libc::madvise(ptr.as_ptr().cast(), len, advice) })
    }

    /// Hands the range over to a [`Mapping`], which unmaps it when dropped.
    pub(super) fn into_mapping(self, got: Got) -> Mapping {
        let range = self.range();
        let fd = self.fd.as_ref().map(AsRawFd::as_raw_fd);
        let owner = Box::into_raw(Box::new(self)).cast();
        // SAFETY: the range is mapped for reading and writing, zeroed or written by its maker,
        // until the box is dropped, which only `release` does; the box also holds `fd`; the map
        // and the descriptor may be closed from any thread. The map is private unless there is
        // a memfd, and then `got.shared` is set by both callers.
        unsafe { Mapping::from_system(range, fd, got, owner, release) }
    }
}

impl Mapping {
    /// The memfd behind a shared mapping, borrowed for as long as the mapping lives.
    #[must_use]
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: `fd` is open until the mapping is released, and the borrow ends before that.
        self.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

/// Unmaps the range and closes the memfd.
///
/// # Safety
/// `owner` is the box that `into_mapping` gave away, and nothing uses its range any more.
unsafe fn release(owner: *mut (), _ptr: NonNull<u8>, _len: usize) {
    // SAFETY: by the contract above the box is ours to take back, once.
    drop(unsafe { Box::from_raw(owner.cast::<Memory>()) });
}

/// The result of a call that answers 0, or -1 and errno.
pub(super) fn answer(code: i32) -> io::Result<()> {
    if code == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the error of a failed call.
pub(super) fn system(
    call: &'static str,
    len: usize,
    cure: &'static str,
) -> impl Fn(io::Error) -> MapError {
    move |source| MapError::System { call, len, cure, source }
}

#[cfg(test)]
mod tests {
    use super::super::memfd;
    use super::*;

    #[test]
    fn transparent_memory_starts_on_a_huge_page() {
        let len = 2 * Pages::Transparent.bytes();
        let memory = Memory::private(len, Pages::Transparent).expect("address space");
        let (ptr, got) = memory.range();
        assert_eq!(got, len);
        assert_eq!(ptr.addr().get() % Pages::Transparent.bytes(), 0);
        let end = ptr.addr().get() + len;
        let map_end = memory.map.as_ptr().addr() + memory.map.len();
        assert!(end < map_end, "a gap to the next area must remain");
    }

    #[test]
    fn touching_keeps_what_is_in_the_pages() {
        let fd = memfd::create(8192, Pages::Plain).expect("memfd");
        let memory = Memory::shared(fd, 8192).expect("map");
        let last = memory.range().0.as_ptr().wrapping_add(4096);
        // SAFETY: the second page is mapped and only this test uses it.
        unsafe { last.write(0xa5) };
        memory.populate_by_touch(Pages::Plain, io::ErrorKind::Other.into()).expect("touch");
        // SAFETY: as above.
        assert_eq!(unsafe { last.read() }, 0xa5);
    }

    #[test]
    fn an_old_kernel_is_not_trusted_with_private_reserved_pages() {
        let memory = Memory::private(4096, Pages::Plain).expect("map");
        let unknown = io::Error::from_raw_os_error(libc::EINVAL);
        let error = memory.populate_by_touch(Pages::Huge2M, unknown).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
