//! UC over a link (UC-1): nothing is acknowledged, nothing waits, nobody is told.

use super::*;
use crate::provider::AsyncEvents;
use crate::wc::{Status, WcFlags, WcOpcode};

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const WIDE: QpCaps = QpCaps { send_wr: 64, ..CAPS };

/// A connected pair of UC queue pairs.
fn pair_of_uc() -> (End, End) {
    let side = || {
        let mut end = end(WIDE, false);
        end.qp = make_qp_of(QpType::Uc, &end.nic, &end.cq, None, WIDE);
        end
    };
    let (mut one, mut two) = (side(), side());
    join(&mut one.qp, &mut two.qp, 7);
    one.poll();
    two.poll();
    (one, two)
}

fn statuses(list: &[Wc]) -> Vec<(u64, Status)> {
    list.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn uc_messages_of_every_length_arrive() {
    let (mut one, mut two) = pair_of_uc();
    for (n, length) in [0, 1, 40, 41, 200, 2032, 2033, 9000, 100_000].into_iter().enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        two.recv(9, 0, 200_000);
        one.post(1, SendOp::SendWithImm(77), one.sge(0, length), SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!(statuses(&sent), [(1, Status::Success)]);
        let [wc] = came[..] else { panic!("{came:?}") };
        assert_eq!((wc.wr_id, wc.byte_len as usize, wc.imm), (9, length, 77));
        assert_eq!((wc.opcode, wc.flags), (WcOpcode::Recv, WcFlags::WITH_IMM));
        assert_eq!(two.bytes(0, length), bytes);
    }
}

/// Complete when sent: the peer has not even looked.
#[test]
fn uc_a_send_completes_when_it_is_on_its_way() {
    let (mut one, _two) = pair_of_uc();
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    one.send(2, 0, 8, SIGNALED).unwrap();
    assert_eq!(statuses(&one.poll()), [(2, Status::Success)]);
}

/// The queue pair has drained when the message that had begun is on its way as a whole, and
/// not while a part of it waits for room.
#[test]
fn uc_has_drained_when_the_message_that_began_has_ended() {
    let (mut one, mut two) = pair_of_uc();
    two.recv(1, 0, 1 << 20);
    one.send(1, 0, 1 << 20, SIGNALED).unwrap();
    one.qp.pause(true);
    assert!(one.poll().is_empty() && one.nic.next_async_event().is_none(), "it is too long");
    assert_eq!(statuses(&settle(&mut one, &mut two).0), [(1, Status::Success)]);
    assert!(one.nic.next_async_event().is_some());
}

/// SM-2: requests posted in ERR are flushed once, however often the queue pair is failed.
#[test]
fn uc_each_post_in_err_is_flushed_once() {
    let (mut one, _two) = pair_of_uc();
    one.qp.fail();
    for n in 0..4 {
        one.send(n, 0, 8, SIGNALED).unwrap();
        assert_eq!(statuses(&one.poll()), [(n, Status::Flushed)]);
        assert!(one.poll().is_empty());
    }
}

/// A missing receive and one that is too short drop the message, and later messages arrive; the
/// receive that was too short takes the next message that fits.
#[test]
fn uc_drops_messages_that_it_cannot_take() {
    for long in [100, 5000] {
        let (mut one, mut two) = pair_of_uc();
        one.send(1, 0, long, SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!((statuses(&sent), came.len()), ([(1, Status::Success)].into(), 0));
        two.recv(10, 0, 64);
        two.recv(11, 64, 64);
        one.send(2, 0, long, SIGNALED).unwrap();
        one.fill(0, &[5; 8]);
        one.send(3, 0, 8, SIGNALED).unwrap();
        one.send(4, 0, 7, SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert!(sent.iter().all(|wc| wc.status.is_ok()) && sent.len() == 3);
        assert_eq!(statuses(&came), [(10, Status::Success), (11, Status::Success)]);
        assert_eq!((came[0].byte_len, two.bytes(0, 8)), (8, [5; 8].into()));
    }
}

#[test]
fn uc_writes_and_drops_writes_under_a_wrong_key() {
    let (mut one, mut two) = pair_of_uc();
    let bytes = pattern(3, 9000);
    one.fill(0, &bytes);
    two.recv(9, 0, 8);
    let at = two.region.remote(4096);
    let wrong = crate::wr::Remote { rkey: at.rkey ^ 1, ..at };
    for op in [SendOp::Write(wrong), SendOp::WriteWithImm(wrong, 1), SendOp::Write(at)] {
        one.post(1, op, one.sge(0, 9000), SIGNALED).unwrap();
    }
    let (sent, came) = settle(&mut one, &mut two);
    assert_eq!(statuses(&sent), [(1, Status::Success); 3]);
    assert!(came.is_empty());
    assert_eq!(two.bytes(4096, 9000), bytes);
    // With a receive for the first only: the second is written, and its immediate data is lost.
    one.post(2, SendOp::WriteWithImm(at, 5), one.sge(0, 8), SIGNALED).unwrap();
    one.post(3, SendOp::WriteWithImm(at.offset(8), 6), one.sge(0, 8), SIGNALED).unwrap();
    let (_, came) = settle(&mut one, &mut two);
    let [wc] = came[..] else { panic!("{came:?}") };
    assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::RecvWriteWithImm, 8, 5));
}

/// READs and atomics are not for UC; a wrong key is an error here as everywhere. Both lead to SQE,
/// in which messages still arrive, until the owner recovers the queue pair (SM-6).
#[test]
fn uc_a_send_that_fails_here_leaves_sqe() {
    let (mut one, mut two) = pair_of_uc();
    let at = two.region.remote(0);
    let bad = Sge { lkey: 1, ..one.sge(0, 8) };
    for (op, sge, status) in [
        (SendOp::Read(at), one.sge(0, 8), Status::LocalQpOperation),
        (SendOp::FetchAdd { at, add: 1 }, one.sge(0, 8), Status::LocalQpOperation),
        (SendOp::SendWithInv(7), one.sge(0, 8), Status::LocalQpOperation),
        (SendOp::Send, bad, Status::LocalProtection),
        (SendOp::Write(at), bad, Status::LocalProtection),
    ] {
        for n in 0..3 {
            two.recv(n, 0, 64);
        }
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        one.post(2, op, sge, SendFlags::empty()).unwrap();
        one.send(3, 0, 8, SendFlags::empty()).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!(statuses(&sent), [(2, status), (3, Status::Flushed)]);
        assert_eq!(statuses(&came), [(0, Status::Success)]);
        one.send(4, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(statuses(&one.poll()), [(4, Status::Flushed)]);
        one.recv(8, 0, 64);
        two.send(5, 0, 8, SIGNALED).unwrap();
        let (came, _) = settle(&mut one, &mut two);
        assert_eq!(statuses(&came), [(8, Status::Success)]);
        one.qp.recover();
        one.poll();
        one.send(6, 0, 8, SIGNALED).unwrap();
        one.send(7, 0, 8, SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!(statuses(&sent), [(6, Status::Success), (7, Status::Success)]);
        assert_eq!(statuses(&came), [(1, Status::Success), (2, Status::Success)]);
    }
}

/// A UC queue pair without receives, or a removed one, delays nobody on the same link.
#[test]
fn uc_never_stalls_the_link() {
    let (mut one, mut two) = pair_of_uc();
    let (mut near, mut far) = (end(WIDE, false), end(WIDE, false));
    // A reliable pair over the link of the unreliable one.
    near.qp = make_qp(&one.nic, &one.cq, None, WIDE);
    far.qp = make_qp(&two.nic, &two.cq, None, WIDE);
    let mut gone = make_qp_of(QpType::Uc, &one.nic, &one.cq, None, WIDE);
    let mut left = make_qp_of(QpType::Uc, &two.nic, &two.cq, None, WIDE);
    let (maker, taker) = join(&mut near.qp, &mut far.qp, 7);
    assert!(maker.acquire() && taker.acquire());
    wire(&mut gone, &mut left, &maker, &taker, 7);
    settle(&mut one, &mut two);
    drop(left);
    two.poll();
    let wr = RecvWr { wr_id: 9, sge: two.sge(0, 64) };
    unsafe { far.qp.post_recv(&[wr]).unwrap() };
    let send =
        |wr_id| SendWr { wr_id, op: SendOp::Send, flags: SIGNALED, sge: one.sge(0, 8), more: &[] };
    unsafe { gone.post(&[send(1)]).unwrap() };
    unsafe { near.qp.post(&[send(2)]).unwrap() };
    let (sent, came) = settle(&mut one, &mut two);
    assert_eq!(statuses(&came), [(9, Status::Success)]);
    assert!(sent.iter().all(|wc| wc.status.is_ok()) && sent.len() == 2, "{sent:?}");
}

/// With its peer gone for good, a send still completes, and goes nowhere.
#[test]
fn uc_does_not_notice_that_its_peer_is_gone() {
    sends_of_uc_complete_without_a_peer(SoftQp::peer_left);
    sends_of_uc_complete_without_a_peer(SoftQp::fail_lost);
}

fn sends_of_uc_complete_without_a_peer(end: fn(&mut SoftQp)) {
    let (mut one, two) = pair_of_uc();
    drop(two);
    for n in 0..40 {
        one.send(n, 0, 2000, SIGNALED).unwrap();
    }
    let before = one.poll().len();
    assert!(before < 40, "the ring is full");
    end(&mut one.qp);
    let mut all = before;
    for _ in 0..10 {
        let some = one.poll();
        assert!(some.iter().all(|wc| wc.status.is_ok()));
        all += some.len();
    }
    assert_eq!(all, 40);
    one.send(41, 0, 2000, SIGNALED).unwrap();
    assert_eq!(statuses(&one.poll()), [(41, Status::Success)]);
}

/// The owner moves it to ERR right behind the news that its peer is gone.
#[test]
fn uc_without_a_peer_can_be_moved_to_err() {
    for end in [SoftQp::peer_left, SoftQp::fail_lost] {
        let (mut one, mut two) = pair_of_uc();
        one.recv(8, 0, 64);
        one.send(1, 0, 8, SIGNALED).unwrap();
        end(&mut one.qp);
        one.qp.fail();
        one.send(2, 0, 8, SIGNALED).unwrap();
        let (sent, _) = settle(&mut one, &mut two);
        let flushed = (Status::Success, Status::Flushed);
        assert_eq!(statuses(&sent), [(1, flushed.0), (2, flushed.1), (8, flushed.1)]);
    }
}

#[test]
fn uc_in_err_everything_is_flushed() {
    let (mut one, mut two) = pair_of_uc();
    one.recv(8, 0, 64);
    two.recv(9, 0, 64);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    one.qp.fail();
    one.send(2, 0, 8, SIGNALED).unwrap();
    let (sent, _) = settle(&mut one, &mut two);
    let flushed = (Status::Success, Status::Flushed);
    assert_eq!(statuses(&sent), [(1, flushed.0), (2, flushed.1), (8, flushed.1)]);
}
