//! Flow rules: which frames a queue pair receives.

use std_alloc::format;
use std_alloc::sync::Arc;

use super::switch::name_of;
use crate::device::path::Groups;
use crate::error::{Code, SetupError};
use crate::handles::qp_control::QpControl;
use crate::handles::queue_pair::SoftQp;
use crate::provider::{FlowRule, QpType};

/// A flow rule of a queue pair. It ends when this value or the queue pair is dropped (`struct
/// ibv_flow`).
pub struct SoftFlow {
    groups: Arc<Groups>,
    rule: FlowRule,
}

impl Drop for SoftFlow {
    fn drop(&mut self) {
        let mut rules = self.groups.rules.lock();
        rules.retain(|rule| *rule != self.rule);
        let name = name_of(self.rule);
        if rules.iter().all(|rule| name_of(*rule) != name) {
            // The rule may already be gone with its queue pair.
            let _ = self.groups.leave(name);
        }
    }
}

impl SoftQp {
    /// Makes the queue pair receive the frames that match a rule (`ibv_create_flow`).
    ///
    /// # Errors
    /// `Invalid`: the queue pair is not RAW_PACKET, or already has that rule.
    pub fn create_flow(&self, rule: FlowRule) -> Result<SoftFlow, SetupError> {
        let asked = || format!("the rule {rule:?} of a queue pair");
        let (Some(groups), QpType::RawPacket) = (&self.groups, self.kind) else {
            let answer = "only queue pairs of RAW_PACKET have rules";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        };
        let QpControl { domain, .. } = self.control();
        let mut rules = groups.rules.lock();
        if rules.contains(&rule) {
            return Err(SetupError::new(Code::Invalid, asked(), "it has that rule already"));
        }
        groups.add(name_of(rule), &asked(), domain.host())?;
        rules.push(rule);
        Ok(SoftFlow { groups: groups.clone(), rule })
    }
}
