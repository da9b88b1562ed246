//! Fields of a queue pair in C's form and back, and queue pairs that belong to no id.

use std::io;

use doorbell_fabric::CmError;
use doorbell_fabric::QpAttr;
use doorbell_fabric::extended;
use doorbell_fabric::{Mask, Mtu, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Provider, QpType};

use crate::ah::{address_of, raw_address};
use crate::handles::zero;
use crate::qp_calls::NewQp;
use crate::rdma_core::{ibv_qp_attr, ibv_qp_attr_mask};
use crate::{Verbs, VerbsQp, VerbsXrcd, front, shim};

/// `ibv_create_qp`.
pub(super) fn create(device: &Verbs, attr: &QpAttr<'_, Verbs>) -> Result<VerbsQp, CmError> {
    let asked = format!("a queue pair on {} with {:?}", device.name(), attr.caps);
    let context = device.device().context();
    let new = new_qp(device, &asked, attr)?;
    if new.plain_pd().is_none() && front::create_qp_ex(context).is_none() {
        return Err(lacks(device, asked, attr));
    }
    let made = new.create(context);
    let (qp, caps) = made.map_err(|errno| refused(device, asked, attr, errno))?;
    Ok(VerbsQp::new(qp, attr.kind, caps, !has_receives(attr), device))
}

/// `ibv_create_qp_ex` of XRC_RECV.
pub(super) fn create_xrc_recv(device: &Verbs, xrcd: &VerbsXrcd) -> Result<VerbsQp, CmError> {
    let asked = "a queue pair of XRC_RECV";
    check_xrcd(device, asked, xrcd)?;
    let made = new_xrc_recv(xrcd).create(device.device().context());
    let (qp, caps) = made.map_err(|errno| shim::refused(asked, errno))?;
    Ok(VerbsQp::new(qp, QpType::XrcRecv, caps, true, device))
}

/// Refuses a domain of another device.
pub(super) fn check_xrcd(device: &Verbs, asked: &str, xrcd: &VerbsXrcd) -> Result<(), CmError> {
    if xrcd.0.context() == device.device().context() {
        return Ok(());
    }
    let answer = format!("the XRC domain is not of {}", device.name());
    Err(CmError::new(Code::Invalid, asked, answer))
}

/// What a queue pair of XRC_RECV is made with: no queues, and that domain (QX-5).
pub(super) fn new_xrc_recv(xrcd: &VerbsXrcd) -> NewQp<'_> {
    NewQp { xrcd: Some(&xrcd.0), ..NewQp::of(QpType::XrcRecv) }
}

/// True if it has a receive queue of its own.
pub(super) fn has_receives(attr: &QpAttr<'_, Verbs>) -> bool {
    attr.srq.is_none() && !attr.kind.is_xrc()
}

fn lacks(device: &Verbs, asked: String, attr: &QpAttr<'_, Verbs>) -> CmError {
    let answer = format!("its driver has no extended call, for {:?}", attr.ex.comp_mask());
    CmError::new(Code::NotSupported, asked, answer)
        .cure(format!("ask {} for less, or use another device", device.name()))
}

/// The error of a call that failed.
fn refused(device: &Verbs, asked: String, attr: &QpAttr<'_, Verbs>, errno: i32) -> CmError {
    let error = failed(&asked, errno);
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
    let (want, limit, context) = (attr.caps, device.caps(), device.device().context());
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
        if cq.cq.context() != context {
            return invalid(format!("a completion queue is not of {}", limit.device));
        }
    }
    if attr.srq.is_some_and(|srq| srq.srq.context() != context) {
        return invalid(format!("the shared queue is not of {}", limit.device));
    }
    Ok(())
}

/// What a queue pair is made with, after checks that librdmacm does not make.
pub(super) fn new_qp<'a>(
    device: &'a Verbs,
    asked: &str,
    attr: &'a QpAttr<'_, Verbs>,
) -> Result<NewQp<'a>, CmError> {
    check_attr(device, asked, attr)?;
    // XRC_SEND receives nothing (QX-5), and with a table the work queues receive (QX-8).
    let receives = attr.kind != QpType::XrcSend && attr.ex.rwq_ind_tbl.is_none();
    Ok(NewQp {
        caps: attr.caps,
        signal_all: attr.signal_all,
        pd: Some(device.device().pd()),
        send_cq: Some(&attr.send_cq.cq),
        recv_cq: Some(&attr.recv_cq.cq).filter(|_| receives),
        srq: attr.srq.map(|srq| &srq.srq),
        create_flags: attr.ex.create_flags,
        max_tso_header: attr.ex.max_tso_header,
        rwq_ind_tbl: attr.ex.rwq_ind_tbl.map(|table| &table.table),
        rx_hash_conf: attr.ex.rx_hash_conf.as_ref(),
        send_ops_flags: attr.ex.send_ops_flags,
        ..NewQp::of(attr.kind)
    })
}

/// The fields of a queue pair that belongs to no id (`ibv_query_qp`).
pub(super) fn query_own(qp: &VerbsQp) -> Result<QpFields, CmError> {
    queried(qp.raw().query(WHOLE))
}

/// All fields of an answer to a query of [`WHOLE`].
pub(super) fn queried(answer: Result<ibv_qp_attr, i32>) -> Result<QpFields, CmError> {
    match answer {
        Ok(raw) => Ok(from_raw(&raw, Mask::all())),
        Err(errno) => Err(failed("query a queue pair", errno)),
    }
}

/// All fields.
pub(super) const WHOLE: ibv_qp_attr_mask = ibv_qp_attr_mask(Mask::all().bits());

/// `ibv_modify_qp`.
pub(super) fn modify(qp: &VerbsQp, fields: &QpFields) -> Result<(), CmError> {
    match qp.raw().modify(to_raw(fields), ibv_qp_attr_mask(fields.mask().bits())) {
        0 => Ok(()),
        errno => Err(failed("set fields of a queue pair", errno)),
    }
}

fn failed(asked: &str, errno: i32) -> CmError {
    CmError::from_io(asked, &io::Error::from_raw_os_error(errno.saturating_abs()))
}

fn to_raw(fields: &QpFields) -> ibv_qp_attr {
    let mut raw: ibv_qp_attr = zero();
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
    use crate::rdma_core::*;
    use doorbell_seam::provider::{
        AddressVector, AttrMask, CreateFlags, Gid, GlobalRoute, SendOps,
    };

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
