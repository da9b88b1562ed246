//! Datagrams: looking a listener up (CM-14), UD queue pairs (QP-4, QP-14, UD-1, UD-2).

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use doorbell_cm::{
    AddrInfo, Buffer, Channel, Completion, ConnParam, Endpoint, EventKind, ExternalQp, Fabric,
    Hints, Id, PortSpace, QpFields, QpInit, QpState, Source, Target, UDP_QKEY, UdParam,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{GRH_BYTES, QpType};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{PostCause, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON, assert_padded, event, received};
use crate::harness::skip;

cases! {
    id_06_datagrams_go_both_ways
    cm_14_accept_gives_no_event
    cm_14_accept_can_name_a_queue_pair
    cm_08_private_data_of_a_look_up_arrives_padded
    cm_08_too_much_private_data_of_a_look_up_is_refused
    cm_11_a_rejected_look_up_is_unreachable_with_status_2
    cm_11_without_a_listener_a_look_up_is_unreachable_with_status_1
    cm_10_datagrams_have_no_connection_to_end
    qp_04_a_queue_pair_of_datagrams_sends_at_once
    qp_14_queue_pairs_of_another_type_are_refused
    id_06_port_spaces_have_ports_of_their_own
    id_06_ip_over_infiniband_is_a_space_of_datagrams
    ud_02_a_datagram_without_a_taker_is_dropped_silently
    ud_01_more_than_a_packet_is_refused
    ud_01_sends_only_datagrams
    ud_01_a_target_may_go_before_its_sends_are_over
    cp_06_a_datagram_wakes_the_thread_that_armed
    sm_06_a_queue_pair_of_datagrams_by_hand
    sm_06_a_state_is_left_by_the_steps_of_the_table_alone
    sm_03_a_send_that_fails_leaves_sqe_and_rts_is_one_step_away
}

const NOW: Duration = Duration::ZERO;

/// A small UD queue pair.
pub(crate) fn small<F: Fabric>() -> QpInit<F> {
    QpInit::ud().send_wr(8).recv_wr(8).inline(64)
}

/// A bound datagram id with a queue pair.
pub(crate) fn bound<F: Fabric>(bed: &Bed<F>, channel: Option<&F::Channel>) -> Id<F> {
    let mut id = Id::create(&bed.fabric, channel, PortSpace::Udp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    id.create_qp(&small()).expect("a queue pair");
    id
}

fn listening<F: Fabric>(bed: &Bed<F>) -> (Endpoint<F>, SocketAddr) {
    let hints = Hints { space: PortSpace::Udp, ..Hints::passive() };
    let info = AddrInfo::of(bed.at(0), &hints);
    let mut listener = Endpoint::create(&bed.fabric, &info, Some(&small())).expect("a listener");
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

fn active<F: Fabric>(bed: &Bed<F>, to: SocketAddr) -> Endpoint<F> {
    let hints = Hints { space: PortSpace::Udp, ..Hints::active() };
    let info = AddrInfo::of(to, &hints);
    Endpoint::create(&bed.fabric, &info, Some(&small())).expect("an active endpoint")
}

/// A side that looks up, and the side it finds.
fn pair<F: Fabric>(
    bed: &Bed<F>,
    connect: &ConnParam<'_>,
    accept: &ConnParam<'_>,
) -> (Endpoint<F>, Id<F>) {
    let (mut listener, addr) = listening(bed);
    let mut one = active(bed, addr);
    thread::scope(|scope| {
        let looking = scope.spawn(move || {
            one.connect(connect).expect("look the listener up");
            one
        });
        let mut two = listener.get_request(Some(SOON)).expect("a look-up");
        two.accept(accept).expect("accept");
        (looking.join().expect("the side that looks"), two)
    })
}

pub(crate) fn plain<F: Fabric>(bed: &Bed<F>) -> (Id<F>, Id<F>) {
    let none = ConnParam::default();
    let (one, two) = pair(bed, &none, &none);
    (one.into_id(), two)
}

/// The path from the side that looked up to the side it found.
fn way<F: Fabric>(bed: &Bed<F>, one: &Id<F>) -> (UdParam, Target<F>) {
    let to = one.ud().expect("the event names a destination");
    let target = Target::new(&bed.fabric, &to).expect("a target");
    (to, target)
}

pub(crate) fn recv<F: Fabric>(bed: &Bed<F>, id: &mut Id<F>, len: usize) {
    id.queues()
        .post_recv(Buffer::new(&bed.fabric, GRH_BYTES + len).expect("a buffer"))
        .expect("a receive");
}

pub(crate) fn send<F: Fabric>(id: &mut Id<F>, target: &Target<F>, bytes: &[u8]) {
    id.queues().post_inline_to(target, bytes, None, SendFlags::SIGNALED).expect("post a datagram");
    id.queues().next_send(SOON).expect("it is on its way").ok().expect("sent");
}

pub(crate) fn payload<F: Fabric>(completion: &Completion<F>) -> &[u8] {
    completion.datagram().expect("it has a header").1
}

fn nothing_comes<F: Fabric>(id: &mut Id<F>) {
    thread::sleep(A_WHILE);
    assert!(id.queues().next_recv(NOW).is_err(), "nothing comes");
}

fn id_06_datagrams_go_both_ways<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = plain(bed);
    let (to, target) = way(bed, &one);
    assert_eq!((to.qp_num, to.qkey), (two.qp().expect("made on arrival").0, UDP_QKEY));
    recv(bed, &mut two, 100);
    let flags = SendFlags::SIGNALED;
    one.queues().post_inline_to(&target, b"there", Some(7), flags).expect("post a datagram");
    let first = received(&mut two);
    assert_eq!((payload(&first), first.imm), (&b"there"[..], Some(7)));
    assert_eq!((first.len, first.src_qp), (GRH_BYTES + 5, one.qp().expect("made").0));
    // CP-2, UD-1: an IPv4 header lies in the last twenty of the forty bytes.
    let (header, _) = first.datagram().expect("it has a header");
    assert_eq!(header[20] >> 4, 4);
    let back = two.sender_of(&first).expect("where it came from");
    let back = Target::new(&bed.fabric, &back).expect("a target");
    recv(bed, &mut one, 2000);
    let mut buffer = Buffer::new(&bed.fabric, 1000).expect("a buffer");
    buffer.fill(9);
    two.queues().post_send_to(&back, buffer, 1000, None, flags).expect("post a datagram");
    let second = received(&mut one);
    assert_eq!((payload(&second), second.imm), (&[9; 1000][..], None));
    let sent = two.queues().next_send(SOON).expect("sent").ok().expect("sent");
    assert_eq!(sent.buffer.expect("it comes back").len(), 1000);
}

fn cm_14_accept_gives_no_event<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let mut listener = Id::create(&bed.fabric, Some(&there), PortSpace::Udp).expect("an id");
    listener.bind(bed.at(0)).expect("bind");
    listener.listen(0).expect("listen");
    let mut one = ready(bed, &here, listener.local_addr().expect("bound"));
    one.connect(&ConnParam::default()).expect("look the listener up");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    assert_eq!((request.key, request.ud), (listener.key(), None));
    let mut two = Id::of_request(&bed.fabric, request.request.expect("it brings an id"));
    two.create_qp(&small()).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    let found = event::<F>(&here, EventKind::Established);
    assert_eq!(found.key, one.key());
    let ud = found.ud.expect("the event names a destination");
    assert_eq!((ud.qp_num, ud.qkey), (two.qp().expect("made").0, UDP_QKEY));
    assert_eq!(one.ud(), Some(ud));
    assert!(there.next(A_WHILE).expect("no error").is_none(), "nothing is established there");
}

/// An active datagram id on `channel` that is ready to connect.
fn ready<F: Fabric>(bed: &Bed<F>, channel: &F::Channel, to: SocketAddr) -> Id<F> {
    let mut id = Id::create(&bed.fabric, Some(channel), PortSpace::Udp).expect("an id");
    id.resolve_addr(None, to, SOON).expect("resolve the address");
    event::<F>(channel, EventKind::AddrResolved);
    id.resolve_route(SOON).expect("resolve the route");
    event::<F>(channel, EventKind::RouteResolved);
    id.create_qp(&small()).expect("a queue pair");
    id
}

/// One queue pair serves any number of look-ups, as servers of datagrams do.
fn cm_14_accept_can_name_a_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let mut serving = bound(bed, None);
    let qp_num = serving.qp().expect("made").0;
    let mut listener = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    listener.bind(bed.at(0)).expect("bind");
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    for byte in 1..4 {
        let mut one = active(bed, addr);
        let mut one = thread::scope(|scope| {
            let looking = scope.spawn(move || {
                one.connect(&ConnParam::default()).expect("look the listener up");
                one
            });
            let mut two = listener.get_request(Some(SOON)).expect("a look-up");
            let none = two.accept(&ConnParam::default()).expect_err("none is named");
            assert_eq!(none.code(), Code::Invalid);
            two.accept(&ConnParam { qp_num, ..ConnParam::default() }).expect("accept");
            looking.join().expect("the side that looks")
        });
        let (to, target) = way(bed, &one);
        assert_eq!(to.qp_num, qp_num);
        recv(bed, &mut serving, 8);
        send(&mut one, &target, &[byte]);
        assert_eq!(payload(&received(&mut serving)), [byte]);
    }
}

