//! Ids, addresses and connecting: ID and CM.

use std::thread;
use std::time::Duration;

use doorbell_cm::{AddrInfo, Channel, ConnParam, EventKind, Fabric, Hints, Id, PortSpace, QpInit};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{A_WHILE, Bed, SOON, assert_padded, event};

cases! {
    id_02_a_request_starts_with_its_listeners_context
    id_03_with_a_channel_calls_raise_events_in_order
    id_04_without_a_channel_calls_return_when_it_has_happened
    id_08_dropping_an_id_with_untaken_events_does_not_block
    id_09_dropping_a_connected_id_disconnects_its_peer
    id_09_dropping_a_listener_drops_its_requests
    id_09_dropping_a_request_rejects_it
    id_11_an_empty_channel_answers_in_time
    cm_01_bind_refuses_an_address_of_another_device
    cm_01_bind_refuses_a_port_in_use
    cm_01_bind_refuses_an_id_that_is_bound
    cm_02_resolving_an_address_binds_the_id_to_its_device
    cm_02_a_missing_address_is_not_resolved
    cm_03_resolve_route_checks_state_and_time
    cm_04_listen_binds_an_id_that_is_not_bound
    cm_04_a_full_backlog_refuses_nobody
    cm_05_depths_beyond_the_device_are_refused
    cm_05_connecting_needs_a_queue_pair
    cm_06_without_parameters_a_sender_waits_for_ever
    cm_06_without_parameters_depths_are_the_most_that_the_device_has
    cm_07_connect_in_another_state_is_refused
    cm_08_private_data_arrives_padded
    cm_08_too_much_private_data_is_refused
    cm_10_both_ends_disconnect_and_only_once
    cm_15_an_address_of_nothing_is_refused
    id_10_rejecting_shows_status_28_and_its_data
    id_10_nobody_listening_is_refused_with_status_8
}

fn no_time() -> Duration {
    Duration::ZERO
}

/// An active id on `channel` that is ready to connect.
pub(crate) fn ready<F: Fabric>(
    bed: &Bed<F>,
    channel: &F::Channel,
    to: std::net::SocketAddr,
) -> Id<F> {
    let mut id = Id::create(&bed.fabric, Some(channel), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, to, SOON).expect("resolve the address");
    assert_eq!(event::<F>(channel, EventKind::AddrResolved).key, id.key());
    id.resolve_route(SOON).expect("resolve the route");
    assert_eq!(event::<F>(channel, EventKind::RouteResolved).key, id.key());
    id.create_qp(&bed.small()).expect("a queue pair");
    id
}

pub(crate) fn listening<F: Fabric>(
    bed: &Bed<F>,
    channel: &F::Channel,
) -> (Id<F>, std::net::SocketAddr) {
    let mut listener = Id::create(&bed.fabric, Some(channel), PortSpace::Tcp).expect("an id");
    listener.bind(bed.at(0)).expect("bind");
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

/// A pair connected by events.
pub(crate) fn pair_by_events<F: Fabric>(
    bed: &Bed<F>,
    here: &F::Channel,
    there: &F::Channel,
) -> [Id<F>; 3] {
    let (listener, addr) = listening(bed, there);
    let mut one = ready(bed, here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let request = event::<F>(there, EventKind::ConnectRequest);
    assert_eq!(request.key, listener.key(), "a request is its listener's event");
    let mut two = Id::of_request(&bed.fabric, request.request.expect("it brings an id"));
    assert_ne!(two.key(), listener.key());
    two.create_qp(&bed.small()).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    assert_eq!(event::<F>(here, EventKind::Established).key, one.key());
    assert_eq!(event::<F>(there, EventKind::Established).key, two.key());
    [one, two, listener]
}

fn id_02_a_request_starts_with_its_listeners_context<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    listener.set_context(77);
    thread::scope(|scope| {
        let mut one = bed.active(addr, &bed.small());
        let connecting = scope.spawn(move || one.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        assert_eq!(two.context(), 77);
        two.reject(&[]).expect("reject");
        assert!(connecting.join().expect("the connecting side").is_err());
    });
}

fn id_03_with_a_channel_calls_raise_events_in_order<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let [mut one, mut two, _listener] = pair_by_events(bed, &here, &there);
    one.disconnect().expect("disconnect");
    assert_eq!(event::<F>(&there, EventKind::Disconnected).key, two.key());
    two.disconnect().expect("the other side answers");
    assert_eq!(event::<F>(&here, EventKind::Disconnected).key, one.key());
}

fn id_04_without_a_channel_calls_return_when_it_has_happened<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let (asks, asked) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let mut one = bed.active(addr, &bed.small());
        let connecting = scope.spawn(move || {
            one.connect(&ConnParam::default()).expect("connect");
            asks.send(()).expect("the test waits");
        });
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        assert!(asked.recv_timeout(A_WHILE).is_err(), "it is not accepted yet");
        two.accept(&ConnParam::default()).expect("accept");
        asked.recv_timeout(SOON).expect("now connect returns");
        connecting.join().expect("the connecting side");
    });
}

