//! A program that reads no events of the connection manager learns of the death of its peer by its
//! completions.

use crate::links::talks;
use crate::pairs::{Meets, PORT, free_port, started, turn, with_port};
use crate::side::{Side, built};

/// `silent PORT serve` answers one message, and does nothing then. `silent PORT poll` or `sleep`
/// sends two, and waits until the other requests have failed. With an event channel, it asks for an
/// event then.
const SILENT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_verbs.h>
#define CHECK(x) do { if (x) { perror(#x); exit(1); } } while (0)
static char bytes[64];
static int polls;
static void next(struct rdma_cm_id *id, int sends) {
    struct ibv_wc wc;
    if (polls)
        while (!ibv_poll_cq(sends ? id->send_cq : id->recv_cq, 1, &wc)) ;
    else
        CHECK((sends ? rdma_get_send_comp(id, &wc) : rdma_get_recv_comp(id, &wc)) != 1);
    printf("%s %s\n", sends ? "send" : "receive", ibv_wc_status_str(wc.status));
}
int main(int argc, char **argv) {
    int serves = !strcmp(argv[2], "serve");
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
    struct rdma_conn_param param = {.rnr_retry_count = 7};
    struct rdma_cm_id *id, *listener;
    struct rdma_cm_event *event;
    struct ibv_mr *mr;
    polls = !strcmp(argv[2], "poll");
    hints.ai_flags = serves ? RAI_PASSIVE : 0;
    CHECK(rdma_getaddrinfo("127.0.0.1", argv[1], &hints, &info));
    CHECK(rdma_create_ep(serves ? &listener : &id, info, NULL, &attr));
    if (serves) {
        CHECK(rdma_listen(listener, 0));
        CHECK(rdma_get_request(listener, &id));
    }
    CHECK(!(mr = rdma_reg_msgs(id, bytes, sizeof bytes)));
    for (int n = 0; n < (serves ? 1 : 2); n++)
        CHECK(rdma_post_recv(id, NULL, bytes, sizeof bytes, mr));
    CHECK(serves ? rdma_accept(id, NULL) : rdma_connect(id, &param));
    if (serves) {
        next(id, 0);
        CHECK(rdma_post_send(id, NULL, bytes, 1, mr, IBV_SEND_SIGNALED));
        for (;;)
            pause();
    }
    if (polls) {
        struct rdma_event_channel *channel = rdma_create_event_channel();
        CHECK(!channel || rdma_migrate_id(id, channel));
    }
    for (int n = 0; n < 2; n++)
        CHECK(rdma_post_send(id, NULL, bytes, 1, mr, IBV_SEND_SIGNALED));
    for (int n = 0; n < 2; n++)
        next(id, 1), next(id, 0);
    if (polls) {
        CHECK(rdma_get_cm_event(id->channel, &event));
        printf("%s\n", rdma_event_str(event->event));
    }
    return 0;
}
"#;

#[test]
fn a_program_without_events_learns_of_the_death_of_its_peer() {
    let Some(program) = built("silent", SILENT, &["-lrdmacm", "-libverbs"]) else { return };
    let program = program.display().to_string();
    let _turn = turn();
    for (mode, event) in [("poll", "RDMA_CM_EVENT_DISCONNECTED\n"), ("sleep", "")] {
        let port = free_port();
        let Some(server) = started(&[&program, PORT, "serve"], Meets::Soft, port) else { return };
        let client = Side::start(with_port(&[&program, PORT, mode], port).unwrap());
        client.wait_for(|| talks(client.id()));
        server.stop();
        server.end();
        let failed = "send transport retry counter exceeded\nreceive Work Request Flushed Error\n";
        let said = format!("send success\nreceive success\n{failed}{event}");
        assert_eq!(client.end().success(), said, "{mode}");
    }
}
