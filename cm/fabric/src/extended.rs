//! The rules between the fields of `ibv_create_qp_ex` (QX-1 to QX-10). Devices check them with
//! [`check`] before they ask a driver.

use doorbell_seam::error::Code;
use doorbell_seam::provider::{CreateFlags, HashFields, QpType, SendOps};

use crate::error::CmError;
use crate::fabric::{Fabric, QpAttr};

/// Refuses fields that do not fit together. Drivers differ in what they check, so this comes before
/// the driver's own checks.
///
/// # Errors
/// `Invalid` or `NotSupported`, with the clause.
pub fn check<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
    check_flags(asked, attr.kind, attr.ex.create_flags.unwrap_or_default())?;
    check_segments(asked, attr)?;
    check_rss(asked, attr)?;
    check_ops(asked, attr.kind, attr.ex.send_ops_flags.unwrap_or_default())
}

fn check_flags(asked: &str, kind: QpType, flags: CreateFlags) -> Result<(), CmError> {
    let refused = |answer| Err(CmError::new(Code::Invalid, asked, answer));
    let unknown = flags - CreateFlags::all();
    if !unknown.is_empty() {
        return refused(format!("unknown creation flags {:#x} (QX-6)", unknown.bits()));
    }
    let beyond = flags - CreateFlags::of(kind);
    if !beyond.is_empty() {
        return refused(format!("queue pairs of {kind:?} take no {beyond:?} (QX-6)"));
    }
    Ok(())
}

fn check_segments<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
    let refused = |code, answer: &str| Err(CmError::new(code, asked, format!("{answer} (QX-7)")));
    let Some(bytes) = attr.ex.max_tso_header else {
        let ops = attr.ex.send_ops_flags.unwrap_or_default();
        return match ops.contains(SendOps::TSO) && attr.kind == QpType::RawPacket {
            true => refused(Code::Invalid, "segmented sends take a max_tso_header"),
            false => Ok(()),
        };
    };
    match attr.kind {
        QpType::RawPacket if bytes == 0 => refused(Code::Invalid, "a header has some bytes"),
        QpType::RawPacket => Ok(()),
        QpType::Ud => refused(Code::NotSupported, "datagrams are not segmented"),
        _ => refused(Code::Invalid, "what is connected is not segmented this way"),
    }
}

fn check_rss<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
    let refused = |code, answer: &str| Err(CmError::new(code, asked, format!("{answer} (QX-8)")));
    let by = match (attr.ex.rwq_ind_tbl, attr.ex.rx_hash_conf) {
        (None, None) => return Ok(()),
        (Some(_), Some(by)) => by,
        (Some(_), None) => return refused(Code::Invalid, "a table takes a hash to spread by"),
        (None, Some(_)) => return refused(Code::Invalid, "there is no table to spread over"),
    };
    match attr.kind {
        QpType::RawPacket => {}
        QpType::Ud => return refused(Code::NotSupported, "datagrams are not spread"),
        _ => return refused(Code::Invalid, "what is connected is not spread"),
    }
    if attr.srq.is_some() || attr.caps.recv_wr != 0 || attr.caps.recv_sge != 0 {
        return refused(Code::Invalid, "with a table it has no receives of its own");
    }
    let fields = by.fields;
    let both = |one, two| fields.intersects(one) && fields.intersects(two);
    let four = HashFields::SRC_IPV4 | HashFields::DST_IPV4;
    let six = HashFields::SRC_IPV6 | HashFields::DST_IPV6;
    let tcp = HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP;
    let udp = HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
    if fields.is_empty() || !HashFields::all().contains(fields) {
        return refused(Code::Invalid, "it takes fields to hash that exist");
    }
    if both(four, six) || both(tcp, udp) {
        return refused(Code::Invalid, "one version of IP, and ports of TCP or of UDP");
    }
    Ok(())
}

fn check_ops(asked: &str, kind: QpType, ops: SendOps) -> Result<(), CmError> {
    let unknown = ops - SendOps::all();
    if !unknown.is_empty() {
        let answer = format!("there are no operations {:#x} (QX-10)", unknown.bits());
        return Err(CmError::new(Code::Invalid, asked, answer));
    }
    let beyond = ops - SendOps::of(kind);
    if !beyond.is_empty() {
        let answer = format!("queue pairs of {kind:?} cannot do {beyond:?} (QX-10)");
        return Err(CmError::new(Code::NotSupported, asked, answer));
    }
    Ok(())
}
