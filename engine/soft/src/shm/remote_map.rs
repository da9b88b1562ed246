//! A peer's memory, as far as it is mapped here.
//!
//! A device shows its peers a table of its queue pairs and regions, in memory that they can read
//! and only the device can write. A region behind a memfd can be mapped here by the name its owner
//! gives. The poster of a one-sided request then carries it out, after the checks that the owner
//! would make: the queue pair takes such requests, the key is alive, the bytes lie inside, the
//! right is there.
//!
//! The table is the peer's word: this side compares it with its own mapping, so a lie ends in the
//! peer's own memory.
#![expect(unsafe_code, reason = "reads a table that another process writes")]

use core::any::Any;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::model::buffers::Target;
use crate::model::limits::QPS;
use crate::model::pd::{has_right, pd_in};
use crate::model::slot::FileName;
use crate::model::table::{INBOXES, REGIONS, Table, index_of};
use crate::provider::Access;
use crate::room::{Book, Room};
use crate::shm::inbox::{INBOX_BYTES, OpenNotifier, Outlet, Stamp};

/// The most regions of one peer that are mapped. The peer's own poll serves requests to the others.
const VIEWS_MAX: usize = 256;

/// Regions of at most this many bytes, and this many of them per link, are mapped before they are
/// used.
const AHEAD_BYTES: u64 = 1 << 20;
const AHEAD_MAX: usize = 16;

/// Maps the file that a process names, for `len` bytes; `None` if it cannot be mapped, is not the
/// named one, or could be taken away later.
pub type Attach = fn(process: i32, file: FileName, len: u64) -> Option<Mapping>;

/// One peer device.
pub struct RemoteMap {
    table: NonNull<Table>,
    process: i32,
    attach: Attach,
    notifier: OpenNotifier,
    views: Box<[View]>,
    /// Kept as long as somebody may be using them.
    mapped: Mutex<Vec<Mapping>>,
    outlets: Mutex<Book<Known>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// The inbox of one of the peer's queue pairs.
struct Known {
    file: FileName,
    /// Its mapping here; `None` if mapping failed, which is not tried again.
    outlet: Option<Outlet>,
}

/// A region of the peer as it is mapped here.
struct View {
    /// The key it was mapped under, 0 for none. A region that could not be mapped has no base.
    key: AtomicU32,
    base: AtomicPtr<u8>,
    len: AtomicU64,
}

// SAFETY: the table is atomics in memory that `_keep` holds; the views are atomics.
unsafe impl Send for RemoteMap {}
// SAFETY: as above.
unsafe impl Sync for RemoteMap {}

impl RemoteMap {
    /// The device of `process` whose table, [`crate::DIRECTORY_BYTES`] long and aligned to a
    /// page, begins at `table`.
    ///
    /// # Safety
    /// The table stays readable as long as `keep` lives; this process only reads it.
    pub unsafe fn new(
        table: NonNull<u8>,
        keep: Arc<dyn Any + Send + Sync>,
        process: i32,
        attach: Attach,
        notifier: OpenNotifier,
    ) -> RemoteMap {
        let view = || View {
            key: AtomicU32::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
        };
        RemoteMap {
            table: table.cast(),
            process,
            attach,
            notifier,
            views: (0..REGIONS).map(|_| view()).collect(),
            mapped: Mutex::new(Vec::with_capacity(VIEWS_MAX)),
            outlets: Mutex::new(Book::new()),
            _keep: keep,
        }
    }

    fn table(&self) -> &Table {
        // SAFETY: `new`'s caller vouches for it; it is only ever used as atomics.
        unsafe { self.table.as_ref() }
    }