fn cm_08_private_data_of_a_look_up_arrives_padded<F: Fabric>(bed: &Bed<F>) {
    let (question, answer) = ([3; 180], b"answer");
    for question in [&question[..], b"question"] {
        let connect = ConnParam { private_data: question, ..ConnParam::default() };
        let accept = ConnParam { private_data: answer, ..ConnParam::default() };
        let (one, two) = pair(bed, &connect, &accept);
        assert_padded(two.private_data(), question, 180);
        assert_padded(one.private_data(), answer, 136);
    }
}

fn cm_08_too_much_private_data_of_a_look_up_is_refused<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = listening(bed);
    let mut one = active(bed, addr);
    let long = ConnParam { private_data: &[1; 181], ..ConnParam::default() };
    assert_eq!(one.connect(&long).expect_err("too long").code(), Code::Invalid);
    thread::scope(|scope| {
        let looking = scope.spawn(move || one.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a look-up");
        let long = ConnParam { private_data: &[1; 137], ..ConnParam::default() };
        assert_eq!(two.accept(&long).expect_err("too long").code(), Code::Invalid);
        assert_eq!(two.reject(&[1; 137]).expect_err("too long").code(), Code::Invalid);
        two.accept(&ConnParam::default()).expect("accept");
        looking.join().expect("the side that looks").expect("found");
    });
}

