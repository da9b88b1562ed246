//! Registered memory and memory windows, as their owners hold them.

use core::mem;

use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::device::pd::Pd;
use crate::error::{Code, SetupError};
use crate::handles::device::{Soft, table_full};
use crate::provider::{Access, Rereg, Reregistered, WindowKind};

/// Registered memory of the soft device.
pub struct SoftRegion {
    nic: Arc<Nic>,
    pub(super) memory: Mapping,
    pub(super) key: u32,
    pub(super) access: Access,
    pd: Pd,
}

impl Soft {
    pub(crate) fn new_region(
        &self,
        memory: Mapping,
        access: Access,
    ) -> Result<SoftRegion, SetupError> {
        let asked = || format!("a region of {} bytes with {access:?}", memory.len());
        if !access.is_consistent() {
            let answer = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE (MR-1)";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        match self.enter_region(&memory, access, &self.pd) {
            Some(key) => {
                let (nic, pd) = (self.nic.clone(), self.pd.clone());
                Ok(SoftRegion { nic, memory, key, access, pd })
            }
            None => Err(table_full(asked())),
        }
    }

    /// Enters memory in the table and returns its key, or `None` if the table is full.
    fn enter_region(&self, memory: &Mapping, access: Access, pd: &Pd) -> Option<u32> {
        // A region without remote rights has a name too: sends lend from it.
        let shown = self.nic.memory.is_shared();
        let file = if shown { (self.nic.host.name_file)(memory) } else { None };
        let (start, length) = (memory.as_ptr() as u64, memory.len() as u64);
        let file = file.map(|name| (name, memory.offset()));
        self.nic.memory.insert(start, length, (access, pd.mark()), file)
    }

    /// Enters the region again under another key and then removes its first entry, as deregistering
    /// and registering would do. If there is no room, nothing changes.
    pub(crate) fn change_region(
        &self,
        mut region: SoftRegion,
        change: Rereg,
    ) -> Reregistered<SoftRegion> {
        if let Some(refusal) = change.refusal(Arc::ptr_eq(&self.nic, &region.nic)) {
            return Err(change.refused(refusal, region));
        }
        let memory = change.memory.as_ref().unwrap_or(&region.memory);
        let access = change.access.unwrap_or(region.access);
        let pd = if change.pd { &self.pd } else { &region.pd };
        let Some(key) = self.enter_region(memory, access, pd) else {
            let cause = table_full(change.asked());
            return Err(change.refused(cause, region));
        };
        (region.pd, region.access) = (pd.clone(), access);
        // From here on, no peer is accessing the old memory.
        self.nic.memory.remove(mem::replace(&mut region.key, key));
        let old = change.memory.map(|memory| mem::replace(&mut region.memory, memory));
        Ok((region, old))
    }
}

impl SoftRegion {
    /// Gives it other rights under the same key. C programs expect that of `ibv_rereg_mr`;
    /// [`crate::provider::Reregister`] gives a new key, so that nobody holds an old one. Memory
    /// windows bound to the region close.
    ///
    /// # Errors
    /// `Invalid`: the rights contradict each other (MR-1); nothing has changed.
    pub fn change_access(&mut self, access: Access) -> Result<(), SetupError> {
        let change = Rereg { access: Some(access), ..Rereg::default() };
        change.refusal(true).map_or(Ok(()), Err)?;
        self.nic.memory.change_access(self.key, access);
        self.access = access;
        Ok(())
    }
}

impl Drop for SoftRegion {
    fn drop(&mut self) {
        self.nic.memory.remove(self.key);
    }
}

/// A memory window of the soft device.
pub struct SoftWindow {
    pub(crate) nic: Arc<Nic>,
    pub(crate) kind: WindowKind,
    pub(crate) key: u32,
    pub(crate) _pd: Pd,
}

impl Drop for SoftWindow {
    fn drop(&mut self) {
        self.nic.memory.remove(self.key);
    }
}
