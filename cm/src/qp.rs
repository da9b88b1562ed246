//! The queue pair of an id, with the buffers it holds.
#![expect(unsafe_code, reason = "posts buffers that it then owns")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use doorbell_fabric::{CmError, Fabric, QpAttr};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{
    Access, FlowRule, Qp, QpCaps, QpType, SendOps, Window as _, WindowKind,
};
use doorbell_seam::wr::{Binding, PostCause, Remote, Segmentation, SendFlags, SendOp, SendWr, Sge};

use crate::buffer::Buffer;
use crate::completion::{Completion, SendRequest, completion};
use crate::cq::CompletionQueue;
use crate::error::{PostFailed, Refused};
use crate::exposed::Exposed;
use crate::init::QpInit;
use crate::posted::{Posted, first_number, lock};
use crate::rss::TableUse;
use crate::srq::SharedReceive;
use crate::target::Target;
use crate::window::{self, Window};
use crate::xrc::XrcDomain;

/// What a send keeps until its slot is free.
struct Sent<F: Fabric> {
    /// `None` for an inline payload.
    buffer: Option<Buffer<F>>,
    /// The address handle of a datagram.
    _ah: Option<F::Ah>,
}

impl<F: Fabric> Sent<F> {
    fn new(buffer: Option<Buffer<F>>) -> Sent<F> {
        Sent { buffer, _ah: None }
    }
}

/// True for requests that name objects of the device, or memory, by address: only a caller that
/// keeps those alive may post them.
fn names_objects(op: SendOp) -> bool {
    op.is_datagram() || matches!(op, SendOp::Bind(_) | SendOp::Tso(_))
}

/// Queues and domain of a queue pair, as far as it has them.
type Queues<F> = (Option<CompletionQueue<F>>, Option<CompletionQueue<F>>, Option<XrcDomain<F>>);

/// The arguments for making a queue pair.
pub(crate) enum Parts<'a, F: Fabric> {
    /// Queues.
    Queues(&'a QpAttr<'a, F>),
    /// The domain of XRC_RECV.
    Domain(&'a F::Xrcd),
}

/// A queue pair with everything it uses. Dropped in this order: the device lets go first.
pub(crate) struct QueuePair<F: Fabric> {
    /// Rules of a RAW_PACKET queue pair.
    flows: Vec<(FlowRule, F::Flow)>,
    qp: F::Qp,
    /// Sends whose slots are not free yet, oldest first, numbered from `sent_first`.
    sent: VecDeque<Sent<F>>,
    sent_first: u64,
    /// Buffers of sends that needed no completion and whose slots are free.
    retired: Vec<Buffer<F>>,
    posted: Posted<F>,
    /// Receives that may be outstanding, polled or not, so that the queue made here never
    /// overruns.
    posted_max: usize,
    srq: Option<SharedReceive<F>>,
    /// The table its receives go to, if any.
    _table: Option<TableUse<F>>,
    /// The operations that may be posted, if not all.
    asked: Option<SendOps>,
    context: u64,
    /// The completion queue of its sends, if it has one (XRC).
    send_cq: Option<CompletionQueue<F>>,
    recv_cq: Option<CompletionQueue<F>>,
    xrcd: Option<XrcDomain<F>>,
    /// Windows of type 2 that were opened here.
    windows: Vec<Weak<Mutex<window::State<F>>>>,
}

