//! The registered memory of a device: it makes keys, and gives the bytes behind a key to those who
//! may use them.
//!
//! The control plane writes the [`Table`]; the data plane reads it on every access, without a lock.
//! The table may lie in memory that peers can read: see [`crate::shm::remote_map`].
#![expect(unsafe_code, reason = "the table is shared memory; accesses of a peer name addresses")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use doorbell_alloc::Mapping;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

use crate::model::buffers::{Source, Target};
use crate::model::pd::{PdMark, Who};
use crate::model::slot::{Bounds, FileName, InFile, Slot};
use crate::model::table::{DIRECTORY_BYTES, INBOXES, REGIONS, Table, index_of, key_of};
use crate::provider::Access;
use crate::room::FixedCapacity;
use crate::wr::{Binding, Sge};

/// Where the table lies.
enum Home {
    Private(Box<[AtomicU64]>),
    Shared(Mapping),
}

/// All regions of a device.
pub(crate) struct Memory {
    table: NonNull<Table>,
    home: Home,
    /// For each slot, the accesses of peers under way: `remove` waits for them.
    lent: Box<[AtomicU32]>,
    /// How many regions were removed.
    removals: AtomicU64,
    free: Mutex<Free>,
}

/// Free slots, and the source of keys.
struct Free {
    slots: VecDeque<u32>,
    /// For each place, whether it is taken.
    inboxes: Vec<bool>,
    random: ChaCha8Rng,
}

