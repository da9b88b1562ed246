//! Memory windows.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::Mutex;

use doorbell_seam::provider::{Region, Window, WindowKind, Windows};
use doorbell_seam::wr::{Binding, PostError, SendFlags, SendOp};
use doorbell_soft::SoftWindow;
use libc::c_int;

use crate::abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::attr::access_of;
use crate::border::{Errno, INVALID, Noun, Object, code, given, lock, object, pointer, take};
use crate::memory::{Mr, Pd};
use crate::qp::qp_at;

/// A memory window.
struct Mw {
    window: Mutex<SoftWindow>,
}

impl Noun for Mw {
    type C = ibv_mw;
    const TAG: u64 = 0x6462_5f6d_7700_000a;
}

/// `alloc_mw` of a context.
pub(crate) unsafe extern "C" fn alloc_mw(at: *mut ibv_pd, raw: c_int) -> *mut ibv_mw {
    pointer(|| {
        let kind = match raw {
            1 => WindowKind::One,
            2 => WindowKind::Two,
            _ => return Err(INVALID),
        };
        // SAFETY: the program's domain; its context is alive.
        let (pd, context) = unsafe { (object::<Pd>(at)?, (*at).context) };
        let window = pd.own.device.create_window(kind)?;
        let rkey = window.rkey();
        let c = ibv_mw { context, pd: at, rkey, handle: rkey, kind: raw };
        Ok(Object::give(c, Mw { window: Mutex::new(window) }))
    })
}

/// `dealloc_mw` of a context.
pub(crate) unsafe extern "C" fn dealloc_mw(at: *mut ibv_mw) -> c_int {
    // SAFETY: the program's window, which it no longer uses.
    code(|| unsafe { take::<Mw>(at) }.map(drop))
}

/// A binding, as the device takes it.
///
/// # Safety
/// The region is NULL or the program's.
unsafe fn binding(window: u64, rkey: u32, info: &ibv_mw_bind_info) -> Result<Binding, Errno> {
    let region = match info.mr.is_null() {
        true if info.addr == 0 && info.length == 0 => 0,
        true => return Err(INVALID),
        false => {
            // SAFETY: as the caller says.
            let mr = unsafe { object::<Mr>(info.mr) }?;
            let region = lock(&mr.own.region);
            region.as_ref().ok_or(INVALID)?.handle()
        }
    };
    let access = access_of(info.mw_access_flags)?;
    let ibv_mw_bind_info { addr, length, .. } = *info;
    Ok(Binding { window, region, addr, length, access, rkey })
}

/// The request that binds a window of type 2. The device refuses others.
///
/// # Safety
/// The window and the region are NULL or the program's.
pub(crate) unsafe fn bind(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let window = lock(&object::<Mw>(mw)?.own.window).handle();
        Ok(SendOp::Bind(binding(window, rkey, info)?))
    }
}

/// `bind_mw` of a context: posts the binding of a window of type 1.
pub(crate) unsafe extern "C" fn bind_mw(
    at: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    code(|| {
        // SAFETY: the program's queue pair, window and binding.
        let (qp, window, bind) = unsafe { (qp_at(at)?, object::<Mw>(mw)?, given(bind)?) };
        if !qp.own.takes_sends() {
            return Err(INVALID);
        }
        let mut inner = qp.own.inner.lock();
        let mut window = lock(&window.own.window);
        let flags = SendFlags::from_bits_truncate((bind.send_flags & 0x3) as u8);
        // SAFETY: the region is the program's, which keeps it until the request has completed.
        let rkey = unsafe {
            let binding = binding(window.handle(), 0, &bind.bind_info)?;
            let posted = window.bind(&mut inner.qp, binding, bind.wr_id, flags);
            posted.map_err(|PostError { cause, .. }| Errno::from(cause))?
        };
        // SAFETY: alive; the program reads it after this call.
        unsafe { (*mw).rkey = rkey };
        drop(inner);
        qp.own.after_post();
        Ok(())
    })
}
