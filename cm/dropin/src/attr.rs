//! Attributes of queue pairs and rights: those of C, and those of the device.

use doorbell_fabric::{Mask, Mtu, QpFields, QpState};
use doorbell_seam::provider::{Access, AddressVector, Gid, GlobalRoute, QpType};
use libc::{c_int, c_uint};

use crate::abi::{gid_aligned, ibv_ah_attr, ibv_global_route, ibv_qp_attr};
use crate::border::{ABSENT, Errno, INVALID};

/// The state that the program believes to be the current one.
const CUR_STATE: u32 = 1 << 1;
/// Alternate path, migration, capacities, rate.
const NOT_HERE: u32 = 1 << 14 | 1 << 18 | 1 << 19 | 1 << 25;

/// The bits of a packet sequence number. Programs give more, and drivers drop them.
const PSN: u32 = 0xff_ffff;

/// Flags that may be ignored (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;

/// What a program may ask for memory.
pub(crate) fn access_of(flags: c_uint) -> Result<Access, Errno> {
    let flags = flags & !OPTIONAL;
    if flags & !0xff != 0 {
        return Err(INVALID);
    }
    // Zero-based, on demand, huge pages.
    Access::from_bits(flags).ok_or(ABSENT)
}

/// Fields that the kernel ignores: each end of XRC has only a half of them.
fn ignored(kind: QpType) -> Mask {
    match kind {
        QpType::XrcSend => Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
        QpType::XrcRecv => Mask::MAX_RD_ATOMIC | Mask::RETRY_CNT | Mask::RNR_RETRY,
        _ => Mask::empty(),
    }
}

/// The fields that a program sets.
pub(crate) fn fields(attr: &ibv_qp_attr, mask: u32, kind: QpType) -> Result<QpFields, Errno> {
    if mask & NOT_HERE != 0 {
        return Err(ABSENT);
    }
    let mask = Mask::from_bits(mask & !CUR_STATE).ok_or(INVALID)? - ignored(kind);
    let mut fields = QpFields::default();
    if mask.contains(Mask::STATE) {
        let state = QpState::from_raw(attr.qp_state.cast_unsigned()).ok_or(INVALID)?;
        fields.state = Some(state);
    }
    if mask.contains(Mask::ACCESS) {
        fields.access = Some(access_of(attr.qp_access_flags)?);
    }
    if mask.contains(Mask::PATH_MTU) {
        fields.path_mtu = Some(Mtu::from_raw(attr.path_mtu.cast_unsigned()).ok_or(INVALID)?);
    }
    let bit = |bit| mask.contains(bit);
    fields.sqd_notify = bit(Mask::SQD_NOTIFY).then_some(attr.en_sqd_async_notify != 0);
    fields.pkey_index = bit(Mask::PKEY_INDEX).then_some(attr.pkey_index);
    fields.port = bit(Mask::PORT).then_some(attr.port_num);
    fields.qkey = bit(Mask::QKEY).then_some(attr.qkey);
    fields.av = bit(Mask::AV).then(|| address(&attr.ah_attr));
    fields.timeout = bit(Mask::TIMEOUT).then_some(attr.timeout);
    fields.retry_cnt = bit(Mask::RETRY_CNT).then_some(attr.retry_cnt);
    fields.rnr_retry = bit(Mask::RNR_RETRY).then_some(attr.rnr_retry);
    fields.rq_psn = bit(Mask::RQ_PSN).then_some(attr.rq_psn & PSN);
    fields.sq_psn = bit(Mask::SQ_PSN).then_some(attr.sq_psn & PSN);
    fields.max_rd_atomic = bit(Mask::MAX_RD_ATOMIC).then_some(attr.max_rd_atomic);
    fields.max_dest_rd_atomic = bit(Mask::MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    fields.min_rnr_timer = bit(Mask::MIN_RNR_TIMER).then_some(attr.min_rnr_timer);
    fields.dest_qp = bit(Mask::DEST_QP).then_some(attr.dest_qp_num);
    Ok(fields)
}

/// The same, for a query. Fields that were never set are 0.
pub(crate) fn attributes(fields: &QpFields) -> ibv_qp_attr {
    let state = fields.state.map_or(0, |state| state as c_int);
    ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: fields.path_mtu.map_or(0, |mtu| mtu as c_int),
        qkey: fields.qkey.unwrap_or_default(),
        rq_psn: fields.rq_psn.unwrap_or_default(),
        sq_psn: fields.sq_psn.unwrap_or_default(),
        dest_qp_num: fields.dest_qp.unwrap_or_default(),
        qp_access_flags: fields.access.map_or(0, |access| access.bits()),
        ah_attr: fields.av.map(|av| address_attr(&av)).unwrap_or_default(),
        pkey_index: fields.pkey_index.unwrap_or_default(),
        max_rd_atomic: fields.max_rd_atomic.unwrap_or_default(),
        max_dest_rd_atomic: fields.max_dest_rd_atomic.unwrap_or_default(),
        min_rnr_timer: fields.min_rnr_timer.unwrap_or_default(),
        port_num: fields.port.unwrap_or_default(),
        timeout: fields.timeout.unwrap_or_default(),
        retry_cnt: fields.retry_cnt.unwrap_or_default(),
        rnr_retry: fields.rnr_retry.unwrap_or_default(),
        ..ibv_qp_attr::default()
    }
}

/// An address.
pub(crate) fn address(attr: &ibv_ah_attr) -> AddressVector {
    let grh = &attr.grh;
    let route = GlobalRoute {
        gid: Gid(grh.dgid.raw),
        flow_label: grh.flow_label,
        source_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
    };
    AddressVector {
        route: (attr.is_global != 0).then_some(route),
        lid: attr.dlid,
        service_level: attr.sl,
        source_path: attr.src_path_bits,
        static_rate: attr.static_rate,
        port: attr.port_num,
    }
}

/// The same, for the program.
pub(crate) fn address_attr(address: &AddressVector) -> ibv_ah_attr {
    let route = address.route.unwrap_or_default();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_aligned { raw: route.gid.0 },
            flow_label: route.flow_label,
            sgid_index: route.source_index,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        },
        dlid: address.lid,
        sl: address.service_level,
        src_path_bits: address.source_path,
        static_rate: address.static_rate,
        is_global: address.route.is_some().into(),
        port_num: address.port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_have_24_bits() {
        let attr = ibv_qp_attr { rq_psn: u32::MAX, sq_psn: 0x0300_0002, ..ibv_qp_attr::default() };
        let fields = fields(&attr, (Mask::RQ_PSN | Mask::SQ_PSN).bits(), QpType::Rc).unwrap();
        assert_eq!((fields.rq_psn, fields.sq_psn), (Some(0xff_ffff), Some(2)));
    }

    #[test]
    fn each_end_of_xrc_has_its_half_of_the_fields() {
        let mask = (Mask::MAX_DEST_RD_ATOMIC | Mask::MAX_RD_ATOMIC).bits();
        let of = |kind| {
            let fields = fields(&ibv_qp_attr::default(), mask, kind).unwrap();
            (fields.max_dest_rd_atomic.is_some(), fields.max_rd_atomic.is_some())
        };
        assert_eq!(of(QpType::Rc), (true, true));
        assert_eq!(of(QpType::XrcSend), (false, true));
        assert_eq!(of(QpType::XrcRecv), (true, false));
    }
}
