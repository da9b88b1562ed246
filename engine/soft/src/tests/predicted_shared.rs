//! The next message is predicted in the shared domain too. There a poll of any queue takes it, and
//! the sends that it acknowledges complete first.

mod again;

use super::*;
use crate::model::cq::{Arm, CompletionQueue, Retire, Stamps};
use crate::provider::Polled;
use crate::state::domain_state::DomainState;
use crate::state::policy::idle::IDLE_AFTER;
use crate::state::qp::State;
use crate::wc::Status;

/// The indexes of the program's queues.
const SENDS: usize = 0;
const RECEIVES: usize = 1;

/// The side of a program that has one queue for the ends of its sends, and one for its receives.
struct Program {
    /// Its poller is that of the receives.
    end: End,
    sends: SoftPoller,
}

impl Program {
    fn state<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> R {
        self.end.poller.cq.domain.enter_shared(f).unwrap()
    }

    fn expects(&self) -> bool {
        self.state(|state| state.predicted.is_known())
    }

    /// The ends of sends that one poll finds.
    fn sent(&mut self) -> Vec<(u64, Status)> {
        let mut out = [Wc::default(); 4];
        let count = self.sends.poll(&mut out);
        out[..count].iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Polls until it predicts the next message.
    fn wait(&mut self) {
        for _ in 0..200 {
            assert_eq!(self.sent(), []);
            if self.expects() {
                return;
            }
        }
        panic!("it has waited, and predicts nothing");
    }
}

/// True once after the awaited entry of that queue of the program.
fn take_fired(state: &mut DomainState, queue: usize) -> bool {
    state.transport.res.completions.get_mut(queue).unwrap().take_fired()
}

/// A program and its peer, which have exchanged two messages each. The first comes through the ring
/// and finds no receive prefetched. Each of the program's receives has a page of its own.
fn talking() -> (Program, End) {
    talking_with(2)
}

/// The same; with one queue, sends and receives end in that of the sends.
fn talking_with(queues: usize) -> (Program, End) {
    talking_in(queues, 16)
}

/// The same; the queue of the sends has that depth.
fn talking_in(queues: usize, depth: u32) -> (Program, End) {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (send_cq, sends) = nic.create_cq(depth, Sharing::Shared).unwrap();
    let (cq, poller) = nic.create_cq(4, Sharing::Shared).unwrap();
    let init = SoftQpInit {
        kind: QpType::Rc,
        send_cq: &send_cq,
        recv_cq: if queues == 1 { &send_cq } else { &cq },
        srq: None,
        caps: CAPS,
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    let qp = nic.create_qp(&init).unwrap();
    let region = nic.register(mapping(1 << 20), Access::all()).unwrap();
    let mut one = Program { end: End { nic, poller, cq, qp, region, srq: None }, sends };
    let mut two = end(CAPS, false);
    join(&mut one.end.qp, &mut two.qp, 7);
    for n in 0..16 {
        one.end.recv(n, 4096 * n as usize, 4096);
        two.recv(n, 4096 * n as usize, 4096);
    }
    for _ in 0..2 {
        ask(&mut one, &mut two, 0);
        assert_eq!((two.poll().len(), one.sent()), (1, Vec::new()));
        two.send(0, 0, 8, SendFlags::INLINE).unwrap();
        assert_eq!(one.sent().len() + one.end.poll().len(), 2);
    }
    (one, two)
}

/// The program posts a signalled send, and its peer a receive for it.
fn ask(one: &mut Program, two: &mut End, wr_id: u64) {
    one.end.send(wr_id, 0, 8, SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
    two.recv(0, 0, 4096);
}

/// CP-2, for every kind of length that the slot holds, with and without an acknowledgement
/// requested.
#[test]
fn a_poll_of_the_sends_takes_the_answer_as_well() {
    for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
        for length in [0, 1, 8, 32, 33, 64, 200, 208, 209, 512, 1023, 1024, 1103, 1104] {
            let (mut one, mut two) = talking();
            ask(&mut one, &mut two, 7);
            assert_eq!(two.poll().len(), 1);
            one.wait();
            let bytes = pattern(length, length);
            two.fill(0, &bytes);
            one.end.fill(8192, &[0xee; 2048]);
            two.send(5, 0, length, flags).unwrap();
            assert_eq!(one.sent(), [(7, Status::Success)], "{length} bytes");
            assert!(!one.expects(), "its receive is used");
            assert_eq!(one.end.bytes(8192, length), bytes, "the poll of the sends has taken it");
            assert!(one.end.bytes(8192 + length, 64).iter().all(|b| *b == 0xee));
            // It was acknowledged at once: the program's next poll may be long in coming.
            let sent: Vec<_> = (0..8).flat_map(|_| two.poll()).collect();
            assert_eq!(sent.len(), usize::from(flags.contains(SendFlags::SIGNALED)));
            let got = one.end.poll();
            assert_eq!(got.len(), 1);
            assert_eq!((got[0].wr_id, got[0].byte_len as usize), (2, length));
            assert_eq!((got[0].status, got[0].qp_num), (Status::Success, one.end.qp.num()));
        }
    }
}

/// The same where somebody polls soon in any case: the poll of the sends leaves the answer to the
/// next poll, which takes it straight from the slot.
fn attended() -> (Program, End) {
    let (mut one, mut two) = talking();
    one.sends.promise_polls(true);
    ask(&mut one, &mut two, 7);
    assert_eq!(two.poll().len(), 1);
    one.wait();
    (one, two)
}

/// CP-2, as above.
#[test]
fn an_answer_is_left_to_the_poll_of_the_receives() {
    for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
        for length in [0, 1, 8, 32, 33, 64, 200, 208, 209, 512, 1023, 1024, 1103, 1104] {
            let (mut one, mut two) = attended();
            let bytes = pattern(length, length);
            two.fill(0, &bytes);
            one.end.fill(8192, &[0xee; 2048]);
            two.send(5, 0, length, flags).unwrap();
            assert_eq!(one.sent(), [(7, Status::Success)], "{length} bytes");
            assert!(one.expects());
            assert!(one.end.bytes(8192, length).iter().all(|b| *b == 0xee), "it is not taken");
            let got = one.end.poll();
            assert_eq!(got.len(), 1);
            assert_eq!((got[0].wr_id, got[0].byte_len as usize), (2, length));
            assert_eq!((got[0].status, got[0].qp_num), (Status::Success, one.end.qp.num()));
            assert_eq!(one.end.bytes(8192, length), bytes);
            assert!(one.end.bytes(8192 + length, 64).iter().all(|b| *b == 0xee));
            assert!(!one.expects(), "its receive is used");
            // So far messages were seldom answered, so it was acknowledged at once.
            let sent: Vec<_> = (0..8).flat_map(|_| two.poll()).collect();
            assert_eq!(sent.len(), usize::from(flags.contains(SendFlags::SIGNALED)));
            assert_eq!((one.end.poll().len(), one.sent().len()), (0, 0), "it comes once");
        }
    }
}

/// Where sends and receives end in one queue with room in the array, nothing is left.
#[test]
fn an_answer_is_not_left_where_the_same_poll_asks_for_it() {
    let (mut one, mut two) = talking_with(1);
    one.sends.promise_polls(true);
    ask(&mut one, &mut two, 7);
    assert_eq!(two.poll().len(), 1);
    one.wait();
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), [(7, Status::Success), (2, Status::Success)]);
}

