//! READ, WRITE and atomics, carried out by the owner's poll.

use super::*;
use crate::wc::{Status, WcFlags, WcOpcode};
use crate::wr::Remote;

const NONE: SendFlags = SendFlags::empty();
const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn one_wc(list: &[Wc]) -> Wc {
    assert_eq!(list.len(), 1, "{list:?}");
    list[0]
}

/// The completions after a failed request: its own first, then flushes.
fn failure(sent: &[Wc]) -> Status {
    let first = sent.first().expect("a completion").status;
    assert!(sent[1..].iter().all(|wc| wc.status == Status::Flushed));
    first
}

/// SQ-6: every length is written exactly, and the peer is not notified.
#[test]
fn sq_6_writes_of_every_length_land_exactly() {
    let (mut one, mut two) = pair(CAPS, true);
    two.recv(9, 0, 64);
    let lengths = (0..40).chain([200, 2015, 2016, 2017, 4032, 8192, 9001, 65536, 1 << 20]);
    for (n, length) in lengths.enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        two.fill(64, &std::vec![0xee; length + 64]);
        let op = SendOp::Write(two.region.remote(80));
        one.post(n as u64, op, one.sge(0, length), SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        let wc = one_wc(&sent);
        let want = (n as u64, Status::Success, WcOpcode::Write);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), want, "{length}");
        assert!(got.is_empty());
        assert_eq!(two.bytes(80, length), bytes, "length {length}");
        assert!(two.bytes(64, 16).iter().all(|b| *b == 0xee), "before {length}");
        assert!(two.bytes(80 + length, 40).iter().all(|b| *b == 0xee), "beyond {length}");
    }
}

/// RC-4, CP-2: immediate data consumes a receive, whose buffer stays unchanged; its length is the
/// written length.
#[test]
fn rc_4_write_with_imm_consumes_a_receive_and_leaves_its_buffer() {
    let (mut one, mut two) = pair(CAPS, true);
    for (n, length) in [0, 8, 5000].into_iter().enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        two.fill(0, &[0xee; 64]);
        let op = SendOp::WriteWithImm(two.region.remote(4096), 0xabcd);
        one.post(1, op, one.sge(0, length), SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert!(sent.is_empty() && got.is_empty(), "no receive: it waits");
        two.recv(7, 0, 64);
        let (sent, got) = settle(&mut one, &mut two);
        let wc = one_wc(&got);
        assert_eq!((wc.wr_id, wc.opcode, wc.imm), (7, WcOpcode::RecvWriteWithImm, 0xabcd));
        assert_eq!((wc.byte_len as usize, wc.flags), (length, WcFlags::WITH_IMM));
        assert!(two.bytes(0, 64).iter().all(|b| *b == 0xee));
        assert_eq!(two.bytes(4096, length), bytes);
        assert_eq!(one_wc(&sent).opcode, WcOpcode::Write);
    }
}

/// CP-2: every length is read exactly, into one piece or several.
#[test]
fn cp_2_reads_of_every_length_arrive_exactly() {
    let caps = QpCaps { send_sge: 4, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let lengths = (0..40).chain([200, 2023, 2024, 2025, 4048, 8192, 9001, 65536, 1 << 20]);
    for (n, length) in lengths.enumerate() {
        let bytes = pattern(n, length);
        two.fill(512, &bytes);
        one.fill(0, &std::vec![0xee; length + 512]);
        let op = SendOp::Read(two.region.remote(512));
        let cut = length / 3;
        let more = [one.sge(128 + cut, 0), one.sge(192 + cut, length - cut)];
        let sge = one.sge(128, cut);
        let wr = SendWr { wr_id: 3, op, flags: SIGNALED, sge, more: &more };
        unsafe { one.qp.post(&[wr]).unwrap() };
        let (sent, got) = settle(&mut one, &mut two);
        let wc = one_wc(&sent);
        assert_eq!((wc.status, wc.opcode), (Status::Success, WcOpcode::Read), "{length}");
        assert_eq!(wc.byte_len as usize, length);
        assert!(got.is_empty());
        assert_eq!(one.bytes(128, cut), bytes[..cut]);
        assert_eq!(one.bytes(192 + cut, length - cut), bytes[cut..]);
        for at in [64, 128 + cut, 192 + length] {
            assert!(one.bytes(at, 64).iter().all(|b| *b == 0xee), "{length} at {at}");
        }
    }
}

/// RC-6: the old value comes back, and the word has the new one.
#[test]
fn rc_6_atomics_swap_on_equal_and_add_with_wrap() {
    let (mut one, mut two) = pair(CAPS, true);
    let at = two.region.remote(64);
    let mut word = u64::MAX - 1;
    two.fill(64, &word.to_ne_bytes());
    let swap = |compare, swap| SendOp::CompareSwap { at, compare, swap };
    let add = |add| SendOp::FetchAdd { at, add };
    for (op, after) in
        [(add(1), u64::MAX), (add(3), 2), (swap(1, 77), 2), (swap(2, 77), 77), (add(0), 77)]
    {
        one.post(1, op, one.sge(8, 8), SIGNALED).unwrap();
        let wc = one_wc(&settle(&mut one, &mut two).0);
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (Status::Success, op.completes_as(), 8));
        assert_eq!(one.bytes(8, 8), word.to_ne_bytes(), "before {op:?}");
        assert_eq!(two.bytes(64, 8), after.to_ne_bytes(), "after {op:?}");
        word = after;
    }
}

