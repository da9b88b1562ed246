//! The regions of a peer that are mapped here, one for each slot of its table.

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::vec::Vec;

use crate::model::buffers::ReadOnly;
use crate::model::table::{REGIONS, index_of};
use crate::room::FixedCapacity;

/// The most regions of one peer that are mapped.
const VIEWS_MAX: usize = 256;

/// How a region is mapped.
pub(crate) enum Mapped {
    /// To be read and written.
    Shared(Mapping),
    /// To be read.
    ReadOnly(ReadOnly),
}

impl Mapped {
    fn bytes(&self) -> (*mut u8, usize) {
        match self {
            Mapped::Shared(mapping) => (mapping.as_ptr(), mapping.len()),
            Mapped::ReadOnly(memory) => (memory.as_ptr().cast_mut(), memory.len()),
        }
    }
}

/// A region of the peer as it is mapped here.
struct View {
    /// The key it was mapped under, 0 for none. A region that could not be mapped has no base.
    key: AtomicU32,
    writable: AtomicBool,
    base: AtomicPtr<u8>,
    len: AtomicU64,
}

/// The bytes of a region as they are mapped here.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    pub(crate) base: *mut u8,
    pub(crate) len: u64,
    pub(crate) is_writable: bool,
}

/// All regions of one peer. Only the first region of a slot is mapped, because nobody knows when
/// another thread has stopped using that mapping.
pub(crate) struct Views {
    list: Box<[View]>,
    /// Kept as long as somebody may be using them.
    kept: Mutex<Vec<Mapped>>,
}

impl Views {
    pub(crate) fn new() -> Views {
        let view = || View {
            key: AtomicU32::new(0),
            writable: AtomicBool::new(false),
            base: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
        };
        Views {
            list: (0..REGIONS).map(|_| view()).collect(),
            kept: Mutex::new(Vec::with_capacity(VIEWS_MAX)),
        }
    }

    /// The bytes of the region of that key, if it is mapped.
    #[inline(always)]
    pub(crate) fn get(&self, key: u32) -> Option<Bytes> {
        let view = self.list.get(index_of(key))?;
        // Acquire pairs with `map`: the rest is that of the key.
        if view.key.load(Ordering::Acquire) != key {
            return None;
        }
        let base = view.base.load(Ordering::Relaxed);
        let (len, is_writable) =
            (view.len.load(Ordering::Relaxed), view.writable.load(Ordering::Relaxed));
        (!base.is_null()).then_some(Bytes { base, len, is_writable })
    }

    /// True if nobody has tried to map a region of that slot.
    pub(crate) fn is_new(&self, key: u32) -> bool {
        self.list.get(index_of(key)).is_some_and(|view| view.key.load(Ordering::Relaxed) == 0)
    }

    /// Maps a region once, with `open`, which also says where in the mapping the region begins; a
    /// failure is not tried again. `is_current` says, after the
    /// mapping, whether the slot still has that key; if not, the mapping is not that region's.
    #[cold]
    pub(crate) fn map(
        &self,
        key: u32,
        open: impl FnOnce() -> Option<(Mapped, u64)>,
        is_current: impl FnOnce() -> bool,
    ) {
        let Some(view) = self.list.get(index_of(key)) else { return };
        let mut kept = self.kept.lock();
        if view.key.load(Ordering::Relaxed) != 0 || kept.len() >= VIEWS_MAX {
            return;
        }
        let mapped = open();
        if let (Some((mapped, skip)), true) = (mapped, is_current()) {
            let (base, len) = mapped.bytes();
            let skip = skip.min(len as u64);
            view.base.store(base.wrapping_add(skip as usize), Ordering::Relaxed);
            view.len.store(len as u64 - skip, Ordering::Relaxed);
            let writable = matches!(mapped, Mapped::Shared(_));
            view.writable.store(writable, Ordering::Relaxed);
            kept.put(mapped);
        }
        // Release: a thread that sees the key sees the rest.
        view.key.store(key, Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.kept.lock().len()
    }
}