/// A poll of the receives ends the send too, which waits in its own queue.
#[test]
fn a_poll_of_the_receives_takes_the_answer_at_once() {
    for promised in [false, true] {
        let (mut one, mut two) = talking();
        one.sends.promise_polls(promised);
        ask(&mut one, &mut two, 7);
        assert_eq!(two.poll().len(), 1);
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        let got: Vec<_> = one.end.poll().iter().map(|wc| wc.wr_id).collect();
        assert_eq!((got, one.sent()), (std::vec![2], std::vec![(7, Status::Success)]));
    }
}

/// SQ-2: a send that has ended gives its place back.
#[test]
fn sq_2_an_answer_gives_back_the_place_of_the_send() {
    let (mut one, mut two) = talking_with(1);
    one.sends.promise_polls(true);
    let mut out = [Wc::default()];
    for n in 0..2 * u64::from(CAPS.send_wr) {
        ask(&mut one, &mut two, 100 + n);
        one.end.recv(n, 0, 4096);
        assert!(!two.poll().is_empty());
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
        let numbers = [(); 2].map(|()| (one.sends.poll(&mut out), out[0].wr_id));
        assert_eq!(numbers[0], (1, 100 + n));
        assert!(numbers[1].0 == 1 && numbers[1].1 < 100);
    }
}

