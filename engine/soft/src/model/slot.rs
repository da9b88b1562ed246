//! A slot of the table: a region or a memory window, with its key, its bytes and its rights.
//!
//! The owner of the device writes it, the key last. Every access reads it without a lock, the key
//! first.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::model::pd::{PD, PdMark, WINDOW, Who};
use crate::provider::{Access, WindowKind};
use crate::wr::Binding;

/// The file behind a region, as a process names it: descriptor and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName {
    /// The descriptor, in the process that owns it.
    pub fd: u32,
    /// The inode that it must lead to.
    pub inode: u64,
}

/// One region; a cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The key while the region is registered, 0 otherwise.
    pub(crate) key: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) start: AtomicU64,
    pub(crate) length: AtomicU64,
    /// The file's descriptor, plus one; 0 if there is no file.
    pub(crate) fd: AtomicU64,
    /// The file's inode. For a memory window: its first key.
    pub(crate) inode: AtomicU64,
    /// For a memory window: the key of its region.
    parent: AtomicU32,
    /// For a memory window: the queue pair whose peer may use it; 0 for all.
    qp: AtomicU32,
    /// Where the region begins in the file.
    pub(crate) offset: AtomicU64,
}

/// The file behind a region, and where in it the region begins, in bytes.
pub(crate) type InFile = (FileName, u64);

impl Slot {
    /// Enters a region under that key.
    pub(super) fn open(
        &self,
        key: u32,
        (start, length): (u64, u64),
        (access, pd): (Access, PdMark),
        file: Option<InFile>,
    ) {
        // Release: a reader that sees a word of the new owner sees that the old key has gone.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.access.store(access.bits() | pd.0, Ordering::Relaxed);
        self.fd.store(file.map_or(0, |(file, _)| u64::from(file.fd) + 1), Ordering::Relaxed);
        self.inode.store(file.map_or(0, |(file, _)| file.inode), Ordering::Relaxed);
        self.offset.store(file.map_or(0, |(_, offset)| offset), Ordering::Relaxed);
        // Release pairs with `region`: a reader that sees the key sees its bounds, too.
        self.key.store(key, Ordering::Release);
    }

    /// Gives a region other rights; its domain stays.
    pub(super) fn set_access(&self, access: Access) {
        // As in `open`: the key has just been taken back.
        fence(Ordering::Release);
        let pd = self.access.load(Ordering::Relaxed) & PD;
        self.access.store(access.bits() | pd, Ordering::Relaxed);
    }

    /// True for a window that was opened on the region of that key.
    pub(super) fn is_window_on(&self, region: u32) -> bool {
        let is_window = self.access.load(Ordering::Relaxed) & WINDOW != 0;
        is_window && self.parent.load(Ordering::Relaxed) == region
    }

    /// Closes it.
    pub(super) fn close(&self) {
        self.key.store(0, Ordering::SeqCst);
    }

    /// Makes it a closed memory window of that domain, whose keys differ from this one in their
    /// [`TAG`] alone.
    pub(super) fn become_window(&self, key: u32, pd: PdMark) {
        // As in `open`.
        fence(Ordering::Release);
        self.fd.store(0, Ordering::Relaxed);
        self.inode.store(key.into(), Ordering::Relaxed);
        self.access.store(WINDOW | pd.0, Ordering::Relaxed);
    }

    /// Closes it for good: no BIND that begins after this opens it, if it is a window. SeqCst: see
    /// [`Memory::remove`](crate::model::memory::Memory::remove).
    pub(super) fn end(&self) {
        self.close();
        // A BIND under way may still write the rights, and never writes this.
        if self.access.load(Ordering::Relaxed) & WINDOW != 0 {
            self.inode.store(NO_KEY, Ordering::SeqCst);
        }
    }

    /// True if it is the window that has such a key, in that domain.
    fn is_window(&self, key: u32, pd: PdMark) -> bool {
        let first = self.inode.load(Ordering::SeqCst);
        self.access.load(Ordering::Relaxed) & (WINDOW | PD) == WINDOW | pd.0
            && (u64::from(key) ^ first) & !u64::from(TAG) == 0
    }

