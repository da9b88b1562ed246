//! The next message is predicted in the shared domain too. There a poll of any queue takes it, and
//! the sends that it acknowledges complete first.

use super::*;
use crate::model::cq::Arm;
use crate::state::domain_state::DomainState;
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
        (None, solicited, false),
        (Some(Arm::Any), SendFlags::empty(), true),
        (Some(Arm::Solicited), SendFlags::empty(), false),
        (Some(Arm::Solicited), solicited, true),
    ];
    for (arm, flags, wakes) in cases {
        let (mut one, mut two) = talking();
        ask(&mut one, &mut two, 7);
        assert_eq!(two.poll().len(), 1);
        if let Some(arm) = arm {
            one.state(|state| state.arm(RECEIVES, arm));
        }
        one.wait();
        two.send(5, 0, 8, SendFlags::INLINE | flags).unwrap();
        assert_eq!(one.sent(), [(7, Status::Success)]);
        let fired = |state: &mut DomainState| {
            state.transport.res.completions.get_mut(RECEIVES).unwrap().take_fired()
        };
        assert_eq!((one.expects(), one.state(fired)), (false, wakes));
        assert_eq!(one.end.poll().len(), 1);
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
