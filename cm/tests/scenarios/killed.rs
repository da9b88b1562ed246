//! Workers whose peer is another process, which loses workers, is stopped (SIGSTOP), or is killed
//! (SIGKILL). The peer is this program, started again with a part to play.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{CmError, Dialer, Fabric, Listener};
use doorbell_engine::worker::{
    Config, DownReason, Handler, Message, Outbox, PeerId, RefusalReason, Request, Token, Verdict,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_seam::remote::RequestOp;
use doorbell_seam::wc::Status;

use crate::bed::{CONFIG, LIMIT, Side, TWO_LOOKS, address, cases, until};

cases! {
    the_other_process
    a_server_in_another_process_loses_and_gets_workers
    a_killed_server_is_seen_by_a_forgotten_dialer
    a_killed_client_is_seen_by_a_forgotten_listener
    a_dropped_dialer_reports_what_it_accepted
    a_drain_with_a_stopped_peer_keeps_its_deadline
    a_peer_is_killed_during_a_drain
    the_far_side_of_a_drain_is_finished_unless_it_was_killed
    a_side_without_descriptors_says_so
}

/// The test that plays this file's parts.
const THE_OTHER: &str = "killed::cases::the_other_process";

/// The variable with the part that this process plays, and an address.
pub(crate) const PART: &str = "DOORBELL_SCENARIOS_PART";

/// Stands before what a process says to the one that started it.
const SAYS: &str = "it says: ";

/// No peer is given up because it takes long: each ends by what happens to it.
pub(crate) const ROOMY: Config =
    Config { peers: 4, requests: 64, drain_turns: u64::MAX / 2, ..CONFIG };

/// Answers, keeps what says so, panics at what says so, and records the rest.
#[derive(Default)]
struct Log {
    up: Vec<PeerId>,
    down: Vec<DownReason>,
    got: Vec<Vec<u8>>,
    done: Vec<(u64, Result<(), Status>)>,
    kept: Vec<Token>,
    silent: bool,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        assert_ne!(message.bytes(), b"panic", "as the test wants it");
        self.got.push(message.bytes().to_vec());
        if message.bytes() == b"keep"
            && let Some(token) = out.keep(&message)
        {
            self.kept.push(token);
            return Verdict::Keep(token);
        }
        if self.silent { Verdict::Done } else { Verdict::Reply { len: message.len() } }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        assert!(self.down.len() < self.up.len(), "a request ends before its peer does");
        self.done.push((token, result));
    }
}

type Logged<F> = Side<F, Log>;

fn side<F: Fabric>(nic: &F, silent: bool) -> Logged<F> {
    Side::new(nic, &ROOMY, Log { silent, ..Log::default() })
}

pub(crate) fn listener<F: Fabric>(nic: &F) -> (Listener<F>, SocketAddr) {
    let listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

/// A process with a part. It is killed when this is dropped.
pub(crate) struct Peer {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Peer {
    /// One that runs that test.
    pub(crate) fn start(test: &str, part: &str, addr: Option<SocketAddr>) -> Peer {
        let path = env::current_exe().expect("its path");
        Peer::start_by(Command::new(path).args(["--exact", test]), part, addr)
    }

    /// One that may have that many open files.
    fn with_files(files: u32, part: &str, addr: Option<SocketAddr>) -> Peer {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\" 2> /dev/null")]);
        shell.arg(env::current_exe().expect("its path")).args(["--exact", THE_OTHER]);
        Peer::start_by(&mut shell, part, addr)
    }

    fn start_by(command: &mut Command, part: &str, addr: Option<SocketAddr>) -> Peer {
        let addr = addr.map_or("-".to_owned(), |addr| addr.to_string());
        let mut child = command
            .arg("--nocapture")
            .env(PART, format!("{part} {addr}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let orders = child.stdin.take().expect("piped");
        let says = BufReader::new(child.stdout.take().expect("piped"));
        Peer { child, orders, says }
    }

    /// Gives it an order.
    fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it lives");
    }

    /// The next thing it says; empty if it has ended.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).expect("text") == 0 {
                return line;
            }
            // The harness prints on the same line before it.
            if let Some((_, words)) = line.split_once(SAYS) {
                return words.trim().to_owned();
            }
        }
    }

    /// A server, and its address.
    fn serving() -> (Peer, SocketAddr) {
        let mut peer = Peer::start(THE_OTHER, "serves", None);
        let addr = peer.hear().parse().expect("an address");
        (peer, addr)
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(status.expect("kill(1)").success());
    }

    /// Stops it, and waits until each of its threads is.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let is_stopped = |task: std::io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.expect("a thread").path().join("stat"));
            let stat = stat.expect("its state");
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        let begin = Instant::now();
        while !fs::read_dir(&tasks).expect("it lives").all(is_stopped) {
            assert!(begin.elapsed() < LIMIT, "it does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn say(text: impl std::fmt::Display) {
    println!("{SAYS}{text}");
}

/// The orders of the process that started this one. This one ends with it.
pub(crate) fn orders() -> Receiver<String> {
    let (sender, orders) = mpsc::channel();
    // The pipe ends with that process; then there are no more orders.
    thread::spawn(move || {
        for order in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(order);
        }
        std::process::exit(0);
    });
    orders
}