/// CP-1: a send behind a READ ends when the bytes of the READ are there, whatever the peer has
/// taken.
#[test]
fn cp_1_an_answer_ends_no_send_behind_a_read_under_way() {
    let (mut one, mut two) = talking();
    one.sends.promise_polls(true);
    two.fill(0, &[7; 64]);
    let remote = Remote { addr: two.region.as_ptr() as u64, rkey: two.region.rkey() };
    one.end.post(6, SendOp::Read(remote), one.end.sge(0, 64), SendFlags::empty()).unwrap();
    ask(&mut one, &mut two, 7);
    assert_eq!((one.sent().len(), two.poll().len()), (0, 1));
    two.send(5, 64, 8, SendFlags::INLINE).unwrap();
    let ended = (0..200).map(|_| one.sent()).find(|ended| !ended.is_empty());
    assert_eq!(ended.unwrap(), [(7, Status::Success)]);
    assert_eq!(one.end.bytes(0, 64), [7; 64]);
}

/// CP-6: whoever has armed the queue of the sends hears of the end of one.
#[test]
fn cp_6_a_send_that_an_answer_ends_wakes_those_who_wait_for_it() {
    let (mut one, mut two) = attended();
    one.state(|state| state.arm(SENDS, Arm::Any));
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), [(7, Status::Success)]);
    assert!(one.state(|state| take_fired(state, SENDS)));
}

/// A queue pair that has failed ends its sends in its own order.
#[test]
fn an_answer_ends_no_send_of_a_queue_pair_that_has_failed() {
    let (mut one, mut two) = attended();
    let num = one.end.qp.num();
    one.state(|state| state.transport.qps.get_mut(num).unwrap().state = State::Err);
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), []);
}

/// A poll without places is one in place of the program, which may sleep: it takes what was left.
#[test]
fn a_poll_without_places_takes_what_was_left() {
    let (mut one, mut two) = attended();
    two.send(5, 0, 8, SendFlags::SIGNALED).unwrap();
    assert_eq!(one.sent(), [(7, Status::Success)]);
    assert_eq!(one.sends.poll(&mut []), 0);
    assert!(!one.expects());
    assert_eq!((0..8).flat_map(|_| two.poll()).count(), 1, "it is acknowledged");
    assert_eq!(one.end.poll().len(), 1);
}

/// What the program does before it polls for the answer changes nothing.
#[test]
fn what_was_left_outlasts_other_calls() {
    for case in 0..5 {
        let (mut one, mut two) = attended();
        two.fill(0, &[9; 64]);
        two.send(5, 0, 64, SendFlags::empty()).unwrap();
        assert_eq!(one.sent(), [(7, Status::Success)]);
        match case {
            // It writes over the slot.
            0 => one.end.send(8, 4096, 32, SendFlags::SIGNALED).unwrap(),
            // A command.
            1 => drop(one.end.nic.register(mapping(1 << 12), Access::all()).unwrap()),
            2 => one.state(|state| state.arm(RECEIVES, Arm::Any)),
            3 => assert_eq!(one.sent(), []),
            // Another message has come behind it.
            _ => two.send(6, 0, 64, SendFlags::empty()).unwrap(),
        }
        let got = one.end.poll();
        assert_eq!((got[0].wr_id, got[0].byte_len), (2, 64), "case {case}");
        assert_eq!(one.end.bytes(8192, 64), [9; 64]);
        assert_eq!(one.state(|state| take_fired(state, RECEIVES)), case == 2, "case {case}");
        let more = usize::from(case == 4);
        assert_eq!(got.len() + one.end.poll().len(), 1 + more, "case {case}");
        assert_eq!(two.poll().len(), usize::from(case == 0));
    }
}

