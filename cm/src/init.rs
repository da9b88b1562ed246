//! Attributes for making a queue pair.

use std::sync::Arc;

use doorbell_fabric::{CmError, Fabric, QpAttrEx};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{AttrMask, CreateFlags, QpCaps, QpType, RxHash, SendOps};

use crate::cq::CompletionQueue;
use crate::rss::{IndirectionTable, Table};
use crate::srq::SharedReceive;
use crate::xrc::XrcDomain;

/// Attributes for making a queue pair (`struct ibv_qp_init_attr`). Completion queues that are not
/// given are made along with it (QP-6).
///
/// ```
/// use doorbell_cm::QpInit;
/// use doorbell_soft::SoftDevice;
///
/// let init = QpInit::<SoftDevice>::rc().send_wr(16).recv_wr(2).inline(16).signal_all(true);
/// ```
pub struct QpInit<F: Fabric> {
    pub(crate) kind: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) send_cq: Option<CompletionQueue<F>>,
    pub(crate) recv_cq: Option<CompletionQueue<F>>,
    pub(crate) srq: Option<SharedReceive<F>>,
    pub(crate) xrcd: Option<XrcDomain<F>>,
    pub(crate) pd: Option<F>,
    pub(crate) context: u64,
    pub(crate) ex: InitEx<F>,
}

impl<F: Fabric> Clone for QpInit<F> {
    fn clone(&self) -> Self {
        QpInit {
            kind: self.kind,
            caps: self.caps,
            signal_all: self.signal_all,
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            srq: self.srq.clone(),
            xrcd: self.xrcd.clone(),
            pd: self.pd.clone(),
            context: self.context,
            ex: self.ex.clone(),
        }
    }
}

impl<F: Fabric> QpInit<F> {
    /// A reliable connection with one outstanding request in each direction, of one piece, nothing
    /// inline, and completions only for sends that ask for one.
    pub fn rc() -> QpInit<F> {
        QpInit::of(QpType::Rc)
    }

    /// As [`QpInit::rc`], an unreliable connection: SEND and WRITE, which may be lost silently
    /// (UC-1).
    pub fn uc() -> QpInit<F> {
        QpInit::of(QpType::Uc)
    }

    /// As [`QpInit::rc`], for unreliable datagrams: it takes sends at once (QP-4).
    pub fn ud() -> QpInit<F> {
        QpInit::of(QpType::Ud)
    }

    /// As [`QpInit::rc`], for Ethernet frames, headers and all ([`crate::ExternalQp`] only): it
    /// sends to its device's port, and receives the frames that its rules select
    /// ([`crate::ExternalQp::create_flow`]).
    pub fn raw_packet() -> QpInit<F> {
        QpInit::of(QpType::RawPacket)
    }

    /// As [`QpInit::rc`], the sending end of an extended reliable connection: it receives nothing
    /// (QX-5), and its messages name a shared receive queue
    /// ([`SendOp::Xrc`](doorbell_seam::wr::SendOp::Xrc)).
    pub fn xrc_send() -> QpInit<F> {
        QpInit::of(QpType::XrcSend)
    }

    /// The receiving end of an extended reliable connection: it has a domain ([`QpInit::xrcd`])
    /// instead of queues.
    pub fn xrc_recv() -> QpInit<F> {
        QpInit::of(QpType::XrcRecv)
    }

    fn of(kind: QpType) -> QpInit<F> {
        let caps = QpCaps { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, inline: 0 };
        let (send_cq, recv_cq, srq, xrcd, pd) = (None, None, None, None, None);
        let (context, ex) = (0, InitEx::default());
        QpInit { kind, caps, signal_all: false, send_cq, recv_cq, srq, xrcd, pd, context, ex }
    }

    /// Sends outstanding (`max_send_wr`).
    #[must_use]
    pub fn send_wr(mut self, count: u32) -> Self {
        self.caps.send_wr = count;
        self
    }

    /// Receives outstanding (`max_recv_wr`). With a shared receive queue it only sizes the
    /// completion queue that is made (SRQ-11).
    #[must_use]
    pub fn recv_wr(mut self, count: u32) -> Self {
        self.caps.recv_wr = count;
        self
    }

    /// Pieces of a send (`max_send_sge`).
    #[must_use]
    pub fn send_sge(mut self, count: u32) -> Self {
        self.caps.send_sge = count;
        self
    }

    /// Pieces of a receive (`max_recv_sge`).
    #[must_use]
    pub fn recv_sge(mut self, count: u32) -> Self {
        self.caps.recv_sge = count;
        self
    }

