//! The structures of `src/abi.rs` have the layout that a C compiler gives those of the header.

use std::mem::offset_of;
use std::process::Command;
use std::{env, fs, process};

use doorbell_dropin::abi::*;
use doorbell_dropin::abi_context::*;
use doorbell_dropin::abi_ext::*;
use doorbell_dropin::abi_raw::*;
use doorbell_dropin::cm::abi::*;

/// A size or an offset: what to ask C, and what Rust says.
type Fact = (&'static str, usize);

fn facts() -> Vec<Fact> {
    let mut all = sizes();
    all.extend(offsets());
    all.extend(offsets_of_contexts());
    all.extend(of_extensions());
    all.extend(of_raw_packets());
    all.extend(of_the_manager());
    all
}

fn sizes() -> Vec<Fact> {
    vec![
        ("sizeof(struct ibv_gid_entry)", size_of::<ibv_gid_entry>()),
        ("sizeof(struct ibv_device)", size_of::<ibv_device>()),
        ("sizeof(struct ibv_device_attr)", size_of::<ibv_device_attr>()),
        ("sizeof(struct ibv_device_attr_ex)", size_of::<ibv_device_attr_ex>()),
        ("sizeof(struct ibv_port_attr)", size_of::<ibv_port_attr>()),
        ("sizeof(struct ibv_async_event)", size_of::<ibv_async_event>()),
        ("sizeof(struct ibv_wc)", size_of::<ibv_wc>()),
        ("sizeof(struct ibv_pd)", size_of::<ibv_pd>()),
        ("sizeof(struct ibv_mr)", size_of::<ibv_mr>()),
        ("sizeof(struct ibv_ah_attr)", size_of::<ibv_ah_attr>()),
        ("sizeof(struct ibv_ah)", size_of::<ibv_ah>()),
        ("sizeof(struct ibv_srq_init_attr)", size_of::<ibv_srq_init_attr>()),
        ("sizeof(struct ibv_srq_init_attr_ex)", size_of::<ibv_srq_init_attr_ex>()),
        ("sizeof(struct ibv_srq)", size_of::<ibv_srq>()),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<ibv_qp_init_attr>()),
        ("sizeof(struct ibv_qp_init_attr_ex)", size_of::<ibv_qp_init_attr_ex>()),
        ("sizeof(struct ibv_qp_attr)", size_of::<ibv_qp_attr>()),
        ("sizeof(struct ibv_sge)", size_of::<ibv_sge>()),
        ("sizeof(struct ibv_send_wr)", size_of::<ibv_send_wr>()),
        ("sizeof(struct ibv_recv_wr)", size_of::<ibv_recv_wr>()),
        ("sizeof(struct ibv_qp)", size_of::<ibv_qp>()),
        ("sizeof(struct ibv_comp_channel)", size_of::<ibv_comp_channel>()),
        ("sizeof(struct ibv_cq)", size_of::<ibv_cq>()),
        ("sizeof(struct ibv_context_ops)", size_of::<ibv_context_ops>()),
        ("sizeof(struct ibv_context)", size_of::<ibv_context>()),
        ("sizeof(struct verbs_context)", size_of::<verbs_context>()),
    ]
}

