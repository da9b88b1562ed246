//! What the drop-in does not support: each call says EOPNOTSUPP, and the capabilities say so
//! beforehand. The README has the same list.

use crate::pairs::run;
use crate::side::built;

/// Prints a line for each call or capability that is not as it should be.
const ABSENT: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
static int shown;
#define SHOW(right, what) do { shown++; if (!(right)) printf("wrong: %s\n", what); } while (0)
#define ZERO(field) SHOW(!(ex.field), "capability " #field)
#define NONE(call) do { errno = 0; SHOW((call) == NULL && errno == EOPNOTSUPP, #call); } while (0)
#define REFUSED(call) do { int code = call; SHOW(code == EOPNOTSUPP, #call); } while (0)
static int change(struct ibv_qp *qp, int state, union ibv_gid *gid) {
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1};
    if (state == IBV_QPS_INIT)
        return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                        IBV_QP_ACCESS_FLAGS);
    attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = qp->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh.dgid = *gid};
    if (state == IBV_QPS_RTR)
        return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
            IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}
static void capabilities(struct ibv_context *context) {
    struct ibv_device_attr_ex ex = {};
    SHOW(ibv_query_device_ex(context, NULL, &ex) == 0, "query_device_ex");
    ZERO(odp_caps.general_caps);
    ZERO(odp_caps.per_transport_caps.rc_odp_caps);
    ZERO(xrc_odp_caps);
    ZERO(tm_caps.max_num_tags);
    ZERO(tm_caps.flags);
    ZERO(max_dm_size);
    ZERO(tso_caps.max_tso);
    ZERO(packet_pacing_caps.qp_rate_limit_max);
    ZERO(cq_mod_caps.max_cq_count);
    ZERO(pci_atomic_caps.fetch_add);
    /* Zero-based memory and local invalidation of any region come with this one. */
    ZERO(orig_attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS);
    ZERO(orig_attr.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG);
    ZERO(orig_attr.device_cap_flags & IBV_DEVICE_RESIZE_MAX_WR);
}
static void memory(struct ibv_context *context, struct ibv_pd *pd) {
    static char bytes[8192];
    struct ibv_alloc_dm_attr dm = {.length = 64};
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = 64};
    NONE(ibv_alloc_dm(context, &dm));
    NONE(ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
    NONE(ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND));
    NONE(ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));
    NONE(ibv_reg_mr_iova(pd, bytes, 4096, 0x1000, IBV_ACCESS_LOCAL_WRITE));
    NONE(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 1, IBV_ACCESS_LOCAL_WRITE));
    NONE(ibv_alloc_null_mr(pd));
    REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
    NONE(ibv_import_device(dup(context->cmd_fd)));
    NONE(ibv_import_pd(context, 1));
    NONE(ibv_import_mr(pd, 1));
    NONE(ibv_import_dm(context, 1));
}
static void queues(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_srq_init_attr_ex srq = {.attr = {16, 1, 0}, .srq_type = IBV_SRQT_TM, .pd = pd,
        .cq = cq, .tm_cap = {4, 4}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                 IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM};
    struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0},
        .qp_type = IBV_QPT_RC, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct ibv_qp_open_attr open = {.qp_num = 1, .qp_type = IBV_QPT_XRC_RECV};
    struct ibv_modify_cq_attr cq_attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {8, 8}};
    struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};
    struct ibv_counters_init_attr counters = {};
    struct ibv_flow_action_esp_attr esp = {};
    struct ibv_ece ece = {};
    NONE(ibv_create_srq_ex(context, &srq));
    NONE(ibv_open_qp(context, &open));
    NONE(ibv_create_counters(context, &counters));
    NONE(ibv_create_flow_action_esp(context, &esp));
    REFUSED(ibv_modify_cq(cq, &cq_attr));
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE;
    NONE(ibv_create_qp_ex(context, &init));
    init.send_ops_flags = IBV_QP_EX_WITH_TSO;
    NONE(ibv_create_qp_ex(context, &init));
    init.comp_mask = IBV_QP_INIT_ATTR_PD, init.qp_type = IBV_QPT_DRIVER;
    NONE(ibv_create_qp_ex(context, &init));
    init.qp_type = IBV_QPT_RC;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    union ibv_gid gid;
    SHOW(qp && ibv_query_gid(context, 1, 0, &gid) == 0 && change(qp, IBV_QPS_INIT, &gid) == 0 &&
         change(qp, IBV_QPS_RTR, &gid) == 0 && change(qp, IBV_QPS_RTS, &gid) == 0, "a queue pair");
    REFUSED(ibv_modify_qp_rate_limit(qp, &rate));
    REFUSED(ibv_set_ece(qp, &ece));
    REFUSED(ibv_query_ece(qp, &ece));
    struct ibv_qp_attr alternate = {.path_mig_state = IBV_MIG_REARM};
    REFUSED(ibv_modify_qp(qp, &alternate, IBV_QP_PATH_MIG_STATE));
    struct ibv_send_wr wr = {.opcode = IBV_WR_ATOMIC_WRITE}, *bad = NULL;
    REFUSED(ibv_post_send(qp, &wr, &bad));
    SHOW(bad == &wr, "the request that was refused");
    wr.opcode = IBV_WR_TSO;
    REFUSED(ibv_post_send(qp, &wr, &bad));
    SHOW(ibv_destroy_qp(qp) == 0, "destroy");
}
int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    capabilities(context);
    memory(context, pd);
    queues(context, pd, ibv_create_cq(context, 16, NULL, NULL, 0));
    printf("%d shown\n", shown);
    return 0;
}
"#;

#[test]
fn what_is_absent_says_so() {
    let Some(program) = built("absent", ABSENT, &["-libverbs"]) else { return };
    let Some(text) = run(&[program.to_str().unwrap()]) else { return };
    assert!(!text.contains("wrong:"), "{text}");
    assert!(text.contains("43 shown"), "{text}");
}
