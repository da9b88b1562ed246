//! Channels that change while others use them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_fabric::{Channel, CmId, ConnParam, Event, Fabric, IdOption};

use super::super::sys::Socket;
use super::super::tests::{Liar, asked, listener, next, request, with_qp};
use super::super::wire::Message;
use super::super::{SoftDevice, place};
use super::*;

/// The end of that id.
fn end_of(channel: &SoftChannel, id: &impl CmId<SoftDevice>) -> Arc<End> {
    channel.0.find(id.key().0).expect("a member").0
}

/// The keys of descriptors that would end a wait now.
fn ready(channel: &SoftChannel) -> Vec<u64> {
    channel.0.epoll.wait(Some(Duration::ZERO), &mut [0; READY_MAX]).unwrap().to_vec()
}

/// A thread reads an event of an id from its old channel while another thread moves the id: the
/// new channel watches it.
#[test]
fn an_id_that_moves_while_its_old_channel_reads_is_not_lost() {
    let device = SoftDevice::open().unwrap();
    let [old, new] = [(); 2].map(|()| device.open_channel().unwrap());
    let (_listener, name) = listener(&device, &old);
    let liar = Liar::connect(&name);
    liar.say(&request());
    let mut id = next(&old).request.unwrap();
    let _qp = with_qp(&device, &mut id);
    id.accept(&ConnParam::default()).unwrap();
    let end = end_of(&old, &id);
    // One thread moves it, ...
    let taken = old.0.take_out(&end);
    assert!(taken.events.is_empty() && taken.incoming.is_empty());
    // ... the other has just read an event of it, ...
    old.0.arrived(&end, None, None).unwrap();
    // ... and the first goes on.
    new.0.join(&end).unwrap();
    liar.say(&Message::Ready);
    assert_eq!(ready(&old), [], "the old one does not");
    assert_eq!(next(&new).kind, EventKind::Established);
}

/// The events that a thread takes from the channel while `act` runs.
fn events_during(channel: &SoftChannel, act: impl FnOnce()) -> Vec<Event<SoftDevice>> {
    let (reads, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut came = Vec::new();
            while !stop.load(Ordering::Acquire) {
                came.extend(channel.next(Duration::ZERO).unwrap());
                reads.store(true, Ordering::Release);
            }
            came
        });
        while !reads.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let acted = catch_unwind(AssertUnwindSafe(act));
        stop.store(true, Ordering::Release);
        acted.unwrap();
        reader.join().unwrap()
    })
}

/// A listener moves while a thread takes a peer of it from the old channel, or reads the peer's
/// request. Each request is reported once, by the channel that has the listener then.
#[test]
fn mg_3_a_request_that_comes_while_its_listener_moves_is_not_lost() {
    let device = SoftDevice::open().unwrap();
    let [old, new] = [(); 2].map(|()| device.open_channel().unwrap());
    let (mut listener, name) = listener(&device, &old);
    for round in 0..300 {
        let mut liar = None;
        let came = events_during(&old, || {
            liar = Some(Liar::connect(&name));
            (0..round % 64 * 16).for_each(|_| std::hint::spin_loop());
            listener.migrate(Some(&new)).unwrap();
        });
        assert!(came.is_empty(), "the peer has said nothing");
        let liar = liar.unwrap();
        assert!(new.0.next(Some(Duration::ZERO)).unwrap().is_none());
        let mut came = events_during(&new, || {
            liar.say(&request());
            (0..round % 64 * 16).for_each(|_| std::hint::spin_loop());
            listener.migrate(Some(&old)).unwrap();
        });
        let event = came.pop().unwrap_or_else(|| next(&old));
        assert_eq!(event.kind, EventKind::ConnectRequest);
        assert!(old.0.lists().incoming.is_empty(), "round {round}: it has been reported");
    }
}

/// The deadline of an id that has gone or moved, or whose event came in time, makes nothing
/// readable: a program that polls the channel would then wait for an event that does not come.
#[test]
fn a_deadline_that_is_over_makes_no_channel_readable() {
    let device = SoftDevice::open().unwrap();
    let [channel, other] = [(); 2].map(|()| device.open_channel().unwrap());
    for moves in [false, true] {
        let (listener, liar, mut id) = asked(&device, &channel);
        let _qp = with_qp(&device, &mut id);
        // A quarter of a second.
        id.set_option(IdOption::AckTimeout(16)).unwrap();
        id.accept(&ConnParam::default()).unwrap();
        assert!(channel.0.lists().deadlines.first().is_some(), "it waits for the peer");
        liar.say(&Message::Ready);
        assert_eq!(next(&channel).kind, EventKind::Established);
        assert_eq!(channel.0.lists().deadlines.first(), None);
        id.disconnect().unwrap();
        assert_eq!(next(&channel).kind, EventKind::Disconnected);
        let deadline = channel.0.lists().deadlines.first().unwrap();
        if moves {
            id.migrate(Some(&other)).unwrap();
        } else {
            drop(id);
        }
        while Instant::now() <= deadline {
            thread::yield_now();
        }
        assert_eq!(ready(&channel), []);
        if moves {
            assert_eq!(next(&other).kind, EventKind::TimewaitExit);
        }
        // A peer that has said nothing goes with its listener.
        let _silent = Liar::connect(&place::name(device.name(), listener.local_addr().unwrap()));
        assert!(channel.0.next(Some(Duration::ZERO)).unwrap().is_none());
        assert!(channel.0.lists().deadlines.first().is_some());
        drop(listener);
        assert_eq!(channel.0.lists().deadlines.first(), None);
    }
}

/// The file of an end's socket, held open as by a child process.
fn shared_with_child(end: &End) -> Socket {
    end.lock().socket.as_ref().expect("a socket").shared().unwrap()
}

/// A connection that has ended is not reported for ever because a child process holds its file.
#[test]
fn a_closed_connection_that_a_child_shares_is_not_watched() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (listener, name) = listener(&device, &channel);
    let liar = Liar::connect(&name);
    liar.say(&request());
    let mut id = next(&channel).request.unwrap();
    let _qp = with_qp(&device, &mut id);
    id.accept(&ConnParam::default()).unwrap();
    let _child = shared_with_child(&end_of(&channel, &id));
    drop(liar);
    assert_eq!(next(&channel).kind, EventKind::ConnectError);
    assert_eq!(ready(&channel), []);
    // A peer that has said nothing goes with the listener.
    let silent = Liar::connect(&name);
    assert!(channel.0.next(Some(Duration::ZERO)).unwrap().is_none());
    let incoming = channel.0.lists().incoming.values().next().expect("an end").0.clone();
    let _child = shared_with_child(&incoming);
    drop((incoming, listener, silent));
    assert_eq!(ready(&channel), []);
}

/// A request that nobody has taken goes with its listener.
#[test]
fn a_listener_takes_its_requests_along() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (listener, name) = listener(&device, &channel);
    let liar = Liar::connect(&name);
    liar.say(&request());
    channel.0.admit(&end_of(&channel, &listener)).unwrap();
    assert_eq!(channel.0.lists().members.len(), 2);
    drop(listener);
    assert_eq!(channel.0.lists().members.len(), 0);
    assert!(matches!(liar.receive(), Some(Message::Reject { .. })));
}