/// Plays the part that was given; without one there is nothing to test here.
fn the_other_process<F: Fabric>(nic: &F) {
    let Ok(given) = env::var(PART) else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let orders = orders();
    match given.split_once(' ') {
        Some(("serves", _)) => serves(nic, &orders),
        Some((part, addr)) => dials(nic, part, addr.parse().expect("an address")),
        None => panic!("{given} is no part"),
    }
}

/// A server that loses and gets workers by order.
fn serves<F: Fabric>(nic: &F, orders: &Receiver<String>) {
    let (mut listener, addr) = listener(nic);
    let mut workers = vec![side(nic, false)];
    listener.feed(workers[0].intake.clone());
    say(addr);
    loop {
        match orders.try_recv().as_deref() {
            Ok("add") => {
                workers.push(side(nic, false));
                listener.feed(workers[workers.len() - 1].intake.clone());
                say("added");
            }
            Ok("drop") => {
                workers.remove(0);
                say("dropped");
            }
            Ok("remove") => say(listener.remove(&workers[0].intake)),
            Ok("count") => say(format!("{} {}", listener.workers(), listener.lost_workers())),
            Ok("refused") => say(listener.refused_for(RefusalReason::Resources)),
            Ok(order) => panic!("{order}"),
            Err(_) => {}
        }
        listener.step(Duration::ZERO).expect("a step");
        // A worker whose handler panics is dropped by that, as on a thread that unwinds.
        let turned = workers.drain(..).filter_map(|mut side| {
            let turn = AssertUnwindSafe(move || {
                side.worker.turn();
                side
            });
            catch_unwind(turn).ok()
        });
        workers = turned.collect();
    }
}

/// A client that talks without end, or that drains when it has got something.
fn dials<F: Fabric>(nic: &F, part: &str, addr: SocketAddr) {
    let mut one = side(nic, true);
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let dialed = dialer.dial(addr, &one.intake, LIMIT);
    if part == "tries" {
        return say(dialed.map_or_else(|error| error.to_string(), |_| "up".to_owned()));
    }
    dialed.expect("connected");
    loop {
        dialer.step(Duration::ZERO).expect("a step");
        one.worker.turn();
        let Some(peer) = one.worker.handler().up.first().copied() else { continue };
        let drains = part == "drains" && !one.worker.handler().got.is_empty();
        if drains {
            for number in 0..3 {
                one.worker.outbox().send(peer, &[number; 40]).expect("room");
            }
            say("it drains");
            let undone = one.worker.drain(|| true);
            say(format!("{} left", undone.peers));
            thread::sleep(LIMIT);
        } else if part == "talks" {
            let _ = one.worker.outbox().send(peer, b"on and on");
        }
    }
}

/// A client of a server that is another process.
struct Client<F: Fabric> {
    // Dropped first, as when a program ends.
    dialer: Option<Dialer<F>>,
    one: Logged<F>,
}

