//! Queue pairs that are moved from state to state by hand and connected by ids: CM-12, and QP-20 as
//! a query shows it.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{
    AddrInfo, ConnParam, Depths, Endpoint, EventKind, ExternalQp, Fabric, Hints, Id, IdOption,
    QpFields, QpState,
};
use doorbell_seam::error::Code;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON, assert_padded, event};
use crate::ids::listening;

cases! {
    cm_12_a_queue_pair_of_ones_own_is_connected_in_four_steps
    cm_12_on_a_channel_the_answer_is_connect_response
    cm_12_a_queue_pair_of_the_ids_own_is_not_established
    cm_12_establish_comes_after_the_answer_and_rts
    cm_12_accepting_comes_after_rts
    cm_12_a_rejected_request_leaves_the_queue_pair_alone
    cm_12_the_peer_may_leave_before_it_is_established
    cm_12_it_meets_an_id_with_a_queue_pair
    cm_12_init_qp_attr_knows_no_other_states_and_is_not_early
    qp_20_accepting_sets_the_retries_of_a_connected_queue_pair
    cm_16_the_ack_timeout_shows_in_a_query
    rc_02_timeouts_have_five_bits_and_retries_three
    rc_02_a_peer_that_is_gone_ends_a_send_with_status_12
    rc_03_packet_numbers_have_24_bits_and_wrap
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

pub(crate) fn own<F: Fabric>(bed: &Bed<F>) -> ExternalQp<F> {
    ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair")
}

/// An id without a queue pair that is ready to connect.
fn bare<F: Fabric>(bed: &Bed<F>, addr: std::net::SocketAddr) -> Id<F> {
    let info = AddrInfo::of(addr, &Hints::active());
    Endpoint::create(&bed.fabric, &info, None).expect("an endpoint").into_id()
}

/// Moves a queue pair one state further, as the connection manager says.
fn go<F: Fabric>(qp: &mut ExternalQp<F>, id: &mut Id<F>, to: QpState) {
    let fields = id.by_hand().init_qp_attr(to).expect("the fields for this state");
    assert_eq!(fields.state, Some(to));
    qp.modify(&fields).expect("a way of the table");
    assert_eq!(qp.state(), to);
}

fn up<F: Fabric>(qp: &mut ExternalQp<F>, id: &mut Id<F>) {
    go(qp, id, QpState::Rtr);
    go(qp, id, QpState::Rts);
}

/// Sends a message in each direction.
pub(crate) fn talk<F: Fabric>(bed: &Bed<F>, one: &mut ExternalQp<F>, two: &mut ExternalQp<F>) {
    say(bed, one, two);
    say(bed, two, one);
}

pub(crate) fn say<F: Fabric>(bed: &Bed<F>, from: &mut ExternalQp<F>, to: &mut ExternalQp<F>) {
    to.post_recv(bed.filled(8, 0)).expect("a receive");
    from.post_send(bed.filled(8, 9), 8, SendOp::Send, SIGNALED).expect("a send");
    let message = to.next_recv(SOON).expect("a message").ok().expect("well");
    assert_eq!(message.bytes(), [9; 8]);
    from.next_send(SOON).expect("sent").ok().expect("well");
}

pub(crate) type Side<F> = (Id<F>, ExternalQp<F>);

/// Two ids that connect these queue pairs, which are in RESET.
pub(crate) fn joined<F: Fabric>(
    bed: &Bed<F>,
    qps: [ExternalQp<F>; 2],
    asks: &ConnParam<'_>,
    grants: &ConnParam<'_>,
) -> [Side<F>; 2] {
    joined_by(bed, qps, asks, grants, |qp, id| up(qp, id))
}

/// The same, moved to RTS in another way.
pub(crate) fn joined_by<F: Fabric>(
    bed: &Bed<F>,
    [left, right]: [ExternalQp<F>; 2],
    asks: &ConnParam<'_>,
    grants: &ConnParam<'_>,
    up: impl Fn(&mut ExternalQp<F>, &mut Id<F>) + Sync,
) -> [Side<F>; 2] {
    let up = &up;
    let (mut listener, addr) = bed.listener(None);
    let mut one = (bare(bed, addr), left);
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            let (id, qp) = &mut one;
            go(qp, id, QpState::Init);
            id.by_hand().connect(qp, asks).expect("the peer's answer");
            up(qp, id);
            id.by_hand().establish().expect("establish");
            one
        });
        let mut id = listener.get_request(Some(SOON)).expect("a request");
        let mut qp = right;
        go(&mut qp, &mut id, QpState::Init);
        up(&mut qp, &mut id);
        id.by_hand().accept(&qp, grants).expect("accept");
        [connecting.join().expect("the connecting side"), (id, qp)]
    })
}

