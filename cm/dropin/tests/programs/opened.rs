//! Programs that are not linked to the libraries: they open them by `dlopen`, and find functions by
//! `dlvsym` or `dlsym`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pairs::{run, turn};
use crate::side::{Side, built, command, library};

/// What programs of this file have in common.
const START: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#define CHECK(x) do { if (x) { printf("line %d: %s: %m\n", __LINE__, #x); exit(1); } } while (0)
#define FAIL(text) do { printf("%s\n", text); exit(1); } while (0)
static const char *file_of(void *function) {
    Dl_info info;
    return dladdr(function, &info) ? strrchr(info.dli_fname, '/') + 1 : "none";
}
"#;

/// Opens a library as NCCL does, and sends a message between two queue pairs: `verbs FILE`.
const VERBS: &str = r#"
#define EACH(F) F(ibv_get_device_list, "1.1") F(ibv_free_device_list, "1.1") \
    F(ibv_get_device_name, "1.1") F(ibv_open_device, "1.1") F(ibv_close_device, "1.1") \
    F(ibv_get_async_event, "1.1") F(ibv_ack_async_event, "1.1") F(ibv_query_device, "1.1") \
    F(ibv_query_port, "1.1") F(ibv_query_gid, "1.1") F(ibv_query_qp, "1.1") \
    F(ibv_alloc_pd, "1.1") F(ibv_dealloc_pd, "1.1") F(ibv_reg_mr, "1.1") \
    F(ibv_reg_mr_iova2, "1.8") F(ibv_reg_dmabuf_mr, "1.12") F(ibv_dereg_mr, "1.1") \
    F(ibv_create_cq, "1.1") F(ibv_destroy_cq, "1.1") F(ibv_create_qp, "1.1") \
    F(ibv_modify_qp, "1.1") F(ibv_destroy_qp, "1.1") F(ibv_fork_init, "1.1") \
    F(ibv_event_type_str, "1.1")
