//! Connections from start to end, on synchronous ids and on channels, in every order.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{
    Channel, CmId, ConnParam, Event, EventKind, Fabric, IdKey, PortSpace, Rejection,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Qp;
use doorbell_seam::wc::Status;
use doorbell_verbs::{Verbs, VerbsQp};
use doorbell_verbs::{VerbsChannel, VerbsId};

use crate::rig::{Kit, LIMIT, Side, accept, connect, device, listener, pair, part, send};

#[test]
fn private_data_goes_both_ways_with_padding() {
    let Some((device, ip)) = device() else { return };
    let (mut listener, addr) = listener(&device, ip);
    let hello = ConnParam { private_data: b"hello", ..ConnParam::default() };
    let welcome = ConnParam { private_data: b"welcome", ..ConnParam::default() };
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut side = accept(&mut listener, Kit::new(&device, true), &welcome);
            assert!(side.id.private_data().starts_with(b"hello\0"));
            assert_eq!(side.id.private_data().len(), 56);
            side.id.disconnect().expect("disconnected");
        });
        let mut side = connect(Kit::new(&device, false), addr, &hello);
        assert!(side.id.private_data().starts_with(b"welcome\0"));
        assert_eq!(side.id.private_data().len(), 196);
        assert_eq!(side.id.peer_addr(), Some(addr));
        side.id.disconnect().expect("disconnected");
        server.join().expect("the server");
    });
}

#[test]
fn everything_may_be_dropped_in_either_order() {
    let Some((device, ip)) = device() else { return };
    for disconnect in [true, false] {
        for id_first in [true, false] {
            let (mut passive, mut active) = pair(&device, ip);
            if disconnect {
                part(&mut passive, &mut active);
            }
            for Side { qp, id, kit } in [passive, active] {
                if id_first {
                    drop(kit);
                    drop(id);
                    thread::spawn(move || drop(qp)).join().expect("dropped elsewhere");
                } else {
                    drop(qp);
                    drop(id);
                    drop(kit);
                }
            }
        }
    }
}

#[test]
fn a_dropped_id_ends_the_connection_of_its_queue_pair() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, active) = pair(&device, ip);
    let Side { mut qp, id, mut kit } = active;
    assert!(!passive.id.peer_left());
    drop(id);
    let flushed = kit.several(16);
    assert!(flushed.iter().all(|wc| wc.status == Status::Flushed));
    let wr = send(1, kit.sge(64, 8));
    // SAFETY: nothing else uses the block.
    unsafe { qp.post(&[wr]) }.expect("in ERR it is taken");
    assert_eq!(kit.one().status, Status::Flushed);
    let end = Instant::now() + LIMIT;
    while !passive.id.peer_left() {
        assert!(Instant::now() < end, "the peer was not told");
        thread::yield_now();
    }
    passive.id.disconnect().expect("after the peer");
    assert_eq!(passive.id.disconnect().expect_err("a second time").code(), Code::Invalid);
}

#[test]
fn the_retry_timer_is_set_while_connected() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    passive.id.set_rnr_timer(12).expect("connected");
    assert_eq!(passive.id.set_rnr_timer(32).expect_err("no such code").code(), Code::Invalid);
    part(&mut passive, &mut active);
    drop(active.qp);
    assert_eq!(active.id.set_rnr_timer(12).expect_err("it is gone").code(), Code::Invalid);
}

#[test]
fn a_listener_waits_no_longer_than_told() {
    let Some((device, ip)) = device() else { return };
    let (mut listener, _) = listener(&device, ip);
    for limit in [Duration::ZERO, Duration::from_millis(20)] {
        let error = listener.get_request(Some(limit)).err().expect("nobody connects");
        assert_eq!(error.code(), Code::TimedOut);
    }
}

/// Both ends on channels, run by one thread.
struct Loop {
    device: Verbs,
    channel: VerbsChannel,
}

impl Loop {
    fn new(device: &Verbs) -> Loop {
        Loop { device: device.clone(), channel: device.open_channel().expect("a channel") }
    }

    fn id(&self) -> VerbsId {
        self.device.create_id(Some(&self.channel), PortSpace::Tcp).expect("an id")
    }

    /// Takes the next event, which must be this one.
    fn expect(&self, kind: EventKind, key: IdKey) -> Event<Verbs> {
        let event = self.channel.next(LIMIT).expect("an answer").expect("an event");
        assert_eq!((event.kind, event.key), (kind, key), "status {}", event.status);
        event
    }

    fn listen(&self, at: SocketAddr) -> (VerbsId, SocketAddr) {
        let mut listener = self.id();
        listener.bind(at).expect("bound");
        listener.listen(0).expect("listening");
        let addr = listener.local_addr().expect("an address");
        (listener, addr)
    }

