//! The poll of a conversation: what was looked up before a message came is good when it comes, or
//! is looked up again. Each case with and without the polls in which that is done.

use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::shm::layout::Header;
use crate::shm::ring::tail_word;
use crate::wc::{Status, WcOpcode};

const INLINE: SendFlags = SendFlags::INLINE;

/// Two sides of which the second has taken messages, has receives 1 and 2, and has waited if it
/// says so: then it expects the next message.
fn talking(waits: bool) -> (End, End) {
    let (mut one, mut two) = pair(CAPS, true);
    begin(&mut one, &mut two, &[256, 256]);
    wait(&mut two, waits);
    (one, two)
}

/// Posts twelve receives, those from number 1 on with these lengths, and uses the first two: three
/// are fetched ahead with the first message, the second comes alone.
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

/// CP-2: every length the slot holds, with and without an acknowledgement asked for.
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

/// MR-2: a region that goes after its receive was looked up is not written to.
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

/// CP-3: a message for another queue pair of the link is that one's.
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

/// Section 2.5: a message longer than the receive, and one with immediate data, are not the
/// expected ones.
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

/// SM-2: a queue pair that has failed takes no message more.
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

/// Section 2.7: a receive that was fetched ahead and went back to the shared queue is used once.
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
    // Nothing is left for it: it asks, and the one that has fetched one ahead gives it back.
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

/// A peer may write anything to the slot: where nothing is expected a message of no kind for no
/// queue pair is not expected either, and no receive is used for it; and what is longer than the
/// slot is never expected, however much room there is.
#[test]
fn what_no_sender_writes_is_not_expected() {
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
        forge(&two, Header(Header::plain_for(two.qp.num()).0 | 1024), 1032);
        let got = two.poll();
        assert!(got.iter().all(|wc| wc.status == Status::Flushed), "{got:?}");
        assert!(two.bytes(4096, 2048).iter().all(|b| *b == 0xee));
    }
}

/// For how long an end leaves its peer alone, in steps.
fn spin_budget(end: &End) -> u32 {
    unsafe {
        end.poller.cq.domain.enter(|state| state.links.table[0].as_ref().unwrap().spin.budget())
    }
}

/// Two sides with room for all that is sent, of which the second has receives for long.
fn deep() -> (End, End) {
    let caps = QpCaps { send_wr: 2048, recv_wr: 1024, ..CAPS };
    let (mut one, mut two) = (end(caps, false), end(caps, true));
    join(&mut one.qp, &mut two.qp, 7);
    for _ in 0..512 {
        two.recv(0, 0, 64);
    }
    (one, two)
}

/// Who has answered leaves the slot alone for longer where the next message was not there at the
/// first look, for shorter where it was, and not at all where there was nothing to answer, or where
/// that did not help.
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
    // One in 64 finds no receive fetched ahead, and is not expected.
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

/// So it is behind a message that was not expected, since it asks for a completion.
#[test]
fn who_says_the_unexpected_is_given_time_too() {
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
    // The first comes where no receive is at hand, and by the ring.
    assert_eq!(spin_budget(&two), 3 * 19);
}

/// A message and its answer, which the first side has not polled for.
fn ask(one: &mut End, two: &mut End) {
    one.recv(0, 0, 64);
    one.send(0, 0, 8, INLINE).unwrap();
    assert_eq!(two.poll().len(), 1);
    two.send(0, 0, 8, INLINE).unwrap();
}

/// Receives are fetched in lots; where a message used up the last of a lot, the next one is fetched
/// while its sender is given time.
#[test]
fn who_answers_has_the_next_receive_at_hand() {
    let (mut one, mut two) = deep();
    for round in 0..200 {
        ask(&mut one, &mut two);
        assert!(two.poll().is_empty());
        assert!(expects(&two) || round == 0, "{round}");
        assert_eq!(one.poll().len(), 1);
    }
}

/// Not for who is gone: what is fetched then would be lost to all others.
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

/// Whose message comes before it has heard the last answer has more on its way, and is not given
/// time. (The answers are longer than a line: then they are in the ring alone, and what is in the
/// slot is believed.)
#[test]
fn who_has_not_heard_the_last_answer_is_not_given_time() {
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

/// What comes by the slot, expected or not, may cross with an answer that is in the ring alone.
#[test]
fn what_crosses_by_the_slot_is_noted() {
    for waits in [true, false] {
        let (mut one, mut two) = deep();
        for _ in 0..3 {
            one.send(0, 0, 8, INLINE).unwrap();
            assert_eq!(two.poll().len(), 1);
        }
        // The first of two looks in vain expects what comes behind it.
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

/// Two that crossed make the answers silent, but not for long where what they answer is expected.
#[test]
fn who_follows_by_the_slot_has_not_crossed_for_long() {
    let (mut one, mut two) = deep();
    for answers in [false, true, true, true] {
        one.recv(0, 0, 64);
        one.send(0, 0, 8, INLINE).unwrap();
        assert_eq!(two.poll().len(), 1);
        if answers {
            two.send(0, 0, 64, INLINE).unwrap();
        }
    }
    assert_eq!(contention(&two), 8, "the last two had not heard the answers");
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

/// True if the last message of an end went by the slot.
fn spoke(end: &End) -> bool {
    unsafe {
        end.poller.cq.domain.enter(|state| {
            let tx = &state.links.table[0].as_ref().unwrap().tx;
            tx.last_in_slot() == tx.at as u32
        })
    }
}

/// Messages that cross would take the slot away from each other: they leave it alone. Those that
/// follow each other go by it again, and those of a stream, which asks for completions.
#[test]
fn what_crosses_leaves_the_slot_alone() {
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
    for bell in [true, true, false, false, false, false] {
        assert_eq!(cross(&mut one, &mut two), [bell; 2]);
    }
    let silent = (0..20).take_while(|_| follow(&mut one, &mut two) != [true; 2]).count();
    assert!((8..=10).contains(&silent), "one less each time, from 16 to below 8: {silent}");
    assert_eq!(cross(&mut one, &mut two), [true; 2]);
    assert_eq!(cross(&mut one, &mut two), [false; 2]);
    let asks = [0; 3].map(|_| say(&mut one, &mut two, INLINE | SendFlags::SIGNALED));
    assert_eq!(asks, [false, false, true], "as those of a stream do now and then");
}
