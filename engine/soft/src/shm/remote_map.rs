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
//!
//! A peer also lends memory that nobody else may write to: it names a region of its own in a
//! message, and the receiver copies the bytes from there ([`RemoteMap::borrow`]).
#![expect(unsafe_code, reason = "reads a table that another process writes")]

use core::any::Any;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use arrayvec::ArrayVec;
use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::sync::Arc;

use crate::model::buffers::{ReadOnly, Source, Target};
use crate::model::limits::QPS;
use crate::model::pd::{has_right, pd_in};
use crate::model::slot::{FileName, Slot};
use crate::model::table::{INBOXES, Table, index_of};
use crate::provider::Access;
use crate::room::{FixedCapacity, SortedMap};
use crate::shm::inbox::{INBOX_BYTES, OpenNotifier, Outlet, Stamp};
use crate::shm::layout::KEYS;
use crate::shm::offer::Offer;
use crate::shm::views::{Mapped, Views};

/// Regions of at most this many bytes, and this many of them per link, are mapped before they are
/// used.
const AHEAD_BYTES: u64 = 1 << 20;
const AHEAD_MAX: usize = 16;

/// The same for regions from which the peer may lend, if it has so few.
const LENT_AHEAD_BYTES: u64 = 64 << 20;
pub(crate) const LENT_AHEAD_MAX: usize = KEYS / 2;

/// Maps the file that a process names, for `len` bytes; `None` if it cannot be mapped, is not the
/// named one, or could be taken away later.
pub type Attach = fn(process: i32, file: FileName, len: u64) -> Option<Mapping>;

/// As [`Attach`], to be read only: its owner may have sealed the file against other uses.
pub type Look = fn(process: i32, file: FileName, len: u64) -> Option<ReadOnly>;

/// How the memory and the notifiers of another process are opened.
#[derive(Clone, Copy)]
pub struct Openers {
    /// Opens memory to be read and written.
    pub attach: Attach,
    /// Opens memory to be read.
    pub look: Look,
    /// Opens a notifier.
    pub notifier: OpenNotifier,
}

/// One peer device.
pub struct RemoteMap {
    table: NonNull<Table>,
    process: i32,
    open: Openers,
    views: Views,
    outlets: Mutex<SortedMap<Known>>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// The inbox of one of the peer's queue pairs.
struct Known {
    file: FileName,
    /// Its mapping here; `None` if mapping failed, which is not tried again.
    outlet: Option<Outlet>,
}

/// Bytes that the peer lends to a message. They are those of the message if [`Borrowed::check`]
/// finds no fault after they were read.
pub(crate) struct Borrowed<'a> {
    pub(crate) bytes: Source<'a>,
    offer: Offer,
    /// The peer's words for its queue pair and its region.
    qp: &'a AtomicU64,
    slot: &'a Slot,
}

impl Borrowed<'_> {
    /// No error if the bytes read before this call are those of the message: the peer's queue pair
    /// works, and has worked since the message was posted, and the region is registered. Until
    /// then the peer's device keeps the bytes as they were posted.
    ///
    /// This is the reader's half of a sequence lock. A queue pair that fails or goes takes its word
    /// back, passes a Release fence, and then completes its sends; its program changes the bytes
    /// after that. If this side has read one byte of a later change, the Acquire fence makes sure
    /// that it sees the word gone as well.
    ///
    /// The two faults differ. A sender that has failed reads no refusal. One whose program only
    /// takes the region away must read one: without it, the sends would look as if they had
    /// arrived.
    pub(crate) fn check(&self) -> Result<(), NotLent> {
        fence(Ordering::Acquire);
        // Acquire: the program of a failed sender may deregister the region. Whoever sees that sees
        // the word gone as well.
        let has_key = self.slot.key.load(Ordering::Acquire) == self.offer.key;
        if self.qp.load(Ordering::Relaxed) != self.offer.word {
            return Err(NotLent::SenderGone);
        }
        if has_key { Ok(()) } else { Err(NotLent::Nowhere) }
    }
}

