//! Failures: wrong keys and lengths, flushes, overruns, dead queue pairs, broken links.

use super::*;
use crate::event::AsyncKind;
use crate::provider::AsyncEvents;
use crate::shm::layout::{Header, KIND_SEND, RecordFlags};
use crate::wc::{Status, WcOpcode};
use crate::wire::{Asking, Port, Psn, Record, Taking, Way};

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

/// CP-5: one entry too many ends a completion queue and its queue pairs; its entries can still be
/// read.
#[test]
fn cp_5_an_overrun_ends_the_queue_and_its_queue_pairs() {
    for by_own_poll in [false, true] {
        overrun(by_own_poll);
    }
}

/// A poll of the queue itself does the work, or a poll of another queue.
fn overrun(by_own_poll: bool) {
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
    let mut out = [Wc::default(); 16];
    if !by_own_poll {
        // Nobody reads the small queue meanwhile.
        for _ in 0..10 {
            assert_eq!(other_poller.poll(&mut out), 0);
        }
    }
    let taken = poller.poll(&mut out);
    assert_eq!(out[..taken].iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(poller.poll(&mut out), 0);
    unsafe { to.post_recv(&[RecvWr { wr_id: 7, sge }]) }.unwrap();
    assert_eq!(poller.poll(&mut out), 0, "a flushed receive finds no queue");
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
    for (length, behind_a_read) in [(65, false), (5000, false), (65, true), (5000, true)] {
        let (mut one, mut two) = pair(CAPS, true);
        for n in 0..4 {
            two.recv(n, 0, 64);
        }
        if behind_a_read {
            read(&mut one, &two);
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
        assert_eq!(ends, want, "length {length}, behind a READ: {behind_a_read}");
        let ends: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(0, Success), (1, Success), (2, LocalLength)]);
    }
}

/// MR-2, CK-1: a receive with a wrong key is status 4 here and 11 there.
#[test]
fn mr_2_a_bad_receive_key_fails_both_sides() {
    for behind_a_read in [false, true] {
        let (mut one, mut two) = pair(CAPS, true);
        let sge = Sge { lkey: two.region.lkey() ^ 1, ..two.sge(0, 64) };
        unsafe { two.srq.as_ref().unwrap().post(&[RecvWr { wr_id: 1, sge }]) }.unwrap();
        if behind_a_read {
            read(&mut one, &two);
        }
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(sent[0].status, Status::RemoteOperation, "behind a READ: {behind_a_read}");
        assert_eq!(got[0].status, Status::LocalProtection, "behind a READ: {behind_a_read}");
    }
}

/// Posts a READ that the peer's poll answers: a refusal behind it waits for the response.
fn read(one: &mut End, two: &End) {
    let sge = one.sge(1 << 12, 8);
    one.post(0, SendOp::Read(two.region.remote(0)), sge, SendFlags::empty()).unwrap();
}

/// SM-7: SQ_DRAINED comes although no send asks for a completion, and so none for an
/// acknowledgement.
#[test]
fn sm_07_silent_sends_drain() {
    let (mut one, mut two) = pair(CAPS, true);
    for _ in 0..2 {
        two.recv(1, 0, 64);
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        one.qp.pause(true);
        assert!(one.poll().is_empty() && one.nic.next_async_event().is_none(), "it is not taken");
        assert_eq!(settle(&mut one, &mut two).1.len(), 1);
        let event = one.nic.next_async_event().expect("it has drained");
        assert_eq!(event.kind, AsyncKind::SqDrained);
        assert!(one.nic.next_async_event().is_none(), "once");
        one.qp.resume();
    }
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
    // Each receive is flushed though no send comes with it.
    for wr_id in 13..16 {
        one.recv(wr_id, 0, 8);
        let ends: Vec<_> = one.poll().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(wr_id, Status::Flushed)]);
    }

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

/// The acknowledgement is there, and nobody has read it: the send succeeds, as with a NIC, which
/// would have read it long ago. A program that fails its queue pair when its peer says goodbye
/// relies on it.
#[test]
fn what_the_peer_has_taken_succeeds_in_a_queue_pair_that_fails() {
    let (mut one, mut two) = pair(CAPS, true);
    two.recv(1, 0, 64);
    one.send(1, 0, 8, SendFlags::SIGNALED).unwrap();
    let got: usize = (0..10).map(|_| two.poll().len()).sum();
    assert_eq!(got, 1);
    one.qp.fail();
    let (sent, _) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, Status::Success)]);
}

