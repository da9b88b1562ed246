//! What a device can do that no call tells: objects are made to see whether it accepts them, and
//! destroyed at once.

use std_alloc::sync::Arc;

use super::front;
use super::objects::{self, Cq, Pd};
use super::qp_calls::NewQp;
use crate::provider::{CqFlags, CqInit, QpCaps, QpType, SendOps, WcFields};

/// Inline limits tried, in bytes, largest first.
const INLINE_TRIED: [u32; 6] = [512, 256, 220, 128, 64, 32];

/// A domain and a completion queue, on which objects are tried.
pub(super) struct Trial<'a> {
    pd: &'a Pd,
    /// `None` if the device makes none; then it makes no queue pairs either.
    cq: Option<Cq>,
}

impl Trial<'_> {
    pub(super) fn new(pd: &Pd) -> Trial<'_> {
        let init = CqInit { depth: 1, ..CqInit::default() };
        Trial { pd, cq: objects::create_cq(pd.context(), &init, None).ok().map(Arc::new) }
    }

    /// The largest of [`INLINE_TRIED`] that the device accepts, or 0.
    pub(super) fn inline_max(&self) -> u32 {
        let accepted = |bytes: &u32| self.makes(*bytes, None);
        INLINE_TRIED.into_iter().find(accepted).unwrap_or(0)
    }

    /// The operations that a queue pair can be made for (`send_ops_flags`).
    pub(super) fn send_ops(&self) -> SendOps {
        if front::create_qp_ex(self.pd.context()).is_none() {
            return SendOps::empty();
        }
        let all = SendOps::of(QpType::Rc);
        if self.makes(0, Some(all)) {
            return all;
        }
        all.iter().filter(|op| self.makes(0, Some(*op))).collect()
    }

    /// Whether it makes the smallest queue pair with that inline limit, for these operations.
    fn makes(&self, inline: u32, send_ops_flags: Option<SendOps>) -> bool {
        let Some(cq) = &self.cq else { return false };
        let new = NewQp {
            caps: QpCaps { send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1, inline },
            pd: Some(self.pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            send_ops_flags,
            ..NewQp::of(QpType::Rc)
        };
        new.create(self.pd.context()).is_ok_and(|(qp, _)| qp.destroy())
    }

    /// Fields and flags of the extended completion queues that the device accepts.
    pub(super) fn cq_ex(&self) -> (WcFields, CqFlags) {
        let works = |init: CqInit| {
            let made = objects::create_cq_ex(self.pd.context(), &init, None, None);
            made.is_ok_and(|cq| cq.destroy())
        };
        let one = CqInit { depth: 1, fields: WcFields::BYTE_LEN, ..CqInit::default() };
        let field = |fields: &WcFields| works(CqInit { fields: *fields, ..one });
        let flag = |flags: &CqFlags| works(CqInit { flags: *flags, ..one });
        let flags = CqFlags::all().iter().filter(flag).collect();
        (WcFields::all().iter().filter(field).collect(), flags)
    }

    /// Whether the device has parent domains, and thread domains.
    pub(super) fn domains(&self) -> (bool, bool) {
        let parent = objects::alloc_parent_domain(self.pd, None);
        let parents = parent.is_ok_and(|parent| parent.destroy());
        (parents, objects::has_thread_domains(self.pd.context()))
    }
}