impl<F: Fabric> QueuePair<F> {
    /// Makes it with `make`, along with the queues that were not given.
    pub(crate) fn with(
        fabric: &F,
        init: &QpInit<F>,
        make: impl FnOnce(Parts<'_, F>) -> Result<F::Qp, CmError>,
    ) -> Result<QueuePair<F>, CmError> {
        init.check_xrc()?;
        if init.kind == QpType::XrcRecv {
            let domain = match &init.xrcd {
                Some(domain) => domain.clone(),
                None => XrcDomain::common(fabric)?,
            };
            let qp = make(Parts::Domain(domain.raw()))?;
            return Ok(QueuePair::over(qp, (None, None, Some(domain)), init, 0));
        }
        let alone = init.kind == QpType::XrcSend;
        let caps = if alone { QpCaps { recv_wr: 0, recv_sge: 0, ..init.caps } } else { init.caps };
        let own_cq = |given: &Option<CompletionQueue<F>>, depth: u32, name: &str| match given {
            Some(cq) => Ok(cq.clone()),
            None if depth == 0 => {
                let answer = format!("{name} is 0 and no completion queue is given (QP-8)");
                Err(CmError::new(Code::Invalid, "make the queue pair of an id", answer)
                    .cure("ask for at least 1, or give a completion queue"))
            }
            None => CompletionQueue::new(fabric, depth),
        };
        let received = match &init.srq {
            Some(srq) if init.caps.recv_wr > 0 => init.caps.recv_wr.max(srq.depth()),
            _ => init.caps.recv_wr,
        };
        let send_cq = own_cq(&init.send_cq, init.caps.send_wr, "max_send_wr")?;
        let rss = init.ex.table.is_some();
        if rss && init.recv_cq.is_some() {
            let answer = "with a table it takes no completion queue for receives (QX-8)";
            return Err(CmError::new(Code::Invalid, "make a queue pair", answer));
        }
        let recv_cq = match alone || rss {
            true => None,
            false => Some(own_cq(&init.recv_cq, received, "max_recv_wr")?),
        };
        let qp = make(Parts::Queues(&QpAttr {
            kind: init.kind,
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.as_ref().unwrap_or(&send_cq).raw(),
            srq: init.srq.as_ref().map(SharedReceive::raw),
            caps,
            signal_all: init.signal_all,
            ex: init.ex.attr(),
        }))?;
        let posted_max = if init.recv_cq.is_some() { u32::MAX } else { received };
        Ok(QueuePair::over(qp, (Some(send_cq), recv_cq, None), init, posted_max))
    }

    fn over(
        qp: F::Qp,
        (send_cq, recv_cq, xrcd): Queues<F>,
        init: &QpInit<F>,
        posted_max: u32,
    ) -> QueuePair<F> {
        for cq in [&send_cq, &recv_cq].into_iter().flatten() {
            cq.serve(qp.num(), true);
        }
        if let Some(srq) = &init.srq {
            srq.count_user(true);
        }
        if let Some(domain) = &xrcd {
            domain.count_user(true);
        }
        QueuePair {
            flows: Vec::new(),
            qp,
            sent: VecDeque::new(),
            sent_first: first_number(),
            retired: Vec::new(),
            posted: Posted::new(),
            posted_max: posted_max as usize,
            srq: init.srq.clone(),
            asked: init.ex.send_ops_flags,
            _table: init.ex.table.as_ref().map(TableUse::new),
            context: init.context,
            send_cq,
            recv_cq,
            xrcd,
            windows: Vec::new(),
        }
    }

    pub(crate) fn flows(&mut self) -> (&F::Qp, &mut Vec<(FlowRule, F::Flow)>) {
        (&self.qp, &mut self.flows)
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// Refuses an operation that was not requested, because devices leave it undefined (QX-10).
    fn check_op(&self, op: SendOp) -> Result<(), PostFailed> {
        match self.asked {
            Some(asked) if !asked.contains(SendOps::needed(op)) => {
                Err(PostFailed { cause: PostCause::NotAsked })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn num(&self) -> u32 {
        self.qp.num()
    }

    pub(crate) fn raw(&self) -> &F::Qp {
        &self.qp
    }

    pub(crate) fn raw_mut(&mut self) -> &mut F::Qp {
        &mut self.qp
    }

    /// The device has forgotten all requests (SM-1): their buffers are free, no completions will
    /// come, and waiting completions are dropped.
    pub(crate) fn forget(&mut self) {
        let num = self.qp.num();
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.serve(num, false);
            cq.serve(num, true);
        }
        self.sent.clear();
        self.sent_first = first_number();
        self.posted = Posted::new();
    }

    pub(crate) fn caps(&self) -> QpCaps {
        self.qp.caps()
    }

    /// Where sends complete; XRC_RECV has none.
    pub(crate) fn send_cq(&self) -> Option<&CompletionQueue<F>> {
        self.send_cq.as_ref()
    }

    /// Where receives complete; XRC has none.
    pub(crate) fn recv_cq(&self) -> Option<&CompletionQueue<F>> {
        self.recv_cq.as_ref()
    }

    /// Posts receives, to the shared queue where there is one (SRQ-8).
    pub(crate) fn post_recvs(&mut self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        if let Some(srq) = &self.srq {
            return srq.post(list);
        }
        if self.recv_cq.is_none() {
            return Err(PostFailed::state());
        }
        let room = self.posted_max.saturating_sub(self.posted.len());
        let mut beyond = list.split_off(list.len().min(room));
        let qp = &mut self.qp;
        // SAFETY: the buffers stay in `posted`, registered and out of reach, until the device
        // gave each back or the queue pair, which is dropped first, is gone.
        let result = self.posted.post(list, |wrs| unsafe { qp.post_recv(wrs) });
        let full = result.is_ok() && !beyond.is_empty();
        list.append(&mut beyond);
        if full { Err(PostFailed { cause: PostCause::Full }) } else { result }
    }

    /// Posts sends; requests that were taken leave the list.
    pub(crate) fn post_sends(&mut self, list: &mut Vec<SendRequest<F>>) -> Result<(), PostFailed> {
        let fits = |request: &SendRequest<F>| request.len <= request.buffer.len();
        if !list.iter().all(fits) {
            return Err(PostFailed { cause: PostCause::BeyondBuffer });
        }
        if list.iter().any(|request| names_objects(request.op)) {
            return Err(PostFailed { cause: PostCause::Malformed });
        }
        let asked = list.iter().position(|request| self.check_op(request.op).is_err());
        let mut beyond = list.split_off(asked.unwrap_or(list.len()));
        let result = self.post_asked(list);
        list.append(&mut beyond);
        match asked {
            Some(_) if result.is_ok() => Err(PostFailed { cause: PostCause::NotAsked }),
            _ => result,
        }
    }

    /// Posts sends whose operations were requested.
    fn post_asked(&mut self, list: &mut Vec<SendRequest<F>>) -> Result<(), PostFailed> {
        let first = self.sent_first + self.sent.len() as u64;
        let wr = |(wr_id, request): (u64, &SendRequest<F>)| SendWr {
            wr_id,
            op: request.op,
            flags: request.flags,
            sge: request.buffer.sge(request.len as u32),
            more: &[],
        };
        let wrs: Vec<SendWr<'_>> = (first..).zip(list.iter()).map(wr).collect();
        // SAFETY: the buffers stay in `sent`, registered and out of reach, until a completion of
        // the same or a later send was polled or the queue pair, which is dropped first, is gone.
        // Completion queues of this layer are Sharing::Shared.
        let result = unsafe { self.qp.post(&wrs) };
        let accepted = match &result {
            Ok(()) => list.len(),
            Err(error) => error.accepted.min(list.len()),
        };
        let taken = list.drain(..accepted).map(|request| Sent::new(Some(request.buffer)));
        self.sent.extend(taken);
        result.map_err(PostFailed::from)
    }

    /// Sends bytes that are copied during the call.
    pub(crate) fn post_inline(
        &mut self,
        bytes: &[u8],
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        if names_objects(op) {
            return Err(PostFailed { cause: PostCause::Malformed });
        }
        self.post_copied(bytes, op, flags)?;
        self.sent.push_back(Sent::new(None));
        Ok(())
    }

    /// Sends a datagram; the buffer comes back if it is refused.
    pub(crate) fn post_datagram(
        &mut self,
        target: &Target<F>,
        buffer: Buffer<F>,
        len: usize,
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        let length = u32::try_from(len).ok().filter(|_| len <= buffer.len());
        let Some(length) = length else {
            return Err(Refused { cause: PostCause::BeyondBuffer, back: Some(buffer) });
        };
        let wr_id = self.sent_first + self.sent.len() as u64;
        let (op, sge) = (target.op(imm), buffer.sge(length));
        if let Err(PostFailed { cause }) = self.check_op(op) {
            return Err(Refused { cause, back: Some(buffer) });
        }
        let wr = SendWr { wr_id, op, flags, sge, more: &[] };
        // SAFETY: buffer and handle stay in `sent`, as in `post_sends`.
        match unsafe { self.qp.post(&[wr]) } {
            Ok(()) => {
                let _ah = Some(target.ah().clone());
                self.sent.push_back(Sent { buffer: Some(buffer), _ah });
                Ok(())
            }
            Err(error) => Err(Refused { cause: error.cause, back: Some(buffer) }),
        }
    }

    /// Sends the first `len` bytes of a buffer in segments; the buffer comes back if it is refused.
    pub(crate) fn post_tso(
        &mut self,
        (header, mss): (&[u8], u16),
        buffer: Buffer<F>,
        len: usize,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        let lengths = (u32::try_from(len), u16::try_from(header.len()));
        let (Ok(length), Ok(header_len)) = lengths else {
            return Err(Refused { cause: PostCause::Malformed, back: Some(buffer) });
        };
        if len > buffer.len() {
            return Err(Refused { cause: PostCause::BeyondBuffer, back: Some(buffer) });
        }
        let header = header.as_ptr().expose_provenance() as u64;
        let op = SendOp::Tso(Segmentation { header, header_len, mss });
        if let Err(PostFailed { cause }) = self.check_op(op) {
            return Err(Refused { cause, back: Some(buffer) });
        }
        let wr_id = self.sent_first + self.sent.len() as u64;
        let wr = SendWr { wr_id, op, flags, sge: buffer.sge(length), more: &[] };
        // SAFETY: the buffer stays in `sent`, as in `post_sends`; the header is read during the
        // call only, for which it is borrowed.
        match unsafe { self.qp.post(&[wr]) } {
            Ok(()) => {
                self.sent.push_back(Sent::new(Some(buffer)));
                Ok(())
            }
            Err(error) => Err(Refused { cause: error.cause, back: Some(buffer) }),
        }
    }

    /// Sends a datagram of bytes that are copied during the call.
    pub(crate) fn post_inline_datagram(
        &mut self,
        target: &Target<F>,
        bytes: &[u8],
        imm: Option<u32>,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        self.post_copied(bytes, target.op(imm), flags)?;
        self.sent.push_back(Sent { buffer: None, _ah: Some(target.ah().clone()) });
        Ok(())
    }

    /// Posts a send of bytes that are copied during the call; the caller enters it.
    fn post_copied(
        &mut self,
        bytes: &[u8],
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        self.check_op(op)?;
        let length = u32::try_from(bytes.len());
        let length = length.map_err(|_| PostFailed { cause: PostCause::InlineTooLong })?;
        let wr = SendWr {
            wr_id: self.sent_first + self.sent.len() as u64,
            op,
            flags: flags | SendFlags::INLINE,
            sge: Sge { addr: bytes.as_ptr() as u64, length, lkey: 0 },
            more: &[],
        };
        // SAFETY: an inline payload is read during the call only (SQ-4), and `bytes` is borrowed
        // for that long; the address handle of a datagram stays in `sent`.
        unsafe { self.qp.post(&[wr]) }?;
        Ok(())
    }

    /// Posts a request without pieces.
    pub(crate) fn post_bare(&mut self, op: SendOp, flags: SendFlags) -> Result<(), PostFailed> {
        self.check_op(op)?;
        let wr_id = self.sent_first + self.sent.len() as u64;
        let wr = SendWr { wr_id, op, flags, sge: Sge::default(), more: &[] };
        // SAFETY: there are no buffers. The window's owner keeps the window and the memory that a
        // binding names, and the device lets go of the owner first.
        unsafe { self.qp.post(&[wr]) }?;
        self.sent.push_back(Sent::new(None));
        Ok(())
    }

    /// Binds a window. Returns what to tell the peer.
    pub(crate) fn bind_window(
        &mut self,
        window: &mut Window<F>,
        memory: &Exposed<F>,
        bytes: Range<usize>,
        access: Access,
        flags: SendFlags,
    ) -> Result<Remote, PostFailed> {
        let beyond = PostFailed { cause: PostCause::BeyondBuffer };
        let len = bytes.end.checked_sub(bytes.start).ok_or(beyond)?;
        memory.check(bytes.start, len).map_err(|_| beyond)?;
        let ((region, addr), rkey) = (memory.place(bytes.start), window.next_rkey());
        let shared = window.state().clone();
        let mut state = lock(&shared);
        let gone = PostFailed { cause: PostCause::Device(22) };
        let raw = state.raw.as_mut().ok_or(gone)?;
        let (window_handle, length) = (raw.handle(), len as u64);
        let binding = Binding { window: window_handle, region, addr, length, access, rkey };
        self.check_op(SendOp::Bind(binding))?;
        let rkey = match window.kind() {
            WindowKind::Two => {
                self.post_bare(SendOp::Bind(binding), flags)?;
                raw.set_rkey(rkey);
                state.on = Some(self.qp.num());
                self.keep_window(&shared);
                rkey
            }
            WindowKind::One => {
                let wr_id = self.sent_first + self.sent.len() as u64;
                // SAFETY: the window keeps the memory as long as it is bound to it.
                let rkey = unsafe { raw.bind(&mut self.qp, binding, wr_id, flags) }?;
                self.sent.push_back(Sent::new(None));
                rkey
            }
        };
        window.note(rkey, memory.clone());
        Ok(Remote { addr, rkey })
    }

    /// Remembers a type 2 window that was bound here, as long as it exists.
    fn keep_window(&mut self, state: &Arc<Mutex<window::State<F>>>) {
        self.windows.retain(|known| known.strong_count() > 0);
        if !self.windows.iter().any(|known| known.as_ptr() == Arc::as_ptr(state)) {
            self.windows.push(Arc::downgrade(state));
        }
    }

    /// The next completed send, if there is one.
    pub(crate) fn poll_send(&mut self) -> Option<Completion<F>> {
        loop {
            let polled = self.send_cq.as_ref()?.take(self.qp.num(), false)?;
            let number = polled.wc.wr_id;
            // Checked against our own count: do not trust a device that names a send it does not
            // hold.
            let Some(before) = number.checked_sub(self.sent_first) else { continue };
            if before >= self.sent.len() as u64 {
                continue;
            }
            let earlier = self.sent.drain(..before as usize);
            self.retired.extend(earlier.filter_map(|sent| sent.buffer));
            self.sent_first = number + 1;
            let buffer = self.sent.pop_front().and_then(|sent| sent.buffer);
            return Some(completion(polled, buffer));
        }
    }

    /// The next completed receive, if there is one.
    pub(crate) fn poll_recv(&mut self) -> Option<Completion<F>> {
        loop {
            let polled = self.recv_cq.as_ref()?.take(self.qp.num(), true)?;
            let buffer = match &self.srq {
                Some(srq) => srq.take(&polled.wc),
                None => self.posted.take(&polled.wc),
            };
            if let Some(buffer) = buffer {
                return Some(completion(polled, Some(buffer)));
            }
        }
    }

    pub(crate) fn take_retired(&mut self) -> Vec<Buffer<F>> {
        std::mem::take(&mut self.retired)
    }
}

impl<F: Fabric> Drop for QueuePair<F> {
    fn drop(&mut self) {
        let num = self.qp.num();
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.serve(num, false);
        }
        if let Some(srq) = &self.srq {
            srq.count_user(false);
        }
        if let Some(domain) = &self.xrcd {
            domain.count_user(false);
        }
        // Windows first: some devices wait a minute for open windows, and then lose the queue pair.
        for state in self.windows.iter().filter_map(Weak::upgrade) {
            let mut state = lock(&state);
            if state.on == Some(num) {
                state.raw = None;
            }
        }
    }
}