/// SQ-9: a request without bytes needs no key.
#[test]
fn sq_9_empty_reads_and_writes_need_no_key() {
    let (mut one, mut two) = pair(CAPS, true);
    let at = Remote { addr: 1, rkey: 0xdead };
    let none = Sge::default();
    for op in [SendOp::Write(at), SendOp::Read(at)] {
        one.post(1, op, none, SIGNALED).unwrap();
        assert_eq!(one_wc(&settle(&mut one, &mut two).0).status, Status::Success);
    }
}

/// A forbidden request touches nothing, consumes no receive, and ends both queue pairs.
#[test]
fn rkeys_bounds_and_rights_are_checked_by_the_owner() {
    let deny = |right: Access| Access::all() - right;
    type Case = (&'static str, Access, usize, fn(Remote) -> SendOp, Status);
    let cases: &[Case] = &[
        ("write", deny(Access::REMOTE_WRITE), 0, SendOp::Write, Status::RemoteAccess),
        (
            "imm",
            deny(Access::REMOTE_WRITE),
            0,
            |at| SendOp::WriteWithImm(at, 1),
            Status::RemoteAccess,
        ),
        ("read", deny(Access::REMOTE_READ), 0, SendOp::Read, Status::RemoteAccess),
        (
            "add",
            deny(Access::REMOTE_ATOMIC),
            0,
            |at| SendOp::FetchAdd { at, add: 1 },
            Status::RemoteAccess,
        ),
        ("write past", Access::all(), 4096 - 7, SendOp::Write, Status::RemoteAccess),
        ("read past", Access::all(), 4096 - 7, SendOp::Read, Status::RemoteAccess),
        (
            "add past",
            Access::all(),
            4096,
            |at| SendOp::FetchAdd { at, add: 1 },
            Status::RemoteAccess,
        ),
        (
            "add odd",
            Access::all(),
            4,
            |at| SendOp::FetchAdd { at, add: 1 },
            Status::RemoteInvalidRequest,
        ),
    ];
    for (name, access, offset, op, status) in cases {
        let (mut one, mut two) = pair(CAPS, true);
        let target = two.nic.register(mapping(4096), *access).unwrap();
        two.recv(5, 0, 64);
        one.post(1, op(target.remote(*offset)), one.sge(0, 8), NONE).unwrap();
        one.send(2, 0, 8, NONE).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((failure(&sent), sent.len()), (*status, 2), "{name}");
        assert!(got.is_empty(), "{name}: {got:?}");
        let bytes = unsafe { core::slice::from_raw_parts(target.as_ptr(), 4096) };
        assert!(bytes.iter().all(|b| *b == 0), "{name}");
        two.send(3, 0, 8, NONE).unwrap();
        assert_eq!(settle(&mut one, &mut two).1[0].status, Status::Flushed, "{name}: both ends");
    }
}

/// MR-3: a key of memory that was deregistered opens nothing.
#[test]
fn mr_3_a_stale_rkey_is_refused() {
    let (mut one, mut two) = pair(CAPS, true);
    let target = two.nic.register(mapping(4096), Access::all()).unwrap();
    let at = target.remote(0);
    drop(target);
    one.post(1, SendOp::Write(at), one.sge(0, 8), NONE).unwrap();
    assert_eq!(failure(&settle(&mut one, &mut two).0), Status::RemoteAccess);
}

/// A range that ends beyond the region is refused before its first byte is written.
#[test]
fn a_long_write_past_the_end_writes_nothing() {
    let (mut one, mut two) = pair(CAPS, true);
    let target = two.nic.register(mapping(8192), Access::all()).unwrap();
    one.fill(0, &[1; 8192 + 8]);
    one.post(1, SendOp::Write(target.remote(0)), one.sge(0, 8192 + 8), NONE).unwrap();
    assert_eq!(failure(&settle(&mut one, &mut two).0), Status::RemoteAccess);
    let bytes = unsafe { core::slice::from_raw_parts(target.as_ptr(), 8192) };
    assert!(bytes.iter().all(|b| *b == 0));
}

/// MR-2: the results of READs and atomics go only where the poster may write.
#[test]
fn mr_2_results_need_local_write() {
    for read in [true, false] {
        let (mut one, mut two) = pair(CAPS, true);
        let at = two.region.remote(0);
        let op = if read { SendOp::Read(at) } else { SendOp::FetchAdd { at, add: 1 } };
        let sink = one.nic.register(mapping(4096), Access::empty()).unwrap();
        let sge = Sge { addr: sink.as_ptr() as u64, length: 8, lkey: sink.lkey() };
        one.post(1, op, sge, NONE).unwrap();
        let (sent, _) = settle(&mut one, &mut two);
        assert_eq!((failure(&sent), sent.len()), (Status::LocalProtection, 1));
        assert_eq!(two.bytes(0, 8), [0; 8], "it never left");
    }
}

/// SQ-4: a request that brings bytes back is never inline, and an atomic brings eight.
#[test]
fn sq_4_malformed_requests_are_refused_when_posted() {
    let (mut one, two) = pair(CAPS, true);
    let at = two.region.remote(0);
    let read = one.post(1, SendOp::Read(at), one.sge(0, 8), SendFlags::INLINE);
    assert_eq!(read.unwrap_err().cause, PostCause::Malformed);
    let add = one.post(1, SendOp::FetchAdd { at, add: 1 }, one.sge(0, 4), NONE);
    assert_eq!(add.unwrap_err().cause, PostCause::Malformed);
}

/// SQ-7: READs beyond the limit in flight wait for their turn, and complete in order.
#[test]
fn sq_7_reads_beyond_the_depth_wait_and_stay_in_order() {
    let caps = QpCaps { send_wr: 64, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    two.fill(0, &pattern(1, 4096));
    for n in 0..40u64 {
        let op = SendOp::Read(two.region.remote(n as usize * 64));
        one.post(n, op, one.sge(n as usize * 64, 64), SIGNALED).unwrap();
    }
    two.poll();
    assert_eq!(one.poll().len(), 0, "answers come with this poll, completions with the next");
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.iter().map(|wc| wc.wr_id).eq(0..40));
    assert_eq!(one.bytes(0, 2560), pattern(1, 4096)[..2560]);
}

/// SQ-7: a requester that has more READs in flight than the responder allows is refused.
#[test]
fn sq_7_more_reads_than_the_responder_allows_are_refused() {
    let (mut one, mut two) = pair_of_depths(4, 2);
    for n in 0..4 {
        let op = SendOp::Read(two.region.remote(0));
        one.post(n, op, one.sge(0, 8), SIGNALED).unwrap();
    }
    use Status::{Flushed, RemoteInvalidRequest, Success};
    let ends: Vec<_> = settle(&mut one, &mut two).0.iter().map(|wc| wc.status).collect();
    assert_eq!(ends, [Success, Success, RemoteInvalidRequest, Flushed]);
}

/// A pair. The first side may have `initiator` READs in flight; the second allows `responder`.
fn pair_of_depths(initiator: u8, responder: u8) -> (End, End) {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    let (maker, taker) = LinkShared::pair(mapping(LINK_BYTES)).unwrap();
    let (maker, taker) = (Arc::new(maker), Arc::new(taker));
    one.qp.attach(&maker);
    two.qp.attach(&taker);
    let wiring = Wiring {
        peer: two.qp.num(),
        peer_rnr_retry: 7,
        rnr_timer_ns: 0,
        initiator_depth: initiator,
        responder_depth: 4,
    };
    one.qp.connect(&maker, wiring);
    let peer = one.qp.num();
    two.qp.connect(&taker, Wiring { peer, responder_depth: responder, ..wiring });
    (one, two)
}

/// SQ-7: a peer of a side that serves none has no right to READ; a side that may have none in
/// flight cannot.
#[test]
fn sq_7_no_depth_no_reads() {
    for (initiator, responder, status) in
        [(4, 0, Status::RemoteInvalidRequest), (0, 4, Status::LocalQpOperation)]
    {
        let (mut one, mut two) = pair_of_depths(initiator, responder);
        one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 8), NONE).unwrap();
        assert_eq!(failure(&settle(&mut one, &mut two).0), status);
    }
}

