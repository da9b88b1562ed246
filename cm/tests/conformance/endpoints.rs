//! Endpoints: EP.

use std::net::SocketAddr;
use std::thread;

use doorbell_cm::{AddrInfo, ConnParam, Endpoint, Fabric, Hints, Id, PortSpace, QpInit};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{Bed, SOON, assert_padded, received, send};
use crate::harness::{on_toy, skip};

cases! {
    ep_02_an_active_endpoint_is_resolved_and_ep_04_may_connect
    ep_03_an_active_endpoint_has_its_queue_pair_at_once
    ep_05_data_of_the_address_goes_in_front_of_private_data
    ep_06_a_passive_endpoint_saves_attributes_and_has_no_queue_pair
    ep_07_listen_follows_create_directly
    ep_08_each_request_has_a_queue_pair_from_the_saved_attributes
    ep_08_without_attributes_a_request_has_no_queue_pair
    ep_09_the_listeners_own_srq_is_not_inherited
    ep_10_a_request_whose_queue_pair_fails_is_rejected
    ep_11_get_request_is_for_synchronous_listeners
    ep_13_a_failed_create_leaves_nothing_behind
    ep_13_failed_creates_leave_no_files_and_objects_behind
    ep_15_get_request_gives_up_in_time
}

/// Connects to `addr` on another thread while `accept` runs.
fn while_connecting<F: Fabric>(
    bed: &Bed<F>,
    addr: SocketAddr,
    accept: impl FnOnce(),
) -> Result<Id<F>, doorbell_cm::CmError> {
    let mut one = bed.active(addr, &bed.small()).into_id();
    thread::scope(|scope| {
        let connecting = scope.spawn(move || one.connect(&ConnParam::default()).map(|()| one));
        accept();
        connecting.join().expect("the connecting side")
    })
}

fn ep_02_an_active_endpoint_is_resolved_and_ep_04_may_connect<F: Fabric>(bed: &Bed<F>) {
    let (one, two) = bed.pair(&bed.small());
    assert_eq!(one.peer_addr().map(|addr| addr.ip()), Some(bed.at(0).ip()));
    assert_eq!(one.peer_addr(), two.local_addr());
    assert_eq!(two.peer_addr(), one.local_addr());
}

fn ep_03_an_active_endpoint_has_its_queue_pair_at_once<F: Fabric>(bed: &Bed<F>) {
    let one = bed.active(bed.at(7), &bed.small());
    assert!(one.qp().is_some());
    let info = AddrInfo::of(bed.at(7), &Hints::active());
    let none = Endpoint::create(&bed.fabric, &info, None).expect("an endpoint");
    assert!(none.qp().is_none(), "none was asked for");
}

fn ep_05_data_of_the_address_goes_in_front_of_private_data<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let info = AddrInfo::of(addr, &Hints::active()).with_connect_data(b"from the address, ");
    let active = || Endpoint::create(&bed.fabric, &info, Some(&bed.small())).expect("active");
    let mut one = active();
    thread::scope(|scope| {
        let param = ConnParam { private_data: b"from the user", ..ConnParam::default() };
        let connecting = scope.spawn(move || one.connect(&param).map(|()| one));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        assert_padded(two.private_data(), b"from the address, from the user", 56);
        two.accept(&ConnParam::default()).expect("accept");
        connecting.join().expect("the connecting side").expect("connect");
    });
    // The limit is for both together (CM-8).
    let param = ConnParam { private_data: &[1; 39], ..ConnParam::default() };
    assert_eq!(active().connect(&param).expect_err("38 fit").code(), Code::Invalid);
}

fn ep_06_a_passive_endpoint_saves_attributes_and_has_no_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (listener, _) = bed.listener(Some(&bed.small()));
    assert!(listener.qp().is_none());
}

fn ep_07_listen_follows_create_directly<F: Fabric>(bed: &Bed<F>) {
    let info = AddrInfo::of(bed.at(0), &Hints::passive());
    let mut listener = Endpoint::create(&bed.fabric, &info, None).expect("a listener");
    listener.listen(0).expect("listen");
    assert_eq!(listener.listen(0).map_err(|error| error.code()), Err(Code::Invalid));
}

