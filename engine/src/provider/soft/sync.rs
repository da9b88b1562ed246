//! The atomics of a link's memory. In a model run (`--cfg loom`) each word of that memory is one of
//! loom's instead, found by its address, so that every order the rules of memory allow is tried.

#[cfg(not(loom))]
mod real {
    pub(in super::super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    use core::ptr::NonNull;
    use core::sync::atomic::compiler_fence;

    /// The word at an address.
    ///
    /// # Safety
    /// The address is aligned, and valid as long as the result is used; the word is only ever used
    /// as an atomic.
    #[expect(unsafe_code, reason = "words of memory that another process also has")]
    #[inline(always)]
    pub(in super::super) unsafe fn word<'a, T>(at: NonNull<u8>) -> &'a T {
        // SAFETY: as the caller vouches.
        unsafe { at.cast::<T>().as_ref() }
    }

    /// Keeps the order of what comes before and after in this thread; the other side makes the
    /// processors keep it (see [`super::super::alarm`]).
    #[inline(always)]
    pub(in super::super) fn half_barrier() {
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod model {
    pub(in super::super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    use core::any::Any;
    use core::cell::RefCell;
    use core::ptr::NonNull;
    use std::boxed::Box;
    use std::collections::HashMap;

    std::thread_local! {
        /// By address. All threads of a model run on one.
        static WORDS: RefCell<HashMap<usize, &'static dyn Any>> = RefCell::default();
    }

    /// Forgets the words of the last run of a model.
    #[cfg(test)]
    pub(in super::super) fn forget_words() {
        WORDS.with(|words| words.borrow_mut().clear());
    }

    /// The word at an address, zero at first.
    ///
    /// # Safety
    /// None: no memory is touched.
    #[expect(unsafe_code, reason = "has the form of the real one")]
    #[expect(clippy::expect_used, reason = "a model fails by panicking")]
    pub(in super::super) unsafe fn word<'a, T: Default + 'static>(at: NonNull<u8>) -> &'a T {
        WORDS.with(|words| {
            let mut words = words.borrow_mut();
            let word = words.entry(at.addr().get()).or_insert_with(|| {
                // A run is short, and a word of a run is used to its end.
                Box::leak(Box::new(T::default()))
            });
            word.downcast_ref::<T>().expect("a word has one type")
        })
    }

    /// The sleeper's barrier on all processors takes its effect here.
    pub(in super::super) fn half_barrier() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
pub(super) use self::model::*;
#[cfg(not(loom))]
pub(super) use self::real::*;