    /// Puts a datagram into the inbox of the peer's UD queue pair with that number, which is mapped
    /// at its first use. Does nothing if there is no such queue pair.
    pub(crate) fn put(&self, qp: u32, stamp: &Stamp, payload: &impl Fn(Target<'_>)) {
        let mut outlets = self.outlets.lock();
        let is_there = |known: &&Outlet| known.is_for(qp);
        let known = outlets.get(qp).and_then(|known| known.outlet.as_ref()).filter(is_there);
        if known.is_none() {
            self.look_up(&mut outlets, qp);
        }
        let known = outlets.get(qp).and_then(|known| known.outlet.as_ref());
        if let Some(outlet) = known.filter(is_there) {
            outlet.put(stamp, payload);
        }
    }

    #[cold]
    fn look_up(&self, outlets: &mut Book<Known>, qp: u32) {
        // Acquire: the name read below is that of the queue pair, unless the slot changes hands.
        let slot = self.table().inboxes.iter().find(|slot| slot.qp.load(Ordering::Acquire) == qp);
        let file = slot.filter(|_| qp != 0).map(|slot| FileName {
            fd: slot.fd.load(Ordering::Relaxed),
            inode: slot.inode.load(Ordering::Relaxed),
        });
        let tried = |known: &Known| Some(known.file) == file && known.outlet.is_none();
        if outlets.get(qp).is_some_and(tried) {
            return;
        }
        outlets.remove(qp);
        let Some(file) = file else { return };
        if outlets.len() >= INBOXES {
            // Entries of queue pairs that are gone; no device has more alive.
            outlets.retain(|num, known| known.outlet.as_ref().is_some_and(|o| o.is_for(num)));
        }
        let memory = (self.attach)(self.process, file, INBOX_BYTES as u64);
        let outlet = memory.and_then(|memory| Outlet::new(memory, self.process, self.notifier));
        // A slot that changed hands, or a lie, leads to the inbox of another queue pair: skip it.
        let outlet = outlet.filter(|outlet| outlet.is_for(qp));
        // Without memory to remember it, it is looked up again next time.
        let _ = outlets.insert(qp, Known { file, outlet });
    }

    /// The bytes as they are mapped here, if queue pair `qp` of the peer lets its own peer use them
    /// with that right, and if they are mapped.
    pub(crate) fn find(
        &self,
        qp: u32,
        (key, addr, length): (u32, u64, u32),
        right: Access,
    ) -> Option<Target<'_>> {
        let word = self.table().qps[qp as usize % QPS].load(Ordering::Acquire);
        let pd = pd_in(word, qp, right)?;
        let slot = &self.table().slots[index_of(key)];
        if slot.key.load(Ordering::Acquire) != key {
            return None;
        }
        let offset = addr.wrapping_sub(slot.start.load(Ordering::Relaxed));
        let inside = offset.saturating_add(length.into()) <= slot.length.load(Ordering::Relaxed);
        let allowed = has_right(slot.access.load(Ordering::Relaxed), right, pd);
        // Acquire: the words above belong to this key if the slot still has it.
        fence(Ordering::Acquire);
        if !inside || !allowed || slot.key.load(Ordering::Relaxed) != key {
            return None;
        }
        let view = self.views.get(index_of(key))?;
        if view.key.load(Ordering::Acquire) != key {
            self.map(key);
        }
        // Acquire pairs with `map`: base and length are those of the key.
        if view.key.load(Ordering::Acquire) != key {
            return None;
        }
        let (base, len) = (view.base.load(Ordering::Relaxed), view.len.load(Ordering::Relaxed));
        // The peer may have named more bytes than its file has.
        if base.is_null() || offset.saturating_add(length.into()) > len {
            return None;
        }
        // SAFETY: they lie in a mapping that stays as long as this value. Its owner lets peers
        // use them, and so touches them only as raw bytes or atomics.
        Some(unsafe { Target::new(base.wrapping_add(offset as usize), length) })
    }

    /// Maps what the peer may be waiting for: small regions that may be written to. The first WRITE
    /// to one, such as a worker's credit word, then needs no system call between two messages.
    pub(crate) fn map_ahead(&self) {
        let keys = self.table().slots.iter().filter_map(|slot| {
            let key = slot.key.load(Ordering::Acquire);
            let access = Access::from_bits_truncate(slot.access.load(Ordering::Relaxed));
            let small = slot.length.load(Ordering::Relaxed) <= AHEAD_BYTES;
            let named = slot.fd.load(Ordering::Relaxed) != 0;
            let wanted = key != 0 && small && named && access.contains(Access::REMOTE_WRITE);
            wanted.then_some(key)
        });
        // A bound, so that a peer that names many unmappable regions delays us little.
        keys.take(AHEAD_MAX).for_each(|key| self.map(key));
    }

    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.lock().len()
    }

    /// Maps a region once; a failure is not tried again. Only the first region of a slot is mapped,
    /// because nobody knows when another thread has stopped using that mapping.
    #[cold]
    fn map(&self, key: u32) {
        let slot = &self.table().slots[index_of(key)];
        let Some(view) = self.views.get(index_of(key)) else { return };
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
            mapped.put(mapping);
        }
        // The slot may have gone to another region while it was read; then the mapping is not that
        // region's, and the owner carries out the requests.
        fence(Ordering::Acquire);
        if slot.key.load(Ordering::Relaxed) != key {
            view.base.store(ptr::null_mut(), Ordering::Relaxed);
        }
        // Release: a thread that sees the key sees base and length.
        view.key.store(key, Ordering::Release);
    }
}
