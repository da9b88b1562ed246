//! A lossy feed on two lines ends with the same books.
#![cfg(test)]

use doorbell::prng::Prng;

use crate::engine::{Engine, Output};
use crate::feed::{Arbiter, Publisher};
use crate::field::{Side, Symbol};
use crate::flow::Flow;
use crate::itch::Message;
use crate::mold::Session;
use crate::ouch::Answer;
use crate::view::View;

const SESSION: Session = *b"20260102 1";

struct Out(Publisher);

impl Output for Out {
    fn answer(&mut self, _: u32, _: Answer) {}
    fn publish(&mut self, message: Message) {
        self.0.push(&message);
    }
}

/// The client: the lines put together, and its books.
struct Client {
    arbiter: Arbiter,
    view: View,
    wrong: Option<String>,
}

impl Client {
    fn take(&mut self, packet: &[u8]) {
        let Client { arbiter, view, wrong } = self;
        arbiter.packet(packet, |message, _| {
            let applied = Message::read(message).map(|message| view.apply(&message));
            if !matches!(applied, Some(Ok(()))) {
                wrong.get_or_insert_with(|| format!("{applied:?}"));
            }
        });
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

/// Runs a seed; `recover` asks for what is missing. True: the books are equal at the end. And the
/// number of requests.
fn run(seed: u64, recover: bool) -> (bool, u64) {
    let symbols = ["DOOR", "BELL"].map(Symbol::new);
    let (mut prng, mut flow) = (Prng::new(seed), Flow::new(seed, &symbols));
    let loss = prng.pick(&[0, 10, 100, 600]);
    let mut engine = Engine::new(&symbols);
    let mut out = Out(Publisher::new(SESSION, prng.pick(&[64, 200, 1024])));
    let mut client = Client { arbiter: Arbiter::new(SESSION), view: View::default(), wrong: None };
    let (mut under_way, mut packet, mut asked) = (Vec::new(), Vec::new(), 0);
    engine.open(0, &mut out);
    for time in 1..600 {
        engine.request(time, 1, &flow.next_request(), &mut out);
        while prng.chance(700) && out.0.next_packet(&mut packet) {
            send(&mut prng, &packet, loss, &mut under_way);
        }
        while under_way.len() > 4 {
            client.take(&under_way.remove(0));
        }
        if recover
            && prng.chance(100)
            && let Some(request) = client.arbiter.missing()
            && out.0.again(&request, 300, &mut packet)
        {
            asked += 1;
            client.take(&packet);
        }
    }
    while out.0.next_packet(&mut packet) {
        send(&mut prng, &packet, loss, &mut under_way);
    }
    under_way.iter().for_each(|packet| client.take(packet));
    out.0.heartbeat(&mut packet);
    client.take(&packet);
    while recover && let Some(request) = client.arbiter.missing() {
        assert!(out.0.again(&request, 300, &mut packet), "seed {seed}: {request:?} is not there");
        asked += 1;
        client.take(&packet);
    }
    assert_eq!(client.wrong, None, "seed {seed}");
    let equal = symbols.into_iter().all(|symbol| {
        [Side::Buy, Side::Sell]
            .into_iter()
            .all(|side| engine.book(symbol, side) == client.view.book(symbol, side))
    });
    (equal && client.arbiter.next_sequence() == out.0.next_sequence(), asked)
}

#[test]
fn lines_that_lose_and_reorder_leave_no_gap() {
    let mut asked = 0;
    for seed in 0..60 {
        let (equal, requests) = run(seed, true);
        assert!(equal, "seed {seed}");
        asked += requests;
    }
    assert!(asked > 50, "{asked} requests");
    // Planted: nobody asks for what both lines have lost.
    assert!((0..60).any(|seed| !run(seed, false).0));
}

#[test]
fn a_request_for_what_is_not_there_gets_nothing() {
    let mut publisher = Publisher::new(SESSION, 100);
    let (mut packet, head) =
        (Vec::new(), crate::mold::Head { session: SESSION, sequence: 1, count: 1 });
    assert!(!publisher.again(&head, 300, &mut packet));
    publisher.push(&Message { locate: 0, time: 0, said: crate::itch::Said::System(b'O') });
    assert!(!publisher.again(&head, 300, &mut packet), "it has not gone out");
    assert!(publisher.next_packet(&mut packet) && publisher.again(&head, 300, &mut packet));
    for (sequence, session) in
        [(0, SESSION), (2, SESSION), (u64::MAX, SESSION), (1, *b"other     ")]
    {
        let head = crate::mold::Head { session, sequence, count: 9 };
        assert!(!publisher.again(&head, 300, &mut packet), "{head:?}");
    }
}
