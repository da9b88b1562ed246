//! Calls that this connection manager does not support.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::c_void;

use libc::c_int;

use crate::border::{ABSENT, number};

#[unsafe(no_mangle)]
extern "C" fn rdma_set_local_ece(_id: *mut c_void, _ece: *mut c_void) -> c_int {
    number(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_get_remote_ece(_id: *mut c_void, _ece: *mut c_void) -> c_int {
    number(|| Err(ABSENT))
}

/// There is nobody to notify: the device sees the first message itself.
#[unsafe(no_mangle)]
extern "C" fn rdma_notify(_id: *mut c_void, _event: c_int) -> c_int {
    0
}
