//! What a thread of a program does to another one that awaits or handles events, as over the
//! libraries of rdma-core.

use crate::pairs::{HERE, Meets, PORT, free_port, run, started, turn, with_port};
use crate::side::{CONNECTS, Side, built, library};

/// `threads acks`, `channel`, `cancel` or `path`.
const THREADS: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
static struct rdma_event_channel *channel;
static struct rdma_cm_event *event;
static struct ibv_comp_channel *completions;
static struct ibv_context *context;
static volatile int acknowledged, answered, number;
static sem_t has;
static struct rdma_cm_id *resolved(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(1)};
    struct rdma_cm_id *id;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
    return id;
}
static void next(void) {
    CHECK(rdma_get_cm_event(channel, &event));
    printf("%s\n", rdma_event_str(event->event));
    CHECK(rdma_ack_cm_event(event));
}
static void *handle(void *none) {
    struct rdma_cm_event *own;
    CHECK(rdma_get_cm_event(channel, &own));
    sem_post(&has);
    usleep(100000);
    acknowledged = own->id->ps == RDMA_PS_TCP;
    CHECK(rdma_ack_cm_event(own));
    return none;
}
static void acks(void) {
    for (int migrates = 0; migrates < 2; migrates++) {
        pthread_t thread;
        struct rdma_cm_id *id = resolved();
        acknowledged = 0;
        CHECK(pthread_create(&thread, NULL, handle, NULL));
        sem_wait(&has);
        CHECK(migrates ? rdma_migrate_id(id, rdma_create_event_channel()) : rdma_destroy_id(id));
        printf("acknowledged %d\n", acknowledged);
        CHECK(pthread_join(thread, NULL));
    }
}
static void *get(void *of) {
    struct rdma_cm_event *own;
    number = gettid();
    if (rdma_get_cm_event(of, &own))
        answered++;
    else
        CHECK(rdma_ack_cm_event(own));
    return NULL;
}
/* Waits until that thread sleeps. */
static void sleeps(void) {
    char name[64], text[64] = "";
    while (!number)
        usleep(100);
    while (!strstr(text, ") S")) {
        usleep(100);
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", number);
        FILE *file = fopen(name, "r");
        if (file)
            text[fread(text, 1, sizeof text - 1, file)] = 0, fclose(file);
    }
}
static pthread_t waits(void) {
    pthread_t thread;
    number = 0;
    CHECK(pthread_create(&thread, NULL, get, channel));
    sleeps();
    return thread;
}
static void destroyed(void) {
    struct rdma_cm_id *id;
    pthread_t thread;
    int answer;
    /* An event wakes the thread, and may be gone with its id and channel when it looks. */
    for (int n = 0; n < 100; n++) {
        CHECK(!(channel = rdma_create_event_channel()));
        thread = waits();
        CHECK(rdma_destroy_id(resolved()));
        rdma_destroy_event_channel(channel);
        usleep(1000);
        pthread_cancel(thread);
        CHECK(pthread_join(thread, NULL));
    }
    CHECK(!(channel = rdma_create_event_channel()));
    waits();
    rdma_destroy_event_channel(channel);
    /* It may lie where the other was, and has events that are not for that thread. */
    CHECK(!(channel = rdma_create_event_channel()));
    id = resolved();
    usleep(1500000);
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    next();
    printf("%d errors\n", answered);
    CHECK(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
    answer = rdma_get_cm_event(channel, &event);
    printf("%d %s\n", answer, strerror(errno));
}
static void *await_event(void *none) {
    rdma_get_cm_event(channel, &event);
    return none;
}
static void *await_completion(void *none) {
    struct ibv_cq *cq;
    ibv_get_cq_event(completions, &cq, &none);
    return none;
}
static void *await_async(void *none) {
    struct ibv_async_event async;
    ibv_get_async_event(context, &async);
    return none;
}
static void *calls(void *none) {
    struct rdma_cm_id *id;
    CHECK(pthread_cancel(pthread_self()));
    id = resolved();
    CHECK(rdma_destroy_id(id));
    printf("a cancelled thread calls\n");
    pthread_testcancel();
    return none;
}
static void cancelled(void) {
    void *(*threads[])(void *) = {await_event, await_completion, await_async, calls};
    struct rdma_cm_id *id = resolved();
    next();
    context = id->verbs;
    CHECK(!(completions = ibv_create_comp_channel(context)));
    for (int n = 0; n < 8; n++) {
        pthread_t thread;
        void *how = NULL;
        CHECK(pthread_create(&thread, NULL, threads[n / 2], NULL));
        /* When it waits, and, most often, before. */
        usleep(n % 2 * 100000);
        pthread_cancel(thread);
        CHECK(pthread_join(thread, &how));
        printf("%s\n", how == PTHREAD_CANCELED ? "cancelled" : "returned");
    }
    resolved();
    next();
}
/* A message of a queue pair to itself; its completion rings a channel that is asked. */
static struct ibv_qp *qp;
static struct ibv_mr *region;
static struct ibv_ah *address;
static char bytes[64] = "hello";
static void message(int cancels) {
    struct ibv_sge piece = {(uintptr_t)bytes, 8, region->lkey};
    struct ibv_sge room = {(uintptr_t)bytes, sizeof bytes, region->lkey};
    struct ibv_recv_wr receive = {.sg_list = &room, .num_sge = 1}, *late;
    struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_wc done[2];
    int count = 0;
    send.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_req_notify_cq(qp->recv_cq, 0));
    if (qp->qp_type == IBV_QPT_UD) {
        send.wr.ud.ah = address;
        send.wr.ud.remote_qpn = qp->qp_num;
    }
    CHECK(cancels && pthread_cancel(pthread_self()));
    CHECK(ibv_post_recv(qp, &receive, &late));
    CHECK(ibv_post_send(qp, &send, &bad));
    while (count < 2)
        count += ibv_poll_cq(qp->send_cq, 2 - count, done + count);
    number = count;
}
static void *posts(void *none) {
    message(1);
    pthread_testcancel();
    return none;
}
static void posted(int times) {
    void *how = NULL;
    for (int n = 0; n < times; n++) {
        pthread_t thread;
        number = 0;
        CHECK(pthread_create(&thread, NULL, posts, NULL));
        CHECK(pthread_join(thread, &how));
        CHECK(number != 2 || how != PTHREAD_CANCELED);
    }
}
/* As many events have come, and no more. */
static void told(int times) {
    struct pollfd ready = {completions->fd, POLLIN, 0};
    struct ibv_cq *cq;
    void *none;
    for (int n = 0; n < times; n++) {
        CHECK(poll(&ready, 1, 60000) != 1);
        CHECK(ibv_get_cq_event(completions, &cq, &none));
        ibv_ack_cq_events(cq, 1);
    }
    printf("%d more events\n", poll(&ready, 1, 100));
}
static void path(void) {
    struct rdma_cm_id *id = resolved();
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp_attr attr = {.port_num = 1};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    next();
    CHECK(!(pd = ibv_alloc_pd(id->verbs)));
    CHECK(!(completions = ibv_create_comp_channel(id->verbs)));
    CHECK(!(cq = ibv_create_cq(id->verbs, 16, NULL, completions, 0)));
    CHECK(!(region = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE)));
    init.send_cq = init.recv_cq = cq;
    CHECK(!(qp = ibv_create_qp(pd, &init)));
    connects(qp, qp, 0);
    posted(100);
    told(100);
    for (int n = 0; n < 100; n++)
        message(0);
    told(100);
    /* The first datagram to a queue pair opens files. */
    CHECK(ibv_query_gid(id->verbs, 1, 0, &to.grh.dgid));
    CHECK(!(address = ibv_create_ah(pd, &to)));
    init.qp_type = IBV_QPT_UD;
    CHECK(!(qp = ibv_create_qp(pd, &init)));
    attr.qp_state = IBV_QPS_INIT;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    posted(1);
    printf("a cancelled thread posts and polls\n");
}
int main(int argc, char **argv) {
    sem_init(&has, 0, 0);
    CHECK(!(channel = rdma_create_event_channel()));
    if (!strcmp(argv[1], "acks"))
        acks();
    else if (!strcmp(argv[1], "channel"))
        destroyed();
    else if (!strcmp(argv[1], "path"))
        path();
    else
        cancelled();
    return 0;
}
"#;