// SAFETY: the table is atomics in memory this value owns.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A table in `directory` (zeroed, at least [`DIRECTORY_BYTES`]), or in memory of its own;
    /// keys come from `seed`.
    pub(crate) fn new(directory: Option<Mapping>, seed: [u8; 32]) -> Memory {
        let mut home = match directory {
            Some(mapping) if mapping.len() >= DIRECTORY_BYTES => Home::Shared(mapping),
            _ => {
                let lines = DIRECTORY_BYTES / 8 + align_of::<Table>() / 8;
                Home::Private((0..lines).map(|_| AtomicU64::new(0)).collect())
            }
        };
        let start = match &mut home {
            Home::Private(words) => {
                let start = words.as_mut_ptr().cast::<u8>();
                start.wrapping_add(start.align_offset(align_of::<Table>()))
            }
            Home::Shared(mapping) => mapping.as_ptr(),
        };
        let lent = (0..REGIONS).map(|_| AtomicU32::new(0)).collect();
        // Slot 0 is never used, and gets a key of another slot below: the key 0 is never valid.
        let free = Free {
            slots: (1..REGIONS as u32).collect(),
            inboxes: Vec::new(),
            random: ChaCha8Rng::from_seed(seed),
        };
        let table = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        let removals = AtomicU64::new(0);
        let memory = Memory { table, home, lent, removals, free: Mutex::new(free) };
        memory.table().slots[0].key.store(u32::MAX, Ordering::Relaxed);
        memory
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> &Table {
        // SAFETY: `new` has placed it in memory that `home` owns, long enough, aligned (mappings
        // begin at a page), zeroed, and only ever used as atomics.
        unsafe { self.table.as_ref() }
    }

    /// True if peers can read the table.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.home, Home::Shared(_))
    }

    /// Enters a region; its key, or `None` if the table is full.
    pub(crate) fn insert(
        &self,
        start: u64,
        length: u64,
        (access, pd): (Access, PdMark),
        file: Option<InFile>,
    ) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.slots.pop_front()?;
        let slot = &self.table().slots[index as usize];
        let key = key_of(index, free.random.next_u32());
        slot.open(key, (start, length), (access, pd), file);
        Some(key)
    }

    /// Makes a place for a closed memory window; returns its key without the low bits.
    pub(crate) fn insert_window(&self, pd: PdMark) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.slots.pop_front()?;
        let key = key_of(index, free.random.next_u32());
        self.table().slots[index as usize].become_window(key, pd);
        Some(key)
    }

    /// Opens a memory window under `binding.rkey` for the peer of that queue pair, or for any peer
    /// of its domain if the number is 0. A length of 0 leaves it closed. False: the region's key,
    /// rights or bounds do not allow it, the objects are of different domains (MW-1), or the window
    /// was removed.
    pub(crate) fn bind(&self, window: u32, binding: &Binding, who: Who) -> bool {
        let wants = Access::MW_BIND
            | match binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
                true => Access::LOCAL_WRITE,
                false => Access::empty(),
            };
        let slot = &self.table().slots[index_of(window)];
        let Some(_stays) = self.count(window) else { return false };
        let region = || match (binding.length, binding.region) {
            // Closing a window needs no region.
            (0, 0) => Some(Bounds::default()),
            (_, key) => self.region(key as u32, wants, who.pd),
        };
        if !region().is_some_and(|region| slot.bind(window, binding, who, region)) {
            return false;
        }
        // SeqCst: either `change_access` sees the window and closes it, or the new rights count.
        fence(Ordering::SeqCst);
        let stays = region().is_some();
        if !stays {
            slot.close();
        }
        stays
    }

    /// Gives a region other rights under the same key, and closes the windows on it. When this
    /// returns, this device carries out no access for a peer that only the old rights allow.
    pub(crate) fn change_access(&self, key: u32, access: Access) {
        let index = index_of(key);
        let slots = &self.table().slots;
        // As in `remove`: until the rights have changed, there is no such key.
        slots[index].key.store(0, Ordering::SeqCst);
        self.removals.fetch_add(1, Ordering::Release);
        while self.lent.get(index).is_some_and(|lent| lent.load(Ordering::SeqCst) != 0) {
            core::hint::spin_loop();
        }
        slots[index].set_access(access);
        fence(Ordering::SeqCst);
        slots.iter().filter(|slot| slot.is_window_on(key)).for_each(Slot::close);
        slots[index].key.store(key, Ordering::SeqCst);
    }

    /// Closes the memory window of that key, which must be open to the peer of `qp` alone. False:
    /// there is no such window (MW-2).
    pub(crate) fn invalidate(&self, key: u32, qp: u32) -> bool {
        self.table().slots[index_of(key)].invalidate(key, qp)
    }

    /// Removes a region or a memory window. When this returns, its key fails, and this device
    /// carries out no access to it for a peer, and no BIND. (Accesses that a peer carries out
    /// itself are not counted.)
    pub(crate) fn remove(&self, key: u32) {
        let index = index_of(key);
        let slot = &self.table().slots[index];
        // SeqCst, as in `check_remote_key` and `bind`: at least one of the two sees the other.
        slot.end();
        // Release pairs with `removals`: a reader of the new count sees that the key is gone.
        self.removals.fetch_add(1, Ordering::Release);
        while self.lent.get(index).is_some_and(|lent| lent.load(Ordering::SeqCst) != 0) {
            core::hint::spin_loop();
        }
        // A BIND that began before may have opened the window meanwhile.
        slot.close();
        self.free.lock().slots.put(index as u32);
    }

    /// How many regions were removed: while this is the same, an allowed access stays allowed.
    #[inline(always)]
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Enters the inbox of a queue pair; its place, or `None` if no place is left. Without a file
    /// nobody finds the inbox, but it still takes a place.
    pub(crate) fn show_inbox(&self, qp: u32, file: Option<FileName>) -> Option<usize> {
        // Under the lock of the keys one thread at a time takes a place.
        let mut free = self.free.lock();
        let place = free.inboxes.iter().position(|taken| !taken).or_else(|| {
            free.inboxes.push(false);
            (free.inboxes.len() <= INBOXES).then_some(free.inboxes.len() - 1)
        })?;
        free.inboxes[place] = true;
        if let Some(file) = file {
            let slot = &self.table().inboxes[place];
            slot.fd.store(file.fd, Ordering::Relaxed);
            slot.inode.store(file.inode, Ordering::Relaxed);
            // Release: a reader that sees the number sees the name, too.
            slot.qp.store(qp, Ordering::Release);
        }
        Some(place)
    }

    /// Removes an inbox.
    pub(crate) fn hide_inbox(&self, place: usize) {
        let mut free = self.free.lock();
        if let (Some(slot), Some(taken)) =
            (self.table().inboxes.get(place), free.inboxes.get_mut(place))
        {
            slot.qp.store(0, Ordering::Release);
            *taken = false;
        }
    }

    /// True if the key is alive and of that domain, the bytes lie inside its region, and the right
    /// is there (MR-2).
    ///
    /// For memory that the poster of a request vouches for: deregistering it while it is in use
    /// breaks the contract of that post.
    #[inline(always)]
    pub(crate) fn check_local_key(
        &self,
        key: u32,
        start: u64,
        length: u32,
        (right, pd): (Access, PdMark),
    ) -> bool {
        self.region(key, right, pd).is_some_and(|bounds| bounds.hold(start, length))
    }

    /// The bytes of a piece, if its key allows that they are written
    /// ([`Memory::check_local_key`]). A piece without bytes needs no key.
    pub(crate) fn target(&self, sge: Sge, pd: PdMark) -> Option<Target<'_>> {
        let Sge { lkey, addr, length } = sge;
        let allowed =
            length == 0 || self.check_local_key(lkey, addr, length, (Access::LOCAL_WRITE, pd));
        // SAFETY: they lie in a registered region, which owns its memory. The poster keeps it, and
        // keeps everybody else away, until the request has completed.
        allowed.then(|| unsafe { Target::new(addr as *mut u8, length) })
    }

    /// True if peers can map the region of that key.
    pub(crate) fn is_named(&self, key: u32) -> bool {
        let slot = &self.table().slots[index_of(key)];
        slot.key.load(Ordering::Acquire) == key && slot.fd.load(Ordering::Relaxed) != 0
    }

    /// Where the region of a key lies, if it is alive and of that domain, and the right is there.
    #[inline(always)]
    fn region(&self, key: u32, right: Access, pd: PdMark) -> Option<Bounds> {
        self.table().slots[index_of(key)].region(key, right, pd)
    }

    /// Counts an access to the slot of that key. SeqCst: either `remove` sees this count and waits,
    /// or the caller finds afterwards that the key is gone.
    fn count(&self, key: u32) -> Option<Count<'_>> {
        let count = self.lent.get(index_of(key))?;
        count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(Count(count))
    }

    /// As [`Memory::check_local_key`], for a request of the peer of a queue pair, to a region or
    /// through a window. While the caller keeps the result, the region stays.
    pub(crate) fn check_remote_key(
        &self,
        who: Who,
        key: u32,
        start: u64,
        length: u32,
        right: Access,
    ) -> Option<Lent<'_>> {
        let mut lent =
            Lent { _key: self.count(key)?, behind: None, right, bytes: Target::of(&mut []) };
        let slot = &self.table().slots[index_of(key)];
        let (region, needs) = match slot.region_behind(who.qp, key, (start, length), right) {
            Some(region) => {
                lent.behind = Some(self.count(region)?);
                (region, Access::empty())
            }
            None => (key, right),
        };
        if !self.check_local_key(region, start, length, (needs, who.pd)) {
            return None;
        }
        // SAFETY: they lie in a region, which stays while it is lent. Its owner lets peers use
        // them, and so touches them only as raw bytes or atomics.
        lent.bytes = unsafe { Target::new(start as *mut u8, length) };
        Some(lent)
    }
}

