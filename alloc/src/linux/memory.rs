//! [`Memory`]: a mapped range before it becomes a [`Mapping`], and the system calls on it.
#![expect(unsafe_code, reason = "madvise and mlock on raw ranges; the release hook")]

use core::ptr::NonNull;
use std::boxed::Box;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};

use super::error::{MapError, SHORT_OF_MEMORY, check, system};
use super::guard::{Body, Guarded};
use super::limits;
use super::memfd;
use crate::arith;
use crate::mapping::Mapping;
use crate::pages::Pages;
use crate::report::MapReport;

/// For advice that fails only on memory that is not mapped.
const NO_FIX: &str = "none is known: the call fails only on memory that is not mapped";

/// A mapped range of `len` bytes from `start`, and the memfd behind it if it is shared.
#[derive(Debug)]
pub(super) struct Memory {
    _map: Map,
    start: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: `start` lies in the map, which may be used and dropped on any thread.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference the range is only read as plain values and passed to the
// kernel.
unsafe impl Sync for Memory {}

/// Unmaps the range when it is dropped.
#[derive(Debug)]
enum Map {
    Alone { _map: MmapRaw },
    Guarded { _map: Guarded },
}

impl Memory {
    /// Maps private memory of `len` bytes, a multiple of the page size.
    pub(super) fn private(len: usize, pages: Pages, guarded: bool) -> Result<Self, MapError> {
        let failed = system("mmap", len, SHORT_OF_MEMORY);
        let size_bits = pages.bytes().trailing_zeros();
        if guarded {
            let page_flags = match pages {
                Pages::Huge1G | Pages::Huge2M => {
                    libc::MAP_HUGETLB | (size_bits << libc::MAP_HUGE_SHIFT) as i32
                }
                Pages::Transparent | Pages::Plain => 0,
            };
            return Self::between_guards(len, pages, page_flags, None).map_err(failed);
        }
        let mut options = MmapOptions::new();
        let mut slack = 0;
        match pages {
            Pages::Huge1G | Pages::Huge2M => {
                // 21 or 30: the cast to u8 is lossless.
                options.huge(Some(size_bits as u8));
            }
            // Kernels before 6.7 place a map on any base page. One huge page of additional address
            // space, never touched, leaves room to start on a huge page boundary. It also keeps the
            // kernel from joining the areas of two mappings and counting them as one.
            Pages::Transparent => slack = pages.bytes(),
            Pages::Plain => {}
        }
        let size = |source| MapError::Size { len, source };
        let whole = arith::round_up(len.saturating_add(slack), limits::page_bytes(Pages::Plain));
        let map = MmapRaw::from(options.len(whole.map_err(size)?).map_anon().map_err(failed)?);
        let skip = if slack == 0 { 0 } else { map.as_ptr().align_offset(slack) };
        // SAFETY: `skip` is at most `slack`, and the map is `slack` longer than `len`.
        let start = unsafe { map.as_mut_ptr().add(skip) };
        Self::alone(map, start, len, None)
    }

    /// Maps the first `len` bytes of a memfd, a multiple of its page size.
    pub(super) fn shared(
        fd: OwnedFd,
        len: usize,
        pages: Pages,
        guarded: bool,
    ) -> Result<Self, MapError> {
        let failed = system("mmap", len, SHORT_OF_MEMORY);
        if guarded {
            return Self::between_guards(len, pages, 0, Some(fd)).map_err(failed);
        }
        let map = MmapOptions::new().len(len).map_raw(&fd).map_err(failed)?;
        let start = map.as_mut_ptr();
        Self::alone(map, start, len, Some(fd))
    }

    /// Seals the memfd for good: see [`memfd::finish`].
    pub(super) fn seal(&self, others_write: bool) -> Result<(), MapError> {
        self.fd.as_ref().map_or(Ok(()), |fd| memfd::finish(fd, self.len, others_write))
    }

    /// Maps the first `len` bytes of a file, a multiple of the page size. No peer gets the file:
    /// there is no descriptor to send.
    pub(super) fn of_file(file: &File, len: usize) -> Result<Self, MapError> {
        const FIX: &str = "open the file for reading and writing";
        let map = MmapOptions::new().len(len).map_raw(file);
        let map = map.map_err(system("mmap", len, FIX))?;
        let start = map.as_mut_ptr();
        Self::alone(map, start, len, None)
    }

    fn alone(
        map: MmapRaw,
        start: *mut u8,
        len: usize,
        fd: Option<OwnedFd>,
    ) -> Result<Self, MapError> {
        let null = || io::ErrorKind::AddrNotAvailable.into();
        let start = NonNull::new(start).ok_or_else(null);
        let start = start.map_err(system("mmap", len, SHORT_OF_MEMORY))?;
        Ok(Self { _map: Map::Alone { _map: map }, start, len, fd })
    }

