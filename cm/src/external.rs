//! [`ExternalQp`]: a queue pair that its owner takes from state to state, with or without the
//! help of a connection manager.

use std::time::Duration;

use doorbell_fabric::{CmError, Fabric, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{QpCaps, QpType};
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::buffer::Buffer;
use crate::completion::{Completion, SendRequest, wait_for};
use crate::cq::CompletionQueue;
use crate::error::{PostFailed, Refused};
use crate::init::QpInit;
use crate::qp::{Parts, QueuePair};

/// A queue pair that belongs to no id (`ibv_create_qp`): made in RESET, and moved from state to
/// state by hand ([`ExternalQp::modify`]). An id can connect on its behalf
/// ([`crate::ByHand::connect`], [`crate::ByHand::accept`], CM-12) and gives the fields for each
/// state ([`crate::ByHand::init_qp_attr`]).
///
/// It knows its own state, and refuses a request that the state does not allow before the device
/// sees it: some devices refuse such a request but carry it out later.
pub struct ExternalQp<F: Fabric> {
    qp: QueuePair<F>,
    kind: QpType,
    state: QpState,
    /// The fields set last.
    set: QpFields,
    fabric: F,
}

impl<F: Fabric> ExternalQp<F> {
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// As for [`crate::Id::create_qp`].
    pub fn new(fabric: &F, init: &QpInit<F>) -> Result<ExternalQp<F>, CmError> {
        if !init.pd_or(fabric).is_same_device(fabric) {
            let answer = "the protection domain is of another device (QP-2)";
            return Err(CmError::new(Code::Invalid, "make a queue pair", answer)
                .cure("name a domain of the device on which you make it"));
        }
        let qp = QueuePair::with(fabric, init, |parts| match parts {
            Parts::Queues(attr) => init.pd_or(fabric).create_qp(attr),
            Parts::Domain(xrcd) => fabric.create_xrc_recv(xrcd),
        })?;
        let set = QpFields::default();
        Ok(ExternalQp { qp, kind: init.kind(), state: QpState::Reset, set, fabric: fabric.clone() })
    }

    /// Its number, which the peer needs.
    pub fn num(&self) -> u32 {
        self.qp.num()
    }

    /// Its user data ([`QpInit::context`], QX-18).
    pub fn context(&self) -> u64 {
        self.qp.context()
    }

    /// The granted capacities (QP-10).
    pub fn caps(&self) -> QpCaps {
        self.qp.caps()
    }

    /// The completion queue of its sends; XRC_RECV has none.
    pub fn send_cq(&self) -> Option<&CompletionQueue<F>> {
        self.qp.send_cq()
    }

    /// The completion queue of its receives; XRC has none.
    pub fn recv_cq(&self) -> Option<&CompletionQueue<F>> {
        self.qp.recv_cq()
    }

    /// The state it was moved to, or ERR once a request has failed; SQE if that was a send of a UC
    /// or UD queue pair (SM-3).
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Sets fields, and so moves it to another state (`ibv_modify_qp`).
    ///
    /// # Errors
    /// `Invalid`: no such transition, missing or excess fields (SM-6), or a value out of range; the
    /// queue pair stays as it is. `NotSupported`: the device cannot do this, and the error says
    /// what it can.
    pub fn modify(&mut self, fields: &QpFields) -> Result<(), CmError> {
        let to = fields.check(self.kind, self.state)?;
        self.fabric.modify_qp(self.qp.raw_mut(), self.state, fields)?;
        self.state = to;
        self.set = fields.or(self.set);
        if to == QpState::Reset {
            self.set = QpFields::default();
            self.qp.forget();
        }
        Ok(())
    }

    /// Its fields as the device reports them (`ibv_query_qp`), or as they were last set if the
    /// device does not report them (SM-5).
    ///
    /// # Errors
    /// The device's error.
    pub fn query(&self) -> Result<QpFields, CmError> {
        let fields = self.fabric.query_qp(self.qp.raw())?;
        Ok(fields.or(QpFields { state: Some(self.state), ..self.set }))
    }

    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }

    pub(crate) fn queue_pair(&mut self) -> &mut QueuePair<F> {
        &mut self.qp
    }

    pub(crate) fn fabric(&self) -> &F {
        &self.fabric
    }

    pub(crate) fn raw(&self) -> &F::Qp {
        self.qp.raw()
    }

    /// Posts one receive (`ibv_post_recv`).
    ///
    /// # Errors
    /// `State` in RESET; the queue is full. The buffer comes back.
    pub fn post_recv(&mut self, buffer: Buffer<F>) -> Result<(), Refused<Buffer<F>>> {
        let mut list = vec![buffer];
        let result = self.post_recvs(&mut list);
        result.map_err(|failed| Refused { cause: failed.cause, back: list.pop() })
    }

    /// Posts receives in order with one doorbell. Requests that were taken leave `list` (PL-1).
    ///
    /// # Errors
    /// As for one.
    pub fn post_recvs(&mut self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        match self.state {
            QpState::Reset => Err(PostFailed::state()),
            _ => self.qp.post_recvs(list),
        }
    }

    /// Posts one send of the first `len` bytes of a buffer (`ibv_post_send`).
    ///
    /// # Errors
    /// `State` before RTS; see [`doorbell_seam::wr::PostCause`]. The buffer comes back.
    pub fn post_send(
        &mut self,
        buffer: Buffer<F>,
        len: usize,
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        SendRequest { buffer, len, op, flags }.post_by(|list| self.post_sends(list))
    }

    /// Posts sends in order with one doorbell. Requests that were taken leave `list` (PL-1).
    ///
    /// # Errors
    /// As for one.
    pub fn post_sends(&mut self, list: &mut Vec<SendRequest<F>>) -> Result<(), PostFailed> {
        self.check_sends()?;
        self.qp.post_sends(list)
    }

    /// Posts one inline send: `bytes` is copied during the call (SQ-4).
    ///
    /// # Errors
    /// As for [`ExternalQp::post_send`].
    pub fn post_inline(
        &mut self,
        bytes: &[u8],
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        self.check_sends()?;
        self.qp.post_inline(bytes, op, flags)
    }

    pub(crate) fn check_sends(&self) -> Result<(), PostFailed> {
        match self.state {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostFailed::state()),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
        }
    }

    /// The next completed send, within `limit`.
    ///
    /// # Errors
    /// `TimedOut`. The completion says how the send itself ended.
    pub fn next_send(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        // Where nobody hears of a failed send, it does not affect receives (SM-3).
        let failed = if self.kind.is_unreliable() { QpState::Sqe } else { QpState::Err };
        self.next("a send", limit, QueuePair::poll_send, failed)
    }

    /// The next completed receive, within `limit`.
    ///
    /// # Errors
    /// As for [`ExternalQp::next_send`].
    pub fn next_recv(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        self.next("a receive", limit, QueuePair::poll_recv, QpState::Err)
    }

    fn next(
        &mut self,
        what: &str,
        limit: Duration,
        poll: fn(&mut QueuePair<F>) -> Option<Completion<F>>,
        failed: QpState,
    ) -> Result<Completion<F>, CmError> {
        let asked = || format!("wait for the completion of {what}");
        let completion = wait_for(limit, asked, || poll(&mut self.qp))?;
        if !completion.status.is_ok() && self.state != QpState::Err {
            self.state = failed;
        }
        Ok(completion)
    }
}
