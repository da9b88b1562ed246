//! Each example of one page in two processes, with a check of what both print.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod process;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use doorbell::prelude::*;
use process::{Running, program};

/// Starts a server and its client. The client must print these words and end; then SIGTERM ends the
/// server, which must print the others.
fn meet(path: &str, server: &[&str], client: &[&str], client_says: &[&str], server_says: &[&str]) {
    let server = [&["server", "--port", "0"], server].concat();
    let mut server = Running::start(program(path).args(server));
    let port = server.port();
    let client = Running::start(program(path).arg("client").args(port).args(client));
    client.ends_with_all(0, client_says);
    server.signal("TERM");
    server.ends_with_all(0, server_says);
}

#[test]
fn rpc_gets_every_answer_but_the_one_that_never_comes() {
    let answers =
        ["call 0: no answer in time", "call 1: 1", "call 2: 4", "call 3: 9", "call 5: 25"];
    meet(env!("CARGO_BIN_EXE_rpc"), &[], &[], &answers, &["6 calls"]);
}

#[test]
fn large_brings_every_byte() {
    let read = ["the server has read message 0: true", "the server has read message 1: true"];
    let right = "16777216 bytes: Ok(()), right: true";
    meet(env!("CARGO_BIN_EXE_large"), &[], &[], &read, &[right]);
}

#[test]
fn onesided_writes_adds_and_reads() {
    let read = "read back: counter 1, word hello";
    meet(env!("CARGO_BIN_EXE_onesided"), &[], &[], &[read], &["the counter is 1"]);
}

#[test]
fn timers_end_the_silence() {
    let end = "the server hung up after 10 heartbeats";
    meet(env!("CARGO_BIN_EXE_timers"), &[], &[], &[end], &["silent after 10 heartbeats"]);
}

#[test]
fn datagrams_find_the_group_and_the_way_back() {
    let id = std::process::id();
    let group = format!("239.77.{}.{}", id >> 8 & 255, id & 255);
    let path = env!("CARGO_BIN_EXE_datagrams");
    let mut server = Running::start(program(path).args(["server", "--group", &group]));
    server.says("listening on ");
    let client = Running::start(program(path).args(["client", "--group", &group]));
    client.ends_with(0, "answer: I am process ");
    server.signal("TERM");
    server.ends_with(0, " answers");
    // A port of its own: it takes none.
    let words = ["client", "--group", &group, "--port", "1"];
    Running::start(program(path).args(words)).ends_with(2, "--port");
}

#[test]
fn sleep_takes_few_turns() {
    let path = env!("CARGO_BIN_EXE_sleep");
    let mut server = Running::start(program(path).args(["server", "--port", "0"]));
    let port = server.port();
    Running::start(program(path).arg("client").args(port)).ends_with_all(0, &["20 answers"]);
    server.signal("TERM");
    let said = server.ends_with_all(0, &["20 messages in "]);
    let turns = said.split("messages in ").nth(1).and_then(|rest| rest.split(' ').next());
    let turns: u64 = turns.expect("a number").parse().expect("a number");
    // Some 1000 for each message, and some for each sleep. It would be millions without sleep.
    assert!(turns < 500_000, "{turns}");
}

#[test]
fn plan_serves_each_connection_by_a_worker_in_its_place() {
    let path = env!("CARGO_BIN_EXE_plan");
    meet(path, &[], &["--connections", "3"], &["3 answers"], &[": 3 messages"]);
}

/// When a server hangs up that answers nothing.
#[derive(Clone, Copy)]
enum When {
    /// When a client is there.
    AtOnce,
    /// At its first message.
    AtMessage,
    /// When a client is there, behind bytes that mean nothing.
    AfterNonsense,
    /// At its first message, which the client sends when it has got such bytes.
    AtAnswerToNonsense,
}

struct HangsUp {
    when: When,
    listens: mpsc::Sender<SocketAddr>,
}

impl Program for HangsUp {
    type Output = ();

    fn run<F: Fabric>(self, nic: F) {
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        let stop = runtime.stopper();
        runtime.add(HangUp { when: self.when, stop }).expect("a worker");
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        self.listens.send(runtime.listen(addr).expect("a port")).expect("the test waits");
        runtime.run().expect("it serves");
    }
}

struct HangUp {
    when: When,
    stop: Stop,
}

