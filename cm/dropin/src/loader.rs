//! Programs that open libibverbs or librdmacm by `dlopen`, and find the functions by `dlsym` or
//! `dlvsym`: they get this library.
//!
//! Nothing here needs this library's own initialisation, because the constructor of another
//! library may call before it. `dlmopen` is left alone, so it opens the real libraries.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;

use libc::c_int;

use crate::next::{Decision, Next, decided};

static DLOPEN: Next = Next::new(c"dlopen");
static DLVSYM: Next = Next::new(c"dlvsym");

/// Opens this library instead of the real ones. Their names count without the folder, and with any
/// version.
///
/// # Safety
/// As for the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(_file: *const c_char, _flags: c_int) -> *mut c_void {
    decided!(open)
}

/// Finds functions of this library, which has no versions, by the versions of the real ones. The C
/// library finds none.
///
/// # Safety
/// As for the C library's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlvsym(
    _handle: *mut c_void,
    _name: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    decided!(find)
}

/// # Safety
/// The name is NULL or a C string.
unsafe extern "C" fn open(file: *const c_char, flags: c_int) -> Decision {
    let next = DLOPEN.address();
    // SAFETY: as the caller says.
    if !file.is_null() && is_one_of_ours(unsafe { CStr::from_ptr(file) }.to_bytes()) {
        let own = open_own(next, flags);
        if !own.is_null() {
            return Decision::answer(own);
        }
    }
    Decision::go_on(next)
}

/// True for the file name of one of the two libraries.
fn is_one_of_ours(path: &[u8]) -> bool {
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let version =
        file.strip_prefix(b"libibverbs.so").or_else(|| file.strip_prefix(b"librdmacm.so"));
    // Nothing, or a point and numbers.
    version.is_some_and(|version| {
        let is_number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        version.is_empty()
            || version
                .strip_prefix(b".")
                .is_some_and(|all| all.split(|byte| *byte == b'.').all(is_number))
    })
}

/// What the C library knows about the library that holds an address.
fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: there is room for the answer, and all zeros are a valid value of it.
    let (found, info) = unsafe { (libc::dladdr(address, info.as_mut_ptr()), info.assume_init()) };
    (found != 0).then_some(info)
}

fn own_library() -> Option<libc::Dl_info> {
    library_of(ptr::from_ref(&DLOPEN).cast())
}

/// A handle of this library, which counts as any that `dlopen` returns. NULL if there is none: this
/// code may be part of a program.
fn open_own(dlopen: *mut c_void, flags: c_int) -> *mut c_void {
    let Some(own) = own_library() else { return ptr::null_mut() };
    // The C library compares the name with those of the loaded libraries first. So the call
    // succeeds even if the file has been moved or removed.
    // SAFETY: the C library's function, and its own text.
    unsafe { call(dlopen, own.dli_fname, flags | libc::RTLD_NOLOAD) }
}

/// Calls the C library's `dlopen`; NULL if it is not there.
///
/// # Safety
/// The function is NULL or that one, and the file is a C string.
unsafe fn call(dlopen: *mut c_void, file: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: as the caller says; NULL is `None`.
    let dlopen = unsafe { transmute::<*mut c_void, Option<Dlopen>>(dlopen) };
    dlopen.map_or(ptr::null_mut(), |dlopen| dlopen(file, flags))
}

/// The function of that name in a real library, which is loaded if it is not; NULL if there is
/// none.
pub(crate) fn find_real(file: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: the C library's function, and names that end with a zero. Loading runs the library's
    // own initialisation, as it does for a program that is linked to it. The library stays loaded.
    let found = unsafe {
        match call(DLOPEN.address(), file.as_ptr(), libc::RTLD_NOW) {
            handle if handle.is_null() => return handle,
            handle => libc::dlsym(handle, name.as_ptr()),
        }
    };
    // A file of that name may be this library.
    if found.is_null() || is_own(found) { ptr::null_mut() } else { found }
}

/// # Safety
/// A handle, and names that are NULL or C strings.
unsafe extern "C" fn find(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Decision {
    // SAFETY: as the caller says.
    if !name.is_null() && !version.is_null() && unsafe { is_public(version) } {
        // Which library is the next depends on the caller.
        let found = match handle {
            libc::RTLD_NEXT => ptr::null_mut(),
            // SAFETY: as the caller says.
            handle => unsafe { libc::dlsym(handle, name) },
        };
        if !found.is_null() && is_own(found) {
            return Decision::answer(found);
        }
    }
    Decision::go_on(DLVSYM.address())
}

/// True for the versions of functions for programs.
///
/// # Safety
/// It is a C string.
unsafe fn is_public(version: *const c_char) -> bool {
    // SAFETY: as the caller says.
    let version = unsafe { CStr::from_ptr(version) }.to_bytes();
    version.starts_with(b"IBVERBS_1.") || version.starts_with(b"RDMACM_1.")
}

/// True for an address in this library.
fn is_own(address: *const c_void) -> bool {
    let libraries = (library_of(address), own_library());
    matches!(libraries, (Some(its), Some(own)) if its.dli_fbase == own.dli_fbase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_are_known_by_their_file_names() {
        for ours in [
            "libibverbs.so",
            "libibverbs.so.1",
            "libibverbs.so.1.14.44.0",
            "librdmacm.so.1",
            "/usr/lib64/librdmacm.so",
            "./libibverbs.so.1",
        ] {
            assert!(is_one_of_ours(ours.as_bytes()), "{ours}");
        }
        for other in [
            "",
            "/",
            "libibverbs",
            "libibverbs.so.",
            "libibverbs.so.1.",
            "libibverbs.so.one",
            "libibverbs.so.1/libmlx5.so",
            "libibverbs.so-rdmav34.so",
            "mylibibverbs.so.1",
            "libmlx5.so.1",
            "libc.so.6",
        ] {
            assert!(!is_one_of_ours(other.as_bytes()), "{other}");
        }
    }
}
