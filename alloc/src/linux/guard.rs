//! [`Guarded`]: memory with a page without rights right before and right behind it.
#![expect(unsafe_code, reason = "mmap at a chosen address; munmap")]

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Others may take the addresses between their choice and their use; then new ones are chosen.
const ATTEMPTS: usize = 16;

/// What lies between the guards.
#[derive(Debug)]
pub(super) struct Body<'a> {
    /// Bytes, a multiple of the page.
    pub(super) len: usize,
    /// The page that it starts on, a power of two.
    pub(super) align: usize,
    /// The memfd to map, or anonymous memory.
    pub(super) fd: Option<&'a OwnedFd>,
    /// For anonymous memory: the flags that choose its pages, or 0.
    pub(super) page_flags: i32,
}

/// Memory and its guards. The guards are of this process and of its page tables: they end it when
/// it runs past the memory. They do not stop a NIC, which has its own tables; and another
/// process that maps the same memfd has guards of its own, or none.
#[derive(Debug)]
pub(super) struct Guarded {
    body: Area,
    _low: Area,
    _high: Area,
}

impl Guarded {
    /// Maps `body` between guards of `guard` bytes, the machine's base page.
    ///
    /// The guards are ordinary memory whatever the pages of the body are, so they take nothing
    /// from a reserved pool. They are kept from one larger reservation, whose middle is given
    /// back and mapped anew at the same address, only if it is still free
    /// (`MAP_FIXED_NOREPLACE`): mapping over what is there would leave a hole that is not ours if
    /// it failed.
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

    /// First byte between the guards.
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

// SAFETY: an area is a range of addresses; unmapping it may happen on any thread.
unsafe impl Send for Area {}
// SAFETY: a shared reference gives the address and nothing else.
unsafe impl Sync for Area {}

impl Area {
    /// Addresses without memory and without rights.
    fn reserve(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let ptr = unsafe { libc::mmap(core::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        Self::checked(ptr, len)
    }

    /// Maps the body at `at`, if nothing is there.
    fn map_at(at: NonNull<u8>, body: &Body<'_>) -> io::Result<Self> {
        let (kind, fd) = match body.fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | body.page_flags, -1),
        };
        let flags = kind | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel replaces no mapping with this flag; before 4.17, which does not know
        // it, the address is a mere hint.
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

    /// Cuts the area in two: what is from `at` on is returned. `at` is at most its length.
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
            // SAFETY: the range was mapped by this file, belongs to this value alone, and nothing
            // uses it any more. It can only fail if the kernel cannot split an area; then the
            // addresses stay taken, which harms nobody.
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
    fn an_address_that_is_taken_is_never_replaced() {
        let ours = Guarded::map(&anonymous(PAGE, PAGE), PAGE).expect("addresses");
        // SAFETY: the byte is mapped for writing and only this test uses it.
        unsafe { ours.start().as_ptr().write(7) };
        let error = Area::map_at(ours.start(), &anonymous(PAGE, PAGE)).expect_err("taken");
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        // SAFETY: as above.
        assert_eq!(unsafe { ours.start().as_ptr().read() }, 7);
    }
}
