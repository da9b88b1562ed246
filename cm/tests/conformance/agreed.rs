//! What two sides agree on when they connect, and what they may rely on from then on: ID-5, EP-15,
//! QP-20, QP-22, RC-1.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{ConnParam, EventKind, Fabric, Id, PortSpace, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, QpType};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::PostCause;

use crate::bed::{A_WHILE, Bed, SOON, assert_padded, event, received, send, send_inline, sent};
use crate::ids::ready;

cases! {
    id_05_connections_are_of_reliable_queue_pairs
    id_05_early_messages_are_not_lost
    id_05_a_message_reaches_only_its_peer
    id_05_a_long_message_is_one_message
    ep_15_a_request_brings_its_data_and_depths_and_keeps_them
    qp_20_each_side_has_the_depths_that_were_agreed
    qp_20_each_side_sets_the_retries_of_the_other
    qp_20_a_peer_without_depth_may_write_but_not_read
    qp_22_a_rejected_request_flushes
    rc_01_a_wait_lasts_as_long_as_its_code_says
}

fn id_05_connections_are_of_reliable_queue_pairs<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    assert_eq!(id.qp_type(), QpType::Rc);
    id.bind(bed.at(0)).expect("bind");
    id.create_qp(&bed.small()).expect("a queue pair");
    let early = id.queues().post_inline(&[1], doorbell_seam::wr::SendOp::Send, <_>::default());
    assert_eq!(early.expect_err("it is not connected").cause, PostCause::State);
}

/// Reliable: a message waits for its receive, and completes only when it was taken.
fn id_05_early_messages_are_not_lost<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    for byte in 0..3 {
        send_inline(&mut one, &[byte]);
    }
    assert!(two.queues().next_recv(A_WHILE).is_err(), "no receive is posted");
    assert!(one.queues().next_send(Duration::ZERO).is_err(), "nobody has taken it");
    for byte in 0..3 {
        two.queues().post_recv(bed.filled(1, 0xee)).expect("a receive");
        assert_eq!(received(&mut two).bytes(), [byte], "none is lost, none comes twice");
        sent(&mut one, &mut two).ok().expect("it was taken");
    }
}

fn id_05_a_message_reaches_only_its_peer<F: Fabric>(bed: &Bed<F>) {
    let mut pairs = [(); 3].map(|()| bed.pair(&bed.small()));
    for (at, (one, two)) in pairs.iter_mut().enumerate() {
        two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
        send_inline(one, &[10 + at as u8]);
    }
    for (at, (one, two)) in pairs.iter_mut().enumerate() {
        assert_eq!(received(two).bytes(), [10 + at as u8]);
        assert!(two.queues().next_recv(Duration::from_millis(5)).is_err(), "one was meant for it");
        sent(one, two).ok().expect("sent");
    }
}

