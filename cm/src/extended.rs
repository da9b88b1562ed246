//! What `ibv_create_qp_ex` takes besides what `ibv_create_qp` does, and the rules among its fields
//! (QX-1 to QX-10).

use std::sync::Arc;

use doorbell_engine::error::Code;
use doorbell_engine::provider::{AttrMask, CreateFlags, HashFields, QpType, RxHash, SendOps};

use crate::attr::QpAttr;
use crate::error::CmError;
use crate::fabric::Fabric;
use crate::qp::QpInit;
use crate::spread::{IndirectionTable, Table};

/// The fields of `struct ibv_qp_init_attr_ex` that `struct ibv_qp_init_attr` lacks. What is `None`
/// does not count; the protection domain is always that of the device's handle.
pub struct QpAttrEx<'a, F: Fabric> {
    /// Flags of creation (QX-6).
    pub create_flags: Option<CreateFlags>,
    /// The longest header of a segmented send, in bytes (QX-7).
    pub max_tso_header: Option<u16>,
    /// The work queues that receives go to, instead of any other (QX-8).
    pub rwq_ind_tbl: Option<&'a F::RwqIndTable>,
    /// By what they are spread.
    pub rx_hash_conf: Option<RxHash>,
    /// The operations it is going to post (QX-10); all its type can do if this is `None`.
    pub send_ops_flags: Option<SendOps>,
}

impl<F: Fabric> Default for QpAttrEx<'_, F> {
    fn default() -> Self {
        QpAttrEx {
            create_flags: None,
            max_tso_header: None,
            rwq_ind_tbl: None,
            rx_hash_conf: None,
            send_ops_flags: None,
        }
    }
}

impl<F: Fabric> QpAttrEx<'_, F> {
    /// Which fields count (`comp_mask`, QX-1).
    pub fn comp_mask(&self) -> AttrMask {
        let mut mask = AttrMask::PD;
        mask.set(AttrMask::CREATE_FLAGS, self.create_flags.is_some());
        mask.set(AttrMask::MAX_TSO_HEADER, self.max_tso_header.is_some());
        mask.set(AttrMask::IND_TABLE, self.rwq_ind_tbl.is_some());
        mask.set(AttrMask::RX_HASH, self.rx_hash_conf.is_some());
        mask.set(AttrMask::SEND_OPS_FLAGS, self.send_ops_flags.is_some());
        mask
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
    /// Flags of creation (QX-6), which not every type and device has.
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
    /// queue pair has no receive queue then: no receives may be asked for after this, nor a
    /// completion queue for them, nor a shared receive queue.
    #[must_use]
    pub fn rwq_ind_tbl(mut self, table: &IndirectionTable<F>) -> Self {
        self.ex.table = Some(table.inner().clone());
        self.recv_wr(0).recv_sge(0)
    }

    /// By what receives are spread over the table (QX-8).
    #[must_use]
    pub fn rx_hash_conf(mut self, by: RxHash) -> Self {
        self.ex.rx_hash_conf = Some(by);
        self
    }

    /// The operations that are going to be posted (QX-10): others are refused from then on.
    #[must_use]
    pub fn send_ops_flags(mut self, ops: SendOps) -> Self {
        self.ex.send_ops_flags = Some(ops);
        self
    }

    /// Which fields of the extended call count (QX-1): those that were set, and the protection
    /// domain, which is that of the device's handle.
    pub fn comp_mask(&self) -> AttrMask {
        match self.kind() {
            QpType::XrcRecv => AttrMask::XRCD,
            _ => self.ex.attr().comp_mask(),
        }
    }
}

/// Refuses what does not go together, before a device is asked: drivers differ in what they look
/// at.
pub(crate) fn check<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
    check_flags(asked, attr.kind, attr.ex.create_flags.unwrap_or_default())?;
    check_segments(asked, attr)?;
    check_spread(asked, attr)?;
    check_ops(asked, attr.kind, attr.ex.send_ops_flags.unwrap_or_default())
}

fn check_flags(asked: &str, kind: QpType, flags: CreateFlags) -> Result<(), CmError> {
    let refused = |answer| Err(CmError::new(Code::Invalid, asked, answer));
    let unknown = flags - CreateFlags::all();
    if !unknown.is_empty() {
        return refused(format!("there are no creation flags {:#x} (QX-6)", unknown.bits()));
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

fn check_spread<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
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
