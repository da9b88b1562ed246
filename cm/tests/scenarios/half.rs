//! One side finishes sending and still takes messages: between two processes, one of which is
//! stopped (SIGSTOP) or killed (SIGKILL) meanwhile, and for a worker that sleeps.

use std::env;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell_cm::{Dialer, Fabric, WakeFd};
use doorbell_engine::worker::{
    DownReason, Handler, Message, Outbox, PeerId, Request, SendError, Verdict,
};
use doorbell_seam::provider::Provider;
use doorbell_seam::remote::RequestOp;
use doorbell_seam::wc::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bed::{CONFIG, LIMIT, Pair, Side, TWO_LOOKS, cases, until};
use crate::killed::{PART, Peer, ROOMY, is_failed, listener, orders, say};

cases! {
    the_other_process
    each_process_finishes_after_everything_it_accepted
    a_killed_peer_has_not_finished
    a_client_that_is_killed_after_its_last_word_has_not_finished
    a_drain_after_it_keeps_its_deadline
    the_last_word_wakes_a_worker
}

/// More than a window, both ways.
const COUNT: usize = 100;

/// Counts what it is told, and checks the order. Answers the last word if it is to.
#[derive(Default)]
struct Log {
    up: Vec<PeerId>,
    got: usize,
    finished: usize,
    down: Vec<DownReason>,
    done: Vec<Result<(), Status>>,
    /// Messages to send after the peer has finished, and then the last word.
    answers: Option<usize>,
    sent: usize,
}

impl Log {
    /// Sends numbered messages up to that number, as far as there is room.
    fn send<P: Provider>(&mut self, count: usize, out: &mut Outbox<'_, P>) {
        while self.sent < count && out.send(self.up[0], &self.sent.to_le_bytes()).is_ok() {
            self.sent += 1;
        }
    }

    fn finish<P: Provider>(&self, out: &mut Outbox<'_, P>) {
        out.finish_sending(self.up[0]);
        assert_eq!(out.send(self.up[0], b"more"), Err(SendError::FinishedSending));
    }
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        assert_eq!((message.bytes(), self.finished), (&self.got.to_le_bytes()[..], 0));
        self.got += 1;
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_finished_sending(&mut self, _: PeerId, _: &mut Outbox<'_, P>) {
        assert!(self.down.is_empty());
        self.finished += 1;
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        _: u64,
        result: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        self.done.push(result);
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        if let Some(count) = self.answers.filter(|_| self.finished > 0) {
            self.send(count, out);
            if self.sent == count {
                self.finish(out);
                self.answers = None;
            }
        }
    }
}

type Logged<F> = Side<F, Log>;

fn side<F: Fabric>(nic: &F, answers: Option<usize>) -> Logged<F> {
    Side::new(nic, &ROOMY, Log { answers, ..Log::default() })
}

fn start(part: &str, addr: Option<SocketAddr>) -> Peer {
    Peer::start("half::cases::the_other_process", part, addr)
}

/// Plays the part that was given; without one there is nothing to test here.
fn the_other_process<F: Fabric>(nic: &F) {
    let Ok(given) = env::var(PART) else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let _orders = orders();
    match given.split_once(' ') {
        Some(("answers", _)) => serves(nic, Some(COUNT)),
        Some(("listens", _)) => serves(nic, None),
        Some(("sends", addr)) => sends(nic, addr.parse().expect("an address")),
        _ => panic!("{given} is no part"),
    }
}

/// A server that says what it is told of its only client.
fn serves<F: Fabric>(nic: &F, answers: Option<usize>) {
    let (mut listener, addr) = listener(nic);
    let mut one = side(nic, answers);
    listener.feed(one.intake.clone());
    say(addr);
    let (mut finished, mut down) = (0, 0);
    while down == 0 {
        listener.step(Duration::ZERO).expect("a step");
        one.worker.turn();
        let log = one.worker.handler();
        if log.finished > finished {
            say(format!("{} and no more", log.got));
        }
        (finished, down) = (log.finished, log.down.len());
    }
    let log = one.worker.handler();
    say(format!("{:?}, told {} times", log.down, log.finished));
}

