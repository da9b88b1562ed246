//! [`Guarded`]: memory with a page that may not be accessed right before and right after it.
#![expect(unsafe_code, reason = "mmap at a chosen address; munmap")]

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// How often addresses are chosen anew because another thread took them before they were used.
const ATTEMPTS: usize = 16;

/// The memory to map between the guards.
#[derive(Debug)]
pub(super) struct Body<'a> {
    /// Length, bytes: a multiple of the page size.
    pub(super) len: usize,
    /// Alignment of its start, a power of two.
    pub(super) align: usize,
    /// The memfd to map; `None` for anonymous memory.
    pub(super) fd: Option<&'a OwnedFd>,
    /// For anonymous memory: the mmap(2) flags that choose its pages, or 0.
    pub(super) page_flags: i32,
}

/// Memory and its guards. The guards are entries in this process's page tables: an access to them
/// ends the process. They do not stop a NIC, which has its own tables, nor another process that
/// maps the same memfd.
#[derive(Debug)]
pub(super) struct Guarded {
    body: Area,
    _low: Area,
    _high: Area,
}

impl Guarded {
    /// Maps `body` between guards of `guard` bytes, the machine's base page.
    ///
    /// The guards are ordinary memory whatever the pages of the body are, so they take nothing from
    /// a reserved pool. One larger range is reserved first. Then its middle is unmapped and mapped
    /// anew, only if the addresses are still free (`MAP_FIXED_NOREPLACE`). To map over the middle
    /// instead would leave a hole for others to take if it failed.
    pub(super) fn map(body: &Body<'_>, guard: usize) -> io::Result<Self> {
        let whole = 2 * guard + body.align;
        let whole = body.len.checked_add(whole).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut taken = io::Error::from_raw_os_error(libc::EEXIST);
        for _ in 0..ATTEMPTS {
            let mut head = Area::reserve(whole)?;
            let start = (head.ptr.addr().get() + guard).next_multiple_of(body.align);
            let mut low = head.split_off(start - guard - head.ptr.addr().get());
            let mut middle = low.split_off(guard);
            let mut high = middle.split_off(body.len);
            drop(high.split_off(guard));
            drop(head);
            let at = middle.ptr;
            drop(middle);
            match Area::map_at(at, body) {
                Ok(body) => return Ok(Self { body, _low: low, _high: high }),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => taken = error,
                Err(error) => return Err(error),
            }
        }
        Err(taken)
    }

    /// The first byte between the guards.
    pub(super) const fn start(&self) -> NonNull<u8> {
        self.body.ptr
    }
}

/// Mapped addresses, unmapped when dropped.
#[derive(Debug)]
struct Area {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: an area is a range of addresses, which may be unmapped on any thread.
unsafe impl Send for Area {}
// SAFETY: a shared reference gives only the address.
unsafe impl Sync for Area {}

impl Area {
    /// Reserves addresses without memory behind them.
    fn reserve(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let ptr = unsafe { libc::mmap(core::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        Self::checked(ptr, len)
    }

    /// Maps the body at `at`, if nothing is mapped there.
    fn map_at(at: NonNull<u8>, body: &Body<'_>) -> io::Result<Self> {
        let (kind, fd) = match body.fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | body.page_flags, -1),
        };
        let flags = kind | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: with this flag the kernel replaces no mapping. Kernels before 4.17 do not know it
        // and take the address as a hint.
        let ptr = unsafe { libc::mmap(at.as_ptr().cast(), body.len, rights, flags, fd, 0) };
        let area = Self::checked(ptr, body.len)?;
        if area.ptr == at { Ok(area) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    fn checked(ptr: *mut libc::c_void, len: usize) -> io::Result<Self> {
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { ptr, len })
    }

    /// Cuts the area in two and returns the part from `at` on. `at` is at most its length.
    fn split_off(&mut self, at: usize) -> Self {
        debug_assert!(at <= self.len, "{at} is beyond an area of {}", self.len);
        // SAFETY: `at` is at most the length of the area, which is one mapped range.
        let ptr = unsafe { self.ptr.add(at) };
        let rest = Self { ptr, len: self.len - at };
        self.len = at;
        rest
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: this file mapped the range, it belongs to this value alone, and nothing uses
            // it any more. The call fails only if the kernel cannot split an area; then the
            // addresses stay mapped, which is harmless.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn anonymous(len: usize, align: usize) -> Body<'static> {
        Body { len, align, fd: None, page_flags: 0 }
    }

    #[test]
    fn the_body_lies_between_its_guards_and_on_its_page() {
        for align in [PAGE, 2 << 20] {
            let guarded = Guarded::map(&anonymous(3 * PAGE, align), PAGE).expect("addresses");
            let start = guarded.start().addr().get();
            assert_eq!(start % align, 0);
            assert_eq!(guarded._low.ptr.addr().get(), start - PAGE);
            assert_eq!(guarded._high.ptr.addr().get(), start + 3 * PAGE);
            assert_eq!((guarded._low.len, guarded._high.len), (PAGE, PAGE));
        }
    }

    #[test]
    fn a_mapping_is_never_replaced() {
        let ours = Guarded::map(&anonymous(PAGE, PAGE), PAGE).expect("addresses");
        // SAFETY: the byte is mapped for writing and only this test uses it.
        unsafe { ours.start().as_ptr().write(7) };
        let error = Area::map_at(ours.start(), &anonymous(PAGE, PAGE)).expect_err("taken");
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        // SAFETY: as above.
        assert_eq!(unsafe { ours.start().as_ptr().read() }, 7);
    }
}