/// SRQ-11: on a shared receive queue the number of receives counts for nothing. Without one, as
/// with sends, the device's limit holds, and the error tells it.
#[test]
fn srq_11_a_queue_pair_on_a_shared_queue_may_ask_for_any_number_of_receives() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (cq, _poller) = nic.create_cq(4, Sharing::Exclusive).unwrap();
    let srq = nic.create_srq(4).unwrap();
    let most = nic.caps().qp_wr_max;
    let made = |srq, send_wr, recv_wr| {
        let caps = QpCaps { send_wr, recv_wr, ..CAPS };
        let init = SoftQpInit {
            kind: QpType::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq,
            caps,
            signal_all: false,
            ex: SoftQpEx::default(),
        };
        nic.create_qp(&init).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(made(Some(&srq), 8, most + 1), Ok(()));
    for (srq, send_wr, recv_wr) in [(None, 8, most + 1), (None, 0, 8), (Some(&srq), most + 1, 8)] {
        let text = made(srq, send_wr, recv_wr).unwrap_err();
        assert!(text.contains("1 to 32768 sends and at most 32768 receives"), "{text}");
    }
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// One more queue pair of each side, over the same link.
fn beside(
    (one, two): (&End, &End),
    (maker, taker): (&Arc<LinkShared>, &Arc<LinkShared>),
) -> (SoftQp, SoftQp) {
    let make = |end: &End| make_qp(&end.nic, &end.cq, end.srq.as_ref(), CAPS);
    let (mut first, mut second) = (make(one), make(two));
    wire(&mut first, &mut second, maker, taker, 7);
    (first, second)
}

/// A queue pair goes with responses that are not written yet. The next one on the link answers as
/// many READs as it may have.
#[test]
fn sq_7_responses_of_a_queue_pair_that_is_gone_take_no_room_of_others() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    two.fill(0, &pattern(1, 1 << 20));
    let read = SendOp::Read(two.region.remote(0));
    (0..4).for_each(|n| one.post(n, read, one.sge(1 << 20, 1 << 20), SIGNALED).unwrap());
    two.poll();
    let make = |end: &End| make_qp(&end.nic, &end.cq, end.srq.as_ref(), CAPS);
    let (first, second) = (make(&one), make(&two));
    drop(core::mem::replace(&mut two.qp, second));
    let _old = core::mem::replace(&mut one.qp, first);
    wire(&mut one.qp, &mut two.qp, &maker, &taker, 7);
    (4..8).for_each(|n| one.post(n, read, one.sge(2 << 20, 1 << 20), SIGNALED).unwrap());
    // It takes them in the poll in which the first queue pair goes.
    two.poll();
    let (sent, _) = settle(&mut one, &mut two);
    let done = sent.iter().filter(|wc| wc.qp_num == one.qp.num()).map(|wc| (wc.wr_id, wc.status));
    assert_eq!(done.collect::<Vec<_>>(), [4, 5, 6, 7].map(|n| (n, Status::Success)));
    assert_eq!(one.bytes(2 << 20, 1 << 20), pattern(1, 1 << 20));
}

/// A peer sends without a pause. This side still sees that another queue pair was refused, and the
/// sends behind that refusal complete.
#[test]
fn a_refusal_is_seen_under_a_stream() {
    let wide = QpCaps { send_wr: 64, ..CAPS };
    let (mut one, mut two) = (end(CAPS, true), end(wide, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    let (mut other, mut failed) = beside((&one, &two), (&maker, &taker));
    settle(&mut one, &mut two);
    failed.fail();
    two.poll();
    two.recv(0, 0, 64);
    let send =
        SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, sge: one.sge(0, 8), more: &[] };
    unsafe { other.post(&[send]) }.unwrap();
    one.send(2, 0, 8, SIGNALED).unwrap();
    (0..60).for_each(|_| one.recv(10, 0, 64));
    let mut ends = Vec::new();
    for wr_id in 10..10_000 {
        one.recv(wr_id, 0, 64);
        // There are always some left for the next poll.
        while two.send(0, 0, 8, SIGNALED).is_ok() {}
        let mut out = [Wc::default(); 1];
        let taken = one.poller.poll(&mut out);
        assert!(taken == 1 || !ends.is_empty(), "the stream does not pause");
        if taken == 1 && out[0].wr_id < 10 {
            ends.push((out[0].wr_id, out[0].status));
        }
        two.poll();
        if ends.len() == 2 {
            break;
        }
    }
    ends.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ends, [(1, Status::RetryExceeded), (2, Status::Success)]);
}

