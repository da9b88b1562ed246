//! Atomics for data that threads and processes share without a lock. In a model run (`--cfg loom`)
//! loom's atomics replace them, and those in shared memory are found by address, so that loom tries
//! every order that the memory model allows.

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

    /// Keeps the compiler from reordering across this point; the other side makes the processors
    /// keep the order (see `peer_waker` of the soft device).
    #[inline(always)]
    pub fn half_barrier() {
        compiler_fence(Ordering::SeqCst);
    }

    /// A pause of a thread that waits for another, which is about to let go of a lock.
    #[inline(always)]
    pub fn pause() {
        core::hint::spin_loop();
    }

    /// Marks that those bytes of shared memory, which are not used as atomics, are written from
    /// here on. Only for a model: it fails if another thread may be reading them.
    #[inline(always)]
    pub fn wrote(_at: *const u8, _length: usize) {}

    /// Marks that those bytes are read. Only for a model: it fails if another thread may be writing
    /// them.
    #[inline(always)]
    pub fn reads(_at: *const u8, _length: usize) {}
}

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use self::model::*;
#[cfg(not(loom))]
pub use self::real::*;
