//! A lossy feed on two lines ends with the same books.
#![cfg(test)]

use std::collections::VecDeque;

use doorbell::prng::Prng;

use crate::engine::{Engine, Output};
use crate::feed::{Again, Publisher};
use crate::field::{Side, Symbol};
use crate::flow::Flow;
use crate::follower::{Follower, Need};
use crate::itch::Message;
use crate::mold::{Head, Packet, Session};
use crate::ouch::Answer;
use crate::snapshot;

const SESSION: Session = *b"20260102 1";

struct Out(Publisher);

impl Output for Out {
    fn answer(&mut self, _: u32, _: Answer) {}
    fn publish(&mut self, message: Message) {
        self.0.push(&message);
    }
}

/// Sends a packet by both lines, which lose, delay and damage it.
fn send(prng: &mut Prng, packet: &[u8], loss: u32, under_way: &mut Vec<Vec<u8>>) {
    for _line in 0..2 {
        if prng.chance(loss) {
            continue;
        }
        let mut copy = packet.to_vec();
        if prng.chance(10) {
            copy.truncate(prng.below(copy.len() as u64) as usize);
        }
        let at = under_way.len() - prng.below(under_way.len().min(3) as u64 + 1) as usize;
        under_way.insert(at, copy);
    }
}

/// An exchange and a client, with all that is on its way between them.
struct Market {
    prng: Prng,
    engine: Engine,
    out: Out,
    client: Follower,
    under_way: Vec<Vec<u8>>,
    pieces: VecDeque<Vec<u8>>,
    packet: Vec<u8>,
    loss: u32,
    asked: u64,
}

impl Market {
    /// Sends what has not gone out.
    fn publish(&mut self) {
        let Market { prng, out, under_way, packet, loss, .. } = self;
        while out.0.next_packet(packet) {
            send(prng, packet, *loss, under_way);
        }
    }

    /// Gives the client the oldest packets until `left` are under way, and then a piece of a
    /// snapshot.
    fn deliver(&mut self, left: usize) {
        while self.under_way.len() > left {
            self.client.packet(&self.under_way.remove(0), |_, _, _| ());
        }
        if let Some(piece) = self.pieces.pop_front() {
            self.client.snapshot(&piece, |_, _, _| ());
        }
    }

    /// Asks for what the client needs.
    fn ask(&mut self) {
        let Some(need) = self.client.need() else { return };
        self.asked += 1;
        match need {
            Need::Snapshot => {
                let next = self.out.0.next_sequence();
                self.pieces = snapshot::pieces(&self.engine, 0, next, 200);
                assert!(self.pieces.iter().all(|piece| piece.len() <= 200));
                self.client.asked();
            }
            Need::Messages(head) => match self.out.0.again(&head, 300, &mut self.packet) {
                Again::Packet => self.client.packet(&self.packet, |_, _, _| ()),
                Again::Gone(oldest) => self.client.gone(oldest),
                Again::Nothing => panic!("{head:?} has not gone out"),
            },
        }
    }
}

/// Runs a seed; `recover` asks for what is missing. True: the books are equal at the end. And the
/// numbers of requests and of snapshots.
fn run(seed: u64, recover: bool) -> (bool, u64, u64) {
    let symbols = ["DOOR", "BELL"].map(Symbol::new);
    let (mut prng, mut flow) = (Prng::new(seed), Flow::new(seed, &symbols));
    let (size, kept) = (prng.pick(&[64, 200, 1024]), prng.pick(&[8, 64, 10_000]));
    let (loss, comes) = (prng.pick(&[0, 10, 100, 600]), prng.below(300));
    let mut market = Market {
        engine: Engine::new(&symbols),
        out: Out(Publisher::new(SESSION, size, kept)),
        client: Follower::new(SESSION),
        under_way: Vec::new(),
        pieces: VecDeque::new(),
        packet: Vec::new(),
        loss,
        asked: 0,
        prng,
    };
    market.engine.open(0, &mut market.out);
    for time in 1..600 {
        market.engine.request(time, 1, &flow.next_request(), &mut market.out);
        if market.prng.chance(700) {
            market.publish();
        }
        if time < comes {
            // The client is not there yet.
            market.under_way.clear();
            continue;
        }
        market.deliver(4);
        if recover && market.prng.chance(100) {
            market.ask();
        }
    }
    market.publish();
    market.deliver(0);
    market.out.0.heartbeat(&mut market.packet);
    let heartbeat = market.packet.clone();
    market.client.packet(&heartbeat, |_, _, _| ());
    let mut rounds = 0;
    while recover && !market.client.is_current() {
        market.ask();
        market.deliver(0);
        rounds += 1;
        assert!(rounds < 10_000, "seed {seed}: it never gets what it needs");
    }
    assert_eq!(market.client.wrong(), None, "seed {seed}");
    let equal = symbols.into_iter().all(|symbol| {
        [Side::Buy, Side::Sell]
            .into_iter()
            .all(|side| market.engine.book(symbol, side) == market.client.view().book(symbol, side))
    });
    let whole = market.client.next_sequence() == market.out.0.next_sequence();
    (equal && whole, market.asked, market.client.seen().1)
}

#[test]
fn lines_that_lose_and_reorder_leave_no_gap() {
    let (mut asked, mut snapshots) = (0, 0);
    for seed in 0..120 {
        let (equal, requests, taken) = run(seed, true);
        assert!(equal, "seed {seed}");
        (asked, snapshots) = (asked + requests, snapshots + taken);
    }
    assert!(asked > 300 && snapshots > 200, "{asked} requests, {snapshots} snapshots");
    // Planted: nobody asks for what both lines have lost.
    assert!((0..60).any(|seed| !run(seed, false).0));
}

#[test]
fn a_request_for_what_is_not_there_gets_nothing() {
    let mut publisher = Publisher::new(SESSION, 100, 4);
    let message = Message { locate: 0, time: 0, said: crate::itch::Said::System(b'O') };
    let (mut packet, head) = (Vec::new(), Head { session: SESSION, sequence: 1, count: 1 });
    assert_eq!(publisher.again(&head, 300, &mut packet), Again::Nothing);
    publisher.push(&message);
    assert_eq!(publisher.again(&head, 300, &mut packet), Again::Nothing, "it has not gone out");
    assert!(publisher.next_packet(&mut packet));
    assert_eq!(publisher.again(&head, 300, &mut packet), Again::Packet);
    for (sequence, session) in
        [(0, SESSION), (2, SESSION), (u64::MAX, SESSION), (1, *b"other     ")]
    {
        let head = Head { session, sequence, count: 9 };
        assert_eq!(publisher.again(&head, 300, &mut packet), Again::Nothing, "{head:?}");
    }
    // Four messages are kept, whether they went out or not.
    (0..5).for_each(|_| publisher.push(&message));
    assert_eq!(publisher.again(&head, 300, &mut packet), Again::Gone(3));
    assert!(publisher.next_packet(&mut packet));
    assert_eq!(Packet::read(&packet).map(|read| read.head.sequence), Some(3));
}
