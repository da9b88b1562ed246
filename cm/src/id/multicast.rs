//! Multicast groups of an id.

use std::net::IpAddr;

use doorbell_fabric::{CmError, CmId, Fabric, Join};

/// The multicast groups of an id; see [`Id::multicast`](super::Id::multicast).
pub struct Groups<'a, F: Fabric> {
    pub(super) cm: &'a mut F::Id,
    pub(super) joined: &'a mut Vec<IpAddr>,
}

impl<F: Fabric> Groups<'_, F> {
    /// Joins a group (`rdma_join_multicast`, `rdma_join_multicast_ex`): see
    /// [`CmId::join_multicast`].
    ///
    /// # Errors
    /// As there.
    pub fn join(&mut self, group: IpAddr, how: Join) -> Result<(), CmError> {
        self.cm.join_multicast(group, how)?;
        self.joined.push(group);
        Ok(())
    }

    /// Leaves a group (`rdma_leave_multicast`): see [`CmId::leave_multicast`].
    ///
    /// # Errors
    /// As there.
    pub fn leave(&mut self, group: IpAddr) -> Result<(), CmError> {
        self.cm.leave_multicast(group)?;
        if let Some(place) = self.joined.iter().position(|known| *known == group) {
            self.joined.swap_remove(place);
        }
        Ok(())
    }
}