    fn between_guards(
        len: usize,
        pages: Pages,
        page_flags: i32,
        fd: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let align = limits::page_bytes(pages);
        let body = Body { len, align, fd: fd.as_ref(), page_flags };
        let map = Guarded::map(&body, limits::page_bytes(Pages::Plain))?;
        Ok(Self { start: map.start(), _map: Map::Guarded { _map: map }, len, fd })
    }

    /// Length of the range, bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The range.
    pub(super) const fn range(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }

    /// The memfd.
    pub(super) const fn fd(&self) -> Option<&OwnedFd> {
        self.fd.as_ref()
    }

    /// Asks for transparent huge pages (`MADV_HUGEPAGE`).
    pub(super) fn prefer_huge(&self) -> Result<(), MapError> {
        const CURE: &str = "build the kernel with transparent huge pages";
        let advised = self.advise(0, self.len, libc::MADV_HUGEPAGE);
        advised.map_err(system("madvise(MADV_HUGEPAGE)", self.len, CURE))
    }

    /// Keeps the range out of child processes (`MADV_DONTFORK`). Otherwise copy-on-write after a
    /// fork could move this process to other pages than those the NIC writes to.
    pub(super) fn keep_from_children(&self) -> Result<(), MapError> {
        let advised = self.advise(0, self.len, libc::MADV_DONTFORK);
        advised.map_err(system("madvise(MADV_DONTFORK)", self.len, NO_FIX))
    }

    /// Keeps the range out of core dumps (`MADV_DONTDUMP`).
    pub(super) fn keep_from_dumps(&self) -> Result<(), MapError> {
        let advised = self.advise(0, self.len, libc::MADV_DONTDUMP);
        advised.map_err(system("madvise(MADV_DONTDUMP)", self.len, NO_FIX))
    }

    /// Locks the range into memory (mlock(2)).
    pub(super) fn lock(&self) -> io::Result<()> {
        let (ptr, len) = self.range();
        // SAFETY: mlock changes no byte; the range is mapped as long as `self` lives.
        check(unsafe { libc::mlock(ptr.as_ptr().cast(), len) })
    }

    /// Calls madvise(2) for `len` bytes of the range, from offset `at`.
    pub(super) fn advise(&self, at: usize, len: usize, advice: i32) -> io::Result<()> {
        debug_assert!(at <= self.len && len <= self.len - at, "{at} and {len} of {}", self.len);
        let ptr = self.start.as_ptr().wrapping_add(at);
        // SAFETY: the range is mapped as long as `self` lives, and no advice given in this crate
        // (huge pages, not in children, not in dumps, populate) changes a byte of it.
        check(unsafe { libc::madvise(ptr.cast(), len, advice) })
    }

    /// Turns the range into a [`Mapping`], which unmaps it when dropped.
    pub(super) fn into_mapping(self, report: MapReport) -> Mapping {
        let range = self.range();
        let fd = self.fd.as_ref().map(AsRawFd::as_raw_fd);
        let owner = Box::into_raw(Box::new(self)).cast();
        // SAFETY: the range is mapped for reading and writing, and initialised, until the box is
        // dropped, which only `release` does. The box also holds `fd`. The map and the descriptor
        // may be closed from any thread. The map is private, or nobody else can write to it, unless
        // the callers have set `report.shared`.
        unsafe { Mapping::from_system(range, fd, report, owner, release) }
    }
}

impl Mapping {
    /// The memfd behind a shared or readable mapping, borrowed from the mapping; `None` for a
    /// private one.
    #[must_use]
    pub fn memfd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: `fd` is open until the mapping is released, and the borrow ends before that.
        self.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

/// Unmaps the range and closes the memfd.
///
/// # Safety
/// `owner` is the box that `into_mapping` made, and nothing uses its range any more.
unsafe fn release(owner: *mut (), _ptr: NonNull<u8>, _len: usize) {
    // SAFETY: by the contract above, the box is taken back once, and nobody else uses it.
    drop(unsafe { Box::from_raw(owner.cast::<Memory>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparent_memory_starts_on_a_huge_page() {
        let len = 2 * Pages::Transparent.bytes();
        for guarded in [false, true] {
            let memory = Memory::private(len, Pages::Transparent, guarded).expect("addresses");
            let (ptr, got) = memory.range();
            assert_eq!(got, len);
            assert_eq!(ptr.addr().get() % Pages::Transparent.bytes(), 0);
            if let Map::Alone { _map } = &memory._map {
                let map_end = _map.as_ptr().addr() + _map.len();
                assert!(ptr.addr().get() + len < map_end, "a gap to the next area must remain");
            }
        }
    }
}
