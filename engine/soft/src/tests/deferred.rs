//! Deferred posts: the peer sees nothing before the doorbell, and everything in order after it,
//! whether it is one message or many, and whichever queue pair rings.

use super::*;

fn inline(bytes: &[u8], wr_id: u64) -> SendWr<'_> {
    let sge = Sge::inline(bytes);
    SendWr { wr_id, op: SendOp::Send, flags: SendFlags::INLINE, sge, more: &[] }
}

fn post_deferred(end: &mut End, bytes: &[u8], wr_id: u64) -> bool {
    unsafe { end.qp.post_deferred(&inline(bytes, wr_id)) }
}

/// Posts behind a deferred message.
fn more(end: &mut End, bytes: &[u8], wr_id: u64) -> bool {
    unsafe { end.qp.post_deferred_next(wr_id, Sge::inline(bytes)) }
}

fn lone(end: &mut End, bytes: &[u8], wr_id: u64) -> bool {
    unsafe { end.qp.post_at_once(&inline(bytes, wr_id)) }
}

/// Posts behind a message that was posted at once.
fn next(end: &mut End, bytes: &[u8], wr_id: u64) -> bool {
    unsafe { end.qp.post_at_once_next(wr_id, Sge::inline(bytes)) }
}

/// Posts the front of a list.
fn list(end: &mut End, list: &[&[u8]], first: u64) -> usize {
    unsafe { end.qp.post_inline_list(first, list) }
}

fn ring_doorbell(end: &mut End) {
    unsafe { end.qp.ring_doorbell() };
}

/// Checks that `count` messages of that size came, in order.
fn in_order(got: &[Vec<u8>], size: usize, count: usize) {
    assert_eq!(got.len(), count, "size {size}");
    for (n, bytes) in got.iter().enumerate() {
        assert_eq!(*bytes, pattern(n + size, size));
    }
}

/// A signalled message retires all before it (SQ-2).
fn retire(from: &mut End, to: &mut End) {
    to.recv(0, 0, 256);
    from.send(99, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, got) = settle(from, to);
    assert_eq!((sent.len(), got.len()), (1, 1));
}

/// Bytes of each message received, by its receive.
fn came(end: &mut End, sizes: &[usize]) -> Vec<Vec<u8>> {
    let wcs = end.poll();
    let bytes = |(wc, size): (&Wc, &usize)| {
        assert!(wc.status.is_ok() && wc.byte_len as usize == *size, "{wc:?}");
        end.bytes(wc.wr_id as usize * 256, *size)
    };
    wcs.iter().zip(sizes).map(bytes).collect()
}

/// For every size, one message and as many as a poll takes: the peer sees nothing before the
/// doorbell and all of it afterwards. The poster may change the bytes once the call returns (SQ-4).
#[test]
fn sq_4_deferred_posts_are_seen_with_the_doorbell() {
    let caps = QpCaps { send_wr: 256, recv_wr: 32, inline: 220, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let mut followed = [0; 2];
    for size in (0..=220).chain([8, 40, 41, 208, 209]) {
        for count in [1, 2, 3, 16] {
            let sizes = std::vec![size; count];
            for n in 0..count {
                two.recv(n as u64, n * 256, 256);
                let mut bytes = pattern(n + size, size);
                let follows = n > 0 && more(&mut one, &bytes, n as u64);
                followed[usize::from(follows)] += usize::from(n > 0);
                assert!(follows || post_deferred(&mut one, &bytes, n as u64), "size {size}");
                bytes.fill(0xee);
            }
            // At most half a segment may stay unpublished, counted from about the last doorbell.
            let much = (size + 16) * count > 3900;
            assert!(much || came(&mut two, &sizes).is_empty(), "size {size}");
            ring_doorbell(&mut one);
            let mut got = came(&mut two, &sizes);
            // A poll takes one of two.
            if got.len() < count {
                assert!(much || count == 2);
                got.extend(came(&mut two, &sizes[got.len()..]));
            }
            in_order(&got, size, count);
            retire(&mut one, &mut two);
        }
    }
    assert!(followed[1] > 9 * followed[0], "{followed:?} of another's kind");
}

/// The sender and the receiver.
fn turn<'a>(one: &'a mut End, two: &'a mut End, answer: bool) -> (&'a mut End, &'a mut End) {
    if answer { (two, one) } else { (one, two) }
}