fn cm_11_a_rejected_look_up_is_unreachable_with_status_2<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = listening(bed);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("look the listener up");
    listener.get_request(Some(SOON)).expect("a look-up").reject(b"no").expect("reject");
    assert_eq!(event::<F>(&here, EventKind::Unreachable).status, 2);
    let mut again = active(bed, addr);
    let error = thread::scope(|scope| {
        let looking = scope.spawn(move || again.connect(&ConnParam::default()));
        listener.get_request(Some(SOON)).expect("a look-up").reject(b"no").expect("reject");
        looking.join().expect("the side that looks").expect_err("rejected")
    });
    assert_eq!(error.code(), Code::Refused, "{error}");
}

fn cm_11_without_a_listener_a_look_up_is_unreachable_with_status_1<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (listener, addr) = listening(bed);
    drop(listener);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("look the listener up");
    assert_eq!(event::<F>(&here, EventKind::Unreachable).status, 1);
    let error = active(bed, addr).connect(&ConnParam::default()).expect_err("nobody listens");
    assert_eq!(error.code(), Code::Refused, "{error}");
    assert!(error.to_string().contains("nobody listens"), "{error}");
}

fn cm_10_datagrams_have_no_connection_to_end<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = plain(bed);
    assert_eq!(one.disconnect().expect_err("there is none").code(), Code::Invalid);
    assert_eq!(two.disconnect().expect_err("there is none").code(), Code::Invalid);
    // The queue pairs are unchanged.
    let (_, target) = way(bed, &one);
    recv(bed, &mut two, 8);
    send(&mut one, &target, &[5]);
    assert_eq!(payload(&received(&mut two)), [5]);
}