fn offsets() -> Vec<Fact> {
    vec![
        ("offsetof(struct ibv_device, name)", offset_of!(ibv_device, name)),
        ("offsetof(struct ibv_device, ibdev_path)", offset_of!(ibv_device, ibdev_path)),
        ("offsetof(struct ibv_device_attr, max_qp)", offset_of!(ibv_device_attr, max_qp)),
        ("offsetof(struct ibv_device_attr, atomic_cap)", offset_of!(ibv_device_attr, atomic_cap)),
        ("offsetof(struct ibv_device_attr, max_srq)", offset_of!(ibv_device_attr, max_srq)),
        (
            "offsetof(struct ibv_device_attr, phys_port_cnt)",
            offset_of!(ibv_device_attr, phys_port_cnt),
        ),
        (
            "offsetof(struct ibv_device_attr_ex, completion_timestamp_mask)",
            offset_of!(ibv_device_attr_ex, completion_timestamp_mask),
        ),
        (
            "offsetof(struct ibv_device_attr_ex, max_wq_type_rq)",
            offset_of!(ibv_device_attr_ex, max_wq_type_rq),
        ),
        ("offsetof(struct ibv_device_attr_ex, tm_caps)", offset_of!(ibv_device_attr_ex, tm_caps)),
        (
            "offsetof(struct ibv_device_attr_ex, phys_port_cnt_ex)",
            offset_of!(ibv_device_attr_ex, phys_port_cnt_ex),
        ),
        ("offsetof(struct ibv_port_attr, lid)", offset_of!(ibv_port_attr, lid)),
        ("offsetof(struct ibv_port_attr, link_layer)", offset_of!(ibv_port_attr, link_layer)),
        ("offsetof(struct ibv_wc, imm_data)", offset_of!(ibv_wc, imm_data)),
        ("offsetof(struct ibv_wc, wc_flags)", offset_of!(ibv_wc, wc_flags)),
        ("offsetof(struct ibv_mr, lkey)", offset_of!(ibv_mr, lkey)),
        ("offsetof(struct ibv_ah_attr, dlid)", offset_of!(ibv_ah_attr, dlid)),
        ("offsetof(struct ibv_ah_attr, is_global)", offset_of!(ibv_ah_attr, is_global)),
        ("offsetof(struct ibv_srq_init_attr_ex, pd)", offset_of!(ibv_srq_init_attr_ex, pd)),
        ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(ibv_qp_init_attr, cap)),
        ("offsetof(struct ibv_qp_init_attr, sq_sig_all)", offset_of!(ibv_qp_init_attr, sq_sig_all)),
        ("offsetof(struct ibv_qp_init_attr_ex, pd)", offset_of!(ibv_qp_init_attr_ex, pd)),
        (
            "offsetof(struct ibv_qp_init_attr_ex, rx_hash_conf)",
            offset_of!(ibv_qp_init_attr_ex, rx_hash_conf),
        ),
        (
            "offsetof(struct ibv_qp_init_attr_ex, send_ops_flags)",
            offset_of!(ibv_qp_init_attr_ex, send_ops_flags),
        ),
        ("offsetof(struct ibv_qp_attr, cap)", offset_of!(ibv_qp_attr, cap)),
        ("offsetof(struct ibv_qp_attr, ah_attr)", offset_of!(ibv_qp_attr, ah_attr)),
        ("offsetof(struct ibv_qp_attr, pkey_index)", offset_of!(ibv_qp_attr, pkey_index)),
        ("offsetof(struct ibv_qp_attr, rnr_retry)", offset_of!(ibv_qp_attr, rnr_retry)),
        ("offsetof(struct ibv_send_wr, imm_data)", offset_of!(ibv_send_wr, imm_data)),
        ("offsetof(struct ibv_send_wr, wr)", offset_of!(ibv_send_wr, wr)),
        ("offsetof(struct ibv_send_wr, qp_type)", offset_of!(ibv_send_wr, remote_srqn)),
        ("offsetof(struct ibv_send_wr, bind_mw)", offset_of!(ibv_send_wr, bind_mw)),
        ("offsetof(struct ibv_qp, qp_num)", offset_of!(ibv_qp, qp_num)),
        ("offsetof(struct ibv_qp, events_completed)", offset_of!(ibv_qp, events_completed)),
        ("sizeof(struct ibv_qp_ex)", size_of::<ibv_qp_ex>()),
        ("offsetof(struct ibv_qp_ex, wr_flags)", offset_of!(ibv_qp_ex, wr_flags)),
        ("offsetof(struct ibv_qp_ex, wr_send)", offset_of!(ibv_qp_ex, wr_send)),
        ("offsetof(struct ibv_qp_ex, wr_set_sge)", offset_of!(ibv_qp_ex, wr_set_sge)),
        ("offsetof(struct ibv_qp_ex, wr_complete)", offset_of!(ibv_qp_ex, wr_complete)),
        ("offsetof(struct ibv_cq, cqe)", offset_of!(ibv_cq, cqe)),
        (
            "offsetof(struct ibv_cq, comp_events_completed)",
            offset_of!(ibv_cq, comp_events_completed),
        ),
    ]
}

