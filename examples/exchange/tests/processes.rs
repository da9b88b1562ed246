//! An exchange in a process of its own, traders whose feeds lose datagrams, and a hostile client.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../tests/process/folder.rs"]
mod folder;
#[path = "../../tests/process/mod.rs"]
mod process;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::prelude::{Message as Received, *};
use doorbell::prng::Prng;
use doorbell::worker::PeerData;
use doorbell_exchange::capture;
use doorbell_exchange::feed::Arbiter;
use doorbell_exchange::itch::Message;
use doorbell_exchange::view::View;
use doorbell_exchange::wire::{Channel, Digest, GREETING, LoginAnswer, SESSION, symbols};

use folder::Folder;
use process::{Running, program};

fn exchange() -> std::process::Command {
    program(env!("CARGO_BIN_EXE_exchange"))
}

/// Groups that no other test uses at the moment.
fn lines() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let group =
        |line: u32| format!("239.{}.{}.{}", 64 + (2 * n + line) % 128, id >> 8 & 255, id & 255);
    format!("{},{}", group(0), group(1))
}

struct Served {
    server: Running,
    port: [String; 2],
    lines: String,
}

impl Served {
    fn start() -> Served {
        Served::with(lines(), &[])
    }

    fn with(lines: String, more: &[&str]) -> Served {
        let words = ["serve", "--port", "0", "--lines", &lines];
        let mut server = Running::start(exchange().args(words).args(more));
        let port = server.port();
        Served { server, port, lines }
    }

    fn trader(&self, words: &[&str]) -> Running {
        let mut command = exchange();
        command.arg("trade").args(&self.port).args(["--lines", &self.lines]).args(words);
        Running::start(&mut command)
    }

    /// Ends it; returns its output.
    fn end(self) -> String {
        self.server.signal("TERM");
        self.server.ends_with_all(0, &["messages of the feed"])
    }
}

#[test]
fn books_are_equal_although_the_lines_lose_datagrams() {
    let served = Served::start();
    let one = served.trader(&["--orders", "3000", "--drop", "10", "--seed", "1"]);
    let two = served.trader(&["--orders", "3000", "--drop", "300", "--seed", "2"]);
    one.ends_with_all(0, &["the books are equal", "3000 requests"]);
    let said = two.ends_with_all(0, &["the books are equal", "3000 requests"]);
    assert!(!said.contains(" 0 requests for gaps"), "nothing was missing: {said}");
    // A late one gets a snapshot, and the feed from there.
    let late = served.trader(&["--orders", "500", "--seed", "3", "--take", "4"]);
    late.ends_with_all(0, &["the books are equal", "500 requests"]);
    // The exchange ignores the order numbers of a user that it knows.
    let again = served.trader(&["--orders", "500", "--seed", "3"]);
    again.ends_with_all(1, &["user 3 has traded at this exchange already", "another --seed"]);
    let said = served.end();
    assert!(said.contains("damaged: 0"), "{said}");
}

/// The exchange keeps few messages of the feed, so those that both lines lose are mostly gone:
/// snapshots have to do.
#[test]
fn a_snapshot_stands_for_messages_that_are_gone() {
    let served = Served::with(lines(), &["--keep", "32"]);
    let words = ["--orders", "4000", "--drop", "400", "--rate", "20000"];
    let traders = ["1", "2"].map(|seed| served.trader(&[&words[..], &["--seed", seed]].concat()));
    for trader in traders {
        let said = trader.ends_with_all(0, &["the books are equal", "4000 requests"]);
        assert!(!said.contains(" 0 snapshots") && !said.contains(" 1 snapshots"), "{said}");
    }
    let said = served.end();
    assert!(!said.contains("gone: 0") && said.contains("damaged: 0"), "{said}");
}

/// The number of messages and the sum of the books, as an exchange or a replay says them.
fn books(said: &str) -> &str {
    let line = said.lines().find(|line| line.contains("books ")).expect("it says its books");
    line.split(';').next().unwrap_or_default()
}

/// Orders that one exchange has captured give the same books in another.
#[test]
fn replayed_orders_give_the_same_books() {
    let dir = Folder::new("orders");
    let file = dir.file("orders.pcap");
    let served = Served::with(lines(), &["--capture", &file]);
    let trader = served.trader(&["--orders", "3000", "--take", "8"]);
    trader.ends_with_all(0, &["the books are equal"]);
    let said = served.end();
    assert!(said.contains("orders captured"), "{said}");
    let other = Served::start();
    let mut replay = exchange();
    replay.args(["replay", &file, "--speed", "1.5"]).args(&other.port);
    replay.args(["--lines", &other.lines]);
    let replayed = Running::start(&mut replay).ends_with_all(0, &["0 without room"]);
    assert_eq!(books(&replayed), books(&said));
    assert_eq!(books(&other.end()), books(&said));
}