/// What the program prints in that mode.
fn threads(mode: &str) -> Option<String> {
    let source = [CONNECTS, THREADS].concat();
    let program = built(&format!("threads-{mode}"), &source, &["-lrdmacm", "-libverbs"])?;
    run(&[program.to_str().unwrap(), mode])
}

/// An id is there, and on its channel, as long as a thread handles an event of it.
#[test]
fn an_id_waits_for_the_acknowledgement_of_its_events() {
    let Some(text) = threads("acks") else { return };
    assert_eq!(text, "acknowledged 1\nacknowledged 1\n");
}

/// A thread that waits for an event of a channel goes on waiting when another destroys the channel.
/// A thread that asks later gets an error.
#[test]
fn a_channel_is_destroyed_while_a_thread_waits_for_its_events() {
    let Some(text) = threads("channel") else { return };
    assert_eq!(text, "RDMA_CM_EVENT_ADDR_RESOLVED\n0 errors\n-1 Bad file descriptor\n");
}

/// A thread that waits for an event ends when another cancels it, and takes nothing along. Other
/// calls it finishes first, which over rdma-core's own libraries it need not.
#[test]
fn a_thread_is_cancelled() {
    let Some(text) = threads("cancel") else { return };
    let (resolved, call) = ("RDMA_CM_EVENT_ADDR_RESOLVED\n", "a cancelled thread calls\n");
    let waits = "cancelled\n".repeat(6);
    let calls = format!("{call}cancelled\n").repeat(2);
    assert_eq!(text, format!("{resolved}{waits}{calls}{resolved}"));
}