fn cm_12_a_queue_pair_of_ones_own_is_connected_in_four_steps<F: Fabric>(bed: &Bed<F>) {
    let asks = ConnParam {
        private_data: b"mine",
        responder_resources: 3,
        retry_count: 3,
        rnr_retry: 2,
        ..Default::default()
    };
    let grants = ConnParam {
        private_data: b"yours",
        initiator_depth: 2,
        retry_count: 5,
        rnr_retry: 6,
        ..Default::default()
    };
    let agreed = Mutex::new(Vec::new());
    let note = |qp: &mut ExternalQp<F>, id: &mut Id<F>| {
        go(qp, id, QpState::Rtr);
        let fields = id.by_hand().init_qp_attr(QpState::Rts).expect("the fields for this state");
        agreed.lock().expect("no panic").push((fields.retry_cnt, fields.rnr_retry));
        go(qp, id, QpState::Rts);
    };
    let qps = [own(bed), own(bed)];
    let [(mut one, mut left), (mut two, mut right)] = joined_by(bed, qps, &asks, &grants, note);
    // The accepting side comes first. Retries for want of a receive are the other side's (QP-20).
    let retries = [(Some(3), Some(2)), (Some(3), Some(6))];
    assert_eq!(agreed.into_inner().expect("no panic"), retries);
    assert_padded(two.private_data(), b"mine", 56);
    assert_padded(one.private_data(), b"yours", 196);
    assert_eq!(two.depths().map(|depths| depths.initiator), Some(3));
    assert_eq!(one.depths().map(|depths| depths.responder), Some(2));
    assert_eq!((left.state(), right.state()), (QpState::Rts, QpState::Rts));
    talk(bed, &mut left, &mut right);
    assert_eq!(left.query().expect("a query").dest_qp, Some(right.num()));
    assert_eq!(right.query().expect("a query").state, Some(QpState::Rts));
    thread::scope(|scope| {
        let other = scope.spawn(|| two.disconnect().expect("so does the other"));
        one.disconnect().expect("disconnect");
        other.join().expect("the other side");
    });
    left.post_recv(bed.filled(8, 0)).expect("a receive");
    left.modify(&QpFields::to(QpState::Err)).expect("by hand as well");
    assert_eq!(left.next_recv(SOON).expect("it is flushed").status, Status::Flushed);
}

fn cm_12_on_a_channel_the_answer_is_connect_response<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (_listener, addr) = listening(bed, &there);
    let (mut one, mut left) = (bare(bed, addr), own(bed));
    one.migrate(Some(&here)).expect("migrate");
    go(&mut left, &mut one, QpState::Init);
    let asks = ConnParam { responder_resources: 2, initiator_depth: 4, ..ConnParam::default() };
    one.by_hand().connect(&left, &asks).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    let mut right = own(bed);
    go(&mut right, &mut two, QpState::Init);
    up(&mut right, &mut two);
    let grants = ConnParam { private_data: b"come in", ..asks };
    two.by_hand().accept(&right, &grants).expect("accept");
    let response = event::<F>(&here, EventKind::ConnectResponse);
    assert_eq!(response.key, one.key());
    assert_padded(&response.private_data, b"come in", 196);
    assert_eq!(response.depths, Some(Depths { responder: 4, initiator: 2 }));
    up(&mut left, &mut one);
    one.by_hand().establish().expect("establish");
    assert_eq!(event::<F>(&there, EventKind::Established).key, two.key());
    talk(bed, &mut left, &mut right);
    drop(one);
    assert_eq!(event::<F>(&there, EventKind::Disconnected).key, two.key());
}

