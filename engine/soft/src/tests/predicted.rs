//! The poll of a ping-pong: facts that were looked up before a message came are still true when it
//! comes, or are looked up again. Each case runs with and without the polls that look them up.

use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::provider::Polled;
use crate::shm::layout::Header;
use crate::shm::ring::tail_word;
use crate::state::domain_state::DomainState;
use crate::wc::{Status, WcOpcode};

const INLINE: SendFlags = SendFlags::INLINE;

/// Two sides. The second has taken messages, has receives 1 and 2, and, if `waited`, has waited:
/// then it predicts the next message.
fn talking(waits: bool) -> (End, End) {
    let (mut one, mut two) = pair(CAPS, true);
    begin(&mut one, &mut two, &[256, 256]);
    wait(&mut two, waits);
    (one, two)
}

/// Posts twelve receives with these lengths, from number 1 on, and uses the first two. Three are
/// prefetched with the first message, the second message comes alone.
fn begin(one: &mut End, two: &mut End, lengths: &[usize]) {
    for _ in 0..2 {
        two.recv(0, 0, 256);
    }
    for (n, length) in (1..).zip(lengths) {
        two.recv(n, 4096 * n as usize, *length);
    }
    for _ in 2 + lengths.len()..12 {
        two.recv(9, 0, 256);
    }
    for _ in 0..2 {
        one.send(0, 0, 8, INLINE).unwrap();
        assert_eq!(two.poll().len(), 1);
    }
}

fn wait(end: &mut End, waits: bool) {
    if waits {
        assert!(end.poll().is_empty() && end.poll().is_empty());
    }
    assert_eq!(expects(end), waits);
}

fn expects(end: &End) -> bool {
    unsafe { end.poller.cq.domain.enter(|state| state.predicted.is_known()) }
}

/// CP-2: every length that the slot holds, with and without an acknowledgement requested.
#[test]
fn an_expected_message_arrives_whole() {
    for (waits, flags) in [(true, INLINE), (false, INLINE), (true, INLINE | SendFlags::SIGNALED)] {
        for length in 0..=64 {
            let (mut one, mut two) = talking(waits);
            let bytes = pattern(length, length);
            one.fill(0, &bytes);
            two.fill(4096, &std::vec![0xee; length + 64]);
            one.send(7, 0, length, flags).unwrap();
            let got = two.poll();
            assert_eq!(got.len(), 1, "{length} bytes");
            assert_eq!((got[0].status, got[0].opcode), (Status::Success, WcOpcode::Recv));
            assert_eq!((got[0].wr_id, got[0].byte_len as usize), (1, length));
            assert_eq!(got[0].qp_num, two.qp.num());
            assert_eq!(two.bytes(4096, length), bytes);
            assert!(two.bytes(4096 + length, 64).iter().all(|b| *b == 0xee), "beyond {length}");
            assert!(!expects(&two), "its receive is used");
            let (sent, _) = settle(&mut one, &mut two);
            assert_eq!(sent.len(), usize::from(flags.contains(SendFlags::SIGNALED)));
            one.send(8, 0, 8, flags).unwrap();
            assert_eq!(two.poll()[0].wr_id, 2);
        }
    }
}

/// A message of any length that goes by the slot takes the short poll, whether it asks for an
/// acknowledgement or not.
#[test]
fn a_long_message_is_expected_as_well() {
    let lengths = [8, 32, 33, 208, 209, 512, 1023, 1024, 1103, 1104];
    let kinds = [SendFlags::empty(), SendFlags::SIGNALED];
    for (length, flags) in lengths.into_iter().flat_map(|length| kinds.map(|kind| (length, kind))) {
        let (mut one, mut two) = pair(CAPS, true);
        begin(&mut one, &mut two, &[2048, 2048]);
        // The reply says that everything has been read: only then a long message goes by the slot.
        one.recv(0, 0, 64);
        two.send(0, 0, 8, INLINE).unwrap();
        assert_eq!(one.poll().len(), 1);
        wait(&mut two, true);
        let bytes = pattern(length, length);
        one.fill(0, &bytes);
        two.fill(4096, &[0xee; 2048]);
        one.send(7, 0, length, flags).unwrap();
        let Polled::One(wc) = two.poller.poll_one() else { panic!("{length} bytes") };
        assert_eq!((wc.wr_id, wc.byte_len as usize), (1, length));
        assert_eq!(two.bytes(4096, length), bytes);
        assert!(two.bytes(4096 + length, 2048 - length).iter().all(|b| *b == 0xee), "{length}");
    }
}

