//! Datagrams of ids and queue pairs: sending them, and finding their senders.

use doorbell_fabric::{CmError, Fabric, UDP_QKEY, UdParam};
use doorbell_seam::error::Code;
use doorbell_seam::provider::GRH_BYTES;
use doorbell_seam::wc::{Wc, WcFlags};
use doorbell_seam::wr::SendFlags;

use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::error::Refused;
use crate::external::ExternalQp;
use crate::id::Id;
use crate::target::Target;

impl<F: Fabric> Id<F> {
    /// The address of the sender of a datagram (`ibv_create_ah_from_wc`), with the key that queue
    /// pairs of ids use.
    ///
    /// # Errors
    /// `Invalid`: it is not a datagram, or came without its header.
    pub fn sender_of(&self, completion: &Completion<F>) -> Result<UdParam, CmError> {
        sender_of(self.fabric(), completion)
    }
}

impl<F: Fabric> ExternalQp<F> {
    /// See [`Queues::post_send_to`](crate::Queues::post_send_to).
    ///
    /// # Errors
    /// As there, and `State` before RTS.
    pub fn post_send_to(
        &mut self,
        target: &Target<F>,
        buffer: Buffer<F>,
        len: usize,
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        match self.check_sends() {
            Ok(()) => self.queue_pair().post_datagram(target, buffer, len, imm, flags),
            Err(failed) => Err(Refused { cause: failed.cause, back: Some(buffer) }),
        }
    }

    /// See [`Id::sender_of`].
    ///
    /// # Errors
    /// As there.
    pub fn sender_of(&self, completion: &Completion<F>) -> Result<UdParam, CmError> {
        sender_of(self.fabric(), completion)
    }
}

fn sender_of<F: Fabric>(fabric: &F, completion: &Completion<F>) -> Result<UdParam, CmError> {
    let Some((header, _)) = completion.datagram() else {
        let asked = "the address of a datagram's sender";
        let answer = "the completion is of no datagram, or without its header";
        return Err(CmError::new(Code::Invalid, asked, answer)
            .cure("ask for received datagrams alone: Completion::datagram tells which are"));
    };
    let (flags, src_qp) = (WcFlags::GRH, completion.src_qp);
    let wc = Wc { flags, src_qp, ..Wc::default() };
    Ok(UdParam { to: fabric.sender_of(&wc, header)?, qp_num: src_qp, qkey: UDP_QKEY })
}

impl<F: Fabric> Completion<F> {
    /// Header and payload of a received datagram; `None` for anything else, or if it came without
    /// its header.
    pub fn datagram(&self) -> Option<(&[u8; GRH_BYTES], &[u8])> {
        if !self.with_header {
            return None;
        }
        self.bytes().split_first_chunk()
    }
}