    /// Opens the window on a region that lies in those bounds: see
    /// [`Memory::bind`](crate::model::memory::Memory::bind). False: it stays as it is.
    pub(super) fn bind(&self, window: u32, binding: &Binding, who: Who, region: Bounds) -> bool {
        let Who { qp, pd } = who;
        if !self.is_window(window, pd) {
            return false;
        }
        let offset = binding.addr.wrapping_sub(region.start);
        let inside = offset.checked_add(binding.length).is_some_and(|end| end <= region.length);
        if !inside || (window ^ binding.rkey) & !TAG != 0 {
            return false;
        }
        // Closed while it changes: a peer compares the key before and after it reads the window.
        self.key.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if binding.length == 0 {
            return true;
        }
        self.start.store(binding.addr, Ordering::Relaxed);
        self.length.store(binding.length, Ordering::Relaxed);
        self.access.store(binding.access.bits() | WINDOW | pd.0, Ordering::Relaxed);
        self.fd.store(0, Ordering::Relaxed);
        self.parent.store(binding.region as u32, Ordering::Relaxed);
        self.qp.store(qp, Ordering::Relaxed);
        self.key.store(binding.rkey, Ordering::Release);
        true
    }

    /// Closes the window if it is open under that key to the peer of `qp` alone.
    pub(super) fn invalidate(&self, key: u32, qp: u32) -> bool {
        let open = self.key.load(Ordering::Acquire) == key
            && self.access.load(Ordering::Relaxed) & WINDOW != 0
            && self.qp.load(Ordering::Relaxed) == qp;
        if open {
            self.key.store(0, Ordering::SeqCst);
        }
        open
    }

    /// Where the region of that key lies, if it is alive and of that domain, and the right is
    /// there.
    #[inline(always)]
    pub(super) fn region(&self, key: u32, right: Access, pd: PdMark) -> Option<Bounds> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let looked_at = right.bits() | WINDOW | PD;
        let allowed = self.access.load(Ordering::Relaxed) & looked_at == right.bits() | pd.0;
        let start = self.start.load(Ordering::Relaxed);
        allowed.then_some(Bounds { start, length: self.length.load(Ordering::Relaxed) })
    }

    /// The region behind an open window that allows this.
    pub(super) fn region_behind(
        &self,
        qp: u32,
        key: u32,
        (start, length): (u64, u32),
        right: Access,
    ) -> Option<u32> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        // It belongs to its region's domain, which is checked with the region.
        let wanted = right.bits() | WINDOW;
        let allowed = self.access.load(Ordering::Relaxed) & wanted == wanted;
        let (of, only) = (self.start.load(Ordering::Relaxed), self.qp.load(Ordering::Relaxed));
        let bounds = Bounds { start: of, length: self.length.load(Ordering::Relaxed) };
        let region = self.parent.load(Ordering::Relaxed);
        // Acquire: the fields read belong together if the key is still the same.
        fence(Ordering::Acquire);
        let same = self.key.load(Ordering::Relaxed) == key;
        let open = same && allowed && bounds.hold(start, length) && (only == 0 || only == qp);
        open.then_some(region)
    }
}

/// In a window's handle: the request comes from [`Window::bind`](crate::provider::Window::bind),
/// the only way to bind windows of type 1 (MW-2).
pub(crate) const BOUND_BY_CALL: u64 = 1 << 40;

/// The kind of the window that a request binds; `None` if it may not be bound that way.
pub(crate) fn bound_kind(handle: u64) -> Option<WindowKind> {
    let by_call = handle & BOUND_BY_CALL != 0;
    match (handle >> 32 & 0xff, by_call) {
        (1, true) => Some(WindowKind::One),
        (2, false) => Some(WindowKind::Two),
        _ => None,
    }
}

/// The bits of a key that its holder may choose (MW-1).
const TAG: u32 = 0xff;

/// In place of a window's first key: the window has gone. No key has this in its upper bits.
const NO_KEY: u64 = u64::MAX;

/// Where a region lies.
#[derive(Clone, Copy, Default)]
pub(crate) struct Bounds {
    start: u64,
    length: u64,
}

impl Bounds {
    #[inline(always)]
    pub(super) fn start(self) -> u64 {
        self.start
    }

    #[inline(always)]
    pub(super) fn length(self) -> u64 {
        self.length
    }

    /// True if the bytes lie inside.
    #[inline(always)]
    pub(crate) fn hold(self, start: u64, length: u32) -> bool {
        let offset = start.wrapping_sub(self.start);
        offset.checked_add(u64::from(length)).is_some_and(|end| end <= self.length)
    }
}
