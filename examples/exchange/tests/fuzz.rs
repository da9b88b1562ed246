//! Each parser of the exchange under changed messages: it refuses them, or what it reads is written
//! as it was. See `examples/tests/fuzz`.

#[path = "../../tests/fuzz/mod.rs"]
mod fuzz;

use std::path::PathBuf;

use doorbell_exchange::capture::{self, Kind, Writer};
use doorbell_exchange::engine::{Engine, Output};
use doorbell_exchange::feed::{Arbiter, Publisher};
use doorbell_exchange::flow::Flow;
use doorbell_exchange::itch::Message;
use doorbell_exchange::log::{RECORD, Record};
use doorbell_exchange::mold::{self, Head, Packet};
use doorbell_exchange::ouch::{Answer, Request};
use doorbell_exchange::snapshot::{self, End};
use doorbell_exchange::view::View;
use doorbell_exchange::wire::{Answers, Digest, Login, LoginAnswer, SESSION, read_number, symbols};

use fuzz::fuzz;

/// What an engine says of a seeded flow.
#[derive(Default)]
struct Said {
    answers: Vec<Vec<u8>>,
    messages: Vec<Message>,
}

impl Output for Said {
    fn answer(&mut self, _: u32, answer: Answer) {
        self.answers.push(bytes(|to| answer.write(to)));
    }
    fn publish(&mut self, message: Message) {
        self.messages.push(message);
    }
}

