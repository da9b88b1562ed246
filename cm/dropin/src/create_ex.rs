//! `ibv_create_qp_ex`.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;

use doorbell_fabric::{CmError, Fabric, QpAttr, QpAttrEx, QpFields, QpState};
use doorbell_seam::provider::{CreateFlags, QpType, RxHash, SendOps};
use doorbell_soft::{SoftDevice, SoftIndTable, SoftQp, SoftXrcd};
use libc::c_int;

use crate::abi::*;
use crate::abi_context::*;
use crate::abi_ext::ibv_xrcd;
use crate::border::{ABSENT, Errno, INVALID, given, pointer, zeroed};
use crate::context::context;
use crate::extended_post::set_functions;
use crate::qp::{Made, cap_of, create_by, give, kind_of, plain};
use crate::wq::{hash_of, table_at};
use crate::xrc::xrcd_at;

/// The extensions that are known, as bits of `enum ibv_qp_init_attr_mask`.
pub(crate) const ATTR_PD: u32 = 1;
const ATTR_CREATE_FLAGS: u32 = 1 << 2;
const ATTR_TABLE: u32 = 1 << 4;
const ATTR_RX_HASH: u32 = 1 << 5;
pub(crate) const ATTR_SEND_OPS: u32 = 1 << 6;
const KNOWN: u32 = ATTR_PD | ATTR_CREATE_FLAGS | ATTR_TABLE | ATTR_RX_HASH | ATTR_SEND_OPS;

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
            let extended = is_extended(asked, kind)?;
            if mask & !KNOWN != 0 {
                return Err(ABSENT);
            }
            let made = match mask & (ATTR_TABLE | ATTR_RX_HASH) {
                0 => create_plain(asked, None),
                _ => create_spread(asked),
            }?;
            (*attr).cap = cap_of(made)?;
            if extended {
                set_functions(made.cast());
            }
            Ok(made)
        }
    })
}

/// True if the attributes ask for the extended post. Fails if they ask for an operation that it
/// does not have.
pub(crate) fn is_extended(asked: &ibv_qp_init_attr_ex, kind: QpType) -> Result<bool, Errno> {
    let extended = asked.comp_mask & ATTR_SEND_OPS != 0;
    if extended && asked.send_ops_flags & !SendOps::of(kind).bits() != 0 {
        return Err(ABSENT);
    }
    Ok(extended)
}

/// A table of work queues, and how receives are spread over it.
type Spread<'a> = Option<(&'a SoftIndTable, RxHash)>;

/// Makes a queue pair with the flags that are asked for.
///
/// # Safety
/// What the attributes name is the program's.
unsafe fn create_plain(
    asked: &ibv_qp_init_attr_ex,
    spread: Spread<'_>,
) -> Result<*mut ibv_qp, Errno> {
    let create_flags = match asked.comp_mask & ATTR_CREATE_FLAGS != 0 {
        true => Some(CreateFlags::from_bits(asked.create_flags).ok_or(ABSENT)?),
        false => None,
    };
    let is_spread = spread.is_some();
    let (rwq_ind_tbl, rx_hash_conf) = spread.unzip();
    let state = if is_spread { QpState::Rtr } else { QpState::Reset };
    // SAFETY: as the caller says.
    unsafe {
        create_by(asked.pd, &plain(asked), QpFields::to(state), |device, attr| {
            let ex = QpAttrEx { create_flags, rwq_ind_tbl, rx_hash_conf, ..QpAttrEx::default() };
            let mut caps = attr.caps;
            if is_spread {
                (caps.recv_wr, caps.recv_sge) = (0, 0);
            }
            let qp = device.create_qp(&QpAttr { ex, caps, ..*attr })?;
            if is_spread {
                qp.control().open();
            }
            Ok(qp)
        })
    }
}

/// Makes a queue pair whose receives are those of a table. As with NICs' drivers, it takes frames
/// at once and sends nothing. Without a completion queue, it gets that of the first work queue.
///
/// # Safety
/// As for [`create_plain`].
unsafe fn create_spread(asked: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    const BOTH: u32 = ATTR_TABLE | ATTR_RX_HASH;
    if asked.comp_mask & BOTH != BOTH {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    unsafe {
        let (table, cq) = table_at(asked.rwq_ind_tbl)?;
        let hash = hash_of(&asked.rx_hash_conf)?;
        let or_its = |given: *mut ibv_cq| if given.is_null() { cq } else { given };
        let (send_cq, recv_cq) = (or_its(asked.send_cq), or_its(asked.recv_cq));
        create_plain(&ibv_qp_init_attr_ex { send_cq, recv_cq, ..*asked }, Some((table, hash)))
    }
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
