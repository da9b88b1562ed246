//! Each function of librdmacm and libibverbs, and its name here.
//!
//! Documentation only. A function without a name here has the reason beside it; "not there" means
//! that no device of this crate offers it yet. Layer 0 ([`Id`], [`Endpoint`], [`ExternalQp`]) is
//! safe and owns its buffers. Workers and devices use the seam below ([`Fabric`], [`Provider`],
//! [`Qp`]).
//!
//! # librdmacm
//!
//! - `rdma_create_event_channel`, `rdma_destroy_event_channel`: [`Fabric::open_channel`]; dropped
//! - `rdma_get_cm_event`: [`Channel::next`]
//! - `rdma_ack_cm_event`: needless: events are acknowledged as they are taken
//! - `rdma_event_str`: the `Debug` of [`EventKind`]
//! - `rdma_create_id`, `rdma_destroy_id`: [`Id::create`]; dropped
//! - `rdma_create_ep`, `rdma_destroy_ep`: [`Endpoint::create`]; dropped
//! - `rdma_migrate_id`: [`Id::migrate`]
//! - `rdma_set_option`: [`Id::set_option`] with an [`IdOption`]
//! - `rdma_getaddrinfo`, `rdma_freeaddrinfo`: [`AddrInfo::resolve`], [`AddrInfo::of`]; dropped
//! - `rdma_bind_addr`: [`Id::bind`]
//! - `rdma_resolve_addr`, `rdma_resolve_route`: [`Id::resolve_addr`], [`Id::resolve_route`]
//! - `rdma_listen`, `rdma_get_request`: [`Id::listen`], [`Id::get_request`] and
//!   [`Endpoint::get_request`]; on a channel [`Id::of_request`]
//! - `rdma_connect`, `rdma_accept`, `rdma_reject`: [`Id::connect`], [`Id::accept`],
//!   [`Id::reject`]
//! - the same with `rdma_conn_param.qp_num`: [`ByHand::connect`], [`ByHand::accept`]
//! - `rdma_establish`, `rdma_init_qp_attr`: [`ByHand::establish`], [`ByHand::init_qp_attr`]
//! - `rdma_disconnect`: [`Id::disconnect`]
//! - `rdma_notify`: needless: a connection counts as up when its first message comes
//! - `rdma_create_qp`, `rdma_create_qp_ex`, `rdma_destroy_qp`: [`Id::create_qp`];
//!   [`Id::destroy_qp`]
//! - `rdma_create_srq`, `rdma_create_srq_ex`, `rdma_destroy_srq`: [`Id::create_srq`],
//!   [`Id::create_srq_ex`] with an [`SrqInit`], [`Id::destroy_srq`]
//! - `rdma_get_local_addr`, `rdma_get_src_port`: [`Id::local_addr`]
//! - `rdma_get_peer_addr`, `rdma_get_dst_port`: [`Id::peer_addr`]
//! - `rdma_get_devices`, `rdma_free_devices`: [`Device::choose`], [`Device::named`]
//! - `rdma_reg_msgs`: [`Buffer::new`], [`Buffer::many`]
//! - `rdma_reg_read`, `rdma_reg_write`: [`Exposed::new`]
//! - `rdma_dereg_mr`: dropped
//! - `rdma_post_recv`, `rdma_post_recvv`: [`Queues::post_recv`], [`Queues::post_recvs`]
//! - `rdma_post_send`, `rdma_post_sendv`, `rdma_post_read`, `rdma_post_readv`, `rdma_post_write`,
//!   `rdma_post_writev`: [`Queues::post_send`], [`Queues::post_sends`] with a [`SendOp`];
//!   [`Queues::post_inline`]
//! - `rdma_get_send_comp`, `rdma_get_recv_comp`: [`Queues::next_send`], [`Queues::next_recv`]
//! - `rdma_join_multicast`, `rdma_join_multicast_ex`, `rdma_leave_multicast`:
//!   [`Groups::join`], [`Groups::leave`]
//! - `rdma_post_ud_send`: [`Queues::post_send_to`] with a [`Target`]
//! - `rdma_set_local_ece`, `rdma_get_remote_ece`, `rdma_reject_ece`: not there
//! - `rdma_seterrno`: needless: what fails says so in its result
//! - `struct rdma_cm_event`, `struct rdma_conn_param`: [`Event`], [`ConnParam`]
//! - `rsocket` and the other calls of `<rdma/rsocket.h>`: not there
//!
//! # libibverbs
//!
//! - `ibv_get_device_list`, `ibv_free_device_list`, `ibv_get_device_name`, `ibv_open_device`,
//!   `ibv_close_device`: [`Device::named`], [`Device::name`]; dropped
//! - `ibv_get_device_guid`, `ibv_get_device_index`, `ibv_static_providers`: not there
//! - `ibv_query_device`, `ibv_query_device_ex`: [`Provider::caps`], which prints as a table
//! - `ibv_query_port`, `ibv_query_gid`, `ibv_query_pkey`: [`Ports::query_port`],
//!   [`Ports::query_gid`], [`Ports::query_pkey`]; [`Fabric::source`] finds the GID of an
//!   address
//! - `ibv_query_gid_ex`, `ibv_query_gid_table`, `ibv_get_pkey_index`: the same, one by one
//! - `ibv_query_rt_values_ex`, `ibv_resolve_eth_l2_from_gid`, `ibv_flow_label_to_udp_sport`,
//!   `ibv_rate_to_mult`, `ibv_rate_to_mbps`, `ibv_is_qpt_supported`: not there; a queue pair that a
//!   device cannot make is an error
//! - `ibv_alloc_pd`, `ibv_dealloc_pd`: [`ProtectionDomains::alloc_pd`], [`Fabric::dealloc_pd`]: a
//!   handle on a device stands for a domain, and what is made on it belongs to that.
//!   [`QpInit::pd`], [`SrqInit::pd`] name another
//! - `ibv_alloc_td`, `ibv_dealloc_td`: [`ThreadDomains::alloc_td`], [`Fabric::dealloc_td`] or
//!   dropped
//! - `ibv_alloc_parent_domain`: [`ThreadDomains::alloc_parent_domain`], without allocators of one's
//!   own; a handle, given up and named as that of a protection domain
//! - `ibv_reg_mr`, `ibv_dereg_mr`: [`Provider::register`]; dropped. Safely [`Buffer`] and
//!   [`Exposed`]
//! - `ibv_rereg_mr`: [`Reregister::reregister`], with a [`Rereg`]; safely [`Exposed::reregister`]
//! - `ibv_reg_mr_iova`, `ibv_reg_mr_iova2`, `ibv_alloc_null_mr`, `ibv_reg_dmabuf_mr`,
//!   `ibv_advise_mr`: not there
//! - `ibv_alloc_dm`, `ibv_free_dm`, `ibv_memcpy_to_dm`, `ibv_memcpy_from_dm`, `ibv_reg_dm_mr`: not
//!   there
//! - `ibv_import_device`, `ibv_import_pd`, `ibv_import_mr`, `ibv_import_dm`, `ibv_unimport_pd`,
//!   `ibv_unimport_mr`, `ibv_unimport_dm`: not there
//! - `ibv_alloc_mw`, `ibv_dealloc_mw`, `ibv_bind_mw`, `ibv_inc_rkey`: [`Window::new`],
//!   [`Queues::bind_window`], [`Queues::invalidate`]; dropped
//! - `ibv_create_comp_channel`, `ibv_destroy_comp_channel`, `ibv_get_cq_event`,
//!   `ibv_ack_cq_events`: each completion queue has a channel of its own;
//!   [`CompletionQueue::wait`], [`CompletionQueue::wake_fds`]; [`Poller::wake_fds`]
//! - `ibv_req_notify_cq`: [`CompletionQueue::arm`], [`Poller::arm`]
//! - `ibv_create_cq`, `ibv_destroy_cq`: [`CompletionQueue::new`], [`CompletionQueue::with`] a
//!   [`CqInit`], which has the `comp_vector`; [`Provider::create_cq`]; dropped
//! - `ibv_create_cq_ex`: [`CompletionQueue::with`] fields or flags, [`ExtendedCq::create_cq_ex`];
//!   `SINGLE_THREADED`, flow tags and tag matching are not there
//! - `ibv_cq_ex_to_cq`: needless: an extended one is a completion queue
//! - `ibv_modify_cq`: not there
//! - `ibv_resize_cq`: [`CompletionQueue::resize`], [`ResizeCq::resize_cq`]
//! - `ibv_poll_cq`: [`Poller::poll`]; of one queue pair [`Queues::poll_send`],
//!   [`Queues::poll_recv`], and with a wait [`Queues::next_send`], [`Queues::next_recv`]
//! - `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`: [`PollerEx::next`],
//!   [`Completion::extended`]: each is read whole, into a [`WcEx`]
//! - `ibv_wc_read_opcode`, `ibv_wc_read_vendor_err`, `ibv_wc_read_byte_len`,
//!   `ibv_wc_read_imm_data`, `ibv_wc_read_invalidated_rkey`, `ibv_wc_read_qp_num`,
//!   `ibv_wc_read_src_qp`, `ibv_wc_read_wc_flags`, `ibv_wc_read_slid`, `ibv_wc_read_sl`,
//!   `ibv_wc_read_dlid_path_bits`, `ibv_wc_read_completion_ts`,
//!   `ibv_wc_read_completion_wallclock_ns`, `ibv_wc_read_cvlan`: its fields;
//!   `ibv_wc_read_flow_tag`, `ibv_wc_read_tm_info`: not there
//! - `ibv_create_srq`, `ibv_create_srq_ex`, `ibv_destroy_srq`: [`SharedReceive::new`],
//!   [`SharedReceive::with`] an [`SrqInit`], [`Provider::create_srq`]; dropped
//! - `ibv_get_srq_num`: [`SharedReceive::number`], [`XrcSrq::number`]
//! - `ibv_open_xrcd`, `ibv_close_xrcd`: [`XrcDomain::open`], [`XrcDomain::close`]; without a file.
//!   [`QpInit::xrcd`] and [`SrqInit::domain`] name it
//! - `ibv_modify_srq`, `ibv_query_srq`: [`SharedReceive::set_limit`], [`SharedReceive::limit`],
//!   [`SharedReceive::depth`]; `IBV_SRQ_MAX_WR`: [`SharedReceive::resize`], [`SrqLimits::resize`]
//! - `ibv_post_srq_ops`: not there (tag matching)
//! - `ibv_post_srq_recv`: [`SharedReceive::post`], [`Srq::post`]
//! - `ibv_create_qp`, `ibv_create_qp_ex`, `ibv_destroy_qp`: [`ExternalQp::new`] with a
//!   [`QpInit`]; dropped. Of an id [`Id::create_qp`]
//! - `struct ibv_qp_init_attr_ex`: the rest of [`QpInit`]; `comp_mask` is [`QpInit::comp_mask`],
//!   `pd` that of the device's handle, `source_qpn` is not there
//! - `ibv_modify_qp`, `ibv_query_qp`: [`ExternalQp::modify`], [`ExternalQp::query`],
//!   [`Id::query_qp`] with [`QpFields`]
//! - `ibv_query_qp_data_in_order`, `ibv_modify_qp_rate_limit`, `ibv_query_ece`, `ibv_set_ece`: not
//!   there
//! - `ibv_post_send`, and `ibv_wr_start`, `ibv_wr_complete`, `ibv_wr_abort` of
//!   `ibv_qp_to_qp_ex`: [`ExternalQp::post_sends`], [`Qp::post`]; a slice is one doorbell
//! - `ibv_wr_send`, `ibv_wr_send_imm`, `ibv_wr_send_inv`, `ibv_wr_rdma_write`,
//!   `ibv_wr_rdma_write_imm`, `ibv_wr_rdma_read`, `ibv_wr_atomic_cmp_swp`,
//!   `ibv_wr_atomic_fetch_add`, `ibv_wr_local_inv`, `ibv_wr_bind_mw`, `ibv_wr_set_xrc_srqn`: a
//!   [`SendOp`]; `ibv_wr_atomic_write`, `ibv_wr_flush`: not there
//! - `ibv_wr_set_sge`, `ibv_wr_set_sge_list`, `ibv_wr_set_inline_data`,
//!   `ibv_wr_set_inline_data_list`, `ibv_wr_set_ud_addr`: a [`SendWr`]; safely a
//!   [`SendRequest`], [`Queues::post_inline`], [`Queues::post_send_to`]
//! - `IBV_WR_TSO`, `ibv_wr_send_tso`: [`ExternalQp::post_tso`]
//! - `ibv_post_recv`: [`ExternalQp::post_recvs`], [`Qp::post_recv`]
//! - `ibv_create_ah`, `ibv_init_ah_from_wc`, `ibv_create_ah_from_wc`, `ibv_destroy_ah`:
//!   [`Target::new`] of what an event or [`Datagrams::sender_of`] says; [`Datagrams::create_ah`];
//!   dropped
//! - `ibv_attach_mcast`, `ibv_detach_mcast`: [`Multicast::attach_mcast`],
//!   [`Multicast::detach_mcast`]
//! - `ibv_open_qp`: not there
//! - `ibv_create_wq`, `ibv_modify_wq`, `ibv_post_wq_recv`, `ibv_destroy_wq`: [`WorkQueue::new`],
//!   [`WorkQueue::modify`], [`WorkQueue::post`], [`WorkQueue::destroy`] or dropped
//! - `ibv_create_rwq_ind_table`, `ibv_destroy_rwq_ind_table`: [`IndirectionTable::new`],
//!   [`IndirectionTable::destroy`] or dropped; `rx_hash_conf` is [`QpInit::rx_hash_conf`]
//! - `ibv_create_flow`, `ibv_destroy_flow`: [`ExternalQp::create_flow`] with a [`FlowRule`],
//!   [`ExternalQp::destroy_flow`]; only by destination, or all
//! - `ibv_create_flow_action_esp`, `ibv_modify_flow_action_esp`, `ibv_destroy_flow_action`,
//!   `ibv_create_counters`, `ibv_destroy_counters`, `ibv_attach_counters_point_flow`,
//!   `ibv_read_counters`: not there
//! - `ibv_get_async_event`, `ibv_ack_async_event`: [`AsyncEvents::next_async_event`]; acknowledged
//!   as they are taken
//! - `ibv_fork_init`, `ibv_is_fork_initialized`: `Verbs::fork_init`, `Verbs::fork_state`, for
//!   kernels before 5.12; regions need none: no child gets their memory, or it is shared and stays
//!   where it is
//! - `ibv_wc_status_str`, `ibv_event_type_str`, `ibv_port_state_str`, `ibv_node_type_str`: the
//!   `Debug` of [`Status`], [`AsyncKind`], [`PortState`]
//! - `struct ibv_wc`, `struct ibv_send_wr`, `struct ibv_recv_wr`, `struct ibv_sge`: [`Wc`] and
//!   [`Completion`], [`SendWr`] and [`SendRequest`], [`RecvWr`], [`Sge`]
//! - `struct ibv_qp_attr`, `enum ibv_qp_state`, `struct ibv_ah_attr`: [`QpFields`], [`QpState`],
//!   [`AddressVector`]

#[cfg(doc)]
use doorbell_seam::event::AsyncKind;
#[cfg(doc)]
use doorbell_seam::provider::{
    AddressVector, AsyncEvents, CqInit, Datagrams, ExtendedCq, FlowRule, Multicast, Poller,
    PollerEx, PortState, Ports, ProtectionDomains, Provider, Qp, Rereg, Reregister, ResizeCq, Srq,
    SrqLimits, ThreadDomains, WcEx, XrcSrq,
};
#[cfg(doc)]
use doorbell_seam::wc::{Status, Wc};
#[cfg(doc)]
use doorbell_seam::wr::{RecvWr, SendOp, SendWr, Sge};

#[cfg(doc)]
use crate::{
    AddrInfo, Buffer, ByHand, Channel, Completion, CompletionQueue, ConnParam, Device, Endpoint,
    Event, EventKind, Exposed, ExternalQp, Fabric, Groups, Id, IdOption, IndirectionTable,
    QpFields, QpInit, QpState, Queues, SendRequest, SharedReceive, SrqInit, Target, Window,
    WorkQueue, XrcDomain,
};
