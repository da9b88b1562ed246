//! Calls: each ends once, whatever its answerer, its deadline and its peer do.

use std::collections::BTreeMap;

use super::*;
use crate::rpc::{self, CallId, Calls, Incoming};

const MOST: u32 = 8;
const TIMERS: u64 = 1000;

const CALLING: Config = Config { timers: 16, window: 14, window_min: 14, ..CONFIG };

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered,
    Expired,
    Lost,
}

/// Answers calls: some at once, others later, in another order, or never. It also makes calls of
/// its own.
struct Both {
    calls: Calls,
    ends: BTreeMap<u64, End>,
    late: usize,
    kept: Vec<Token>,
    finished: usize,
    peer: Option<PeerId>,
    other_timers: Vec<u64>,
}

impl Default for Both {
    fn default() -> Both {
        Both {
            calls: Calls::new(MOST, 400, TIMERS),
            ends: BTreeMap::new(),
            late: 0,
            kept: Vec::new(),
            finished: 0,
            peer: None,
            other_timers: Vec::new(),
        }
    }
}

impl Both {
    fn end(&mut self, key: u64, end: End) {
        assert_eq!(self.ends.insert(key, end), None, "call {key} ends twice");
    }
}

/// The answer: the payload, with another first byte.
fn answer(message: &mut Message<'_>) -> usize {
    let length = message.len() - rpc::HEADER;
    let write = |room: &mut [u8]| {
        room[0] = 9;
        length
    };
    rpc::answer(message, write).unwrap()
}

impl<P: Provider> Handler<P> for Both {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.calls.incoming(out, &message) {
            Incoming::Call(payload) => {
                if payload.first() == Some(&1)
                    && let Some(token) = out.keep(&message)
                {
                    self.kept.push(token);
                    return Verdict::Keep(token);
                }
                if payload.first() == Some(&2) {
                    return Verdict::Done;
                }
                Verdict::Reply { len: answer(&mut message) }
            }
            Incoming::Answer { key, bytes } => {
                assert_eq!(
                    (bytes[0], bytes.last_chunk()),
                    (9, Some(&key.to_le_bytes())),
                    "another's answer"
                );
                self.end(key, End::Answered);
                Verdict::Done
            }
            Incoming::Late => {
                self.late += 1;
                Verdict::Done
            }
            Incoming::Foreign => Verdict::Done,
        }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
    }
    fn on_finished_sending(&mut self, _: PeerId, _: &mut Outbox<'_, P>) {
        self.finished += 1;
    }
    fn on_peer_down(&mut self, peer: PeerId, _: DownReason, out: &mut Outbox<'_, P>) {
        while let Some(key) = self.calls.lost(out, peer) {
            self.end(key, End::Lost);
        }
    }
    fn on_timer(&mut self, timer: u64, _: &mut Outbox<'_, P>) {
        match self.calls.expired(timer) {
            Some(key) => self.end(key, End::Expired),
            None => self.other_timers.push(timer),
        }
    }
}

/// A call with a payload that begins with `kind` and ends with `key`.
fn call(
    side: &mut Side<Both>,
    (kind, key): (u8, u64),
    deadline: Option<u64>,
) -> Result<CallId, SendError> {
    let peer = side.worker.handler().peer.unwrap();
    let mut payload = vec![kind; 1 + key as usize % 300];
    payload.extend(key.to_le_bytes());
    with_calls(side, |calls, out| calls.call(out, peer, &payload, key, deadline))
}

