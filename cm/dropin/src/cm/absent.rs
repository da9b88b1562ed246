//! Calls that this connection manager does not support.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use std::ffi::{c_char, c_void};

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

#[unsafe(no_mangle)]
extern "C" fn rdma_resolve_addrinfo(
    _id: *mut c_void,
    _node: *const c_char,
    _service: *const c_char,
    _hints: *const c_void,
) -> c_int {
    number(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_query_addrinfo(_id: *mut c_void, _info: *mut *mut c_void) -> c_int {
    number(|| Err(ABSENT))
}

#[unsafe(no_mangle)]
extern "C" fn rdma_write_cm_event(
    _id: *mut c_void,
    _event: c_int,
    _status: c_int,
    _arg: u64,
) -> c_int {
    number(|| Err(ABSENT))
}

/// There is nobody to notify: the device sees the first message itself.
#[unsafe(no_mangle)]
extern "C" fn rdma_notify(_id: *mut c_void, _event: c_int) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn calls_of_newer_versions_are_refused() {
        let none = null_mut();
        for code in [
            rdma_resolve_addrinfo(none, null(), null(), null()),
            rdma_query_addrinfo(none, null_mut()),
            rdma_write_cm_event(none, 0, 0, 0),
        ] {
            let errno = Error::last_os_error().raw_os_error();
            assert_eq!((code, errno), (-1, Some(libc::EOPNOTSUPP)));
        }
    }
}
