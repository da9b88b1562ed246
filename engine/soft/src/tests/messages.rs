//! Messages: order, lengths, completions, errors, the life of queue pairs and links.

use core::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::shm::layout::{Header, KIND_SEND, RecordFlags};
use crate::wc::{Status, WcFlags, WcOpcode};
use crate::wire::{Asking, Port, Psn, Record, Taking, Way};

/// CP-6: a thread that arms and then polls sees what came before, including the refusal of a send
/// that asked for no completion, however long nothing had come.
#[test]
fn cp_6_a_poll_after_arming_sees_a_refusal() {
    for idle in 0..70 {
        let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
        join(&mut one.qp, &mut two.qp, 0);
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        assert!(two.poll().is_empty());
        for _ in 0..idle {
            assert!(one.poll().is_empty());
        }
        pass(1000);
        assert!(two.poll().is_empty());
        unsafe { one.poller.cq.domain.enter(|state| state.fall_asleep()) };
        let got = one.poll();
        assert_eq!(got.len(), 1, "after {idle} polls");
        assert_eq!(got[0].status, Status::RnrRetryExceeded);
    }
}

/// CP-2: every length arrives whole, through slot, ring and fragments; nothing beyond it is
/// written.
#[test]
fn cp_2_every_length_arrives_exactly() {
    let (mut one, mut two) = pair(CAPS, true);
    let lengths = (0..300).chain([1000, 2031, 2032, 2033, 4064, 5000, 8192, 9001, 65536, 1 << 20]);
    for (n, length) in lengths.enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        two.fill(0, &std::vec![0xee; length + 64]);
        two.recv(n as u64, 0, length + 32);
        one.send(n as u64, 0, length, SendFlags::SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(got.len(), 1, "length {length}");
        assert_eq!((got[0].status, got[0].opcode), (Status::Success, WcOpcode::Recv));
        assert_eq!((got[0].byte_len as usize, got[0].wr_id), (length, n as u64));
        assert_eq!(got[0].qp_num, two.qp.num());
        assert_eq!(two.bytes(0, length), bytes, "length {length}");
        assert!(two.bytes(length, 64).iter().all(|b| *b == 0xee), "beyond {length}");
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].wr_id, sent[0].opcode), (n as u64, WcOpcode::Send));
    }
}

/// CP-3: immediate data arrives as given, alone and at the end of a long message.
#[test]
fn cp_3_immediate_data_arrives_as_given() {
    let (mut one, mut two) = pair(CAPS, true);
    for (imm, length) in [(0x1122_3344, 0), (u32::MAX, 8), (7, 64), (1, 100_000)] {
        two.recv(1, 0, length);
        let sge = one.sge(0, length);
        let op = SendOp::SendWithImm(imm);
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), sge, more: &[] };
        unsafe { one.qp.post(&[wr]) }.unwrap();
        let (_, got) = settle(&mut one, &mut two);
        assert_eq!((got[0].imm, got[0].flags), (imm, WcFlags::WITH_IMM));
        assert_eq!(got[0].byte_len as usize, length);
    }
}

