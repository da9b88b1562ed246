//! What fork(2) means for shared pages ([`crate::shared`]): the child must get a copy, as of all
//! private memory. The copies are made before the fork, and the child puts them in place.
#![expect(unsafe_code, reason = "calls in a child of fork")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::MAP_ANONYMOUS;

use crate::maps::{Area, areas_of};
use crate::pages::{LENGTH_MAX, PAGE, Pages, can_hold};

/// Pages that peers may map.
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) file: File,
    pub(crate) inode: u64,
    /// Regions that lie in it.
    pub(crate) users: usize,
}

impl Range {
    /// Where it is mapped now: the program may have moved it, or made it longer. `None` if the map
    /// cannot be read.
    pub(crate) fn areas(&self) -> Option<Vec<Area>> {
        areas_of(&[self.inode])
    }

    /// True if these areas have all of it where it was.
    pub(crate) fn lies_in(&self, areas: &[Area]) -> bool {
        let mut next = self.start;
        for area in areas.iter().filter(|area| area.end > self.start && area.start < self.end) {
            let skip = area.start.wrapping_sub(self.start) as u64;
            if area.start > next || area.offset != skip {
                return false;
            }
            next = area.end;
        }
        next >= self.end
    }

    /// True if the program has not unmapped it, nor a part of it. False if that is not known.
    pub(crate) fn is_in_place(&self) -> bool {
        self.areas().is_some_and(|areas| self.lies_in(&areas))
    }

    /// Where it was mapped; `None` if that cannot be read now.
    fn recorded(&self) -> Option<Area> {
        let (start, end) = (self.start, self.end);
        // SAFETY: changes no byte. It fails if a page is not mapped, or may not be read.
        let answer =
            unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_POPULATE_READ) };
        (answer == 0).then_some(Area {
            start,
            end,
            is_private: false,
            inode: self.inode,
            offset: 0,
        })
    }
}

/// All ranges of this process.
pub(crate) static RANGES: Ranges = Ranges {
    locked: AtomicBool::new(false),
    inner: UnsafeCell::new(Inner { list: Vec::new(), left: Vec::new(), copies: Vec::new() }),
};

/// A lock that one call takes and another gives back: those before and after a fork.
pub(crate) struct Ranges {
    locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

struct Inner {
    list: Vec<Range>,
    /// The memfds that may still be mapped although their ranges have no regions left.
    left: Vec<u64>,
    /// Between the calls before and after a fork.
    copies: Vec<(usize, Pages)>,
}

// SAFETY: whoever has set `locked` has `inner` alone.
unsafe impl Sync for Ranges {}

/// The list of ranges, locked.
pub(crate) struct Locked<'a>(&'a Ranges);

pub(crate) fn lock_ranges() -> Locked<'static> {
    while RANGES.locked.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    Locked(&RANGES)
}

impl Locked<'_> {
    pub(crate) fn list(&mut self) -> &mut Vec<Range> {
        // SAFETY: locked.
        unsafe { &mut (*self.0.inner.get()).list }
    }

    pub(crate) fn count(&self) -> usize {
        // SAFETY: locked.
        unsafe { (*self.0.inner.get()).list.len() }
    }

    fn left(&mut self) -> &mut Vec<u64> {
        // SAFETY: locked.
        unsafe { &mut (*self.0.inner.get()).left }
    }

    /// Some of a range's memfd stays mapped, although the range has no more regions.
    pub(crate) fn leave(&mut self, inode: u64) {
        self.left().push(inode);
        // Without the map all stay in the list.
        let Some(mapped) = areas_of(self.left()) else { return };
        self.left().retain(|inode| mapped.iter().any(|area| area.inode == *inode));
    }

    /// All shared pages of this process. If the map cannot be read: the ranges where they were
    /// recorded.
    fn areas(&mut self) -> Vec<Area> {
        let mut inodes = self.left().clone();
        inodes.extend(self.list().iter().map(|range| range.inode));
        if inodes.is_empty() {
            return Vec::new();
        }
        let recorded = || self.list().iter().filter_map(Range::recorded).collect();
        areas_of(&inodes).unwrap_or_else(recorded)
    }

    fn copies(&mut self) -> &mut Vec<(usize, Pages)> {
        // SAFETY: locked.
        unsafe { &mut (*self.0.inner.get()).copies }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

impl Ranges {
    /// True if pages can move here, and forks are looked after.
    pub(crate) fn is_ready(&self) -> bool {
        static READY: OnceLock<bool> = OnceLock::new();
        // SAFETY: the three functions stay.
        let hook =
            || unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        *READY.get_or_init(|| can_hold() && hook() == 0)
    }
}

/// Copies all ranges, wherever they are and as long as they are. The list stays locked until the
/// fork is over.
unsafe extern "C" fn before() {
    let mut ranges = lock_ranges();
    let mut copies = Vec::new();
    for Area { start, end, .. } in ranges.areas() {
        let length = end - start;
        // A range may have become longer, without pages for most of it.
        let new = || Pages::new(libc::MAP_PRIVATE | MAP_ANONYMOUS, -1, length);
        let Some(pages) = (length <= LENGTH_MAX).then(new).flatten() else {
            // The child must not see what this process writes, and does without.
            // SAFETY: pages of this process.
            unsafe { libc::madvise(start as *mut _, length, libc::MADV_DONTFORK) };
            continue;
        };
        copies.push((start, pages));
    }
    *ranges.copies() = copies;
    // Nothing allocates from here on: the heap may lie in a range, and the child would find its
    // pages in different states. Other threads may allocate until the fork. What they change lies
    // on the outer pages, beside the program's buffer, so these are copied last.
    // SAFETY: mapped, and each copy is as long.
    unsafe {
        for (start, pages) in ranges.copies().iter() {
            copy(*start, pages, PAGE..pages.length.saturating_sub(PAGE));
        }
        for (start, pages) in ranges.copies().iter() {
            copy(*start, pages, 0..PAGE);
            copy(*start, pages, pages.length - PAGE..pages.length);
        }
    }
    std::mem::forget(ranges);
}

/// Copies a part of a range.
///
/// # Safety
/// The part is mapped in both.
unsafe fn copy(start: usize, pages: &Pages, part: std::ops::Range<usize>) {
    let to = pages.at.cast::<u8>().wrapping_add(part.start);
    // SAFETY: as the caller says.
    unsafe { ptr::copy_nonoverlapping((start + part.start) as *const u8, to, part.len()) };
}

unsafe extern "C" fn in_parent() {
    let mut ranges = Locked(&RANGES);
    drop(std::mem::take(ranges.copies()));
}

/// Only calls that a child of fork may make. It puts the copies in place, and forgets the lists
/// without freeing them.
unsafe extern "C" fn in_child() {
    let mut ranges = Locked(&RANGES);
    for (start, pages) in ranges.copies().drain(..) {
        // SAFETY: the range was in place before the fork, and no other thread is here.
        unsafe { pages.move_to(start) };
    }
    std::mem::forget(std::mem::take(ranges.list()));
    std::mem::forget(std::mem::take(ranges.left()));
}