/// The peer sees a message that is posted at once without delay, whatever its size. The poster may
/// change the bytes as soon as the call returns (SQ-4).
#[test]
fn sq_4_a_post_at_once_is_seen_at_once() {
    let caps = QpCaps { send_wr: 256, recv_wr: 32, inline: 220, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let mut followed = [0; 2];
    for size in (0..=220).chain([8, 40, 41, 208, 209]) {
        for n in 0..16 {
            for answer in [false, true] {
                let (from, to) = turn(&mut one, &mut two, answer);
                to.recv(0, 0, 256);
                let mut bytes = pattern(n + size, size);
                let follows = next(from, &bytes, n as u64);
                followed[usize::from(follows)] += 1;
                assert!(follows || lone(from, &bytes, n as u64), "size {size}");
                bytes.fill(0xee);
                assert_eq!(came(to, &[size]), [pattern(n + size, size)]);
            }
        }
        for answer in [false, true] {
            let (from, to) = turn(&mut one, &mut two, answer);
            retire(from, to);
        }
    }
    assert!(followed[1] > 9 * followed[0], "{followed:?} of another's kind");
    two.recv(0, 0, 256);
    two.recv(1, 256, 256);
    assert!(lone(&mut one, b"first", 0) && post_deferred(&mut one, b"second", 1));
    assert!(!next(&mut one, b"third", 2), "it is not alone");
    ring_doorbell(&mut one);
    assert_eq!(came(&mut two, &[5, 6]), [&b"first"[..], b"second"]);
}

/// The same while the other side neither replies nor polls: messages that do not fit the slot's
/// first line use the ring alone.
#[test]
fn sq_4_posts_at_once_in_a_stream_are_published() {
    let caps = QpCaps { send_wr: 256, recv_wr: 64, inline: 220, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let mut followed = [0; 2];
    for size in (0..=220).chain([8, 40, 41, 208, 209]) {
        let sizes = [size; 16];
        for n in 0..sizes.len() {
            two.recv(n as u64, n * 256, 256);
            let mut bytes = pattern(n + size, size);
            let follows = next(&mut one, &bytes, n as u64);
            followed[usize::from(follows)] += 1;
            assert!(follows || lone(&mut one, &bytes, n as u64), "size {size}");
            bytes.fill(0xee);
            let state = unsafe { one.poller.cq.domain.alone() };
            assert_eq!(state.links.table[0].as_ref().unwrap().tx.unpublished(), 0, "size {size}");
        }
        let got = came(&mut two, &sizes);
        in_order(&got, size, sizes.len());
        retire(&mut one, &mut two);
    }
    assert!(followed[1] > 9 * followed[0], "{followed:?} of another's kind");
}

/// The peer sees a list with the doorbell, in order. One completion retires it (SQ-2). It may be
/// longer than the bytes that may stay unpublished.
#[test]
fn sq_4_a_list_is_seen_with_the_doorbell() {
    let caps = QpCaps { send_wr: 256, recv_wr: 128, inline: 220, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let mut stalls = 0;
    for size in [0, 1, 8, 33, 64, 200, 220] {
        for count in [1, 2, 16, 100] {
            let all: Vec<_> = (0..count).map(|n| pattern(n + size, size)).collect();
            let refs: Vec<_> = all.iter().map(Vec::as_slice).collect();
            (0..=count).for_each(|n| two.recv(n as u64, n * 256, 256));
            let (mut taken, mut got) = (0, Vec::new());
            while taken < count {
                let more = list(&mut one, &refs[taken..], taken as u64);
                if (size + 16) * count < 3900 {
                    assert!((more, two.poll().len()) == (count, 0), "size {size}");
                } else if more == 0 {
                    // At the end of the ring, until the other side has acknowledged.
                    ring_doorbell(&mut one);
                    (0..3).for_each(|_| got.extend(two.poll()));
                }
                taken += more;
                stalls += usize::from(more == 0);
            }
            one.send(99, 0, 8, SendFlags::SIGNALED).unwrap();
            let (sent, came) = settle(&mut one, &mut two);
            assert_eq!(sent.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [99]);
            got.extend(came);
            assert_eq!(got.len(), count + 1);
            for (n, wc) in got[..count].iter().enumerate() {
                assert!(wc.wr_id as usize == n && wc.byte_len as usize == size);
                assert_eq!(two.bytes(n * 256, size), all[n], "size {size}");
            }
        }
    }
    assert!(stalls < 20, "{stalls}");
}

/// A list stops before a message that is too long (SQ-4), and when slots (SQ-1) or space run out.
/// None of it is posted behind a request that waits, in another state (SM-2), or if every request
/// must ask for a completion (SQ-2).
#[test]
fn sq_1_a_list_stops_at_the_first_obstacle() {
    let bytes = pattern(0, 65);
    let (short, long) = (&bytes[..64], &bytes[..]);
    let caps = QpCaps { send_wr: 8, recv_wr: 64, inline: 64, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    assert_eq!(list(&mut one, &[short, short, long, short], 0), 2);
    assert_eq!(list(&mut one, &[long], 2), 0);
    assert_eq!(list(&mut one, &[short; 9], 2), 6, "a full queue");
    assert_eq!(list(&mut one, &[], 8) + list(&mut one, &[short], 8), 0);
    (0..8).for_each(|n| two.recv(n, n as usize * 64, 64));
    ring_doorbell(&mut one);
    assert_eq!(came(&mut two, &[64; 8]).len(), 8);

    let caps = QpCaps { send_wr: 1024, recv_wr: 64, ..caps };
    let (mut one, _two) = pair(caps, true);
    let space = (0..100).map(|n| list(&mut one, &[short; 32], n * 32)).sum::<usize>();
    assert!((900..=910).contains(&space), "{space} of 72 bytes in a ring of 65536");
    let (mut one, _two) = pair(caps, true);
    one.send(1, 0, 90_000, SendFlags::empty()).unwrap();
    assert_eq!(list(&mut one, &[short], 0), 0, "it would overtake");
    let (mut one, _two) = pair(caps, true);
    one.qp.fail();
    assert_eq!(list(&mut one, &[short], 0), 0);
    for (sharing, signal_all) in [(Sharing::Shared, false), (Sharing::Exclusive, true)] {
        let (near, mut far) = (end(caps, false), end(caps, false));
        let (cq, _poller) = near.nic.create_cq(16, sharing).unwrap();
        let (send_cq, recv_cq, ex) = (&cq, &cq, SoftQpEx::default());
        let kind = QpType::Rc;
        let init = SoftQpInit { kind, send_cq, recv_cq, srq: None, caps, signal_all, ex };
        let mut qp = near.nic.create_qp(&init).unwrap();
        join(&mut qp, &mut far.qp, 7);
        assert_eq!(unsafe { qp.post_inline_list(0, &[short]) }, 0, "{sharing:?}, {signal_all}");
    }
}

/// A post behind deferred messages publishes both, in order; so does the doorbell of another queue
/// pair of the link.
#[test]
fn sq_1_deferred_posts_go_first() {
    let caps = QpCaps { inline: 64, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    for n in 0..3 {
        two.recv(n, n as usize * 256, 256);
    }
    assert!(
        post_deferred(&mut one, &pattern(1, 8), 1) && post_deferred(&mut one, &pattern(2, 40), 2)
    );
    let last = pattern(3, 8);
    assert!(!unsafe { one.qp.post_at_once(&inline(&last, 3)) }, "it is not alone");
    unsafe { one.qp.post(&[inline(&last, 3)]) }.unwrap();
    let got = came(&mut two, &[8, 40, 8]);
    assert_eq!(got, [pattern(1, 8), pattern(2, 40), last]);
    ring_doorbell(&mut one);
    assert!(two.poll().is_empty(), "there was nothing left to ring for");
}

/// The deferred functions leave these to `post`: a full send queue (SQ-1), a payload over the limit
/// (SQ-4), a one-sided request, a queue pair in error (SM-2).
#[test]
fn sq_1_other_requests_are_left_to_post() {
    let (mut one, mut two) = pair(CAPS, true);
    let bytes = pattern(0, 65);
    assert!(!post_deferred(&mut one, &bytes, 0), "over the limit of 64");
    let wr = SendWr { op: SendOp::Write(Default::default()), ..inline(&bytes[..8], 0) };
    assert!(!unsafe { one.qp.post_deferred(&wr) } && !unsafe { one.qp.post_at_once(&wr) });
    for n in 0..u64::from(CAPS.send_wr) {
        assert!(post_deferred(&mut one, &bytes[..8], n));
    }
    assert!(!post_deferred(&mut one, &bytes[..8], 8), "the queue is full");
    ring_doorbell(&mut one);
    one.qp.fail();
    assert!(!post_deferred(&mut one, &bytes[..8], 9) && two.poll().is_empty());
}

/// A message that does not fit the ring is refused, and is accepted when there is space.
#[test]
fn sq_1_a_full_ring_holds_no_more() {
    let caps = QpCaps { send_wr: 512, recv_wr: 512, inline: 200, ..CAPS };
    let (mut one, mut two) = pair(caps, true);
    let bytes = pattern(0, 200);
    let held = (0..512).take_while(|n| post_deferred(&mut one, &bytes, *n)).count();
    assert!((300..316).contains(&held), "{held} of 208 bytes in a ring of 65536");
    for n in 0..512 {
        two.recv(n, n as usize * 256, 256);
    }
    ring_doorbell(&mut one);
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!(got.len(), held);
    assert!(post_deferred(&mut one, &bytes, 200));
}

/// Posts with a doorbell each wait behind 16 KiB that nobody has read. At first, lists and deferred
/// messages do not, nor do messages of many records.
#[test]
fn only_many_at_once_make_the_ring_longer() {
    let caps = QpCaps { send_wr: 512, recv_wr: 512, inline: 64, ..CAPS };
    let written = |end: &End| unsafe {
        end.qp.domain.enter(|state| state.links.table[0].as_ref().map_or(0, |link| link.tx.at))
    };
    let bytes = pattern(0, 64);
    let all: Vec<_> = (0..400).map(|n| inline(&bytes, n)).collect();
    type Way = fn(&mut End, &[SendWr<'_>]);
    let ways: [(&str, bool, Way); 4] = [
        ("alone", false, |end, all| {
            all.iter().for_each(|wr| unsafe { end.qp.post(core::slice::from_ref(wr)) }.unwrap());
        }),
        ("lists", true, |end, all| {
            all.chunks(16).for_each(|list| unsafe { end.qp.post(list) }.unwrap());
        }),
        ("held", true, |end, all| {
            all.iter().for_each(|wr| assert!(unsafe { end.qp.post_deferred(wr) }));
            ring_doorbell(end);
        }),
        ("long", true, |end, all| {
            all[..4].iter().for_each(|wr| end.send(wr.wr_id, 0, 7000, SendFlags::empty()).unwrap());
        }),
    ];
    for (how, longer, post) in ways {
        let (mut one, mut two) = pair(caps, true);
        // The first records are read, so the front is free.
        two.recv(0, 0, 64);
        one.send(0, 0, 64, SendFlags::empty()).unwrap();
        settle(&mut one, &mut two);
        post(&mut one, &all);
        assert_eq!(written(&one) > 16384, longer, "{how}: {}", written(&one));
        for n in 0..400 {
            two.recv(n, n as usize * 8192, 8192);
        }
        let (_, got) = settle(&mut one, &mut two);
        assert_eq!(got.len(), if how == "long" { 4 } else { 400 }, "{how}");
    }
}

/// Behind a deferred message, or one posted at once, only the reservation is checked. So everything
/// else must drop the reservation: a full queue (SQ-1), a message that waits, a request that takes
/// a slot and no space, a pause (SM-1), an error (SM-2), a reset.
#[test]
fn sq_1_a_reservation_overtakes_nothing() {
    let caps = QpCaps { send_wr: 8, recv_wr: 64, inline: 64, ..CAPS };
    type Way = fn(&mut End, &[u8], u64) -> bool;
    let ways: [(Way, Way); 2] = [(post_deferred, more), (lone, next)];
    for ((first, more), size) in ways.iter().flat_map(|way| [0, 8, 64].map(|size| (*way, size))) {
        let (mut one, mut two) = pair(caps, true);
        let bytes = pattern(0, size);
        assert!(!more(&mut one, &bytes, 0), "none went before");
        let mut held = 0;
        while more(&mut one, &bytes, held) || first(&mut one, &bytes, held) {
            held += 1;
        }
        assert_eq!(held, 8, "size {size}");
        (0..8).for_each(|n| two.recv(n, n as usize * 64, 64));
        ring_doorbell(&mut one);
        assert_eq!(came(&mut two, &[size; 8]).len(), 8);
    }
    type Event = fn(&mut End);
    let events: [(&str, Event); 6] = [
        ("a message that waits", |end| end.send(1, 0, 90_000, SendFlags::empty()).unwrap()),
        ("one without bytes in the ring", |end| {
            let to = Remote { addr: 0, rkey: 1 };
            let sge = end.sge(0, 8);
            end.post(1, SendOp::Write(to), sge, SendFlags::empty()).unwrap();
        }),
        ("a pause", |end| {
            end.qp.pause(false);
            end.poll();
        }),
        ("its end", |end| {
            end.qp.pause(false);
            end.qp.resume();
            end.poll();
        }),
        ("an error", |end| {
            end.qp.fail();
            end.poll();
        }),
        ("a new life", |end| {
            end.qp.reset();
            end.poll();
        }),
    ];
    let both = ways.iter().flat_map(|way| events.map(|event| (*way, event)));
    for ((first, more), (what, happens)) in both {
        let (mut one, _two) = pair(QpCaps { send_wr: 64, ..caps }, true);
        assert!(first(&mut one, b"first", 0) && more(&mut one, b"second", 1));
        happens(&mut one);
        assert!(!more(&mut one, b"third", 2), "behind {what}");
    }
}

/// Messages that are not inline arrive whole at each length at which their way changes, deferred or
/// not, with immediate data or without.
#[test]
fn sq_4_messages_about_as_long_as_the_slot_arrive_whole() {
    for length in [1023, 1024, 1103, 1104, 1105, 1112] {
        for (op, deferred) in [SendOp::Send, SendOp::SendWithImm(5)]
            .into_iter()
            .flat_map(|op| [(op, false), (op, true)])
        {
            let (mut one, mut two) = pair(CAPS, true);
            for n in 0..3 {
                two.recv(n, 4096, 2048);
                assert!(two.poll().is_empty());
                two.fill(4096, &[0xee; 2048]);
                let bytes = pattern(length + n as usize, length);
                one.fill(0, &bytes);
                let (sge, flags) = (one.sge(0, length), SendFlags::SIGNALED);
                let wr = SendWr { wr_id: n, op, flags, sge, more: &[] };
                match deferred && unsafe { one.qp.post_deferred(&wr) } {
                    true => ring_doorbell(&mut one),
                    false => one.post_list(&[wr]).unwrap(),
                }
                let (sent, got) = settle(&mut one, &mut two);
                assert_eq!((sent.len(), got.len()), (1, 1), "{length} bytes, {op:?}");
                assert_eq!(got[0].byte_len as usize, length);
                assert_eq!(got[0].imm, if op == SendOp::Send { 0 } else { 5 });
                assert!(two.bytes(4096, length) == bytes, "{length} bytes, {op:?}");
                assert!(two.bytes(4096 + length, 64).iter().all(|byte| *byte == 0xee));
            }
        }
    }
}
