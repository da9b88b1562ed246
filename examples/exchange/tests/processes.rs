//! An exchange in a process of its own, traders whose feeds lose datagrams, and a hostile client.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../tests/process/mod.rs"]
mod process;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::prelude::*;
use doorbell::prng::Prng;
use doorbell_exchange::wire::Channel;

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
    // The third joins late: it gets the day from the first message on.
    let one = served.trader(&["--orders", "3000", "--drop", "10", "--seed", "1"]);
    let two = served.trader(&["--orders", "3000", "--drop", "300", "--seed", "2"]);
    one.ends_with_all(0, &["the books are equal", "3000 requests"]);
    let said = two.ends_with_all(0, &["the books are equal", "3000 requests"]);
    assert!(!said.contains(" 0 requests for gaps"), "nothing was missing: {said}");
    let late = served.trader(&["--orders", "500", "--seed", "3"]);
    late.ends_with_all(0, &["the books are equal", "500 requests"]);
    let said = served.end();
    assert!(said.contains("damaged: 0"), "{said}");
}

/// Kills the primary in the middle of its work. The standby takes over, and the trader's books and
/// answers are those of the standby: nothing that it was told is lost, and nothing came twice.
/// `DOORBELL_EXCHANGE_KILLS` says how often.
#[test]
fn a_standby_has_every_order_that_was_answered() {
    let kills = std::env::var("DOORBELL_EXCHANGE_KILLS").ok();
    let kills = kills.map_or(4, |kills| kills.parse().expect("a number"));
    let mut prng = Prng::new(doorbell::clock_ns());
    let (mut welcomed, mut followed) = (0, 0);
    for round in 0..kills {
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
    assert!(welcomed > 0 && followed > 0, "no kill came in the middle of the work");
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
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
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