/// SQ-4: an inline payload may be overwritten as soon as the post has returned, its key is never
/// checked, and one over the limit is refused. The same holds if the ring is full and the request
/// waits.
#[test]
fn sq_4_inline_is_copied_in_the_post() {
    let caps = QpCaps { send_wr: 512, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    for n in 0..300usize {
        let bytes = pattern(n, 64);
        let sge = Sge { addr: bytes.as_ptr() as u64, length: 64, lkey: 0 };
        let wr = SendWr { wr_id: 0, op: SendOp::Send, flags: SendFlags::INLINE, sge, more: &[] };
        unsafe { one.qp.post(&[wr]) }.unwrap();
    }
    let long = SendWr {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::INLINE,
        sge: one.sge(0, 65),
        more: &[],
    };
    let error = unsafe { one.qp.post(&[long]) }.unwrap_err();
    assert_eq!((error.accepted, error.cause), (0, PostCause::InlineTooLong));
    for n in 0..300 {
        two.recv(n, 64 * (n as usize % 32), 64);
        let (_, got) = settle(&mut one, &mut two);
        assert_eq!(got.len(), 1);
        assert_eq!(two.bytes(64 * (n as usize % 32), 64), pattern(n as usize, 64));
    }
}

/// SQ-1, SQ-2: N unsignalled posts lock the queue for good, although all were delivered; a slot is
/// free only when a later signalled completion was polled.
#[test]
fn sq_2_slots_come_back_with_a_polled_completion_only() {
    let (mut one, mut two) = pair(CAPS, true);
    for n in 0..40 {
        two.recv(n, 0, 64);
    }
    for _ in 0..8 {
        one.send(0, 0, 8, SendFlags::empty()).unwrap();
    }
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), got.len()), (0, 8));
    let full = one.send(0, 0, 8, SendFlags::empty()).unwrap_err();
    assert_eq!((full.accepted, full.cause), (0, PostCause::Full));

    let (mut one, mut two) = pair(CAPS, true);
    for n in 0..40 {
        two.recv(n, 0, 64);
    }
    for n in 0..8u64 {
        let flags = if n == 5 { SendFlags::SIGNALED } else { SendFlags::empty() };
        one.send(n, 0, 8, flags).unwrap();
    }
    while two.poll().len() < 8 {}
    two.poll();
    assert_eq!(one.send(9, 0, 8, SendFlags::empty()).unwrap_err().cause, PostCause::Full);
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [5]);
    for _ in 0..6 {
        one.send(9, 0, 8, SendFlags::empty()).unwrap();
    }
    assert_eq!(one.send(9, 0, 8, SendFlags::empty()).unwrap_err().cause, PostCause::Full);
}

/// PL-1: a list stops at the first refused request; those before it run.
#[test]
fn pl_1_the_prefix_of_a_refused_list_runs() {
    let (mut one, mut two) = pair(CAPS, true);
    two.recv(1, 0, 64);
    two.recv(2, 64, 64);
    let good = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        sge: one.sge(0, 8),
        more: &[],
    };
    let bad = SendWr { flags: SendFlags::INLINE, sge: one.sge(0, 4096), ..good };
    let error = unsafe { one.qp.post(&[good, good, bad, good]) }.unwrap_err();
    assert_eq!((error.accepted, error.cause), (2, PostCause::InlineTooLong));
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), got.len()), (2, 2));
}

/// A gather list is one message; its pieces in order.
#[test]
fn pieces_are_gathered_in_order() {
    let (mut one, mut two) = pair(CAPS, true);
    let bytes = pattern(3, 9000);
    one.fill(0, &bytes);
    two.recv(1, 0, 9000);
    let more = [one.sge(3, 0), one.sge(100, 5000), one.sge(5100, 3900)];
    let sge = one.sge(0, 100);
    let flags = SendFlags::SIGNALED;
    unsafe { one.qp.post(&[SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &more }]) }
        .unwrap();
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!(got[0].byte_len, 9000);
    assert_eq!(two.bytes(0, 9000), bytes);
    let five = [sge; 4];
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &five };
    assert_eq!(unsafe { one.qp.post(&[wr]) }.unwrap_err().cause, PostCause::TooManyPieces);
}

/// RNR (RC-1): without a receive the message waits, whole and in order, and proceeds when one is
/// posted.
#[test]
fn rnr_waits_for_a_receive() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    for n in 0..20u8 {
        one.fill(n as usize * 8, &[n; 8]);
        one.send(n.into(), n as usize * 8, 8, SendFlags::SIGNALED).unwrap();
    }
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), got.len()), (0, 0), "nothing is acknowledged before it is taken");
    for n in 0..20 {
        two.recv(n, 0, 8);
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), got.len()), (1, 1));
        assert_eq!((sent[0].wr_id, got[0].wr_id), (n, n));
        assert_eq!(two.bytes(0, 8), [n as u8; 8]);
    }
}

/// RC-1: after a finite number of retries the send fails with 13, and both queue pairs are in
/// error.
#[test]
fn rc_1_rnr_retries_run_out() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 2);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    one.send(2, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.is_empty());
    pass(2999);
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.is_empty(), "two retries of 1000 ns each after the first try");
    pass(1);
    let (sent, got) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
    assert!(got.is_empty());
    two.send(3, 0, 8, SendFlags::empty()).unwrap();
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!((got[0].wr_id, got[0].status), (3, Status::Flushed));
}