fn bytes(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

/// Requests of a flow, an engine that has taken them, and what it said.
fn day() -> (Vec<Request>, Engine, Said) {
    let symbols = symbols(2);
    let (mut flow, mut engine, mut said) =
        (Flow::new(1, &symbols), Engine::new(&symbols), Said::default());
    engine.open(0, &mut said);
    let requests: Vec<Request> = (0..200).map(|_| flow.next_request()).collect();
    for (time, request) in (1..).zip(&requests) {
        engine.request(time, 1, request, &mut said);
    }
    (requests, engine, said)
}

#[test]
fn orders() {
    let corpus: Vec<_> = day().0.iter().map(|one| bytes(|to| one.write(to))).collect();
    fuzz("OUCH requests", &corpus, |message| {
        let Some(request) = Request::read(message) else { return false };
        let again = bytes(|to| request.write(to));
        // An appendage is not kept.
        let fixed = again.len() - 2;
        assert!(message.starts_with(&again) || message[..fixed] == again[..fixed], "{request:?}");
        true
    });
}

#[test]
fn answers() {
    let corpus = day().2.answers;
    fuzz("OUCH answers", &corpus, |message| {
        let Some(answer) = Answer::read(message) else { return false };
        let again = bytes(|to| answer.write(to));
        assert_eq!(Answer::read(&again), Some(answer));
        assert!(again.len() <= message.len());
        true
    });
}

#[test]
fn market_data() {
    let corpus: Vec<_> = day().2.messages.iter().map(|one| bytes(|to| one.write(to))).collect();
    let mut view = View::default();
    fuzz("ITCH messages", &corpus, |message| {
        let Some(read) = Message::read(message) else { return false };
        let mut again = bytes(|to| read.write(to));
        assert_eq!(again.len(), message.len());
        // The tracking number and the description of a security are not kept.
        again[3..5].copy_from_slice(&message[3..5]);
        let kept = if message[0] == b'R' { 19 } else { message.len() };
        assert_eq!(again[..kept], message[..kept]);
        let _ = view.apply(&read);
        true
    });
}

#[test]
fn packets_and_gaps() {
    let mut publisher = Publisher::new(SESSION, 200, 1000);
    day().2.messages.iter().for_each(|message| publisher.push(message));
    let (mut corpus, mut packet) = (Vec::new(), Vec::new());
    while publisher.next_packet(&mut packet) {
        corpus.push(packet.clone());
    }
    let mut arbiter = Arbiter::new(SESSION);
    fuzz("MoldUDP64 packets", &corpus, |message| {
        arbiter.packet(message, |_, next| assert!(next > 1));
        let _ = arbiter.missing();
        let Some(packet) = Packet::read(message) else { return false };
        let mut again = bytes(|to| packet.head.write(to));
        packet.messages().for_each(|one| mold::put(&mut again, one));
        assert_eq!(again, message);
        true
    });
    let heads = [(1, 1), (0, 9), (u64::MAX, u16::MAX), (100, 300)];
    let corpus = heads
        .map(|(sequence, count)| bytes(|to| Head { session: SESSION, sequence, count }.write(to)));
    fuzz("MoldUDP64 requests", &corpus, |message| {
        let Some(request) = Head::read_request(message) else { return false };
        assert_eq!(bytes(|to| request.write(to)), message);
        let _ = publisher.again(&request, 500, &mut packet);
        true
    });
}

#[test]
fn snapshots() {
    let corpus: Vec<_> = snapshot::pieces(&day().1, 7, 1234, 300).into();
    fuzz("snapshots", &corpus, |piece| snapshot::take(piece, &mut View::default()).is_some());
    let corpus = [1, 99, u64::MAX].map(|sequence| bytes(|to| End { sequence }.write(to)));
    fuzz("ends of snapshots", &corpus, |message| {
        let Some(end) = End::read(message) else { return false };
        let text = std::str::from_utf8(&message[1..]).expect("text");
        let digits = text.trim_matches(' ').trim_start_matches('0');
        assert_eq!(digits, end.sequence.to_string().trim_start_matches('0'));
        true
    });
}

#[test]
fn what_goes_over_a_connection() {
    let corpus = [1, u32::MAX].map(|user| bytes(|to| Login { user, answers: 8 }.write(to)));
    fuzz("logins", &corpus, |message| {
        let Some(login) = Login::read(message) else { return false };
        assert_eq!(bytes(|to| login.write(to)), message);
        true
    });
    let answers = Answers { count: 3, sum: 4 };
    let corpus = [bytes(|to| Digest { sequence: 1, sum: 2, answers }.write(to))];
    fuzz("digests", &corpus, |message| {
        let Some(digest) = Digest::read(message) else { return false };
        assert_eq!(bytes(|to| digest.write(to)), message);
        true
    });
    let corpus = [LoginAnswer::Welcome { answers: 8 }, LoginAnswer::Again];
    fuzz("welcomes", &corpus.map(|answer| bytes(|to| answer.write(to))), |message| {
        let Some(answer) = LoginAnswer::read(message) else { return false };
        assert_eq!(bytes(|to| answer.write(to)), message);
        true
    });
    fuzz("numbers", &[vec![1; 8]], |message| {
        let Some(number) = read_number(message) else { return false };
        assert_eq!(number.to_be_bytes(), message);
        true
    });
}

#[test]
fn the_log() {
    let requests = day().0;
    let record = |request| Record { time: 5, user: 6, request }.to_bytes(9).to_vec();
    let corpus: Vec<_> = requests.iter().map(|request| record(*request)).collect();
    fuzz("log records", &corpus, |message| {
        let Ok(bytes) = <&[u8; RECORD]>::try_from(message) else { return false };
        let Some(record) = Record::read(bytes, 9) else { return false };
        assert_eq!(record.to_bytes(9), *bytes);
        true
    });
}

/// Changed in the times alone, a file is read; changed anywhere else, it is damaged.
#[test]
fn captures() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz.pcap");
    let mut writer = Writer::create(&path, &[]).expect("a file");
    for (n, request) in (0..).zip(day().0.iter().take(5)) {
        let order = bytes(|to| request.write(to));
        writer.write(n * 1_000_000, Kind::Order(7), &order).expect("it is written");
        writer.write(n * 1_000_000, Kind::Feed(1), &order).expect("it is written");
    }
    writer.finish().expect("it is written");
    let file = std::fs::read(&path).expect("it is there");
    fuzz("captures", &[file], |bytes| match capture::read(bytes) {
        Ok(packets) => {
            let lengths: usize = packets.iter().map(|packet| packet.payload.len() + 44).sum();
            assert_eq!(24 + lengths, bytes.len());
            true
        }
        Err(error) => {
            assert!(error.to_string().starts_with("it is "));
            false
        }
    });
}