fn id_08_dropping_an_id_with_untaken_events_does_not_block<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut id = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    drop(id);
    assert!(channel.next(A_WHILE).expect("no error").is_none(), "its event went with it");
}

fn id_09_dropping_a_connected_id_disconnects_its_peer<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let [one, two, _listener] = pair_by_events(bed, &here, &there);
    drop(one);
    assert_eq!(event::<F>(&there, EventKind::Disconnected).key, two.key());
}

fn id_09_dropping_a_listener_drops_its_requests<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    assert!(here.next(A_WHILE).expect("no error").is_none());
    drop(listener);
    let rejected = event::<F>(&here, EventKind::Rejected);
    assert_eq!((rejected.key, rejected.status), (one.key(), 28));
}

fn id_09_dropping_a_request_rejects_it<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    drop(listener.get_request(Some(SOON)).expect("a request"));
    assert_eq!(event::<F>(&here, EventKind::Rejected).status, 28);
}

fn id_11_an_empty_channel_answers_in_time<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    assert!(channel.next(no_time()).expect("no error").is_none());
    assert!(channel.next(A_WHILE).expect("no error").is_none());
}

fn cm_01_bind_refuses_an_address_of_another_device<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    let error = id.bind("192.0.2.1:7471".parse().expect("an address")).expect_err("not ours");
    assert!(matches!(error.code(), Code::AddrNotAvailable | Code::NoDevice), "{error}");
}

fn cm_01_bind_refuses_a_port_in_use<F: Fabric>(bed: &Bed<F>) {
    let (_listener, addr) = bed.listener(None);
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    let error = id.bind(addr).and_then(|()| id.listen(0)).expect_err("the port is taken");
    assert!(matches!(error.code(), Code::AddrInUse | Code::AddrNotAvailable), "{error}");
}

fn cm_01_bind_refuses_an_id_that_is_bound<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    assert_eq!(id.bind(bed.at(0)).expect_err("bound").code(), Code::Invalid);
}

fn cm_02_resolving_an_address_binds_the_id_to_its_device<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let mut id = Id::create(&bed.fabric, Some(&here), PortSpace::Tcp).expect("an id");
    id.create_qp(&bed.small()).expect_err("it is on no device");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    let resolved = event::<F>(&here, EventKind::AddrResolved);
    assert_eq!((resolved.key, resolved.status), (id.key(), 0));
    assert_eq!(id.local_addr().map(|addr| addr.ip()), Some(bed.at(0).ip()));
    assert_eq!(id.peer_addr(), Some(bed.at(7)));
    id.create_qp(&bed.small()).expect("it is on the device");
}

fn cm_02_a_missing_address_is_not_resolved<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return crate::harness::skip("how long a network looks for an address is its own affair");
    }
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    let to = "192.0.2.1:7471".parse().expect("an address");
    let error = id.resolve_addr(None, to, SOON).expect_err("not ours");
    assert_eq!(error.code(), Code::AddrNotAvailable);
}

