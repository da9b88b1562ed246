//! Numbers of C, errors, and proof that types written by hand in Rust have the layout of their C
//! originals.

use core::ffi::c_int;
use core::mem::offset_of;

use crate::rdma_core::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags};
use std_alloc::string::String;

use super::sys::errno_text;
use crate::error::{Code, SetupError};
use crate::wc::WcFlags;
use crate::wr::{SendFlags, Sge};

/// The error of a set-up call that left `errno`, of either sign (G-2).
pub(super) fn refused(asked: impl Into<String>, errno: i32) -> SetupError {
    SetupError::new(Code::from_errno(errno), asked, errno_text(errno))
}

/// An unsigned number as the C calls take it.
pub(super) fn to_c(figure: u32) -> c_int {
    c_int::try_from(figure).unwrap_or(c_int::MAX)
}

/// A number from a C call. A negative one makes no sense and counts as 0.
pub(super) fn from_c(figure: c_int) -> u32 {
    u32::try_from(figure).unwrap_or(0)
}

// Requests are handed to the driver in the caller's own pieces.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
const _: () = assert!(align_of::<Sge>() == align_of::<ibv_sge>());
const _: () = assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
const _: () = assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));

// Flags are handed over as they are.
const fn same(ours: SendFlags, theirs: ibv_send_flags) -> bool {
    ours.bits() as u32 == theirs.0
}
const _: () = assert!(same(SendFlags::FENCE, ibv_send_flags::IBV_SEND_FENCE));
const _: () = assert!(same(SendFlags::SIGNALED, ibv_send_flags::IBV_SEND_SIGNALED));
const _: () = assert!(same(SendFlags::SOLICITED, ibv_send_flags::IBV_SEND_SOLICITED));
const _: () = assert!(same(SendFlags::INLINE, ibv_send_flags::IBV_SEND_INLINE));
const _: () = assert!(WcFlags::GRH.bits() as u32 == ibv_wc_flags::IBV_WC_GRH.0);
const _: () = assert!(WcFlags::WITH_IMM.bits() as u32 == ibv_wc_flags::IBV_WC_WITH_IMM.0);

// rdma-sys writes the types that hold unions by hand; these figures are C's (<infiniband/verbs.h>).
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, imm_data_invalidated_rkey_union) == 36);
    assert!(offset_of!(ibv_send_wr, qp_type) == 72);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, qp_num) == 28);
    assert!(offset_of!(ibv_wc, src_qp) == 32);
    assert!(offset_of!(ibv_wc, wc_flags) == 36);
    assert!(size_of::<ibv_recv_wr>() == 32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_its_code_whatever_its_sign() {
        assert_eq!(refused("x", 22).code(), Code::Invalid);
        assert_eq!(refused("x", -22).code(), Code::Invalid);
    }
}