/// RC-1: retries count per sequence and start again with progress.
#[test]
fn rc_1_retries_start_again_with_each_message() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 2);
    for n in 0..6 {
        one.send(n, 0, 8, SendFlags::SIGNALED).unwrap();
        settle(&mut one, &mut two);
        pass(2500);
        let (sent, _) = settle(&mut one, &mut two);
        assert!(sent.is_empty(), "message {n} has not waited 3000 ns");
        two.recv(n, 0, 8);
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), got.len()), (1, 1));
        assert_eq!(sent[0].status, Status::Success);
    }
}

/// A bad send fails even behind an unsignalled one, of which nobody would ever hear.
#[test]
fn mr_2_a_bad_send_key_fails_behind_an_unsignalled_send() {
    let (mut one, mut two) = pair(CAPS, true);
    two.recv(1, 0, 64);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    let sge = Sge { addr: 64, length: 8, lkey: 12345 };
    let flags = SendFlags::SIGNALED;
    unsafe { one.qp.post(&[SendWr { wr_id: 2, op: SendOp::Send, flags, sge, more: &[] }]) }
        .unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!(got.len(), 1);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(2, Status::LocalProtection)]);
}

/// More queue pairs fail at once than refusals may wait: each is told, and a healthy one stays
/// healthy.
#[test]
fn many_refusals_touch_no_healthy_queue_pair() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    let mut pairs: Vec<_> = (0..200)
        .map(|_| {
            let mut a = make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS);
            let mut b = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
            assert!(maker.acquire());
            wire(&mut a, &mut b, &maker, &taker, 7);
            (a, b)
        })
        .collect();
    two.recv(1, 0, 64);
    settle(&mut one, &mut two);
    for (_, b) in &mut pairs {
        b.fail();
    }
    two.poll();
    let sge = Sge::default();
    for (a, _) in &mut pairs {
        let flags = SendFlags::empty();
        unsafe { a.post(&[SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] }]) }.unwrap();
    }
    one.send(99, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    let lost = sent.iter().filter(|wc| wc.status == Status::RetryExceeded).count();
    assert_eq!((lost, sent.len()), (200, 201));
    assert_eq!((got.len(), got[0].status), (1, Status::Success));
}

/// A poll is one bounded step: it takes only a few records that give no completion.
#[test]
fn a_poll_takes_a_bounded_number_of_records() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 256, ..CAPS }, true);
    for _ in 0..250 {
        one.send(1, 0, 0, SendFlags::empty()).unwrap();
    }
    let read = |end: &End| unsafe {
        end.qp.domain.enter(|state| state.links.table[0].as_ref().map_or(0, |link| link.rx.at))
    };
    two.qp.fail();
    let before = read(&two);
    two.poll();
    assert!(read(&two) - before <= 64 * 8, "one poll read {} bytes", read(&two) - before);
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!(sent.len(), 250);
}

/// CP-5: one entry too many ends a completion queue and its queue pairs; its entries can still be
/// read.
#[test]
fn cp_5_an_overrun_ends_the_queue_and_its_queue_pairs() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (cq, mut poller) = nic.create_cq(4, Sharing::Shared).unwrap();
    let (other, mut other_poller) = nic.create_cq(64, Sharing::Shared).unwrap();
    let init = |recv_cq, send_cq| SoftQpInit {
        kind: QpType::Rc,
        send_cq,
        recv_cq,
        srq: None,
        caps: CAPS,
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    let mut to = nic.create_qp(&init(&cq, &other)).unwrap();
    let mut one = end(CAPS, true);
    join(&mut one.qp, &mut to, 7);
    let region = nic.register(mapping(4096), Access::LOCAL_WRITE).unwrap();
    let sge = Sge { addr: region.as_ptr() as u64, length: 64, lkey: region.lkey() };
    for wr_id in 0..6 {
        unsafe { to.post_recv(&[RecvWr { wr_id, sge }]) }.unwrap();
        one.send(wr_id, 0, 8, SendFlags::empty()).unwrap();
    }
    // A poll of another queue does the work; nobody reads the small queue meanwhile.
    let mut out = [Wc::default(); 16];
    for _ in 0..10 {
        assert_eq!(other_poller.poll(&mut out), 0);
    }
    let taken = poller.poll(&mut out);
    assert_eq!(out[..taken].iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(poller.poll(&mut out), 0);
    let sge = Sge { length: 8, ..sge };
    let wr = SendWr { wr_id: 9, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
    unsafe { to.post(&[wr]) }.unwrap();
    let taken = other_poller.poll(&mut out);
    assert_eq!((taken, out[0].status), (1, Status::Flushed));
}

/// A message longer than the receive is status 1 here and 9 there. Earlier sends stay successful,
/// later ones are flushed, in order (SM-2, SQ-3).
#[test]
fn too_short_a_receive_fails_both_sides() {
    for length in [65, 5000] {
        let (mut one, mut two) = pair(CAPS, true);
        for n in 0..4 {
            two.recv(n, 0, 64);
        }
        one.send(1, 0, 8, SendFlags::SIGNALED).unwrap();
        one.send(2, 0, 8, SendFlags::empty()).unwrap();
        one.send(3, 0, length, SendFlags::empty()).unwrap();
        one.send(4, 0, 8, SendFlags::SIGNALED).unwrap();
        one.send(5, 0, 8, SendFlags::empty()).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        use Status::{Flushed, LocalLength, RemoteInvalidRequest, Success};
        let want = [(1, Success), (3, RemoteInvalidRequest), (4, Flushed), (5, Flushed)];
        assert_eq!(ends, want, "length {length}");
        let ends: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(0, Success), (1, Success), (2, LocalLength)]);
    }
}