fn qp_04_a_queue_pair_of_datagrams_sends_at_once<F: Fabric>(bed: &Bed<F>) {
    let (_one, mut two) = plain(bed);
    let to = _one.ud().expect("the event names a destination");
    let target = Target::new(&bed.fabric, &to).expect("a target");
    let mut third = bound(bed, None);
    recv(bed, &mut two, 8);
    send(&mut third, &target, &[3]);
    let came = received(&mut two);
    assert_eq!((payload(&came), came.src_qp), (&[3][..], third.qp().expect("made").0));
}

fn qp_14_queue_pairs_of_another_type_are_refused<F: Fabric>(bed: &Bed<F>) {
    for (space, init) in [(PortSpace::Udp, QpInit::rc()), (PortSpace::Tcp, QpInit::ud())] {
        let mut id = Id::create(&bed.fabric, None, space).expect("an id");
        id.bind(bed.at(0)).expect("bind");
        assert_eq!(id.create_qp(&init).expect_err("of another type").code(), Code::Invalid);
        assert!(id.qp().is_none());
    }
}

fn id_06_port_spaces_have_ports_of_their_own<F: Fabric>(bed: &Bed<F>) {
    let (_datagrams, addr) = listening(bed);
    let mut connections = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    connections.bind(addr).expect("the port is free there");
    connections.listen(0).expect("listen");
    let mut again = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    let error = again.bind(addr).and_then(|()| again.listen(0)).expect_err("the port is taken");
    assert!(matches!(error.code(), Code::AddrInUse | Code::AddrNotAvailable), "{error}");
}

fn id_06_ip_over_infiniband_is_a_space_of_datagrams<F: Fabric>(bed: &Bed<F>) {
    let mut two = Id::create(&bed.fabric, None, PortSpace::Ipoib).expect("an id");
    assert_eq!(two.qp_type(), QpType::Ud);
    match two.bind(bed.at(0)) {
        Err(error) if error.code() == Code::Invalid && !bed.is_strict() => {
            return skip("a kernel has this space for interfaces of InfiniBand alone");
        }
        bound => bound.expect("bind"),
    }
    two.create_qp(&small()).expect("a queue pair");
    let addr = two.local_addr().expect("bound");
    let mut udp = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    udp.bind(addr).expect("the port is free there");
    let mut again = Id::create(&bed.fabric, None, PortSpace::Ipoib).expect("an id");
    let error = again.bind(addr).expect_err("and taken here");
    assert!(matches!(error.code(), Code::AddrInUse | Code::AddrNotAvailable), "{error}");
    let source = bed.fabric.source(crate::harness::address()).expect("its address");
    let way = UdParam {
        to: source.path_to(source.gid),
        qp_num: two.qp().expect("a queue pair").0,
        qkey: two.query_qp().expect("a query").qkey.unwrap_or(UDP_QKEY),
    };
    let target = Target::new(&bed.fabric, &way).expect("a target");
    recv(bed, &mut two, 64);
    send(&mut bound(bed, None), &target, b"to that space");
    assert_eq!(&received(&mut two).bytes()[GRH_BYTES..], b"to that space");
}

fn ud_02_a_datagram_without_a_taker_is_dropped_silently<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = plain(bed);
    let (to, target) = way(bed, &one);
    // Nobody has posted a receive; nobody has that number; the key is another.
    send(&mut one, &target, &[1]);
    nothing_comes(&mut two);
    recv(bed, &mut two, 8);
    send(&mut one, &target.other(to.qp_num ^ 0x0080_0000, UDP_QKEY), &[2]);
    send(&mut one, &target.other(to.qp_num, UDP_QKEY ^ 1), &[3]);
    nothing_comes(&mut two);
    if bed.is_strict() {
        // On rxe such a message uses part of the receive (R9).
        send(&mut one, &target, &[4; 9]);
        nothing_comes(&mut two);
    }
    send(&mut one, &target, &[5]);
    assert_eq!(payload(&received(&mut two)), [5]);
}