/// The region last written to, so that the next access needs no look at the table.
#[derive(Default)]
pub(crate) struct MrCache {
    /// Its key; 0 for none, with no bytes.
    key: u32,
    /// The domain its regions belong to: that of its receive queue.
    pd: PdMark,
    /// [`Memory::removals`] when it was looked up: while that is the same, the key is alive.
    removals: u64,
    bounds: Bounds,
}

impl MrCache {
    /// An empty cache, for a receive queue of that domain.
    pub(crate) fn of(pd: PdMark) -> MrCache {
        MrCache { pd, ..MrCache::default() }
    }

    /// Forgets the region if any region has been removed since the lookup. Call it at the start of
    /// a poll: within a poll, an access may already be under way when a region is removed.
    #[inline(always)]
    pub(crate) fn renew(&mut self, memory: &Memory) {
        if self.removals != memory.removals() {
            *self = MrCache::of(self.pd);
        }
    }

    /// The first bytes of a receive, if its key allows that they are written
    /// ([`Memory::check_local_key`]); after `renew`.
    #[inline(always)]
    pub(crate) fn target<'a>(
        &mut self,
        memory: &'a Memory,
        sge: Sge,
        length: u32,
    ) -> Option<Target<'a>> {
        let open = self.key == sge.lkey || self.open(memory, sge.lkey);
        // SAFETY: as in `Memory::target`.
        (open && self.bounds.hold(sge.addr, length))
            .then(|| unsafe { Target::new(sge.addr as *mut u8, length) })
    }

    /// All bytes of a receive, to be used as long as no region goes.
    pub(crate) fn lasting(&mut self, memory: &Memory, sge: Sge) -> Option<Lasting> {
        self.target(memory, sge, sge.length)?;
        // SAFETY: as in `Memory::target`; `Lasting::get` looks whether the region is still there.
        let bytes = unsafe { Target::new(sge.addr as *mut u8, sge.length) };
        Some(Lasting { removals: self.removals, bytes })
    }

    /// Where buffers as long as `like` may begin so that they lie in the region last used, and are
    /// writable. `None`: `like` lies in another region.
    #[inline(always)]
    pub(crate) fn starts(&self, like: Sge) -> Option<Starts> {
        let last = self.bounds.length().checked_sub(u64::from(like.length))?;
        let (first, length) = (self.bounds.start(), like.length);
        (self.key == like.lkey).then_some(Starts { first, last, length })
    }

    #[cold]
    #[inline(never)]
    fn open(&mut self, memory: &Memory, key: u32) -> bool {
        // Read the count before the table: a region that goes in between makes this entry stale.
        let removals = memory.removals();
        let Some(bounds) = memory.region(key, Access::LOCAL_WRITE, self.pd) else { return false };
        *self = MrCache { key, pd: self.pd, removals, bounds };
        true
    }
}

