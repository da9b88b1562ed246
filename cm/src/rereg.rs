//! Changing the registration of exposed memory: MR-5.

use std::fmt;
use std::sync::Arc;

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Left, Rereg, Reregister};

use crate::error::NotChanged;
use crate::exposed::{self, Exposed};

/// What to change about exposed memory (`ibv_rereg_mr`); anything not given stays.
///
/// ```
/// use doorbell_cm::{Exposed, ExposedChange, NotChanged};
/// use doorbell_soft::SoftDevice;
/// use doorbell_seam::provider::Access;
///
/// # type Changed = Result<Exposed<SoftDevice>, NotChanged<Exposed<SoftDevice>>>;
/// # fn closed(device: &SoftDevice, memory: Exposed<SoftDevice>) -> Changed {
/// let read_only = ExposedChange::new().rights(Access::REMOTE_READ);
/// memory.reregister(device, &read_only)
/// # }
/// ```
pub struct ExposedChange<P: Reregister> {
    rights: Option<Access>,
    pd: Option<P>,
    len: Option<usize>,
}

impl<P: Reregister> Default for ExposedChange<P> {
    fn default() -> Self {
        ExposedChange { rights: None, pd: None, len: None }
    }
}

impl<P: Reregister> ExposedChange<P> {
    /// Nothing yet.
    pub fn new() -> ExposedChange<P> {
        ExposedChange::default()
    }

    /// What peers may do (`IBV_REREG_MR_CHANGE_ACCESS`), as for [`Exposed::new`].
    #[must_use]
    pub fn rights(mut self, rights: Access) -> Self {
        self.rights = Some(rights);
        self
    }

    /// The handle to whose protection domain it goes (`IBV_REREG_MR_CHANGE_PD`).
    #[must_use]
    pub fn pd(mut self, pd: &P) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Other memory of `len` bytes, zeroed (`IBV_REREG_MR_CHANGE_TRANSLATION`). Its present
    /// contents are not copied: read them first.
    #[must_use]
    pub fn memory(mut self, len: usize) -> Self {
        self.len = Some(len);
        self
    }
}

impl<P: Reregister> Exposed<P> {
    /// Registers it differently (`ibv_rereg_mr`, MR-5). What peers were told before may no longer
    /// hold: tell them [`Exposed::remote`] again. A key that has changed opens nothing.
    ///
    /// # Errors
    /// `Busy`: there are other handles on it, or a window is bound to it (MR-4); `Invalid`: the
    /// device or the domain belongs to another device; `NotSupported`: the device cannot change
    /// that ([`doorbell_seam::provider::Caps::rereg`]); `NoMemory`. The memory comes back
    /// unchanged, unless the device failed midway: then it is gone.
    pub fn reregister(
        self,
        device: &P,
        change: &ExposedChange<P>,
    ) -> Result<Exposed<P>, NotChanged<Exposed<P>>> {
        let refused = |cause, back| Err(NotChanged { cause, back: Some(back) });
        let memory = match change.len.map(exposed::map).transpose() {
            Ok(memory) => memory,
            Err(cause) => return refused(cause, self),
        };
        let Exposed { region, len } = self;
        let region = match Arc::try_unwrap(region) {
            Ok(region) => region,
            Err(region) => {
                let answer = "there are other handles on it, or a window is bound to it (MR-4)";
                let cause = CmError::new(Code::Busy, "change exposed memory", answer)
                    .cure("drop those first");
                return refused(cause, Exposed { region, len });
            }
        };
        let access = change.rights.map(exposed::access);
        let wanted = Rereg { memory, pd: change.pd.is_some(), access };
        match change.pd.as_ref().unwrap_or(device).reregister(region, wanted) {
            Ok((region, _)) => {
                Ok(Exposed { region: Arc::new(region), len: change.len.unwrap_or(len) })
            }
            Err(failed) => {
                let (cause, left, _) = failed.into_parts();
                let back = match left {
                    Left::Region(region) => Some(Exposed { region: Arc::new(region), len }),
                    Left::Memory(_) => None,
                };
                Err(NotChanged { cause: cause.into(), back })
            }
        }
    }
}

impl<P: Reregister> fmt::Debug for ExposedChange<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExposedChange")
            .field("rights", &self.rights)
            .field("pd", &self.pd.is_some())
            .field("len", &self.len)
            .finish()
    }
}