/// A peer leaves with which the queue pair was connected before its reset: the sends of its next
/// connection go on. If their own peer leaves, they end.
#[test]
fn the_peer_of_an_earlier_connection_ends_no_sends() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 7);
    settle(&mut one, &mut two);
    let earlier = one.qp.control();
    one.qp.reset();
    two.qp.reset();
    join(&mut one.qp, &mut two.qp, 7);
    settle(&mut one, &mut two);
    one.send(1, 0, 8, SIGNALED).unwrap();
    earlier.peer_left();
    assert!(settle(&mut one, &mut two).0.is_empty(), "it waits for a receive");
    one.qp.control().peer_left();
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), sent[0].status), (1, Status::RetryExceeded));
}

/// A side whose second queue pair has the second side for a peer. The first one's peer, the third
/// side, takes nothing.
fn with_two_peers(sharing: Sharing) -> ([End; 3], SoftQp) {
    let (mut one, mut two, mut three) = (end(CAPS, true), end(CAPS, true), end(CAPS, true));
    let (cq, poller) = one.nic.create_cq(256, sharing).unwrap();
    let make = || make_qp(&one.nic, &cq, one.srq.as_ref(), CAPS);
    let (mut first, second) = (make(), make());
    (one.qp, one.cq, one.poller) = (second, cq, poller);
    join(&mut first, &mut three.qp, 7);
    join(&mut one.qp, &mut two.qp, 7);
    settle(&mut one, &mut two);
    ([one, two, three], first)
}

/// A side with two queue pairs, each with a peer of its own. One peer takes nothing and leaves. By
/// then the other has taken a send and has sent a message: both complete before the sends to the
/// first fail. On a NIC, retries take time.
#[test]
fn what_others_have_sent_and_taken_comes_before_the_sends_to_a_peer_that_left_fail() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let ([mut one, mut two, _three], mut first) = with_two_peers(sharing);
        for wr_id in 1..3 {
            let sge = one.sge(0, 8);
            let send = SendWr { wr_id, op: SendOp::Send, flags: SIGNALED, sge, more: &[] };
            unsafe { first.post(&[send]) }.unwrap();
        }
        one.recv(3, 0, 64);
        two.recv(0, 0, 64);
        one.send(4, 0, 8, SIGNALED).unwrap();
        (0..8).for_each(|_| drop(two.poll()));
        two.send(0, 0, 8, SIGNALED).unwrap();
        first.control().peer_left();
        let mut ends = Vec::new();
        for _ in 0..100 {
            let mut out = [Wc::default()];
            if one.poller.poll(&mut out) == 1 {
                ends.push((out[0].wr_id, out[0].status));
            }
        }
        let lost = [(1, Status::RetryExceeded), (2, Status::Flushed)];
        let good = [(4, Status::Success), (3, Status::Success)];
        assert_eq!(ends, [good, lost].concat(), "{sharing:?}");
    }
}

/// The other peer sends without a pause. The sends to the peer that left fail all the same, and
/// soon.
#[test]
fn a_stream_of_another_peer_does_not_delay_the_sends_to_a_peer_that_left() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let ([mut one, mut two, _three], mut first) = with_two_peers(sharing);
        let sge = one.sge(0, 8);
        let send = SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, sge, more: &[] };
        unsafe { first.post(&[send]) }.unwrap();
        first.control().peer_left();
        let mut ends = Vec::new();
        let polls = (2..1000).take_while(|wr_id| {
            one.recv(*wr_id, 0, 64);
            two.send(0, 0, 8, SIGNALED).unwrap();
            let came = one.poll();
            assert!(came.iter().any(|wc| wc.wr_id == *wr_id), "the stream does not pause");
            ends.extend(came.iter().filter(|wc| wc.wr_id == 1).map(|wc| wc.status));
            two.poll();
            ends.is_empty()
        });
        let polls = polls.count();
        assert!(polls < 10, "{sharing:?}: {polls} polls");
        assert_eq!(ends, [Status::RetryExceeded], "{sharing:?}");
    }
}

/// A peer sends a message that takes several polls, and leaves. The message completes before the
/// sends to that peer fail.
#[test]
fn a_long_message_of_a_peer_that_left_comes_before_the_sends_to_it_fail() {
    for (is_lent, length) in [(true, 600 << 10), (false, 60 << 10)] {
        let lenders = || local_rdma::mapped_pair_of(lent::lender).0;
        let (mut one, mut two) = if is_lent { lenders() } else { pair(CAPS, true) };
        settle(&mut one, &mut two);
        one.recv(1, 0, length);
        one.send(2, 0, 8, SIGNALED).unwrap();
        two.send(0, 0, length, SIGNALED).unwrap();
        one.qp.control().peer_left();
        let ends: Vec<_> = (0..100).flat_map(|_| one.poll()).collect();
        let ends: Vec<_> = ends.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let want = [(1, Status::Success), (2, Status::RetryExceeded)];
        assert_eq!(ends, want, "lent: {is_lent}");
    }
}