/// CP-5: a queue may overrun in the poll that leaves the answer. Then that poll ends its queue
/// pairs.
#[test]
fn cp_5_the_poll_that_leaves_an_answer_ends_queue_pairs_without_a_place() {
    for is_own in [false, true] {
        let (mut one, mut two) = talking();
        one.sends.promise_polls(true);
        let (narrow, _) = one.end.nic.create_cq(4, Sharing::Shared).unwrap();
        let other = make_qp(&one.end.nic, &narrow, None, CAPS);
        let queue = if is_own { RECEIVES } else { narrow.index };
        ask(&mut one, &mut two, 7);
        ask(&mut one, &mut two, 8);
        assert_eq!(two.poll().len(), 2);
        one.wait();
        two.fill(0, &[9; 8]);
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        one.state(|state| {
            let queue = state.transport.res.completions.get_mut(queue).unwrap();
            (0..5).for_each(|_| queue.push(Wc::default(), Retire::receive(false), 0));
        });
        assert_eq!(one.sent(), [(7, Status::Success), (8, Status::Success)]);
        let num = if is_own { one.end.qp.num() } else { other.num() };
        let state = one.state(|state| state.transport.qps.get_mut(num).unwrap().state);
        assert!(state == State::Err);
        // The four that have a place; or the answer, which is not for the queue pair that ended.
        let got = one.end.poll();
        assert_eq!(got.len(), if is_own { 4 } else { 1 });
        assert!(got.iter().all(|wc| (wc.byte_len == 8) != is_own));
        assert_eq!(one.end.bytes(8192, 8) == [9; 8], !is_own);
    }
}

/// CP-5: if the queue of the sends overruns in the poll that leaves the answer, the answer is not
/// taken any more.
#[test]
fn cp_5_no_answer_is_taken_for_a_queue_pair_that_has_ended() {
    let (mut one, mut two) = talking_in(2, 1);
    one.sends.promise_polls(true);
    (0..2).for_each(|wr_id| ask(&mut one, &mut two, wr_id));
    assert_eq!(two.poll().len(), 2);
    one.wait();
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sends.poll(&mut [Wc::default()]), 1);
    let num = one.end.qp.num();
    assert!(one.state(|state| state.transport.qps.get_mut(num).unwrap().state) == State::Err);
    let got: Vec<_> = (0..8).flat_map(|_| one.end.poll()).collect();
    assert!(got.iter().all(|wc| wc.status == Status::Flushed) && !got.is_empty(), "{got:?}");
}

/// An older entry comes first.
#[test]
fn what_was_left_comes_after_the_entries_of_its_queue() {
    let (mut one, mut two) = talking();
    ask(&mut one, &mut two, 6);
    assert_eq!(two.poll().len(), 1);
    one.wait();
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), [(6, Status::Success)], "its answer lies in the ring now");
    one.sends.promise_polls(true);
    ask(&mut one, &mut two, 7);
    assert_eq!(two.poll().len(), 1);
    one.wait();
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), [(7, Status::Success)]);
    assert!(one.expects(), "this one is left");
    let mut got = [Wc::default(); 1];
    let order = [2, 3].map(|_| (one.end.poller.poll(&mut got), got[0].wr_id));
    assert_eq!(order, [(1, 2), (1, 3)]);
}