/// The addresses at which buffers of one length may begin: see [`MrCache::starts`].
#[derive(Clone, Copy)]
pub(crate) struct Starts {
    first: u64,
    /// The last one, relative to the first.
    last: u64,
    length: u32,
}

impl Starts {
    /// The buffer of a receive that begins there, if it may.
    #[inline(always)]
    pub(crate) fn target(&self, start: u64) -> Option<Target<'_>> {
        let inside = start.wrapping_sub(self.first) <= self.last;
        // SAFETY: as in `MrCache::target`: it lies in the region.
        inside.then(|| unsafe { Target::new(start as *mut u8, self.length) })
    }
}

/// Bytes of a receive that were looked up in advance.
pub(crate) struct Lasting {
    /// [`Memory::removals`] at the lookup.
    removals: u64,
    bytes: Target<'static>,
}

impl Lasting {
    /// More than the number of regions that can ever be removed.
    const NONE: u64 = u64::MAX;

    /// No bytes.
    pub(crate) fn none() -> Lasting {
        Lasting { removals: Lasting::NONE, bytes: Target::of(&mut []) }
    }

    /// The bytes, if no region has gone since the lookup.
    #[inline(always)]
    pub(crate) fn get<'a>(&self, memory: &'a Memory) -> Option<Target<'a>> {
        (self.removals == memory.removals()).then_some(self.bytes)
    }

    /// Their address, to be prefetched.
    pub(crate) fn address(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// How many there are.
    pub(crate) fn length(&self) -> usize {
        self.bytes.length() as usize
    }

    /// Forgets them.
    #[inline(always)]
    pub(crate) fn forget(&mut self) {
        self.removals = Lasting::NONE;
    }

    /// True if there are none.
    pub(crate) fn is_none(&self) -> bool {
        self.removals == Lasting::NONE
    }
}

