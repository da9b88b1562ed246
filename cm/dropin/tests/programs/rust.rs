//! One side in C over the drop-in, the other in Rust on the soft device: the process of this test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;

use doorbell::prelude::*;
use doorbell_examples::interop::{Plan, RdmaClient, RdmaServer, RpingClient, RpingServer};

use crate::pairs::{HERE, Meets, PORT, free_port, listens_on_soft, started, turn, with_port};
use crate::side::{Side, built};

/// Messages of an echo, and bytes of each.
const COUNT: usize = 200;
const LENGTH: usize = 300;

fn soft() -> SoftDevice {
    SoftDevice::open().unwrap()
}

fn addr(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Starts a server in C, runs that client, and returns what the server printed.
fn serve_in_c(server: &[&str], client: impl FnOnce(SocketAddr)) -> Option<String> {
    let _turn = turn();
    let port = free_port();
    let server = started(server, Meets::Soft, port)?;
    client(addr(port));
    Some(server.end().success())
}

/// Runs that server, and a client in C. Returns what the client printed.
fn visit_in_c(server: impl FnOnce(SocketAddr) + Send, client: &[&str]) -> Option<String> {
    let _turn = turn();
    let port = free_port();
    let client = with_port(client, port)?;
    thread::scope(|scope| {
        let server = scope.spawn(move || server(addr(port)));
        while !listens_on_soft(port) {
            assert!(!server.is_finished(), "the server has ended");
            thread::yield_now();
        }
        Some(Side::start(client).end().success())
    })
}

#[test]
fn rping_meets_rust() {
    let server = ["rping", "-s", "-p", PORT, "-v", "-V"];
    for more in [&[][..], &["-q"]] {
        serve_in_c(&[&server[..], more].concat(), |addr| {
            RpingClient { plan: Plan::at(addr), count: 50, size: 64 }.run(soft()).unwrap();
        });
        let client = ["rping", "-c", "-a", HERE, "-p", PORT, "-C", "50", "-v", "-V"];
        let text = visit_in_c(
            |addr| RpingServer { plan: Plan::at(addr), size: 64 }.run(soft()).unwrap(),
            &[&client[..], more].concat(),
        );
        assert!(text.is_none_or(|text| text.contains("rdma-ping-49:")), "{more:?}");
    }
}

#[test]
fn rdma_client_and_rdma_server_meet_rust() {
    let text = serve_in_c(&["rdma_server", "-p", PORT], |addr| {
        RdmaClient { plan: Plan::at(addr) }.run(soft()).unwrap();
    });
    assert!(text.is_none_or(|text| text.contains("rdma_server: end 0")));
    let text = visit_in_c(
        |addr| RdmaServer { plan: Plan::at(addr) }.run(soft()).unwrap(),
        &["rdma_client", "-s", HERE, "-p", PORT],
    );
    assert!(text.is_none_or(|text| text.contains("rdma_client: end 0")));
}

/// Sends messages and checks the answers, or answers them: `echo PORT COUNT LENGTH [ADDRESS]`.
const ECHO: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_verbs.h>
#define CHECK(x) do { if (x) { perror(#x); exit(1); } } while (0)
static void *out, *in;
static void put(struct rdma_cm_id *id, struct ibv_mr *mr, void *bytes, int length) {
    struct ibv_wc wc;
    CHECK(rdma_post_send(id, NULL, bytes, length, mr, IBV_SEND_SIGNALED));
    CHECK(rdma_get_send_comp(id, &wc) != 1 || wc.status);
}
static int receive(struct rdma_cm_id *id) {
    struct ibv_wc wc;
    CHECK(rdma_get_recv_comp(id, &wc) != 1 || wc.status);
    return wc.byte_len;
}
int main(int argc, char **argv) {
    int count = atoi(argv[2]), length = atoi(argv[3]), serves = argc < 5;
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *info;
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
    struct rdma_cm_id *id, *listener;
    struct ibv_mr *to, *from;
    out = calloc(1, length), in = calloc(1, length);
    hints.ai_flags = serves ? RAI_PASSIVE : 0;
    CHECK(rdma_getaddrinfo(serves ? "127.0.0.1" : argv[4], argv[1], &hints, &info));
    CHECK(rdma_create_ep(serves ? &listener : &id, info, NULL, &attr));
    if (serves) {
        CHECK(rdma_listen(listener, 0));
        CHECK(rdma_get_request(listener, &id));
    }
    CHECK(!(to = rdma_reg_msgs(id, out, length)));
    CHECK(!(from = rdma_reg_msgs(id, in, length)));
    CHECK(rdma_post_recv(id, NULL, in, length, from));
    CHECK(serves ? rdma_accept(id, NULL) : rdma_connect(id, NULL));
    for (int n = 0; n < count; n++) {
        if (serves) {
            int came = receive(id);
            memcpy(out, in, came);
            CHECK(rdma_post_recv(id, NULL, in, length, from));
            put(id, to, out, came);
            continue;
        }
        memset(out, n, length);
        put(id, to, out, length);
        CHECK(receive(id) != length || memcmp(in, out, length));
        CHECK(rdma_post_recv(id, NULL, in, length, from));
    }
    printf("%d messages\n", count);
    /* The peer ends the connection when it has its last answer. */
    if (!serves)
        CHECK(rdma_disconnect(id));
    rdma_destroy_ep(id);
    return 0;
}
"#;

/// The program, and its arguments but for an address.
fn echo() -> Option<[String; 4]> {
    let program: PathBuf = built("echo", ECHO, &["-lrdmacm", "-libverbs"])?;
    let port = PORT.to_owned();
    Some([program.display().to_string(), port, COUNT.to_string(), LENGTH.to_string()])
}

/// Answers each message with itself, and ends with its peer.
struct Echo(Stop);

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Reply { len: message.len() }
    }

    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _out: &mut Outbox<'_, P>) {
        self.0.stop();
    }
}

#[test]
fn a_worker_echoes_to_a_client_in_c() {
    let Some([program, port, count, length]) = echo() else { return };
    let text = visit_in_c(
        |addr| {
            let mut runtime = Runtime::new(&soft(), &Config::DEFAULT);
            runtime.add(Echo(runtime.stopper())).unwrap();
            runtime.listen(addr).unwrap();
            runtime.run().unwrap();
        },
        &[&program, &port, &count, &length, HERE],
    );
    assert_eq!(text, Some(format!("{COUNT} messages\n")));
}

/// Sends one message after the other, and checks the answers.
struct Client {
    answered: usize,
    stop: Stop,
}

impl Client {
    fn bytes(&self) -> [u8; LENGTH] {
        [self.answered as u8; LENGTH]
    }
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.send(peer, &self.bytes()).unwrap();
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        assert_eq!(message.bytes(), self.bytes());
        self.answered += 1;
        if self.answered == COUNT {
            out.finish(message.peer());
        } else {
            out.send(message.peer(), &self.bytes()).unwrap();
        }
        Verdict::Done
    }

    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _out: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

#[test]
fn a_server_in_c_echoes_to_a_worker() {
    let Some(args) = echo() else { return };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let text = serve_in_c(&args, |addr| {
        let mut runtime = Runtime::new(&soft(), &Config::DEFAULT);
        runtime.add(Client { answered: 0, stop: runtime.stopper() }).unwrap();
        runtime.dial(addr).unwrap();
        runtime.run().unwrap();
        assert_eq!(runtime.workers()[0].handler().answered, COUNT);
    });
    assert_eq!(text, Some(format!("{COUNT} messages\n")));
}
