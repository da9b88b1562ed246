//! A table's memory, word by word. Peers read it at any time, so no reference to its bytes exists.
#![expect(unsafe_code, reason = "registered memory that peers read while the server writes it")]

use std::sync::atomic::{AtomicU64, Ordering};

use doorbell::provider::Region;

/// Words of eight bytes that others may read at any time.
pub trait Words {
    /// Number of words.
    fn len(&self) -> usize;

    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads word `n`; 0 beyond the end.
    fn load(&self, n: usize) -> u64;

    /// Writes word `n`; nothing beyond the end.
    fn store(&self, n: usize, word: u64);
}

/// The words of a registered region.
pub struct RegionWords<R>(R);

impl<R: Region> RegionWords<R> {
    /// All of a region's words.
    pub fn new(region: R) -> RegionWords<R> {
        RegionWords(region)
    }

    /// The region.
    pub fn region(&self) -> &R {
        &self.0
    }

    fn word(&self, n: usize) -> Option<&AtomicU64> {
        if n >= self.len() {
            return None;
        }
        let at = self.0.as_ptr().cast::<u64>();
        // SAFETY: the word lies within the region (just checked), whose memory stays mapped as long
        // as `self.0` lives, and begins at a page, so words are aligned. This process accesses the
        // region by these atomics only; devices and peers read it, and may not write it.
        Some(unsafe { AtomicU64::from_ptr(at.add(n)) })
    }
}

// Relaxed: readers check the seal, so they need no order among the words. An answer that follows
// the stores is a message, and each device publishes a message behind earlier stores of its thread.
impl<R: Region> Words for RegionWords<R> {
    fn len(&self) -> usize {
        self.0.len() / 8
    }

    fn load(&self, n: usize) -> u64 {
        self.word(n).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, n: usize, value: u64) {
        if let Some(word) = self.word(n) {
            word.store(value, Ordering::Relaxed);
        }
    }
}
