//! What can go wrong when connections are set up, and what the errors say.

use std::net::{IpAddr, SocketAddr};
use std::thread;

use doorbell_cm::{AddrInfo, CmError, CmId, ConnParam, Fabric, Hints, IdOption};
use doorbell_cm::{PortSpace, QpAttr};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Provider, QpCaps, Sharing};
use doorbell_verbs::Verbs;

use crate::rig::{CAPS, Kit, LIMIT, accept, connect, device, listener};

fn passive(device: &Verbs, addr: SocketAddr) -> Result<(), CmError> {
    let mut id = device.create_endpoint(&AddrInfo::of(addr, &Hints::passive()))?;
    id.listen(0)
}

fn says(error: &CmError, code: Code, parts: &[&str]) {
    let text = error.to_string();
    eprintln!("{text}");
    assert_eq!(error.code(), code, "{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
}

#[test]
fn an_unknown_device_names_those_there_are() {
    let Some((device, _)) = device() else { return };
    let error = Verbs::open("mlx9_9").expect_err("no such device");
    assert_eq!(error.code(), Code::NoDevice);
    assert!(error.to_string().contains(device.name()), "{error}");
}

#[test]
fn nobody_listening_and_a_rejection_read_differently() {
    let Some((device, ip)) = device() else { return };
    let (mut listener, addr) = listener(&device, ip);
    let dial = |to: SocketAddr| {
        let kit = Kit::new(&device, false);
        let mut id = device.create_endpoint(&AddrInfo::of(to, &Hints::active())).expect("found");
        let _qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
        let error = id.connect(&ConnParam::default()).expect_err("it cannot");
        (error, id.private_data().to_vec())
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut id = listener.get_request(Some(LIMIT)).expect("a request");
            id.reject(b"no room").expect("rejected");
        });
        let (error, data) = dial(addr);
        says(&error, Code::Refused, &["rejected", "28", &addr.to_string()]);
        assert!(data.starts_with(b"no room\0"));
    });
    drop(listener);
    let (error, _) = dial(addr);
    says(&error, Code::Refused, &["nobody listens at", &addr.to_string()]);
}

#[test]
fn addresses_that_are_not_the_devices() {
    let Some((device, ip)) = device() else { return };
    let own = ip.to_string();
    let loopback = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 7471);
    let error = passive(&device, loopback).expect_err("loopback");
    says(&error, Code::AddrNotAvailable, &["127.0.0.1", "use that", &own]);
    let active = device.create_endpoint(&AddrInfo::of(loopback, &Hints::active()));
    says(&active.err().expect("loopback"), Code::AddrNotAvailable, &[&own]);
    // A documentation network (RFC 5737), which no interface has.
    let foreign = SocketAddr::new(IpAddr::from([203, 0, 113, 7]), 7471);
    let error = passive(&device, foreign).expect_err("not ours");
    assert!(matches!(error.code(), Code::AddrNotAvailable | Code::NoDevice), "{error}");
    says(&error, error.code(), &["203.0.113.7", "use that", &own]);
    let active = device.create_endpoint(&AddrInfo::of(foreign, &Hints::active()));
    let error = active.err().expect("no way there");
    says(&error, error.code(), &["203.0.113.7"]);
    let mut id = device.create_id(None, PortSpace::Tcp).expect("an id");
    let error = id.resolve_addr(None, foreign, LIMIT).expect_err("no way there");
    says(&error, error.code(), &["203.0.113.7"]);
}

#[test]
fn a_refused_call_on_an_active_endpoint_is_an_error() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let active = AddrInfo::of(addr, &Hints::active());
    let resolved = || device.create_endpoint(&active).expect("found");
    assert!(resolved().listen(0).is_err(), "it is to connect");
    assert!(resolved().bind(SocketAddr::new(ip, 0)).is_err(), "it is bound");
    assert!(resolved().set_option(IdOption::AfOnly(true)).is_err(), "it is too late");
}

#[test]
fn the_error_names_a_port_in_use() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let error = passive(&device, addr).expect_err("taken");
    says(&error, Code::AddrInUse, &[&addr.to_string(), "another port"]);
}

#[test]
fn queue_pairs_need_a_bound_id_without_one() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let kit = Kit::new(&device, false);
    let mut bare = device.create_id(None, PortSpace::Tcp).expect("an id");
    says(
        &bare.create_qp(&kit.device, &kit.attr()).err().expect("unbound"),
        Code::Invalid,
        &["no device"],
    );
    says(&bare.resolve_route(LIMIT).expect_err("no address"), Code::Invalid, &["resolve_addr"]);
    says(&bare.disconnect().expect_err("not connected"), Code::Invalid, &["not connected"]);

    bare.resolve_addr(None, addr, LIMIT).expect("resolved");
    bare.resolve_route(LIMIT).expect("resolved");
    let error = bare.connect(&ConnParam::default()).expect_err("without a queue pair");
    says(&error, Code::Invalid, &["create_qp first"]);
    let qp = bare.create_qp(&kit.device, &kit.attr()).expect("the first");
    says(
        &bare.create_qp(&kit.device, &kit.attr()).err().expect("the second"),
        Code::Invalid,
        &["already"],
    );
    drop(qp);
    assert!(bare.create_qp(&kit.device, &kit.attr()).is_ok(), "after the first is gone");
}