#[test]
fn an_exchange_without_securities_is_refused() {
    for side in ["serve", "trade", "load"] {
        let mut command = exchange();
        Running::start(command.args([side, "--symbols", "0"])).ends_with_all(2, &["--symbols"]);
    }
}

fn record(file: &str, lines: &str) -> Running {
    let mut recorder = Running::start(exchange().args(["capture", file, "--lines", lines]));
    recorder.says("recording");
    recorder
}

/// The packets of a recorder, which ends now.
fn recorded(recorder: Running, file: &str) -> Vec<capture::Packet> {
    recorder.signal("TERM");
    recorder.ends_with_all(0, &["datagrams of the feed captured"]);
    capture::read_file(Path::new(file)).expect("a capture")
}

/// The sum of the books that a feed leads to. `None`: messages are missing on both lines.
fn sum(packets: &[capture::Packet]) -> Option<u64> {
    let (mut arbiter, mut view) = (Arbiter::new(SESSION), View::default());
    for packet in packets {
        arbiter.packet(&packet.payload, |message, _| {
            let message = Message::read(message).expect("a message of ITCH");
            view.apply(&message).expect("it fits the books");
        });
    }
    let whole = arbiter.missing().is_none() && arbiter.next_sequence() > 1;
    whole.then(|| Digest::sum(&symbols(8), |symbol, side| view.book(symbol, side)))
}

/// A captured feed leads to the books of the exchange. Replayed, it comes to another capture at
/// its times. Datagrams may be lost, so some rounds may come to nothing.
#[test]
fn a_captured_feed_is_replayed_at_its_times() {
    let dir = Folder::new("feed");
    let (first, second) = (dir.file("first.pcap"), dir.file("second.pcap"));
    let packets = whole(|| {
        // It is there before the exchange: so it has the first messages too.
        let day = lines();
        let recorder = record(&first, &day);
        let served = Served::with(day, &[]);
        let trader = served.trader(&["--orders", "500", "--rate", "1000"]);
        trader.ends_with_all(0, &["the books are equal"]);
        let packets = recorded(recorder, &first);
        let said = served.end();
        let equal = |sum| books(&said).ends_with(&format!("books {sum:016x}"));
        assert!(sum(&packets).is_none_or(equal), "{said}");
        packets
    });
    let replay = |lines: &str| {
        let mut replay = exchange();
        Running::start(replay.args(["replay", &first, "--speed", "0.7", "--lines", lines]))
    };
    let again = whole(|| {
        let lines = lines();
        let recorder = record(&second, &lines);
        replay(&lines).ends_with_all(0, &["packets replayed"]);
        recorded(recorder, &second)
    });
    assert_eq!(sum(&again), sum(&packets));
    let span = |packets: &[capture::Packet]| {
        let last = packets.last().map_or(0, |last| last.time);
        last - packets.first().map_or(0, |first| first.time)
    };
    // It takes 1.4 times as long, or longer on a slow machine, but for the first packet's lateness.
    assert!(span(&again) * 10 > span(&packets) * 13, "{} {}", span(&again), span(&packets));
    // A damaged file: one error, and nothing is sent.
    let mut bytes = std::fs::read(&first).expect("it is there");
    bytes.pop();
    std::fs::write(&first, bytes).expect("it is written");
    replay(&lines()).ends_with_all(1, &["first.pcap: it is damaged: it is cut off"]);
}

/// Captures until nothing is missing.
fn whole(mut capture: impl FnMut() -> Vec<capture::Packet>) -> Vec<capture::Packet> {
    let mut rounds = std::iter::repeat_with(&mut capture).take(10);
    rounds.find(|packets| sum(packets).is_some()).expect("ten captures lack messages")
}

/// The command that the README names prints its table.
#[test]
fn the_load_is_measured_at_half_and_at_90_percent() {
    let mut load = exchange();
    load.args(["load", "--seconds", "1", "--lines", &lines()]);
    let words = ["peak: ", "| half | ", "| 90 % | ", "tick to trade"];
    Running::start(&mut load).ends_with_all(0, &words);
}