fn cm_03_resolve_route_checks_state_and_time<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    assert_eq!(id.resolve_route(SOON).expect_err("unbound").code(), Code::Invalid);
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    assert_eq!(id.resolve_route(no_time()).expect_err("no time").code(), Code::Invalid);
    id.resolve_route(SOON).expect("resolve the route");
    assert_eq!(id.resolve_route(SOON).expect_err("resolved").code(), Code::Invalid);
}

fn cm_04_listen_binds_an_id_that_is_not_bound<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.listen(0).expect("listen");
    let addr = id.local_addr().expect("bound");
    assert!(addr.ip().is_unspecified() && addr.port() != 0, "{addr}");
    thread::scope(|scope| {
        let mut one = bed.active(bed.at(addr.port()), &bed.small());
        let connecting = scope.spawn(move || one.connect(&ConnParam::default()));
        let mut two = id.get_request(Some(SOON)).expect("a request");
        two.create_qp(&bed.small()).expect("a queue pair");
        two.accept(&ConnParam::default()).expect("accept");
        connecting.join().expect("the connecting side").expect("connect");
    });
}

fn cm_04_a_full_backlog_refuses_nobody<F: Fabric>(bed: &Bed<F>) {
    let clients = if bed.is_strict() { 8 } else { 3 };
    let info = AddrInfo::of(bed.at(0), &Hints::passive());
    let saved = bed.small();
    let mut listener =
        doorbell_cm::Endpoint::create(&bed.fabric, &info, Some(&saved)).expect("a listener");
    listener.listen(1).expect("listen");
    let addr = listener.local_addr().expect("bound");
    thread::scope(|scope| {
        for _ in 0..clients {
            let mut one = bed.active(addr, &bed.small());
            scope.spawn(move || one.connect(&ConnParam::default()).expect("connect"));
        }
        thread::sleep(A_WHILE);
        for _ in 0..clients {
            let mut two = listener.get_request(Some(SOON)).expect("a request");
            two.accept(&ConnParam::default()).expect("accept");
        }
    });
}

fn cm_05_depths_beyond_the_device_are_refused<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(None);
    let max = Provider::caps(&bed.fabric).rd_atomic_max;
    for (resources, depth) in [(max + 1, 1), (1, max + 1)] {
        let mut one = bed.active(addr, &bed.small());
        let param = ConnParam {
            responder_resources: resources,
            initiator_depth: depth,
            ..ConnParam::default()
        };
        assert_eq!(one.connect(&param).expect_err("too deep").code(), Code::Invalid);
        let here = bed.fabric.open_channel().expect("a channel");
        let mut other = ready(bed, &here, addr);
        other.connect(&ConnParam::default()).expect("connect");
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.create_qp(&bed.small()).expect("a queue pair");
        assert_eq!(two.accept(&param).expect_err("too deep").code(), Code::Invalid);
    }
}

fn cm_05_connecting_needs_a_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (_listener, addr) = bed.listener(None);
    let info = AddrInfo::of(addr, &Hints::active());
    let mut one =
        doorbell_cm::Endpoint::create(&bed.fabric, &info, None).expect("an active endpoint");
    assert!(one.qp().is_none(), "none was asked for (EP-3)");
    assert_eq!(one.connect(&ConnParam::default()).expect_err("none").code(), Code::Invalid);
}

fn cm_06_without_parameters_a_sender_waits_for_ever<F: Fabric>(bed: &Bed<F>) {
    let param = ConnParam::default();
    assert_eq!((param.retry_count, param.rnr_retry), (7, 7));
    assert_eq!((param.responder_resources, param.initiator_depth), (255, 255));
    let (mut one, mut two) = bed.pair(&bed.small());
    crate::bed::send_inline(&mut one, &[1]);
    // Far longer than seven retries of 0.64 ms take.
    assert!(two.queues().next_recv(A_WHILE).is_err());
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    assert_eq!(crate::bed::received(&mut two).bytes(), [1]);
}

fn cm_06_without_parameters_depths_are_the_most_that_the_device_has<F: Fabric>(bed: &Bed<F>) {
    let (one, two) = bed.pair(&bed.small());
    let most = Some(Provider::caps(&bed.fabric).rd_atomic_max);
    for id in [&one, &two] {
        let fields = id.query_qp().expect("a query");
        assert_eq!((fields.max_rd_atomic, fields.max_dest_rd_atomic), (most, most));
    }
}

