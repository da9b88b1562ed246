//! Fields of a queue pair in C's form and back, and queue pairs that belong to no id.
#![expect(unsafe_code, reason = "queue pairs are raw pointers of libibverbs")]

use std::io;
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::rdma_core::*;
use doorbell_fabric::CmError;
use doorbell_fabric::QpAttr;
use doorbell_fabric::extended;
use doorbell_fabric::{Mask, Mtu, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, AttrMask, HASH_KEY_BYTES, Provider, QpCaps, QpType};

use crate::{QpHome, QpParts, Verbs, VerbsIndTable, VerbsQp, VerbsXrcd, address_of, raw_address};

/// A queue pair that belongs to no id, until its owner drops it.
struct Loose {
    qp: NonNull<ibv_qp>,
    /// Not gone before the queue pair whose receives go there.
    _table: Option<VerbsIndTable>,
}

// SAFETY: libibverbs' calls on a queue pair may be made from any thread.
unsafe impl Send for Loose {}
// SAFETY: as above.
unsafe impl Sync for Loose {}

impl QpHome for Loose {
    fn destroy_qp(&self) {
        // SAFETY: made by `create`, and destroyed here alone, once.
        unsafe { ibv_destroy_qp(self.qp.as_ptr()) };
    }
}

/// `ibv_create_qp`.
pub(super) fn create(device: &Verbs, attr: &QpAttr<'_, Verbs>) -> Result<VerbsQp, CmError> {
    let asked = format!("a queue pair on {} with {:?}", device.name(), attr.caps);
    let mut init = init_attr(device, &asked, attr)?;
    let raw = &raw mut init;
    let qp = match (is_plain(attr), device.create_qp_ex()) {
        // SAFETY: domain and queues are alive and of one device; the call fills in real figures.
        // The extended attributes begin with the plain ones.
        (true, _) => unsafe { ibv_create_qp(device.pd(), raw.cast()) },
        // SAFETY: as above.
        (false, Some(create)) => unsafe { create(device.context(), raw) },
        (false, None) => return Err(lacks(device, asked, attr)),
    };
    let qp = NonNull::new(qp).ok_or_else(|| refused(device, asked, attr))?;
    let caps = caps_of(&init, attr);
    let home = Arc::new(Loose { qp, _table: attr.ex.rwq_ind_tbl.cloned() });
    let (cqs, srq) = (Some((attr.send_cq, attr.recv_cq)), attr.srq);
    let parts = QpParts { kind: attr.kind, qp, caps, device, cqs, srq, xrcd: None, home };
    // SAFETY: made just now with these queues and capacities; only its home destroys it.
    Ok(unsafe { VerbsQp::new(parts) })
}

/// `ibv_create_qp_ex` of XRC_RECV.
pub(super) fn create_xrc_recv(device: &Verbs, xrcd: &VerbsXrcd) -> Result<VerbsQp, CmError> {
    check_xrcd(device, "a queue pair of XRC_RECV", xrcd)?;
    let qp = xrcd.create_recv()?;
    // SAFETY: made just now in that domain, without queues; only its home destroys it.
    Ok(unsafe { VerbsQp::new(xrc_parts(device, xrcd, qp, Arc::new(Loose { qp, _table: None }))) })
}

/// Refuses a domain of another device.
pub(super) fn check_xrcd(device: &Verbs, asked: &str, xrcd: &VerbsXrcd) -> Result<(), CmError> {
    // SAFETY: the domain lives while its handle does.
    if unsafe { (*xrcd.as_ptr()).context } == device.context() {
        return Ok(());
    }
    let answer = format!("the XRC domain is not of {}", device.name());
    Err(CmError::new(Code::Invalid, asked, answer))
}

/// What a queue pair of XRC_RECV is made of.
pub(super) fn xrc_parts<'a>(
    device: &'a Verbs,
    xrcd: &'a VerbsXrcd,
    qp: NonNull<ibv_qp>,
    home: Arc<dyn QpHome>,
) -> QpParts<'a> {
    let (kind, caps) = (QpType::XrcRecv, QpCaps::default());
    QpParts { kind, qp, caps, device, cqs: None, srq: None, xrcd: Some(xrcd), home }
}