    fn resolve(&self, to: SocketAddr) -> VerbsId {
        let mut id = self.id();
        id.resolve_addr(None, to, LIMIT).expect("begun");
        self.expect(EventKind::AddrResolved, id.key());
        id.resolve_route(LIMIT).expect("begun");
        self.expect(EventKind::RouteResolved, id.key());
        id
    }

    /// Makes a request, up to the listener's event.
    fn request(&self, to: SocketAddr, at: &VerbsId, kit: &Kit) -> (VerbsId, VerbsQp, VerbsId) {
        let mut active = self.resolve(to);
        let qp = active.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
        let param = ConnParam { private_data: b"ask", ..ConnParam::default() };
        active.connect(&param).expect("begun");
        let event = self.expect(EventKind::ConnectRequest, at.key());
        assert!(event.private_data.starts_with(b"ask\0"));
        let passive = event.request.expect("a new id");
        assert!(passive.key() != at.key() && passive.key() != active.key());
        assert!(passive.private_data().starts_with(b"ask\0"));
        (active, qp, passive)
    }
}

#[test]
fn one_thread_drives_both_ends_over_a_channel() {
    let Some((device, ip)) = device() else { return };
    let events = Loop::new(&device);
    let (server, client) = (Loop::new(&device), &events);
    let (listener, addr) = server.listen(SocketAddr::new(ip, 0));
    let (kit, mut peer_kit) = (Kit::new(&device, false), Kit::new(&device, true));

    let mut active = client.resolve(addr);
    let mut qp = active.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
    active.connect(&ConnParam::default()).expect("begun");
    let request = server.expect(EventKind::ConnectRequest, listener.key()).request;
    let mut passive = request.expect("a new id");
    let mut peer_qp = passive.create_qp(&peer_kit.device, &peer_kit.attr()).expect("a queue pair");
    peer_kit.receive(&mut peer_qp, 0..4);
    passive.accept(&ConnParam::default()).expect("accepted");
    client.expect(EventKind::Established, active.key());
    server.expect(EventKind::Established, passive.key());

    // SAFETY: nothing else uses the block.
    unsafe { qp.post(&[send(1, kit.sge(64, 8))]) }.expect("in RTS it is taken");
    assert_eq!(peer_kit.one().status, Status::Success);
    active.disconnect().expect("disconnected");
    server.expect(EventKind::Disconnected, passive.key());
    passive.disconnect().expect("disconnected");
    client.expect(EventKind::Disconnected, active.key());
    assert!(active.peer_left() && passive.peer_left());
    let none = client.channel.next(Duration::ZERO).expect("an answer");
    assert!(none.is_none_or(|event| event.kind == EventKind::TimewaitExit));
}

#[test]
fn a_rejection_carries_its_reason() {
    let Some((device, ip)) = device() else { return };
    let events = Loop::new(&device);
    let (listener, addr) = events.listen(SocketAddr::new(ip, 0));
    let kit = Kit::new(&device, false);
    let (active, _qp, mut passive) = events.request(addr, &listener, &kit);
    passive.reject(b"full").expect("rejected");
    let event = events.expect(EventKind::Rejected, active.key());
    assert_eq!(event.status, Rejection::Consumer as i32);
    assert!(event.private_data.starts_with(b"full\0"));
    assert!(active.private_data().starts_with(b"full\0"));
}

#[test]
fn a_request_dropped_unanswered_is_rejected() {
    let Some((device, ip)) = device() else { return };
    let events = Loop::new(&device);
    let (listener, addr) = events.listen(SocketAddr::new(ip, 0));
    let kit = Kit::new(&device, false);
    let (active, _qp, passive) = events.request(addr, &listener, &kit);
    drop(passive);
    events.expect(EventKind::Rejected, active.key());
}

#[test]
fn a_hundred_connections_come_and_go() {
    let Some((device, ip)) = device() else { return };
    let events = Loop::new(&device);
    let (listener, addr) = events.listen(SocketAddr::new(ip, 0));
    let kit = Kit::new(&device, true);
    let other = Loop::new(&device);
    for _ in 0..100 {
        let mut active = other.resolve(addr);
        let qp = active.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
        active.connect(&ConnParam::default()).expect("begun");
        let passive = loop {
            let event = events.channel.next(LIMIT).expect("an answer").expect("an event");
            if event.kind == EventKind::ConnectRequest {
                assert_eq!(event.key, listener.key());
                break event.request;
            }
        };
        let mut passive = passive.expect("a new id");
        let peer_qp = passive.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
        passive.accept(&ConnParam::default()).expect("accepted");
        other.expect(EventKind::Established, active.key());
        thread::spawn(move || drop((qp, peer_qp)));
        drop((active, passive));
        assert!(!matches!(other.channel.next(Duration::ZERO), Ok(Some(_))));
    }
}