/// Why the bytes that a message names cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLent {
    /// The queue pair that sent the message has failed or gone.
    SenderGone,
    /// They are in no region of the peer that is mapped here, or no more: its program has
    /// deregistered the region or changes its rights.
    Nowhere,
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
        open: Openers,
    ) -> RemoteMap {
        RemoteMap {
            table: table.cast(),
            process,
            open,
            views: Views::new(),
            outlets: Mutex::new(SortedMap::new()),
            _keep: keep,
        }
    }

    /// The device of `process`, over a view of its table; `None` if that is too short.
    #[cfg(feature = "std")]
    pub fn over(table: doorbell_alloc::View, process: i32, open: Openers) -> Option<RemoteMap> {
        let base = NonNull::new(table.as_ptr().cast_mut())?;
        if table.len() < crate::DIRECTORY_BYTES {
            return None;
        }
        // SAFETY: a view begins at a page and is readable as long as it lives.
        Some(unsafe { RemoteMap::new(base, Arc::new(table), process, open) })
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

    /// False: the inbox of that queue pair is known here and full.
    pub(crate) fn has_room(&self, qp: u32) -> bool {
        let outlets = self.outlets.lock();
        let outlet = outlets.get(qp).and_then(|known| known.outlet.as_ref());
        outlet.is_none_or(|outlet| !outlet.is_for(qp) || outlet.has_room())
    }

    #[cold]
    fn look_up(&self, outlets: &mut SortedMap<Known>, qp: u32) {
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
        let memory = (self.open.attach)(self.process, file, INBOX_BYTES as u64);
        let outlet =
            memory.and_then(|memory| Outlet::new(memory, self.process, self.open.notifier));
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
        if self.views.is_new(key) {
            self.map(key);
        }
        let view = self.views.get(key)?;
        let writes = right.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        // The peer may have named more bytes than its file has. It may also have changed the rights
        // since the region was mapped.
        if offset.saturating_add(length.into()) > view.len || (writes && !view.is_writable) {
            return None;
        }
        // SAFETY: they lie in a mapping that stays as long as this value. Its owner lets peers
        // use them, and so touches them only as raw bytes or atomics.
        Some(unsafe { Target::new(view.base.wrapping_add(offset as usize), length) })
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

    /// The bytes of a message that queue pair `qp` of the peer lends. The table is the peer's word:
    /// this side compares it with its own mapping.
    pub(crate) fn borrow(&self, qp: u32, offer: Offer) -> Result<Borrowed<'_>, NotLent> {
        let table = self.table();
        let qp = &table.lenders[qp as usize % QPS];
        if offer.word == 0 || qp.load(Ordering::Acquire) != offer.word {
            return Err(NotLent::SenderGone);
        }
        let slot = &table.slots[index_of(offer.key)];
        if slot.key.load(Ordering::Acquire) != offer.key {
            return Err(NotLent::Nowhere);
        }
        let offset = offer.addr.wrapping_sub(slot.start.load(Ordering::Relaxed));
        let view = self.views.get(offer.key).ok_or(NotLent::Nowhere)?;
        if offset.saturating_add(offer.length.into()) > view.len {
            return Err(NotLent::Nowhere);
        }
        // SAFETY: they lie in a mapping that stays as long as this value. Its owner may change
        // them, so they are only copied as raw bytes.
        let bytes = unsafe { Target::new(view.base.wrapping_add(offset as usize), offer.length) };
        Ok(Borrowed { bytes: bytes.source(), offer, qp, slot })
    }

    /// Maps the region of that key, if it can be mapped. True if its bytes can be read here.
    #[cold]
    pub(crate) fn show(&self, key: u32) -> bool {
        if key != 0 && self.views.is_new(key) {
            self.map(key);
        }
        self.views.get(key).is_some()
    }

    /// Maps the regions from which the peer may lend, and returns their keys: if they are few, a
    /// long message then needs no system call. None, if there are many: the peer asks for those it
    /// uses.
    pub(crate) fn map_lent(&self) -> ArrayVec<u32, LENT_AHEAD_MAX> {
        let written = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let lendable = |slot: &&Slot| {
            let access = Access::from_bits_truncate(slot.access.load(Ordering::Relaxed));
            let named = slot.fd.load(Ordering::Relaxed) != 0;
            named && !access.intersects(written)
        };
        let mut keys = ArrayVec::new();
        for slot in self.table().slots.iter().filter(lendable) {
            let key = slot.key.load(Ordering::Acquire);
            if key == 0 || slot.length.load(Ordering::Relaxed) > LENT_AHEAD_BYTES {
                continue;
            }
            if keys.is_full() {
                return ArrayVec::new();
            }
            keys.put(key);
        }
        keys.retain(|key| self.show(*key));
        keys
    }

    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        self.views.count()
    }

    /// Maps a region once. The peer's own poll serves requests to those that cannot be mapped.
    #[cold]
    fn map(&self, key: u32) {
        let slot = &self.table().slots[index_of(key)];
        let open = || {
            let (fd, inode) = (slot.fd.load(Ordering::Relaxed), slot.inode.load(Ordering::Relaxed));
            let offset = slot.offset.load(Ordering::Relaxed);
            let length = slot.length.load(Ordering::Relaxed).checked_add(offset)?;
            let access = Access::from_bits_truncate(slot.access.load(Ordering::Relaxed));
            let fd = u32::try_from(fd).ok().and_then(|fd| fd.checked_sub(1))?;
            let file = FileName { fd, inode };
            let mapped = match access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
                true => (self.open.attach)(self.process, file, length).map(Mapped::Shared),
                false => (self.open.look)(self.process, file, length).map(Mapped::ReadOnly),
            };
            mapped.map(|mapped| (mapped, offset))
        };
        // The slot may have gone to another region while it was read.
        let is_current = || {
            fence(Ordering::Acquire);
            slot.key.load(Ordering::Relaxed) == key
        };
        self.views.map(key, open, is_current);
    }
}
