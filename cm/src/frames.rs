//! Calls for RAW_PACKET queue pairs only: flow rules and segmented sends.

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{FlowRule, QpType};
use doorbell_seam::wr::SendFlags;

use crate::buffer::Buffer;
use crate::error::Refused;
use crate::external::ExternalQp;

impl<F: Fabric> ExternalQp<F> {
    /// Adds a rule: from RTR on, the queue pair gets the frames that match it (`ibv_create_flow`).
    /// Rules end with the queue pair.
    ///
    /// # Errors
    /// `Invalid`: it is not a RAW_PACKET queue pair, or has that rule already. Otherwise the
    /// device's error.
    pub fn create_flow(&mut self, rule: FlowRule) -> Result<(), CmError> {
        let refused = |answer: &str| {
            Err(CmError::new(Code::Invalid, format!("the rule {rule:?} of a queue pair"), answer))
        };
        if self.kind() != QpType::RawPacket {
            return refused("only queue pairs of RAW_PACKET have rules");
        }
        let fabric = self.fabric().clone();
        let (qp, flows) = self.queue_pair().flows();
        if flows.iter().any(|(known, _)| *known == rule) {
            return refused("it has that rule already");
        }
        flows.push((rule, fabric.create_flow(qp, rule)?));
        Ok(())
    }

    /// Posts one TCP send, which is cut into frames (`IBV_WR_TSO`, QX-7). Each frame begins with
    /// its own version of `header` (Ethernet, IP, TCP) and takes `mss` bytes of the first `len` of
    /// the buffer; the last frame takes the rest.
    ///
    /// # Errors
    /// `Malformed`: the header is longer than [`crate::QpInit::max_tso_header`], or `mss` is 0;
    /// `State` before RTS. The buffer comes back.
    pub fn post_tso(
        &mut self,
        header: &[u8],
        mss: u16,
        buffer: Buffer<F>,
        len: usize,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        match self.check_sends() {
            Ok(()) => self.queue_pair().post_tso((header, mss), buffer, len, flags),
            Err(failed) => Err(Refused { cause: failed.cause, back: Some(buffer) }),
        }
    }

    /// Removes a rule (`ibv_destroy_flow`): its frames no longer come in.
    ///
    /// # Errors
    /// `Invalid`: there is no such rule.
    pub fn destroy_flow(&mut self, rule: FlowRule) -> Result<(), CmError> {
        let (_, flows) = self.queue_pair().flows();
        match flows.iter().position(|(known, _)| *known == rule) {
            Some(place) => {
                drop(flows.swap_remove(place));
                Ok(())
            }
            None => {
                let asked = format!("take the rule {rule:?} from a queue pair");
                Err(CmError::new(Code::Invalid, asked, "it has no such rule"))
            }
        }
    }
}
