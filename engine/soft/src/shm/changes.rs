//! A word of shared memory that each join and each leave of a group changes. A sender reads it
//! before it sends to a group, and looks up the members again when it has changed. So a new member
//! receives the next datagram, and a send needs no system call.
#![expect(unsafe_code, reason = "words in shared memory")]

use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;

/// The second word of such memory. Somebody else may have announced other memory under a name of
/// ours, and that must stay as it is.
const MARK: u64 = 0x6462_5f63_6861_6e67;

/// The joins and leaves of the groups of a device, as one process counts them.
pub struct Changes {
    memory: Mapping,
    /// What lets others find the memory.
    _announced: Option<Box<dyn Any + Send + Sync>>,
}

impl Changes {
    /// The bytes of its memory.
    pub const BYTES: usize = 4096;

    /// New words, in memory that others can map. `None` if the memory is too short, or not aligned.
    pub fn new(memory: Mapping) -> Option<Changes> {
        let changes = Changes::over(memory)?;
        changes.word(1).store(MARK, Ordering::Release);
        Some(changes)
    }

    /// The words in memory of another process. `None` if that memory is something else.
    pub fn found(memory: Mapping) -> Option<Changes> {
        Changes::over(memory).filter(|found| found.word(1).load(Ordering::Acquire) == MARK)
    }

    fn over(memory: Mapping) -> Option<Changes> {
        let fits = memory.len() >= 2 * size_of::<AtomicU64>();
        let is_aligned = memory.as_ptr().cast::<AtomicU64>().is_aligned();
        (fits && is_aligned).then_some(Changes { memory, _announced: None })
    }

    /// Keeps what lets others find the memory.
    #[must_use]
    pub fn announced(self, by: Box<dyn Any + Send + Sync>) -> Changes {
        Changes { _announced: Some(by), ..self }
    }

    fn word(&self, n: usize) -> &AtomicU64 {
        debug_assert!(n < 2);
        // SAFETY: `over` has checked length and alignment for two words, and the memory lives as
        // long as this. Whoever shares it uses them as atomics. Any value is a number.
        unsafe { &*self.memory.as_ptr().cast::<AtomicU64>().wrapping_add(n) }
    }

    /// A number that changes with each join and leave.
    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        // Acquire pairs with the Release of `note`: a lookup behind it finds that member.
        self.word(0).load(Ordering::Acquire)
    }

    /// Somebody has joined or left.
    pub fn note(&self) {
        self.word(0).fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::{self, NonNull};

    use doorbell_alloc::Pages;

    use super::*;

    /// A part of some words, which stay.
    fn part(words: &mut [u64; 3], from: usize, len: usize) -> Mapping {
        let at = words.as_mut_ptr().cast::<u8>().wrapping_add(from);
        let at = NonNull::new(at).unwrap();
        // SAFETY: bytes of the words, which outlive the mapping and are not used meanwhile.
        unsafe { Mapping::from_raw_parts(at, len, Pages::Plain, ptr::null_mut(), |_, _, _| ()) }
    }

    #[test]
    fn memory_without_room_for_the_words_is_refused() {
        let words = &mut [0; 3];
        let mut is_taken = |from, len| Changes::new(part(words, from, len)).is_some();
        assert_eq!([is_taken(0, 8), is_taken(4, 20), is_taken(8, 16)], [false, false, true]);
    }

    /// A joiner changes nothing in memory that is something else.
    #[test]
    fn other_memory_is_not_found() {
        let words = &mut [7; 3];
        assert!(Changes::found(part(words, 0, 24)).is_none());
        assert_eq!(*words, [7; 3]);
    }

    #[test]
    fn a_note_changes_the_count() {
        let words = &mut [0; 3];
        let changes = Changes::new(part(words, 0, 24)).unwrap();
        let before = changes.count();
        drop(changes);
        let found = Changes::found(part(words, 0, 24)).unwrap();
        found.note();
        assert_ne!(found.count(), before);
    }
}