/// SQ-5: a fenced request starts when earlier READs have finished; one without a fence starts at
/// once.
#[test]
fn sq_5_a_fence_waits_for_reads() {
    for fenced in [false, true] {
        let (mut one, mut two) = pair(CAPS, true);
        two.recv(1, 0, 64);
        one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 8), NONE).unwrap();
        let flags = if fenced { SIGNALED | SendFlags::FENCE } else { SIGNALED };
        one.send(2, 0, 8, flags).unwrap();
        let at_once = two.poll();
        assert_eq!(at_once.len(), usize::from(!fenced), "fenced: {fenced}");
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(got.len(), usize::from(fenced));
        assert_eq!(one_wc(&sent).wr_id, 2);
    }
}

/// RC completes in order: a SEND behind a READ completes after it, although it was taken before.
#[test]
fn sq_5_completions_wait_for_earlier_answers() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    two.recv(1, 0, 64);
    // Enough bytes that the response needs several polls.
    one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 1 << 16), NONE).unwrap();
    one.send(2, 0, 8, SIGNALED).unwrap();
    assert_eq!(two.poll().len(), 1, "the message is taken");
    for _ in 0..3 {
        assert!(one.poll().is_empty(), "the answer is not whole");
    }
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!(one_wc(&sent).wr_id, 2);
}