impl<F: Fabric> Client<F> {
    /// Connected once.
    fn of(nic: &F, addr: SocketAddr) -> Client<F> {
        let dialer = Some(Dialer::new(nic).expect("a dialer"));
        let mut client = Client { dialer, one: side(nic, true) };
        client.dial(addr).expect("connected");
        client
    }

    fn dial(&mut self, addr: SocketAddr) -> Result<PeerId, CmError> {
        let dialer = self.dialer.as_mut().expect("there");
        let before = self.one.worker.handler().up.len();
        dialer.dial(addr, &self.one.intake, LIMIT)?;
        until("it is up", &mut self.one, |one| one.worker.handler().up.len() > before);
        Ok(self.one.worker.handler().up[before])
    }

    /// As many requests with tokens as there is room for: messages without bytes.
    fn request(&mut self) -> u64 {
        let peer = self.one.worker.handler().up[0];
        let mut count = 0;
        let request = |token| Request { op: RequestOp::SEND, pieces: &[], fence: false, token };
        while self.one.worker.outbox().request(peer, &request(count)).is_ok() {
            count += 1;
        }
        assert!(count > 2);
        count
    }

    /// Every request was reported once, and its peer once after them.
    fn assert_reported(&mut self, count: u64, why: &[DownReason]) {
        let log = self.one.worker.handler();
        let mut tokens: Vec<u64> = log.done.iter().map(|done| done.0).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..count).collect::<Vec<_>>(), "{:?}", log.down);
        assert_eq!(log.down.len(), 1);
        assert!(why.contains(&log.down[0]) || is_failed(log.down[0]), "{:?}", log.down);
        assert_eq!((self.one.worker.peers(), self.one.worker.pending()), (0, 0));
        assert_eq!(self.one.worker.send_blocks_home(), ROOMY.send_blocks as usize);
    }
}

/// A request to a dead peer may fail before anybody says that it is dead.
pub(crate) fn is_failed(why: DownReason) -> bool {
    matches!(why, DownReason::Failed(_))
}

/// Workers of a server in another process are dropped, panic, are removed and added while its
/// listener runs: the clients of each are told, and the next clients get the workers that there
/// are. In the end the server is killed.
fn a_server_in_another_process_loses_and_gets_workers<F: Fabric>(nic: &F) {
    let (mut server, addr) = Peer::serving();
    let mut client = Client::of(nic, addr);
    let mut ask = |order: &str| {
        server.tell(order);
        server.hear()
    };
    let down = |client: &mut Client<F>, count: usize| {
        until("its client is told", &mut client.one, |one| one.worker.handler().down.len() == count)
    };
    let answers = |client: &mut Client<F>, peer: PeerId| {
        let before = client.one.worker.handler().got.len();
        client.one.worker.outbox().send(peer, b"well?").expect("room");
        until("an answer", &mut client.one, |one| one.worker.handler().got.len() > before);
    };
    // A dropped worker; the next client gets the other one.
    assert_eq!((ask("add"), ask("drop")), ("added".into(), "dropped".into()));
    down(&mut client, 1);
    let second = client.dial(addr).expect("connected to the other");
    answers(&mut client, second);
    assert_eq!(ask("count"), "1 1");
    // One that panics takes its client along, and no other.
    assert_eq!(ask("add"), "added");
    let third = client.dial(addr).expect("connected to the third");
    client.one.worker.outbox().send(second, b"panic").expect("room");
    down(&mut client, 2);
    answers(&mut client, third);
    assert_eq!(ask("count"), "1 2");
    // One that is removed keeps its client.
    assert_eq!(ask("remove"), "true");
    let error = client.dial(addr).expect_err("there is no worker");
    assert_eq!(error.code(), Code::Refused, "{error}");
    let refusal = client.dialer.as_ref().and_then(Dialer::last_refusal).expect("a reason");
    assert_eq!(refusal.reason(), RefusalReason::NoWorker);
    assert_eq!(ask("add"), "added");
    let fourth = client.dial(addr).expect("connected to the fourth");
    answers(&mut client, third);
    answers(&mut client, fourth);
    server.kill();
    down(&mut client, 4);
    assert!(!client.one.worker.handler().down.contains(&DownReason::Finished));
}