/// One or two messages in the ring alone take the short poll as well, each by itself, and more are
/// taken together. They are longer than the slot's first line, and not all is acknowledged.
#[test]
fn few_messages_in_the_ring_are_expected_as_well() {
    let kinds = [INLINE, INLINE | SendFlags::SIGNALED];
    for (waits, flags) in [true, false].into_iter().flat_map(|waits| kinds.map(|it| (waits, it))) {
        for count in 1..=3 {
            let (mut one, mut two) = pair(CAPS, true);
            begin(&mut one, &mut two, &[64; 3]);
            wait(&mut two, waits);
            let lengths = [64, 40, 63];
            for (n, length) in (1..=count).zip(lengths) {
                one.fill(0, &pattern(n, length));
                one.send(n as u64, 0, length, flags).unwrap();
                assert!(!spoke(&one));
            }
            let is_whole = |two: &End, n: usize, wc: &Wc| {
                assert_eq!((wc.wr_id, wc.byte_len as usize), (n as u64, lengths[n - 1]));
                assert_eq!(two.bytes(4096 * n, lengths[n - 1]), pattern(n, lengths[n - 1]));
            };
            for n in 1..=count {
                let left = count - n;
                match two.poller.poll_one() {
                    Polled::One(wc) if count < 3 => is_whole(&two, n, &wc),
                    Polled::More if count == 3 || flags != INLINE && n > 1 => {
                        let got = two.poll();
                        assert_eq!(got.len(), left + 1);
                        got.iter().zip(n..).for_each(|(wc, n)| is_whole(&two, n, wc));
                        break;
                    }
                    _ => panic!("{n} of {count}, {waits} {flags:?}"),
                }
            }
            let (sent, got) = settle(&mut one, &mut two);
            assert_eq!((sent.len(), got.len()), (if flags == INLINE { 0 } else { count }, 0));
        }
    }
}

/// A message in the ring that its receive does not hold is refused, and one of another queue pair
/// is its own.
#[test]
fn a_message_in_the_ring_that_does_not_fit_is_refused() {
    for waits in [true, false] {
        let (mut one, mut two) = pair(CAPS, true);
        begin(&mut one, &mut two, &[39]);
        wait(&mut two, waits);
        two.fill(4096, &[0xee; 64]);
        one.send(1, 0, 40, INLINE | SendFlags::SIGNALED).unwrap();
        assert!(!spoke(&one));
        assert!(matches!(two.poller.poll_one(), Polled::More));
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(got[0].status, Status::LocalLength);
        assert_eq!(sent[0].status, Status::RemoteInvalidRequest);
        assert!(two.bytes(4096, 64).iter().all(|b| *b == 0xee));
    }
}

/// A peer may write anything to the ring. A record that is no message of the last queue pair, or
/// that does not lie inside what was published, is not taken for the predicted one.
#[test]
fn an_impossible_record_in_the_ring_is_not_predicted() {
    let num = |two: &End| two.qp.num();
    let plain = |num: u32, length: u64| Header::plain_for(num).0 | length;
    for (header, published) in [
        (0, 8),
        (u64::MAX, 8),
        (plain(1 << 20, 8), 16),
        (plain(0, 8), 8),
        (plain(0, 8), 1 << 20),
        (plain(0, 65), 80),
    ] {
        let (_one, mut two) = talking(true);
        two.fill(4096, &[0xee; 256]);
        let state = unsafe { two.poller.cq.domain.alone() };
        let link = state.links.table[0].as_mut().unwrap();
        let whole = header & !0xffff == plain(0, 0);
        let header = if whole { header | plain(num(&two), 0) } else { header };
        let at = link.rx.data.at(link.rx.at);
        unsafe { at.cast::<u64>().write_volatile(header) };
        let end = link.rx.at + published;
        link.rx.dir.tail().store(tail_word(end, link.tx.published()), Relaxed);
        let fits = whole && header & 0xffff == 65;
        assert_eq!(matches!(two.poller.poll_one(), Polled::One(_)), fits, "{header:x}");
        if !fits {
            assert!(two.poll().iter().all(|wc| wc.status == Status::Flushed), "{header:x}");
            assert!(two.bytes(4096, 256).iter().all(|b| *b == 0xee));
        }
    }
}