/// A NIC ends a send before the receive of its answer.
#[test]
fn a_send_ends_before_the_receive_of_its_answer() {
    let (mut one, mut two) = talking_with(1);
    for n in 3..6 {
        ask(&mut one, &mut two, 10 * n);
        assert_eq!(two.poll().len(), 1);
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        assert_eq!(one.sent(), [(10 * n, Status::Success), (n - 1, Status::Success)]);
    }
}

/// CP-6: whoever has armed the queue of the receives hears of a message that a poll of the other
/// queue has taken.
#[test]
fn cp_6_a_predicted_message_wakes_those_who_wait_for_it() {
    let solicited = SendFlags::SOLICITED;
    let cases = [
        (None, SendFlags::empty(), false),
        (None, solicited, false),
        (Some(Arm::Any), SendFlags::empty(), true),
        (Some(Arm::Solicited), SendFlags::empty(), false),
        (Some(Arm::Solicited), solicited, true),
    ];
    for (arm, flags, wakes) in cases {
        for promised in [false, true] {
            let (mut one, mut two) = talking();
            one.sends.promise_polls(promised);
            ask(&mut one, &mut two, 7);
            assert_eq!(two.poll().len(), 1);
            if let Some(arm) = arm {
                one.state(|state| state.arm(RECEIVES, arm));
            }
            one.wait();
            two.send(5, 0, 8, SendFlags::INLINE | flags).unwrap();
            assert_eq!(one.sent(), [(7, Status::Success)]);
            let is_left = promised && arm.is_none();
            assert_eq!(
                (one.expects(), one.state(|state| take_fired(state, RECEIVES))),
                (is_left, wakes)
            );
            assert_eq!(one.end.poll().len(), 1);
        }
    }
}

/// CP-5: a predicted message for which the queue has no place ends the queue pair at once.
#[test]
fn cp_5_a_predicted_message_without_a_place_ends_the_queue_pair() {
    let (mut one, mut two) = talking();
    for n in 1..=5 {
        ask(&mut one, &mut two, n);
        assert_eq!(two.poll().len(), 1);
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        assert_eq!(one.sent(), [(n, Status::Success)]);
    }
    ask(&mut one, &mut two, 6);
    assert_eq!((two.poll().len(), one.sent()), (0, Vec::from([(6, Status::Flushed)])));
}

/// A program and its peer, where somebody polls soon in any case, and the two ends of other
/// connections of the program, which have been quiet for a while.
fn talking_beside(others: u64) -> (Program, End, Vec<[End; 2]>) {
    let (mut one, two) = attended();
    let other = |wr_id| {
        let nic = one.end.nic.clone();
        let (cq, poller) = nic.create_cq(4, Sharing::Shared).unwrap();
        let qp = make_qp(&nic, &one.sends.cq, None, CAPS);
        let region = nic.register(mapping(1 << 12), Access::all()).unwrap();
        let mut other = End { nic, poller, cq, qp, region, srq: None };
        let mut peer = end(CAPS, false);
        join(&mut other.qp, &mut peer.qp, 7);
        other.recv(wr_id, 0, 64);
        [other, peer]
    };
    let others = (100..100 + others).map(other).collect();
    // Until they are idle.
    for _ in 0..3 * IDLE_AFTER {
        assert_eq!(one.sent(), []);
    }
    (one, two, others)
}

/// The short poll finds nothing, or the answer on the busy link, although there is another link.
#[test]
fn a_quiet_link_keeps_no_poll_from_being_short() {
    let (one, mut two, _beside) = talking_beside(1);
    let poll = |queue| one.state(|state| state.poll_one_shared(queue));
    // Now and then a poll looks at everything.
    let short = (0..32).filter(|_| matches!(poll(SENDS), Polled::Nothing)).count();
    assert!(short > 16, "{short}");
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert!(matches!(poll(SENDS), Polled::One(wc) if wc.wr_id == 7));
    assert!(matches!(poll(RECEIVES), Polled::One(wc) if wc.wr_id == 2));
}