#[test]
fn capacities_have_limits_by_name() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let kit = Kit::new(&device, false);
    let mut id = device.create_endpoint(&AddrInfo::of(addr, &Hints::active())).expect("found");
    let caps = device.caps();
    for (name, wrong) in [
        ("send_wr", QpCaps { send_wr: caps.qp_wr_max + 1, ..CAPS }),
        ("send_wr", QpCaps { send_wr: 0, ..CAPS }),
        ("recv_wr", QpCaps { recv_wr: caps.qp_wr_max + 1, ..CAPS }),
        ("send_sge", QpCaps { send_sge: caps.send_sge_max + 1, ..CAPS }),
        ("inline", QpCaps { inline: caps.inline_max + 1, ..CAPS }),
    ] {
        let attr = QpAttr { caps: wrong, ..kit.attr() };
        says(&id.create_qp(&kit.device, &attr).err().expect("too much"), Code::Invalid, &[name]);
    }
    assert!(device.create_cq(caps.cqe_max + 1, Sharing::Shared).is_err());
    let qp = id.create_qp(&kit.device, &kit.attr()).expect("these fit");
    use doorbell_seam::provider::Qp;
    let got = qp.caps();
    assert!(got.send_wr >= CAPS.send_wr && got.recv_wr >= CAPS.recv_wr, "{got:?}");
    assert!(got.send_sge >= CAPS.send_sge && got.inline >= CAPS.inline, "{got:?}");
}

#[test]
fn parameters_are_checked_before_the_peer_sees_them() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let kit = Kit::new(&device, false);
    let mut id = device.create_endpoint(&AddrInfo::of(addr, &Hints::active())).expect("found");
    let _qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
    let long = ConnParam { private_data: &[1; 57], ..ConnParam::default() };
    says(&id.connect(&long).expect_err("too long"), Code::Invalid, &["57 bytes", "56 fit"]);
    let deep = ConnParam { initiator_depth: 254, ..ConnParam::default() };
    says(&id.connect(&deep).expect_err("too deep"), Code::Invalid, &["initiator_depth 254"]);
    let long = ConnParam { private_data: &[1; 197], ..ConnParam::default() };
    says(&id.accept(&long).expect_err("too long"), Code::Invalid, &["197 bytes", "196 fit"]);
    says(&id.reject(&[1; 149]).expect_err("too long"), Code::Invalid, &["149 bytes", "148"]);
}

#[test]
fn requests_come_by_one_way_only() {
    let Some((device, ip)) = device() else { return };
    let channel = device.open_channel().expect("a channel");
    let mut id = device.create_id(Some(&channel), PortSpace::Tcp).expect("an id");
    id.bind(SocketAddr::new(ip, 0)).expect("bound");
    id.listen(0).expect("listening");
    let error = id.get_request(Some(LIMIT)).err().expect("it has a channel");
    says(&error, Code::Invalid, &["from the channel"]);
}

/// Another device of this machine, and its address.
fn another(than: &Verbs) -> Option<(Verbs, IpAddr)> {
    let names = Verbs::devices().into_iter().filter(|name| name != than.name());
    let mut opened = names.filter_map(|name| Verbs::open(&name).ok());
    let found = opened.find_map(|device| {
        let ip = device.addresses().into_iter().find(IpAddr::is_ipv4)?;
        Some((device, ip))
    });
    if found.is_none() {
        println!("skipped: this machine has one RDMA device, two are needed");
    }
    found
}

#[test]
fn an_address_of_another_device_names_both() {
    let Some((device, ip)) = device() else { return };
    let Some((other, other_ip)) = another(&device) else { return };
    let error = passive(&device, SocketAddr::new(other_ip, 0)).expect_err("not ours");
    says(&error, Code::NoDevice, &[device.name(), other.name(), &ip.to_string()]);
    let mut id = device.create_id(None, PortSpace::Tcp).expect("an id");
    let error = id.bind(SocketAddr::new(other_ip, 0)).expect_err("not ours");
    says(&error, Code::NoDevice, &[device.name(), other.name()]);
    let kit = Kit::new(&other, false);
    assert_eq!(
        id.create_qp(&kit.device, &kit.attr()).err().expect("not ours").code(),
        Code::NoDevice
    );
    let (_listener, addr) = listener(&device, ip);
    let own = device.create_endpoint(&AddrInfo::of(addr, &Hints::active()));
    let mut own = own.expect("found");
    let error = own.create_qp(&kit.device, &kit.attr()).err().expect("a foreign domain");
    says(&error, Code::Invalid, &["domain is of another device"]);
    let error = own.create_qp(&device, &kit.attr()).err().expect("foreign queues");
    says(&error, Code::Invalid, &["not of", device.name()]);
}

#[test]
fn a_request_over_another_device_is_rejected() {
    let Some((device, ip)) = device() else { return };
    let Some((other, other_ip)) = another(&device) else { return };
    let everywhere = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
    let info = AddrInfo::of(everywhere, &Hints::passive());
    let mut listener = device.create_endpoint(&info).expect("an endpoint");
    listener.listen(0).expect("listening");
    let port = listener.local_addr().expect("an address").port();
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let kit = Kit::new(&device, true);
            accept(&mut listener, kit, &ConnParam::default()).id.peer_addr()
        });
        let kit = Kit::new(&other, false);
        let to = AddrInfo::of(SocketAddr::new(other_ip, port), &Hints::active());
        let mut id = other.create_endpoint(&to).expect("found");
        let _qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
        let error = id.connect(&ConnParam::default()).expect_err("it cannot");
        says(&error, Code::Refused, &["rejected"]);
        let to = SocketAddr::new(ip, port);
        let _side = connect(Kit::new(&device, false), to, &ConnParam::default());
        let peer = served.join().expect("the server").expect("an address");
        assert_eq!(peer.ip(), ip);
    });
}
