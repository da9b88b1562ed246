//! Changing what memory is registered as (`ibv_rereg_mr`, MR-5).

use core::fmt;

use bitflags::bitflags;
use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;

use super::Access;
use crate::error::{Code, SetupError};

bitflags! {
    /// What of a region changes (`enum ibv_rereg_mr_flags`, numbers as there).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReregFlags: u8 {
        /// Where it lies, and how long it is.
        const CHANGE_TRANSLATION = 1 << 0;
        /// The protection domain it belongs to.
        const CHANGE_PD = 1 << 1;
        /// What it may be used for.
        const CHANGE_ACCESS = 1 << 2;
    }
}

/// What to change of a region; what is not named stays. See [`super::Reregister::reregister`].
#[derive(Debug, Default)]
pub struct Rereg {
    /// The memory it is of from now on.
    pub memory: Option<Mapping>,
    /// It goes to the protection domain of the handle that is asked.
    pub pd: bool,
    /// What it may be used for from now on.
    pub access: Option<Access>,
}

impl Rereg {
    /// Which properties it changes.
    pub fn flags(&self) -> ReregFlags {
        let mut flags = ReregFlags::empty();
        flags.set(ReregFlags::CHANGE_TRANSLATION, self.memory.is_some());
        flags.set(ReregFlags::CHANGE_PD, self.pd);
        flags.set(ReregFlags::CHANGE_ACCESS, self.access.is_some());
        flags
    }

    /// Why no device does it, if that is so.
    pub fn refusal(&self, same_device: bool) -> Option<SetupError> {
        let invalid = |answer| SetupError::new(Code::Invalid, self.asked(), answer);
        if self.access.is_some_and(|access| !access.is_consistent()) {
            return Some(invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (MR-1)"));
        }
        (!same_device).then(|| invalid("the region is of another device"))
    }

    /// What was asked for, for an error.
    pub fn asked(&self) -> std_alloc::string::String {
        std_alloc::format!("change a region by {:?}", self.flags())
    }

    /// Refused: the region is as it was.
    pub fn refused<R>(self, cause: SetupError, region: R) -> ReregFailed<R> {
        ReregFailed::new(cause, Left::Region(region), self.memory)
    }
}

/// The region, and the memory it was of if that changed; or why not.
pub type Reregistered<R> = Result<(R, Option<Mapping>), ReregFailed<R>>;

/// A region could not be changed. The man page says of each error whether the region is as it was;
/// here its type says so.
pub struct ReregFailed<R>(Box<Parts<R>>);

struct Parts<R> {
    cause: SetupError,
    left: Left<R>,
    memory: Option<Mapping>,
}

/// What is there after a region could not be changed.
pub enum Left<R> {
    /// The region, as it was.
    Region(R),
    /// The device failed midway: the region is registered no more. Its memory; none if the device
    /// did not let go of it, which keeps it mapped for good.
    Memory(Option<Mapping>),
}

impl<R> ReregFailed<R> {
    /// A failure for that cause; what is left of the region, and the memory that was to be its.
    pub fn new(cause: SetupError, left: Left<R>, memory: Option<Mapping>) -> ReregFailed<R> {
        ReregFailed(Box::new(Parts { cause, left, memory }))
    }

    /// Why.
    pub fn cause(&self) -> &SetupError {
        &self.0.cause
    }

    /// Why, what is left of the region, and the memory that it was to be of.
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