/// A client that sends three messages and finishes.
fn sends<F: Fabric>(nic: &F, addr: SocketAddr) {
    let mut one = side(nic, None);
    let mut dialer = Dialer::new(nic).expect("a dialer");
    dialer.dial(addr, &one.intake, LIMIT).expect("connected");
    until("it is up", &mut one, |one| !one.worker.handler().up.is_empty());
    one.worker.with(|log, out| {
        log.send(3, out);
        log.finish(out);
    });
    loop {
        dialer.step(Duration::ZERO).expect("a step");
        one.worker.turn();
    }
}

/// A client of a server in another process, which plays that part.
fn client<F: Fabric>(nic: &F, part: &str) -> (Peer, Dialer<F>, Logged<F>) {
    let mut server = start(part, None);
    let addr = server.hear().parse().expect("an address");
    let mut one = side(nic, None);
    let mut dialer = Dialer::new(nic).expect("a dialer");
    dialer.dial(addr, &one.intake, LIMIT).expect("connected");
    until("it is up", &mut one, |one| !one.worker.handler().up.is_empty());
    (server, dialer, one)
}

/// A client sends all it has, and finishes; a server in another process then answers with as much.
/// Both get everything, and see the same end. The server is stopped in between, and goes on.
fn each_process_finishes_after_everything_it_accepted<F: Fabric>(nic: &F) {
    for stops in [false, true] {
        let (mut server, _dialer, mut one) = client(nic, "answers");
        until("half is sent", &mut one, |one| {
            one.worker.with(|log, out| log.send(COUNT / 2, out));
            one.worker.handler().sent == COUNT / 2
        });
        if stops {
            stops_for_a_while(&server, &mut one);
        }
        until("all is sent", &mut one, |one| {
            one.worker.with(|log, out| log.send(COUNT, out));
            one.worker.handler().sent == COUNT
        });
        one.worker.with(|log, out| log.finish(out));
        until("its peer has ended", &mut one, |one| one.worker.peers() == 0);
        assert_eq!(server.hear(), format!("{COUNT} and no more"));
        let log = one.worker.handler();
        assert_eq!((log.got, log.finished), (COUNT, 1));
        assert_eq!(log.down, [DownReason::Finished]);
        assert_eq!(one.worker.stats().errors_by_status[Status::RetryExceeded as usize], 0);
        assert_eq!(one.worker.send_blocks_home(), ROOMY.send_blocks as usize);
        assert_eq!(server.hear(), "[Finished], told 1 times");
    }
}

/// A peer that is stopped is not taken for dead.
fn stops_for_a_while<F: Fabric>(peer: &Peer, one: &mut Logged<F>) {
    peer.stop();
    for _ in 0..TWO_LOOKS {
        one.worker.turn();
    }
    assert!(one.worker.handler().down.is_empty(), "it is only stopped");
    peer.signal("-CONT");
}

fn assert_lost<F: Fabric>(one: &mut Logged<F>) {
    until("a killed peer is gone", one, |one| one.worker.peers() == 0);
    let down = &one.worker.handler().down;
    assert_eq!(down.len(), 1);
    assert!(down[0] == DownReason::Disconnected || is_failed(down[0]), "{down:?}");
}

/// This side has finished, and its server was told; then the server is stopped, and killed.
fn a_killed_peer_has_not_finished<F: Fabric>(nic: &F) {
    let (mut server, _dialer, mut one) = client(nic, "listens");
    one.worker.with(|log, out| {
        log.send(5, out);
        log.finish(out);
    });
    // The word is posted by the second turn: all before it went with the first.
    until("the word is posted", &mut one, |one| one.worker.stats().sent >= 6);
    assert_eq!(server.hear(), "5 and no more");
    stops_for_a_while(&server, &mut one);
    server.kill();
    assert_lost(&mut one);
    assert_eq!(one.worker.handler().finished, 0);
}

