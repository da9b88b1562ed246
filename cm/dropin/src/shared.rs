//! Program memory that peers can map. A peer then copies straight from it or to it, as it does with
//! memory of Doorbell's own; otherwise each byte passes through the link, and the owner has to work
//! for it.
//!
//! The pages under a region are moved into a memfd when they are registered for the first time, and
//! back into private memory with the last region of them. Other threads may use the pages
//! meanwhile: userfaultfd(2) holds up a thread that writes to them, until they have moved. So from
//! the end of `ibv_dereg_mr` on, no peer reaches them.
//!
//! Memory stays where it is if it is not private and anonymous, if it lies beside the stack of the
//! caller, if it holds the head of an arena of `malloc`, if it is long, or if the system does not
//! allow the move. The environment variable `DOORBELL_SHARE=0` forbids it. [`crate::forked`] keeps
//! the memory of a child process apart.
#![expect(unsafe_code, reason = "moves pages")]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr;

use libc::c_int;

use crate::forked::{Locked, RANGES, Range, lock_ranges};
use crate::maps::{Area, areas};
use crate::pages::{Held, LENGTH_MAX, PAGE, Pages};

/// The most ranges at a time; a peer maps no more.
const RANGES_MAX: usize = 256;
/// Bytes of a memfd beyond its range. They have no pages until the program makes the range longer
/// (`mremap`, as `realloc` does): beyond the end of the file its next access would end it.
const SPARE: u64 = 1 << 40;
/// Bytes around the stack pointer that this thread uses while pages move.
const STACK: usize = 64 << 10;

/// Where glibc's `malloc` has an arena for a thread, it begins at a multiple of this, and all of
/// this is mapped, accessible or not. The first page holds the arena's lock and counts.
const ARENA: usize = 64 << 20;

/// A region's part in a range of shared pages. When it is dropped, the region is gone.
pub(crate) struct Share {
    pub(crate) fd: c_int,
    /// Where the region begins in the memfd.
    pub(crate) offset: u64,
    /// The memfd's.
    inode: u64,
}

/// Lets peers map that memory, if that is possible.
pub(crate) fn share(addr: usize, length: usize) -> Option<Share> {
    let start = addr & !(PAGE - 1);
    let end = addr.checked_add(length)?.checked_next_multiple_of(PAGE)?;
    let mut ranges = lock_ranges();
    // The program may have unmapped a range whose region it has not deregistered, and have other
    // memory there now.
    let overlaps = |range: &&mut Range| range.start < end && start < range.end;
    let known = ranges.list().iter_mut().filter(overlaps).find(|range| range.is_in_place());
    let range = match known {
        Some(range) if range.start <= start && end <= range.end => range,
        Some(_) => return None,
        None => {
            let range = make(&ranges, start, end)?;
            ranges.list().push(range);
            ranges.list().last_mut()?
        }
    };
    range.users += 1;
    let offset = (addr - range.start) as u64;
    Some(Share { fd: range.file.as_raw_fd(), offset, inode: range.inode })
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut ranges = lock_ranges();
        let list = ranges.list();
        let Some(at) = list.iter().position(|range| range.inode == self.inode) else { return };
        list[at].users -= 1;
        if list[at].users == 0 {
            let range = list.swap_remove(at);
            if !move_back(&range) {
                ranges.leave(range.inode);
            }
        }
    }
}

fn make(ranges: &Locked<'_>, start: usize, end: usize) -> Option<Range> {
    let is_off = std::env::var_os("DOORBELL_SHARE").is_some_and(|value| value == "0");
    let here = ptr::from_ref(&is_off).addr();
    let is_stack = start < here + STACK && here - STACK < end;
    let is_too_much = end - start > LENGTH_MAX || ranges.count() >= RANGES_MAX;
    if is_off || is_stack || is_too_much || !RANGES.is_ready() {
        return None;
    }
    let is_private = |area: &Area| area.is_private && area.inode == 0;
    let areas = areas(start, end)?;
    if !areas.iter().all(is_private) || areas.iter().any(|area| has_arena(area, start)) {
        return None;
    }
    let length = end - start;
    let file = new_file(length)?;
    let copy = Pages::new(libc::MAP_SHARED, file.as_raw_fd(), length)?;
    // SAFETY: the program's own pages, which it keeps mapped. Their bytes stay as they are.
    let answer = unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_POPULATE_WRITE) };
    if answer != 0 {
        return None;
    }
    let held = Held::new(start, length)?;
    // From here on this thread must not write to the range: it would wait for itself. It calls
    // nothing that allocates.
    // SAFETY: both are as long. Nobody else knows the copy, and nobody writes to the range now.
    let moved = unsafe {
        ptr::copy_nonoverlapping(start as *const u8, copy.at.cast::<u8>(), length);
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(start as *mut c_void, length, rights, how, file.as_raw_fd(), 0)
    };
    drop(held);
    if moved == libc::MAP_FAILED {
        return None;
    }
    let inode = file.metadata().ok()?.ino();
    Some(Range { start, end, file, inode, users: 0 })
}

/// True if the area begins at or behind `start`, with the head of an arena. In the child of a fork,
/// glibc writes there before it calls [`crate::forked`]: in a shared page the parent would lose its
/// lock and its counts.
fn has_arena(area: &Area, start: usize) -> bool {
    if area.start < start || !area.start.is_multiple_of(ARENA) {
        return false;
    }
    let end = area.start + ARENA;
    areas(area.start, end).is_some_and(|all| all.last().is_some_and(|last| last.end == end))
}

/// The longest file that this process may make. To try a longer one would end it.
fn file_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    (unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0).then_some(limit.rlim_cur)
}

/// A memfd whose size stays, with all pages of its first `length` bytes.
fn new_file(length: usize) -> Option<File> {
    let size = (length as u64 + SPARE).min(file_max()?);
    if size < length as u64 {
        return None;
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string, and numbers.
    let fd = unsafe { libc::memfd_create(c"doorbell-program".as_ptr(), flags) };
    if fd < 0 {
        return None;
    }
    // SAFETY: new, and nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(size).ok()?;
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
    // SAFETY: numbers. All pages are made here, where a lack of memory is an error and no signal.
    let done = unsafe {
        libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
            && libc::fallocate(fd, 0, 0, length as libc::off_t) == 0
    };
    done.then_some(file)
}

/// Moves a range back into private memory. It stays shared if the program has unmapped a part of
/// it: there may be other memory now. False if some of its memfd is still mapped, or may be.
fn move_back(range: &Range) -> bool {
    let Some(areas) = range.areas() else { return false };
    let length = range.end - range.start;
    let moved = range.lies_in(&areas).then(|| {
        let copy = Pages::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, length)?;
        let held = Held::new(range.start, length)?;
        // SAFETY: as in `make`.
        unsafe {
            ptr::copy_nonoverlapping(range.start as *const u8, copy.at.cast(), length);
            copy.move_to(range.start);
        }
        drop(held);
        Some(())
    });
    let is_within = |area: &Area| range.start <= area.start && area.end <= range.end;
    areas.is_empty() || moved.flatten().is_some() && areas.iter().all(is_within)
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
