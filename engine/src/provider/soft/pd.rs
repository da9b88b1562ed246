//! Protection domains: what belongs to one, and to which.

use std_alloc::sync::Arc;

use super::memory::PdMark;
use super::nic::Nic;
use crate::error::{Code, SetupError};

/// A protection domain. All that belongs to it holds a clone, so its number is never another's
/// while anything of it is there; nor later: numbers do not come back.
#[derive(Clone, Default)]
pub(super) struct Pd(Arc<PdMark>);

impl Pd {
    /// A new one.
    pub(super) fn new(nic: &Nic) -> Result<Pd, SetupError> {
        let mark = PdMark::of(nic.next_pd()).ok_or_else(|| {
            SetupError::new(Code::NoMemory, "a protection domain", "all numbers have been used")
                .cure("open the device anew")
        })?;
        Ok(Pd(Arc::new(mark)))
    }

    pub(super) fn mark(&self) -> PdMark {
        *self.0
    }

    /// How many hold it.
    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}
