//! `ibv_create_qp_ex`.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;

use doorbell_fabric::{CmError, Fabric, QpAttr, QpAttrEx, QpFields, QpState};
use doorbell_seam::provider::{CreateFlags, QpType, SendOps};
use doorbell_soft::{SoftDevice, SoftQp, SoftXrcd};
use libc::c_int;

use crate::abi::*;
use crate::abi_ext::ibv_xrcd;
use crate::border::{ABSENT, Errno, INVALID, given, pointer, zeroed};
use crate::context::context;
use crate::extended_post::set_functions;
use crate::qp::{Made, cap_of, create_by, give, kind_of, plain};
use crate::xrc::xrcd_at;

/// The extensions that are known: `IBV_QP_INIT_ATTR_PD`, `_CREATE_FLAGS`, `_SEND_OPS_FLAGS`.
const ATTR_PD: u32 = 1;
const ATTR_CREATE_FLAGS: u32 = 1 << 2;
const ATTR_SEND_OPS: u32 = 1 << 6;

/// `create_qp_ex` of a context.
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program's attributes and what they name.
        unsafe {
            let asked = given(attr)?;
            let (kind, mask) = (kind_of(asked.qp_type)?, asked.comp_mask);
            if kind == QpType::XrcRecv {
                return create_plain_recv(asked);
            }
            if mask & ATTR_PD == 0 {
                return Err(INVALID);
            }
            let extended = mask & ATTR_SEND_OPS != 0;
            let beyond = extended && asked.send_ops_flags & !SendOps::of(kind).bits() != 0;
            if mask & !(ATTR_PD | ATTR_CREATE_FLAGS | ATTR_SEND_OPS) != 0 || beyond {
                return Err(ABSENT);
            }
            let create_flags = match mask & ATTR_CREATE_FLAGS != 0 {
                true => Some(CreateFlags::from_bits(asked.create_flags).ok_or(ABSENT)?),
                false => None,
            };
            let reset = QpFields::to(QpState::Reset);
            let made = create_by(asked.pd, &plain(asked), reset, |device, attr| {
                let ex = QpAttrEx { create_flags, ..QpAttrEx::default() };
                device.create_qp(&QpAttr { ex, ..*attr })
            })?;
            (*attr).cap = cap_of(made)?;
            if extended {
                set_functions(made.cast());
            }
            Ok(made)
        }
    })
}

/// Makes a receiving queue pair of XRC, in RESET.
unsafe fn create_plain_recv(attr: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    const ATTR_XRCD: u32 = 2;
    if attr.comp_mask & ATTR_XRCD == 0 {
        return Err(INVALID);
    }
    if attr.comp_mask != ATTR_XRCD {
        return Err(ABSENT);
    }
    let reset = QpFields::to(QpState::Reset);
    let make = |device: &SoftDevice, xrcd: &SoftXrcd| device.create_xrc_recv(xrcd);
    // SAFETY: the program's domain.
    unsafe { create_recv(attr.xrcd, attr.qp_context, reset, make) }
}

/// Makes a receiving queue pair of XRC by that call, which sets those fields.
///
/// # Safety
/// The domain is the program's.
pub(crate) unsafe fn create_recv(
    at: *mut ibv_xrcd,
    qp_context: *mut c_void,
    set: QpFields,
    make: impl FnOnce(&SoftDevice, &SoftXrcd) -> Result<SoftQp, CmError>,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    let (xrcd, context_at) = unsafe { (xrcd_at(at)?, (*at).context) };
    // SAFETY: it is alive, because its domain is.
    let progress = unsafe { context(context_at) }?.own.progress();
    let qp = make(&progress.device, &xrcd.domain)?;
    let kind = QpType::XrcRecv;
    let (context, qp_type) = (context_at, kind as c_int);
    let base = ibv_qp { context, qp_context, qp_type, ..zeroed() };
    let (signal_all, recv_sge, xrcd) = (false, 0, Some(xrcd));
    Ok(give(base, Made { qp, kind, set, signal_all, recv_sge, progress, xrcd }))
}
