//! The structures of `infiniband/verbs.h` that name those of [`crate::abi`], [`crate::abi_ext`] and
//! [`crate::abi_raw`]: extended attributes, and the extended part of a context.
#![allow(non_camel_case_types, missing_docs, reason = "the names of the C header")]

use std::ffi::{c_int, c_void};

use crate::abi::*;
use crate::abi_ext::*;
use crate::abi_raw::*;

#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: c_int,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: [u32; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut ibv_rwq_ind_table,
    pub rx_hash_conf: ibv_rx_hash_conf,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// `query_device_ex` of [`verbs_context`].
pub type query_device_ex_fn =
    unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int;

type make_fn<A, R> = Option<unsafe extern "C" fn(*mut ibv_context, *mut A) -> *mut R>;
type end_fn<A> = Option<unsafe extern "C" fn(*mut A) -> c_int>;

/// Lies in front of the context that programs know. Entries that are absent mean EOPNOTSUPP.
#[repr(C)]
pub struct verbs_context {
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    /// `advise_mr` to `modify_qp_rate_limit`.
    pub rare: [absent; 13],
    pub alloc_parent_domain: make_fn<ibv_parent_domain_init_attr, ibv_pd>,
    pub dealloc_td: end_fn<ibv_td>,
    pub alloc_td: make_fn<ibv_td_init_attr, ibv_td>,
    pub modify_cq: absent,
    pub post_srq_ops: absent,
    pub destroy_rwq_ind_table: end_fn<ibv_rwq_ind_table>,
    pub create_rwq_ind_table: make_fn<ibv_rwq_ind_table_init_attr, ibv_rwq_ind_table>,
    pub destroy_wq: end_fn<ibv_wq>,
    pub modify_wq: Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>,
    pub create_wq: make_fn<ibv_wq_init_attr, ibv_wq>,
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: make_fn<ibv_cq_init_attr_ex, ibv_cq_ex>,
    pub priv_: *mut c_void,
    pub query_device_ex: Option<query_device_ex_fn>,
    pub ibv_destroy_flow: end_fn<ibv_flow>,
    pub abi_placeholder2: absent,
    pub ibv_create_flow:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>,
    pub abi_placeholder1: absent,
    pub open_qp: make_fn<ibv_qp_open_attr, ibv_qp>,
    pub create_qp_ex: make_fn<ibv_qp_init_attr_ex, ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex: make_fn<ibv_srq_init_attr_ex, ibv_srq>,
    pub open_xrcd: make_fn<ibv_xrcd_init_attr, ibv_xrcd>,
    pub close_xrcd: end_fn<ibv_xrcd>,
    pub abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
