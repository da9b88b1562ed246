//! A word of shared memory that each join and each leave of a group changes. A sender reads it
//! before it sends to a group, and looks up the members again when it has changed. So a new member
//! receives the next datagram, and a send needs no system call.
#![expect(unsafe_code, reason = "a word in shared memory")]

use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;

/// What lets others find the memory.
type Announced = Box<dyn Any + Send + Sync>;

/// The joins and leaves of the groups of a device, as one process counts them.
pub struct Changes {
    memory: Mapping,
    /// Those who join find the memory as long as this lives.
    _announced: Announced,
}

impl Changes {
    /// The bytes of its memory.
    pub const BYTES: usize = 4096;

    /// The word in that memory, which others share. `announced` is kept as long. `None` if the
    /// memory is too short, or not aligned.
    pub fn new(memory: Mapping, announced: Announced) -> Option<Changes> {
        let fits = memory.len() >= size_of::<u64>();
        let is_aligned = memory.as_ptr().cast::<AtomicU64>().is_aligned();
        (fits && is_aligned).then_some(Changes { memory, _announced: announced })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `new` has checked length and alignment, and the memory lives as long as this.
        // Everybody who shares it changes the word by `note` alone. Any value is a number.
        unsafe { &*self.memory.as_ptr().cast::<AtomicU64>() }
    }

    /// A number that changes with each join and leave.
    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        // Acquire pairs with the Release of `note`: a lookup behind it finds that member.
        self.word().load(Ordering::Acquire)
    }

    /// Somebody has joined or left.
    pub fn note(&self) {
        self.word().fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::{self, NonNull};

    use doorbell_alloc::Pages;

    use super::*;
    use crate::provider::heap;

    #[test]
    fn memory_without_room_for_a_word_is_refused() {
        let words = Box::leak(Box::new([0_u64; 2])).as_mut_ptr().cast::<u8>();
        let part = |from: usize, len: usize| {
            let at = NonNull::new(words.wrapping_add(from)).unwrap();
            // SAFETY: bytes of the words, which stay.
            unsafe { Mapping::from_raw_parts(at, len, Pages::Plain, ptr::null_mut(), |_, _, _| ()) }
        };
        let is_taken = |from, len| Changes::new(part(from, len), Box::new(())).is_some();
        assert_eq!([is_taken(0, 4), is_taken(4, 12), is_taken(8, 8)], [false, false, true]);
    }

    #[test]
    fn a_note_changes_the_count() {
        let changes = Changes::new(heap::zeroed(Changes::BYTES).unwrap(), Box::new(())).unwrap();
        let before = changes.count();
        changes.note();
        assert_ne!(changes.count(), before);
    }
}