/// Where nobody promises to poll, or somebody waits for an entry, a poll that finds nothing has
/// looked at everything.
#[test]
fn a_poll_that_may_be_the_last_looks_at_everything() {
    for case in 0..2 {
        let (mut one, _two, _beside) = talking_beside(1);
        match case {
            0 => one.sends.promise_polls(false),
            _ => one.state(|state| state.arm(SENDS, Arm::Any)),
        }
        for _ in 0..200 {
            let polled = one.state(|state| state.poll_one_shared(SENDS));
            assert!(matches!(polled, Polled::More), "case {case}");
            assert_eq!(one.sends.cq.poll_more_shared(&mut [Wc::default()]), 0);
        }
    }
}

/// A message on any quiet link is found in a few polls, while the busy one waits.
#[test]
fn a_message_on_a_quiet_link_is_found() {
    let (mut one, _two, mut others) = talking_beside(30);
    for (n, [_, peer]) in others.iter_mut().enumerate() {
        peer.send(5, 0, 8, SendFlags::INLINE).unwrap();
        let got = (0..8).map(|_| one.sent()).find(|got| !got.is_empty());
        assert_eq!(got, Some(std::vec![(100 + n as u64, Status::Success)]));
    }
}

/// A caller with room for two takes the answer behind the end of the send, if both end in one
/// queue.
#[test]
fn an_answer_that_was_left_is_taken_behind_the_send() {
    for queues in [1, 2] {
        let (mut one, mut two) = talking_with(queues);
        one.sends.promise_polls(true);
        ask(&mut one, &mut two, 7);
        assert_eq!(two.poll().len(), 1);
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        let cq = &one.sends.cq;
        assert!(matches!(cq.poll_one_shared(), Polled::One(wc) if wc.wr_id == 7));
        let left = cq.poll_left_shared().map(|wc| wc.wr_id);
        assert_eq!(left, (queues == 1).then_some(2));
        assert!(cq.poll_left_shared().is_none(), "it comes once");
        assert_eq!(one.end.poll().len(), queues - 1);
    }
}