/// Calls and outbox at once, from outside the handler.
fn with_calls<T>(
    side: &mut Side<Both>,
    act: impl FnOnce(&mut Calls, &mut Outbox<'_, Soft>) -> T,
) -> T {
    let mut calls = std::mem::replace(&mut side.worker.handler_mut().calls, Calls::new(0, 0, 0));
    let result = act(&mut calls, &mut side.worker.outbox());
    side.worker.handler_mut().calls = calls;
    result
}

fn pair() -> (Side<Both>, Side<Both>, (u32, u32)) {
    let mut sides = [(); 2].map(|()| side_of(&CALLING, Both::default()));
    let [one, two] = &mut sides;
    let nums = connect(one, two);
    let [one, two] = sides;
    (one, two, nums)
}

fn turns(one: &mut Side<Both>, two: &mut Side<Both>) {
    for _ in 0..100 {
        one.worker.turn();
        two.worker.turn();
    }
}

/// Many calls at a time; some are answered later, the last one first. Each gets its own answer.
#[test]
fn answers_come_in_any_order() {
    let (mut one, mut two, _) = pair();
    for key in 0..MOST.into() {
        call(&mut one, (u8::from(key < 4), key), None).unwrap();
    }
    assert_eq!(call(&mut one, (0, 99), None), Err(SendError::TooMany));
    turns(&mut one, &mut two);
    assert_eq!((one.worker.handler().ends.len(), two.worker.kept()), (4, 4));
    while let Some(token) = two.worker.handler_mut().kept.pop() {
        let mut out = two.worker.outbox();
        let length = answer(&mut out.kept(token).unwrap());
        out.reply(token, length).unwrap();
        turns(&mut one, &mut two);
        let left = two.worker.handler().kept.len() as u64;
        assert!(one.worker.handler().ends.contains_key(&left), "the newest first");
    }
    let calls = &one.worker.handler().calls;
    assert_eq!((calls.pending(), one.worker.handler().ends.len()), (0, MOST as usize));
}

/// A message that is no call and no answer, or only claims to be one, ends nothing.
#[test]
fn other_messages_end_nothing() {
    let (mut one, mut two, _) = pair();
    call(&mut one, (2, 3), None).unwrap();
    turns(&mut one, &mut two);
    let back = two.worker.handler().peer.unwrap();
    let answer = |number: u32| [number.to_le_bytes(), 0xdb1c_0002u32.to_le_bytes()].concat();
    for bytes in [vec![], vec![1; 7], vec![1; 300], answer(7 << 16), answer(5), answer(u32::MAX)] {
        two.worker.outbox().send(back, &bytes).unwrap();
    }
    turns(&mut one, &mut two);
    let hands = one.worker.handler();
    assert_eq!((hands.calls.pending(), hands.ends.len(), hands.late), (1, 0, 3));
}

/// Deadlines, cancelled calls, late answers, and the end of the peer, in every mixture: each call
/// ends once, and none is left.
#[test]
fn each_call_ends_once() {
    let mut seed = 3u64;
    let mut dice = move |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let mut seen = [0; 4];
    for _ in 0..60 {
        let (mut one, mut two, nums) = pair();
        let (mut open, mut cancelled, mut key) = (Vec::new(), 0, 0);
        for now in 0..60 {
            let deadline = (dice(2) == 0).then(|| now + dice(20));
            if let Ok(id) = call(&mut one, (dice(3) as u8, key), deadline) {
                open.push(id);
                key += 1;
            }
            if dice(6) == 0 && !open.is_empty() {
                let id = open.swap_remove(dice(open.len() as u64) as usize);
                let was = with_calls(&mut one, |calls, out| calls.cancel(out, id));
                let twice = with_calls(&mut one, |calls, out| calls.cancel(out, id));
                assert_eq!(twice, None);
                if let Some(key) = was {
                    cancelled += 1;
                    assert!(!one.worker.handler().ends.contains_key(&key));
                }
            }
            if dice(5) == 0 && !two.worker.handler().kept.is_empty() {
                let some = dice(two.worker.handler().kept.len() as u64) as usize;
                let token = two.worker.handler_mut().kept.swap_remove(some);
                let mut out = two.worker.outbox();
                let length = answer(&mut out.kept(token).unwrap());
                out.reply(token, length).unwrap();
            }
            for _ in 0..dice(4) {
                one.worker.turn();
                two.worker.turn();
            }
            one.worker.advance(now);
        }
        assert!(one.intake.gone(nums.0) && two.intake.gone(nums.1));
        turns(&mut one, &mut two);
        one.worker.advance(1000);
        let hands = one.worker.handler();
        assert_eq!((hands.calls.pending(), hands.other_timers.len()), (0, 0));
        assert_eq!(hands.ends.len() as u64 + cancelled, key);
        assert_eq!(one.worker.next_timer(), None);
        for end in one.worker.handler().ends.values() {
            seen[*end as usize] += 1;
        }
        seen[3] += one.worker.handler().late;
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
}

/// The answer to a call that has expired is late, however many calls were made since: neither one
/// slot nor many use a number again soon.
#[test]
fn a_late_answer_ends_no_later_call() {
    for most in [1, 1 << 16] {
        let (mut one, mut two, _) = pair();
        one.worker.handler_mut().calls = Calls::new(most, 400, TIMERS);
        call(&mut one, (1, 0), Some(5)).unwrap();
        turns(&mut one, &mut two);
        one.worker.advance(5);
        assert_eq!(one.worker.handler().ends, BTreeMap::from([(0, End::Expired)]));
        for _ in 0..65_535 {
            let id = loop {
                match call(&mut one, (2, 1), None) {
                    Ok(id) => break id,
                    Err(_) => turns(&mut one, &mut two),
                }
            };
            assert_eq!(with_calls(&mut one, |calls, out| calls.cancel(out, id)), Some(1));
        }
        turns(&mut one, &mut two);
        call(&mut one, (2, 2), None).unwrap();
        let token = two.worker.handler_mut().kept.pop().unwrap();
        let mut out = two.worker.outbox();
        let length = answer(&mut out.kept(token).unwrap());
        out.reply(token, length).unwrap();
        turns(&mut one, &mut two);
        let hands = one.worker.handler();
        assert_eq!((hands.late, hands.calls.pending(), hands.ends.len()), (1, 1, 1));
    }
}

/// Latency is recorded on request, for calls that were answered, on the worker's clock.
#[test]
fn answered_calls_are_measured() {
    let (mut one, mut two, _) = pair();
    call(&mut one, (0, 1), None).unwrap();
    turns(&mut one, &mut two);
    assert_eq!(one.worker.handler().calls.latency(), None);
    one.worker.handler_mut().calls.measure();
    for (key, takes) in [(2, 0), (3, 5), (4, 12)] {
        call(&mut one, (u8::from(takes > 0), key), None).unwrap();
        turns(&mut one, &mut two);
        let now = one.worker.outbox().now();
        one.worker.advance(now + takes);
        if let Some(token) = two.worker.handler_mut().kept.pop() {
            let mut out = two.worker.outbox();
            let length = answer(&mut out.kept(token).unwrap());
            out.reply(token, length).unwrap();
        }
        turns(&mut one, &mut two);
    }
    let lost = call(&mut one, (2, 5), None).unwrap();
    with_calls(&mut one, |calls, out| calls.cancel(out, lost)).unwrap();
    let latency = one.worker.handler().calls.latency().unwrap();
    assert_eq!((latency.count(), latency.sum(), latency.quantile(0.5)), (3, 17, 5));
}

/// A side makes calls with a deadline, and finishes sending: it still gets its answers, also late
/// ones. When the other side has answered and finishes too, the rest is lost with the connection.
#[test]
fn calls_are_answered_after_their_caller_finished_sending() {
    let (mut one, mut two, _) = pair();
    let (peer, back) = (one.worker.handler().peer.unwrap(), two.worker.handler().peer.unwrap());
    for (kind, key) in [(0, 0), (1, 1), (1, 2), (2, 3)] {
        call(&mut one, (kind, key), Some(10 + key)).unwrap();
    }
    one.worker.outbox().finish_sending(peer);
    assert_eq!(call(&mut one, (0, 9), Some(50)), Err(SendError::FinishedSending));
    assert_eq!(one.worker.handler().calls.pending(), 4, "the refused call is none");
    turns(&mut one, &mut two);
    assert_eq!((two.worker.handler().finished, two.worker.kept()), (1, 2));
    one.worker.advance(11);
    while let Some(token) = two.worker.handler_mut().kept.pop() {
        let mut out = two.worker.outbox();
        let length = answer(&mut out.kept(token).unwrap());
        out.reply(token, length).unwrap();
    }
    // Calls of its own get no answer any more; they are not lost before the end.
    call(&mut two, (0, 7), Some(20)).unwrap();
    two.worker.outbox().finish_sending(back);
    turns(&mut one, &mut two);
    let hands = one.worker.handler();
    let ends = [(0, End::Answered), (1, End::Expired), (2, End::Answered), (3, End::Lost)];
    assert_eq!(hands.ends, BTreeMap::from(ends));
    assert_eq!((hands.late, hands.finished, one.worker.next_timer()), (1, 1, None));
    assert_eq!(two.worker.handler().ends, BTreeMap::from([(7, End::Lost)]));
}
