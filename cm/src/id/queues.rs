//! Requests and completions of an id: its queue pair and its shared receive queue at work.

use std::ops::Range;
use std::time::Duration;

use doorbell_fabric::{CmError, CmId, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wr::{Remote, SendFlags, SendOp};

use crate::buffer::Buffer;
use crate::completion::{Completion, SendRequest, wait_for};
use crate::error::{PostFailed, Refused};
use crate::exposed::Exposed;
use crate::qp::QueuePair;
use crate::srq::SharedReceive;
use crate::target::Target;
use crate::window::Window;

/// How often to look for completions after the peer has left, with a nap between two looks: about a
/// second, and more on a busy machine. The peer's last messages and acknowledgements take another
/// path than the notice that it has gone, and may come later.
const LAST_LOOKS: u32 = 10_000;

/// Empty polls before a wait begins to sleep.
const SPINS: u32 = 2000;

/// The queues of an id; see [`Id::queues`](super::Id::queues).
pub struct Queues<'a, F: Fabric> {
    pub(super) qp: Option<&'a mut QueuePair<F>>,
    pub(super) srq: Option<&'a SharedReceive<F>>,
    pub(super) cm: &'a mut F::Id,
}

impl<F: Fabric> Queues<'_, F> {
    /// Posts one receive (`rdma_post_recv`), to the shared queue where there is one (SRQ-8).
    ///
    /// # Errors
    /// The queue is full, or there is no queue pair; the buffer comes back.
    pub fn post_recv(&mut self, buffer: Buffer<F>) -> Result<(), Refused<Buffer<F>>> {
        let mut list = vec![buffer];
        let result = self.post_recvs(&mut list);
        result.map_err(|failed| Refused { cause: failed.cause, back: list.pop() })
    }

    /// Posts receives in order with one doorbell. Requests that were taken leave `list`; on an
    /// error the rest stays in it (PL-1).
    ///
    /// # Errors
    /// The queue is full, or there is no queue pair.
    pub fn post_recvs(&mut self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        match (&mut self.qp, self.srq) {
            (Some(qp), srq) if qp.recv_cq().is_some() || srq.is_none() => qp.post_recvs(list),
            (_, Some(srq)) => srq.post(list),
            (_, None) => Err(PostFailed::state()),
        }
    }

    /// Posts one send of the first `len` bytes of a buffer (`rdma_post_send`).
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]; the buffer comes back.
    pub fn post_send(
        &mut self,
        buffer: Buffer<F>,
        len: usize,
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        SendRequest { buffer, len, op, flags }.post_by(|list| self.post_sends(list))
    }

    /// Posts sends in order with one doorbell. Requests that were taken leave `list`; on an error
    /// the rest stays in it (PL-1).
    ///
    /// One call is a batch: it is never left open, so nobody else can post in between:
    /// ```
    /// use doorbell_cm::{Id, SendRequest};
    /// use doorbell_soft::SoftDevice;
    ///
    /// type List = Vec<SendRequest<SoftDevice>>;
    /// fn both(id: &mut Id<SoftDevice>, one: &mut List, two: &mut List) {
    ///     std::thread::scope(|scope| scope.spawn(|| id.queues().post_sends(one)).join()).ok();
    ///     std::thread::scope(|scope| scope.spawn(|| id.queues().post_sends(two)).join()).ok();
    /// }
    /// ```
    /// Two at once do not compile (PL-4):
    /// ```compile_fail,E0499
    /// use doorbell_cm::{Id, SendRequest};
    /// use doorbell_soft::SoftDevice;
    ///
    /// type List = Vec<SendRequest<SoftDevice>>;
    /// fn both(id: &mut Id<SoftDevice>, one: &mut List, two: &mut List) {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| id.queues().post_sends(one));
    ///         scope.spawn(|| id.queues().post_sends(two));
    ///     });
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]. A list that cannot be built posts nothing:
    /// `BeyondBuffer` (EFAULT) for a length beyond a buffer, `Malformed` for an operation that only
    /// another call can post.
    pub fn post_sends(&mut self, list: &mut Vec<SendRequest<F>>) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_sends(list),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts one inline send: `bytes` is copied during the call (SQ-4).
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`].
    pub fn post_inline(
        &mut self,
        bytes: &[u8],
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_inline(bytes, op, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts one datagram (`rdma_post_ud_send`): the first `len` bytes of a buffer, at most the
    /// path's MTU.
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]; the buffer comes back. Success does not mean that the
    /// datagram arrives.
    pub fn post_send_to(
        &mut self,
        target: &Target<F>,
        buffer: Buffer<F>,
        len: usize,
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        match &mut self.qp {
            Some(qp) => qp.post_datagram(target, buffer, len, imm, flags),
            None => Err(Refused { cause: PostFailed::state().cause, back: Some(buffer) }),
        }
    }

    /// As [`Queues::post_send_to`], with `bytes` copied during the call (SQ-4).
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
        match &mut self.qp {
            Some(qp) => qp.post_inline_datagram(target, bytes, imm, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts a request that opens a window onto those bytes of `memory`, with those rights
    /// (`ibv_bind_mw`, or a BIND_MW request, by the window's kind; MW-1). The memory must be
    /// exposed with MW_BIND. Returns what to tell the peer; it is valid once the request has
    /// completed. An empty range closes a window of type 1.
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]; `BeyondBuffer` (EFAULT) for bytes beyond the memory,
    /// `Device(22)` (EINVAL) for a window of type 2 whose queue pair is gone.
    pub fn bind_window(
        &mut self,
        window: &mut Window<F>,
        memory: &Exposed<F>,
        bytes: Range<usize>,
        rights: Access,
        flags: SendFlags,
    ) -> Result<Remote, PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.bind_window(window, memory, bytes, rights, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts a request that invalidates our own window of type 2 with that key (LOCAL_INV). With a
    /// [`SendFlags::FENCE`] it waits for READs through the window.
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`].
    pub fn invalidate(&mut self, rkey: u32, flags: SendFlags) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_bare(SendOp::LocalInv(rkey), flags),
            None => Err(PostFailed::state()),
        }
    }

    /// The next completed send (`rdma_get_send_comp`), within `limit`.
    ///
    /// # Errors
    /// `TimedOut`; `Reset` if the peer has left and nothing more has completed; `Invalid` without a
    /// queue pair. The completion says how the send itself ended.
    pub fn next_send(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        self.next("a send", limit, |queues| queues.qp.as_mut().map(|qp| qp.poll_send()))
    }

    /// The next completed receive (`rdma_get_recv_comp`), within `limit`. On an id of XRC_RECV it
    /// is one of its shared receive queue, which any queue pair of the domain may have filled.
    ///
    /// # Errors
    /// As for [`Queues::next_send`].
    pub fn next_recv(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        self.next("a receive", limit, |queues| match (&mut queues.qp, queues.srq) {
            (Some(qp), _) if qp.recv_cq().is_some() => Some(qp.poll_recv()),
            (_, Some(srq)) if srq.cq().is_some() => Some(srq.poll()),
            _ => None,
        })
    }

    /// The next completed send, if there is one: for loops that never wait. The id's channel, or
    /// [`Id::peer_left`](super::Id::peer_left), tells when the peer has gone.
    pub fn poll_send(&mut self) -> Option<Completion<F>> {
        self.qp.as_mut()?.poll_send()
    }

    /// The next completed receive of the id's queue pair, if there is one; as
    /// [`Queues::poll_send`].
    pub fn poll_recv(&mut self) -> Option<Completion<F>> {
        self.qp.as_mut()?.poll_recv()
    }

    /// Takes the buffers of unsignalled sends whose slots are free again (SQ-2).
    pub fn take_retired(&mut self) -> Vec<Buffer<F>> {
        self.qp.as_mut().map(|qp| qp.take_retired()).unwrap_or_default()
    }

    fn next(
        &mut self,
        what: &str,
        limit: Duration,
        poll: fn(&mut Self) -> Option<Option<Completion<F>>>,
    ) -> Result<Completion<F>, CmError> {
        let asked = || format!("wait for the completion of {what}");
        let failed = |code, answer: &str| Some(Err(CmError::new(code, asked(), answer)));
        let mut spins = if limit.is_zero() { SPINS } else { 0 };
        let mut last_looks = 0;
        wait_for(limit, asked, || {
            loop {
                match poll(self) {
                    None => {
                        let answer = "the id has no queue in which any would complete";
                        return failed(Code::Invalid, answer);
                    }
                    Some(Some(completion)) => return Some(Ok(completion)),
                    Some(None) if spins < SPINS => {
                        spins += 1;
                        std::hint::spin_loop();
                    }
                    Some(None) => break,
                }
            }
            if last_looks > 0 || self.cm.peer_left() {
                last_looks += 1;
            }
            if last_looks > LAST_LOOKS {
                return failed(Code::Reset, "the peer has ended the connection");
            }
            None
        })?
    }
}
