//! Making queue pairs.

use std_alloc::boxed::Box;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use crate::error::{Code, SetupError};
use crate::ext::raw::rss::SoftIndTable;
use crate::handles::device::Soft;
use crate::handles::poller::SoftCq;
use crate::handles::queue_pair::SoftQp;
use crate::handles::srq::SoftSrq;
use crate::provider::{CreateFlags, QpCaps, QpType, RxHash};
use crate::state::qp::{QpContext, QpParts};

/// What a queue pair is made of.
pub struct SoftQpInit<'a> {
    /// The transport.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: &'a SoftCq,
    /// Where receives complete.
    pub recv_cq: &'a SoftCq,
    /// The shared receive queue, if it has none of its own.
    pub srq: Option<&'a SoftSrq>,
    /// Capacities wanted.
    pub caps: QpCaps,
    /// Every send completes (SQ-8).
    pub signal_all: bool,
    /// The additions of the extended call.
    pub ex: SoftQpEx<'a>,
}

/// The arguments of the extended call (`ibv_create_qp_ex`). The caller checks that they fit the
/// type.
#[derive(Clone, Copy, Default)]
pub struct SoftQpEx<'a> {
    /// Flags of creation (QX-6).
    pub create_flags: CreateFlags,
    /// The longest header of a segmented send; 0 for no segmented sends (QX-7).
    pub max_tso_header: u16,
    /// The work queues that receives go to instead of one of its own, and how one is chosen (QX-8).
    pub spread: Option<(&'a SoftIndTable, &'a RxHash)>,
}

impl Soft {
    /// Makes a queue pair in INIT (`ibv_create_qp`).
    ///
    /// # Errors
    /// Capacities of 0 or beyond [`crate::provider::Caps`], queues of another device (QP-2), or
    /// completion queues of two different threads.
    pub fn create_qp(&self, init: &SoftQpInit<'_>) -> Result<SoftQp, SetupError> {
        let asked = || format!("a queue pair with {:?}", init.caps);
        let invalid = |answer: String| SetupError::new(Code::Invalid, asked(), answer);
        let (want, limit) = (init.caps, &self.nic.caps);
        let most = limit.qp_wr_max;
        // On a shared receive queue the number of receives counts for nothing (SRQ-11).
        let receives = if init.srq.is_none() { want.recv_wr } else { 0 };
        if want.send_wr == 0 || want.send_wr.max(receives) > most {
            return Err(invalid(format!("it takes 1 to {most} sends and at most {most} receives"))
                .cure("ask for fewer, or use more queue pairs"));
        }
        if want.send_sge > limit.send_sge_max || want.recv_sge > 1 {
            let text = format!("at most {} pieces a send, 1 a receive", limit.send_sge_max);
            return Err(invalid(text));
        }
        if want.inline > limit.inline_max {
            return Err(invalid(format!(
                "inline payloads have at most {} bytes",
                limit.inline_max
            )));
        }
        let ours = |nic| Arc::ptr_eq(nic, &self.nic);
        let cqs = [init.send_cq, init.recv_cq];
        if !cqs.iter().all(|cq| ours(&cq.place.nic)) || !init.srq.is_none_or(|srq| ours(&srq.nic)) {
            return Err(invalid(String::from("one of its queues is another device's (QP-2)"))
                .cure("make them on the device that makes the queue pair"));
        }
        if !Arc::ptr_eq(&init.send_cq.domain, &init.recv_cq.domain) {
            return Err(invalid(String::from("its completion queues belong to different threads"))
                .cure("make both Sharing::Shared, or use one for both"));
        }
        if init.srq.is_some_and(|srq| srq.xrc.is_some()) {
            let answer = "its shared receive queue is one of an XRC domain (QX-19)";
            return Err(invalid(String::from(answer)).cure("senders name such a queue"));
        }
        if init.kind == QpType::XrcRecv {
            return Err(invalid(String::from("XRC_RECV has a domain instead of queues (QX-5)")));
        }
        self.add_qp(init)
    }

    fn add_qp(&self, init: &SoftQpInit<'_>) -> Result<SoftQp, SetupError> {
        let mut caps = init.caps;
        caps.send_sge = self.nic.caps.send_sge_max;
        caps.recv_sge = 1;
        if init.kind == QpType::XrcSend {
            (caps.recv_wr, caps.recv_sge) = (0, 0);
        }
        let queue = match init.srq {
            Some(srq) => {
                caps.recv_wr = 0;
                srq.queue.clone()
            }
            None => Arc::new(self.nic.new_queue(caps.recv_wr, self.pd.mark())),
        };
        let num = self.take_number()?;
        let (datagrams, groups) = match init.kind {
            QpType::Ud | QpType::RawPacket => self
                .datagrams(num, init.kind, init.send_cq, init.ex)
                .map(|(one, two)| (Some(one), Some(two)))?,
            _ => (None, None),
        };
        let parts = QpParts {
            num,
            kind: init.kind,
            send_cq: init.send_cq.index,
            recv_cq: init.recv_cq.index,
            rq_shared: init.srq.is_some(),
            signal_all: init.signal_all,
            pd: self.pd.mark(),
            key: queue.id(),
        };
        let mut context = Box::new(QpContext::new(&parts, caps));
        context.datagrams = datagrams;
        let cqs = Some((init.send_cq.clone(), init.recv_cq.clone()));
        let table = init.ex.spread.map(|(table, _)| table.clone());
        let kept = (cqs, None, Some(self.pd.clone()), table);
        Ok(SoftQp::new((&self.nic, &init.send_cq.domain), context, caps, queue, kept)
            .with_groups(groups))
    }
}
