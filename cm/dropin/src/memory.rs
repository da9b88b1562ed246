//! Protection domains and memory regions.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use doorbell_alloc::{Mapping, Pages};
use doorbell_seam::provider::{Access, ProtectionDomains, Provider, Region};
use doorbell_soft::{SoftDevice, SoftRegion};
use libc::{c_int, c_uint};

use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::attr::access_of;
use crate::border::{ABSENT, Errno, INVALID, Noun, Object, code, object, pointer, take};
use crate::context::context;
use crate::maps;
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

/// Refuses memory that cannot be written, for an access that may write, as a kernel does.
pub(crate) fn check_writable(start: usize, length: usize, access: Access) -> Result<(), Errno> {
    let writes = access.intersects(Access::all() - Access::REMOTE_READ);
    if writes && maps::is_read_only(start, start.saturating_add(length)) {
        return Err(Errno(libc::EFAULT));
    }
    Ok(())
}

/// Memory of the program, to be registered for that access.
///
/// # Safety
/// It stays mapped until it is deregistered: the contract of `ibv_reg_mr`.
pub(crate) unsafe fn program_memory(
    addr: *mut c_void,
    length: usize,
    access: Access,
) -> Result<Mapping, Errno> {
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
    // What can be shared can be written.
    check_writable(addr as usize, length, access)?;
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
        let memory = unsafe { program_memory(addr, length, access) }?;
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

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::device::ibv_get_device_list;
    use crate::open::ibv_open_device;
    use crate::rereg::ibv_rereg_mr;

    /// The device would write there, and the program would end.
    #[test]
    fn memory_that_cannot_be_written_is_registered_for_reading_only() {
        const LOCAL_WRITE: c_int = 1;
        const REMOTE_READ: c_int = 4;
        const CHANGES_ACCESS: c_int = 4;
        let failed = || std::io::Error::last_os_error().raw_os_error();
        // SAFETY: our own calls, with what they gave, and pages of our own.
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            let pd = ibv_alloc_pd(context);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            for access in [LOCAL_WRITE, LOCAL_WRITE | REMOTE_READ] {
                assert!(ibv_reg_mr(pd, pages, 2 * PAGE, access).is_null(), "access {access}");
                assert_eq!(failed(), Some(libc::EFAULT), "access {access}");
            }
            let mr = ibv_reg_mr(pd, pages, 2 * PAGE, REMOTE_READ);
            assert!(!mr.is_null(), "{:?}", failed());
            let changed = ibv_rereg_mr(mr, CHANGES_ACCESS, null_mut(), null_mut(), 0, LOCAL_WRITE);
            assert_eq!((changed, failed()), (-1, Some(libc::EFAULT)));
            assert_eq!(libc::mprotect(pages, PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            assert!(ibv_reg_mr(pd, pages, 2 * PAGE, LOCAL_WRITE).is_null(), "half of it");
            let half = ibv_reg_mr(pd, pages, PAGE, LOCAL_WRITE);
            assert!(!half.is_null(), "{:?}", failed());
            assert_eq!((ibv_dereg_mr(half), ibv_dereg_mr(mr), ibv_dealloc_pd(pd)), (0, 0, 0));
            libc::munmap(pages, 2 * PAGE);
        }
    }
}
