//! The rules by which a queue pair gets frames.

use std_alloc::format;
use std_alloc::sync::Arc;

use super::super::path::Groups;
use super::super::qp_control::QpControl;
use super::super::queue_pair::SoftQp;
use super::switch::name_of;
use crate::error::{Code, SetupError};
use crate::provider::{FlowRule, Gid, QpType};

/// A rule of a queue pair, which ends with this value or with the queue pair (`struct ibv_flow`).
pub struct SoftFlow {
    groups: Arc<Groups>,
    name: Gid,
}

impl Drop for SoftFlow {
    fn drop(&mut self) {
        // It may have gone along with the queue pair.
        let _ = self.groups.leave(self.name);
    }
}

impl SoftQp {
    /// Gives the queue pair the frames that a rule speaks of (`ibv_create_flow`).
    ///
    /// # Errors
    /// `Invalid`: it is none of RAW_PACKET, or has that rule already.
    pub fn create_flow(&self, rule: FlowRule) -> Result<SoftFlow, SetupError> {
        let asked = || format!("the rule {rule:?} of a queue pair");
        let (Some(groups), QpType::RawPacket) = (&self.groups, self.kind) else {
            let answer = "only queue pairs of RAW_PACKET have rules";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        };
        let QpControl { domain, .. } = self.control();
        let name = name_of(rule);
        if groups.holds(name) {
            return Err(SetupError::new(Code::Invalid, asked(), "it has that one already"));
        }
        groups.add(name, &asked(), domain.host())?;
        Ok(SoftFlow { groups: groups.clone(), name })
    }
}