impl<P: Provider> Handler<P> for HangUp {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        match self.when {
            When::AtOnce => out.finish(peer),
            When::AtMessage => {}
            When::AfterNonsense => {
                out.send(peer, b"nonsense").expect("a new peer has room");
                out.finish(peer);
            }
            When::AtAnswerToNonsense => {
                out.send(peer, b"nonsense").expect("a new peer has room");
            }
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        out.finish(message.peer());
        Verdict::Done
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

#[test]
fn a_client_whose_server_hangs_up_fails() {
    for (path, when, words) in [
        (env!("CARGO_BIN_EXE_rpc"), When::AtMessage, "5 answers are missing"),
        (env!("CARGO_BIN_EXE_large"), When::AtMessage, "the server has not read 2 of 2 messages"),
        (env!("CARGO_BIN_EXE_sleep"), When::AtMessage, "20 answers are missing"),
        (env!("CARGO_BIN_EXE_plan"), When::AtMessage, "1 answers are missing"),
        (env!("CARGO_BIN_EXE_epoll"), When::AtMessage, "1000 answers are missing"),
        (env!("CARGO_BIN_EXE_async_fd"), When::AtMessage, "1000 answers are missing"),
        (env!("CARGO_BIN_EXE_timers"), When::AtMessage, " heartbeats were not sent"),
        // These send nothing before something comes from the server.
        (env!("CARGO_BIN_EXE_futures"), When::AtAnswerToNonsense, "999 answers are missing"),
        (env!("CARGO_BIN_EXE_onesided"), When::AtOnce, "before the READ has ended"),
        (env!("CARGO_BIN_EXE_onesided"), When::AfterNonsense, "has not told of memory"),
    ] {
        let (listens, listening) = mpsc::channel();
        let server = HangsUp { when, listens };
        let soft = Device::choose(Some("soft0"), None).expect("the embedded device");
        let server = thread::spawn(move || soft.run(server));
        let port = listening.recv().expect("a port").port().to_string();
        let client = Running::start(program(path).args(["client", "--port", &port]));
        client.ends_with(1, words);
        server.join().expect("it has not panicked");
    }
}

#[test]
fn a_client_without_a_server_fails() {
    for path in
        [env!("CARGO_BIN_EXE_epoll"), env!("CARGO_BIN_EXE_async_fd"), env!("CARGO_BIN_EXE_futures")]
    {
        let client = Running::start(program(path).args(["client", "--port", "1"]));
        client.ends_with(1, "nobody listens there");
    }
    let id = std::process::id();
    let group = format!("239.78.{}.{}", id >> 8 & 255, id & 255);
    let path = env!("CARGO_BIN_EXE_datagrams");
    let words = ["client", "--group", &group];
    Running::start(program(path).args(words)).ends_with(1, "nobody answered 500 questions");
}

/// Nothing would be sent, and nobody would ever answer.
#[test]
fn nothing_to_do_is_refused() {
    for (path, option) in [
        (env!("CARGO_BIN_EXE_echo"), "--count"),
        (env!("CARGO_BIN_EXE_echo"), "--window"),
        (env!("CARGO_BIN_EXE_plan"), "--connections"),
    ] {
        Running::start(program(path).args(["client", option, "0"])).ends_with(2, option);
    }
}

/// A loop that forgets to arm its worker finds every message late, by its clock. One that arms it
/// does so only when a message and the end of the time meet.
fn is_woken(path: &str) {
    let mut server = Running::start(program(path).args(["server", "--port", "0"]));
    let port = server.port();
    let client = Running::start(program(path).arg("client").args(port));
    for side in [client, server] {
        let said = side.ends_with_all(0, &["1000 messages, "]);
        let late = said.split("messages, ").nth(1).and_then(|rest| rest.split(' ').next());
        let late: u32 = late.expect("a number").parse().expect("a number");
        assert!(late < 500, "{said}");
    }
}

#[test]
fn epoll_loses_no_wake_up() {
    is_woken(env!("CARGO_BIN_EXE_epoll"));
}

#[test]
fn async_fd_loses_no_wake_up() {
    is_woken(env!("CARGO_BIN_EXE_async_fd"));
}

#[test]
fn futures_get_every_answer_but_the_one_that_never_comes() {
    const PATH: &str = env!("CARGO_BIN_EXE_futures");
    let mut server = Running::start(program(PATH).args(["server", "--port", "0"]));
    let client = Running::start(program(PATH).arg("client").args(server.port()));
    let in_vain = "not answered: no answer came before the deadline\n";
    client.ends_with_all(0, &["welcome", "999 answers are right", in_vain]);
    server.ends_with_all(0, &["the client says: goodbye", "the client has finished"]);
}

#[test]
fn every_page_says_what_it_shows_and_every_program_is_in_the_readme() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin");
    let readme = include_str!("../README.md");
    let mut pages = 0;
    for entry in std::fs::read_dir(folder).expect("the programs") {
        let path = entry.expect("a program").path();
        let text = std::fs::read_to_string(&path).expect("its text");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(text.starts_with("//! "), "{name}: it does not say what it shows");
        assert!(readme.contains(&format!("| `{name}`")), "{name}: no line in the README");
        pages += 1;
    }
    assert!(pages >= 10, "{pages}");
}
