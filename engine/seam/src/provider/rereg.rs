//! Changing the registration of memory (`ibv_rereg_mr`, MR-5).

use core::fmt;

use bitflags::bitflags;
use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;

use super::Access;
use crate::error::{Code, SetupError};

bitflags! {
    /// What changes about a region (`enum ibv_rereg_mr_flags`, numbers as there).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReregFlags: u8 {
        /// Its address and length.
        const CHANGE_TRANSLATION = 1 << 0;
        /// The protection domain it belongs to.
        const CHANGE_PD = 1 << 1;
        /// Its access rights.
        const CHANGE_ACCESS = 1 << 2;
    }
}

/// What to change about a region; anything not given stays. See [`super::Reregister::reregister`].
#[derive(Debug, Default)]
pub struct Rereg {
    /// Its new memory.
    pub memory: Option<Mapping>,
    /// True to move it to the protection domain of the handle that makes the call.
    pub pd: bool,
    /// Its new access rights.
    pub access: Option<Access>,
}

impl Rereg {
    /// The properties that it changes.
    pub fn flags(&self) -> ReregFlags {
        let mut flags = ReregFlags::empty();
        flags.set(ReregFlags::CHANGE_TRANSLATION, self.memory.is_some());
        flags.set(ReregFlags::CHANGE_PD, self.pd);
        flags.set(ReregFlags::CHANGE_ACCESS, self.access.is_some());
        flags
    }

    /// Why every device refuses it, if so.
    pub fn refusal(&self, same_device: bool) -> Option<SetupError> {
        let invalid = |answer| SetupError::new(Code::Invalid, self.asked(), answer);
        if self.access.is_some_and(|access| !access.is_consistent()) {
            return Some(invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (MR-1)"));
        }
        (!same_device).then(|| invalid("the region is of another device"))
    }

    /// The request as text, for an error.
    pub fn asked(&self) -> std_alloc::string::String {
        std_alloc::format!("change a region by {:?}", self.flags())
    }

    /// A refusal: the region is unchanged.
    pub fn refused<R>(self, cause: SetupError, region: R) -> ReregFailed<R> {
        ReregFailed::new(cause, Left::Region(region), self.memory)
    }
}

/// The region, and its previous memory if that changed; or the failure.
pub type Reregistered<R> = Result<(R, Option<Mapping>), ReregFailed<R>>;

/// A region could not be changed. For each error the man page says whether the region is unchanged;
/// here the type says so.
pub struct ReregFailed<R>(Box<Parts<R>>);

struct Parts<R> {
    cause: SetupError,
    left: Left<R>,
    memory: Option<Mapping>,
}

/// What is left after a region could not be changed.
pub enum Left<R> {
    /// The region, unchanged.
    Region(R),
    /// The device failed midway: the region is no longer registered. Holds its memory, or none if
    /// the device did not release it; that memory stays mapped for ever.
    Memory(Option<Mapping>),
}

impl<R> ReregFailed<R> {
    /// Makes a failure from its cause, what is left of the region, and the memory meant for it.
    pub fn new(cause: SetupError, left: Left<R>, memory: Option<Mapping>) -> ReregFailed<R> {
        ReregFailed(Box::new(Parts { cause, left, memory }))
    }

    /// Why.
    pub fn cause(&self) -> &SetupError {
        &self.0.cause
    }

    /// The cause, what is left of the region, and the memory meant for it.
    pub fn into_parts(self) -> (SetupError, Left<R>, Option<Mapping>) {
        let Parts { cause, left, memory } = *self.0;
        (cause, left, memory)
    }
}

impl<R> fmt::Debug for ReregFailed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let as_it_was = matches!(self.0.left, Left::Region(_));
        f.debug_struct("ReregFailed")
            .field("cause", &self.0.cause)
            .field("as_it_was", &as_it_was)
            .finish_non_exhaustive()
    }
}

impl<R> fmt::Display for ReregFailed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.cause.fmt(f)
    }
}

impl<R> core::error::Error for ReregFailed<R> {}
