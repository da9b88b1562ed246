//! Calls that this device does not support. Without them, the real library's would take our objects
//! for its own.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::c_void;

use libc::{c_int, c_uint};

use crate::border::{ABSENT, code, pointer};

pub(crate) fn none() -> *mut c_void {
    pointer(|| Err(ABSENT))
}

pub(crate) fn refused() -> c_int {
    code(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_fd: c_int) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut c_void, _handle: u32) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut c_void, _handle: u32) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut c_void, _handle: u32) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut c_void,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut c_void, _ece: *mut c_void) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut c_void, _ece: *mut c_void) -> c_int {
    refused()
}

/// 0: bytes of a WRITE may arrive in any order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut c_void, _op: c_int, _flags: u32) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut c_void,
    _attr: *mut c_void,
    _mac: *mut u8,
    _vid: *mut c_uint,
) -> c_int {
    refused()
}
