//! The next message is predicted in the shared domain too. There a poll of any queue takes it, and
//! the sends that it acknowledges complete first.

use super::*;
use crate::model::cq::{Arm, Retire};
use crate::state::domain_state::DomainState;
use crate::state::qp::State;
use crate::wc::Status;

/// The index of the program's queue for receives.
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

/// True once after the awaited entry of the program's queue for receives.
fn take_fired(state: &mut DomainState) -> bool {
    state.transport.res.completions.get_mut(RECEIVES).unwrap().take_fired()
}

/// A program and its peer, which have exchanged two messages each. The first comes through the ring
/// and finds no receive prefetched. Each of the program's receives has a page of its own.
fn talking() -> (Program, End) {
    talking_with(2)
}

/// The same; with one queue, sends and receives end in that of the sends.
fn talking_with(queues: usize) -> (Program, End) {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (send_cq, sends) = nic.create_cq(16, Sharing::Shared).unwrap();
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
        for length in [0, 1, 8, 32, 33, 64, 200, 208, 209, 512, 1023] {
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
        for length in [0, 1, 8, 32, 33, 64, 200, 208, 209, 512, 1023] {
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
        assert_eq!(one.state(take_fired), case == 2, "case {case}");
        let more = usize::from(case == 4);
        assert_eq!(got.len() + one.end.poll().len(), 1 + more, "case {case}");
        assert_eq!(two.poll().len(), usize::from(case == 0));
    }
}

/// CP-5: a queue may have overrun in the poll that left the answer.
#[test]
fn cp_5_the_poll_that_takes_what_was_left_ends_queue_pairs_without_a_place() {
    let (mut one, mut two) = attended();
    let (narrow, _) = one.end.nic.create_cq(1, Sharing::Shared).unwrap();
    let other = make_qp(&one.end.nic, &narrow, None, CAPS);
    one.wait();
    two.send(5, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.sent(), [(7, Status::Success)]);
    one.state(|state| {
        let narrow = state.transport.res.completions.get_mut(narrow.index).unwrap();
        (0..2).for_each(|_| narrow.push(Wc::default(), Retire::receive(false), 0));
    });
    assert!(one.expects(), "the answer is left");
    assert_eq!(one.end.poll().len(), 1);
    let state = one.state(|state| state.transport.qps.get_mut(other.num()).unwrap().state);
    assert!(state == State::Err);
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
            let is_left = promised && arm.is_none() && flags.is_empty();
            assert_eq!((one.expects(), one.state(take_fired)), (is_left, wakes));
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