fn cm_12_a_queue_pair_of_the_ids_own_is_not_established<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    assert_eq!(one.by_hand().establish().expect_err("it has one").code(), Code::Invalid);
    let param = ConnParam::default();
    let qp = own(bed);
    assert_eq!(two.by_hand().accept(&qp, &param).expect_err("it has one").code(), Code::Invalid);
    assert_eq!(one.by_hand().connect(&qp, &param).expect_err("it has one").code(), Code::Invalid);
}

fn cm_12_establish_comes_after_the_answer_and_rts<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let (mut one, mut left) = (bare(bed, addr), own(bed));
    assert_eq!(one.by_hand().establish().expect_err("nobody has answered").code(), Code::Invalid);
    one.migrate(Some(&here)).expect("migrate");
    go(&mut left, &mut one, QpState::Init);
    one.by_hand().connect(&left, &ConnParam::default()).expect("connect");
    assert!(one.by_hand().init_qp_attr(QpState::Rtr).is_err(), "the peer is not known yet");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut two = listener.get_request(Some(SOON)).expect("a request");
            two.accept(&ConnParam::default()).expect("accept");
            two
        });
        event::<F>(&here, EventKind::ConnectResponse);
        up(&mut left, &mut one);
        one.by_hand().establish().expect("now");
        drop(accepting.join().expect("the listening side"));
    });
}

fn cm_12_accepting_comes_after_rts<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = crate::ids::ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let mut two = listener.get_request(Some(SOON)).expect("a request");
    let mut qp = own(bed);
    for state in [QpState::Init, QpState::Rtr] {
        go(&mut qp, &mut two, state);
        let refused = two.by_hand().accept(&qp, &ConnParam::default()).expect_err("too early");
        assert_eq!(refused.code(), Code::Invalid, "{refused}");
    }
    two.reject(&[]).expect("it may still say no");
    assert_eq!(event::<F>(&here, EventKind::Rejected).status, 28);
}

fn cm_12_a_rejected_request_leaves_the_queue_pair_alone<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(None);
    let (mut one, mut left) = (bare(bed, addr), own(bed));
    go(&mut left, &mut one, QpState::Init);
    left.post_recv(bed.filled(8, 0)).expect("a receive");
    thread::scope(|scope| {
        let (one, left) = (&mut one, &mut left);
        let connecting = scope.spawn(move || one.by_hand().connect(left, &ConnParam::default()));
        listener.get_request(Some(SOON)).expect("a request").reject(&[]).expect("reject");
        let error = connecting.join().expect("the connecting side").expect_err("rejected");
        assert_eq!(error.code(), Code::Refused);
    });
    drop(one);
    assert!(left.next_recv(A_WHILE).is_err(), "its receive stays");
    assert_eq!(left.state(), QpState::Init);
}

fn cm_12_the_peer_may_leave_before_it_is_established<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (_listener, addr) = listening(bed, &there);
    let (mut one, mut left) = (bare(bed, addr), own(bed));
    one.migrate(Some(&here)).expect("migrate");
    go(&mut left, &mut one, QpState::Init);
    one.by_hand().connect(&left, &ConnParam::default()).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    two.create_qp(&bed.small()).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    event::<F>(&here, EventKind::ConnectResponse);
    drop(two);
    // Whatever happens, nothing hangs, and dropping in this order frees everything.
    let _ = doorbell_cm::Channel::next(&here, A_WHILE);
    let _ = one.by_hand().establish();
    drop(one);
    drop(left);
}