/// A record in the ring that goes beyond the end of the lap is not read: no honest sender writes
/// one, and the data ends there.
#[test]
fn a_record_beyond_the_lap_is_not_predicted() {
    for (lap, taken) in [(16, true), (8, false)] {
        let (mut one, mut two) = talking(true);
        one.send(1, 0, 40, INLINE).unwrap();
        let state = unsafe { two.poller.cq.domain.alone() };
        let rx = &mut state.links.table[0].as_mut().unwrap().rx;
        rx.end = rx.at + 32 + lap;
        assert_eq!(matches!(two.poller.poll_one(), Polled::One(_)), taken, "{lap}");
    }
}

/// The queue pair of messages that came together is the one whose next message is expected.
#[test]
fn a_message_behind_others_is_expected() {
    let (mut one, mut two) = deep();
    (0..3).for_each(|_| one.send(0, 0, 8, INLINE).unwrap());
    assert_eq!(two.poll().len(), 3);
    assert!(two.poll().is_empty() && two.poll().is_empty());
    assert!(expects(&two));
}

/// MR-2: a region that is removed after its receive was looked up is not written to.
#[test]
fn mr_2_a_region_that_goes_is_not_expected() {
    for waits in [true, false] {
        let (mut one, mut two) = pair(CAPS, true);
        let bytes = std::vec![0xee_u8; 4096].leak();
        let start = bytes.as_ptr();
        let region = two.nic.register(Mapping::from_static(bytes), Access::LOCAL_WRITE).unwrap();
        let addr = start as u64;
        let sge = |at| Sge { addr: addr + at, length: 64, lkey: region.lkey() };
        let list = [0, 1, 2, 3].map(|n| RecvWr { wr_id: n, sge: sge(64 * n) });
        unsafe { two.srq.as_ref().unwrap().post(&list).unwrap() };
        begin(&mut one, &mut two, &[]);
        wait(&mut two, waits);
        drop(region);
        one.send(1, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(got[0].status, Status::LocalProtection);
        assert_eq!(sent[0].status, Status::RemoteOperation);
        let bytes = unsafe { core::slice::from_raw_parts(start, 4096) };
        assert!(bytes[128..].iter().all(|b| *b == 0xee));
    }
}

/// CP-3: a message for another queue pair of the link goes to that one.
#[test]
fn cp_3_a_message_for_another_queue_pair_is_its_own() {
    for waits in [true, false] {
        let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
        let (maker, taker) = join(&mut one.qp, &mut two.qp, 7);
        let mut first = make_qp(&one.nic, &one.cq, one.srq.as_ref(), CAPS);
        let mut second = make_qp(&two.nic, &two.cq, two.srq.as_ref(), CAPS);
        wire(&mut first, &mut second, &maker, &taker, 7);
        begin(&mut one, &mut two, &[64, 64]);
        wait(&mut two, waits);
        let sge = one.sge(0, 8);
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: INLINE, sge, more: &[] };
        unsafe { first.post(&[wr]).unwrap() };
        assert_eq!(two.poll()[0].qp_num, second.num());
        one.send(2, 0, 8, INLINE).unwrap();
        assert_eq!(two.poll()[0].qp_num, two.qp.num());
    }
}