fn ud_01_more_than_a_packet_is_refused<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("rxe says that it was sent (R10)");
    }
    let (mut one, mut two) = plain(bed);
    let (_, target) = way(bed, &one);
    recv(bed, &mut two, 8000);
    let post = |one: &mut Id<F>, len| {
        let buffer = Buffer::new(&bed.fabric, len).expect("a buffer");
        one.queues().post_send_to(&target, buffer, len, None, SendFlags::empty()).expect("post");
    };
    post(&mut one, 4097);
    post(&mut one, 8);
    let statuses = [Status::LocalLength, Status::Flushed];
    for status in statuses {
        assert_eq!(one.queues().next_send(SOON).expect("it failed").status, status);
    }
    nothing_comes(&mut two);
}

fn ud_01_sends_only_datagrams<F: Fabric>(bed: &Bed<F>) {
    let (mut one, two) = plain(bed);
    let refused =
        one.queues().post_inline(&[1], SendOp::Send, SendFlags::SIGNALED).expect_err("refused");
    assert_eq!(refused.cause, PostCause::Malformed);
    let (_, target) = way(bed, &one);
    let (mut near, _far) = bed.pair(&bed.small());
    let refused = near.queues().post_inline_to(&target, &[1], None, SendFlags::SIGNALED);
    assert_eq!(refused.expect_err("refused").cause, PostCause::Malformed);
    drop(two);
}

fn ud_01_a_target_may_go_before_its_sends_are_over<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = plain(bed);
    for byte in 0..20 {
        recv(bed, &mut two, 8);
        let (_, target) = way(bed, &one);
        let flags = if byte % 4 == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
        one.queues().post_inline_to(&target, &[byte], None, flags).expect("post a datagram");
        drop(target);
        if byte % 4 == 3 {
            one.queues().next_send(SOON).expect("sent").ok().expect("sent");
        }
        assert_eq!(payload(&received(&mut two)), [byte]);
    }
}

fn cp_06_a_datagram_wakes_the_thread_that_armed<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = plain(bed);
    let (_, target) = way(bed, &one);
    let queue = two.recv_cq().expect("a queue pair").clone();
    for byte in [1, 2] {
        recv(bed, &mut two, 8);
        queue.arm(false).expect("arm");
        assert!(!queue.wait(Some(A_WHILE)).expect("wait"), "nothing has come");
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| queue.wait(Some(SOON)).expect("wait"));
            thread::sleep(Duration::from_millis(5));
            send(&mut one, &target, &[byte]);
            assert!(sleeper.join().expect("the sleeper"));
        });
        assert_eq!(payload(&two.queues().next_recv(NOW).expect("it is there")), [byte]);
    }
}

/// In INIT, with that key.
pub(crate) fn by_hand<F: Fabric>(bed: &Bed<F>, qkey: u32) -> (ExternalQp<F>, Source) {
    let source = bed.fabric.source(bed.at(0).ip()).expect("where it sends from");
    let mut qp = ExternalQp::new(&bed.fabric, &small()).expect("a queue pair");
    let init = QpFields {
        pkey_index: Some(0),
        port: Some(source.port),
        qkey: Some(qkey),
        ..QpFields::to(QpState::Init)
    };
    let lacking = QpFields { qkey: None, ..init };
    assert_eq!(qp.modify(&lacking).expect_err("no key").code(), Code::Invalid);
    qp.modify(&init).expect("INIT");
    (qp, source)
}

pub(crate) fn to_rts<F: Fabric>(qp: &mut ExternalQp<F>) {
    qp.modify(&QpFields::to(QpState::Rtr)).expect("RTR needs nothing");
    qp.modify(&QpFields { sq_psn: Some(7), ..QpFields::to(QpState::Rts) }).expect("RTS");
}

