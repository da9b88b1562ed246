//! Programs that put functions of their own in the place of those of the C library.

use crate::pairs::run;
use crate::side::{CONNECTS, built};

/// libfabric writes jumps over the first instructions of `munmap` and its like, after it has opened
/// the device. In this program threads begin late. It opens the device, and looks what
/// memory is mapped then and later. It maps none itself.
const MAPS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
static void *(*begin)(void *);
static void *late(void *with) {
    usleep(20000);
    return begin(with);
}
/* The library calls this one, once. */
int pthread_create(pthread_t *to, const pthread_attr_t *how, void *(*start)(void *), void *with) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    create = dlsym(RTLD_NEXT, "pthread_create");
    begin = start;
    return create(to, how, late, with);
}
static char maps[2][1 << 18];
static void look(char *to) {
    int file = open("/proc/self/maps", O_RDONLY), more;
    for (size_t at = 0; (more = read(file, to + at, sizeof maps[0] - 1 - at)) > 0; at += more)
        ;
    close(file);
}
int main(void) {
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(NULL));
    look(maps[0]);
    if (!context || !begin)
        return 1;
    usleep(200000);
    look(maps[1]);
    printf("%s\n", strcmp(maps[0], maps[1]) ? "the thread maps memory" : "nothing has changed");
    return 0;
}
"#;

/// The thread has what it needs when the device is there. It would crash if it were in `munmap`
/// while libfabric writes there.
#[test]
fn the_thread_maps_nothing_once_the_device_is_there() {
    let Some(program) = built("maps", MAPS, &["-libverbs", "-rdynamic"]) else { return };
    let Some(text) = run(&[program.to_str().unwrap()]) else { return };
    assert_eq!(text, "nothing has changed\n");
}

/// While a poll that has found nothing lets others have the core, a message arrives. That poll
/// returns it: the program may have other news by then, and take the message for lost.
const YIELDS: &str = r#"
static struct ibv_qp *qp;
static struct ibv_mr *region;
static char bytes[64] = "hello";
static __thread int waits;
/* The library calls this one. */
int sched_yield(void) {
    struct ibv_sge piece = {(uintptr_t)bytes, 8, region ? region->lkey : 0};
    struct ibv_send_wr send = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    if (waits) {
        waits = 0;
        CHECK(ibv_post_send(qp, &send, &bad));
    }
    return 0;
}
int main(int argc, char **argv) {
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(NULL));
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq_init_attr_ex how = {.cqe = 16};
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &how);
    struct ibv_poll_cq_attr none = {0};
    struct ibv_wc done[4];
    struct ibv_sge room = {(uintptr_t)bytes, sizeof bytes, 0};
    struct ibv_recv_wr receive = {.sg_list = &room, .num_sge = 1}, *late;
    struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    int most = atoi(argv[1]), found = 0;
    CHECK(!context || !pd || !extended);
    CHECK(!(region = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE)));
    room.lkey = region->lkey;
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(extended);
    CHECK(!(qp = ibv_create_qp(pd, &init)));
    connects(qp, qp, 7);
    CHECK(ibv_post_recv(qp, &receive, &late));
    waits = 1;
    while (waits) {
        CHECK(found);
        if (most)
            found = ibv_poll_cq(ibv_cq_ex_to_cq(extended), most, done);
        else if ((found = !ibv_start_poll(extended, &none)))
            ibv_end_poll(extended);
    }
    printf("found %d\n", found);
    return 0;
}
"#;

#[test]
fn a_poll_looks_again_after_others_had_the_core() {
    let Some(program) = built("yields", &[CONNECTS, YIELDS].concat(), &["-libverbs", "-rdynamic"])
    else {
        return;
    };
    // One by one, several at once, and by the functions of an extended queue.
    for most in ["1", "4", "0"] {
        let Some(text) = run(&[program.to_str().unwrap(), most]) else { return };
        assert_eq!(text, "found 1\n", "at most {most}");
    }
}
