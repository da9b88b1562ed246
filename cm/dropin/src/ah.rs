//! Address handles.
#![expect(unsafe_code, reason = "the C interface")]

use doorbell_seam::provider::{AddressVector, Datagrams, GRH_BYTES, Gid};
use doorbell_seam::wc::{Status, Wc, WcFlags};
use doorbell_soft::SoftAh;
use libc::c_int;

use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_pd, ibv_wc};
use crate::attr::{address, address_attr};
use crate::border::{
    Errno, INVALID, Noun, Object, code, given, number, object, pointer, put, take,
};
use crate::context::context;
use crate::memory::Pd;

/// An address handle.
pub(crate) struct Ah {
    pub(crate) ah: SoftAh,
}

impl Noun for Ah {
    type C = ibv_ah;
    const TAG: u64 = 0x6462_5f61_6800_0008;
}

/// A GID of the program.
///
/// # Safety
/// It is NULL or readable.
pub(crate) unsafe fn gid_at(at: *const ibv_gid) -> Result<Gid, Errno> {
    // SAFETY: as the caller says.
    Ok(Gid(unsafe { given(at) }?.raw))
}

unsafe fn create(at: *mut ibv_pd, to: &AddressVector) -> Result<*mut ibv_ah, Errno> {
    if to.route.is_none() {
        // Paths need a GID, as on RoCE.
        return Err(INVALID);
    }
    // SAFETY: the program's domain; its context is alive.
    let (pd, context) = unsafe { (object::<Pd>(at)?, (*at).context) };
    let ah = pd.own.device.create_ah(to)?;
    Ok(Object::give(ibv_ah { context, pd: at, handle: 0 }, Ah { ah }))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the program's domain and attributes.
    pointer(|| unsafe { create(pd, &address(given(attr)?)) })
}

/// The address of a datagram's sender.
unsafe fn sender(
    at: *mut ibv_context,
    wc: *const ibv_wc,
    header: *const [u8; GRH_BYTES],
) -> Result<AddressVector, Errno> {
    // SAFETY: the program's context, completion and header.
    unsafe {
        let seen = given(wc)?;
        let wc = Wc {
            status: Status::from_raw(seen.status.cast_unsigned()),
            flags: WcFlags::from_bits_truncate(seen.wc_flags as u16),
            ..Wc::default()
        };
        Ok(context(at)?.own.device().sender_of(&wc, given(header)?)?)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    at: *mut ibv_context,
    _port: u8,
    wc: *mut ibv_wc,
    header: *mut [u8; GRH_BYTES],
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the program's context, completion and header, and room for the answer.
    number(|| unsafe { put(attr, address_attr(&sender(at, wc, header)?)) }.map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    header: *mut [u8; GRH_BYTES],
    _port: u8,
) -> *mut ibv_ah {
    // SAFETY: the program's domain, completion and header.
    pointer(|| unsafe {
        object::<Pd>(pd)?;
        create(pd, &sender((*pd).context, wc, header)?)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(at: *mut ibv_ah) -> c_int {
    // SAFETY: the program's handle, which it no longer uses.
    code(|| unsafe { take::<Ah>(at) }.map(drop))
}
