//! Connecting a queue pair that is not the id's: the program makes the transitions itself.

use std::borrow::Cow;

use doorbell_fabric::{CmError, CmId, ConnParam, Fabric, QpFields, QpState};
use doorbell_seam::error::Code;

use crate::external::ExternalQp;

/// The connection of a queue pair that is not the id's; see [`Id::by_hand`](super::Id::by_hand).
pub struct ByHand<'a, F: Fabric> {
    pub(super) cm: &'a mut F::Id,
    /// The number of the id's own queue pair, which it must not have.
    pub(super) own_qp: Option<u32>,
    /// Bytes of the address that go to the peer in front of private data (EP-5).
    pub(super) first: &'a [u8],
}

impl<F: Fabric> ByHand<'_, F> {
    /// Connects `qp` (`rdma_connect` with a `qp_num`). The answer is CONNECT_RESPONSE; a
    /// synchronous id waits for it. Then move the queue pair to RTS by hand and call
    /// [`ByHand::establish`] (CM-12).
    ///
    /// # Errors
    /// As for [`CmId::connect`], and `Invalid` on an id with a queue pair of its own.
    pub fn connect(&mut self, qp: &ExternalQp<F>, param: &ConnParam<'_>) -> Result<(), CmError> {
        self.check_no_qp("connect on behalf of a queue pair")?;
        let data = whole_data(self.first, param.private_data);
        self.cm.connect_with(qp.raw(), &ConnParam { private_data: &data, ..*param })
    }

    /// Accepts for `qp`, which is already in RTS (`rdma_accept` with a `qp_num`).
    ///
    /// # Errors
    /// As for [`CmId::accept`], and `Invalid` on an id with a queue pair of its own, or before
    /// RTS.
    pub fn accept(&mut self, qp: &ExternalQp<F>, param: &ConnParam<'_>) -> Result<(), CmError> {
        let asked = "accept on behalf of a queue pair";
        self.check_no_qp(asked)?;
        if qp.state() != QpState::Rts {
            let answer = format!("it is in {:?}, and the peer may send at once", qp.state());
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("take it to RTS first, with what init_qp_attr says"));
        }
        self.cm.accept_with(qp.raw(), param)
    }

    /// The fields to set on the queue pair to move it to INIT, RTR or RTS
    /// (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// `Invalid`: another state, or too early.
    pub fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError> {
        self.cm.init_qp_attr(state)
    }

    /// Tells the peer that the connection is up, once the queue pair of [`ByHand::connect`] is in
    /// RTS (`rdma_establish`).
    ///
    /// # Errors
    /// `Invalid` on an id with a queue pair of its own, or without an answer of the peer (CM-12).
    pub fn establish(&mut self) -> Result<(), CmError> {
        self.check_no_qp("establish a connection")?;
        self.cm.establish()
    }

    fn check_no_qp(&self, asked: &str) -> Result<(), CmError> {
        match self.own_qp {
            None => Ok(()),
            Some(number) => {
                let answer = format!("the id has queue pair {number} of its own (CM-12)");
                Err(CmError::new(Code::Invalid, asked, answer)
                    .cure("use an id without one, or Id::connect and Id::accept"))
            }
        }
    }
}

/// Private data, with the bytes that go first.
pub(super) fn whole_data<'a>(first: &[u8], data: &'a [u8]) -> Cow<'a, [u8]> {
    match first.is_empty() {
        true => Cow::Borrowed(data),
        false => Cow::Owned([first, data].concat()),
    }
}
