//! Objects that a domain owns and never moves, and pointers to them.
//!
//! A domain owns its links and queue pairs. Some of its parts, and the handle of a queue pair, keep
//! a pointer to one of them, or to a prefetch of receives, because a look into a table for each
//! message would cost more than the rest of its way. Two facts make that sound:
//!
//! - *The object is there.* Each pointer goes before its object does. A queue pair with a
//!   reservation is a user of the link, which stays until its last user is gone. Links and receive
//!   queues come and go by commands alone, and after commands the only busy link and the predicted
//!   prefetch are looked up again. A queue pair ends with its handle, by a command too; what a poll
//!   has found out about one ([`crate::state::ready`]) counts until the next command.
//! - *Nobody else uses it.* All use is inside the domain, where one thread does one thing at a
//!   time, and a step looks up nothing that it was given. [`Pointer::get`] borrows what stands for
//!   the right to be there; no type shows that it is the right of this object's domain, so it is
//!   unsafe, and each caller says why both facts hold.
#![expect(unsafe_code, reason = "owns what others point to")]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use std_alloc::boxed::Box;

/// An object of a domain, which owns it.
pub(crate) struct Place<T>(NonNull<T>);

// SAFETY: it owns the object, which may move to another thread.
unsafe impl<T: Send> Send for Place<T> {}

impl<T> Place<T> {
    /// A pointer to the object.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> Pointer<T> {
        Pointer(self.0)
    }
}

impl<T> From<Box<T>> for Place<T> {
    fn from(object: Box<T>) -> Place<T> {
        Place(NonNull::from(Box::leak(object)))
    }
}

impl<T> Deref for Place<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this value owns the object, and nobody uses it through a pointer meanwhile: see
        // above.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Place<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the object, which was a box.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A pointer to an object of a domain.
pub(crate) struct Pointer<T>(NonNull<T>);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Pointer<T> {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: whoever has it uses it only inside the domain.
unsafe impl<T: Send> Send for Pointer<T> {}
// SAFETY: as above: one thread at a time is inside.
unsafe impl<T: Send> Sync for Pointer<T> {}

impl<T> Pointer<T> {
    /// A pointer to a part of an object.
    pub(crate) fn to(part: &mut T) -> Pointer<T> {
        Pointer(NonNull::from(part))
    }

    /// The object. `_right` is what stands for the right to use it: the table that owns it, or the
    /// place of the caller [`Inside`] the domain. The reference lives no longer than that borrow.
    ///
    /// # Safety
    /// The object is still there, and belongs to what `_right` stands for: nobody has a reference
    /// to it that was not borrowed from `_right`.
    #[inline(always)]
    pub(crate) unsafe fn get<R: ?Sized>(self, _right: &mut R) -> &mut T {
        let mut object = self.0;
        // SAFETY: the caller vouches for the object, and for being alone with it.
        unsafe { object.as_mut() }
    }
}

impl<T> Pointer<T> {
    /// The object, for the handle that posts on it.
    ///
    /// # Safety
    /// The caller is the only one inside the domain as long as the reference lives.
    #[inline(always)]
    pub(crate) unsafe fn get_alone<'a>(self) -> &'a mut T {
        let mut object = self.0;
        // SAFETY: as in `get`; the caller vouches for being alone.
        unsafe { object.as_mut() }
    }
}

/// Stands for being the only one inside a domain, for those who do not have its state.
pub(crate) struct Inside(());

impl Inside {
    /// # Safety
    /// The caller is the only one inside the domain as long as this value lives, and has no
    /// reference to its links.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Inside {
        Inside(())
    }
}
