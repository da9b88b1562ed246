//! Changing regions: `ibv_rereg_mr`.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_void;

use doorbell_seam::provider::{Left, Region, Rereg, ReregFailed, Reregister};
use libc::c_int;

use crate::abi::{ibv_mr, ibv_pd};
use crate::attr::access_of;
use crate::border::{Errno, INVALID, lock, number, object, set_errno};
use crate::memory::{Mr, Pd, check_writable, program_memory};

/// `enum ibv_rereg_mr_flags`.
const TRANSLATION: c_int = 1;
const DOMAIN: c_int = 2;
const ACCESS: c_int = 4;

/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was. `IBV_REREG_MR_ERR_CMD`: it is unusable.
const ERR_INPUT: c_int = -1;
const ERR_CMD: c_int = -4;

/// Why a region could not be changed, and whether it is still there.
struct Failed {
    code: c_int,
    errno: Errno,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed { code: ERR_INPUT, errno }
    }
}

/// The change of a call.
struct Change {
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
}

unsafe fn change(at: *mut ibv_mr, to: &Change) -> Result<(), Failed> {
    let Change { flags, pd, addr, length, access } = *to;
    if flags == 0 || flags & !(TRANSLATION | DOMAIN | ACCESS) != 0 {
        return Err(INVALID.into());
    }
    let has = |flag| flags & flag != 0;
    // SAFETY: the program's region, domain and memory.
    unsafe {
        let mr = object::<Mr>(at)?;
        // The device takes the new domain from the handle that makes the call.
        let domain = object::<Pd>(if has(DOMAIN) { pd } else { (*at).pd })?;
        let access = match has(ACCESS) {
            true => Some(access_of(access.cast_unsigned())?),
            false => None,
        };
        let after = match access {
            Some(access) => access,
            None => lock(&mr.own.region).as_ref().ok_or(INVALID)?.access(),
        };
        let memory = if has(TRANSLATION) {
            Some(program_memory(addr, length, after)?)
        } else {
            check_writable((*at).addr as usize, (*at).length, after)?;
            None
        };
        let mut place = lock(&mr.own.region);
        if let (ACCESS, Some(access), Some(region)) = (flags, access, place.as_mut()) {
            return region.change_access(access).map_err(|error| Errno::from(error).into());
        }
        let region = place.take().ok_or(INVALID)?;
        let wanted = Rereg { memory, pd: has(DOMAIN), access };
        match domain.own.device.reregister(region, wanted) {
            Ok((region, _old)) => {
                ((*at).lkey, (*at).rkey) = (region.lkey(), region.rkey());
                *place = Some(region);
            }
            Err(failed) => return Err(keep(failed, &mut place)),
        }
        if has(DOMAIN) {
            (*at).pd = pd;
        }
        if has(TRANSLATION) {
            ((*at).addr, (*at).length) = (addr, length);
        }
    }
    Ok(())
}

/// Keeps what is left of a region that could not be changed.
fn keep<R>(failed: ReregFailed<R>, place: &mut Option<R>) -> Failed {
    let (cause, left, _memory) = failed.into_parts();
    let errno = cause.into();
    match left {
        Left::Region(region) => {
            *place = Some(region);
            Failed { code: ERR_INPUT, errno }
        }
        Left::Memory(_) => Failed { code: ERR_CMD, errno },
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    at: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let to = Change { flags, pd, addr, length, access };
    number(|| {
        // SAFETY: as the program vouches.
        Ok(match unsafe { change(at, &to) } {
            Ok(()) => 0,
            Err(Failed { code, errno }) => {
                set_errno(errno);
                code
            }
        })
    })
}