/// True if the plain call can make it (QX-3).
pub(super) fn is_plain(attr: &QpAttr<'_, Verbs>) -> bool {
    attr.ex.comp_mask() == AttrMask::PD
}

fn lacks(device: &Verbs, asked: String, attr: &QpAttr<'_, Verbs>) -> CmError {
    let answer = format!("its driver has no extended call, for {:?}", attr.ex.comp_mask());
    CmError::new(Code::NotSupported, asked, answer)
        .cure(format!("ask {} for less, or use another device", device.name()))
}

/// The error of a call that left errno.
fn refused(device: &Verbs, asked: String, attr: &QpAttr<'_, Verbs>) -> CmError {
    let error = CmError::last_os(asked);
    if error.code() != Code::NotSupported {
        return error;
    }
    let what = format!("{:?} with {:?}", attr.kind, attr.ex.comp_mask());
    error.cure(format!("{} cannot do {what}; use another device", device.name()))
}

/// Refuses capacities and queues that the device does not have; librdmacm may not.
fn check_attr(device: &Verbs, asked: &str, attr: &QpAttr<'_, Verbs>) -> Result<(), CmError> {
    extended::check(asked, attr)?;
    let invalid = |answer: String| Err(CmError::new(Code::Invalid, asked, answer));
    let (want, limit) = (attr.caps, device.caps());
    for (name, figure, max) in [
        ("send_wr", want.send_wr, limit.qp_wr_max),
        ("recv_wr", want.recv_wr, limit.qp_wr_max),
        ("send_sge", want.send_sge, limit.send_sge_max),
        ("recv_sge", want.recv_sge, limit.send_sge_max),
        ("inline", want.inline, limit.inline_max),
    ] {
        if figure > max {
            return invalid(format!("{name} {figure}, but {} has {max}", limit.device));
        }
    }
    if want.send_wr == 0 {
        return invalid(String::from("send_wr 0, at least 1 is needed"));
    }
    for cq in [attr.send_cq, attr.recv_cq] {
        // SAFETY: the queue lives while its handle does.
        if unsafe { (*cq.as_ptr()).context } != device.context() {
            return invalid(format!("a completion queue is not of {}", limit.device));
        }
    }
    // SAFETY: the queue lives while its handle does.
    if attr.srq.is_some_and(|srq| unsafe { (*srq.as_ptr()).context } != device.context()) {
        return invalid(format!("the shared queue is not of {}", limit.device));
    }
    Ok(())
}

/// The attributes in C's form, after checks that librdmacm does not make.
pub(super) fn init_attr(
    device: &Verbs,
    asked: &str,
    attr: &QpAttr<'_, Verbs>,
) -> Result<ibv_qp_init_attr_ex, CmError> {
    check_attr(device, asked, attr)?;
    let want = attr.caps;
    // SAFETY: zero is a valid value of each field.
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    init.send_cq = attr.send_cq.as_ptr();
    init.recv_cq = attr.recv_cq.as_ptr();
    init.cap.max_send_wr = want.send_wr;
    init.cap.max_send_sge = want.send_sge.max(1);
    init.cap.max_inline_data = want.inline;
    match attr.srq {
        Some(srq) => init.srq = srq.as_ptr(),
        // It receives nothing (QX-5).
        None if attr.kind == QpType::XrcSend => init.recv_cq = std::ptr::null_mut(),
        None => {
            init.cap.max_recv_wr = want.recv_wr;
            init.cap.max_recv_sge = want.recv_sge.max(1);
        }
    }
    init.qp_type = attr.kind as ibv_qp_type::Type;
    init.sq_sig_all = attr.signal_all.into();
    init.comp_mask = attr.ex.comp_mask().bits();
    init.pd = device.pd();
    init.create_flags = attr.ex.create_flags.unwrap_or_default().bits();
    if let Some(table) = attr.ex.rwq_ind_tbl {
        init.recv_cq = ptr::null_mut();
        init.cap.max_recv_sge = 0;
        init.rwq_ind_tbl = table.as_ptr();
    }
    if let Some(by) = &attr.ex.rx_hash_conf {
        init.rx_hash_conf = ibv_rx_hash_conf {
            rx_hash_function: by.function as u8,
            rx_hash_key_len: HASH_KEY_BYTES as u8,
            // Read during the call, in which the attributes live.
            rx_hash_key: by.key.as_ptr().cast_mut(),
            rx_hash_fields_mask: by.fields.bits(),
        };
    }
    init.max_tso_header = attr.ex.max_tso_header.unwrap_or_default();
    init.send_ops_flags = attr.ex.send_ops_flags.unwrap_or_default().bits();
    Ok(init)
}

