//! Protection domains and memory regions.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use doorbell_alloc::{Mapping, Pages};
use doorbell_seam::provider::{ProtectionDomains, Provider, Region};
use doorbell_soft::{SoftDevice, SoftRegion};
use libc::{c_int, c_uint};

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::attr::access_of;
use crate::border::{ABSENT, Errno, INVALID, Noun, Object, code, object, pointer, take};
use crate::context::context;
use crate::pages::PAGE;
use crate::shared::{Share, share};

/// A protection domain: a handle on the device.
pub(crate) struct Pd {
    pub(crate) device: SoftDevice,
    /// The thread domain of a parent domain.
    pub(crate) _td: Option<Arc<()>>,
}

impl Noun for Pd {
    type C = ibv_pd;
    const TAG: u64 = 0x6462_5f70_6400_0001;
}

/// A region of the program's memory.
pub(crate) struct Mr {
    /// `None` while it changes, and if a change has failed midway.
    pub(crate) region: Mutex<Option<SoftRegion>>,
}

impl Noun for Mr {
    type C = ibv_mr;
    const TAG: u64 = 0x6462_5f6d_7200_0002;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(at: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program's context.
        let device = unsafe { context(at) }?.own.device().alloc_pd()?;
        Ok(Object::give(ibv_pd { context: at, handle: 0 }, Pd { device, _td: None }))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(at: *mut ibv_pd) -> c_int {
    code(|| {
        // SAFETY: the program's domain, which it no longer uses.
        unsafe {
            if object::<Pd>(at)?.own.device.pd_users() > 1 {
                return Err(Errno(libc::EBUSY));
            }
            take::<Pd>(at).map(drop)
        }
    })
}

/// True if all pages of that memory are mapped.
fn is_mapped(start: usize, length: usize) -> bool {
    const STEP: usize = 1024;
    let Some(end) = start.checked_add(length) else { return false };
    let mut at = start & !(PAGE - 1);
    let mut seen = [0_u8; STEP];
    while at < end {
        let bytes = (end - at).min(STEP * PAGE);
        // SAFETY: the call writes a byte for each page, and there is room for them; it does not
        // touch the pages.
        let answer = unsafe { libc::mincore(at as *mut c_void, bytes, seen.as_mut_ptr().cast()) };
        if answer != 0 {
            return false;
        }
        at += bytes;
    }
    true
}

/// The hook of memory that belongs to the program.
unsafe fn keep(_owner: *mut (), _at: NonNull<u8>, _length: usize) {}

/// The hook of memory that belongs to the program, and that peers may map.
///
/// # Safety
/// The owner was a boxed [`Share`].
unsafe fn end_share(owner: *mut (), _at: NonNull<u8>, _length: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(owner.cast::<Share>()) });
}

/// Memory of the program, to be registered.
///
/// # Safety
/// It stays mapped until it is deregistered: the contract of `ibv_reg_mr`.
pub(crate) unsafe fn program_memory(addr: *mut c_void, length: usize) -> Result<Mapping, Errno> {
    let at = NonNull::new(addr.cast::<u8>()).ok_or(Errno(libc::EFAULT))?;
    if length == 0 || length > isize::MAX as usize {
        return Err(INVALID);
    }
    if !is_mapped(addr as usize, length) {
        return Err(Errno(libc::EFAULT));
    }
    if let Some(share) = share(addr as usize, length) {
        let (in_file, owner) = ((share.fd, share.offset), Box::into_raw(Box::new(share)).cast());
        // SAFETY: mapped, as just seen, and the program keeps it so. Nothing here has a reference
        // to it. The share keeps the descriptor open.
        return Ok(unsafe { Mapping::from_memfd_parts((at, length), in_file, owner, end_share) });
    }
    // SAFETY: mapped, as just seen, and the program keeps it so. Nothing here has a reference to
    // it. The hook frees nothing.
    Ok(unsafe { Mapping::from_raw_parts(at, length, Pages::Plain, std::ptr::null_mut(), keep) })
}

unsafe fn register(
    at: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program's domain.
        let pd = unsafe { object::<Pd>(at) }?;
        if iova != addr as u64 {
            return Err(ABSENT);
        }
        let access = access_of(access)?;
        // SAFETY: the program's promise.
        let memory = unsafe { program_memory(addr, length) }?;
        let region = pd.own.device.register(memory, access)?;
        let (lkey, rkey) = (region.lkey(), region.rkey());
        // SAFETY: alive, as is its context.
        let context = unsafe { (*pd.c()).context };
        let c = ibv_mr { context, pd: at, addr, length, handle: lkey, lkey, rkey };
        Ok(Object::give(c, Mr { region: Mutex::new(Some(region)) }))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the program vouches.
    unsafe { register(pd, addr, length, addr as u64, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as the program vouches.
    unsafe { register(pd, addr, length, iova, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as the program vouches.
    unsafe { register(pd, addr, length, iova, access) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(at: *mut ibv_mr) -> c_int {
    // SAFETY: the program's region, which it no longer uses.
    code(|| unsafe { take::<Mr>(at) }.map(drop))
}