#define HOLD(name, version) static __typeof__(name) *p_##name;
EACH(HOLD)
static union ibv_gid gid;
static void ready(struct ibv_qp *qp, struct ibv_qp *peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(p_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                     IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = peer->qp_num;
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
    attr.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh.dgid = gid};
    CHECK(p_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
        IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}
static void sends(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .max_rd_atomic = 1};
    struct ibv_qp_init_attr init;
    CHECK(p_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
    CHECK(p_ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) || attr.qp_state != IBV_QPS_RTS);
}
static void talk(struct ibv_context *context) {
    static char out[64] = "a message", in[64];
    struct ibv_pd *pd = p_ibv_alloc_pd(context);
    struct ibv_cq *cq = p_ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {2, 2, 1, 1, 0},
                                    .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_qp *from = p_ibv_create_qp(pd, &init), *to = p_ibv_create_qp(pd, &init);
    struct ibv_mr *out_mr = p_ibv_reg_mr(pd, out, sizeof out, 0), *in_mr;
    in_mr = p_ibv_reg_mr_iova2(pd, in, sizeof in, (uintptr_t)in, IBV_ACCESS_LOCAL_WRITE);
    CHECK(!from || !to || !out_mr || !in_mr);
    CHECK(p_ibv_reg_dmabuf_mr(pd, 0, sizeof in, 0, 1, 0));
    ready(from, to), ready(to, from), sends(from), sends(to);
    struct ibv_sge take = {(uintptr_t)in, sizeof in, in_mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &take, .num_sge = 1}, *bad_receive;
    CHECK(ibv_post_recv(to, &receive, &bad_receive));
    struct ibv_sge give = {(uintptr_t)out, sizeof out, out_mr->lkey};
    struct ibv_send_wr send = {.wr_id = 2, .sg_list = &give, .num_sge = 1}, *bad_send;
    send.opcode = IBV_WR_SEND;
    CHECK(ibv_post_send(from, &send, &bad_send));
    for (int done = 0; done < 2;) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq, 1, &wc);
        CHECK(polled < 0 || (polled && wc.status));
        done += polled;
    }
    printf("arrived: %s\n", in);
    CHECK(p_ibv_destroy_qp(from) || p_ibv_destroy_qp(to) || p_ibv_destroy_cq(cq));
    CHECK(p_ibv_dereg_mr(out_mr) || p_ibv_dereg_mr(in_mr) || p_ibv_dealloc_pd(pd));
}
int main(int argc, char **argv) {
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!handle) FAIL(dlerror());
#ifdef LINKED
#define FIND(name, version) p_##name = name;
#else
#define FIND(name, version) \
    if (!(p_##name = dlvsym(handle, #name, "IBVERBS_" version))) FAIL(dlerror());
#endif
    EACH(FIND)
    printf("found in %s\n", file_of(p_ibv_get_device_list));
    /* Programs for rxe0 end here: there need not be any device. */
    if (argc > 2)
        return 0;
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    CHECK(p_ibv_fork_init());
    struct ibv_device **list = p_ibv_get_device_list(NULL);
    printf("device %s\n", p_ibv_get_device_name(list[0]));
    struct ibv_context *context = p_ibv_open_device(list[0]);
    CHECK(!context || p_ibv_query_device(context, &attr) || !attr.max_qp);
    CHECK(p_ibv_query_port(context, 1, (void *)&port) || port.state != IBV_PORT_ACTIVE);
    CHECK(p_ibv_query_gid(context, 1, 0, &gid));
    talk(context);
    p_ibv_free_device_list(list);
    CHECK(p_ibv_close_device(context));
    printf("event 9: %s\n", p_ibv_event_type_str(9));
    CHECK(dlclose(handle));
    return 0;
}
"#;

/// The names that programs ask for, a path among them.
const FILES: [&str; 4] = [
    "libibverbs.so.1",
    "libibverbs.so",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/nowhere/libibverbs.so.1",
];

#[test]
fn a_program_that_opens_libibverbs_sends_a_message() {
    let Some(program) = built("opens-verbs", &format!("{START}{VERBS}"), &[]) else { return };
    for file in FILES {
        let Some(text) = run(&[program.to_str().unwrap(), file]) else { return };
        let found = "found in libdoorbell_dropin.so\ndevice soft0\narrived: a message\n";
        assert_eq!(text, format!("{found}event 9: port active\n"), "{file}");
    }
}

/// `doorbell run` changes nothing there.
#[test]
fn with_another_device_programs_open_the_real_library() {
    let Some(program) = built("opens-real", &format!("{START}{VERBS}"), &[]) else { return };
    let args = [program.to_str().unwrap(), "libibverbs.so.1", "only look"];
    let Some(mut command) = command(&args) else { return };
    let _turn = turn();
    let end = Side::start({
        command.env("DOORBELL_DEVICE", "rxe0").env_remove("LD_PRELOAD");
        command
    })
    .end();
    assert!(end.success().contains("found in libibverbs.so.1"));
}

/// Hides the files of the real libraries from a command that follows; ends with 77 if it cannot.
const HIDE: &str = "\
for file in /lib/*/libibverbs.so.1 /lib/*/librdmacm.so.1; do
    mount --bind /dev/null $(readlink -f $file) || exit 77
done
exec \"$@\"";

/// A command without the real libraries.
fn hidden() -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", HIDE, "sh"]);
    command
}

/// False: this system does not let a test hide files, which is said.
fn can_hide() -> bool {
    let can = |mut command: Command| command.output().is_ok_and(|done| done.status.success());
    let mut probe = Command::new("unshare");
    probe.args(["-rm", "true"]);
    let mut all = hidden();
    all.arg("true");
    let can = can(probe) && can(all);
    if !can {
        println!("skipped: the files of the libraries cannot be hidden (unshare -rm, mount)");
    }
    can
}

/// The same program, linked to the libraries or not.
fn opens_and_linked() -> Option<[PathBuf; 2]> {
    let links = ["-Wl,--no-as-needed", "-libverbs", "-lrdmacm"];
    Some([
        built("opens-none", &format!("{START}{VERBS}"), &[])?,
        built("linked", &format!("#define LINKED\n{START}{VERBS}"), &links)?,
    ])
}

/// `doorbell run -- PROGRAM libibverbs.so.1` without the real libraries.
fn hidden_run(program: &Path, environment: &[(&str, &Path)]) -> String {
    let over = command(&[program.to_str().unwrap(), "libibverbs.so.1"]).unwrap();
    let _turn = turn();
    let mut all = hidden();
    all.arg(over.get_program()).args(over.get_args()).env_remove("XDG_RUNTIME_DIR");
    all.envs(over.get_envs().map(|(name, value)| (name, value.unwrap())));
    all.envs(environment.iter().copied());
    Side::start(all).end().success()
}

const WITHOUT: &str = "found in libdoorbell_dropin.so\ndevice soft0\narrived: a message\n";

