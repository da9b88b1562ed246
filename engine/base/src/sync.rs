//! The atomics of what threads and processes share without a lock. In a model run (`--cfg loom`)
//! they are loom's instead, those in shared memory found by their addresses, so that every order
//! the rules of memory allow is tried.

#[cfg(not(loom))]
mod real {
    pub use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    pub use crossbeam::queue::ArrayQueue;

    use core::ptr::NonNull;
    use core::sync::atomic::compiler_fence;

    /// The word at an address.
    ///
    /// # Safety
    /// The address is aligned, and valid as long as the result is used; the word is only ever used
    /// as an atomic.
    #[expect(unsafe_code, reason = "words of memory that another process also has")]
    #[inline(always)]
    pub unsafe fn word<'a, T>(at: NonNull<u8>) -> &'a T {
        // SAFETY: as the caller vouches.
        unsafe { at.cast::<T>().as_ref() }
    }

    /// Keeps the order of what comes before and after in this thread; the other side makes the
    /// processors keep it (see `alarm` of the soft device).
    #[inline(always)]
    pub fn half_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Those bytes of shared memory, which are not used as atomics, are written from here on. Only
    /// for a model: it fails if somebody may be reading them.
    #[inline(always)]
    pub fn wrote(_at: *const u8, _length: usize) {}

    /// Those bytes are read. Only for a model: it fails if somebody may be writing them.
    #[inline(always)]
    pub fn reads(_at: *const u8, _length: usize) {}
}

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use self::model::*;
#[cfg(not(loom))]
pub use self::real::*;