fn offsets_of_contexts() -> Vec<Fact> {
    vec![
        ("offsetof(struct ibv_context_ops, alloc_mw)", offset_of!(ibv_context_ops, alloc_mw)),
        ("offsetof(struct ibv_context_ops, dealloc_mw)", offset_of!(ibv_context_ops, dealloc_mw)),
        ("offsetof(struct ibv_context_ops, poll_cq)", offset_of!(ibv_context_ops, poll_cq)),
        (
            "offsetof(struct ibv_context_ops, req_notify_cq)",
            offset_of!(ibv_context_ops, req_notify_cq),
        ),
        (
            "offsetof(struct ibv_context_ops, post_srq_recv)",
            offset_of!(ibv_context_ops, post_srq_recv),
        ),
        ("offsetof(struct ibv_context_ops, post_send)", offset_of!(ibv_context_ops, post_send)),
        ("offsetof(struct ibv_context_ops, post_recv)", offset_of!(ibv_context_ops, post_recv)),
        ("offsetof(struct ibv_context, async_fd)", offset_of!(ibv_context, async_fd)),
        ("offsetof(struct ibv_context, abi_compat)", offset_of!(ibv_context, abi_compat)),
        (
            "offsetof(struct verbs_context, alloc_parent_domain)",
            offset_of!(verbs_context, alloc_parent_domain),
        ),
        ("offsetof(struct verbs_context, alloc_td)", offset_of!(verbs_context, alloc_td)),
        ("offsetof(struct verbs_context, create_wq)", offset_of!(verbs_context, create_wq)),
        (
            "offsetof(struct verbs_context, query_rt_values)",
            offset_of!(verbs_context, query_rt_values),
        ),
        ("offsetof(struct verbs_context, create_cq_ex)", offset_of!(verbs_context, create_cq_ex)),
        ("offsetof(struct verbs_context, open_qp)", offset_of!(verbs_context, open_qp)),
        ("offsetof(struct verbs_context, get_srq_num)", offset_of!(verbs_context, get_srq_num)),
        ("offsetof(struct verbs_context, open_xrcd)", offset_of!(verbs_context, open_xrcd)),
        (
            "offsetof(struct verbs_context, query_device_ex)",
            offset_of!(verbs_context, query_device_ex),
        ),
        ("offsetof(struct verbs_context, create_qp_ex)", offset_of!(verbs_context, create_qp_ex)),
        ("offsetof(struct verbs_context, create_srq_ex)", offset_of!(verbs_context, create_srq_ex)),
        ("offsetof(struct verbs_context, close_xrcd)", offset_of!(verbs_context, close_xrcd)),
        ("offsetof(struct verbs_context, sz)", offset_of!(verbs_context, sz)),
        ("offsetof(struct verbs_context, context)", offset_of!(verbs_context, context)),
    ]
}