/// The libraries are not installed: their files are hidden.
#[test]
fn programs_run_without_the_real_libraries() {
    let Some(programs) = opens_and_linked().filter(|_| can_hide()) else { return };
    for program in &programs {
        let bare = hidden().arg(program).arg("libibverbs.so.1").output().unwrap();
        // The loader says so on standard error, `dlerror` on standard output.
        let said = [&bare.stdout[..], &bare.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!bare.status.success(), "the libraries are not hidden: {bare:?}");
        assert!(said.contains(": file too short"), "the loader has found them: {bare:?}");
        let text = hidden_run(program, &[]);
        assert!(text.contains(WITHOUT) && !text.contains("warning: not installed"), "{text}");
    }
}

/// Calls a function that needs the real library.
const SOCKET: &str = r#"
int main(void) {
    int (*open)(int, int, int) = dlsym(RTLD_DEFAULT, "rsocket");
    CHECK(!open || open(AF_INET, SOCK_STREAM, 0) != -1 || errno != EOPNOTSUPP);
    const char *left = dlerror();
    if (left) FAIL(left);
    printf("nothing is left\n");
    return 0;
}
"#;

/// A file lies in the place of the folder that gives the drop-in the names of the real libraries.
#[test]
fn without_room_beside_the_library_another_folder_or_none_is_used() {
    let Some([opens, linked]) = opens_and_linked().filter(|_| can_hide()) else { return };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no-room");
    let runtime = folder.join("runtime");
    fs::create_dir_all(&runtime).unwrap();
    fs::write(folder.join("doorbell-stand-in"), "").unwrap();
    let copy = folder.join("libdoorbell_dropin.so");
    let _ = fs::remove_file(&copy);
    fs::copy(library(), &copy).unwrap();
    let text = hidden_run(&opens, &[("DOORBELL_DROPIN", &copy)]);
    let warning = "warning: not installed: libibverbs.so.1, librdmacm.so.1";
    assert!(text.contains(WITHOUT) && text.contains(warning), "{text}");
    let socket = built("socket-none", &format!("{START}{SOCKET}"), &[]).unwrap();
    let text = hidden_run(&socket, &[("DOORBELL_DROPIN", &copy)]);
    assert!(text.contains("nothing is left"), "{text}");
    let text = hidden_run(&linked, &[("DOORBELL_DROPIN", &copy), ("XDG_RUNTIME_DIR", &runtime)]);
    assert!(text.contains(WITHOUT) && !text.contains(warning), "{text}");
}

/// A shell may still have the folders of an earlier `doorbell env`.
#[test]
fn a_library_that_is_installed_later_is_not_hidden() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("stale");
    let stale = folder.join("doorbell-stand-in/libibverbs.so.1");
    fs::create_dir_all(&stale).unwrap();
    let link = stale.join("libibverbs.so.1");
    let _ = fs::remove_file(&link);
    symlink(library(), link).unwrap();
    let Some(mut command) = command(&["sh", "-c", "echo path $LD_LIBRARY_PATH"]) else { return };
    command.env(
        "LD_LIBRARY_PATH",
        std::env::join_paths([stale.as_path(), Path::new("/one")]).unwrap(),
    );
    let text = Side::start(command).end().success();
    assert!(text.contains("path ") && text.contains("/one\n") && !text.contains("stale"), "{text}");
}

/// With another device, `doorbell run` removes the folders of stand-ins from the search path.
#[test]
fn with_another_device_the_real_libraries_come_first() {
    let Some(mut command) = command(&["sh", "-c", "echo $LD_LIBRARY_PATH"]) else { return };
    let paths = "/a/doorbell-stand-in:/one:/b/doorbell-stand-in/:/two";
    command.env("DOORBELL_DEVICE", "rxe0").env("LD_LIBRARY_PATH", paths);
    let text = Side::start(command).end().success();
    assert!(text.ends_with("\n/one:/two\n") || text.starts_with("/one:/two\n"), "{text}");
}

/// Connects two ids of one process, and sends a message, by functions from `dlsym`. Then opens a
/// socket of librdmacm.
const MANAGER: &str = r#"
#define EACH(F) F(rdma_create_event_channel) F(rdma_create_id) F(rdma_bind_addr) F(rdma_listen) \
    F(rdma_get_src_port) F(rdma_resolve_addr) F(rdma_resolve_route) F(rdma_create_qp) \
    F(rdma_connect) F(rdma_accept) F(rdma_get_cm_event) F(rdma_ack_cm_event) F(rdma_event_str) \
    F(rdma_disconnect) F(rdma_destroy_qp) F(rdma_destroy_id) F(rdma_destroy_event_channel) \
    F(rsocket) F(rbind) F(rlisten) F(rgetsockname) F(rfcntl) F(rclose)