fn ep_08_each_request_has_a_queue_pair_from_the_saved_attributes<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small().send_wr(9).inline(33)));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let connected = while_connecting(bed, addr, || {
            let mut two = listener.get_request(Some(SOON)).expect("a request");
            let (number, caps) = two.qp().expect("it has its queue pair already");
            assert!(caps.send_wr >= 9 && caps.inline >= 33, "{caps:?}");
            numbers.push(number);
            two.accept(&ConnParam::default()).expect("accept");
        });
        connected.expect("connect");
    }
    assert_ne!(numbers[0], numbers[1]);
}

fn ep_08_without_attributes_a_request_has_no_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(None);
    let connected = while_connecting(bed, addr, || {
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        assert!(two.qp().is_none());
        assert_eq!(two.accept(&ConnParam::default()).expect_err("CM-5").code(), Code::Invalid);
        two.create_qp(&bed.small()).expect("a queue pair");
        two.accept(&ConnParam::default()).expect("accept");
    });
    connected.expect("connect");
}

fn ep_09_the_listeners_own_srq_is_not_inherited<F: Fabric>(bed: &Bed<F>) {
    let info = AddrInfo::of(bed.at(0), &Hints::passive());
    let saved = bed.small();
    let mut listener = Endpoint::create(&bed.fabric, &info, Some(&saved)).expect("a listener");
    let made = listener.create_srq(4).map(|_| ());
    if let Err(error) = made {
        // A listener on all addresses has no device; this one is bound to its own.
        panic!("a bound listener takes a shared receive queue: {error}");
    }
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    let mut two = None;
    let connected = while_connecting(bed, addr, || {
        let mut id = listener.get_request(Some(SOON)).expect("a request");
        assert!(id.srq().is_none());
        id.queues().post_recv(bed.filled(8, 0)).expect("its own queue takes it");
        id.accept(&ConnParam::default()).expect("accept");
        two = Some(id);
    });
    let mut one = connected.expect("connect");
    send(&mut one, bed.filled(8, 5));
    assert_eq!(received(&mut two.expect("accepted")).bytes(), [5; 8]);
    assert_eq!(listener.srq().expect("the listener's own").users(), 0);
}

fn ep_10_a_request_whose_queue_pair_fails_is_rejected<F: Fabric>(bed: &Bed<F>) {
    let impossible = bed.small().send_wr(Provider::caps(&bed.fabric).qp_wr_max + 1);
    let (mut listener, addr) = bed.listener(Some(&impossible));
    let connected = while_connecting(bed, addr, || {
        listener.get_request(Some(SOON)).map(|_| ()).expect_err("no such queue pair");
    });
    let Err(error) = connected else { panic!("it must be rejected") };
    assert_eq!(error.code(), Code::Refused, "{error}");
}

fn ep_11_get_request_is_for_synchronous_listeners<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut id = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    id.listen(0).expect("listen");
    let Err(error) = id.get_request(Some(SOON)) else { panic!("it has a channel") };
    assert_eq!(error.code(), Code::Invalid);
}

fn ep_13_a_failed_create_leaves_nothing_behind<F: Fabric>(bed: &Bed<F>) {
    let (listener, addr) = bed.listener(None);
    let passive = AddrInfo::of(addr, &Hints::passive());
    let again = Endpoint::<F>::create(&bed.fabric, &passive, None)
        .and_then(|mut endpoint| endpoint.listen(0));
    assert!(again.is_err(), "the port is taken");
    let active = AddrInfo::of(addr, &Hints::active());
    let none = QpInit::rc().send_wr(0);
    let Err(error) = Endpoint::create(&bed.fabric, &active, Some(&none)) else {
        panic!("a queue pair without a send queue")
    };
    assert_eq!(error.code(), Code::Invalid);
    drop(listener);
    let mut again = Endpoint::<F>::create(&bed.fabric, &passive, None).expect("the port is free");
    again.listen(0).expect("listen");
}

/// Runs in a process of its own, whose files and objects are counted.
fn ep_13_failed_creates_leave_no_files_and_objects_behind<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("the threads of the toy wire give their files back a little later");
    }
    crate::processes::peer("fail-endpoint", bed.at(0)).ends_well();
}

fn ep_15_get_request_gives_up_in_time<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, _) = bed.listener(None);
    let Err(error) = listener.get_request(Some(crate::bed::A_WHILE)) else { panic!("nobody asks") };
    assert_eq!(error.code(), Code::TimedOut);
}
