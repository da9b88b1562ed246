//! [`Mapping`]: the owner of a range of bytes that a NIC may touch.
#![expect(unsafe_code, reason = "owns memory through a raw pointer and frees it through a hook")]

use core::fmt;
use core::ptr::{self, NonNull};
use core::slice;

use crate::pages::Pages;
use crate::report::MapReport;

/// Frees the memory of a [`Mapping`]: called once, with the owner and the range given to
/// [`Mapping::from_raw_parts`], on whichever thread drops the mapping.
pub type Release = unsafe fn(owner: *mut (), ptr: NonNull<u8>, len: usize);

/// Owns a range of bytes that a NIC may touch, until dropped.
///
/// The bytes are accessed by pointer: a NIC that knows the range may write at any time, so a
/// reference would be unsound. Whoever registers the range with a device keeps the mapping alive
/// until the range is deregistered.
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    fd: Option<i32>,
    offset: u64,
    report: MapReport,
    owner: *mut (),
    release: Release,
}

// SAFETY: the mapping is the only owner of its range. The caller of `from_raw_parts` promised that
// the hook and the owner may be used from any thread. Nothing else in it belongs to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives only plain values and a raw pointer, and access through that
// pointer needs `unsafe` of its own. To get the bytes as a slice needs `&mut`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A mapping over memory obtained elsewhere.
    ///
    /// `owner` is passed to `release` when the mapping is dropped, and not used before.
    ///
    /// # Safety
    /// - Until `release` is called, `ptr` is valid for reads and writes of `len` initialised bytes;
    ///   `len` is at most `isize::MAX`.
    /// - While the mapping exists, there is no reference to any of these bytes, and no other
    ///   process maps them.
    /// - `release(owner, ptr, len)` may be called once, from any thread.
    #[must_use]
    pub const unsafe fn from_raw_parts(
        ptr: NonNull<u8>,
        len: usize,
        pages: Pages,
        owner: *mut (),
        release: Release,
    ) -> Self {
        let report = MapReport::as_given(pages);
        Self { ptr, len, fd: None, offset: 0, report, owner, release }
    }

    /// As [`Mapping::from_raw_parts`], over plain pages of a memfd that others may map as well: the
    /// range begins `offset` bytes behind the beginning of the memfd `fd`.
    ///
    /// # Safety
    /// As for [`Mapping::from_raw_parts`], except that other processes may map the bytes. The range
    /// maps those bytes of the memfd, and `fd` stays open, until `release` is called.
    #[must_use]
    pub const unsafe fn from_memfd_parts(
        (ptr, len): (NonNull<u8>, usize),
        (fd, offset): (i32, u64),
        owner: *mut (),
        release: Release,
    ) -> Self {
        let mut report = MapReport::as_given(Pages::Plain);
        report.shared = true;
        Self { ptr, len, fd: Some(fd), offset, report, owner, release }
    }

    /// A mapping over a static buffer, for programs without an operating system. It has the length
    /// and the alignment of the buffer.
    #[must_use]
    pub const fn from_static(bytes: &'static mut [u8]) -> Self {
        let len = bytes.len();
        // SAFETY: the pointer of a slice is never null. The exclusive borrow is `'static` and is
        // consumed here, so the bytes are valid, initialised and ours. The hook does nothing.
        unsafe {
            let ptr = NonNull::new_unchecked(bytes.as_mut_ptr());
            Self::from_raw_parts(ptr, len, Pages::Plain, ptr::null_mut(), keep)
        }
    }

    /// A mapping made by the operating system.
    ///
    /// # Safety
    /// As for [`Mapping::from_raw_parts`], except that other processes may map the bytes if
    /// `report.shared`. `fd`, if any, stays open until `release` is called.
    #[cfg(all(feature = "std", target_os = "linux"))]
    pub(crate) unsafe fn from_system(
        (ptr, len): (NonNull<u8>, usize),
        fd: Option<i32>,
        report: MapReport,
        owner: *mut (),
        release: Release,
    ) -> Self {
        Self { ptr, len, fd, offset: 0, report, owner, release }
    }

    /// First byte of the range.
    #[must_use]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length, bytes. At least what was requested; a multiple of the page size if the operating
    /// system made the mapping.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the range is empty. Only a mapping made from parts or from a static can be.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pages under the range.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        self.report.pages()
    }

    /// What was requested, what was obtained, and how to fix the difference.
    #[must_use]
    pub const fn report(&self) -> &MapReport {
        &self.report
    }

    /// The file descriptor of the memfd behind a shared or readable mapping; `None` for a private
    /// one. It stays open until the mapping is dropped. Another process maps a shared one with
    /// `Mapping::from_memfd`.
    #[must_use]
    pub const fn fd(&self) -> Option<i32> {
        self.fd
    }

    /// Where the range begins in that memfd, in bytes. 0 for every mapping but those of
    /// [`Mapping::from_memfd_parts`].
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes, to fill them before a device or a peer knows of them. `None` if the mapping is
    /// shared, because another process could write at the same time.
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if self.report.shared() {
            return None;
        }
        // SAFETY: the constructor's caller promised `len` valid, initialised bytes that no other
        // process maps. `&mut self` excludes every other safe access. A device learns of them only
        // from the owner of the mapping, who lends no `&mut` from then on.
        Some(unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the constructor's caller promised that the hook may be called once with these
        // values. `drop` runs once, and nothing uses the range afterwards.
        unsafe { (self.release)(self.owner, self.ptr, self.len) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("fd", &self.fd)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// The hook for memory that is never released.
///
/// # Safety
/// None is needed: it does nothing.
unsafe fn keep(_owner: *mut (), _ptr: NonNull<u8>, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::boxed::Box;
    use std_alloc::vec;

    fn leaked(len: usize) -> &'static mut [u8] {
        Box::leak(vec![0_u8; len].into_boxed_slice())
    }

    #[test]
    fn a_static_buffer_is_a_mapping_of_its_own_length() {
        let mut mapping = Mapping::from_static(leaked(100));
        assert_eq!(mapping.len(), 100);
        assert_eq!(mapping.fd(), None);
        assert_eq!(mapping.pages(), Pages::Plain);
        let bytes = mapping.as_mut_slice().expect("private");
        bytes[99] = 7;
        // SAFETY: byte 99 lies in the range and no reference to it is alive.
        assert_eq!(unsafe { mapping.as_ptr().add(99).read() }, 7);
        assert!(Mapping::from_static(leaked(0)).is_empty());
    }

    #[test]
    fn the_hook_runs_once_and_with_the_values_given() {
        /// Counts its calls in the owner and frees the buffer.
        unsafe fn free(owner: *mut (), ptr: NonNull<u8>, len: usize) {
            // SAFETY: the test hands over a `u32` that outlives the mapping, and a boxed slice.
            unsafe {
                *owner.cast::<u32>() += 1;
                drop(Box::from_raw(ptr::slice_from_raw_parts_mut(ptr.as_ptr(), len)));
            }
        }
        let mut calls = 0_u32;
        let ptr = NonNull::from(leaked(64)).cast();
        // SAFETY: 64 leaked bytes that nothing else refers to; `free` undoes the leak.
        let mapping = unsafe {
            Mapping::from_raw_parts(ptr, 64, Pages::Plain, (&raw mut calls).cast(), free)
        };
        let moved = std_alloc::vec![mapping];
        drop(moved);
        assert_eq!(calls, 1);
    }

    #[test]
    fn a_mapping_may_move_and_be_shared_between_threads() {
        fn check<T: Send + Sync>() {}
        check::<Mapping>();
    }
}
