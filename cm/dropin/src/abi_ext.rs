//! The structures of `infiniband/verbs.h` for extended completion queues, XRC and domains. As for
//! [`crate::abi`], `tests/layout.rs` compares them with the header.
#![allow(non_camel_case_types, missing_docs, reason = "the names of the C header")]

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_pd};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// Reads a field of the completion under way.
type read_fn<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

#[repr(C)]
pub struct ibv_cq_ex {
    pub cq_base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *const ibv_poll_cq_attr) -> c_int>,
    pub next_poll: read_fn<c_int>,
    pub end_poll: read_fn<()>,
    pub read_opcode: read_fn<c_int>,
    pub read_vendor_err: read_fn<u32>,
    pub read_byte_len: read_fn<u32>,
    pub read_imm_data: read_fn<u32>,
    pub read_qp_num: read_fn<u32>,
    pub read_src_qp: read_fn<u32>,
    pub read_wc_flags: read_fn<c_uint>,
    pub read_slid: read_fn<u32>,
    pub read_sl: read_fn<u8>,
    pub read_dlid_path_bits: read_fn<u8>,
    pub read_completion_ts: read_fn<u64>,
    pub read_cvlan: read_fn<u16>,
    pub read_flow_tag: read_fn<u32>,
    pub read_tm_info: read_fn<()>,
    pub read_completion_wallclock_ns: read_fn<u64>,
}

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: c_int,
}

#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>,
    pub pd_context: *mut c_void,
}