fn cm_07_connect_in_another_state_is_refused<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    assert_eq!(one.connect(&ConnParam::default()).expect_err("is up").code(), Code::Invalid);
    assert_eq!(two.accept(&ConnParam::default()).expect_err("is up").code(), Code::Invalid);
    assert_eq!(two.reject(&[]).expect_err("is up").code(), Code::Invalid);
}

fn cm_08_private_data_arrives_padded<F: Fabric>(bed: &Bed<F>) {
    let connect = ConnParam { private_data: b"who goes there", ..ConnParam::default() };
    let accept = ConnParam { private_data: &[7; 196], ..ConnParam::default() };
    let init = bed.small();
    let (one, two) = bed.pair_with(&init, &init, &connect, &accept);
    assert_padded(two.private_data(), b"who goes there", 56);
    assert_padded(one.private_data(), &[7; 196], 196);
}

fn cm_08_too_much_private_data_is_refused<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut one = bed.active(addr, &bed.small());
    let long = ConnParam { private_data: &[1; 57], ..ConnParam::default() };
    assert_eq!(one.connect(&long).expect_err("56 fit").code(), Code::Invalid);
    thread::scope(|scope| {
        let connecting = scope.spawn(move || one.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        let long = ConnParam { private_data: &[1; 197], ..ConnParam::default() };
        assert_eq!(two.accept(&long).expect_err("196 fit").code(), Code::Invalid);
        assert_eq!(two.reject(&[1; 149]).expect_err("148 fit").code(), Code::Invalid);
        two.reject(&[1; 148]).expect("reject");
        assert!(connecting.join().expect("the connecting side").is_err());
    });
}

fn cm_10_both_ends_disconnect_and_only_once<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    thread::scope(|scope| {
        let other = scope.spawn(|| two.disconnect().expect("so does the other"));
        one.disconnect().expect("disconnect");
        other.join().expect("the other side");
    });
    assert_eq!(one.disconnect().expect_err("has ended").code(), Code::Invalid);
    let mut fresh = bed.active(bed.at(7), &bed.small());
    assert_eq!(fresh.disconnect().expect_err("never was").code(), Code::Invalid);
}

fn cm_15_an_address_of_nothing_is_refused<F: Fabric>(_bed: &Bed<F>) {
    let error = AddrInfo::resolve("", "", &Hints::active()).expect_err("nothing given");
    assert_eq!(error.code(), Code::Invalid);
    let error = AddrInfo::resolve("127.0.0.1", "http!", &Hints::active()).expect_err("no port");
    assert_eq!(error.code(), Code::Invalid);
}

fn id_10_rejecting_shows_status_28_and_its_data<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let mut two = listener.get_request(Some(SOON)).expect("a request");
    two.reject(b"not today").expect("reject");
    let rejected = event::<F>(&here, EventKind::Rejected);
    assert_eq!((rejected.key, rejected.status), (one.key(), 28));
    assert_padded(&rejected.private_data, b"not today", 148);

    let mut one = bed.active(addr, &QpInit::rc());
    thread::scope(|scope| {
        let connecting = scope.spawn(|| one.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.reject(b"nor tomorrow").expect("reject");
        let error = connecting.join().expect("the connecting side").expect_err("rejected");
        assert_eq!(error.code(), Code::Refused);
    });
    assert_padded(one.private_data(), b"nor tomorrow", 148);
}

fn id_10_nobody_listening_is_refused_with_status_8<F: Fabric>(bed: &Bed<F>) {
    let (listener, addr) = bed.listener(None);
    drop(listener);
    let here = bed.fabric.open_channel().expect("a channel");
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    assert_eq!(event::<F>(&here, EventKind::Rejected).status, 8);
    let mut one = bed.active(addr, &bed.small());
    let error = one.connect(&ConnParam::default()).expect_err("nobody is there");
    assert_eq!(error.code(), Code::Refused);
    assert!(error.to_string().contains("nobody listens"), "{error}");
}
