//! Datagrams of ids and queue pairs: where they go, and where they came from.

use std::fmt;

use doorbell_engine::error::Code;
use doorbell_engine::provider::{AddressHandle, GRH_BYTES};
use doorbell_engine::wc::{Wc, WcFlags};
use doorbell_engine::wr::{Destination, SendFlags, SendOp};

use crate::attr::{UDP_QKEY, UdParam};
use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::error::{CmError, PostFailed, Refused};
use crate::external::ExternalQp;
use crate::fabric::Fabric;
use crate::id::Id;

/// Where datagrams go: an address handle (`ibv_create_ah`) with the queue pair at its end. Cloning
/// gives another on the same handle. Sends keep it until they have completed.
pub struct Target<F: Fabric> {
    way: F::Ah,
    qp_num: u32,
    qkey: u32,
}

impl<F: Fabric> Clone for Target<F> {
    fn clone(&self) -> Self {
        Target { way: self.way.clone(), ..*self }
    }
}

impl<F: Fabric> Target<F> {
    /// The target that an event or a datagram names.
    ///
    /// # Errors
    /// What the device says to the address.
    pub fn new(fabric: &F, to: &UdParam) -> Result<Target<F>, CmError> {
        Ok(Target { way: fabric.create_ah(&to.to)?, qp_num: to.qp_num, qkey: to.qkey })
    }

    /// Another queue pair on the same way, with its key.
    #[must_use]
    pub fn other(&self, qp_num: u32, qkey: u32) -> Target<F> {
        Target { way: self.way.clone(), qp_num, qkey }
    }

    pub(crate) fn way(&self) -> &F::Ah {
        &self.way
    }

    /// The request that goes there.
    pub(crate) fn op(&self, imm: Option<u32>) -> SendOp {
        let to = Destination { ah: self.way.name(), qpn: self.qp_num, qkey: self.qkey };
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

impl<F: Fabric> Id<F> {
    /// Posts one datagram: the first `len` bytes of a buffer, at most the path's MTU.
    ///
    /// # Errors
    /// See [`doorbell_engine::wr::PostCause`]; the buffer comes back. Whether it arrives nobody
    /// knows.
    pub fn post_send_to(
        &mut self,
        target: &Target<F>,
        buffer: Buffer<F>,
        len: usize,
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        match self.queue_pair() {
            Some(qp) => qp.post_datagram(target, buffer, len, imm, flags),
            None => Err(Refused { cause: PostFailed::state().cause, back: Some(buffer) }),
        }
    }

    /// As [`Id::post_send_to`], with `bytes` copied during the call (SQ-4).
    ///
    /// # Errors
    /// As there.
    pub fn post_inline_to(
        &mut self,
        target: &Target<F>,
        bytes: &[u8],
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        match self.queue_pair() {
            Some(qp) => qp.post_inline_datagram(target, bytes, imm, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// The way back to the sender of a datagram (`ibv_create_ah_from_wc`), with the key that queue
    /// pairs of ids have.
    ///
    /// # Errors
    /// `Invalid`: it is no datagram, or came without its header.
    pub fn sender_of(&self, completion: &Completion<F>) -> Result<UdParam, CmError> {
        sender_of(self.fabric(), completion)
    }
}

impl<F: Fabric> ExternalQp<F> {
    /// See [`Id::post_send_to`].
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
        let asked = "the way back to a sender";
        let answer = "the completion is of no datagram, or without its header";
        return Err(CmError::new(Code::Invalid, asked, answer));
    };
    let (flags, src_qp) = (WcFlags::GRH, completion.src_qp);
    let wc = Wc { flags, src_qp, ..Wc::default() };
    Ok(UdParam { to: fabric.sender_of(&wc, header)?, qp_num: src_qp, qkey: UDP_QKEY })
}

impl<F: Fabric> Completion<F> {
    /// Header and payload of a datagram that was received; none of anything else, or if it came
    /// without its header.
    pub fn datagram(&self) -> Option<(&[u8; GRH_BYTES], &[u8])> {
        if !self.with_header {
            return None;
        }
        self.bytes().split_first_chunk()
    }
}
