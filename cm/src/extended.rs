//! What `ibv_create_qp_ex` takes besides what `ibv_create_qp` does, and the rules among its fields
//! (QX-1 to QX-10).

use doorbell_engine::error::Code;
use doorbell_engine::provider::{AttrMask, CreateFlags, QpType, SendOps};

use crate::attr::QpAttr;
use crate::error::CmError;
use crate::fabric::Fabric;
use crate::qp::QpInit;

/// The fields of `struct ibv_qp_init_attr_ex` that `struct ibv_qp_init_attr` lacks. What is `None`
/// does not count; the protection domain is always that of the device's handle.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttrEx {
    /// Flags of creation (QX-6).
    pub create_flags: Option<CreateFlags>,
    /// The operations it is going to post (QX-10); all its type can do if this is `None`.
    pub send_ops_flags: Option<SendOps>,
}

impl QpAttrEx {
    /// Which fields count (`comp_mask`, QX-1).
    pub fn comp_mask(&self) -> AttrMask {
        let mut mask = AttrMask::PD;
        mask.set(AttrMask::CREATE_FLAGS, self.create_flags.is_some());
        mask.set(AttrMask::SEND_OPS_FLAGS, self.send_ops_flags.is_some());
        mask
    }
}

impl<F: Fabric> QpInit<F> {
    /// Flags of creation (QX-6), which not every type and device has.
    #[must_use]
    pub fn create_flags(mut self, flags: CreateFlags) -> Self {
        self.ex.create_flags = Some(flags);
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
            _ => self.ex.comp_mask(),
        }
    }
}

/// Refuses what does not go together, before a device is asked: drivers differ in what they look
/// at.
pub(crate) fn check<F: Fabric>(asked: &str, attr: &QpAttr<'_, F>) -> Result<(), CmError> {
    check_flags(asked, attr.kind, attr.ex.create_flags.unwrap_or_default())?;
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
