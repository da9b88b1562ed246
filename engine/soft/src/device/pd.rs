//! Protection domains and parent domains.

use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::error::{Code, SetupError};
use crate::model::pd::PdMark;

/// A protection domain. Everything that belongs to it holds a clone. No number is used twice.
#[derive(Clone, Default)]
pub(crate) struct Pd {
    mark: Arc<PdMark>,
    parent: Option<Arc<Parent>>,
}

/// A parent domain around it. The device treats both alike, but counts objects made through the
/// parent separately.
struct Parent {
    _td: Option<SoftTd>,
}

/// A thread domain of the soft device. Its owner has promised to use the objects made on its parent
/// domains from one thread at a time. This device does not need that promise: its only locks are
/// those of completion queues, and [`crate::provider::Sharing`] tells which queues need none.
#[derive(Clone)]
pub struct SoftTd {
    pub(crate) nic: Arc<Nic>,
    life: Arc<()>,
}

impl SoftTd {
    pub(crate) fn new(nic: &Arc<Nic>) -> SoftTd {
        SoftTd { nic: nic.clone(), life: Arc::new(()) }
    }

    pub(crate) fn users(&self) -> usize {
        Arc::strong_count(&self.life)
    }
}

impl Pd {
    /// A new one.
    pub(crate) fn new(nic: &Nic) -> Result<Pd, SetupError> {
        let mark = PdMark::of(nic.next_pd()).ok_or_else(|| {
            SetupError::new(Code::NoMemory, "a protection domain", "all numbers have been used")
                .cure("open the device anew")
        })?;
        Ok(Pd { mark: Arc::new(mark), parent: None })
    }

    /// A parent domain around the same protection domain.
    pub(crate) fn within_parent(&self, td: Option<&SoftTd>) -> Pd {
        let parent = Parent { _td: td.cloned() };
        Pd { mark: self.mark.clone(), parent: Some(Arc::new(parent)) }
    }

    pub(crate) fn mark(&self) -> PdMark {
        *self.mark
    }

    /// The number of its users; for a parent domain, of the parent's own users.
    pub(crate) fn users(&self) -> usize {
        match &self.parent {
            Some(parent) => Arc::strong_count(parent),
            None => Arc::strong_count(&self.mark),
        }
    }
}