/// MR-2, CK-1: a receive with a wrong key is status 4 here and 11 there.
#[test]
fn mr_2_a_bad_receive_key_fails_both_sides() {
    let (mut one, mut two) = pair(CAPS, true);
    let sge = Sge { lkey: two.region.lkey() ^ 1, ..two.sge(0, 64) };
    unsafe { two.srq.as_ref().unwrap().post(&[RecvWr { wr_id: 1, sge }]) }.unwrap();
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!(sent[0].status, Status::RemoteOperation);
    assert_eq!(got[0].status, Status::LocalProtection);
}

/// MR-2: a send with a wrong or deregistered key (MR-3) fails here, after those before it are done;
/// nothing of it arrives.
#[test]
fn mr_2_a_bad_send_key_fails_in_its_turn() {
    let (mut one, mut two) = pair(CAPS, true);
    for n in 0..4 {
        two.recv(n, 0, 64);
    }
    one.send(1, 0, 8, SendFlags::SIGNALED).unwrap();
    let old = one.nic.register(mapping(4096), Access::empty()).unwrap();
    let sge = Sge { addr: old.as_ptr() as u64, length: 8, lkey: old.lkey() };
    drop(old);
    let flags = SendFlags::empty();
    unsafe { one.qp.post(&[SendWr { wr_id: 2, op: SendOp::Send, flags, sge, more: &[] }]) }
        .unwrap();
    one.send(3, 0, 8, SendFlags::empty()).unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    use Status::{Flushed, LocalProtection, Success};
    assert_eq!(ends, [(1, Success), (2, LocalProtection), (3, Flushed)]);
    assert_eq!(got.len(), 1);
}

/// SM-2: a queue pair in ERR whose receives are posted as fast as they are flushed does not keep
/// the flush of another one waiting.
#[test]
fn sm_2_a_queue_pair_in_err_does_not_hold_up_others() {
    let (mut one, two) = pair(CAPS, false);
    let mut other = make_qp(&one.nic, &one.cq, None, CAPS);
    let mut far = make_qp(&two.nic, &two.cq, None, CAPS);
    join(&mut other, &mut far, 7);
    let wr = SendWr {
        wr_id: 99,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        sge: one.sge(0, 8),
        more: &[],
    };
    unsafe { other.post(&[wr]) }.unwrap();
    one.qp.fail();
    other.fail();
    (0..8).for_each(|n| one.recv(n, 0, 8));
    let mut out = [Wc::default(); 4];
    for _ in 0..20 {
        let taken = one.poller.poll(&mut out);
        if out[..taken].iter().any(|wc| wc.wr_id == 99) {
            return;
        }
        out[..taken].iter().for_each(|wc| one.recv(wc.wr_id, 0, 8));
    }
    panic!("the other queue pair waits for ever");
}

