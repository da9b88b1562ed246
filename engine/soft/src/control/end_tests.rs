//! Tests of ends whose peer leaves before the program asks for events.

use doorbell_fabric::{ConnParam, EventKind};
use doorbell_seam::provider::{Poller, Provider, Qp, QpType};
use doorbell_seam::wc::{Status, Wc};

use super::rendezvous_tests::{Side, next_of};
use super::tests::{asked, left_of, listener, next, post_receive, routed, with_qp};
use super::wire::Message;
use super::*;

/// A device that notices without events that a peer has left.
fn device() -> SoftDevice {
    let device = SoftDevice::open().unwrap();
    device.connect_by_number().unwrap();
    device
}

fn memory(device: &SoftDevice) -> SoftRegion {
    device.register(Mapping::plain(4096).unwrap(), Access::LOCAL_WRITE).unwrap()
}

/// A peer that was up and has said goodbye leaves the queue pair here alone (QP-22), even if the
/// program has not read that it was up. One that has said no goodbye has crashed.
#[test]
fn an_orderly_end_is_seen_behind_the_message_that_the_peer_is_up() {
    for goodbye in [true, false] {
        let device = device();
        let channel = device.open_channel().unwrap();
        let (_listener, liar, mut id) = asked(&device, &channel);
        let (mut qp, mut poller) = with_qp(&device, &mut id);
        let region = memory(&device);
        post_receive(&mut qp, &region);
        id.accept(&ConnParam::default()).unwrap();
        assert!(matches!(liar.receive(), Some(Message::Reply(_))));
        liar.say(&Message::Ready);
        if goodbye {
            liar.say(&Message::Bye);
        }
        drop(liar);
        assert_eq!(left_of(&device), [qp.num()]);
        let mut out = [Wc::default(); 4];
        let flushed = poller.poll(&mut out);
        assert_eq!(flushed, usize::from(!goodbye));
        assert!(out[..flushed].iter().all(|wc| wc.status == Status::Flushed));
        let events = [next(&channel), next(&channel)].map(|event| (event.kind, event.status));
        let end = if goodbye { 0 } else { -104 };
        assert_eq!(events, [(EventKind::Established, 0), (EventKind::Disconnected, end)]);
        drop(qp);
    }
}

/// The kinds of the next events.
fn kinds<const N: usize>(channel: &SoftChannel) -> [EventKind; N] {
    std::array::from_fn(|_| next(channel).kind)
}

/// An id that is ready to connect.
fn resolved(device: &SoftDevice, channel: &SoftChannel, listener: &SoftId) -> SoftId {
    let id = routed(device, Some(channel), PortSpace::Tcp, listener.local_addr().unwrap());
    assert_eq!(kinds(channel), [EventKind::AddrResolved, EventKind::RouteResolved]);
    id
}

/// The peer accepts and leaves before the program reads that it has accepted. What the program
/// sends then still fails, whether the queue pair is the id's or belongs to none.
#[test]
fn a_peer_that_left_before_its_answer_was_read_is_noticed() {
    for by_hand in [false, true] {
        let mut side = Side::new(QpType::Rc);
        let other = SoftDevice::open().unwrap();
        let [here, there] = [&side.device, &other].map(|device| device.open_channel().unwrap());
        let (listener, _) = listener(&other, &there);
        let mut id = resolved(&side.device, &here, &listener);
        if by_hand {
            id.connect_with(&side.qp, &ConnParam::default()).unwrap();
        } else {
            (side.qp, side.poller) = with_qp(&side.device, &mut id);
            id.connect(&ConnParam::default()).unwrap();
        }
        let mut request = next(&there).request.unwrap();
        let other_qp = with_qp(&other, &mut request);
        request.accept(&ConnParam::default()).unwrap();
        drop((request, other_qp));
        assert_eq!(left_of(&side.device), []);
        if by_hand {
            assert_eq!(kinds(&here), [EventKind::ConnectResponse]);
            let fields = id.init_qp_attr(QpState::Rtr).unwrap();
            side.device.modify_qp(&mut side.qp, QpState::Init, &fields).unwrap();
            assert_eq!(left_of(&side.device), []);
            id.establish().unwrap();
        } else {
            assert_eq!(kinds(&here), [EventKind::Established]);
        }
        side.send(b"");
        assert_eq!(left_of(&side.device), [side.qp.num()]);
        assert_eq!(next_of(&mut side).status, Status::RetryExceeded);
    }
}

/// The peer leaves before its request is accepted.
#[test]
fn a_peer_that_left_before_it_was_accepted_is_noticed() {
    let mut side = Side::new(QpType::Rc);
    let channel = side.device.open_channel().unwrap();
    let (_listener, liar, mut id) = asked(&side.device, &channel);
    drop(liar);
    assert_eq!(left_of(&side.device), []);
    (side.qp, side.poller) = with_qp(&side.device, &mut id);
    id.accept(&ConnParam::default()).unwrap();
    side.send(b"");
    assert_eq!(left_of(&side.device), [side.qp.num()]);
    assert_eq!(next_of(&mut side).status, Status::RetryExceeded);
}

/// The same for a queue pair of no id on the accepting side, with and without a goodbye, before and
/// after the program reads that the peer is up.
#[test]
fn a_peer_that_left_a_queue_pair_of_no_id_is_noticed() {
    for (goodbye, read) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut side = Side::new(QpType::Rc);
        let channel = side.device.open_channel().unwrap();
        let (_listener, liar, mut id) = asked(&side.device, &channel);
        let fields = id.init_qp_attr(QpState::Rtr).unwrap();
        side.device.modify_qp(&mut side.qp, QpState::Init, &fields).unwrap();
        id.accept_with(&side.qp, &ConnParam::default()).unwrap();
        assert!(matches!(liar.receive(), Some(Message::Reply(_))));
        liar.say(&Message::Ready);
        if read {
            assert_eq!(kinds(&channel), [EventKind::Established]);
        }
        side.send(b"");
        if goodbye {
            liar.say(&Message::Bye);
        }
        drop(liar);
        assert_eq!(left_of(&side.device), [side.qp.num()]);
        assert_eq!(next_of(&mut side).status, Status::RetryExceeded);
    }
}

/// A child of fork shares the socket of a listener. Peers are rejected all the same, whether they
/// connected before the listener went or later.
#[test]
fn a_listener_that_a_child_shares_rejects_when_it_goes() {
    let device = device();
    let [here, there] = [(); 2].map(|()| device.open_channel().unwrap());
    let (listener, _) = listener(&device, &there);
    let _child = listener.end.lock().socket.as_ref().unwrap().shared().unwrap();
    let [mut early, mut late] = [(); 2].map(|()| resolved(&device, &here, &listener));
    let _queues = [&mut early, &mut late].map(|id| with_qp(&device, id));
    early.connect(&ConnParam::default()).unwrap();
    drop(listener);
    assert_eq!(kinds(&here), [EventKind::Rejected]);
    late.connect(&ConnParam::default()).unwrap();
    assert_eq!(kinds(&here), [EventKind::Rejected]);
}