/// The peer is stopped and then killed, and nobody steps this side's control plane. A stopped peer
/// is not taken for dead.
fn outlives<F: Fabric>(peer: &mut Peer, one: &mut Logged<F>) {
    peer.stop();
    for _ in 0..TWO_LOOKS {
        one.worker.turn();
    }
    assert!(one.worker.handler().down.is_empty(), "it is only stopped");
    peer.signal("-CONT");
    let got = one.worker.handler().got.len();
    let peer_id = one.worker.handler().up[0];
    let _ = one.worker.outbox().send(peer_id, b"still there?");
    until("it goes on", one, |one| one.worker.handler().got.len() > got);
    peer.kill();
    until("a killed peer is gone", one, |one| one.worker.peers() == 0);
    let log = one.worker.handler();
    assert_eq!(log.down.len(), 1);
    assert!(log.down[0] == DownReason::Disconnected || is_failed(log.down[0]), "{:?}", log.down);
}

fn a_killed_server_is_seen_by_a_forgotten_dialer<F: Fabric>(nic: &F) {
    let (mut server, addr) = Peer::serving();
    let mut client = Client::of(nic, addr);
    outlives(&mut server, &mut client.one);
    assert_eq!(client.dialer.as_ref().map(Dialer::connections), Some(0));
}

fn a_killed_client_is_seen_by_a_forgotten_listener<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let mut one = side(nic, false);
    listener.feed(one.intake.clone());
    let mut client = Peer::start(THE_OTHER, "talks", Some(addr));
    let begin = Instant::now();
    while one.worker.handler().got.len() < 100 {
        if one.worker.handler().up.is_empty() {
            listener.step(Duration::ZERO).expect("a step");
        }
        one.worker.turn();
        assert!(begin.elapsed() < LIMIT, "the client does not talk");
    }
    outlives(&mut client, &mut one);
    assert_eq!(listener.connections(), 0);
}

/// A dialer is dropped after its worker has accepted requests, for a peer that runs or is stopped:
/// each is reported, and then the peer.
fn a_dropped_dialer_reports_what_it_accepted<F: Fabric>(nic: &F) {
    for stopped in [false, true] {
        let (server, addr) = Peer::serving();
        let mut client = Client::of(nic, addr);
        if stopped {
            server.stop();
        }
        let count = client.request();
        drop(client.dialer.take());
        until("its peer is gone", &mut client.one, |one| one.worker.peers() == 0);
        client.assert_reported(count, &[DownReason::Disconnected]);
    }
}

/// A worker drains while its peer is stopped: it ends when its time is over, whatever the peer
/// has taken, and everything is reported by then.
fn a_drain_with_a_stopped_peer_keeps_its_deadline<F: Fabric>(nic: &F) {
    let (server, addr) = Peer::serving();
    let mut client = Client::of(nic, addr);
    server.stop();
    let count = client.request();
    // A kernel takes messages for a stopped process; the soft device's polls do it themselves.
    let kernel = nic.caps().device != "soft0";
    let (mut turns, begin) = (0, Instant::now());
    let undone = client.one.worker.drain(|| {
        turns += 1;
        assert!(kernel || turns <= 100_000, "it was told that its time is over");
        turns < 100_000 || kernel && begin.elapsed() < LIMIT
    });
    assert_eq!(undone.peers, usize::from(!kernel), "{turns} turns");
    until("its peer is gone", &mut client.one, |one| one.worker.peers() == 0);
    client.assert_reported(count, &[DownReason::Closed]);
}