/// SQ-3: a wire asks a queue pair that has failed how far it has read. The answer is the only
/// refusal of that queue pair, so the wire knows that later messages are refused, too.
#[test]
fn sq_3_a_message_after_a_refused_question_is_refused() {
    let mut one = end(CAPS, true);
    let mut port = Port::over(mapping(LINK_BYTES), None, None).unwrap();
    one.qp.attach(port.link());
    let wiring = Wiring {
        peer: 77,
        peer_rnr_retry: 7,
        rnr_timer_ns: 1000,
        initiator_depth: 4,
        responder_depth: 4,
    };
    one.qp.connect(port.link(), wiring);
    one.recv(1, 0, 64);
    let way = |n| Way { conn: 3, psn: Psn::new(n) };
    let write = |port: &mut Port, qp, n: u32, asking| {
        let flags = RecordFlags::FIRST | RecordFlags::LAST;
        let header = Header::new(KIND_SEND, flags, 8, qp);
        let record = Record { header, imm: 0, payload: [n as u8; 8].into() };
        assert!(port.write(&record, Some(way(n)), asking));
        port.publish();
    };
    write(&mut port, one.qp.num(), 0, Asking::Later { now: 0 });
    one.poll();
    one.qp.fail();
    one.poll();
    port.urge(0);
    port.publish();
    let mut takings = Vec::new();
    for n in 1..3 {
        write(&mut port, one.qp.num(), n, Asking::Now);
        // The domain says no more before the port has read its refusal.
        for _ in 0..3 {
            one.poll();
            takings.extend(core::iter::from_fn(|| port.next_taking()));
        }
    }
    let refused = |n| Taking::Refused { way: way(n), status: Status::RetryExceeded };
    assert_eq!(takings, [Taking::Taken { way: way(0), asks: false }, refused(1), refused(2)]);
}

/// SM-2: going to ERR flushes sends and the own receive queue in posting order, signalled or not;
/// posts in ERR are accepted and flushed; receives of a shared queue stay.
#[test]
fn sm_2_everything_outstanding_is_flushed_in_order() {
    let (mut one, mut two) = pair(CAPS, false);
    one.recv(10, 0, 8);
    one.recv(11, 0, 8);
    for n in 1..4 {
        one.send(n, 0, 8, SendFlags::empty()).unwrap();
    }
    one.qp.fail();
    let (sent, _) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [1, 2, 3, 10, 11].map(|n| (n, Status::Flushed)));
    one.send(4, 0, 8, SendFlags::empty()).unwrap();
    one.recv(12, 0, 8);
    let (sent, _) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [4, 12].map(|n| (n, Status::Flushed)));
    // CP-1: no other field means anything.
    assert_ne!(sent[0].byte_len, 0);

    let (mut one, mut two) = pair(CAPS, true);
    one.recv(10, 0, 8);
    one.qp.fail();
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.is_empty());
}

/// SM-7: a send before the connection is refused, a receive is accepted.
#[test]
fn sends_before_rts_are_refused() {
    let mut one = end(CAPS, false);
    assert_eq!(one.send(1, 0, 8, SendFlags::empty()).unwrap_err().cause, PostCause::State);
    one.recv(1, 0, 8);
}

/// If the peer's queue pair has failed or is gone, a send to it fails and never succeeds.
#[test]
fn sends_to_a_dead_queue_pair_fail() {
    for gone in [false, true] {
        let (mut one, two) = pair(CAPS, true);
        let End { nic: _nic, mut poller, cq: _cq, mut qp, region: _region, srq: _srq } = two;
        if gone {
            drop(qp);
        } else {
            qp.fail();
        }
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        one.send(2, 0, 8, SendFlags::SIGNALED).unwrap();
        let mut out = [Wc::default(); 8];
        let mut ends = Vec::new();
        for _ in 0..8 {
            assert_eq!(poller.poll(&mut out), 0);
            ends.extend(one.poll().iter().map(|wc| (wc.wr_id, wc.status)));
        }
        assert_eq!(ends, [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    }
}

/// Several queue pairs share a link and a receive queue; each keeps its order, and the failure
/// of one touches no other.
#[test]
fn queue_pairs_of_a_link_are_independent() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    let mut ones: Vec<_> =
        (0..10).map(|_| make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS)).collect();
    let mut twos: Vec<_> =
        (0..10).map(|_| make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS)).collect();
    for (a, b) in ones.iter_mut().zip(&mut twos) {
        assert!(taker.acquire());
        wire(a, b, &maker, &taker, 7);
    }
    for n in 0..60 {
        two.recv(n, 64 * n as usize, 64);
    }
    for round in 0..5u8 {
        for (n, qp) in ones.iter_mut().enumerate() {
            if n == 3 && round == 2 {
                qp.fail();
            }
            one.fill(0, &[round, n as u8]);
            let sge = one.sge(0, 2);
            let flags = SendFlags::INLINE;
            let wr = SendWr { wr_id: 0, op: SendOp::Send, flags, sge, more: &[] };
            unsafe { qp.post(&[wr]) }.unwrap();
        }
    }
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!(sent.len(), 5, "the failed one flushes its five");
    assert_eq!(got.len(), 5 * 9 + 2);
    let mut seen = std::collections::HashMap::<u32, Vec<u8>>::new();
    for wc in &got {
        let bytes = two.bytes(64 * wc.wr_id as usize, 2);
        assert_eq!(twos[bytes[1] as usize].num(), wc.qp_num);
        seen.entry(wc.qp_num).or_default().push(bytes[0]);
    }
    for (num, rounds) in seen {
        let want: &[u8] = if num == twos[3].num() { &[0, 1] } else { &[0, 1, 2, 3, 4] };
        assert_eq!(rounds, want);
    }
}

