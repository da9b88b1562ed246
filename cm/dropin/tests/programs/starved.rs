//! Programs that sleep while a message waits for a receive.

use crate::pairs::run;
use crate::side::{CONNECTS, built};

/// Two queue pairs; one sends to the other, which has no receive. `starved limit`: until its
/// retries end. `starved late`: until there is a receive.
const STARVED: &str = r#"
#include <time.h>
#include <unistd.h>
static char bytes[64];
static double now(int of) {
    struct timespec time;
    CHECK(clock_gettime(of, &time));
    return time.tv_sec + time.tv_nsec / 1e9;
}
static void next(struct ibv_comp_channel *channel, struct ibv_cq *cq) {
    struct ibv_wc wc;
    struct ibv_cq *of;
    void *context;
    while (!ibv_poll_cq(cq, 1, &wc)) {
        CHECK(ibv_get_cq_event(channel, &of, &context));
        ibv_ack_cq_events(of, 1);
        CHECK(ibv_req_notify_cq(cq, 0));
    }
    printf("%s\n", ibv_wc_status_str(wc.status));
}
int main(int argc, char **argv) {
    int late = !strcmp(argv[1], "late");
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(NULL));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel *channels[2];
    struct ibv_cq *cqs[2];
    struct ibv_qp *qps[2];
    for (int n = 0; n < 2; n++) {
        channels[n] = ibv_create_comp_channel(context);
        cqs[n] = ibv_create_cq(context, 4, NULL, channels[n], 0);
        struct ibv_qp_init_attr init = {.send_cq = cqs[n], .recv_cq = cqs[n],
            .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
        CHECK(!(qps[n] = ibv_create_qp(pd, &init)));
    }
    for (int n = 0; n < 2; n++)
        connects(qps[n], qps[!n], late ? 7 : 2);
    for (int n = 0; n < 2; n++)
        CHECK(ibv_req_notify_cq(cqs[n], 0));
    struct ibv_sge sge = {(uintptr_t)bytes, 8, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *worse;
    double since = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
    CHECK(ibv_post_send(qps[0], &send, &bad));
    if (late) {
        usleep(400000);
        CHECK(ibv_post_recv(qps[1], &receive, &worse));
        next(channels[1], cqs[1]);
    }
    next(channels[0], cqs[0]);
    used = now(CLOCK_PROCESS_CPUTIME_ID) - used, since = now(CLOCK_MONOTONIC) - since;
    printf("%s\n", since < 0.4 ? "too soon" : used > since / 4 ? "busy" : "asleep");
    return 0;
}
"#;

/// The thread of the drop-in sleeps until there is something to do.
#[test]
fn a_program_sleeps_while_a_message_waits_for_a_receive() {
    let Some(starved) = built("starved", &[CONNECTS, STARVED].concat(), &["-libverbs"]) else {
        return;
    };
    let starved = starved.to_str().expect("a path");
    let Some(text) = run(&[starved, "limit"]) else { return };
    assert_eq!(text, "RNR retry counter exceeded\nasleep\n");
    let Some(text) = run(&[starved, "late"]) else { return };
    assert_eq!(text, "success\nsuccess\nasleep\n");
}
