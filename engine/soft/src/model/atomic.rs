//! Atomic operations of a peer (RC-6).

use core::sync::atomic::{AtomicU64, Ordering};

/// An atomic operation on eight aligned bytes, which several may change at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// They become `swap` if they are `compare`.
    Swap { compare: u64, swap: u64 },
    /// This is added, wrapping.
    Add(u64),
}

impl Step {
    /// Carries it out and returns the old value. It is atomic with respect to the owner's
    /// processors (RC-6).
    pub(crate) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            // AcqRel: a side that sees the operation sees everything written before it.
            Step::Swap { compare, swap } => {
                let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
                word.compare_exchange(compare, swap, done, failed).unwrap_or_else(|old| old)
            }
            Step::Add(value) => word.fetch_add(value, Ordering::AcqRel),
        }
    }
}