/// Links and numbers do not accumulate over many connections.
#[test]
fn connections_come_and_go() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    for n in 0..40_000u64 {
        one.qp = make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS);
        two.qp = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
        if n % 1000 != 0 {
            continue;
        }
        join(&mut one.qp, &mut two.qp, 7);
        two.recv(n, 0, 8);
        one.send(n, 0, 8, SendFlags::SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), got.len()), (1, 1), "round {n}");
    }
}

/// A peer's words are not believed: an impossible tail, length or kind ends its connections and
/// nothing else.
#[test]
fn a_peer_that_breaks_the_rules_is_cut_off() {
    let acknowledges = 24u64 << 32;
    // 0: the tail in the slot; 1: the tail of the ring; 2: a header there. The last kind is a jump
    // where no honest sender jumps.
    for (place, value) in [
        (0, acknowledges | 65_544),
        (0, 119),
        (1, acknowledges | 65_544),
        (1, 119),
        (2, 0xffff),
        (2, 0x000b_0000),
        (2, 0x000a_0000),
    ] {
        let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
        let (maker, _) = join(&mut one.qp, &mut two.qp, 7);
        two.recv(1, 0, 8);
        one.send(1, 0, 100, SendFlags::empty()).unwrap();
        two.send(2, 0, 8, SendFlags::empty()).unwrap();
        let [way, ..] = maker.directions();
        // The slot must not confirm the ring.
        way.seal().store(u64::MAX, Ordering::Relaxed);
        match place {
            0 => way.slot_tail().store(value, Ordering::Relaxed),
            1 => way.tail().store(value, Ordering::Relaxed),
            _ => unsafe { way.data_from(0).at(0).cast::<u64>().write_volatile(value) },
        }
        let mut ends = Vec::new();
        for _ in 0..4 {
            ends.extend(two.poll().iter().map(|wc| (wc.wr_id, wc.status)));
        }
        assert_eq!(ends, [(2, Status::RetryExceeded)], "{place} {value:x}");
    }
}

/// A queue pair that is connected over a broken link fails, and gives back everything it took of
/// the link.
#[test]
fn a_queue_pair_that_comes_to_a_broken_link_fails() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    let mut late = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
    let mut other = make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS);
    assert!(two.poll().is_empty() && taker.acquire());
    let [way, ..] = maker.directions();
    way.tail().store(119, Ordering::Relaxed);
    assert!(two.poll().is_empty());
    wire(&mut other, &mut late, &maker, &taker, 7);
    let sge = two.sge(0, 8);
    let flags = SendFlags::SIGNALED;
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
    unsafe { late.post(&[wr]) }.unwrap();
    let ends: Vec<_> = two.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(7, Status::RetryExceeded)]);
    drop((late, other));
    two.qp = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
    assert!(two.poll().is_empty());
    assert!(unsafe { two.poller.cq.domain.alone() }.links.table.iter().all(Option::is_none));
}