fn cm_12_it_meets_an_id_with_a_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let (mut one, mut left) = (bare(bed, addr), own(bed));
    let (mut one, mut two) = thread::scope(|scope| {
        let left = &mut left;
        let connecting = scope.spawn(move || {
            go(left, &mut one, QpState::Init);
            one.by_hand().connect(left, &ConnParam::default()).expect("the peer's answer");
            up(left, &mut one);
            one.by_hand().establish().expect("establish");
            one
        });
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        two.accept(&ConnParam::default()).expect("accept");
        (connecting.join().expect("the connecting side"), two)
    });
    left.post_inline(&[5; 8], SendOp::Send, SIGNALED).expect("a send");
    assert_eq!(crate::bed::received(&mut two).bytes(), [5; 8]);
    left.next_send(SOON).expect("sent").ok().expect("well");
    thread::scope(|scope| {
        let other = scope.spawn(|| two.disconnect().expect("so does the other"));
        one.disconnect().expect("disconnect");
        other.join().expect("the other side");
    });
}

fn cm_12_init_qp_attr_knows_no_other_states_and_is_not_early<F: Fabric>(bed: &Bed<F>) {
    let mut id = bare(bed, bed.at(7));
    for state in [QpState::Reset, QpState::Sqd, QpState::Sqe, QpState::Err, QpState::Rtr] {
        let error = id.by_hand().init_qp_attr(state).expect_err("not now, or never");
        assert_eq!(error.code(), Code::Invalid, "{state:?}: {error}");
    }
}

/// The queue pair of the accepting side is in RTS before accept says how often it is tried again.
fn qp_20_accepting_sets_the_retries_of_a_connected_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (asks, qps) = (ConnParam::default(), [own(bed), own(bed)]);
    let grants = ConnParam { rnr_retry: 0, ..ConnParam::default() };
    let [(_one, mut left), (_two, mut right)] = joined(bed, qps, &asks, &grants);
    left.post_inline(&[5; 8], SendOp::Send, SIGNALED).expect("a send");
    let end = Instant::now() + SOON;
    let sent = loop {
        if let Ok(sent) = left.next_send(Duration::ZERO) {
            break sent;
        }
        assert!(right.next_recv(Duration::ZERO).is_err(), "it has no receive");
        assert!(Instant::now() < end, "the send waits for a receive");
    };
    assert_eq!(sent.status, Status::RnrRetryExceeded);
}

fn cm_16_the_ack_timeout_shows_in_a_query<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut one = bed.active(addr, &bed.small());
    assert_eq!(one.query_qp().expect("a query").state, Some(QpState::Init), "QP-3");
    one.set_option(IdOption::AckTimeout(21)).expect("set it");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut two = listener.get_request(Some(SOON)).expect("a request");
            two.accept(&ConnParam::default()).expect("accept");
            two
        });
        one.connect(&ConnParam::default()).expect("connect");
        let fields = one.query_qp().expect("a query");
        assert_eq!((fields.state, fields.timeout), (Some(QpState::Rts), Some(21)));
        let theirs = accepting.join().expect("the listening side").query_qp().expect("a query");
        assert_eq!(theirs.state, Some(QpState::Rts));
        assert_ne!(theirs.timeout, Some(21), "each side has its own");
    });
}

/// Moves a queue pair to RTS with changed fields.
pub(crate) fn up_as<F: Fabric>(
    qp: &mut ExternalQp<F>,
    id: &mut Id<F>,
    change: impl Fn(QpFields) -> QpFields,
) {
    for state in [QpState::Rtr, QpState::Rts] {
        let fields = id.by_hand().init_qp_attr(state).expect("the fields for this state");
        qp.modify(&change(fields)).expect("a way of the table");
    }
}

/// A timeout of 67 milliseconds (4.096 us, doubled fourteen times): an acknowledgement comes
/// sooner, even on an emulated machine.
const QUICK: u8 = 14;

