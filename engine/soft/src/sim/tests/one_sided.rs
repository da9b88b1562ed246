//! One-sided requests over the wire.

use super::*;
use crate::wc::WcOpcode;

impl End {
    fn ask(&mut self, wr_id: u64, op: SendOp, sge: Sge) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sge, more: &[] };
        unsafe { self.qp.post(&[wr]) }.unwrap();
    }

    fn bytes(&self, block: usize, length: usize) -> Vec<u8> {
        let from = self.region.as_ptr().wrapping_add(block * BLOCK);
        unsafe { core::slice::from_raw_parts(from, length) }.to_vec()
    }

    fn fill(&self, block: usize, bytes: &[u8]) {
        let to = self.region.as_ptr().wrapping_add(block * BLOCK);
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn word(&self, block: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(block, 8).try_into().unwrap())
    }

    fn statuses(&self) -> Vec<(u64, Status)> {
        self.seen.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

const FOUL: Weather = Weather { loss: 100, double: 300, reorder: 300, ..FAIR };
const LONG: usize = 3 * BLOCK - 5;

fn pattern(n: u64) -> Vec<u8> {
    (0..LONG as u64).map(|at| mix(n << 32 | at) as u8).collect()
}

/// A WRITE, READ or atomic is carried out once, however often its packets come.
#[test]
fn foul_weather_is_hidden_from_one_sided_requests() {
    let mut pair = pair(FOUL, 7);
    let [one, two] = &mut pair.ends;
    let at = |block: usize| two.region.remote(block * BLOCK);
    two.fill(20, &pattern(2));
    one.fill(0, &pattern(1));
    for n in 0..60 {
        one.ask(n, SendOp::FetchAdd { at: at(40), add: 1 }, one.sge(100 + n as usize, 8));
    }
    one.ask(60, SendOp::Write(at(30)), one.sge(0, LONG));
    one.ask(61, SendOp::Read(at(20)), one.sge(50, LONG));
    one.ask(62, SendOp::Read(at(30)), one.sge(60, LONG));
    let swap = SendOp::CompareSwap { at: at(40), compare: 60, swap: 7 };
    one.ask(63, swap, one.sge(70, 8));
    pair.run(20_000);
    let [one, two] = &pair.ends;
    assert_eq!(one.statuses(), (0..64).map(|n| (n, Status::Success)).collect::<Vec<_>>());
    let values: Vec<_> = (0..60).map(|n| one.word(100 + n)).collect();
    assert_eq!(values, (0..60).collect::<Vec<_>>());
    assert_eq!((two.word(40), one.word(70)), (7, 60));
    assert_eq!(two.bytes(30, LONG), pattern(1));
    assert_eq!(one.bytes(50, LONG), pattern(2));
    assert_eq!(one.bytes(60, LONG), pattern(1));
    assert!(pair.has(|event| matches!(event, Event::TimedOut { .. })));
    assert!(pair.has(|event| matches!(event, Event::Arrived { new: false, .. })));
}

/// RC-4: the receive for immediate data completes after the bytes have arrived.
#[test]
fn a_write_with_immediate_data_is_there_when_its_receive_completes() {
    let mut pair = pair(FOUL, 7);
    pair.ends[1].recv(2);
    let [one, two] = &mut pair.ends;
    one.fill(0, &pattern(1));
    let at = two.region.remote(30 * BLOCK);
    one.ask(0, SendOp::WriteWithImm(at, 77), one.sge(0, LONG));
    pair.run(2000);
    let [wc] = pair.ends[1].seen[..] else { panic!("{:?}", pair.ends[1].seen) };
    assert_eq!((wc.opcode, wc.imm), (WcOpcode::RecvWriteWithImm, 77));
    assert_eq!(wc.byte_len as usize, LONG);
    assert_eq!(pair.ends[1].bytes(30, LONG), pattern(1));
}

/// A refusal crosses a network that loses most packets, behind the responses before it.
#[test]
fn a_wrong_key_is_refused_through_loss() {
    let mut pair = pair(Weather { loss: 400, ..FAIR }, 7);
    let [one, two] = &mut pair.ends;
    let at = two.region.remote(0);
    let wrong = crate::wr::Remote { rkey: at.rkey ^ 0x1_0000, ..at };
    one.ask(0, SendOp::Read(at), one.sge(50, LONG));
    one.ask(1, SendOp::FetchAdd { at, add: 1 }, one.sge(60, 8));
    one.ask(2, SendOp::FetchAdd { at: wrong, add: 1 }, one.sge(61, 8));
    one.ask(3, SendOp::FetchAdd { at, add: 1 }, one.sge(62, 8));
    pair.run(8000);
    use Status::{Flushed, RemoteAccess, Success};
    let want = [(0, Success), (1, Success), (2, RemoteAccess), (3, Flushed)];
    assert_eq!(pair.ends[0].statuses(), want);
    assert_eq!(pair.ends[1].word(0), 1);
}

/// A response passes messages of its direction that find no receive, unless that mistake is
/// planted.
#[test]
fn responses_pass_messages_that_find_no_receive() {
    for planted in [false, true] {
        let mut pair = pair(FAIR, 7);
        if planted {
            pair.wire.plant(Mistake::ResponseBehindMessages);
        }
        let [one, two] = &mut pair.ends;
        (0..PATIENCE.window as u64 * 4).for_each(|n| two.send(n));
        let at = two.region.remote(0);
        one.ask(0, SendOp::FetchAdd { at, add: 1 }, one.sge(60, 8));
        one.ask(1, SendOp::Read(at), one.sge(50, LONG));
        pair.run(400);
        let all = [(0, Status::Success), (1, Status::Success)];
        assert_eq!(pair.ends[0].statuses(), all[..if planted { 0 } else { 2 }]);
        pair.ends[0].recv(PATIENCE.window as u64 * 4);
        pair.run(2000);
        assert_eq!(pair.ends[0].seen.len(), 2 + PATIENCE.window * 4, "planted: {planted}");
    }
}

/// The request arrives, but its response never does. The side that asked learns of it, and so does
/// the responder when it has something to send itself.
#[test]
fn an_answer_that_never_comes_ends_the_request() {
    let mut pair = pair(FAIR, 7);
    pair.ends[0].recv(1);
    let [one, two] = &mut pair.ends;
    let at = two.region.remote(0);
    one.ask(0, SendOp::FetchAdd { at, add: 1 }, one.sge(60, 8));
    pair.run(3);
    assert_eq!(pair.ends[1].word(0), 1, "it was carried out");
    assert!(pair.ends[0].seen.is_empty(), "and its answer is on its way");
    pair.wire.cut(pair.conn, u64::MAX);
    pair.run(400);
    assert_eq!(pair.ends[0].statuses(), [(0, Status::RetryExceeded)]);
    pair.ends[1].send(9);
    pair.run(400);
    assert_eq!(pair.ends[1].statuses(), [(9, Status::RetryExceeded)]);
}

/// A responder does not wait for a request either when nothing can go back any more.
#[test]
fn a_request_after_the_last_answer_ends_too() {
    let mut pair = pair(FAIR, 7);
    let [one, two] = &mut pair.ends;
    let at = two.region.remote(0);
    two.ask(5, SendOp::Write(one.region.remote(BLOCK)), two.sge(0, 8));
    pair.wire.weather().loss = 1024;
    pair.run(400);
    assert_eq!(pair.ends[1].statuses(), [(5, Status::RetryExceeded)]);
    pair.wire.weather().loss = 0;
    let one = &mut pair.ends[0];
    one.ask(0, SendOp::Read(at), one.sge(60, 8));
    pair.run(200);
    assert_eq!(pair.ends[0].statuses(), [(0, Status::RetryExceeded)]);
}

/// Each mistake that can be planted for a connection shows.
#[test]
fn planted_mistakes_do_what_they_say() {
    let replayed = |mistake: Option<Mistake>| {
        let mut pair = pair(Weather { double: 1024, ..FAIR }, 7);
        mistake.into_iter().for_each(|mistake| pair.wire.plant(mistake));
        let [one, two] = &mut pair.ends;
        let at = two.region.remote(0);
        for n in 0..10 {
            one.ask(n, SendOp::FetchAdd { at, add: 1 }, one.sge(60, 8));
        }
        pair.run(400);
        assert_eq!(pair.ends[0].seen.len(), 10);
        let all_are_fine = pair.ends[0].seen.iter().all(|wc| wc.status.is_ok());
        (all_are_fine, pair.ends[1].word(0))
    };
    assert_eq!(replayed(None), (true, 10));
    // It takes effect again, or is one more than the peer serves at a time, which refuses it.
    assert_ne!(replayed(Some(Mistake::ReplayedAtomic)), (true, 10));
    let read = |mistake: Option<Mistake>| {
        let mut pair = pair(Weather { loss: 100, ..FAIR }, 7);
        mistake.into_iter().for_each(|mistake| pair.wire.plant(mistake));
        let [one, two] = &mut pair.ends;
        two.fill(0, &pattern(3));
        let at = two.region.remote(0);
        for n in 0..5 {
            one.ask(n, SendOp::Read(at), one.sge(10 * (1 + n as usize), LONG));
        }
        pair.run(4000);
        assert!(pair.ends[0].seen.iter().all(|wc| wc.status.is_ok()));
        (1..6).all(|n| pair.ends[0].bytes(10 * n, LONG) == pattern(3))
    };
    assert!(read(None));
    assert!(!read(Some(Mistake::StaleRead)));
}
