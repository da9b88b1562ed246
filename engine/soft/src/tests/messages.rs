//! Messages: order, lengths, completions, send slots, shared receive queues, and many queue pairs
//! on a link.

use core::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::event::{AsyncKind, Object};
use crate::model::limits::SEND_SGE_MAX;
use crate::provider::{AsyncEvents, SrqLimits};
use crate::wc::{Status, WcFlags, WcOpcode};

/// CP-2: every length arrives whole, through slot, ring and fragments; nothing beyond it is
/// written.
#[test]
fn cp_2_every_length_arrives_exactly() {
    let (mut one, mut two) = pair(CAPS, true);
    let lengths = (0..300).chain([511, 512, 513, 700, 1000, 1023, 1024, 1025, 1104, 1105]);
    let lengths = lengths.chain([2031, 2032, 2033, 4064, 5000, 8192, 9001, 65536, 1 << 20]);
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
    let one_too_many = [sge; SEND_SGE_MAX];
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &one_too_many };
    assert_eq!(unsafe { one.qp.post(&[wr]) }.unwrap_err().cause, PostCause::TooManyPieces);
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

/// Lengths for every path: slot of one line, of four and of many, ring, fragments.
fn length_of(n: u64) -> usize {
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match mixed % 10 {
        0..4 => mixed as usize % 41,
        4..7 => mixed as usize % 220,
        7..9 => mixed as usize % 1200,
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

/// A domain has lost its only link, and a queue pair without a connection still uses the shared
/// receive queue. The domain gives back what it has prefetched.
#[test]
fn receives_come_back_from_a_domain_without_links() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let srq = nic.create_srq(64).unwrap();
    let region = nic.register(mapping(1 << 12), Access::LOCAL_WRITE).unwrap();
    let mut clients = [(); 2].map(|()| end(QpCaps { send_wr: 64, ..CAPS }, true));
    let [(cq, mut poller), (other_cq, mut other)] =
        [(); 2].map(|()| nic.create_cq(64, Sharing::Exclusive).unwrap());
    let _idle = make_qp(&nic, &cq, Some(&srq), CAPS);
    let mut first = make_qp(&nic, &cq, Some(&srq), CAPS);
    join(&mut clients[0].qp, &mut first, 7);
    post_recvs(&srq, &region, 64);
    let mut out = [Wc::default(); 64];
    // It prefetches more than the one that it uses.
    clients[0].send(0, 0, 8, SendFlags::empty()).unwrap();
    assert_eq!(poller.poll(&mut out), 1);
    let [_gone, mut client] = clients;
    drop((_gone, first));
    assert_eq!(poller.poll(&mut out), 0);
    let mut second = make_qp(&nic, &other_cq, Some(&srq), CAPS);
    join(&mut client.qp, &mut second, 7);
    (0..63).for_each(|_| client.send(0, 0, 8, SendFlags::empty()).unwrap());
    let mut got: usize = (0..100).map(|_| other.poll(&mut out)).sum();
    assert!(got < 63, "some are prefetched elsewhere");
    for _ in 0..100 {
        got += poller.poll(&mut out) + other.poll(&mut out);
    }
    assert_eq!(got, 63);
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

/// The event comes behind the messages that reach the limit, whether they use all receives that
/// were prefetched before it was set or some.
#[test]
fn srq_limit_fires_behind_a_list_of_messages() {
    for count in [10, 15] {
        let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
        (0..64).for_each(|n| two.recv(n, 0, 64));
        one.send(0, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(settle(&mut one, &mut two).1.len(), 1);
        let srq = two.srq.as_ref().unwrap();
        let id = srq.id();
        srq.set_limit(60).unwrap();
        let sge = one.sge(0, 8);
        let wr =
            |wr_id| SendWr { wr_id, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
        one.post_list(&(0..count).map(wr).collect::<Vec<_>>()).unwrap();
        assert_eq!(settle(&mut one, &mut two).1.len() as u64, count);
        let event = two.nic.next_async_event().unwrap();
        assert_eq!((event.kind, event.object), (AsyncKind::SrqLimitReached, Object::Srq(id)));
        assert!(two.nic.next_async_event().is_none());
        assert_eq!(two.srq.as_ref().unwrap().limit().unwrap(), 0);
    }
}
