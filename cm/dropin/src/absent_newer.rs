//! Calls of rdma-core 59 and newer that this device does not support: counters of completions,
//! handles for direct access to memory, buffers of the provider. The calls that make such an object
//! fail, so the calls that use one fail too.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::c_void;

use libc::c_int;

use crate::absent::{none, refused};
use crate::border::{ABSENT, number};

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_ex(_pd: *mut c_void, _attr: *mut c_void) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_dmah(_context: *mut c_void, _attr: *mut c_void) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_dmah(_dmah: *mut c_void) -> c_int {
    refused()
}

/// There is no device memory.
#[unsafe(no_mangle)]
extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut c_void) -> c_int {
    number(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port_speed(_context: *mut c_void, _port: u32, _speed: *mut u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_buf(
    _pd: *mut c_void,
    _size: usize,
    _buffer: *mut *mut c_void,
) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_buf(_buffer: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(_buffer: *mut c_void) -> c_int {
    number(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_buf_mr(
    _pd: *mut c_void,
    _buffer: *mut c_void,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> *mut c_void {
    none()
}

/// What the function of the header calls by its name without the line.
#[unsafe(no_mangle)]
extern "C" fn _ibv_query_comp_cntr_caps(
    _context: *mut c_void,
    _caps: *mut c_void,
    _size: usize,
) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_cntr(_context: *mut c_void, _attr: *mut c_void) -> *mut c_void {
    none()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_cntr(_counter: *mut c_void) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_err_comp_cntr(_counter: *mut c_void, _value: u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_err_comp_cntr(_counter: *mut c_void, _amount: u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_read_err_comp_cntr(_counter: *mut c_void, _value: *mut u64) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_attach_comp_cntr(
    _qp: *mut c_void,
    _counter: *mut c_void,
    _attr: *mut c_void,
) -> c_int {
    refused()
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn all_are_refused() {
        let none = null_mut();
        for made in [
            ibv_reg_mr_ex(none, none),
            ibv_alloc_dmah(none, none),
            ibv_alloc_buf(none, 64, null_mut()),
            ibv_reg_buf_mr(none, none, none, 64, 0),
            ibv_create_comp_cntr(none, none),
        ] {
            let errno = Error::last_os_error().raw_os_error();
            assert_eq!((made, errno), (none, Some(libc::EOPNOTSUPP)));
        }
        for code in [
            ibv_dealloc_dmah(none),
            ibv_query_port_speed(none, 1, null_mut()),
            _ibv_query_comp_cntr_caps(none, none, 0),
            ibv_destroy_comp_cntr(none),
            ibv_set_comp_cntr(none, 0),
            ibv_set_err_comp_cntr(none, 0),
            ibv_inc_comp_cntr(none, 1),
            ibv_inc_err_comp_cntr(none, 1),
            ibv_read_comp_cntr(none, null_mut()),
            ibv_read_err_comp_cntr(none, null_mut()),
            ibv_qp_attach_comp_cntr(none, none, none),
        ] {
            assert_eq!(code, libc::EOPNOTSUPP);
        }
        assert_eq!(ibv_dm_export_dmabuf_fd(none), -1);
        assert_eq!(ibv_export_buf_dmabuf_fd(none), -1);
    }
}