/// A message longer than the receive, and one with immediate data, differ from the prediction.
#[test]
fn another_kind_of_message_takes_the_way_with_all_checks() {
    for waits in [true, false] {
        let (mut one, mut two) = talking(waits);
        let sge = one.sge(0, 8);
        one.post(1, SendOp::SendWithImm(77), sge, INLINE).unwrap();
        let got = two.poll();
        assert_eq!((got[0].wr_id, got[0].imm), (1, 77));
        let (mut one, mut two) = pair(CAPS, true);
        begin(&mut one, &mut two, &[16]);
        wait(&mut two, waits);
        one.send(1, 0, 17, INLINE | SendFlags::SIGNALED).unwrap();
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!(got[0].status, Status::LocalLength);
        assert_eq!(sent[0].status, Status::RemoteInvalidRequest);
    }
}

/// SM-2: a failed queue pair takes no more messages.
#[test]
fn sm_2_a_failed_queue_pair_expects_nothing() {
    for waits in [true, false] {
        let (mut one, mut two) = talking(waits);
        two.qp.fail();
        one.send(1, 0, 8, INLINE).unwrap();
        let (_, got) = settle(&mut one, &mut two);
        assert!(got.iter().all(|wc| wc.status == Status::Flushed), "{got:?}");
    }
}

