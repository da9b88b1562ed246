//! Memory of long messages: slots of one region. Each slot has its own pattern in every round, so
//! the check notices a byte that is missing or in the wrong place.
#![expect(unsafe_code, reason = "a device reads and writes these bytes on its own")]

use std::sync::atomic::{AtomicU64, Ordering};

use doorbell::alloc::{Ask, MapRequest};
use doorbell::provider::{Access, Provider, Region};
use doorbell::wr::Sge;
use doorbell::{CmError, Exposed};

use crate::error::Failure;

/// The most memory for the slots of one side, in bytes.
const BYTES_MAX: usize = 64 << 20;

/// Slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Bytes of a message.
    pub(crate) size: usize,
    pub(crate) count: usize,
}

impl Slots {
    /// One slot for each outstanding message, as far as the memory allows.
    pub(crate) fn new(size: u32, window: u32) -> Slots {
        let size = size as usize;
        let most = (BYTES_MAX / size.max(1)).max(2);
        Slots { size, count: (window as usize).clamp(1, most) }
    }

    /// Bytes from one slot to the next.
    pub(crate) fn stride(&self) -> usize {
        self.size.next_multiple_of(64)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.count * self.stride()
    }

    /// Where the slot of message `number` begins.
    #[inline(always)]
    pub(crate) fn offset(&self, number: u64) -> usize {
        (number % self.count as u64) as usize * self.stride()
    }
}

/// Memory read and written by words, since a device may use it meanwhile.
pub(crate) trait Words {
    /// The eight bytes at an offset, which is a multiple of 8.
    fn word(&self, offset: usize) -> Result<&AtomicU64, CmError>;
}

impl<P: Provider> Words for Exposed<P> {
    fn word(&self, offset: usize) -> Result<&AtomicU64, CmError> {
        Exposed::word(self, offset)
    }
}

/// Registered memory for local use: plain pages behind a memfd, like exposed memory.
pub(crate) struct Memory<P: Provider> {
    region: P::Region,
}

impl<P: Provider> Memory<P> {
    /// Zeroed, with every page present.
    pub(crate) fn new(device: &P, bytes: usize) -> Result<Memory<P>, Failure> {
        let request = MapRequest::new(bytes.max(1)).pages(Ask::Plain).shared(true);
        Ok(Memory { region: device.register(request.map()?, Access::LOCAL_WRITE)? })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Names a piece of it for a request.
    ///
    /// # Panics
    /// Past the end.
    #[inline(always)]
    pub(crate) fn sge(&self, offset: usize, length: u32) -> Sge {
        assert!(offset + length as usize <= self.region.len(), "inside the region");
        let addr = self.region.as_ptr() as u64 + offset as u64;
        Sge { addr, length, lkey: self.region.lkey() }
    }

    /// Copies the message in one slot to the same slot of `to`.
    #[inline(always)]
    pub(crate) fn copy(&self, to: &Memory<P>, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.region.len().min(to.region.len()), "inside the region");
        // SAFETY: both regions have these bytes. They are registered for local use only, and no
        // request names memory that is copied this way.
        unsafe {
            let (from, to) = (self.as_ptr().add(offset), to.as_ptr().add(offset));
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

impl<P: Provider> Words for Memory<P> {
    fn word(&self, offset: usize) -> Result<&AtomicU64, CmError> {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.region.len(), "inside the region");
        // SAFETY: inside the region, which lives as long as `self` and begins at a multiple of the
        // page. This side reads and writes these words by atomics alone.
        Ok(unsafe { AtomicU64::from_ptr(self.as_ptr().add(offset).cast()) })
    }
}

/// One word of the pattern. It differs by round, slot and place.
fn word(round: u64, slot: usize, at: usize) -> u64 {
    let seed = (round << 20 ^ slot as u64).wrapping_add(1);
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The bits of the word at offset `at` that belong to a message of `size` bytes.
fn mask(size: usize, at: usize) -> u64 {
    match size - at {
        rest @ 1..8 => (1 << (rest * 8)) - 1,
        _ => u64::MAX,
    }
}

/// Fills every slot with the pattern of a round.
pub(crate) fn fill(memory: &impl Words, slots: &Slots, round: u64) -> Result<(), CmError> {
    for slot in 0..slots.count {
        let start = slot * slots.stride();
        for at in (0..slots.size).step_by(8) {
            memory.word(start + at)?.store(word(round, slot, at).to_le(), Ordering::Relaxed);
        }
    }
    Ok(())
}

/// True if the memory at `start` holds the pattern of that round and slot.
pub(crate) fn is_filled(
    memory: &impl Words,
    start: usize,
    slots: &Slots,
    (round, slot): (u64, usize),
) -> Result<bool, CmError> {
    for at in (0..slots.size).step_by(8) {
        let found = u64::from_le(memory.word(start + at)?.load(Ordering::Relaxed));
        if (found ^ word(round, slot, at)) & mask(slots.size, at) != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many slots are wrong, of those that the first `messages` messages went to.
pub(crate) fn wrong(
    memory: &impl Words,
    slots: &Slots,
    round: u64,
    messages: u64,
) -> Result<u64, CmError> {
    let used = messages.min(slots.count as u64) as usize;
    let mut wrong = 0;
    for slot in 0..used {
        let right = is_filled(memory, slot * slots.stride(), slots, (round, slot))?;
        wrong += u64::from(!right);
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::soft::SoftDevice;

    #[test]
    fn slots_stay_within_their_memory() {
        assert_eq!(Slots::new(4096, 16).count, 16);
        assert_eq!(Slots::new(16 << 20, 16).count, 4);
        assert_eq!(Slots::new(1, 1).bytes(), 64);
        let slots = Slots::new(100, 4);
        assert_eq!((slots.offset(0), slots.offset(5), slots.bytes()), (0, 128, 512));
    }

    #[test]
    fn a_changed_byte_another_slot_and_another_round_are_seen() {
        let device = SoftDevice::open().unwrap();
        for size in [1, 7, 8, 13, 64, 4096] {
            let slots = Slots::new(size, 3);
            let memory = Memory::new(&device, slots.bytes()).unwrap();
            fill(&memory, &slots, 5).unwrap();
            assert_eq!(wrong(&memory, &slots, 5, 99).unwrap(), 0, "{size}");
            if size > 1 {
                assert_eq!(wrong(&memory, &slots, 6, 99).unwrap(), 3, "another round, {size}");
                assert_eq!(wrong(&memory, &slots, 6, 2).unwrap(), 2, "two were used, {size}");
                assert!(!is_filled(&memory, 0, &slots, (5, 1)).unwrap(), "another slot, {size}");
            }
            for at in 0..size as usize {
                let word = memory.word(slots.stride() + at / 8 * 8).unwrap();
                word.fetch_xor(1 << (at % 8 * 8), Ordering::Relaxed);
                assert_eq!(wrong(&memory, &slots, 5, 3).unwrap(), 1, "byte {at} of {size}");
                word.fetch_xor(1 << (at % 8 * 8), Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_copy_has_the_pattern_of_its_slot() {
        let device = SoftDevice::open().unwrap();
        let slots = Slots::new(1000, 2);
        let from = Memory::new(&device, slots.bytes()).unwrap();
        let to = Memory::new(&device, slots.bytes()).unwrap();
        fill(&from, &slots, 1).unwrap();
        from.copy(&to, slots.offset(1), slots.size);
        assert!(is_filled(&to, slots.offset(1), &slots, (1, 1)).unwrap());
        assert!(!is_filled(&to, 0, &slots, (1, 0)).unwrap());
    }
}
