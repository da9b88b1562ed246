//! UCX, libfabric, Open MPI, qperf and fio over the drop-in.

use std::path::PathBuf;
use std::process::Command;

use crate::pairs::{HERE, Meets, PORT, Sides, run};
use crate::side::{built, has, library};

const UCX: [&str; 3] = ["env", "UCX_NET_DEVICES=soft0:1", "UCX_WARN_UNUSED_ENV_VARS=n"];

#[test]
fn ucx_runs_over_rc_and_ud() {
    if !has("ucx_perftest") {
        return;
    }
    let runs: &[(&str, &str, &[&str])] = &[
        ("rc_v", "tag_lat", &[]),
        ("rc_v", "tag_bw", &[]),
        ("rc_v", "ucp_put_lat", &[]),
        ("ud_v", "tag_lat", &[]),
        // The program sleeps until an event comes.
        ("rc_v", "tag_lat", &["-E", "sleep"]),
        ("ud_v", "tag_bw", &["-E", "sleep"]),
        // By the device: UCP would do without.
        ("rc_v", "fadd", &["-x", "rc_verbs", "-d", "soft0:1"]),
        ("rc_v", "cswap", &["-x", "rc_verbs", "-d", "soft0:1"]),
    ];
    for (transport, test, more) in runs {
        let transport = format!("UCX_TLS={transport},self");
        let program = [&["ucx_perftest", "-p", PORT, "-t", test, "-n", "300"], *more].concat();
        let server = [&UCX[..], &[transport.as_str()], &program].concat();
        let client = [server.as_slice(), &[HERE]].concat();
        let sides = Sides::new(&server, &client, Meets::Tcp);
        let Some(text) = sides.run_client() else { continue };
        assert!(text.contains("Final:"), "{transport} {test}: {text}");
    }
}

/// What `fi_pingpong` prints of its last message, after its figures, if that is lost. With
/// endpoints of kind `rdm`, libfabric asks for completions, then for events. If the last completion
/// and the end of the connection come in between, it destroys the queue pair before it asks for
/// completions again. The completion goes with the queue pair, as with the drivers of many NICs.
const FLUSHED: &str = "cq_readerr: Work Request Flushed Error";

#[test]
fn libfabric_runs_over_each_kind_of_endpoint() {
    for kind in ["msg", "dgram", "rdm"] {
        let base = ["fi_pingpong", "-p", "verbs", "-e", kind, "-I", "20", "-S", "4096"];
        let server = [&base[..], &["-B", PORT]].concat();
        let client = [&base[..], &["-P", PORT, HERE]].concat();
        let sides = Sides::new(&server, &client, Meets::Tcp);
        let texts = if kind == "rdm" { sides.run_again_if(["\n4k", FLUSHED]) } else { sides.run() };
        let Some([_, text]) = texts else { continue };
        assert!(text.lines().any(|line| line.starts_with("4k")), "{kind}: {text}");
    }
}

/// It finds its peer by the connection manager (`-cm 1`): by number it knows no GID.
#[test]
fn qperf_runs() {
    let tests =
        ["rc_lat", "rc_bw", "rc_rdma_read_lat", "rc_rdma_write_poll_lat", "rc_fetch_add_mr"];
    let server = ["qperf", "-lp", PORT];
    let client = [&["qperf", HERE, "-lp", PORT, "-cm", "1", "-t", "1"][..], &tests].concat();
    let sides = Sides::new(&server, &client, Meets::Tcp).goes_on();
    let Some(text) = sides.run_client() else { return };
    let found = tests.iter().filter(|test| text.contains(&format!("{test}:"))).count();
    assert_eq!(found, tests.len(), "{text}");
}

/// Receives for all messages. fio forbids retries of a message that finds no receive. After such an
/// error it takes one failed completion for each event, and the others were in the queue before it
/// asked for an event. So it waits for ever, on a NIC too.
const DEEP: &str = "--iodepth=64";

/// Disk-like requests between two processes, checked.
#[test]
fn fio_runs() {
    let base = ["fio", "--ioengine=rdma", "--port=PORT", "--bs=16k", "--size=1m"];
    for verb in ["write", "read", "send"] {
        let verb = format!("--verb={verb}");
        let server = [&base[..], &[DEEP, "--name=server", "--rw=read"]].concat();
        let host = format!("--hostname={HERE}");
        let client = ["--iodepth=4", "--name=client", "--rw=write", &host, &verb];
        let client = [&base[..], &client].concat();
        let sides = Sides::new(&server, &client, Meets::Soft);
        let Some(text) = sides.run_client() else { continue };
        assert!(text.contains("issued rwts: total=0,64,0,0"), "{verb}: {text}");
    }
}

