//! Rules of queue pairs of RAW_PACKET.

use std::io;

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::FlowRule;

use crate::handles::Owned;
use crate::rdma_core::ibv_flow;
use crate::{Verbs, VerbsQp, objects};

/// The port a queue pair of this crate is on.
const PORT: u8 = 1;

/// A rule, until it is dropped.
pub struct VerbsFlow {
    _flow: Owned<ibv_flow>,
    /// Counts as a user of its protection domain.
    _device: Verbs,
}

impl VerbsFlow {
    /// `ibv_create_flow`.
    pub(super) fn new(device: &Verbs, qp: &VerbsQp, rule: FlowRule) -> Result<VerbsFlow, CmError> {
        let asked = format!("the rule {rule:?} of a queue pair on {}", device.name());
        let Some(flow) = objects::create_flow(qp.raw(), PORT, rule) else {
            let answer = "its driver has no such rules";
            return Err(CmError::new(Code::NotSupported, asked, answer));
        };
        let flow =
            flow.map_err(|errno| CmError::from_io(asked, &io::Error::from_raw_os_error(errno)))?;
        Ok(VerbsFlow { _flow: flow, _device: device.clone() })
    }
}