fn rc_02_timeouts_have_five_bits_and_retries_three<F: Fabric>(bed: &Bed<F>) {
    let (none, qps) = (ConnParam::default(), [own(bed), own(bed)]);
    let [(_, mut left), (_, mut right)] = joined_by(bed, qps, &none, &none, |qp, id| {
        go(qp, id, QpState::Rtr);
        let good = id.by_hand().init_qp_attr(QpState::Rts).expect("the fields for this state");
        let good = QpFields { timeout: Some(QUICK), retry_cnt: Some(2), ..good };
        for (timeout, retry_cnt) in [(32, 2), (QUICK, 8), (255, 255)] {
            let (timeout, retry_cnt) = (Some(timeout), Some(retry_cnt));
            let error = qp.modify(&QpFields { timeout, retry_cnt, ..good }).expect_err("refused");
            assert_eq!((error.code(), qp.state()), (Code::Invalid, QpState::Rtr), "{error}");
        }
        qp.modify(&good).expect("within their bits");
    });
    for qp in [&left, &right] {
        let fields = qp.query().expect("a query");
        assert_eq!((fields.timeout, fields.retry_cnt), (Some(QUICK), Some(2)));
    }
    talk(bed, &mut left, &mut right);
}

fn rc_02_a_peer_that_is_gone_ends_a_send_with_status_12<F: Fabric>(bed: &Bed<F>) {
    let (none, qps) = (ConnParam::default(), [own(bed), own(bed)]);
    let [(one, mut left), (two, mut right)] = joined_by(bed, qps, &none, &none, |qp, id| {
        up_as(qp, id, |fields| match fields.state {
            // More than 6 may mean without end (R4).
            Some(QpState::Rts) => QpFields { timeout: Some(QUICK), retry_cnt: Some(1), ..fields },
            _ => fields,
        });
    });
    talk(bed, &mut left, &mut right);
    drop((two, right));
    left.post_send(bed.filled(8, 7), 8, SendOp::Send, SIGNALED).expect("it does not know yet");
    left.post_send(bed.filled(8, 8), 8, SendOp::Send, SIGNALED).expect("nor now");
    let first = left.next_send(SOON).expect("it ends");
    assert_eq!(first.status, Status::RetryExceeded);
    assert_eq!(left.next_send(SOON).expect("so does the next").status, Status::Flushed);
    assert_eq!(left.state(), QpState::Err);
    drop(one);
}

fn rc_03_packet_numbers_have_24_bits_and_wrap<F: Fabric>(bed: &Bed<F>) {
    /// The second packet has the last number.
    const FIRST: u32 = 0x00ff_fffe;
    const LEN: usize = 5000;
    let (none, qps) = (ConnParam::default(), [own(bed), own(bed)]);
    let [(_, mut left), (_, mut right)] = joined_by(bed, qps, &none, &none, |qp, id| {
        let beyond = QpFields {
            rq_psn: Some(1 << 24),
            ..id.by_hand().init_qp_attr(QpState::Rtr).expect("fields")
        };
        assert_eq!(qp.modify(&beyond).expect_err("25 bits").code(), Code::Invalid);
        up_as(qp, id, |fields| QpFields {
            // The soft device knows its peer by the first expected number.
            rq_psn: fields.rq_psn.map(|psn| if bed.is_strict() { psn } else { FIRST }),
            sq_psn: fields.sq_psn.map(|_| FIRST),
            ..fields
        });
    });
    for round in 0..4 {
        let exchange = |from: &mut ExternalQp<F>, to: &mut ExternalQp<F>| {
            to.post_recv(bed.filled(LEN, 0)).expect("a receive");
            from.post_send(bed.filled(LEN, round), LEN, SendOp::Send, SIGNALED).expect("a send");
            let message = to.next_recv(SOON).expect("a message").ok().expect("well");
            assert_eq!(message.bytes(), [round; LEN]);
            from.next_send(SOON).expect("sent").ok().expect("well");
        };
        exchange(&mut left, &mut right);
        exchange(&mut right, &mut left);
    }
    if !bed.is_strict() {
        // It reports the next expected number.
        let next = left.query().expect("a query").rq_psn.expect("a number");
        assert!(next < 64, "{next} is behind the last number");
    }
}
