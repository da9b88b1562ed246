//! The states that a queue pair can leave again: SQD, and RESET (SM-1, SM-6, SM-7).

use std::time::{Duration, Instant};

use doorbell_cm::{ConnParam, ExternalQp, Fabric, Id, QpFields, QpState, Target, UdParam};
use doorbell_seam::event::{AsyncEvent, AsyncKind, Object};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON};
use crate::datagrams::{by_hand, to_rts};
use crate::events::{EVENTS, is_silent};
use crate::external::{joined, own, say, talk};
use crate::harness::{on_toy, skip};

cases! {
    sm_07_sqd_takes_sends_and_begins_none
    sm_07_sqd_lets_sends_that_have_begun_finish
    sm_07_sqd_lets_a_message_sent_in_part_finish
    sm_07_sqd_of_datagrams
    sm_01_a_new_life_is_connected_anew
    sm_01_messages_to_a_queue_pair_before_its_reset_do_not_reach_it_later
    sm_01_sends_from_before_a_reset_do_not_complete_later
    sm_01_reset_forgets_datagrams
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Two queue pairs, connected, with their ids.
fn pair<F: Fabric>(bed: &Bed<F>, qps: [ExternalQp<F>; 2]) -> ([Id<F>; 2], [ExternalQp<F>; 2]) {
    let (asks, grants) = (ConnParam::default(), ConnParam::default());
    let [(one, left), (two, right)] = joined(bed, qps, &asks, &grants);
    ([one, two], [left, right])
}

fn fresh<F: Fabric>(bed: &Bed<F>) -> ([Id<F>; 2], [ExternalQp<F>; 2]) {
    pair(bed, [own(bed), own(bed)])
}

fn pause<F: Fabric>(qp: &mut ExternalQp<F>) -> AsyncEvent {
    let fields = QpFields { sqd_notify: Some(true), ..QpFields::to(QpState::Sqd) };
    qp.modify(&fields).expect("SQD");
    assert_eq!(qp.state(), QpState::Sqd);
    AsyncEvent { kind: AsyncKind::SqDrained, object: Object::Qp(qp.num()) }
}

/// The event, while the queue pair's device works.
fn drained<F: Fabric>(bed: &Bed<F>, qp: &mut ExternalQp<F>, wanted: AsyncEvent) {
    let end = Instant::now() + SOON;
    loop {
        assert!(qp.next_send(Duration::ZERO).is_err(), "nothing is due");
        match bed.fabric.next_async_event() {
            Some(event) if event == wanted => return,
            _ => assert!(Instant::now() < end, "{wanted:?} did not come"),
        }
    }
}

fn post<F: Fabric>(qp: &mut ExternalQp<F>, byte: u8) {
    qp.post_inline(&[byte; 8], SendOp::Send, SIGNALED).expect("it takes sends");
}

fn sm_07_sqd_takes_sends_and_begins_none<F: Fabric>(bed: &Bed<F>) {
    let _one_at_a_time = EVENTS.lock();
    let (_ids, [mut left, mut right]) = fresh(bed);
    talk(bed, &mut left, &mut right);
    let wanted = pause(&mut left);
    drained(bed, &mut left, wanted);
    right.post_recv(bed.filled(8, 0)).expect("a receive");
    post(&mut left, 5);
    assert!(right.next_recv(A_WHILE).is_err(), "it does not begin");
    assert!(left.next_send(Duration::ZERO).is_err());
    say(bed, &mut right, &mut left);
    assert!(is_silent(bed, wanted), "once");
    left.modify(&QpFields::to(QpState::Rts)).expect("RTS");
    if !bed.is_strict() {
        // Some devices begin waiting requests only when another one is posted.
        right.post_recv(bed.filled(8, 0)).expect("a receive");
        post(&mut left, 5);
    }
    let message = right.next_recv(SOON).expect("now it does").ok().expect("well");
    assert_eq!(message.bytes(), [5; 8]);
    left.next_send(SOON).expect("sent").ok().expect("well");
    if bed.is_strict() {
        talk(bed, &mut left, &mut right);
    }
}

fn sm_07_sqd_lets_sends_that_have_begun_finish<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("devices differ in whether a send that waits for a receive has begun");
    }
    let _one_at_a_time = EVENTS.lock();
    let (_ids, [mut left, mut right]) = fresh(bed);
    post(&mut left, 1);
    let wanted = pause(&mut left);
    post(&mut left, 2);
    assert!(right.next_recv(A_WHILE).is_err() && left.next_send(Duration::ZERO).is_err());
    assert!(is_silent(bed, wanted), "it waits for a receive");
    right.post_recvs(&mut vec![bed.filled(8, 0), bed.filled(8, 0)]).expect("receives");
    assert_eq!(right.next_recv(SOON).expect("the first").bytes(), [1; 8]);
    left.next_send(SOON).expect("sent").ok().expect("well");
    drained(bed, &mut left, wanted);
    assert!(right.next_recv(A_WHILE).is_err(), "the second does not begin");
    left.modify(&QpFields::to(QpState::Rts)).expect("RTS");
    assert_eq!(right.next_recv(SOON).expect("the one that waited").bytes(), [2; 8]);
    left.next_send(SOON).expect("sent").ok().expect("well");
    // What SQD holds back is flushed as usual.
    pause(&mut left);
    post(&mut left, 3);
    left.modify(&QpFields::to(QpState::Err)).expect("ERR");
    assert_eq!(left.next_send(SOON).expect("flushed").status, Status::Flushed);
}