/// SQ-5: messages that fill the ring and find no receive hold up no response of their direction,
/// and arrive in order afterwards.
#[test]
fn responses_pass_messages_that_find_no_receive() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 512, ..CAPS }, true);
    two.fill(0, &pattern(5, 1 << 16));
    for n in 0..100 {
        let at = (1 << 17) + n as usize * 1000;
        two.fill(at, &[n as u8; 1000]);
        two.send(n, at, 1000, NONE).unwrap();
    }
    one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 1 << 16), SIGNALED).unwrap();
    let op = SendOp::FetchAdd { at: two.region.remote(1 << 16), add: 1 };
    one.post(2, op, one.sge(1 << 17, 8), SIGNALED).unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, Status::Success), (2, Status::Success)]);
    assert!(one.bytes(0, 1 << 16) == pattern(5, 1 << 16));
    assert!(got.is_empty());
    for n in 0..100 {
        one.recv(n, 1 << 18, 1000);
        let (got, _) = settle(&mut one, &mut two);
        assert_eq!((one_wc(&got).wr_id, one.bytes(1 << 18, 1000)), (n, std::vec![n as u8; 1000]));
    }
}

/// SM-2, RC-7: a refusal ends the requests behind it, never the READ before it.
#[test]
fn a_refusal_waits_for_the_answers_before_it() {
    let (mut one, mut two) = pair(CAPS, true);
    two.fill(0, &pattern(5, 1 << 16));
    one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 1 << 16), SIGNALED).unwrap();
    let nowhere = Remote { addr: 0, rkey: 0xdead_0001 };
    one.post(2, SendOp::Write(nowhere), one.sge(0, 8), NONE).unwrap();
    one.send(3, 0, 8, NONE).unwrap();
    let (sent, _) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let want = [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::Flushed)];
    assert_eq!(ends, want);
    assert_eq!(one.bytes(0, 1 << 16), pattern(5, 1 << 16));
}