fn of_extensions() -> Vec<Fact> {
    vec![
        ("sizeof(struct ibv_poll_cq_attr)", size_of::<ibv_poll_cq_attr>()),
        ("sizeof(struct ibv_cq_ex)", size_of::<ibv_cq_ex>()),
        ("offsetof(struct ibv_cq_ex, status)", offset_of!(ibv_cq_ex, status)),
        ("offsetof(struct ibv_cq_ex, wr_id)", offset_of!(ibv_cq_ex, wr_id)),
        ("offsetof(struct ibv_cq_ex, start_poll)", offset_of!(ibv_cq_ex, start_poll)),
        ("offsetof(struct ibv_cq_ex, read_slid)", offset_of!(ibv_cq_ex, read_slid)),
        ("offsetof(struct ibv_cq_ex, read_cvlan)", offset_of!(ibv_cq_ex, read_cvlan)),
        (
            "offsetof(struct ibv_cq_ex, read_completion_wallclock_ns)",
            offset_of!(ibv_cq_ex, read_completion_wallclock_ns),
        ),
        ("sizeof(struct ibv_cq_init_attr_ex)", size_of::<ibv_cq_init_attr_ex>()),
        (
            "offsetof(struct ibv_cq_init_attr_ex, wc_flags)",
            offset_of!(ibv_cq_init_attr_ex, wc_flags),
        ),
        (
            "offsetof(struct ibv_cq_init_attr_ex, parent_domain)",
            offset_of!(ibv_cq_init_attr_ex, parent_domain),
        ),
        ("sizeof(struct ibv_values_ex)", size_of::<ibv_values_ex>()),
        ("offsetof(struct ibv_values_ex, raw_clock)", offset_of!(ibv_values_ex, raw_clock)),
        ("sizeof(struct ibv_xrcd_init_attr)", size_of::<ibv_xrcd_init_attr>()),
        ("sizeof(struct ibv_xrcd)", size_of::<ibv_xrcd>()),
        ("sizeof(struct ibv_qp_open_attr)", size_of::<ibv_qp_open_attr>()),
        ("offsetof(struct ibv_qp_open_attr, qp_type)", offset_of!(ibv_qp_open_attr, qp_type)),
        ("offsetof(struct ibv_srq_init_attr_ex, xrcd)", offset_of!(ibv_srq_init_attr_ex, xrcd)),
        ("offsetof(struct ibv_srq_init_attr_ex, cq)", offset_of!(ibv_srq_init_attr_ex, cq)),
        ("offsetof(struct ibv_qp_init_attr_ex, xrcd)", offset_of!(ibv_qp_init_attr_ex, xrcd)),
        ("sizeof(struct ibv_mw)", size_of::<ibv_mw>()),
        ("offsetof(struct ibv_mw, rkey)", offset_of!(ibv_mw, rkey)),
        ("sizeof(struct ibv_mw_bind)", size_of::<ibv_mw_bind>()),
        ("offsetof(struct ibv_mw_bind, bind_info)", offset_of!(ibv_mw_bind, bind_info)),
        ("sizeof(struct ibv_mw_bind_info)", size_of::<ibv_mw_bind_info>()),
        ("offsetof(struct ibv_mw_bind_info, addr)", offset_of!(ibv_mw_bind_info, addr)),
        (
            "offsetof(struct ibv_mw_bind_info, mw_access_flags)",
            offset_of!(ibv_mw_bind_info, mw_access_flags),
        ),
        (
            "offsetof(struct ibv_send_wr, bind_mw.rkey)",
            offset_of!(ibv_send_wr, bind_mw) + offset_of!(wr_bind_mw, rkey),
        ),
        (
            "offsetof(struct ibv_send_wr, bind_mw.bind_info)",
            offset_of!(ibv_send_wr, bind_mw) + offset_of!(wr_bind_mw, bind_info),
        ),
        ("offsetof(struct ibv_qp_ex, wr_bind_mw)", offset_of!(ibv_qp_ex, wr_bind_mw)),
        ("offsetof(struct ibv_qp_ex, wr_set_xrc_srqn)", offset_of!(ibv_qp_ex, wr_set_xrc_srqn)),
        ("sizeof(struct ibv_td_init_attr)", size_of::<ibv_td_init_attr>()),
        ("sizeof(struct ibv_td)", size_of::<ibv_td>()),
        ("sizeof(struct ibv_parent_domain_init_attr)", size_of::<ibv_parent_domain_init_attr>()),
        (
            "offsetof(struct ibv_parent_domain_init_attr, alloc)",
            offset_of!(ibv_parent_domain_init_attr, alloc),
        ),
        (
            "offsetof(struct ibv_parent_domain_init_attr, pd_context)",
            offset_of!(ibv_parent_domain_init_attr, pd_context),
        ),
    ]
}

fn of_raw_packets() -> Vec<Fact> {
    vec![
        ("sizeof(struct ibv_rss_caps)", size_of::<ibv_rss_caps>()),
        (
            "offsetof(struct ibv_rss_caps, rx_hash_fields_mask)",
            offset_of!(ibv_rss_caps, rx_hash_fields_mask),
        ),
        ("offsetof(struct ibv_device_attr_ex, rss_caps)", offset_of!(ibv_device_attr_ex, rss_caps)),
        (
            "offsetof(struct ibv_device_attr_ex, raw_packet_caps)",
            offset_of!(ibv_device_attr_ex, raw_packet_caps),
        ),
        ("sizeof(struct ibv_wq_init_attr)", size_of::<ibv_wq_init_attr>()),
        ("offsetof(struct ibv_wq_init_attr, cq)", offset_of!(ibv_wq_init_attr, cq)),
        ("sizeof(struct ibv_wq_attr)", size_of::<ibv_wq_attr>()),
        ("sizeof(struct ibv_wq)", size_of::<ibv_wq>()),
        ("offsetof(struct ibv_wq, state)", offset_of!(ibv_wq, state)),
        ("offsetof(struct ibv_wq, post_recv)", offset_of!(ibv_wq, post_recv)),
        ("offsetof(struct ibv_wq, comp_mask)", offset_of!(ibv_wq, comp_mask)),
        ("sizeof(struct ibv_rwq_ind_table_init_attr)", size_of::<ibv_rwq_ind_table_init_attr>()),
        ("sizeof(struct ibv_rwq_ind_table)", size_of::<ibv_rwq_ind_table>()),
        ("sizeof(struct ibv_rx_hash_conf)", size_of::<ibv_rx_hash_conf>()),
        (
            "offsetof(struct ibv_rx_hash_conf, rx_hash_key)",
            offset_of!(ibv_rx_hash_conf, rx_hash_key),
        ),
        (
            "offsetof(struct ibv_qp_init_attr_ex, rwq_ind_tbl)",
            offset_of!(ibv_qp_init_attr_ex, rwq_ind_tbl),
        ),
        ("sizeof(struct ibv_flow_attr)", size_of::<ibv_flow_attr>()),
        ("offsetof(struct ibv_flow_attr, flags)", offset_of!(ibv_flow_attr, flags)),
        ("sizeof(struct ibv_flow)", size_of::<ibv_flow>()),
        ("sizeof(struct ibv_flow_spec_eth)", size_of::<spec<ibv_flow_eth_filter>>()),
        ("offsetof(struct ibv_flow_spec_eth, mask)", offset_of!(spec<ibv_flow_eth_filter>, mask)),
        ("sizeof(struct ibv_flow_spec_ipv4)", size_of::<spec<ibv_flow_ipv4_filter>>()),
        ("sizeof(struct ibv_flow_spec_ipv4_ext)", size_of::<spec<ibv_flow_ipv4_ext_filter>>()),
        (
            "offsetof(struct ibv_flow_spec_ipv4_ext, mask)",
            offset_of!(spec<ibv_flow_ipv4_ext_filter>, mask),
        ),
        ("sizeof(struct ibv_flow_spec_ipv6)", size_of::<spec<ibv_flow_ipv6_filter>>()),
        (
            "offsetof(struct ibv_flow_spec_ipv6, mask.flow_label)",
            offset_of!(spec<ibv_flow_ipv6_filter>, mask)
                + offset_of!(ibv_flow_ipv6_filter, flow_label),
        ),
        ("sizeof(struct ibv_flow_spec_tcp_udp)", size_of::<spec<ibv_flow_tcp_udp_filter>>()),
        (
            "offsetof(struct ibv_flow_spec_tcp_udp, val)",
            offset_of!(spec<ibv_flow_tcp_udp_filter>, val),
        ),
    ]
}