/// A receive that was prefetched and returned to the shared queue is used once.
#[test]
fn a_receive_that_was_given_back_is_not_expected() {
    let (mut one, mut two) = talking(true);
    let nic = two.nic.clone();
    let (cq, poller) = nic.create_cq(16, Sharing::Exclusive).unwrap();
    let qp = make_qp(&nic, &cq, two.srq.as_ref(), CAPS);
    let region = nic.register(mapping(4096), Access::all()).unwrap();
    let mut third = End { nic, poller, cq, qp, region, srq: None };
    let mut other = end(CAPS, true);
    join(&mut other.qp, &mut third.qp, 7);
    let mut took = Vec::new();
    for _ in 0..9 {
        other.send(0, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
        let (_, got) = settle(&mut other, &mut third);
        took.extend(got.iter().map(|wc| wc.wr_id));
    }
    assert_eq!(took, [2, 9, 9, 9, 9, 9, 9, 9, 9]);
    // No receive is left for it: it asks, and the domain that has prefetched one gives it back.
    other.send(0, 0, 8, INLINE).unwrap();
    assert!(third.poll().is_empty());
    for _ in 0..128 {
        assert!(two.poll().is_empty());
    }
    assert_eq!(third.poll()[0].wr_id, 1);
    two.recv(5, 0, 64);
    one.send(1, 0, 8, INLINE).unwrap();
    assert_eq!(two.poll()[0].wr_id, 5);
}

/// Writes a record to the slot that no sender writes.
fn forge(to: &End, header: Header, bytes: u64) {
    let state = unsafe { to.poller.cq.domain.alone() };
    let link = state.links.table[0].as_mut().unwrap();
    let (way, end) = (&link.rx.dir, link.rx.at + bytes);
    way.slot_header().store(header.0, Relaxed);
    way.seal().store(way.seal_of(end), Relaxed);
    way.slot_tail().store(tail_word(end, link.tx.published()), Relaxed);
}

/// A peer may write anything to the slot. Without a prediction, a message of no kind for no queue
/// pair is not taken for a predicted one, and uses no receive; a message longer than the slot never
/// matches, however much room the receive has.
#[test]
fn an_impossible_record_is_not_predicted() {
    for waits in [true, false] {
        let (mut one, mut two) = talking(waits);
        one.send(1, 0, 8, INLINE).unwrap();
        assert_eq!((two.poll().len(), expects(&two)), (1, false));
        forge(&two, Header(0), 8);
        let got = two.poll();
        assert!(got.iter().all(|wc| wc.status == Status::Flushed), "{got:?}");
        let (mut one, mut two) = pair(CAPS, true);
        begin(&mut one, &mut two, &[2048, 2048]);
        wait(&mut two, waits);
        two.fill(4096, &[0xee; 2048]);
        forge(&two, Header(Header::plain_for(two.qp.num()).0 | 1112), 1120);
        let got = two.poll();
        assert!(got.iter().all(|wc| wc.status == Status::Flushed), "{got:?}");
        assert!(two.bytes(4096, 2048).iter().all(|b| *b == 0xee));
    }
}

/// How long an end leaves its peer alone, in steps.
fn spin_budget(end: &End) -> u32 {
    unsafe {
        end.poller.cq.domain.enter(|state| state.links.table[0].as_ref().unwrap().spin.budget())
    }
}

/// Two sides with room for everything that is sent; the second has receives for long.
fn deep() -> (End, End) {
    let caps = QpCaps { send_wr: 2048, recv_wr: 1024, ..CAPS };
    let (mut one, mut two) = (end(caps, false), end(caps, true));
    join(&mut one.qp, &mut two.qp, 7);
    for _ in 0..512 {
        two.recv(0, 0, 64);
    }
    (one, two)
}

/// After a reply a side leaves the slot alone: longer where the first look found no message,
/// shorter where it found one, and not at all without a message to reply to or where spinning did
/// not help.
#[test]
fn an_answered_peer_is_given_as_much_time_as_it_takes() {
    let (mut one, mut two) = deep();
    let mut rounds = |count: u32, answers: bool, late: bool| {
        for _ in 0..count {
            one.recv(0, 0, 64);
            two.recv(0, 0, 64);
            one.send(0, 0, 8, INLINE).unwrap();
            assert_eq!(two.poll().len(), 1);
            if answers {
                two.send(0, 0, 8, INLINE).unwrap();
            }
            if late {
                assert!(two.poll().is_empty() && two.poll().is_empty());
            }
            assert_eq!(one.poll().len(), usize::from(answers));
        }
        spin_budget(&two)
    };
    // One message in 64 finds no prefetched receive, and is not predicted.
    let steps = rounds(66, true, true);
    assert!((180..=198).contains(&steps), "three more each time: {steps}");
    assert_eq!(rounds(50, false, true), steps, "nothing was answered");
    let fewer = steps - rounds(64, true, false);
    assert!((1..64).contains(&fewer), "one less each time: {fewer}");
    let most = rounds(250, true, true);
    assert!((800..992).contains(&most), "three more each time, though not waited for: {most}");
    assert!(rounds(8, true, false) < 800, "one was there, and it is tried on");
    assert_eq!(rounds(250, true, true), 0, "it never was, and is given up");
    assert_eq!(rounds(800, true, true), 0, "for a while");
    assert!(rounds(300, true, true) > 0);
}

/// The same behind a message that asks for an acknowledgement.
#[test]
fn the_spin_follows_messages_that_ask_too() {
    let (mut one, mut two) = deep();
    for _ in 0..20 {
        one.recv(0, 0, 64);
        two.recv(0, 0, 64);
        one.send(0, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
        assert_eq!(two.poll().len(), 1);
        two.send(0, 0, 8, INLINE).unwrap();
        assert!(two.poll().is_empty() && two.poll().is_empty());
        assert_eq!(one.poll().len() + one.poll().len(), 2, "the answer, and its own completion");
    }
    // The first comes through the ring and finds no receive prefetched.
    assert_eq!(spin_budget(&two), 3 * 19);
}

/// The second side has replied with a send that completes and has waited, and the answer is there.
fn answered() -> (End, End) {
    let (mut one, mut two) = talking(true);
    one.recv(0, 0, 64);
    two.send(7, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
    assert!(two.poll().is_empty());
    assert_eq!(one.poll().len(), 1);
    assert!(expects(&two), "while a send waits for its acknowledgement");
    one.send(0, 0, 8, INLINE).unwrap();
    (one, two)
}

/// The sends that the expected message acknowledges complete before it, as on a NIC.
#[test]
fn the_expected_message_completes_sends_first() {
    let (_one, mut two) = answered();
    let got: Vec<_> = two.poll().iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
    assert_eq!(got, [(7, WcOpcode::Send), (1, WcOpcode::Recv)]);
}

/// With one place, the message stays for the next poll, which finds it as well.
#[test]
fn with_one_place_the_expected_message_comes_behind_its_sends() {
    let (_one, mut two) = answered();
    for (opcode, left) in [(WcOpcode::Send, true), (WcOpcode::Recv, false)] {
        let mut out = [Wc::default()];
        assert_eq!(two.poller.poll(&mut out), 1);
        assert_eq!((out[0].opcode, expects(&two)), (opcode, left));
    }
    assert!(two.poll().is_empty());
}

/// A send completes soon though no message comes: the short polls look for its
/// acknowledgement as often as the full ones.
#[test]
fn an_acknowledgement_alone_completes_a_send() {
    let (mut one, mut two) = talking(true);
    one.recv(0, 0, 64);
    one.send(0, 0, 8, INLINE).unwrap();
    assert_eq!(two.poll().len(), 1);
    two.send(7, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
    assert!((0..9).all(|_| two.poll().is_empty()));
    assert!(expects(&two));
    assert_eq!(one.poll().len(), 1);
    assert!(one.poll().is_empty(), "acknowledges now");
    let polls = (0..4).find_map(|_| two.poll().first().map(|wc| wc.wr_id));
    assert_eq!(polls, Some(7));
}

/// CP-6: the poll between the announcement and the sleep finds an acknowledgement that came before,
/// by a message as well as in the peer's own line, and whether it spins or not.
#[test]
fn cp_6_the_last_look_completes_sends() {
    for (by_message, replies) in [(true, true), (true, false), (false, false)] {
        let (mut one, mut two) = talking(false);
        one.recv(0, 0, 64);
        two.send(7, 0, 8, INLINE | SendFlags::SIGNALED).unwrap();
        assert_eq!(one.poll().len(), 1);
        let mut ends: Vec<_> = Vec::new();
        if by_message {
            one.send(0, 0, 8, INLINE).unwrap();
            ends.extend(two.poll());
        } else {
            assert!(one.poll().is_empty(), "acknowledges now");
        }
        if replies {
            one.recv(0, 0, 64);
            two.send(0, 0, 8, INLINE).unwrap();
        }
        unsafe { two.poller.cq.domain.enter(|state| state.fall_asleep()) };
        ends.extend(two.poll());
        let sent = ends.iter().filter(|wc| wc.opcode == WcOpcode::Send).map(|wc| wc.wr_id);
        assert_eq!(sent.collect::<Vec<_>>(), [7], "{by_message} {replies}");
    }
}

/// A message and its reply, for which the first side has not polled.
fn ask(one: &mut End, two: &mut End) {
    one.recv(0, 0, 64);
    one.send(0, 0, 8, INLINE).unwrap();
    assert_eq!(two.poll().len(), 1);
    two.send(0, 0, 8, INLINE).unwrap();
}

/// Receives are prefetched in groups. If a message used the last one of a group, the next group is
/// prefetched while its sender is left alone.
#[test]
fn receives_are_prefetched_during_the_spin() {
    let (mut one, mut two) = deep();
    for round in 0..200 {
        ask(&mut one, &mut two);
        assert!(two.poll().is_empty());
        assert!(expects(&two) || round == 0, "{round}");
        assert_eq!(one.poll().len(), 1);
    }
}

/// Without a spin, the first empty poll does the same.
#[test]
fn receives_are_prefetched_without_a_spin_too() {
    let (mut one, mut two) = deep();
    for round in 0..200 {
        ask(&mut one, &mut two);
        let spin = |state: &mut DomainState| state.links.only().unwrap().spin.pause();
        unsafe { two.poller.cq.domain.enter(spin) };
        assert!(two.poll().is_empty());
        assert!(expects(&two) || round == 0, "{round}");
        assert_eq!(one.poll().len(), 1);
    }
}

/// Work after a reply is part of the time that the side waits: the spin is as much shorter.
#[test]
fn work_after_a_reply_shortens_the_spin() {
    let (mut one, mut two) = deep();
    let worked = |end: &End| {
        let spin = |state: &mut DomainState| state.links.only().unwrap().spin.is_shortened();
        unsafe { end.poller.cq.domain.enter(spin) }
    };
    ask(&mut one, &mut two);
    assert_eq!(one.poll().len(), 1);
    for round in 0..20 {
        ask(&mut one, &mut two);
        let list = [RecvWr { wr_id: 0, sge: two.sge(0, 64) }; 8];
        let before = spin_budget(&two);
        if round % 2 == 0 {
            unsafe { two.srq.as_ref().unwrap().post(&list).unwrap() };
        }
        assert!(two.poll().is_empty());
        // A spin in vain teaches, unless work has shortened it.
        assert_eq!(spin_budget(&two) == before, round % 2 == 0, "{round}");
        assert!(!worked(&two), "each look begins anew");
        assert_eq!(one.poll().len(), 1);
    }
    assert!(!worked(&one));
    let sge = one.sge(0, 8);
    let write = SendOp::Write(Remote { addr: 0, rkey: 0 });
    let wr = SendWr { wr_id: 1, op: write, flags: SendFlags::empty(), sge, more: &[] };
    unsafe { one.qp.post(&[wr]).unwrap() };
    assert!(worked(&one), "a request on the slow path");
}

/// If each message is late, this side soon stops spinning. If the message comes within the round
/// trip of a far core, or this side waits long for something else, it goes on.
#[test]
fn messages_that_come_at_random_end_the_spin() {
    for (empty, behind, spins) in [(200, 0, false), (100, 0, true), (1, 200, true)] {
        let (mut one, mut two) = deep();
        for _ in 0..40 {
            ask(&mut one, &mut two);
            for _ in 0..empty {
                assert!(two.poll().is_empty());
            }
            assert_eq!(one.poll().len(), 1);
            one.recv(0, 0, 64);
            one.send(0, 0, 8, INLINE).unwrap();
            assert_eq!(two.poll().len(), 1);
            for _ in 0..behind {
                assert!(two.poll().is_empty());
            }
            two.send(0, 0, 8, INLINE).unwrap();
            assert_eq!(one.poll().len(), 1);
        }
        assert_eq!(spin_budget(&two) > 40, spins, "{empty} polls, then {behind}");
    }
}

/// Not for a removed queue pair: receives prefetched then would be lost to all others.
#[test]
fn nothing_is_fetched_for_a_queue_pair_that_is_gone() {
    let (mut one, mut two) = deep();
    for _ in 0..64 {
        ask(&mut one, &mut two);
        assert_eq!(one.poll().len(), 1);
    }
    let End { mut poller, qp, srq, .. } = two;
    let queue = &srq.as_ref().unwrap().queue;
    assert_eq!(queue.posted(), 512 - 64, "all that were fetched are used");
    drop(qp);
    assert_eq!(poller.poll(&mut [Wc::default(); 4]), 0);
    assert_eq!(queue.posted(), 512 - 64);
}

/// A peer whose message comes before it has read the last reply has more messages on the way, so
/// this side does not spin for it. (The replies are longer than a line, so they are in the ring
/// alone, and the slot is valid.)
#[test]
fn no_spin_for_a_peer_that_has_not_read_the_last_reply() {
    let (mut one, mut two) = deep();
    for (in_flight, grows) in [(1, true), (2, false), (1, true)] {
        let before = spin_budget(&two);
        for round in 0..50 {
            one.recv(0, 0, 64);
            let heard = if in_flight == 1 { one.poll().len() } else { 0 };
            one.send(0, 0, 8, INLINE).unwrap();
            let heard = heard + if in_flight == 2 { one.poll().len() } else { 0 };
            assert!(heard == 1 || round == 0, "{round}");
            assert_eq!(two.poll().len(), 1);
            two.send(0, 0, 64, INLINE).unwrap();
            assert!(two.poll().is_empty() && two.poll().is_empty());
        }
        let given = spin_budget(&two) - before;
        assert!(grows || given == 0, "{in_flight} in flight: {given}");
        // Three each time.
        assert_eq!(given > 100, grows, "{in_flight} in flight: {given}");
    }
}

/// A message in the slot, predicted or not, may cross with a reply that is in the ring alone.
#[test]
fn crossings_in_the_slot_are_noted() {
    for waits in [true, false] {
        let (mut one, mut two) = deep();
        for _ in 0..3 {
            one.send(0, 0, 8, INLINE).unwrap();
            assert_eq!(two.poll().len(), 1);
        }
        // The first of two polls in vain predicts the next message.
        let mut seen = [0; 3];
        for seen in &mut seen {
            assert!(!waits || two.poll().is_empty() && two.poll().is_empty());
            one.recv(0, 0, 64);
            one.send(0, 0, 8, INLINE).unwrap();
            assert!(one.poll().len() < 2 && spoke(&one));
            assert_eq!((expects(&two), two.poll().len()), (waits, 1));
            *seen = contention(&two);
            two.send(0, 0, 64, INLINE).unwrap();
        }
        assert_eq!(seen, [0, 4, 8], "{waits}");
    }
}

fn contention(end: &End) -> u32 {
    unsafe {
        end.poller
            .cq
            .domain
            .enter(|state| state.links.table[0].as_ref().unwrap().contention.level())
    }
}

/// Two crossings keep replies out of the slot, but not for long if the messages they answer are
/// predicted.
#[test]
fn messages_that_follow_in_the_slot_open_it_again() {
    let (mut one, mut two) = deep();
    for answers in [false, true, true, true] {
        one.recv(0, 0, 64);
        one.send(0, 0, 8, INLINE).unwrap();
        assert_eq!(two.poll().len(), 1);
        if answers {
            two.send(0, 0, 64, INLINE).unwrap();
        }
    }
    assert_eq!(contention(&two), 8, "the last two had not read the replies");
    while !one.poll().is_empty() {}
    let mut follow = || {
        assert!(two.poll().is_empty() && two.poll().is_empty());
        one.recv(0, 0, 64);
        one.send(0, 0, 8, INLINE).unwrap();
        assert_eq!((expects(&two), two.poll().len()), (true, 1));
        two.send(0, 0, 8, INLINE).unwrap();
        assert_eq!(one.poll().len(), 1);
        (spoke(&one), spoke(&two))
    };
    assert_eq!([(); 3].map(|()| follow()), [(true, false), (true, true), (true, true)]);
    for _ in 0..8 {
        follow();
    }
    assert_eq!(contention(&two), 0);
}

/// True if the last message of an end used the slot.
fn spoke(end: &End) -> bool {
    unsafe {
        end.poller.cq.domain.enter(|state| {
            let tx = &state.links.table[0].as_ref().unwrap().tx;
            tx.last_in_slot() == tx.at as u32
        })
    }
}

/// Crossing messages would take the slot's lines away from each other, so they leave it alone.
/// Messages that follow each other use it again, and so do those of a stream, which asks for
/// completions.
#[test]
fn crossing_messages_leave_the_slot_alone() {
    let (mut one, mut two) = deep();
    let say = |from: &mut End, to: &mut End, flags| {
        to.recv(0, 0, 64);
        from.send(0, 0, 8, flags).unwrap();
        spoke(from)
    };
    let hear = |end: &mut End| assert_eq!(end.poll().len(), 1);
    let cross = |one: &mut End, two: &mut End| {
        let both = [say(one, two, INLINE), say(two, one, INLINE)];
        hear(one);
        hear(two);
        both
    };
    let follow = |one: &mut End, two: &mut End| {
        let first = say(one, two, INLINE);
        hear(two);
        let both = [first, say(two, one, INLINE)];
        hear(one);
        both
    };
    for rung in [true, true, false, false, false, false] {
        assert_eq!(cross(&mut one, &mut two), [rung; 2]);
    }
    let silent = (0..20).take_while(|_| follow(&mut one, &mut two) != [true; 2]).count();
    assert!((8..=10).contains(&silent), "one less each time, from 16 to below 8: {silent}");
    assert_eq!(cross(&mut one, &mut two), [true; 2]);
    assert_eq!(cross(&mut one, &mut two), [false; 2]);
    let asks = [0; 3].map(|_| say(&mut one, &mut two, INLINE | SendFlags::SIGNALED));
    assert_eq!(asks, [false, false, true], "as those of a stream do now and then");
}
