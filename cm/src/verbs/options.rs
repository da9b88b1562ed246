//! Options of ids.
#![expect(unsafe_code, reason = "rdma_set_option takes values by pointer")]

use std::ffi::{c_int, c_void};

use doorbell_engine::error::Code;
use rdma_sys::rdma_set_option;

use super::core::Core;
use crate::attr::{ACK_TIMEOUT_MAX, IdOption};
use crate::error::CmError;

// rdma-sys lacks these of <rdma/rdma_cma.h>.
const RDMA_OPTION_ID: c_int = 0;
const RDMA_OPTION_ID_TOS: c_int = 0;
const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
const RDMA_OPTION_ID_AFONLY: c_int = 2;
const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// `rdma_set_option` (CM-16).
pub(super) fn set(core: &Core, option: IdOption) -> Result<(), CmError> {
    let asked = format!("set {option:?}");
    let done = match option {
        IdOption::Tos(mut tos) => call(core, RDMA_OPTION_ID_TOS, &mut tos),
        IdOption::ReuseAddr(on) => call(core, RDMA_OPTION_ID_REUSEADDR, &mut c_int::from(on)),
        IdOption::AfOnly(on) => call(core, RDMA_OPTION_ID_AFONLY, &mut c_int::from(on)),
        IdOption::AckTimeout(code) if code > ACK_TIMEOUT_MAX => {
            // The kernel would take it and cut it off.
            let answer = format!("codes go up to {ACK_TIMEOUT_MAX} (RC-2)");
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        IdOption::AckTimeout(mut code) => call(core, RDMA_OPTION_ID_ACK_TIMEOUT, &mut code),
    };
    done.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => CmError::new(Code::Invalid, asked, "it is too late for that (CM-16)")
            .cure("set it before the id is bound"),
        _ => CmError::from_io(asked, &error),
    })
}

/// Hands over a value of the option's own type.
fn call<T>(core: &Core, option: c_int, value: &mut T) -> std::io::Result<()> {
    let value: *mut c_void = (&raw mut *value).cast();
    // SAFETY: the id is alive; the value is, for the call, and has the size that is named.
    let set = core
        .call(|id| unsafe { rdma_set_option(id, RDMA_OPTION_ID, option, value, size_of::<T>()) });
    set.map(drop)
}
