//! Options of ids: CM-16.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::thread;

use doorbell_cm::{
    CmError, ConnParam, EventKind, Fabric, Id, IdOption, Mtu, PathRecord, PortSpace,
};
use doorbell_seam::error::Code;

use crate::bed::{A_WHILE, Bed, SOON, event};

cases! {
    cm_16_reuseaddr_lets_several_ids_bind
    cm_16_without_reuseaddr_a_port_is_one_ids
    cm_16_afonly_keeps_ipv4_out
    cm_16_options_come_too_late_for_a_listener
    cm_16_an_ack_timeout_has_five_bits
    cm_16_a_type_of_service_may_be_set_at_any_time
    cm_16_a_path_takes_the_place_of_a_resolved_route
}

fn new<F: Fabric>(bed: &Bed<F>) -> Id<F> {
    Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id")
}

fn reusing<F: Fabric>(bed: &Bed<F>) -> Id<F> {
    let mut id = new(bed);
    id.set_option(IdOption::ReuseAddr(true)).expect("set it");
    id
}

/// Connects to `addr`, where somebody may be listening.
fn connect<F: Fabric>(bed: &Bed<F>, addr: SocketAddr) -> Result<(), CmError> {
    bed.active(addr, &bed.small()).connect(&ConnParam::default())
}

/// A free port: one that was taken and given back.
fn free<F: Fabric>(bed: &Bed<F>) -> SocketAddr {
    let (listener, addr) = bed.listener(None);
    drop(listener);
    addr
}

fn cm_16_reuseaddr_lets_several_ids_bind<F: Fabric>(bed: &Bed<F>) {
    let addr = free(bed);
    let [mut one, mut two] = [reusing(bed), reusing(bed)];
    one.bind(addr).expect("bind");
    two.bind(addr).expect("as well");
    assert_eq!((one.local_addr(), two.local_addr()), (Some(addr), Some(addr)));
    drop(one);
    two.listen(0).expect("alone, it may listen");
    thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(bed, addr));
        two.get_request(Some(SOON)).expect("a request").reject(&[]).expect("reject");
        assert!(connecting.join().expect("the connecting side").is_err());
    });
}

fn cm_16_without_reuseaddr_a_port_is_one_ids<F: Fabric>(bed: &Bed<F>) {
    let addr = free(bed);
    let mut one = new(bed);
    one.bind(addr).expect("bind");
    let mut two = reusing(bed);
    let error = two.bind(addr).expect_err("its owner shares it with nobody");
    assert!(matches!(error.code(), Code::AddrInUse | Code::AddrNotAvailable), "{error}");
}

fn cm_16_afonly_keeps_ipv4_out<F: Fabric>(bed: &Bed<F>) {
    for only in [false, true] {
        let mut listener = new(bed);
        listener.set_option(IdOption::AfOnly(only)).expect("set it");
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        // On soft this does not depend on the kernel's IPv6: an address is part of a name.
        if let Err(error) = listener.bind(SocketAddr::new(any, 0)) {
            return crate::harness::skip(&format!("no IPv6 here: {error}"));
        }
        listener.listen(0).expect("listen");
        let addr = bed.at(listener.local_addr().expect("bound").port());
        thread::scope(|scope| {
            let connecting = scope.spawn(|| connect(bed, addr));
            if !only {
                listener.get_request(Some(SOON)).expect("a request").reject(b"").expect("reject");
            }
            let error = connecting.join().expect("the connecting side").expect_err("refused");
            assert_eq!(error.code(), Code::Refused, "{error}");
            assert!(listener.get_request(Some(A_WHILE)).is_err(), "nobody else asks");
        });
    }
}

fn cm_16_options_come_too_late_for_a_listener<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, _) = bed.listener(None);
    for option in [IdOption::ReuseAddr(true), IdOption::AfOnly(true)] {
        let error = listener.set_option(option).expect_err("it listens");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

fn cm_16_an_ack_timeout_has_five_bits<F: Fabric>(bed: &Bed<F>) {
    let mut id = new(bed);
    id.set_option(IdOption::AckTimeout(31)).expect("the most");
    let error = id.set_option(IdOption::AckTimeout(32)).expect_err("too much");
    assert_eq!(error.code(), Code::Invalid, "{error}");
}

fn cm_16_a_type_of_service_may_be_set_at_any_time<F: Fabric>(bed: &Bed<F>) {
    let mut id = new(bed);
    id.set_option(IdOption::Tos(0x20)).expect("before");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    id.set_option(IdOption::Tos(0)).expect("after");
}

fn cm_16_a_path_takes_the_place_of_a_resolved_route<F: Fabric>(bed: &Bed<F>) {
    let gid = bed.fabric.source(bed.at(0).ip()).expect("where it sends from").gid;
    let path = IdOption::IbPath(PathRecord {
        to: gid,
        from: gid,
        to_lid: 0,
        from_lid: 0,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        pkey: 0xffff,
        service_level: 0,
        mtu: Mtu::Bytes1024,
        rate: 3,
        packet_lifetime: 18,
    });
    let mut id = new(bed);
    assert_eq!(id.set_option(path).expect_err("no address yet").code(), Code::Invalid);
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut id = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    event::<F>(&channel, EventKind::AddrResolved);
    id.set_option(path).expect("now");
    assert_eq!(event::<F>(&channel, EventKind::RouteResolved).key, id.key());
    assert_eq!(id.set_option(path).expect_err("it has one").code(), Code::Invalid);
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut id = new(bed);
    id.resolve_addr(None, addr, SOON).expect("resolve the address");
    id.set_option(path).expect("it is taken at once");
    id.create_qp(&bed.small()).expect("a queue pair");
    if !bed.is_strict() {
        // RoCE has no such paths: what follows is up to the kernel.
        return;
    }
    thread::scope(|scope| {
        let connecting = scope.spawn(move || id.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.accept(&ConnParam::default()).expect("accept");
        connecting.join().expect("the connecting side").expect("connect");
    });
}
