//! The table of registered regions: which key names which bytes, with which rights.
//!
//! Written by the control plane, read on every access of the data plane without a lock. A key is
//! slot and generation, so that one that was deregistered fails (MR-3).

#![expect(unsafe_code, reason = "atomics of a peer on memory named by address")]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::vec::Vec;

use crate::provider::Access;

/// Regions of one device at most.
pub(super) const REGIONS: usize = 4096;

/// One region; 32 bytes, two a line.
#[repr(align(32))]
struct Slot {
    /// The key while registered, 0 otherwise.
    key: AtomicU32,
    access: AtomicU32,
    start: AtomicU64,
    length: AtomicU64,
}

impl Slot {
    const fn empty() -> Slot {
        Slot {
            key: AtomicU32::new(0),
            access: AtomicU32::new(0),
            start: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }
}

/// All regions of a device.
pub(super) struct Memory {
    slots: Box<[Slot; REGIONS]>,
    /// Free slots, and the generation to use next, by slot.
    free: Mutex<(Vec<u32>, Vec<u8>)>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        let slots = Box::new([const { Slot::empty() }; REGIONS]);
        // Slot 0 is never given out, so that the key 0 is never good.
        slots[0].key.store(u32::MAX, Ordering::Relaxed);
        let free = (1..REGIONS as u32).rev().collect();
        Memory { slots, free: Mutex::new((free, std_alloc::vec![1; REGIONS])) }
    }

    /// Enters a region; its key, or `None` if the table is full.
    pub(super) fn insert(&self, start: u64, length: u64, access: Access) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.0.pop()?;
        let slot = &self.slots[index as usize];
        let key = index << 8 | u32::from(free.1[index as usize]);
        slot.start.store(start, Ordering::Relaxed);
        slot.length.store(length, Ordering::Relaxed);
        slot.access.store(access.bits(), Ordering::Relaxed);
        // Release pairs with `allows`: who sees the key sees the bounds that go with it.
        slot.key.store(key, Ordering::Release);
        Some(key)
    }

    /// Takes a region out: its key fails from here on.
    pub(super) fn remove(&self, key: u32) {
        let index = key >> 8;
        let slot = &self.slots[index as usize];
        slot.key.store(0, Ordering::Relaxed);
        // An access that has checked its key already may still be under way: who deregisters memory
        // in use breaks the contract of the post that named it.
        fence(Ordering::Release);
        let mut free = self.free.lock();
        let generation = &mut free.1[index as usize];
        *generation = generation.wrapping_add(1);
        free.0.push(index);
    }

    /// True if the key is alive, the bytes lie inside its region, and the right is there (MR-2).
    #[inline(always)]
    pub(super) fn allows(&self, key: u32, start: u64, length: u32, right: Access) -> bool {
        let slot = &self.slots[(key >> 8) as usize % REGIONS];
        if slot.key.load(Ordering::Acquire) != key {
            return false;
        }
        let offset = start.wrapping_sub(slot.start.load(Ordering::Relaxed));
        offset.saturating_add(u64::from(length)) <= slot.length.load(Ordering::Relaxed)
            && slot.access.load(Ordering::Relaxed) & right.bits() == right.bits()
    }
}

/// Aligned bytes that several may change at once: one atomic step on eight of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// They become `swap` if they are `compare`.
    Swap { compare: u64, swap: u64 },
    /// This is added, wrapping.
    Add(u64),
}

impl Step {
    /// Does it; what was there before. Atomic with all that the owner's processors do (RC-6).
    ///
    /// # Safety
    /// `at` is 8-byte aligned and valid for reads and writes, and all that is not atomic stays
    /// away from it: the owner of the region lets peers change it.
    pub(super) unsafe fn apply(self, at: *mut u64) -> u64 {
        // SAFETY: the caller vouches for the address.
        let word = unsafe { AtomicU64::from_ptr(at) };
        match self {
            // AcqRel: what one side wrote before its step is seen by who finds the step done.
            Step::Swap { compare, swap } => {
                let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
                word.compare_exchange(compare, swap, done, failed).unwrap_or_else(|old| old)
            }
            Step::Add(value) => word.fetch_add(value, Ordering::AcqRel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MR-2: bounds and rights; every address around both ends.
    #[test]
    fn mr_2_bounds_and_rights_are_checked() {
        let memory = Memory::new();
        let key = memory.insert(0x1000, 0x100, Access::LOCAL_WRITE).unwrap();
        let none = Access::empty();
        assert!(memory.allows(key, 0x1000, 0x100, Access::LOCAL_WRITE));
        assert!(memory.allows(key, 0x1100, 0, none));
        assert!(!memory.allows(key, 0x1101, 0, none));
        assert!(!memory.allows(key, 0xfff, 1, none));
        assert!(!memory.allows(key, 0x1000, 0x101, none));
        assert!(!memory.allows(key, 0x10ff, 2, none));
        assert!(!memory.allows(key, u64::MAX, u32::MAX, none));
        assert!(!memory.allows(key, 0x1000, 8, Access::REMOTE_WRITE));
        assert!(!memory.allows(0, 0, 0, none));
        for odd in [u32::MAX, key ^ 1, key + ((REGIONS as u32) << 8)] {
            assert!(!memory.allows(odd, 0x1000, 1, none), "key {odd:x}");
        }
    }

    /// MR-3: a key that was deregistered fails, also when its slot has a new owner.
    #[test]
    fn mr_3_stale_keys_fail() {
        let memory = Memory::new();
        let old = memory.insert(0x1000, 0x100, Access::LOCAL_WRITE).unwrap();
        memory.remove(old);
        assert!(!memory.allows(old, 0x1000, 1, Access::empty()));
        let new = memory.insert(0x1000, 0x100, Access::LOCAL_WRITE).unwrap();
        assert_eq!(old >> 8, new >> 8, "the slot is reused");
        assert!(!memory.allows(old, 0x1000, 1, Access::empty()));
        assert!(memory.allows(new, 0x1000, 1, Access::empty()));
    }
}