/// The capacities that came back (QP-10).
pub(super) fn caps_of(init: &ibv_qp_init_attr_ex, attr: &QpAttr<'_, Verbs>) -> QpCaps {
    QpCaps {
        send_wr: init.cap.max_send_wr,
        recv_wr: if attr.srq.is_some() || attr.kind.is_xrc() { 0 } else { init.cap.max_recv_wr },
        send_sge: init.cap.max_send_sge,
        recv_sge: init.cap.max_recv_sge,
        inline: init.cap.max_inline_data,
    }
}

/// [`query`] of a queue pair that belongs to no id.
pub(super) fn query_own(qp: &VerbsQp) -> Result<QpFields, CmError> {
    let asked = "query a queue pair";
    let none = || CmError::new(Code::Invalid, asked, "there is none");
    let qp = NonNull::new(qp.as_ptr()).ok_or_else(none)?;
    // SAFETY: the queue pair lives while its handle does.
    unsafe { query(qp) }
}

/// `ibv_modify_qp`.
pub(super) fn modify(qp: &VerbsQp, fields: &QpFields) -> Result<(), CmError> {
    let mut raw = to_raw(fields);
    let mask = fields.mask().bits().cast_signed();
    // SAFETY: the queue pair lives while its handle does; the mask names what is set.
    let errno = unsafe { ibv_modify_qp(qp.as_ptr(), &raw mut raw, mask) };
    answer("set fields of a queue pair", errno)
}