/// A message that comes before a poll in vain has predicted it takes the short way as well, also
/// into the only receive.
#[test]
fn a_message_that_came_too_soon_is_predicted_late() {
    for queues in [1, 2] {
        let (mut one, mut two) = talking_with(queues);
        one.sends.promise_polls(true);
        let receives = if queues == 1 { SENDS } else { RECEIVES };
        for n in 0..20 {
            if n >= 14 {
                // The others are used up.
                one.end.recv(2 + n, 4096 * (n as usize % 16), 4096);
            }
            ask(&mut one, &mut two, 70 + n);
            assert!(!two.poll().is_empty());
            two.send(5, 0, 8, SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
            assert!(!one.expects());
            let polled = [SENDS, receives].map(|cq| one.state(|state| state.poll_one_shared(cq)));
            assert!(matches!(polled[0], Polled::One(wc) if wc.wr_id == 70 + n));
            assert!(matches!(polled[1], Polled::One(wc) if wc.wr_id == 2 + n));
        }
    }
}

/// The short poll of the receives ends the send in its own queue, and wakes those who wait there.
/// Where several sends wait, it does nothing.
#[test]
fn a_short_poll_of_the_receives_ends_the_send_in_its_own_queue() {
    for (armed, sends) in [(false, 1), (true, 1), (false, 2)] {
        let (mut one, mut two) = talking();
        one.sends.promise_polls(true);
        (0..sends).for_each(|n| ask(&mut one, &mut two, 7 + n));
        assert_eq!(two.poll().len() as u64, sends);
        one.wait();
        if armed {
            one.state(|state| {
                state.transport.res.completions.get_mut(SENDS).unwrap().arm(Arm::Any);
            });
        }
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        let polled = one.state(|state| state.poll_one_shared(RECEIVES));
        if sends > 1 {
            assert!(matches!(polled, Polled::More));
            assert_eq!((one.end.poll().len(), one.sent().len()), (1, 2));
            continue;
        }
        assert!(matches!(polled, Polled::One(wc) if wc.wr_id == 2));
        assert_eq!(one.state(|state| take_fired(state, SENDS)), armed);
        assert_eq!(one.sent(), [(7, Status::Success)]);
        assert_eq!((one.end.poll().len(), one.sent().len()), (0, 0), "each comes once");
    }
}

/// CP-5: if the queue of the sends has no place for the end of the send, the answer is not taken.
#[test]
fn cp_5_a_short_poll_takes_no_answer_for_a_queue_pair_that_it_ends() {
    let (mut one, mut two) = talking_in(2, 1);
    one.sends.promise_polls(true);
    ask(&mut one, &mut two, 7);
    assert_eq!(two.poll().len(), 1);
    one.wait();
    one.state(|state| {
        let queue = state.transport.res.completions.get_mut(SENDS).unwrap();
        queue.push(Wc::default(), Retire::receive(false), 0);
    });
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert!(matches!(one.state(|state| state.poll_one_shared(RECEIVES)), Polled::More));
    let num = one.end.qp.num();
    assert!(one.state(|state| state.transport.qps.get_mut(num).unwrap().state) == State::Err);
    let got: Vec<_> = (0..8).flat_map(|_| one.end.poll()).collect();
    assert!(got.iter().all(|wc| wc.status == Status::Flushed) && !got.is_empty(), "{got:?}");
}

/// The program sends, and its peer takes the message and acknowledges it alone. Returns what one
/// poll of the sends for one entry finds.
fn send_alone(one: &mut Program, two: &mut End, wr_id: u64) -> Option<u64> {
    ask(one, two, wr_id);
    (0..3).for_each(|_| _ = two.poll());
    let mut out = [Wc::default()];
    (one.sends.poll(&mut out) > 0).then_some(out[0].wr_id)
}

/// An acknowledgement that has come alone ends its send, wakes those who wait for that, and leaves
/// the prediction as it is.
#[test]
fn an_acknowledgement_alone_ends_a_send() {
    for armed in [false, true] {
        let (mut one, mut two) = attended();
        if armed {
            one.state(|state| {
                state.transport.res.completions.get_mut(SENDS).unwrap().arm(Arm::Any);
            });
        }
        (0..3).for_each(|_| _ = two.poll());
        assert_eq!(one.sent(), [(7, Status::Success)]);
        assert!(one.expects());
        assert_eq!(one.state(|state| take_fired(state, SENDS)), armed);
        for wr_id in 8..100 {
            assert_eq!(send_alone(&mut one, &mut two, wr_id), Some(wr_id));
            assert_eq!(one.sent(), []);
        }
    }
}

/// A program that finds an acknowledgement in each poll sees a message all the same, on the busy
/// link and on a quiet one.
#[test]
fn acknowledgements_keep_no_message_waiting() {
    let found = |one: &mut Program, two: &mut End, message: u64| {
        (1000..1300).any(|wr_id| send_alone(one, two, wr_id) == Some(message))
    };
    let (mut one, mut two) = talking_with(1);
    one.sends.promise_polls(true);
    for message in 2..6 {
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        assert!(found(&mut one, &mut two, message), "message {message}");
        while !one.sent().is_empty() {}
    }
    let (mut one, mut two, mut others) = talking_beside(1);
    others[0][1].send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert!(found(&mut one, &mut two, 100));
}

/// An entry that finds no room in a queue that overwrites replaces the oldest. Entries that went
/// straight to the poll take none.
#[test]
fn a_queue_that_overwrites_never_overruns() {
    let stamps = Stamps { clock: None, wallclock: None, overwrites: true };
    let mut queue = CompletionQueue::new(2, None, Some(stamps));
    for wr_id in 0..5 {
        queue.push(Wc { wr_id, ..Wc::default() }, Retire::receive(false), 2);
        assert!(!queue.has_overrun());
    }
    let left: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(wc, _)| wc.wr_id).collect();
    assert_eq!(left, [3, 4]);
}