#define HOLD(name) static __typeof__(name) *p_##name;
EACH(HOLD)
static struct rdma_event_channel *channel;
/* Waits for an event of a kind; returns its id. */
static struct rdma_cm_id *wait_for(int kind) {
    struct rdma_cm_event *event;
    CHECK(p_rdma_get_cm_event(channel, &event));
    if (event->event != kind) FAIL(p_rdma_event_str(event->event));
    struct rdma_cm_id *id = event->id;
    CHECK(p_rdma_ack_cm_event(event));
    return id;
}
static void queue_pair(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr init = {.cap = {2, 2, 1, 1, 16}, .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};
    CHECK(p_rdma_create_qp(id, NULL, &init));
}
static void finish(struct ibv_cq *cq) {
    struct ibv_wc wc;
    int polled;
    while (!(polled = ibv_poll_cq(cq, 1, &wc))) {}
    CHECK(polled < 0 || wc.status);
}
static void connects(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *listener, *client, *server;
    CHECK(!(channel = p_rdma_create_event_channel()));
    CHECK(p_rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
    CHECK(p_rdma_bind_addr(listener, (void *)&here) || p_rdma_listen(listener, 1));
    here.sin_port = p_rdma_get_src_port(listener);
    CHECK(p_rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
    CHECK(p_rdma_resolve_addr(client, NULL, (void *)&here, 2000));
    wait_for(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(p_rdma_resolve_route(client, 2000));
    wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED);
    queue_pair(client);
    CHECK(p_rdma_connect(client, &param));
    server = wait_for(RDMA_CM_EVENT_CONNECT_REQUEST);
    queue_pair(server);
    static char in[16];
    struct ibv_mr *mr = ibv_reg_mr(server->pd, in, sizeof in, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_sge take = {(uintptr_t)in, sizeof in, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &take, .num_sge = 1}, *bad_receive;
    CHECK(ibv_post_recv(server->qp, &receive, &bad_receive));
    CHECK(p_rdma_accept(server, &param));
    wait_for(RDMA_CM_EVENT_ESTABLISHED), wait_for(RDMA_CM_EVENT_ESTABLISHED);
    struct ibv_sge give = {(uintptr_t)"a message", 10, 0};
    struct ibv_send_wr send = {.sg_list = &give, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    send.send_flags = IBV_SEND_INLINE;
    CHECK(ibv_post_send(client->qp, &send, &bad_send));
    finish(server->recv_cq), finish(client->send_cq);
    printf("arrived: %s\n", in);
    CHECK(p_rdma_disconnect(client));
    wait_for(RDMA_CM_EVENT_DISCONNECTED), wait_for(RDMA_CM_EVENT_DISCONNECTED);
    CHECK(ibv_dereg_mr(mr));
    p_rdma_destroy_qp(client), p_rdma_destroy_qp(server);
    CHECK(p_rdma_destroy_id(client) || p_rdma_destroy_id(server) || p_rdma_destroy_id(listener));
    p_rdma_destroy_event_channel(channel);
}
static void socket_listens(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof here;
    int fd = p_rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd < 0 || p_rbind(fd, (void *)&here, sizeof here) || p_rlisten(fd, 1));
    CHECK(p_rgetsockname(fd, (void *)&here, &length) || !here.sin_port);
    /* It has a variable number of arguments. */
    CHECK(p_rfcntl(fd, F_SETFL, O_NONBLOCK) || p_rfcntl(fd, F_GETFL) != O_NONBLOCK);
    CHECK(p_rclose(fd));
    printf("a socket listens\n");
}
int main(void) {
    void *handle = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) FAIL(dlerror());
#define FIND(name) if (!(p_##name = dlsym(handle, #name))) FAIL(dlerror());
    EACH(FIND)
    printf("found in %s\n", file_of(p_rdma_create_id));
    connects();
    socket_listens();
    return dlclose(handle);
}
"#;

#[test]
fn a_program_that_opens_librdmacm_connects() {
    // `ibv_reg_mr` and `ibv_dereg_mr` of the header.
    let links = ["-libverbs"];
    let source = format!("{START}#include <fcntl.h>\n{MANAGER}");
    let Some(program) = built("opens-manager", &source, &links) else { return };
    let Some(text) = run(&[program.to_str().unwrap()]) else { return };
    let found = "found in libdoorbell_dropin.so\narrived: a message\na socket listens\n";
    assert_eq!(text, found);
}

/// Ways to find a function, and in which file each finds it.
const WAYS: &str = r#"
#define SHOW(what, found) do { \
    void *function = found; \
    printf("%s: %s\n", what, function ? file_of(function) : "none"); \
} while (0)
int main(void) {
    const char *file = "libibverbs.so.1", *name = "ibv_get_device_list", *version = "IBVERBS_1.1";
    void *first = dlopen(file, RTLD_LAZY | RTLD_NOLOAD), *handle = dlopen(file, RTLD_NOW);
    void *apart = dlmopen(LM_ID_NEWLM, file, RTLD_NOW), *all = dlopen(NULL, RTLD_NOW);
    printf("%s\n", first && first == handle ? "one handle" : "two handles");
    printf("%s\n", dlopen(file, 0) ? "flags do not matter" : "flags are checked");
    SHOW("dlsym", dlsym(handle, name));
    SHOW("dlvsym", dlvsym(handle, name, version));
    SHOW("a private version", dlvsym(handle, "ibv_cmd_alloc_pd", "IBVERBS_PRIVATE_34"));
    SHOW("a name that is not there", dlvsym(handle, "ibv_none", version));
    printf("%s\n", strstr(dlerror(), "ibv_none") ? "dlerror names it" : "dlerror is silent");
    SHOW("the program", dlvsym(all, name, version));
    SHOW("the default", dlvsym(RTLD_DEFAULT, name, version));
    SHOW("apart", dlvsym(apart, name, version));
    SHOW("another library", dlvsym(RTLD_DEFAULT, "__libc_start_main", "GLIBC_2.34"));
    CHECK(dlclose(first) || dlclose(handle));
    SHOW("closed", dlsym(RTLD_DEFAULT, name));
    const char *(*path)(const char *, const char *, char *, size_t);
    path = dlsym(RTLD_DEFAULT, "ibv_read_sysfs_file");
    char text[64] = "";
    path("/proc/self", "comm", text, sizeof text);
    printf("this is %s\n", text);
    return 0;
}
"#;

#[test]
fn each_way_to_find_a_function_finds_the_right_one() {
    let Some(program) = built("finds", &format!("{START}{WAYS}"), &[]) else { return };
    let Some(text) = run(&[program.to_str().unwrap()]) else { return };
    let wanted = "\
one handle
flags are checked
dlsym: libdoorbell_dropin.so
dlvsym: libdoorbell_dropin.so
a private version: none
a name that is not there: none
dlerror names it
the program: libdoorbell_dropin.so
the default: libdoorbell_dropin.so
apart: libibverbs.so.1
another library: libc.so.6
closed: libdoorbell_dropin.so
this is finds
";
    assert_eq!(text, wanted);
}

/// A library that opens another one beside itself, by its name alone. Its RUNPATH says where.
const CALLER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
void open_it(void) {
    void *handle = dlopen("libdoorbell-beside.so", RTLD_NOW);
    const char *(*says)(void) = handle ? dlsym(handle, "says") : 0;
    printf("%s\n", says ? says() : dlerror());
}
"#;

/// The C library tells by the return address which library has called.
#[test]
fn the_caller_of_dlopen_has_its_own_search_path() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("beside");
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let beside = r#"const char *says(void) { return "found beside"; }"#;
    let shared = ["-shared", "-fPIC"];
    let caller = ["-Wl,--enable-new-dtags,-rpath,$ORIGIN"];
    if built("beside/libdoorbell-beside.so", beside, &shared).is_none() {
        return;
    }
    built("beside/libcaller.so", CALLER, &[&shared[..], &caller].concat()).unwrap();
    let main = "void open_it(void);\nint main(void) { open_it(); return 0; }\n";
    let (here, path) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    // The program's own path does not count for what a library opens, but it finds the library.
    let links = [here.as_str(), "-lcaller", "-Wl,--enable-new-dtags", &path];
    let program = built("beside-main", main, &links).unwrap();
    let Some(text) = run(&[program.to_str().unwrap()]) else { return };
    assert_eq!(text, "found beside\n");
}