/// `ibv_query_qp`.
///
/// # Safety
/// The queue pair is alive during the call.
pub(super) unsafe fn query(qp: NonNull<ibv_qp>) -> Result<QpFields, CmError> {
    // SAFETY: zero is a valid value of each field of both.
    let (mut raw, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    let mask = Mask::all().bits().cast_signed();
    // SAFETY: the caller vouches for the queue pair; both structures are alive.
    let errno = unsafe { ibv_query_qp(qp.as_ptr(), &raw mut raw, mask, &raw mut init) };
    answer("query a queue pair", errno)?;
    Ok(from_raw(&raw, Mask::all()))
}

fn answer(asked: &str, errno: i32) -> Result<(), CmError> {
    match errno {
        0 => Ok(()),
        errno => {
            let error = io::Error::from_raw_os_error(errno.saturating_abs());
            Err(CmError::from_io(asked, &error))
        }
    }
}

fn to_raw(fields: &QpFields) -> ibv_qp_attr {
    // SAFETY: zero is a valid value of each field.
    let mut raw: ibv_qp_attr = unsafe { zeroed() };
    raw.qp_state = fields.state.map_or(0, |state| state as u32);
    raw.en_sqd_async_notify = fields.sqd_notify.unwrap_or(false).into();
    raw.qp_access_flags = fields.access.map_or(0, |access| access.bits());
    raw.pkey_index = fields.pkey_index.unwrap_or(0);
    raw.port_num = fields.port.unwrap_or(0);
    raw.qkey = fields.qkey.unwrap_or(0);
    if let Some(av) = fields.av {
        raw.ah_attr = raw_address(&av);
    }
    raw.path_mtu = fields.path_mtu.map_or(0, |mtu| mtu as u32);
    raw.dest_qp_num = fields.dest_qp.unwrap_or(0);
    raw.rq_psn = fields.rq_psn.unwrap_or(0);
    raw.max_dest_rd_atomic = fields.max_dest_rd_atomic.unwrap_or(0);
    raw.min_rnr_timer = fields.min_rnr_timer.unwrap_or(0);
    raw.sq_psn = fields.sq_psn.unwrap_or(0);
    raw.max_rd_atomic = fields.max_rd_atomic.unwrap_or(0);
    raw.timeout = fields.timeout.unwrap_or(0);
    raw.retry_cnt = fields.retry_cnt.unwrap_or(0);
    raw.rnr_retry = fields.rnr_retry.unwrap_or(0);
    raw
}

/// The fields that the mask names.
pub(super) fn from_raw(raw: &ibv_qp_attr, mask: Mask) -> QpFields {
    let has = |bit: Mask| mask.contains(bit);
    QpFields {
        state: QpState::from_raw(raw.qp_state).filter(|_| has(Mask::STATE)),
        sqd_notify: has(Mask::SQD_NOTIFY).then_some(raw.en_sqd_async_notify != 0),
        access: has(Mask::ACCESS).then(|| Access::from_bits_truncate(raw.qp_access_flags)),
        pkey_index: has(Mask::PKEY_INDEX).then_some(raw.pkey_index),
        port: has(Mask::PORT).then_some(raw.port_num),
        qkey: has(Mask::QKEY).then_some(raw.qkey),
        av: has(Mask::AV).then(|| address_of(&raw.ah_attr)),
        path_mtu: Mtu::from_raw(raw.path_mtu).filter(|_| has(Mask::PATH_MTU)),
        dest_qp: has(Mask::DEST_QP).then_some(raw.dest_qp_num),
        rq_psn: has(Mask::RQ_PSN).then_some(raw.rq_psn),
        max_dest_rd_atomic: has(Mask::MAX_DEST_RD_ATOMIC).then_some(raw.max_dest_rd_atomic),
        min_rnr_timer: has(Mask::MIN_RNR_TIMER).then_some(raw.min_rnr_timer),
        sq_psn: has(Mask::SQ_PSN).then_some(raw.sq_psn),
        max_rd_atomic: has(Mask::MAX_RD_ATOMIC).then_some(raw.max_rd_atomic),
        timeout: has(Mask::TIMEOUT).then_some(raw.timeout),
        retry_cnt: has(Mask::RETRY_CNT).then_some(raw.retry_cnt),
        rnr_retry: has(Mask::RNR_RETRY).then_some(raw.rnr_retry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_seam::provider::{AddressVector, CreateFlags, Gid, GlobalRoute, SendOps};

    #[test]
    fn fields_come_back_as_they_went() {
        let route = GlobalRoute {
            gid: Gid([7; 16]),
            flow_label: 9,
            source_index: 1,
            hop_limit: 64,
            traffic_class: 3,
        };
        let fields = QpFields {
            state: Some(QpState::Rtr),
            sqd_notify: Some(true),
            access: Some(Access::REMOTE_WRITE | Access::REMOTE_READ),
            pkey_index: Some(1),
            port: Some(2),
            qkey: Some(6),
            av: Some(AddressVector { route: Some(route), port: 2, lid: 5, ..Default::default() }),
            path_mtu: Some(Mtu::Bytes4096),
            dest_qp: Some(18),
            rq_psn: Some(19),
            max_dest_rd_atomic: Some(20),
            min_rnr_timer: Some(21),
            sq_psn: Some(22),
            max_rd_atomic: Some(23),
            timeout: Some(24),
            retry_cnt: Some(6),
            rnr_retry: Some(7),
        };
        assert_eq!(from_raw(&to_raw(&fields), Mask::all()), fields);
        assert_eq!(from_raw(&to_raw(&fields), Mask::STATE), QpFields::to(QpState::Rtr));
    }

    #[test]
    fn qx_04_numbers_of_fields_flags_and_operations_are_libibverbs_own() {
        use ibv_qp_create_flags as F;
        use ibv_qp_create_send_ops_flags as O;
        use ibv_qp_init_attr_mask as M;
        for (ours, theirs) in [
            (AttrMask::PD, M::IBV_QP_INIT_ATTR_PD),
            (AttrMask::XRCD, M::IBV_QP_INIT_ATTR_XRCD),
            (AttrMask::CREATE_FLAGS, M::IBV_QP_INIT_ATTR_CREATE_FLAGS),
            (AttrMask::MAX_TSO_HEADER, M::IBV_QP_INIT_ATTR_MAX_TSO_HEADER),
            (AttrMask::IND_TABLE, M::IBV_QP_INIT_ATTR_IND_TABLE),
            (AttrMask::RX_HASH, M::IBV_QP_INIT_ATTR_RX_HASH),
            (AttrMask::SEND_OPS_FLAGS, M::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
        ] {
            assert_eq!(ours.bits(), theirs.0);
        }
        for (ours, theirs) in [
            (CreateFlags::BLOCK_SELF_MCAST_LB, F::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB),
            (CreateFlags::SCATTER_FCS, F::IBV_QP_CREATE_SCATTER_FCS),
            (CreateFlags::CVLAN_STRIPPING, F::IBV_QP_CREATE_CVLAN_STRIPPING),
        ] {
            assert_eq!(ours.bits(), theirs.0);
        }
        for (ours, theirs) in [
            (SendOps::RDMA_WRITE, O::IBV_QP_EX_WITH_RDMA_WRITE),
            (SendOps::RDMA_WRITE_WITH_IMM, O::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM),
            (SendOps::SEND, O::IBV_QP_EX_WITH_SEND),
            (SendOps::SEND_WITH_IMM, O::IBV_QP_EX_WITH_SEND_WITH_IMM),
            (SendOps::RDMA_READ, O::IBV_QP_EX_WITH_RDMA_READ),
            (SendOps::ATOMIC_CMP_AND_SWP, O::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP),
            (SendOps::ATOMIC_FETCH_AND_ADD, O::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
            (SendOps::LOCAL_INV, O::IBV_QP_EX_WITH_LOCAL_INV),
            (SendOps::BIND_MW, O::IBV_QP_EX_WITH_BIND_MW),
            (SendOps::SEND_WITH_INV, O::IBV_QP_EX_WITH_SEND_WITH_INV),
            (SendOps::TSO, O::IBV_QP_EX_WITH_TSO),
        ] {
            assert_eq!(ours.bits(), u64::from(theirs.0));
        }
    }

    #[test]
    fn the_mask_is_libibverbs_own() {
        use ibv_qp_attr_mask as C;
        for (ours, theirs) in [
            (Mask::STATE, C::IBV_QP_STATE),
            (Mask::SQD_NOTIFY, C::IBV_QP_EN_SQD_ASYNC_NOTIFY),
            (Mask::ACCESS, C::IBV_QP_ACCESS_FLAGS),
            (Mask::PKEY_INDEX, C::IBV_QP_PKEY_INDEX),
            (Mask::PORT, C::IBV_QP_PORT),
            (Mask::AV, C::IBV_QP_AV),
            (Mask::PATH_MTU, C::IBV_QP_PATH_MTU),
            (Mask::TIMEOUT, C::IBV_QP_TIMEOUT),
            (Mask::RETRY_CNT, C::IBV_QP_RETRY_CNT),
            (Mask::RNR_RETRY, C::IBV_QP_RNR_RETRY),
            (Mask::RQ_PSN, C::IBV_QP_RQ_PSN),
            (Mask::MAX_RD_ATOMIC, C::IBV_QP_MAX_QP_RD_ATOMIC),
            (Mask::MIN_RNR_TIMER, C::IBV_QP_MIN_RNR_TIMER),
            (Mask::SQ_PSN, C::IBV_QP_SQ_PSN),
            (Mask::MAX_DEST_RD_ATOMIC, C::IBV_QP_MAX_DEST_RD_ATOMIC),
            (Mask::DEST_QP, C::IBV_QP_DEST_QPN),
        ] {
            assert_eq!(ours.bits(), theirs.0);
        }
    }
}