/// The link of the soft device has room for one of these messages and part of another.
fn sm_07_sqd_lets_a_message_sent_in_part_finish<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("how much of a message has room depends on when the toy wire reads");
    }
    if !bed.is_strict() {
        return skip(
            "devices differ in how much of a message goes out before the receive is there",
        );
    }
    const LONG: usize = 48_000;
    let _one_at_a_time = EVENTS.lock();
    let (_ids, [mut left, mut right]) = fresh(bed);
    let long = |byte| bed.filled(LONG, byte);
    for byte in 1..5 {
        left.post_send(long(byte), LONG, SendOp::Send, SIGNALED).expect("a send");
    }
    let wanted = pause(&mut left);
    right.post_recvs(&mut (0..4).map(|_| long(0)).collect()).expect("receives");
    for byte in 1..3 {
        assert_eq!(right.next_recv(SOON).expect("it has begun").bytes(), [byte; LONG]);
        left.next_send(SOON).expect("sent").ok().expect("well");
    }
    drained(bed, &mut left, wanted);
    assert!(right.next_recv(A_WHILE).is_err(), "the others have not");
    left.modify(&QpFields::to(QpState::Rts)).expect("RTS");
    for byte in 3..5 {
        assert_eq!(right.next_recv(SOON).expect("now it does").bytes(), [byte; LONG]);
        left.next_send(SOON).expect("sent").ok().expect("well");
    }
}

fn sm_07_sqd_of_datagrams<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("not every device holds datagrams back");
    }
    let _one_at_a_time = EVENTS.lock();
    let ((mut one, source), (mut two, _)) = (by_hand(bed, 1), by_hand(bed, 1));
    to_rts(&mut one);
    to_rts(&mut two);
    let to = UdParam { to: source.path_to(source.gid), qp_num: two.num(), qkey: 1 };
    let target = Target::new(&bed.fabric, &to).expect("a target");
    let wanted = pause(&mut one);
    drained(bed, &mut one, wanted);
    two.post_recv(bed.filled(64, 0)).expect("a receive");
    one.post_send_to(&target, bed.filled(8, 6), 8, None, SIGNALED).expect("it takes sends");
    assert!(two.next_recv(A_WHILE).is_err() && one.next_send(Duration::ZERO).is_err());
    one.modify(&QpFields::to(QpState::Rts)).expect("RTS");
    let came = two.next_recv(SOON).expect("now it does").ok().expect("well");
    assert_eq!(came.datagram().expect("a header").1, [6; 8]);
    one.next_send(SOON).expect("sent").ok().expect("well");
}

fn reset<F: Fabric>(qp: &mut ExternalQp<F>) {
    qp.modify(&QpFields::to(QpState::Reset)).expect("RESET");
    assert_eq!(qp.state(), QpState::Reset);
}