/// The peer's queue pair fails or goes away between request and response: the READ fails, and
/// nothing before it.
#[test]
fn a_peer_that_fails_owing_an_answer_fails_the_read() {
    for gone in [false, true] {
        let (mut one, mut two) = pair(CAPS, true);
        two.recv(1, 0, 64);
        one.send(1, 0, 8, SIGNALED).unwrap();
        one.post(2, SendOp::Read(two.region.remote(0)), one.sge(0, 1 << 16), NONE).unwrap();
        two.poll();
        if gone {
            let spare = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
            drop(core::mem::replace(&mut two.qp, spare));
        } else {
            two.qp.fail();
        }
        let (sent, _) = settle(&mut one, &mut two);
        let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ends, [(1, Status::Success), (2, Status::RetryExceeded)], "gone: {gone}");
    }
}

/// Memory that goes away while it is read: the READ fails, and the bytes were not accessed
/// afterwards.
#[test]
fn memory_that_goes_while_it_is_read_fails_the_read() {
    let (mut one, mut two) = pair(CAPS, true);
    let target = two.nic.register(mapping(1 << 16), Access::all()).unwrap();
    one.post(1, SendOp::Read(target.remote(0)), one.sge(0, 1 << 16), NONE).unwrap();
    two.poll();
    drop(target);
    assert_eq!(failure(&settle(&mut one, &mut two).0), Status::RemoteAccess);
}

/// Our own failure leaves late responses without effect.
#[test]
fn answers_to_a_failed_queue_pair_are_dropped() {
    let (mut one, mut two) = pair(CAPS, true);
    two.fill(0, &[7; 64]);
    one.post(1, SendOp::Read(two.region.remote(0)), one.sge(0, 64), NONE).unwrap();
    two.poll();
    one.qp.fail();
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!(one_wc(&sent).status, Status::Flushed);
    assert_eq!(one.bytes(0, 64), [0; 64]);
}

/// RC-6: the peer's atomics and the owner's own lose no step.
#[test]
fn rc_6_atomics_of_the_peer_and_the_owner_add_up() {
    const ROUNDS: u64 = 20_000;
    let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    let at = two.region.remote(64);
    let word = two.region.as_ptr().wrapping_add(64).cast::<u64>();
    let word = unsafe { AtomicU64::from_ptr(word) };
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        let two = &mut two;
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                two.poll();
            }
        });
        let (mut posted, mut seen) = (0, 0);
        while seen < ROUNDS {
            let op = SendOp::FetchAdd { at, add: 1 << 32 };
            if posted < ROUNDS && one.post(posted, op, one.sge(0, 8), SIGNALED).is_ok() {
                posted += 1;
            }
            for wc in one.poll() {
                assert_eq!(wc.status, Status::Success);
                seen += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(word.load(Ordering::Relaxed), ROUNDS << 32 | ROUNDS);
}

/// Both sides read and write each other's memory at once, more than any ring holds: nobody waits
/// for ever.
#[test]
fn crossing_reads_and_writes_make_progress() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    for round in 0..8 {
        for n in 0..8u64 {
            let at = (n as usize) << 17;
            let remotes = [two.region.remote(at), one.region.remote(at)];
            for (from, at_peer) in [&mut one, &mut two].into_iter().zip(remotes) {
                let sge = from.sge(at | 1 << 16, 1 << 16);
                let op = if n % 2 == 0 { SendOp::Read(at_peer) } else { SendOp::Write(at_peer) };
                from.post(n, op, sge, SIGNALED).unwrap();
            }
        }
        let (first, second) = settle(&mut one, &mut two);
        for list in [first, second] {
            assert_eq!(list.len(), 8, "round {round}");
            assert!(list.iter().all(|wc| wc.status == Status::Success));
        }
    }
}

/// SQ-3: a silent request that fails is reported, even if the one behind it cannot run; that one
/// waits for nothing if all before it succeeded.
#[test]
fn sq_3_a_silent_request_fails_before_one_that_cannot_run() {
    for key in [0, 0x1_0000] {
        let (mut one, mut two) = pair(CAPS, true);
        let at = two.region.remote(0);
        let at = Remote { rkey: at.rkey ^ key, ..at };
        one.post(1, SendOp::Write(at), one.sge(0, 8), NONE).unwrap();
        let sge = Sge { lkey: 0xdead_0000, ..one.sge(0, 8) };
        one.post(2, SendOp::Send, sge, NONE).unwrap();
        let (sent, _) = settle(&mut one, &mut two);
        let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let want = match key {
            0 => std::vec![(2, Status::LocalProtection)],
            _ => std::vec![(1, Status::RemoteAccess), (2, Status::Flushed)],
        };
        assert_eq!(ends, want);
    }
}