fn of_the_manager() -> Vec<Fact> {
    vec![
        ("sizeof(struct rdma_cm_id)", size_of::<rdma_cm_id>()),
        ("offsetof(struct rdma_cm_id, route)", offset_of!(rdma_cm_id, route)),
        ("offsetof(struct rdma_cm_id, ps)", offset_of!(rdma_cm_id, ps)),
        ("offsetof(struct rdma_cm_id, send_cq)", offset_of!(rdma_cm_id, send_cq)),
        ("offsetof(struct rdma_cm_id, qp_type)", offset_of!(rdma_cm_id, qp_type)),
        ("sizeof(struct rdma_conn_param)", size_of::<rdma_conn_param>()),
        ("offsetof(struct rdma_conn_param, qp_num)", offset_of!(rdma_conn_param, qp_num)),
        ("sizeof(struct rdma_ud_param)", size_of::<rdma_ud_param>()),
        ("offsetof(struct rdma_ud_param, qp_num)", offset_of!(rdma_ud_param, qp_num)),
        ("sizeof(struct rdma_cm_event)", size_of::<rdma_cm_event>()),
        ("offsetof(struct rdma_cm_event, param)", offset_of!(rdma_cm_event, param)),
        ("sizeof(struct rdma_addrinfo)", size_of::<rdma_addrinfo>()),
        ("offsetof(struct rdma_addrinfo, ai_route)", offset_of!(rdma_addrinfo, ai_route)),
        ("sizeof(struct rdma_cm_join_mc_attr_ex)", size_of::<rdma_cm_join_mc_attr_ex>()),
    ]
}

#[test]
fn structures_have_the_layout_of_the_header() {
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h"] {
        if !std::path::Path::new("/usr/include").join(header).exists() {
            println!("skipped: the header {header} is not installed");
            return;
        }
    }
    let folder = env::temp_dir().join(format!("doorbell-layout-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let facts = facts();
    let lines: Vec<String> =
        facts.iter().map(|(ask, _)| format!("printf(\"%zu\\n\", {ask});")).collect();
    let text = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\n\
         int main(void) {{\n{}\nreturn 0; }}\n",
        lines.join("\n")
    );
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    fs::write(&source, text).unwrap();
    let built = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
    assert!(built.success());
    let output = Command::new(&program).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let found: Vec<usize> =
        String::from_utf8(output.stdout).unwrap().lines().map(|n| n.parse().unwrap()).collect();
    assert_eq!(found.len(), facts.len());
    for ((ask, ours), theirs) in facts.iter().zip(found) {
        assert_eq!(*ours, theirs, "{ask}");
    }
}
