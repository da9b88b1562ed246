//! `interop` with itself on the soft device, and with peers that differ from what they should be.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use doorbell::error::Code;
use doorbell::soft::SoftDevice;
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{AddrInfo, Buffer, ConnParam, Endpoint, Hints, Program, QpInit};
use doorbell_examples::interop::{Plan, RdmaClient};

/// The program. Its limit is long, because a busy machine may be slow; it only has to end a hang.
fn interop(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_interop"));
    command.args(words).args(["--device", "soft0"]);
    if !words.contains(&"--limit") {
        command.args(["--limit", "200"]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn end(child: Child) -> Output {
    child.wait_with_output().expect("its output")
}

fn run(words: &[&str]) -> Output {
    end(interop(words).spawn().expect("interop starts"))
}

/// Asserts exit code 1 and one line on standard error.
fn assert_fails(output: &Output, says: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(says), "{text}");
}

/// Starts a server on a free port; returns its address too.
fn listening(words: &[&str]) -> (Child, SocketAddr) {
    let mut server = interop(&[words, &["--port", "0"]].concat()).spawn().expect("a server");
    let mut line = String::new();
    let mut out = BufReader::new(server.stdout.take().expect("its output is piped"));
    out.read_line(&mut line).expect("a line");
    let addr = line.strip_prefix("listening on ").and_then(|rest| rest.split(',').next());
    (server, addr.expect("its address").parse().expect("an address"))
}

/// Runs a server and a client of one kind in two processes; both must succeed.
fn meet(server: &[&str], client: &[&str]) {
    let (server, addr) = listening(server);
    let client = run(&[client, &["--port", &addr.port().to_string()]].concat());
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let server = end(server);
    assert!(server.status.success(), "{}", String::from_utf8_lossy(&server.stderr));
}

#[test]
fn rdma_server_and_rdma_client_meet_in_two_processes() {
    for _ in 0..5 {
        meet(&["rdma-server"], &["rdma-client"]);
    }
}

#[test]
fn rping_meets_itself() {
    meet(&["rping-server"], &["rping-client"]);
    let large = ["--size", "65536"];
    let many = [&["rping-client", "--count", "200"][..], &large].concat();
    meet(&[&["rping-server"][..], &large].concat(), &many);
}

#[test]
fn udaddy_meets_itself() {
    for _ in 0..5 {
        meet(&["udaddy-server"], &["udaddy-client"]);
    }
    let large = ["--count", "30", "--size", "4096"];
    let (server, client) = (["udaddy-server"], ["udaddy-client"]);
    meet(&[&server[..], &large].concat(), &[&client[..], &large].concat());
}

#[test]
fn pingpong_meets_itself_over_datagrams() {
    let ud = ["--transport", "ud"];
    meet(&[&["pingpong-server"][..], &ud].concat(), &[&["pingpong-client"][..], &ud].concat());
}

#[test]
fn udaddy_notices_datagrams_of_another_length() {
    let (server, addr) = listening(&["udaddy-server", "--size", "99", "--limit", "5"]);
    let port = addr.port().to_string();
    let client = interop(&["udaddy-client", "--limit", "5", "--port", &port]).spawn();
    assert_fails(&end(server), "a receive: none came");
    end(client.expect("a client"));
}

#[test]
fn mckey_meets_itself() {
    let group = format!("239.255.{}.1", std::process::id() % 250);
    let start = |part| {
        let mut child = interop(&[part, "--group", &group]).spawn().expect("a receiver");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output is piped"))
            .read_line(&mut line)
            .expect("a line");
        assert!(line.starts_with("joined"), "{line}");
        child
    };
    let receivers = [start("mckey-receiver"), start("mckey-receiver")];
    let sender = run(&["mckey-sender", "--group", &group]);
    assert!(sender.status.success(), "{}", String::from_utf8_lossy(&sender.stderr));
    for receiver in receivers.map(end) {
        assert!(receiver.status.success(), "{}", String::from_utf8_lossy(&receiver.stderr));
    }
}

#[test]
fn rping_refuses_more_than_it_allows() {
    let (server, addr) = listening(&["rping-server", "--size", "100"]);
    let client = run(&["rping-client", "--size", "101", "--port", &addr.port().to_string()]);
    assert_eq!(client.status.code(), Some(1));
    let output = end(server);
    assert_fails(&output, "1 to 100: it was 101");
}

#[test]
fn ucmatose_meets_itself() {
    meet(&["ucmatose-server"], &["ucmatose-client"]);
    let more = ["--count", "100", "--size", "5000"];
    meet(&[&["ucmatose-server"][..], &more].concat(), &[&["ucmatose-client"][..], &more].concat());
}

#[test]
fn rstream_meets_itself() {
    meet(&["rstream-server"], &["rstream-client"]);
    // Transfers that cross the halves of the buffer, and more of them than may be in flight.
    let large = ["--size", "100003", "--count", "7", "--rounds", "3"];
    let small = ["--size", "3", "--count", "800"];
    for load in [&large[..], &small[..]] {
        meet(&[&["rstream-server"][..], load].concat(), &[&["rstream-client"][..], load].concat());
    }
}

#[test]
fn rstream_notices_a_stream_that_ends_early() {
    let (server, addr) = listening(&["rstream-server", "--rounds", "2"]);
    let client = run(&["rstream-client", "--port", &addr.port().to_string()]);
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    assert_fails(&end(server), "in the middle of a test: it was at its end");
}

#[test]
fn rdma_xserver_and_rdma_xclient_meet() {
    meet(&["rdma-xserver"], &["rdma-xclient"]);
}

#[test]
fn a_client_without_a_server_fails_with_one_clear_line() {
    let output = run(&["rdma-client", "--port", "1"]);
    assert_fails(&output, "connect to 127.0.0.1:1: nobody listens there");
}

#[test]
fn an_address_of_another_host_fails_with_one_clear_line() {
    let output = run(&["rdma-client", "--addr", "192.0.2.1"]);
    assert_fails(&output, "192.0.2.1 is not an address of this host");
}

#[test]
fn an_unknown_device_fails_with_one_clear_line() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_interop"));
    let output = command.args(["rdma-server", "--device", "mlx5_77"]).output().expect("it runs");
    assert_fails(&output, "there is: soft0");
}

/// Sends `bytes` to the server as a client; returns how the server ended.
fn serve(bytes: &[u8]) -> Output {
    let (server, addr) = listening(&["rdma-server"]);
    let device = SoftDevice::open().expect("the soft device");
    let init = QpInit::rc().inline(64).signal_all(true);
    let info = AddrInfo::of(addr, &Hints::active());
    let mut id = Endpoint::create(&device, &info, Some(&init)).expect("an endpoint");
    id.connect(&ConnParam::default()).expect("connect");
    id.queues().post_recv(Buffer::new(&device, 16).expect("a buffer")).expect("a receive");
    id.queues().post_inline(bytes, SendOp::Send, SendFlags::empty()).expect("a send");
    // The server answers or refuses the message. Neither proceeds unless this side polls.
    while !id.peer_left() {
        let _ = id.queues().next_recv(Duration::from_millis(1));
    }
    end(server)
}

#[test]
fn the_server_checks_each_message() {
    let output = serve(&[0; 16]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_fails(&serve(&[0; 15]), "16 bytes: the peer sent 15");
    assert_fails(&serve(&[0; 17]), "status 1");
}

#[test]
fn the_client_notices_a_server_that_leaves() {
    let device = SoftDevice::open().expect("the soft device");
    let any = AddrInfo::of(([127, 0, 0, 1], 0).into(), &Hints::passive());
    let init = QpInit::rc();
    let mut listener = Endpoint::create(&device, &any, Some(&init)).expect("a listener");
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    let client = thread::spawn({
        let device = device.clone();
        move || RdmaClient { plan: Plan::at(addr) }.run(device)
    });
    let mut id = listener.get_request(None).expect("a request");
    id.accept(&ConnParam::default()).expect("accept");
    drop(id);
    let error = client.join().expect("the client").expect_err("it got no answer");
    assert!(matches!(error.code(), Code::Reset | Code::Errno(5)), "{error}");
}