/// Has each connection retry for ever when a message finds no receive. `env` puts it before the
/// drop-in.
const RETRIES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#define FOR_EVER(function) int function(struct rdma_cm_id *id, struct rdma_conn_param *param) { \
    __typeof__(function) *next = dlsym(RTLD_NEXT, #function); \
    param->rnr_retry_count = 7; \
    return next(id, param); \
}
FOR_EVER(rdma_connect)
FOR_EVER(rdma_accept)
"#;

/// With retries, a client with more sends under way than its server has receives ends. So it is not
/// the drop-in that makes it wait without them. Its jobs are threads: a process would outlive a
/// test that fails.
#[test]
fn fio_ends_with_fewer_receives_than_messages_if_it_retries() {
    let Some(retries) = built("retries.so", RETRIES, &["-shared", "-fPIC"]) else { return };
    let preload = format!("LD_PRELOAD={}:{}", retries.display(), library().display());
    let base = ["env", &preload, "fio", "--thread", "--ioengine=rdma", "--port=PORT", "--bs=16k"];
    if !has("fio") {
        return;
    }
    let server = ["--size=16m", "--iodepth=1", "--name=server", "--rw=read"];
    let host = format!("--hostname={HERE}");
    let client =
        ["--size=16m", "--iodepth=64", "--name=client", "--rw=write", "--verb=send", &host];
    let (server, client) = ([&base[..], &server].concat(), [&base[..], &client].concat());
    let Some([server, client]) = Sides::new(&server, &client, Meets::Soft).run() else { return };
    assert!(server.contains("issued rwts: total=1024,0,0,0"), "{server}");
    assert!(client.contains("issued rwts: total=0,1024,0,0"), "{client}");
}

/// The server checks each block that arrives, by the checksum that the client has put into it.
#[test]
fn fio_verifies_what_arrives() {
    let base = ["fio", "--ioengine=rdma", "--port=PORT", "--bs=16k", "--size=1m"];
    let check = "--verify=crc32c";
    let server = [&base[..], &[DEEP, "--name=server", "--rw=read", check]].concat();
    let host = format!("--hostname={HERE}");
    // A client cannot read back what it has sent.
    let check = ["--verb=send", check, "--do_verify=0"];
    let write = ["--iodepth=4", "--name=client", "--rw=write", &host];
    let sides = Sides::new(&server, &[&base[..], &write, &check].concat(), Meets::Soft);
    let Some([text, _]) = sides.run() else { return };
    assert!(text.contains("issued rwts: total=64,0,0,0"), "{text}");
}

/// Sums over all ranks, and a ring of messages of all lengths, whose bytes are checked. Debian's
/// package has no header, so the program declares what it calls.
const RANKS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern char ompi_mpi_comm_world[], ompi_mpi_int[], ompi_mpi_op_sum[], ompi_mpi_char[];
int MPI_Init(int *, char ***);
int MPI_Finalize(void);
int MPI_Comm_rank(void *, int *);
int MPI_Comm_size(void *, int *);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int MPI_Sendrecv(const void *, int, void *, int, int, void *, int, void *, int, int, void *,
                 void *);
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    void *world = ompi_mpi_comm_world;
    int rank, size, most = 1 << 20;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    char *out = malloc(most), *in = malloc(most);
    for (int turn = 0; turn < 30; turn++) {
        int mine = rank + turn, sum = 0;
        MPI_Allreduce(&mine, &sum, 1, ompi_mpi_int, ompi_mpi_op_sum, world);
        if (sum != size * (size - 1) / 2 + size * turn) return 1;
        int length = most >> (turn % 15), to = (rank + 1) % size, from = (rank + size - 1) % size;
        memset(out, rank * 7 + turn, length);
        MPI_Sendrecv(out, length, ompi_mpi_char, to, 5, in, length, ompi_mpi_char, from, 5,
                     world, 0);
        for (int at = 0; at < length; at++)
            if (in[at] != (char)(from * 7 + turn)) return 2;
    }
    printf("rank %d is fine\n", rank);
    return MPI_Finalize();
}
"#;

#[test]
fn ranks_of_open_mpi_talk_over_ucx() {
    if !has("mpirun") {
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join("ranks.c"), folder.join("ranks"));
    std::fs::write(&source, RANKS).unwrap();
    let built =
        Command::new("cc").arg(&source).arg("-o").arg(&program).arg("-l:libmpi.so.40").output();
    let built = built.unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // Each rank connects a queue pair to itself over `rc_v`.
    let runs = [("rc_v", "2"), ("rc_v,self", "4"), ("ud_v,self", "2"), ("ud_v,self", "4")];
    for (transports, ranks) in runs {
        let transports = format!("UCX_TLS={transports}");
        let start = [transports.as_str(), "mpirun", "--allow-run-as-root", "--oversubscribe"];
        let how = ["--mca", "pml", "ucx", "-np", ranks, program.to_str().unwrap()];
        let args = [&UCX[..], &start, &how].concat();
        let Some(text) = run(&args) else { return };
        assert_eq!(text.matches("is fine").count().to_string(), ranks, "{text}");
    }
}