/// The names of a library's functions for programs, in the versions that a linker takes.
fn functions(file: &Path) -> Option<Vec<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(file).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| {
        let (name, version) = line.split(' ').nth(2)?.split_once("@@")?;
        let is_public = !version.contains("PRIVATE") && name != version;
        is_public.then(|| name.to_owned())
    });
    Some(names.collect())
}

/// Without a function of the real library, programs that open it would not find it.
#[test]
fn the_library_has_each_function_of_the_real_ones() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let own = String::from_utf8(output.unwrap().stdout).unwrap();
    for (name, least) in [("libibverbs.so.1", 70), ("librdmacm.so.1", 60)] {
        let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
        let mut files =
            folders.map(|folder| Path::new("/usr/lib").join(folder).join(name)).into_iter();
        let Some(file) = files.find(|file| file.exists()) else {
            println!("skipped: {name} is not installed");
            return;
        };
        let all = functions(&file).unwrap();
        assert!(all.len() > least, "{all:?}");
        let is_missing =
            |name: &&String| !own.lines().any(|line| line.ends_with(&format!(" {name}")));
        let missing: Vec<_> = all.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

/// Asks both libraries for all texts and rates, and prints a line for each that differs.
const ANSWERS: &str = r#"
static void *real, *own;
static int known;
static void *both(const char *name, void **theirs) {
    void *ours = dlsym(own, name);
    *theirs = dlsym(real, name);
    if (!ours || !*theirs) FAIL(name);
    return ours;
}
static void texts(const char *name, const char *unknown) {
    const char *(*theirs)(int), *(*ours)(int) = both(name, (void **)&theirs);
    for (int n = -3; n < 300; n++) {
        const char *a = theirs(n), *b = ours(n);
        known += strcmp(b, unknown) != 0;
        /* A newer library may know more. */
        if (strcmp(a, b) && strcmp(b, unknown)) printf("%s %d: %s, not %s\n", name, n, b, a);
    }
}
static void numbers(const char *name, int unknown, int least, int most) {
    int (*theirs)(int), (*ours)(int) = both(name, (void **)&theirs);
    for (int n = least; n < most; n++) {
        int a = theirs(n), b = ours(n);
        known += b != unknown;
        if (a != b && b != unknown) printf("%s %d: %d, not %d\n", name, n, b, a);
    }
}
static void files(void) {
    typedef int read_file(const char *, const char *, char *, size_t);
    static const char *names[] = {"self/comm", "self/wchan", "self/cmdline", "none", "", "/version",
                                  "../dev/null"};
    read_file *theirs, *ours = both("ibv_read_sysfs_file", (void **)&theirs);
    for (int n = 0; n < 7; n++) {
        for (int size = 0; size < 16; size++) {
            char a[17] = "----------------", b[17] = "----------------";
            int x = theirs("/proc", names[n], a, size), c = errno;
            int y = ours("/proc", names[n], b, size), d = errno;
            int differs = x != y || memcmp(a, b, sizeof a) || (n == 3 && c != d);
            if (differs) printf("%s %d: %d %s, not %d %s\n", names[n], size, y, b, x, a);
        }
    }
}
int main(int argc, char **argv) {
    own = dlopen(argv[1], RTLD_NOW);
    real = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!own || !real) FAIL(dlerror());
    texts("ibv_wc_status_str", "unknown");
    texts("ibv_event_type_str", "unknown");
    texts("ibv_node_type_str", "unknown");
    texts("ibv_port_state_str", "unknown");
    numbers("ibv_rate_to_mult", -1, -3, 300);
    numbers("ibv_rate_to_mbps", -1, -3, 300);
    numbers("mult_to_ibv_rate", 0, -3, 10000);
    numbers("mbps_to_ibv_rate", 0, -3, 3000000);
    char *(*theirs)(void), *(*ours)(void) = both("ibv_get_sysfs_path", (void **)&theirs);
    if (strcmp(theirs(), ours())) printf("sysfs: %s, not %s\n", ours(), theirs());
    files();
    real = dlopen("librdmacm.so.1", RTLD_NOW);
    if (!real) FAIL(dlerror());
    texts("rdma_event_str", "UNKNOWN EVENT");
    printf("%d known\n", known);
    return 0;
}
"#;

#[test]
fn texts_and_rates_are_those_of_the_real_libraries() {
    let Some(program) = built("answers", &format!("{START}{ANSWERS}"), &[]) else { return };
    // Not over the drop-in: it opens both.
    for path in [None, Some(""), Some("/"), Some("/a/folder//")] {
        let mut asked = Command::new(&program);
        asked.arg(library()).env_remove("LD_PRELOAD").env_remove("SYSFS_PATH");
        let output = asked.envs(path.map(|path| ("SYSFS_PATH", path))).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // All that rdma-core 44 knows.
        assert_eq!(text, "149 known\n", "{path:?}");
    }
}