fn sm_01_a_new_life_is_connected_anew<F: Fabric>(bed: &Bed<F>) {
    let (mut ids, mut qps) = fresh(bed);
    let numbers = [qps[0].num(), qps[1].num()];
    for life in 1..4 {
        let [left, right] = &mut qps;
        talk(bed, left, right);
        // Completions that nobody polls, and requests that do not complete.
        right.post_recvs(&mut bed.numbered(3)).expect("receives");
        left.post_inline(&[9], SendOp::Send, SIGNALED).expect("a send");
        assert!(right.next_recv(SOON).is_ok() && right.next_recv(A_WHILE).is_err());
        left.post_inline(&[9], SendOp::Send, SIGNALED).expect("a send");
        reset(left);
        reset(right);
        drop(ids);
        (ids, qps) = pair(bed, qps);
        assert_eq!([qps[0].num(), qps[1].num()], numbers, "life {life}");
        let [left, right] = &mut qps;
        assert!(left.next_send(A_WHILE).is_err(), "of the old life");
        assert!(right.next_recv(Duration::ZERO).is_err(), "of the old life");
    }
    let [left, right] = &mut qps;
    talk(bed, left, right);
}

fn sm_01_messages_to_a_queue_pair_before_its_reset_do_not_reach_it_later<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("on a wire the numbers of packets decide, and its retries take long");
    }
    let (_ids, [mut left, mut right]) = fresh(bed);
    // It has no receive yet.
    post(&mut left, 1);
    reset(&mut right);
    assert_eq!(left.next_send(SOON).expect("nobody takes it").status, Status::RetryExceeded);
    let (_ids, [mut left, right]) = pair(bed, [own(bed), right]);
    post(&mut left, 1);
    let mut right = right;
    reset(&mut right);
    let (_others, [mut other, mut right]) = pair(bed, [own(bed), right]);
    right.post_recv(bed.filled(8, 0)).expect("a receive");
    assert!(right.next_recv(A_WHILE).is_err(), "it was for the life before");
    assert_eq!(left.next_send(SOON).expect("nobody took it").status, Status::RetryExceeded);
    post(&mut other, 2);
    assert_eq!(right.next_recv(SOON).expect("from the new peer").bytes(), [2; 8]);
    other.next_send(SOON).expect("sent").ok().expect("well");
    talk(bed, &mut other, &mut right);
}

fn sm_01_sends_from_before_a_reset_do_not_complete_later<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("what was sent may be lost with the life that sent it");
    }
    let (_ids, [mut left, mut right]) = fresh(bed);
    // It has no receive yet.
    post(&mut left, 1);
    reset(&mut left);
    let (_others, [mut left, mut other]) = pair(bed, [left, own(bed)]);
    right.post_recv(bed.filled(8, 0)).expect("a receive");
    assert_eq!(right.next_recv(SOON).expect("it was on its way").bytes(), [1; 8]);
    assert!(right.next_recv(A_WHILE).is_err());
    assert!(left.next_send(A_WHILE).is_err(), "of the life before");
    talk(bed, &mut left, &mut other);
}

fn sm_01_reset_forgets_datagrams<F: Fabric>(bed: &Bed<F>) {
    let ((mut one, source), (mut two, _)) = (by_hand(bed, 1), by_hand(bed, 1));
    to_rts(&mut one);
    to_rts(&mut two);
    let to = UdParam { to: source.path_to(source.gid), qp_num: two.num(), qkey: 1 };
    let target = Target::new(&bed.fabric, &to).expect("a target");
    two.post_recv(bed.filled(64, 0)).expect("a receive");
    one.post_send_to(&target, bed.filled(8, 6), 8, None, SIGNALED).expect("a datagram");
    one.next_send(SOON).expect("sent").ok().expect("well");
    reset(&mut two);
    let init = QpFields {
        pkey_index: Some(0),
        port: Some(source.port),
        qkey: Some(1),
        ..QpFields::to(QpState::Init)
    };
    two.modify(&init).expect("INIT");
    to_rts(&mut two);
    two.post_recv(bed.filled(64, 0)).expect("a receive");
    assert!(two.next_recv(A_WHILE).is_err(), "it was of the life before");
    one.post_send_to(&target, bed.filled(8, 7), 8, None, SIGNALED).expect("a datagram");
    let came = two.next_recv(SOON).expect("it came").ok().expect("well");
    assert_eq!(came.datagram().expect("a header").1, [7; 8]);
}