/// An access under way to a slot of the table.
struct Count<'a>(&'a AtomicU32);

/// A region with a peer's access under way.
pub(crate) struct Lent<'a> {
    /// That of the key, and that of the region if the key is a window's.
    _key: Count<'a>,
    behind: Option<Count<'a>>,
    right: Access,
    bytes: Target<'a>,
}

impl Lent<'_> {
    /// The bytes, to be read.
    pub(crate) fn source(&self) -> Source<'_> {
        self.bytes.source()
    }

    /// The bytes, if the right to write them is there.
    pub(crate) fn target(&self) -> Option<Target<'_>> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.right.intersects(writes).then_some(self.bytes)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        // Release: the access ends before `remove` sees that it has ended.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::table::SECRET_BITS;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    /// The domain of most tests.
    const HOME: PdMark = PdMark::of(0).unwrap();

    fn memory() -> Memory {
        Memory::new(None, [7; 32])
    }

    fn insert(memory: &Memory, access: Access) -> u32 {
        memory.insert(0x1000, 0x100, (access, HOME), None).unwrap()
    }

    /// MR-2: bounds and rights, with every address around both ends.
    #[test]
    fn mr_2_bounds_and_rights_are_checked() {
        let memory = memory();
        let key = insert(&memory, Access::LOCAL_WRITE);
        let none = Access::empty();
        assert!(memory.check_local_key(key, 0x1000, 0x100, (Access::LOCAL_WRITE, HOME)));
        assert!(memory.check_local_key(key, 0x1100, 0, (none, HOME)));
        assert!(!memory.check_local_key(key, 0x1101, 0, (none, HOME)));
        assert!(!memory.check_local_key(key, 0xfff, 1, (none, HOME)));
        assert!(!memory.check_local_key(key, 0x1000, 0x101, (none, HOME)));
        assert!(!memory.check_local_key(key, 0x10ff, 2, (none, HOME)));
        assert!(!memory.check_local_key(key, u64::MAX, u32::MAX, (none, HOME)));
        assert!(!memory.check_local_key(key, 0x1000, 8, (Access::REMOTE_WRITE, HOME)));
        assert!(!memory.check_local_key(0, 0, 0, (none, HOME)));
        for odd in [u32::MAX, key ^ 1, key.wrapping_add(1 << SECRET_BITS)] {
            assert!(!memory.check_local_key(odd, 0x1000, 1, (none, HOME)), "key {odd:x}");
        }
    }

    /// MR-3: the cache forgets a removed region, whether asked by its key or by another.
    #[test]
    fn mr_3_a_cache_forgets_removed_regions() {
        let memory = memory();
        let keep = insert(&memory, Access::LOCAL_WRITE);
        let go = memory.insert(0x9000, 0x100, (Access::LOCAL_WRITE, HOME), None).unwrap();
        let read_only = insert(&memory, Access::empty());
        let piece = |lkey, addr| Sge { addr, length: 0x100, lkey };
        let mut window = MrCache::default();
        assert!(window.target(&memory, piece(0, 0x9000), 1).is_none());
        assert!(window.target(&memory, piece(read_only, 0x1000), 1).is_none());
        assert!(window.target(&memory, piece(go, 0x9000), 0x100).is_some());
        assert!(window.target(&memory, piece(go, 0x9000), 0x101).is_none());
        assert!(window.target(&memory, piece(keep, 0x1000), 1).is_some());
        assert!(window.target(&memory, piece(go, 0x9000), 1).is_some());
        memory.remove(go);
        window.renew(&memory);
        assert!(window.target(&memory, piece(0, 0x9000), 1).is_none());
        assert!(window.target(&memory, piece(go, 0x9000), 1).is_none());
        assert!(window.target(&memory, piece(keep, 0x1000), 1).is_some());
        window.renew(&memory);
        assert!(window.target(&memory, piece(keep, 0x10ff), 1).is_some());
    }

    /// MR-2: buffers of one length may begin where the whole buffer lies in the region last used.
    #[test]
    fn mr_2_buffers_of_one_length_lie_in_the_region() {
        let memory = memory();
        let key = insert(&memory, Access::LOCAL_WRITE);
        let piece = |lkey, length| Sge { addr: 0x1000, length, lkey };
        let mut window = MrCache::default();
        assert!(window.starts(piece(key, 1)).is_none(), "it was not looked up");
        assert!(window.target(&memory, piece(key, 1), 1).is_some());
        let starts = window.starts(piece(key, 0x40)).unwrap();
        for (start, allowed) in
            [(0xfff, false), (0x1000, true), (0x10c0, true), (0x10c1, false), (u64::MAX, false)]
        {
            assert_eq!(starts.target(start).is_some(), allowed, "{start:x}");
        }
        assert!(window.starts(piece(key, 0x100)).unwrap().target(0x1000).is_some());
        assert!(window.starts(piece(key, 0x101)).is_none());
        assert!(window.starts(piece(key ^ 1, 0x40)).is_none());
        memory.remove(key);
        window.renew(&memory);
        assert!(window.starts(piece(key, 0x40)).is_none());
    }

    /// MR-3: a deregistered key fails, even when its slot has a new owner.
    #[test]
    fn mr_3_stale_keys_fail() {
        let memory = memory();
        let old: Vec<u32> = (1..REGIONS).map(|_| insert(&memory, Access::all())).collect();
        assert_eq!(memory.insert(0, 8, (Access::all(), HOME), None), None, "the table is full");
        for key in &old {
            memory.remove(*key);
            assert!(!memory.check_local_key(*key, 0x1000, 1, (Access::empty(), HOME)));
        }
        let new: Vec<u32> = (1..REGIONS).map(|_| insert(&memory, Access::all())).collect();
        let stale = |key: &&u32| memory.check_local_key(**key, 0x1000, 1, (Access::empty(), HOME));
        let slots = |keys: &[u32]| keys.iter().map(|key| index_of(*key)).collect::<HashSet<_>>();
        assert_eq!(slots(&old), slots(&new), "the slots are reused");
        // One in 2^20 gets its old key again; among 4095, hardly ever two.
        assert!(old.iter().filter(stale).count() < 2);
        assert!(new.iter().all(|key| memory.check_local_key(
            *key,
            0x1000,
            1,
            (Access::empty(), HOME)
        )));
    }

    /// MW-1: a BIND that comes after its window has gone opens nothing, and the next owner of the
    /// slot stays as it is.
    #[test]
    fn mw_1_a_removed_window_is_not_bound() {
        let memory = memory();
        let region = insert(&memory, Access::all());
        let window = memory.insert_window(HOME).unwrap();
        let rkey = window ^ 1;
        let binding = |length| Binding {
            window: window.into(),
            region: region.into(),
            addr: 0x1000,
            length,
            access: Access::REMOTE_WRITE,
            rkey,
        };
        let who = Who { qp: 1, pd: HOME };
        let opens = |key| memory.check_remote_key(who, key, 0x1000, 8, Access::REMOTE_WRITE);
        assert!(memory.bind(window, &binding(8), who) && opens(rkey).is_some());
        memory.remove(rkey);
        assert!(!memory.bind(window, &binding(8), who) && opens(rkey).is_none());

        // The slot of the window gets another owner: a region, or another window.
        let owner = |key: &u32| index_of(*key) == index_of(window);
        let next = (1..REGIONS - 1).map(|_| insert(&memory, Access::all())).find(owner).unwrap();
        for length in [0, 8] {
            assert!(!memory.bind(window, &binding(length), who));
            assert!(opens(next).is_some() && opens(rkey).is_none());
        }
        memory.remove(next);
        let other = (1..REGIONS).find_map(|_| memory.insert_window(HOME).filter(owner)).unwrap();
        assert!(!memory.bind(window, &binding(8), who) && opens(rkey).is_none());
        let binding = Binding { window: other.into(), rkey: other, ..binding(8) };
        assert!(memory.bind(other, &binding, who) && opens(other).is_some());
    }

    /// MW-1: a BIND under way when its window goes leaves nothing open.
    #[test]
    fn mw_1_a_window_goes_only_when_no_bind_is_under_way() {
        let memory = memory();
        let region = insert(&memory, Access::all());
        let who = Who { qp: 1, pd: HOME };
        for _ in 0..50 {
            let window = memory.insert_window(HOME).unwrap();
            let access = Access::REMOTE_WRITE;
            let binding = Binding {
                window: window.into(),
                region: region.into(),
                addr: 0x1000,
                length: 8,
                access,
                rkey: window,
            };
            let (begun, stop) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) && memory.bind(window, &binding, who) {
                        begun.store(true, Ordering::Relaxed);
                    }
                });
                while !begun.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                memory.remove(window);
                stop.store(true, Ordering::Relaxed);
                assert!(memory.check_remote_key(who, window, 0x1000, 8, access).is_none());
            });
        }
    }

    /// Keys do not follow from one another, nor from the order of registration, and another
    /// device has others.
    #[test]
    fn keys_cannot_be_guessed_by_counting() {
        let secrets = |seed| {
            let memory = Memory::new(None, [seed; 32]);
            let keys: Vec<u32> = (0..500).map(|_| insert(&memory, Access::all())).collect();
            keys.iter().map(|key| key & ((1 << SECRET_BITS) - 1)).collect::<Vec<_>>()
        };
        let (one, two) = (secrets(1), secrets(2));
        let steps: HashSet<u32> = one.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 480, "{} different steps of 499", steps.len());
        assert!(one.iter().zip(&two).filter(|(one, two)| one == two).count() < 3);
    }

    /// Deregistration waits until no peer's access is under way, and no later one begins. A window
    /// goes in the same way, and so does the region behind it.
    #[test]
    fn a_region_goes_only_when_no_access_is_under_way() {
        let memory = memory();
        let who = Who { qp: 1, pd: HOME };
        let under_way = |key| memory.lent[index_of(key)].load(Ordering::SeqCst);
        for (is_window, goes_first) in [(false, true), (true, true), (true, false)].repeat(20) {
            let region = insert(&memory, Access::all());
            let window = memory.insert_window(HOME).unwrap();
            let (length, access) = (0x100, Access::REMOTE_WRITE);
            let (window, rkey) = (window.into(), window);
            let binding =
                Binding { window, rkey, region: region.into(), addr: 0x1000, length, access };
            assert!(memory.bind(rkey, &binding, who));
            let key = if is_window { rkey } else { region };
            let use_it = || memory.check_remote_key(who, key, 0x1000, 8, access);
            let lent = use_it();
            assert_eq!((under_way(key), under_way(region)), (1, 1), "a window: {is_window}");
            drop(lent);
            assert_eq!((under_way(key), under_way(region)), (0, 0), "a window: {is_window}");
            // This flag stands for the bytes, which must stay while they are lent.
            let (gone, stop) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                for () in [(); 2] {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            if let Some(lent) = use_it() {
                                assert!(!gone.load(Ordering::Relaxed), "lent after it was gone");
                                drop(lent);
                            }
                        }
                    });
                }
                memory.remove(if goes_first { key } else { region });
                gone.store(true, Ordering::Relaxed);
                thread::yield_now();
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
}
