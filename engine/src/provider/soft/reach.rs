//! A peer's memory, as far as it is mapped here.
//!
//! A device shows its peers a table of its queue pairs and regions, in memory they can read and
//! nobody but the device can write. A region behind a memfd can be mapped here by the name its
//! owner gives; then a one-sided request is carried out by whoever posts it, after the checks its
//! owner would make: the queue pair takes such requests, the key is alive, the bytes lie inside,
//! the right is there.
//!
//! The table is the word of a peer: what is used is compared with the mapping that we have
//! ourselves, so that a lie ends in the peer's own memory.
#![expect(unsafe_code, reason = "reads a table that another process writes")]

use core::any::Any;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::memory::{FileName, REGIONS, Table, index_of, qp_word};
use super::nic::QPS;
use crate::provider::Access;

/// Regions of one peer that are mapped at most; further ones are reached by its own poll.
const VIEWS_MAX: usize = 256;

/// Maps the file that a process names, for `len` bytes; `None` if it cannot be had, is not what
/// was named, or cannot be trusted to stay.
pub type Attach = fn(process: i32, file: FileName, len: u64) -> Option<Mapping>;

/// One peer device.
pub struct Reach {
    table: NonNull<Table>,
    process: i32,
    attach: Attach,
    views: Box<[View]>,
    /// Kept for as long as somebody may be using them.
    mapped: Mutex<Vec<Mapping>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// A region of the peer as it is mapped here.
struct View {
    /// The key it was mapped under, 0 for none. One that could not be mapped has no base.
    key: AtomicU32,
    base: AtomicPtr<u8>,
    len: AtomicU64,
}

// SAFETY: the table is atomics in memory that `_keep` holds; the views are atomics.
unsafe impl Send for Reach {}
// SAFETY: as above.
unsafe impl Sync for Reach {}

impl Reach {
    /// The device of `process` whose table, [`super::DIRECTORY_BYTES`] long and aligned to a
    /// page, begins at `table`.
    ///
    /// # Safety
    /// The table stays readable as long as `keep` lives; this process only reads it.
    pub unsafe fn new(
        table: NonNull<u8>,
        keep: Arc<dyn Any + Send + Sync>,
        process: i32,
        attach: Attach,
    ) -> Reach {
        let view = || View {
            key: AtomicU32::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
        };
        Reach {
            table: table.cast(),
            process,
            attach,
            views: (0..REGIONS).map(|_| view()).collect(),
            mapped: Mutex::new(Vec::new()),
            _keep: keep,
        }
    }

    fn table(&self) -> &Table {
        // SAFETY: `new`'s caller vouches for it; it is only ever used as atomics.
        unsafe { self.table.as_ref() }
    }

    /// Where the bytes are here, if queue pair `qp` of the peer would let its own peer use them
    /// with that right, and they are mapped.
    pub(super) fn find(
        &self,
        qp: u32,
        (key, addr, length): (u32, u64, u32),
        right: Access,
    ) -> Option<*mut u8> {
        let word = self.table().qps[qp as usize % QPS].load(Ordering::Acquire);
        if word & qp_word(qp, right) != qp_word(qp, right) || word >> 8 != qp {
            return None;
        }
        let slot = &self.table().slots[index_of(key)];
        if slot.key.load(Ordering::Acquire) != key {
            return None;
        }
        let offset = addr.wrapping_sub(slot.start.load(Ordering::Relaxed));
        let inside = offset.saturating_add(length.into()) <= slot.length.load(Ordering::Relaxed);
        let access = Access::from_bits_truncate(slot.access.load(Ordering::Relaxed));
        // Acquire: the words above are those of this key if it is still the slot's.
        fence(Ordering::Acquire);
        if !inside || !access.contains(right) || slot.key.load(Ordering::Relaxed) != key {
            return None;
        }
        let view = &self.views[index_of(key)];
        if view.key.load(Ordering::Acquire) != key {
            self.map(key);
        }
        // Acquire pairs with `map`: base and length are those of the key.
        if view.key.load(Ordering::Acquire) != key {
            return None;
        }
        let (base, len) = (view.base.load(Ordering::Relaxed), view.len.load(Ordering::Relaxed));
        // The peer may have named more than its file has.
        if base.is_null() || offset.saturating_add(length.into()) > len {
            return None;
        }
        Some(base.wrapping_add(offset as usize))
    }

    /// Maps a region, once; one that cannot be had is not asked for again. A slot's first region
    /// is the only one mapped: nobody knows when another thread has stopped using that.
    #[cold]
    fn map(&self, key: u32) {
        let (slot, view) = (&self.table().slots[index_of(key)], &self.views[index_of(key)]);
        let mut mapped = self.mapped.lock();
        if view.key.load(Ordering::Relaxed) != 0 || mapped.len() >= VIEWS_MAX {
            return;
        }
        let (fd, inode) = (slot.fd.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
        let length = slot.length.load(Ordering::Relaxed);
        let named = u32::try_from(fd).ok().and_then(|fd| fd.checked_sub(1));
        let mapping =
            named.and_then(|fd| (self.attach)(self.process, FileName { fd, inode }, length));
        if let Some(mapping) = mapping {
            view.base.store(mapping.as_ptr(), Ordering::Relaxed);
            view.len.store(mapping.len() as u64, Ordering::Relaxed);
            mapped.push(mapping);
        }
        // The slot may have gone to another region while it was read; then that is not what was
        // mapped, and the owner carries the requests out.
        fence(Ordering::Acquire);
        if slot.key.load(Ordering::Relaxed) != key {
            view.base.store(ptr::null_mut(), Ordering::Relaxed);
        }
        // Release: whoever sees the key sees base and length.
        view.key.store(key, Ordering::Release);
    }
}