/// Two threads, two domains, random lengths and batches, too few receives: everything arrives once
/// and in order, and the acknowledgements retire every slot.
#[test]
fn two_threads_lose_nothing() {
    let rounds = if cfg!(miri) { 50 } else { 60_000u64 };
    let (mut one, two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut two, done) = (two, &done);
            let mut next = 0u64;
            let mut posted = 0u64;
            while next < rounds {
                if posted < next + 20 && posted < rounds {
                    two.recv(posted, (posted % 64) as usize * 4096, 4096);
                    posted += 1;
                }
                for wc in two.poll() {
                    assert_eq!((wc.wr_id, wc.status), (next, Status::Success));
                    let length = length_of(next);
                    assert_eq!(wc.byte_len as usize, length);
                    let bytes = two.bytes((next % 64) as usize * 4096, length);
                    assert_eq!(bytes, pattern(next as usize, length), "message {next}");
                    next += 1;
                }
            }
            while !done.load(Ordering::Relaxed) {
                assert!(two.poll().is_empty());
            }
        });
        let mut sent = 0u64;
        let mut retired = 0u64;
        while retired < rounds {
            if sent < rounds && sent - retired < 48 {
                let length = length_of(sent);
                let at = (sent % 64) as usize * 4096;
                one.fill(at, &pattern(sent as usize, length));
                let last = sent + 1 == rounds;
                let flags =
                    if sent % 8 == 7 || last { SendFlags::SIGNALED } else { SendFlags::empty() };
                one.send(sent, at, length, flags).unwrap();
                sent += 1;
            }
            for wc in one.poll() {
                assert!(wc.wr_id >= retired && wc.status == Status::Success);
                retired = wc.wr_id + 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Lengths for every path: slot of one line and of four, ring, fragments.
fn length_of(n: u64) -> usize {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match mixed % 10 {
        0..4 => mixed as usize % 41,
        4..7 => mixed as usize % 220,
        7..9 => mixed as usize % 1000,
        _ => mixed as usize % 4096,
    }
}

/// Two domains on one shared receive queue: one gets the receives that the other has prefetched.
#[test]
fn a_shared_receive_queue_serves_two_workers() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let srq = nic.create_srq(256).unwrap();
    let region = nic.register(mapping(1 << 20), Access::LOCAL_WRITE).unwrap();
    let mut clients: Vec<_> = (0..2).map(|_| end(QpCaps { send_wr: 256, ..CAPS }, true)).collect();
    let mut servers: Vec<_> = (0..2)
        .map(|_| {
            let (cq, poller) = nic.create_cq(256, Sharing::Exclusive).unwrap();
            (make_qp(&nic, &cq, Some(&srq), CAPS), poller)
        })
        .collect();
    for (client, server) in clients.iter_mut().zip(&mut servers) {
        join(&mut client.qp, &mut server.0, 7);
    }
    let base = region.as_ptr() as u64;
    let wrs: Vec<_> = (0..256u64)
        .map(|n| RecvWr {
            wr_id: n,
            sge: Sge { addr: base + n * 64, length: 64, lkey: region.lkey() },
        })
        .collect();
    unsafe { srq.post(&wrs) }.unwrap();
    // The first takes one and has prefetched more; then the second needs all that are left.
    clients[0].send(0, 0, 8, SendFlags::empty()).unwrap();
    let mut out = [Wc::default(); 16];
    assert_eq!(servers[0].1.poll(&mut out), 1);
    for _ in 0..255 {
        clients[1].send(0, 0, 8, SendFlags::empty()).unwrap();
    }
    let mut got = 0;
    for _ in 0..100 {
        got += servers[1].1.poll(&mut out);
        got += servers[0].1.poll(&mut out);
        clients[1].poll();
    }
    assert_eq!(got, 255);
}

/// A queue pair destroyed in the middle of a message: the receive that it had begun to fill goes
/// back to the shared queue.
#[test]
fn a_receive_half_filled_goes_back_to_its_shared_queue() {
    let (mut one, mut two) = (end(QpCaps { send_wr: 64, ..CAPS }, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 7);
    two.recv(77, 0, 1 << 20);
    // More than the ring holds: only its first part is on the way.
    one.send(1, 0, 100_000, SendFlags::empty()).unwrap();
    assert!(two.poll().is_empty());
    let cq = two.cq.clone();
    two.qp = make_qp(&two.nic, &cq, two.srq.as_ref(), CAPS);
    one.qp = make_qp(&one.nic, &one.cq.clone(), one.srq.as_ref(), CAPS);
    join(&mut one.qp, &mut two.qp, 7);
    one.send(2, 0, 8, SendFlags::empty()).unwrap();
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].wr_id, got[0].status), (77, Status::Success));
}