/// Entries of an extended queue that keeps no times pass like those of any other; UCX makes one.
#[test]
fn entries_of_a_queue_without_times_pass() {
    fn now() -> u64 {
        0
    }
    let clock = Some(now as fn() -> u64);
    for (clock, wallclock, passes) in [(None, None, 4), (clock, None, 0), (None, clock, 0)] {
        for overwrites in [false, true] {
            let stamps = Stamps { clock, wallclock, overwrites };
            assert_eq!(CompletionQueue::new(4, None, Some(stamps)).passes(), passes);
        }
    }
}

/// A program and its peer. The program has answered messages until its polls found out, while they
/// waited, what they need when the next one comes. The peer has not answered yet.
fn ready() -> (Program, End) {
    let (mut one, mut two) = attended();
    for n in 0..40 {
        if n > 10 && one.state(|state| state.ready.receive) {
            return (one, two);
        }
        two.send(5, 0, 8, SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
        assert_eq!(one.sent(), [(7, Status::Success)]);
        assert_eq!(one.end.poll().len(), 1);
        one.end.recv(n, 8192, 4096);
        ask(&mut one, &mut two, 7);
        // The question, and the end of the answer before it.
        assert_eq!(two.poll().len(), 2);
        one.wait();
    }
    panic!("its polls have found out nothing");
}

/// The receive that a short poll takes after the end of the send.
fn taken_at_once(one: &Program, queue: usize) -> Option<u32> {
    let short = one.state(|state| state.poll_left_at_once::<false>(queue));
    let long = || one.state(|state| state.poll_left_at_once::<true>(queue));
    let is_long = one.state(|state| state.predicted.is_left_long());
    let taken = short.or_else(|| if is_long { long() } else { None });
    taken.map(|wc| wc.byte_len)
}

/// A poll that waits finds out what the next two need: that of the sends and that of the receives.
#[test]
fn what_a_poll_found_out_lets_the_receive_be_taken_at_once() {
    for length in [0, 8, 32, 33, 64, 1024] {
        let (mut one, mut two) = ready();
        assert_eq!(taken_at_once(&one, RECEIVES), None, "nothing has come");
        two.send(5, 0, length, SendFlags::empty()).unwrap();
        assert_eq!(one.sent(), [(7, Status::Success)]);
        assert_eq!(taken_at_once(&one, SENDS), None, "it ends in the other queue");
        assert_eq!(taken_at_once(&one, RECEIVES), Some(length as u32));
        assert_eq!(taken_at_once(&one, RECEIVES), None, "it comes once");
        assert_eq!((one.end.poll().len(), one.sent()), (0, vec![]));
    }
}

/// Whatever changes that in between leaves the receive to a poll that looks again (CP-6).
#[test]
fn what_a_poll_found_out_is_forgotten_when_it_changes() {
    let arm: fn(&mut Program) = |one| one.state(|state| state.arm(RECEIVES, Arm::Any));
    let take_back: fn(&mut Program) = |one| one.sends.promise_polls(false);
    for change in [arm, take_back] {
        let (mut one, mut two) = ready();
        two.send(5, 0, 8, SendFlags::INLINE).unwrap();
        assert_eq!(one.sent(), [(7, Status::Success)]);
        change(&mut one);
        assert_eq!(taken_at_once(&one, RECEIVES), None);
        assert_eq!(one.end.poll().len(), 1);
    }
}

/// A second send that waits is not ended before the first.
#[test]
fn what_a_poll_found_out_does_not_hold_for_another_send() {
    let (mut one, mut two) = ready();
    one.end.send(8, 0, 8, SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
    two.recv(0, 0, 4096);
    assert_eq!(two.poll().len(), 1);
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    let sent: Vec<_> = (0..8).flat_map(|_| one.sent()).collect();
    assert_eq!(sent, [(7, Status::Success), (8, Status::Success)]);
    assert_eq!(one.end.poll().len(), 1);
}