/// The peer of a draining worker is stopped, so that it takes nothing, and then killed: the drain
/// ends by that, and everything is reported.
fn a_peer_is_killed_during_a_drain<F: Fabric>(nic: &F) {
    let (mut server, addr) = Peer::serving();
    let mut client = Client::of(nic, addr);
    server.stop();
    let count = client.request();
    let (mut turns, begin) = (0, Instant::now());
    let undone = client.one.worker.drain(|| {
        turns += 1;
        if turns == 1000 {
            server.kill();
        }
        begin.elapsed() < LIMIT
    });
    assert_eq!((undone.peers, undone.requests), (0, 0));
    client.assert_reported(count, &[DownReason::Closed, DownReason::Disconnected]);
}

/// A client in another process drains: its server gets everything, and knows that this was no
/// failure. If the client keeps a message it cannot end, and is killed: then it was one.
fn the_far_side_of_a_drain_is_finished_unless_it_was_killed<F: Fabric>(nic: &F) {
    for killed in [false, true] {
        let (mut listener, addr) = listener(nic);
        let mut one = side(nic, true);
        listener.feed(one.intake.clone());
        let mut client = Peer::start(THE_OTHER, "drains", Some(addr));
        let begin = Instant::now();
        while one.worker.handler().up.is_empty() {
            listener.step(Duration::ZERO).expect("a step");
            one.worker.turn();
            assert!(begin.elapsed() < LIMIT, "the client does not come");
        }
        let peer = one.worker.handler().up[0];
        let order: &[u8] = if killed { b"keep" } else { b"go" };
        one.worker.outbox().send(peer, order).expect("room");
        one.worker.outbox().flush();
        assert_eq!(client.hear(), "it drains");
        until("all has come", &mut one, |one| one.worker.handler().got.len() == 3);
        if killed {
            assert!(one.worker.handler().down.is_empty());
            client.kill();
        } else {
            assert_eq!(client.hear(), "0 left");
        }
        until("its peer is gone", &mut one, |one| one.worker.peers() == 0);
        let down = &one.worker.handler().down;
        assert_eq!((down.len(), down[0] == DownReason::Finished), (1, !killed), "{down:?}");
    }
}

/// The test limits the open files of one side's process, and raises the limit from too few to
/// enough. At each limit the process fails at its start; or it refuses the connection, again and
/// again, and both sides say why; or the connection comes up.
fn a_side_without_descriptors_says_so<F: Fabric>(nic: &F) {
    if nic.caps().device != "soft0" {
        return println!("skipped: a connection of a kernel needs no descriptor");
    }
    let mut one = side(nic, true);
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let mut refused = 0;
    for files in 6.. {
        let mut server = Peer::with_files(files, "serves", None);
        let Ok(addr) = server.hear().parse() else { continue };
        let tries = [(); 3].map(|()| {
            let dialed = dialer.dial(addr, &one.intake, LIMIT);
            // It reads of those that never came up, and has room again.
            (0..100).for_each(|_| _ = one.worker.turn());
            dialed
        });
        if tries.iter().all(Result::is_ok) {
            break;
        }
        for error in tries.into_iter().filter_map(Result::err) {
            assert_eq!(error.code(), Code::Refused, "{files} files: {error}");
            assert!(error.to_string().contains("raise its limits on open files"), "{error}");
            refused += 1;
        }
        server.tell("refused");
        assert_ne!(server.hear(), "0", "{files} files");
        assert!(files < 100, "they are never enough");
        server.kill();
        until("no peer is left", &mut one, |one| one.worker.peers() == 0);
    }
    assert!(refused > 0);
    // The side that dials.
    let (mut listener, addr) = listener(nic);
    listener.feed(one.intake.clone());
    let (mut short, mut said) = (0, String::new());
    for files in 6..100 {
        let mut client = Peer::with_files(files, "tries", Some(addr));
        let hearing = thread::spawn(move || client.hear());
        while !hearing.is_finished() {
            listener.step(Duration::from_millis(1)).expect("a step");
            one.worker.turn();
        }
        said = hearing.join().expect("it ends");
        if said == "up" {
            break;
        }
        assert!(said.is_empty() || said.contains("ulimit -n"), "{files} files: {said}");
        short += u32::from(!said.is_empty());
    }
    assert_eq!((said.as_str(), short > 0), ("up", true));
}