/// A client in another process has said its last word, and is stopped and killed before this side
/// says its own. This side may send all the while.
fn a_client_that_is_killed_after_its_last_word_has_not_finished<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let mut one = side(nic, None);
    listener.feed(one.intake.clone());
    let mut client = start("sends", Some(addr));
    let begin = Instant::now();
    while one.worker.handler().up.is_empty() {
        listener.step(Duration::ZERO).expect("a step");
        one.worker.turn();
        assert!(begin.elapsed() < LIMIT, "the client does not come");
    }
    until("its last word", &mut one, |one| one.worker.handler().finished == 1);
    assert_eq!(one.worker.handler().got, 3);
    stops_for_a_while(&client, &mut one);
    let peer = one.worker.handler().up[0];
    let mut sent = 0;
    until("it takes more than a window", &mut one, |one| {
        let mut out = one.worker.outbox();
        sent += usize::from(out.send(peer, &usize::to_le_bytes(sent)).is_ok());
        sent == COUNT
    });
    client.kill();
    assert_lost(&mut one);
}

/// The server is stopped, and takes nothing. This side has accepted requests for it, has finished
/// sending, and drains: that ends when its time is over, and everything is reported.
fn a_drain_after_it_keeps_its_deadline<F: Fabric>(nic: &F) {
    let (server, _dialer, mut one) = client(nic, "listens");
    server.stop();
    let peer = one.worker.handler().up[0];
    let mut count = 0;
    let request = |token| Request { op: RequestOp::SEND, pieces: &[], fence: false, token };
    while one.worker.outbox().request(peer, &request(count)).is_ok() {
        count += 1;
    }
    assert!(count > 2);
    one.worker.outbox().finish_sending(peer);
    // A kernel takes messages for a stopped process; the soft device's polls do it themselves.
    let kernel = nic.caps().device != "soft0";
    let (mut turns, begin) = (0, Instant::now());
    let undone = one.worker.drain(|| {
        turns += 1;
        turns < 100_000 || kernel && begin.elapsed() < LIMIT
    });
    assert_eq!(undone.peers, usize::from(!kernel), "{turns} turns");
    until("its peer is gone", &mut one, |one| one.worker.peers() == 0);
    let log = one.worker.handler();
    assert_eq!(log.done.len() as u64, count);
    assert!(log.down == [DownReason::Closed] || is_failed(log.down[0]), "{:?}", log.down);
}

/// A worker sleeps. Its peer's last word makes its descriptor readable.
fn the_last_word_wakes_a_worker<F: Fabric>(nic: &F) {
    let mut slept = 0;
    for _ in 0..20 {
        let logs = (Log::default(), Log::default());
        let mut pair = Pair::new(nic, &CONFIG, logs, 1);
        pair.until("up", |pair| pair.one.worker.handler().up.len() == 1);
        let Pair { dialer: _dialer, listener: _listener, mut one, mut two } = pair;
        let Ok(fd) = WakeFd::of(&two.worker) else {
            return println!("skipped: this device wakes nobody");
        };
        let begin = Instant::now();
        while two.worker.arm().is_err() {
            one.worker.turn();
            assert!(begin.elapsed() < LIMIT, "it does not rest");
        }
        let Ok(armed) = two.worker.arm() else { continue };
        slept += 1;
        let peer = one.worker.handler().up[0];
        one.worker.outbox().finish_sending(peer);
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        while poll(&mut fds, Some(&wait)).expect("a wait") == 0 {
            one.worker.turn();
            assert!(begin.elapsed() < LIMIT, "it sleeps, and nobody wakes it");
        }
        drop(armed);
        until("the last word", &mut two, |two| two.worker.handler().finished == 1);
    }
    assert!(slept > 0);
}