fn sm_06_a_queue_pair_of_datagrams_by_hand<F: Fabric>(bed: &Bed<F>) {
    const QKEY: u32 = 0x1111_1111;
    let ((mut one, source), (mut two, _)) = (by_hand(bed, QKEY), by_hand(bed, QKEY));
    let to = UdParam { to: source.path_to(source.gid), qp_num: two.num(), qkey: QKEY };
    let target = Target::new(&bed.fabric, &to).expect("a target");
    let buffer = || Buffer::new(&bed.fabric, 64).expect("a buffer");
    two.post_recv(buffer()).expect("INIT takes receives");
    let refused = one.post_send_to(&target, buffer(), 5, None, SendFlags::SIGNALED);
    assert_eq!(refused.expect_err("INIT").cause, PostCause::State);
    to_rts(&mut one);
    to_rts(&mut two);
    let mut payload = buffer();
    payload[..5].copy_from_slice(b"hello");
    one.post_send_to(&target, payload, 5, None, SendFlags::SIGNALED).expect("RTS");
    one.next_send(SOON).expect("sent").ok().expect("sent");
    let came = two.next_recv(SOON).expect("it came").ok().expect("received");
    assert_eq!((came.datagram().expect("a header").1, came.src_qp), (&b"hello"[..], one.num()));
    // A new key from here on.
    two.modify(&QpFields { qkey: Some(5), ..QpFields::to(QpState::Rts) }).expect("RTS");
    two.post_recv(buffer()).expect("a receive");
    one.post_send_to(&target, buffer(), 5, None, SendFlags::SIGNALED).expect("RTS");
    assert!(two.next_recv(A_WHILE).is_err(), "the key is another");
}

fn sm_06_a_state_is_left_by_the_steps_of_the_table_alone<F: Fabric>(bed: &Bed<F>) {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    /// Transitions from the current state that do not exist.
    fn refused<F: Fabric>(qp: &mut ExternalQp<F>, steps: &[QpState]) {
        let from = qp.state();
        for to in steps {
            let error = qp.modify(&QpFields::to(*to)).expect_err("there is no such step");
            assert_eq!(error.code(), Code::Invalid, "{from:?} to {to:?}: {error}");
            assert_eq!(qp.state(), from, "it stays");
        }
    }
    let (mut qp, _) = by_hand(bed, 1);
    refused(&mut qp, &[Rts, Sqd, Sqe]);
    qp.modify(&QpFields::to(Rtr)).expect("RTR");
    refused(&mut qp, &[Init, Sqd, Sqe]);
    let rts = QpFields { sq_psn: Some(7), ..QpFields::to(Rts) };
    qp.modify(&rts).expect("RTS");
    refused(&mut qp, &[Init, Rtr, Sqe]);
    qp.modify(&QpFields::to(Rts)).expect("RTS again");
    qp.modify(&QpFields::to(Sqd)).expect("SQD");
    refused(&mut qp, &[Init, Rtr, Sqe]);
    qp.modify(&QpFields::to(Rts)).expect("back to RTS");
    qp.modify(&QpFields::to(Err)).expect("ERR");
    refused(&mut qp, &[Init, Rtr, Rts, Sqd, Sqe]);
    qp.modify(&QpFields::to(Reset)).expect("RESET");
    refused(&mut qp, &[Rtr, Rts, Sqd, Sqe, Err]);
}

fn sm_03_a_send_that_fails_leaves_sqe_and_rts_is_one_step_away<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("nothing that fails here leaves rxe in SQE: it takes any length (R10)");
    }
    let ((mut one, source), (mut two, _)) = (by_hand(bed, 1), by_hand(bed, 1));
    to_rts(&mut one);
    to_rts(&mut two);
    let to = UdParam { to: source.path_to(source.gid), qp_num: two.num(), qkey: 1 };
    let target = Target::new(&bed.fabric, &to).expect("a target");
    let buffer = |len| Buffer::new(&bed.fabric, len).expect("a buffer");
    let signaled = SendFlags::SIGNALED;
    one.post_send_to(&target, buffer(4097), 4097, None, signaled).expect("post");
    assert_eq!(one.next_send(SOON).expect("it failed").status, Status::LocalLength);
    assert_eq!(one.state(), QpState::Sqe);
    one.post_send_to(&target, buffer(8), 8, None, signaled).expect("SQE takes it");
    assert_eq!(one.next_send(SOON).expect("it failed").status, Status::Flushed);
    one.modify(&QpFields::to(QpState::Rts)).expect("RTS");
    two.post_recv(buffer(64)).expect("a receive");
    one.post_send_to(&target, buffer(8), 8, None, signaled).expect("post");
    one.next_send(SOON).expect("sent").ok().expect("sent");
    two.next_recv(SOON).expect("it came").ok().expect("received");
}