    /// Bytes of an inline payload (`max_inline_data`).
    #[must_use]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.caps.inline = bytes;
        self
    }

    /// Whether every send completes (`sq_sig_all`, QP-15).
    #[must_use]
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// The completion queue of its sends.
    #[must_use]
    pub fn send_cq(mut self, cq: &CompletionQueue<F>) -> Self {
        self.send_cq = Some(cq.clone());
        self
    }

    /// The completion queue of its receives.
    #[must_use]
    pub fn recv_cq(mut self, cq: &CompletionQueue<F>) -> Self {
        self.recv_cq = Some(cq.clone());
        self
    }

    /// The shared receive queue to take receives from.
    #[must_use]
    pub fn srq(mut self, srq: &SharedReceive<F>) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// The domain of an XRC_RECV queue pair (QX-9); by default the default XRC domain (QP-16).
    #[must_use]
    pub fn xrcd(mut self, domain: &XrcDomain<F>) -> Self {
        self.xrcd = Some(domain.clone());
        self
    }

    /// The handle whose protection domain it belongs to; by default that of the handle with which
    /// the id was made (QP-5).
    #[must_use]
    pub fn pd(mut self, pd: &F) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// User data of the queue pair (`qp_context`, QX-18).
    #[must_use]
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }

    /// The named handle, or else `fabric`.
    pub(crate) fn pd_or<'a>(&'a self, fabric: &'a F) -> &'a F {
        self.pd.as_ref().unwrap_or(fabric)
    }

    /// Refuses attributes that XRC does not allow.
    pub(crate) fn check_xrc(&self) -> Result<(), CmError> {
        let answer = match (&self.srq, &self.xrcd) {
            (Some(srq), _) if srq.number().is_some() => {
                "its shared receive queue is of an XRC domain: senders name that (QX-19)"
            }
            (Some(_), _) if self.kind.is_xrc() => "it takes receives of no queue of its own",
            (_, Some(_)) if self.kind != QpType::XrcRecv => "only XRC_RECV has an XRC domain",
            _ if self.kind == QpType::XrcRecv
                && (self.send_cq.is_some() || self.recv_cq.is_some()) =>
            {
                "its shared receive queues have the completion queues (QP-7)"
            }
            _ if self.kind == QpType::XrcRecv && self.ex.attr().comp_mask() != AttrMask::PD => {
                "it has a domain, and none of the other fields (QX-5)"
            }
            _ => return Ok(()),
        };
        Err(CmError::new(Code::Invalid, format!("a queue pair of {:?}", self.kind), answer))
    }

    /// Uses `srq` if no shared receive queue is named (QP-13); XRC uses none.
    pub(crate) fn or_srq(mut self, srq: Option<&SharedReceive<F>>) -> Self {
        if self.kind.is_xrc() {
            return self;
        }
        self.srq = self.srq.or_else(|| srq.cloned());
        self
    }
}

/// As [`QpAttrEx`], with what keeps the table.
pub(crate) struct InitEx<F: Fabric> {
    create_flags: Option<CreateFlags>,
    max_tso_header: Option<u16>,
    pub(crate) table: Option<Arc<Table<F>>>,
    rx_hash_conf: Option<RxHash>,
    pub(crate) send_ops_flags: Option<SendOps>,
}

impl<F: Fabric> Default for InitEx<F> {
    fn default() -> Self {
        InitEx {
            create_flags: None,
            max_tso_header: None,
            table: None,
            rx_hash_conf: None,
            send_ops_flags: None,
        }
    }
}

impl<F: Fabric> Clone for InitEx<F> {
    fn clone(&self) -> Self {
        InitEx { table: self.table.clone(), ..*self }
    }
}

impl<F: Fabric> InitEx<F> {
    pub(crate) fn attr(&self) -> QpAttrEx<'_, F> {
        QpAttrEx {
            create_flags: self.create_flags,
            max_tso_header: self.max_tso_header,
            rwq_ind_tbl: self.table.as_ref().map(|table| table.raw()),
            rx_hash_conf: self.rx_hash_conf,
            send_ops_flags: self.send_ops_flags,
        }
    }
}

impl<F: Fabric> QpInit<F> {
    /// Flags of creation (QX-6); not every type and device supports them.
    #[must_use]
    pub fn create_flags(mut self, flags: CreateFlags) -> Self {
        self.ex.create_flags = Some(flags);
        self
    }

    /// The longest header of a segmented send ([`crate::ExternalQp::post_tso`]), in bytes (QX-7).
    #[must_use]
    pub fn max_tso_header(mut self, bytes: u16) -> Self {
        self.ex.max_tso_header = Some(bytes);
        self
    }

    /// Receives go to the work queues of a table, as [`QpInit::rx_hash_conf`] says (QX-8). The
    /// queue pair then has no receive queue: do not also ask for receives, a completion queue for
    /// them, or a shared receive queue.
    #[must_use]
    pub fn rwq_ind_tbl(mut self, table: &IndirectionTable<F>) -> Self {
        self.ex.table = Some(table.inner().clone());
        self.recv_wr(0).recv_sge(0)
    }

    /// The hash by which receives are spread over the table (QX-8).
    #[must_use]
    pub fn rx_hash_conf(mut self, by: RxHash) -> Self {
        self.ex.rx_hash_conf = Some(by);
        self
    }

    /// The operations that will be posted (QX-10); others are refused.
    #[must_use]
    pub fn send_ops_flags(mut self, ops: SendOps) -> Self {
        self.ex.send_ops_flags = Some(ops);
        self
    }

    /// Which fields of the extended call are valid (QX-1): those that were set, and the protection
    /// domain, which is that of the device's handle.
    pub fn comp_mask(&self) -> AttrMask {
        match self.kind() {
            QpType::XrcRecv => AttrMask::XRCD,
            _ => self.ex.attr().comp_mask(),
        }
    }
}
