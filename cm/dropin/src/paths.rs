//! Files that the kernel makes for a device, and that programs look for. UCX takes a device only if
//! it may open its character device; it never does. There is no such file, so its name leads to
//! `/dev/null` in the two calls that UCX makes, `stat` by all its names.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::{CStr, CString, OsString, c_char};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use libc::c_int;

use crate::border::{Errno, INVALID, number};

/// The name of the device below `/dev/infiniband`.
pub(crate) const DEV_NAME: &str = "uverbs-soft0";
const CHARACTER_DEVICE: &CStr = c"/dev/infiniband/uverbs-soft0";

/// The file to look at in place of the one that is asked for.
///
/// # Safety
/// It is NULL or a C string.
unsafe fn instead_of(path: *const c_char) -> *const c_char {
    // SAFETY: as the caller says.
    let is_ours = !path.is_null() && unsafe { CStr::from_ptr(path) } == CHARACTER_DEVICE;
    if is_ours { c"/dev/null".as_ptr() } else { path }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: the program's path, and room for the answer.
    unsafe { libc::fstatat(libc::AT_FDCWD, instead_of(path), to, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as the program vouches. On 64 bits both have one structure.
    unsafe { stat(path, to) }
}

/// What programs call that were built before glibc 2.33.
#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat(_version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as the program vouches. On 64 bits all versions have one structure.
    unsafe { stat(path, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __xstat64(_version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
    // SAFETY: as above.
    unsafe { stat(path, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program's path.
    unsafe { libc::faccessat(libc::AT_FDCWD, instead_of(path), mode, 0) }
}

/// The folder where the kernel describes devices.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let named = std::env::var_os("SYSFS_PATH").unwrap_or_else(|| "/sys".into());
        let mut path = named.into_vec();
        path.truncate(path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1));
        CString::new(path).unwrap_or_default()
    })
    .as_ptr()
}

/// Reads a file of a folder into a buffer, without a newline at its end and with a zero after it.
/// Returns its length. Nothing is written for an empty file.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        if folder.is_null() || file.is_null() || buffer.is_null() {
            return Err(INVALID);
        }
        // SAFETY: C strings, as the program vouches.
        let parts = unsafe { [CStr::from_ptr(folder), CStr::from_ptr(file)] };
        let path = OsString::from_vec(parts.map(CStr::to_bytes).join(&b'/'));
        let file = File::open(path).map_err(last)?;
        // SAFETY: the buffer has `size` bytes, as the program vouches.
        let read = unsafe { libc::read(file.as_raw_fd(), buffer.cast(), size) };
        let length = usize::try_from(read).map_err(|_| last(io::Error::last_os_error()))?;
        if length == 0 {
            return Ok(0);
        }
        // SAFETY: `length` bytes are written, and there is room for one more if it is less than
        // `size`.
        let length = unsafe {
            match *buffer.add(length - 1).cast::<u8>() {
                b'\n' => length - 1,
                _ if length < size => length,
                _ => return Err(Errno(libc::EOVERFLOW)),
            }
        };
        // SAFETY: as above.
        unsafe { *buffer.add(length) = 0 };
        c_int::try_from(length).map_err(|_| Errno(libc::EOVERFLOW))
    })
}

fn last(cause: io::Error) -> Errno {
    Errno(cause.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_device_leads_elsewhere() {
        // SAFETY: C strings, and room for the answer.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            assert_eq!(stat(CHARACTER_DEVICE.as_ptr(), &raw mut found), 0);
            assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFCHR);
            for by in [__xstat, __xstat64] {
                found.st_mode = 0;
                assert_eq!(by(1, CHARACTER_DEVICE.as_ptr(), &raw mut found), 0);
                assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFCHR);
            }
            assert_eq!(stat64(CHARACTER_DEVICE.as_ptr(), &raw mut found), 0);
            assert_eq!(access(CHARACTER_DEVICE.as_ptr(), libc::R_OK | libc::W_OK), 0);
            let other = c"/dev/infiniband/uverbs-soft1";
            assert_eq!(stat(other.as_ptr(), &raw mut found), -1);
            assert_eq!(access(other.as_ptr(), libc::F_OK), -1);
            assert_eq!(stat(c"/".as_ptr(), &raw mut found), 0);
            assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFDIR);
        }
    }
}