/// Messages, not a stream: many packets make one message, and two messages never merge.
fn id_05_a_long_message_is_one_message<F: Fabric>(bed: &Bed<F>) {
    const LONG: usize = 20_000;
    let (mut one, mut two) = bed.pair(&bed.small());
    for _ in 0..2 {
        two.queues().post_recv(bed.filled(2 * LONG, 0xee)).expect("a receive");
        send(&mut one, bed.filled(LONG, 5));
    }
    for _ in 0..2 {
        assert_eq!(received(&mut two).bytes(), vec![5; LONG]);
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

fn ep_15_a_request_brings_its_data_and_depths_and_keeps_them<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    let asks = ConnParam {
        private_data: b"it is me",
        responder_resources: 2,
        initiator_depth: 1,
        ..ConnParam::default()
    };
    one.connect(&asks).expect("connect");
    let mut two = listener.get_request(Some(SOON)).expect("a request");
    let brought = |two: &Id<F>| {
        assert_padded(two.private_data(), b"it is me", 56);
        let depths = two.depths().expect("the peer has announced them");
        assert_eq!((depths.responder, depths.initiator), (1, 2));
    };
    brought(&two);
    two.create_qp(&bed.small()).expect("a queue pair");
    brought(&two);
    thread::scope(|scope| {
        scope.spawn(|| event::<F>(&here, EventKind::Established));
        two.accept(&ConnParam::default()).expect("accept");
    });
}

fn qp_20_each_side_has_the_depths_that_were_agreed<F: Fabric>(bed: &Bed<F>) {
    let asks = ConnParam {
        responder_resources: 2,
        initiator_depth: 8,
        retry_count: 3,
        rnr_retry: 2,
        ..ConnParam::default()
    };
    let grants = ConnParam {
        responder_resources: 4,
        initiator_depth: 1,
        retry_count: 5,
        rnr_retry: 6,
        ..ConnParam::default()
    };
    let init = bed.small();
    let (one, two) = bed.pair_as_connected(&init, &init, &asks, &grants);
    let [left, right] = [&one, &two].map(|id| id.query_qp().expect("a query"));
    // READs in flight, and READs that are served for the peer.
    assert_eq!((left.max_rd_atomic, left.max_dest_rd_atomic), (Some(4), Some(1)));
    assert_eq!((right.max_rd_atomic, right.max_dest_rd_atomic), (Some(1), Some(4)));
    // A kernel sets the longest wait there; the soft device begins with a short one (QP-21).
    let wait = if bed.is_strict() { 12 } else { 0 };
    for fields in [left, right] {
        assert_eq!((fields.state, fields.min_rnr_timer), (Some(QpState::Rts), Some(wait)));
        assert!(fields.timeout.is_some_and(|code| (1..32).contains(&code)), "{fields:?}");
    }
    if bed.is_strict() {
        // It loses nothing and numbers no packets, so it keeps none of the following fields.
        return;
    }
    assert_eq!(
        (left.retry_cnt, right.retry_cnt),
        (Some(3), Some(3)),
        "the connecting side's value"
    );
    assert_eq!((left.rnr_retry, right.rnr_retry), (Some(6), Some(2)), "the other side's");
    assert_eq!((left.rq_psn, right.rq_psn), (right.sq_psn, left.sq_psn), "they fit");
    assert_ne!(left.sq_psn, right.sq_psn, "they are random");
    let numbers = [&one, &two].map(|id| id.qp().map(|(number, _)| number));
    assert_eq!((left.dest_qp, right.dest_qp), (numbers[1], numbers[0]));
    assert_eq!(left.path_mtu, right.path_mtu);
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    for fields in [left, right] {
        assert!(fields.access.is_some_and(|access| access.contains(all)), "{fields:?}");
    }
}

fn qp_20_each_side_sets_the_retries_of_the_other<F: Fabric>(bed: &Bed<F>) {
    let (init, ever) = (bed.small(), ConnParam::default());
    let once = ConnParam { rnr_retry: 1, ..ever };
    // The connecting side allows few retries for sends to it, the other side allows all.
    let (mut one, mut two) = bed.pair_with(&init, &init, &once, &ever);
    send(&mut one, bed.filled(8, 7));
    assert!(two.queues().next_recv(A_WHILE).is_err(), "it waits, much longer than one wait");
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    assert_eq!(received(&mut two).bytes(), [7; 8]);
    sent(&mut one, &mut two).ok().expect("it went through");
    send(&mut two, bed.filled(8, 7));
    assert_eq!(sent(&mut two, &mut one).status, Status::RnrRetryExceeded);
    // And the other way round.
    let (mut one, mut two) = bed.pair_with(&init, &init, &ever, &once);
    send(&mut two, bed.filled(8, 7));
    assert!(one.queues().next_recv(A_WHILE).is_err(), "it waits, much longer than one wait");
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    assert_eq!(received(&mut one).bytes(), [7; 8]);
    sent(&mut two, &mut one).ok().expect("it went through");
    send(&mut one, bed.filled(8, 7));
    assert_eq!(sent(&mut one, &mut two).status, Status::RnrRetryExceeded);
}

fn qp_20_a_peer_without_depth_may_write_but_not_read<F: Fabric>(bed: &Bed<F>) {
    use doorbell_seam::wr::{SendFlags, SendOp};
    let init = bed.small();
    // The connecting side asks for no READs, and so is granted none.
    let none = ConnParam { initiator_depth: 0, ..ConnParam::default() };
    let (mut one, mut two) = bed.pair_with(&init, &init, &none, &ConnParam::default());
    let fields = two.query_qp().expect("a query");
    assert_eq!(fields.max_dest_rd_atomic, Some(0));
    assert_eq!(one.query_qp().expect("a query").max_rd_atomic, Some(0));
    if let Some(access) = fields.access {
        assert!(access.contains(Access::REMOTE_WRITE), "{access:?}");
        assert!(!access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC), "{access:?}");
    }
    let memory = doorbell_cm::Exposed::new(&bed.fabric, 64, Access::all()).expect("memory");
    let write = SendOp::Write(memory.remote(0));
    one.queues().post_send(bed.filled(8, 1), 8, write, SendFlags::SIGNALED).expect("a write");
    sent(&mut one, &mut two).ok().expect("remote write is always on");
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [1; 8]);
}

fn qp_22_a_rejected_request_flushes<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    one.queues().post_recv(bed.filled(8, 3)).expect("a receive");
    one.connect(&ConnParam::default()).expect("connect");
    listener.get_request(Some(SOON)).expect("a request").reject(&[]).expect("reject");
    event::<F>(&here, EventKind::Rejected);
    let flushed = one.queues().next_recv(SOON).expect("its receive comes back");
    assert_eq!(flushed.status, Status::Flushed);
    assert_eq!(one.query_qp().expect("a query").state, Some(QpState::Err));
    let again = one.connect(&ConnParam::default()).expect_err("this id has had its try");
    assert_eq!(again.code(), Code::Invalid, "{again}");
}

/// Only the least time is checked: a busy machine makes every wait longer. A kernel whose clock
/// lags behind ends a wait early now and then. A device with another time ends each of them early.
fn rc_01_a_wait_lasts_as_long_as_its_code_says<F: Fabric>(bed: &Bed<F>) {
    // A kernel counts in jiffies of 4 ms and may be early by one.
    const JIFFY: Duration = Duration::from_millis(4);
    let tries = if bed.is_strict() { 1 } else { 10 };
    let init = bed.small();
    let once = ConnParam { rnr_retry: 1, ..ConnParam::default() };
    for (code, millis) in [(24, 40), (28, 163), (0, 655)] {
        let least = Duration::from_millis(millis) - JIFFY;
        let wait = |_| {
            let (mut one, mut two) = bed.pair_with(&init, &init, &ConnParam::default(), &once);
            two.set_rnr_timer(code).expect("a code");
            assert_eq!(two.query_qp().expect("a query").min_rnr_timer, Some(code), "QP-21");
            let begun = Instant::now();
            send(&mut one, bed.filled(8, 7));
            assert_eq!(sent(&mut one, &mut two).status, Status::RnrRetryExceeded);
            begun.elapsed()
        };
        let lasts = (0..tries).map(wait).any(|waited| waited >= least);
        assert!(lasts, "code {code}: each of {tries} waits was shorter than {least:?}");
        thread::yield_now();
    }
}
