//! Receive queues side by side: a shortage in one delays no queue pair of another (SRQ-13, RC-1,
//! RC-7).

use super::*;
use crate::shm::layout::Side;
use crate::wc::{Status, WcOpcode};

/// The number of messages that wait for a receive, one for each slot of a send queue.
const WAITING: usize = CAPS.send_wr as usize;
const ROUNDS: usize = 60;
/// In the slot, in the ring, in a block, in fragments.
const LENGTHS: [usize; 7] = [0, 8, 64, 200, 1500, 9000, 20_000];
/// The room of a message, and where each kind begins.
const SLOT: usize = 32 << 10;
const WAIT: usize = 0;
const SENT: usize = WAITING * SLOT;
const CAME: usize = 2 * SENT;
const LATE: usize = 3 * SENT;

/// A queue pair in the domain of an [`End`], with receives of its own or on a shared queue of its
/// own.
struct Other {
    qp: SoftQp,
    srq: Option<SoftSrq>,
}

impl Other {
    fn of(end: &End) -> Other {
        let srq = end.srq.is_some().then(|| end.nic.create_srq(CAPS.recv_wr).unwrap());
        Other { qp: make_qp(&end.nic, &end.cq, srq.as_ref(), CAPS), srq }
    }

    fn recv(&mut self, wr: RecvWr) {
        unsafe {
            match &self.srq {
                Some(srq) => srq.post(&[wr]).unwrap(),
                None => self.qp.post_recv(&[wr]).unwrap(),
            }
        }
    }

    /// One message of this round and one receive, both with this number.
    fn ask(&mut self, end: &End, round: usize, seed: usize) {
        let (length, slot) = (length_of(round), round % WAITING * SLOT);
        self.recv(RecvWr { wr_id: round as u64, sge: end.sge(CAME + slot, SLOT) });
        end.fill(CAME + slot, &std::vec![0xee; length + 32]);
        end.fill(SENT + slot, &pattern(seed, length));
        let (flags, sge) = (SendFlags::SIGNALED, end.sge(SENT + slot, length));
        let wr = SendWr { wr_id: round as u64, op: SendOp::Send, flags, sge, more: &[] };
        unsafe { self.qp.post(&[wr]).unwrap() };
    }

    /// Checks both completions of the round, and that the message is whole with nothing behind it.
    fn check(&self, end: &End, got: &[Wc], round: usize, seed: usize) {
        let (length, slot) = (length_of(round), round % WAITING * SLOT);
        let all = got.iter().map(|wc| (wc.wr_id, wc.status, wc.qp_num));
        let each = (round as u64, Status::Success, self.qp.num());
        assert!(all.eq([each; 2]), "round {round}: {got:?}");
        let message = |wc: &&Wc| (wc.opcode, wc.byte_len as usize) == (WcOpcode::Recv, length);
        assert_eq!(got.iter().filter(message).count(), 1, "round {round}: {got:?}");
        let came = end.bytes(CAME + slot, length + 32);
        assert_eq!(came[..length], pattern(seed, length), "round {round}");
        assert_eq!(came[length..], [0xee; 32], "round {round}");
    }
}

fn length_of(round: usize) -> usize {
    LENGTHS[round % LENGTHS.len()]
}

/// Polls both ends until each has `enough` completions, or nothing more happens. Time passes, so
/// that a message without a receive retries again and again.
fn gather(one: &mut End, two: &mut End, enough: usize) -> (Vec<Wc>, Vec<Wc>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        if first.len() >= enough && second.len() >= enough {
            break;
        }
        pass(100);
        first.extend(one.poll());
        second.extend(two.poll());
    }
    (first, second)
}

/// `stuck` is the end that lacks receives: the one that made the link, or the other.
fn an_empty_queue_delays_no_other(shared: bool, stuck: Side) {
    let (mut one, mut two) = pair(CAPS, shared);
    let (mut near, mut far) = (Other::of(&one), Other::of(&two));
    join(&mut near.qp, &mut far.qp, 7);
    let (from, to) = match stuck {
        Side::Maker => (&mut two, &mut one),
        Side::Taker | Side::Both => (&mut one, &mut two),
    };
    for n in 0..WAITING {
        from.fill(WAIT + n * SLOT, &pattern(n, length_of(n)));
        from.send(n as u64, WAIT + n * SLOT, length_of(n), SendFlags::SIGNALED).unwrap();
    }
    let (sent, came) = gather(from, to, 1);
    assert!(sent.is_empty() && came.is_empty(), "{sent:?} {came:?}");
    for round in 0..ROUNDS {
        near.ask(&one, round, 2 * round);
        far.ask(&two, round, 2 * round + 1);
        let (first, second) = gather(&mut one, &mut two, 2);
        near.check(&one, &first, round, 2 * round + 1);
        far.check(&two, &second, round, 2 * round);
    }
    let (from, to) = match stuck {
        Side::Maker => (&mut two, &mut one),
        Side::Taker | Side::Both => (&mut one, &mut two),
    };
    (0..WAITING).for_each(|n| to.recv(n as u64, LATE + n * SLOT, SLOT));
    let (sent, came) = gather(from, to, WAITING);
    let all = |list: &[Wc], qp: &SoftQp| {
        let each = |n| (n as u64, Status::Success, qp.num());
        list.iter().map(|wc| (wc.wr_id, wc.status, wc.qp_num)).eq((0..WAITING).map(each))
    };
    assert!(all(&sent, &from.qp) && all(&came, &to.qp), "{sent:?} {came:?}");
    for (n, wc) in came.iter().enumerate() {
        assert_eq!(wc.byte_len as usize, length_of(n));
        assert_eq!(to.bytes(LATE + n * SLOT, length_of(n)), pattern(n, length_of(n)));
    }
}

#[test]
fn an_empty_receive_queue_of_a_queue_pair_delays_no_other() {
    for stuck in [Side::Taker, Side::Maker] {
        an_empty_queue_delays_no_other(false, stuck);
    }
}

#[test]
fn an_empty_shared_receive_queue_delays_no_queue_pair_of_another() {
    for stuck in [Side::Taker, Side::Maker] {
        an_empty_queue_delays_no_other(true, stuck);
    }
}