/// Welcomes a client and sends no feed, until the client's first order.
struct Silent {
    welcomed: Option<Instant>,
    traded: Option<Duration>,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Silent {
    fn on_message(&mut self, message: Received<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match Channel::split(message.bytes()) {
            Some((Channel::Login, _)) => {
                let mut welcome = vec![Channel::Login as u8];
                LoginAnswer::Welcome { answers: 0 }.write(&mut welcome);
                out.send(message.peer(), &welcome).expect("a new peer has room");
                self.welcomed = Some(Instant::now());
            }
            Some((Channel::Orders, _)) => {
                self.traded = self.welcomed.map(|welcomed| welcomed.elapsed());
                self.stop.stop();
            }
            _ => {}
        }
        Verdict::Done
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

/// A network may need a moment to reach a new member of a group, so a client waits for the feed
/// before it trades, for 5000 looks of 0.2 ms.
#[test]
fn a_client_waits_for_the_feed_before_it_trades() {
    let nic = SoftDevice::open().expect("the soft device");
    let mut runtime = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
    let stop = runtime.stopper();
    runtime.add(Silent { welcomed: None, traded: None, stop }).expect("a worker");
    let mut listener = Listener::bind(&nic, ([127, 0, 0, 1], 0).into()).expect("an address");
    let greeting = PeerData::new(GREETING).expect("it is short");
    listener.on_request(move |_| Answer::accept().with_data(greeting));
    let port = listener.local_addr().expect("it is bound").port().to_string();
    runtime.add_listener(listener);
    let words = ["trade", "--orders", "100", "--port", &port, "--lines", &lines()];
    let _trader = Running::start(exchange().args(words));
    runtime.run().expect("it runs");
    let traded = runtime.workers()[0].handler().traded.expect("an order came");
    assert!(traded > Duration::from_millis(900), "it traded after {traded:?}");
}

/// Kills the primary in the middle of its work. The standby takes over, and the trader's books and
/// answers are those of the standby: nothing that it was told is lost, and nothing came twice. A
/// kill may come too early or too late, so more follow until one has come in the middle.
/// `DOORBELL_EXCHANGE_KILLS` says how many come at least.
#[test]
fn a_standby_has_every_order_that_was_answered() {
    let kills = std::env::var("DOORBELL_EXCHANGE_KILLS").ok();
    let kills = kills.map_or(4, |kills| kills.parse().expect("a number"));
    let mut prng = Prng::new(doorbell::clock_ns());
    let (mut welcomed, mut followed) = (0, 0);
    for round in 0.. {
        if round >= kills && welcomed > 0 && followed > 0 {
            break;
        }
        assert!(round < 10 * kills, "no kill came in the middle of the work");
        let primary = Served::start();
        let more = ["--standby-of", &primary.port[1]];
        let mut standby = Served::with(primary.lines.clone(), &more);
        standby.server.says("ready to take over");
        let words = ["--orders", "4000", "--rate", "8000", "--drop", "10"];
        let more = ["--standby", &standby.port[1]];
        let mut trader = primary.trader(&[&words[..], &more[..]].concat());
        trader.says("welcome 1");
        thread::sleep(Duration::from_millis(prng.range(20, 700)));
        drop(primary); // kills it
        let said = trader.ends_with_all(0, &["every answer came once", "4000 requests"]);
        println!("round {round}: {}", said.lines().next().unwrap_or_default());
        welcomed += u32::from(said.contains("welcomed 2 times"));
        let said = standby.end();
        followed += u32::from(!said.contains("followed: 0"));
    }
}

/// Sends one damaged message, and waits for the end of the connection.
struct Hostile {
    message: Vec<u8>,
    why: Option<DownReason>,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Hostile {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.send(peer, &self.message).expect("a new peer has room");
    }
    fn on_message(&mut self, _: Received<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.why = Some(why);
        self.stop.stop();
    }
}

#[test]
fn a_damaged_message_ends_its_sender_alone() {
    let served = Served::start();
    let trader = served.trader(&["--orders", "3000"]);
    let nic = SoftDevice::open().expect("the soft device");
    let mut prng = Prng::new(7);
    for round in 0..12 {
        let mut message = vec![Channel::Orders as u8, b'O'];
        match round {
            0 => message.clear(),
            1 => message = vec![9; 40],
            2 => message = vec![Channel::Recovery as u8; 12],
            3 => message = vec![Channel::Digest as u8; 2],
            _ => message.extend((0..prng.below(60)).map(|_| prng.word() as u8)),
        }
        // A whole order would be accepted; this length is that of none.
        message.truncate(40);
        let mut runtime = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
        let stop = runtime.stopper();
        runtime.add(Hostile { message, why: None, stop }).expect("a worker");
        runtime.dial(format!("127.0.0.1:{}", served.port[1])).expect("an address");
        runtime.run().expect("it runs");
        assert!(runtime.workers()[0].handler().why.is_some(), "round {round}");
    }
    trader.ends_with_all(0, &["the books are equal", "3000 requests"]);
    let said = served.end();
    assert!(said.contains("damaged: 12"), "{said}");
}
