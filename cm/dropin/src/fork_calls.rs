//! The calls by which programs ask libibverbs to make memory safe from forks. There is nothing to
//! do: a child gets a copy of registered memory, see [`crate::forked`].
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::c_void;

use libc::c_int;

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    /// Programs need not call `ibv_fork_init`.
    const UNNEEDED: c_int = 2;
    UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