/// A thread that is cancelled finishes its posts and polls, also those that ring a channel. Each
/// call of `ibv_req_notify_cq` brings its event, also if the program asks again before it looks.
#[test]
fn a_cancelled_thread_posts_and_polls() {
    let Some(text) = threads("path") else { return };
    let (resolved, events) = ("RDMA_CM_EVENT_ADDR_RESOLVED\n", "0 more events\n".repeat(2));
    assert_eq!(text, format!("{resolved}{events}a cancelled thread posts and polls\n"));
}

/// Stands between rping and the library. The thread that has got the last event asks for a further
/// one when the main thread has destroyed the channel, which then waits for that.
const LATE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
static volatile int ends, gone;
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
    int (*get)(struct rdma_event_channel *, struct rdma_cm_event **);
    get = dlsym(RTLD_NEXT, "rdma_get_cm_event");
    /* rping of rdma-core 59 waits for this thread before. */
    for (int n = 0; ends && !gone && n < 20000; n++)
        usleep(100);
    int answer = get(channel, event);
    ends = !answer && (*event)->event == RDMA_CM_EVENT_DISCONNECTED;
    return answer;
}
void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
    void (*destroy)(struct rdma_event_channel *);
    destroy = dlsym(RTLD_NEXT, "rdma_destroy_event_channel");
    destroy(channel);
    if (!ends)
        return;
    gone = 1;
    sleep(5);
}
"#;

/// What the tests of rping know as a success: the error with which it may end of itself.
#[test]
fn rping_asks_for_an_event_of_a_channel_that_it_has_destroyed() {
    let Some(late) = built("late.so", LATE, &["-shared", "-fPIC"]) else { return };
    let preload = format!("LD_PRELOAD={}:{}", late.display(), library().display());
    let _turn = turn();
    for more in [&[][..], &["-q"]] {
        let port = free_port();
        let server = [&["env", &preload, "rping", "-s", "-p", PORT, "-v"], more].concat();
        let Some(server) = started(&server, Meets::Soft, port) else { return };
        let client = [&["rping", "-c", "-a", HERE, "-p", PORT, "-C", "3"], more].concat();
        Side::start(with_port(&client, port).unwrap()).end().success();
        let text = server.end().success();
        assert!(text.contains("rdma-ping-2:"), "{more:?}: {text}");
    }
}