fn is_slow(end: &End) -> bool {
    wrap::of_link(end, |link| link.slow_poll)
}

/// A peer leaves in the middle of its READ. Nobody reads the rest of the response, and the link is
/// fast again.
#[test]
fn the_response_to_a_peer_that_left_is_dropped() {
    let (mut one, mut two) = pair(CAPS, true);
    let read = SendOp::Read(two.region.remote(0));
    one.post(1, read, one.sge(0, 1 << 20), SIGNALED).unwrap();
    two.poll();
    one.poll();
    drop(one);
    (0..20).for_each(|_| drop(two.poll()));
    assert!(is_slow(&two), "the response has no space");
    two.qp.control().peer_left();
    (0..20).for_each(|_| drop(two.poll()));
    assert!(!is_slow(&two));
}

/// A peer that has only ended the connection gets the answer to its READ.
#[test]
fn the_response_to_a_peer_that_hung_up_is_written() {
    let (mut one, mut two) = pair(CAPS, true);
    let read = SendOp::Read(two.region.remote(0));
    one.post(1, read, one.sge(0, 1 << 20), SIGNALED).unwrap();
    two.poll();
    two.qp.control().peer_hung_up();
    let polls = (0..1000).flat_map(|_| {
        two.poll();
        one.poll()
    });
    let ends: Vec<_> = polls.map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, Status::Success)]);
}

/// A queue pair fails in the middle of its READ, and another one of the link gets a message in each
/// poll. The response is read to its end all the same, and the link is fast again.
#[test]
fn the_response_to_a_failed_queue_pair_is_taken_under_a_stream() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
    let (mut asks, _answers) = beside((&one, &two), (&maker, &taker));
    settle(&mut one, &mut two);
    let (op, sge) = (SendOp::Read(two.region.remote(0)), one.sge(0, 1 << 20));
    unsafe { asks.post(&[SendWr { wr_id: 1, op, flags: SIGNALED, sge, more: &[] }]) }.unwrap();
    two.poll();
    one.poll();
    asks.fail();
    let taken = (0..5000).find(|_| {
        one.recv(0, 1 << 20, 2000);
        two.send(0, 0, 2000, SIGNALED).unwrap();
        let came = one.poll();
        assert!(came.iter().any(|wc| wc.opcode == WcOpcode::Recv), "the stream does not pause");
        two.poll();
        !is_slow(&two)
    });
    assert!(taken.is_some(), "the response stays");
}

/// The owner moves the queue pair to ERR right behind the news that its peer is lost: the first
/// send ends as lost all the same.
#[test]
fn a_lost_peer_is_told_though_the_owner_fails_the_queue_pair() {
    let (mut one, mut two) = pair(CAPS, true);
    settle(&mut one, &mut two);
    (1..3).for_each(|wr_id| one.send(wr_id, 0, 8, SIGNALED).unwrap());
    one.qp.fail_lost();
    one.qp.fail();
    let (sent, _) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| wc.status).collect();
    assert_eq!(ends, [Status::RetryExceeded, Status::Flushed]);
}

/// A program posts to a lost peer again and again, while another peer sends: the sends fail.
#[test]
fn sends_to_a_lost_peer_fail_beside_a_stream() {
    let (mut one, mut two, mut three) = (end(CAPS, true), end(CAPS, true), end(CAPS, true));
    let mut lost = make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS);
    join(&mut lost, &mut three.qp, 7);
    join(&mut one.qp, &mut two.qp, 7);
    settle(&mut one, &mut two);
    let mut failed = false;
    for wr_id in 0..1000 {
        let sge = one.sge(0, 8);
        let send = SendWr { wr_id, op: SendOp::Send, flags: SIGNALED, sge, more: &[] };
        // Its queue is full after a while.
        let _ = unsafe { lost.post(&[send]) };
        lost.fail_lost();
        one.recv(1 << 20, 0, 64);
        two.send(0, 0, 8, SIGNALED).unwrap();
        failed |= one.poll().iter().any(|wc| wc.status == Status::RetryExceeded);
        two.poll();
    }
    assert!(failed, "no send has failed");
}
