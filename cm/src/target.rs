//! Destinations of datagrams.

use std::fmt;

use doorbell_fabric::{CmError, Fabric, UdParam};
use doorbell_seam::provider::AddressHandle;
use doorbell_seam::wr::{Destination, SendOp};

/// A destination of datagrams: an address handle (`ibv_create_ah`) and the queue pair at its end.
/// Clones share the handle. Sends keep it until they have completed.
pub struct Target<F: Fabric> {
    ah: F::Ah,
    qp_num: u32,
    qkey: u32,
}

impl<F: Fabric> Clone for Target<F> {
    fn clone(&self) -> Self {
        Target { ah: self.ah.clone(), ..*self }
    }
}

impl<F: Fabric> Target<F> {
    /// The target that an event or a datagram names.
    ///
    /// # Errors
    /// The device's error for the address.
    pub fn new(fabric: &F, to: &UdParam) -> Result<Target<F>, CmError> {
        Ok(Target { ah: fabric.create_ah(&to.to)?, qp_num: to.qp_num, qkey: to.qkey })
    }

    /// Another queue pair through the same address handle, with its key.
    #[must_use]
    pub fn other(&self, qp_num: u32, qkey: u32) -> Target<F> {
        Target { ah: self.ah.clone(), qp_num, qkey }
    }

    pub(crate) fn ah(&self) -> &F::Ah {
        &self.ah
    }

    /// The request that goes there.
    pub(crate) fn op(&self, imm: Option<u32>) -> SendOp {
        let to = Destination { ah: self.ah.name(), qpn: self.qp_num, qkey: self.qkey };
        match imm {
            None => SendOp::SendTo(to),
            Some(imm) => SendOp::SendToWithImm(to, imm),
        }
    }
}

impl<F: Fabric> fmt::Debug for Target<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("qp_num", &self.qp_num)
            .field("qkey", &self.qkey)
            .finish_non_exhaustive()
    }
}
