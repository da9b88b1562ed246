//! Moving ids between channels: MG.

use std::thread;

use doorbell_cm::{
    AddrInfo, Channel, ConnParam, Endpoint, EventKind, Fabric, Hints, Id, PortSpace,
};
use doorbell_seam::error::Code;

use crate::bed::{A_WHILE, Bed, SOON, event, received, send_inline};
use crate::ids::{listening, pair_by_events, ready};

cases! {
    mg_01_a_synchronous_id_becomes_asynchronous
    mg_01_an_endpoint_becomes_asynchronous_while_connected
    mg_02_from_no_channel_to_none_is_refused
    mg_02_an_asynchronous_id_becomes_synchronous
    mg_03_events_nobody_has_taken_go_with_it
    mg_03_requests_go_with_their_listener_or_it_stays
    mg_04_an_event_in_hand_blocks_nobody
    mg_05_each_request_of_a_synchronous_listener_has_a_channel_of_its_own
}

fn mg_01_a_synchronous_id_becomes_asynchronous<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let info = AddrInfo::of(bed.at(0), &Hints::passive());
    let mut listener = Endpoint::<F>::create(&bed.fabric, &info, None).expect("a listener");
    listener.migrate(Some(&there)).expect("migrate");
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("bound");
    let mut one = bed.active(addr, &bed.small());
    one.migrate(Some(&here)).expect("migrate");
    one.connect(&ConnParam::default()).expect("it returns at once");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    assert_eq!(request.key, listener.key());
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    two.create_qp(&bed.small()).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    assert_eq!(event::<F>(&here, EventKind::Established).key, one.key());
    assert_eq!(event::<F>(&there, EventKind::Established).key, two.key());
    let refused = listener.get_request(Some(SOON)).map(drop);
    assert_eq!(refused.expect_err("EP-11").code(), Code::Invalid);
}

fn mg_01_an_endpoint_becomes_asynchronous_while_connected<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    two.migrate(Some(&channel)).expect("migrate");
    send_inline(&mut one, &[3; 8]);
    assert_eq!(received(&mut two).bytes(), [3; 8]);
    one.disconnect().expect("disconnect");
    assert_eq!(event::<F>(&channel, EventKind::Disconnected).key, two.key());
}

fn mg_02_from_no_channel_to_none_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    assert_eq!(id.migrate(None).expect_err("it has none").code(), Code::Invalid);
    id.resolve_addr(None, bed.at(7), SOON).expect("it works on");
}

fn mg_02_an_asynchronous_id_becomes_synchronous<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut listener = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    listener.bind(bed.at(0)).expect("bind");
    listener.migrate(None).expect("migrate");
    listener.listen(0).expect("listen");
    let mut one = ready(bed, &channel, listener.local_addr().expect("bound"));
    one.migrate(None).expect("migrate");
    thread::scope(|scope| {
        let connecting = scope.spawn(move || one.connect(&ConnParam::default()));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.create_qp(&bed.small()).expect("a queue pair");
        two.accept(&ConnParam::default()).expect("accept");
        connecting.join().expect("the connecting side").expect("connect");
    });
    assert!(channel.next(A_WHILE).expect("no error").is_none(), "nothing is said there any more");
}

fn mg_03_events_nobody_has_taken_go_with_it<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let old = bed.fabric.open_channel().expect("a channel");
    let new = bed.fabric.open_channel().expect("a channel");
    let [mut one, mut two, _listener] = pair_by_events(bed, &here, &old);
    one.disconnect().expect("disconnect");
    // It is on its way or has arrived.
    thread::sleep(A_WHILE);
    two.migrate(Some(&new)).expect("migrate");
    assert_eq!(event::<F>(&new, EventKind::Disconnected).key, two.key());
    let mut third = Id::create(&bed.fabric, Some(&old), PortSpace::Tcp).expect("an id");
    third.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    thread::sleep(A_WHILE);
    third.migrate(Some(&new)).expect("migrate");
    assert_eq!(event::<F>(&new, EventKind::AddrResolved).key, third.key());
    assert!(old.next(A_WHILE).expect("no error").is_none());
}

fn mg_03_requests_go_with_their_listener_or_it_stays<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let old = bed.fabric.open_channel().expect("a channel");
    let new = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = listening(bed, &old);
    let mut ids = [ready(bed, &here, addr), ready(bed, &here, addr)];
    for id in &mut ids {
        id.connect(&ConnParam::default()).expect("connect");
    }
    thread::sleep(A_WHILE);
    if let Err(error) = listener.migrate(Some(&new)) {
        // librdmacm would lose them.
        assert_eq!((error.code(), bed.is_strict()), (Code::Busy, false), "{error}");
        assert_eq!(event::<F>(&old, EventKind::ConnectRequest).key, listener.key());
        return;
    }
    let request = event::<F>(&new, EventKind::ConnectRequest);
    assert_eq!(request.key, listener.key());
    assert!(old.next(A_WHILE).expect("no error").is_none());
    listener.migrate(None).expect("migrate");
    let mut two = listener.get_request(Some(SOON)).expect("the other request");
    two.reject(b"later").expect("reject");
    assert_eq!(event::<F>(&here, EventKind::Rejected).status, 28);
}

fn mg_04_an_event_in_hand_blocks_nobody<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = listening(bed, &there);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let in_hand = event::<F>(&there, EventKind::ConnectRequest);
    // A device may refuse, but must not wait.
    let _ = listener.migrate(Some(&here));
    drop(listener);
    let mut two = Id::of_request(&bed.fabric, in_hand.request.expect("its id"));
    two.migrate(Some(&here)).expect("migrate");
    two.reject(&[]).expect("reject");
    let in_hand = event::<F>(&here, EventKind::Rejected);
    one.migrate(Some(&there)).expect("migrate");
    assert_eq!(in_hand.key, one.key());
    drop((one, two, in_hand));
}

fn mg_05_each_request_of_a_synchronous_listener_has_a_channel_of_its_own<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut ids = [ready(bed, &here, addr), ready(bed, &here, addr)];
    for id in &mut ids {
        id.connect(&ConnParam::default()).expect("connect");
    }
    let mut requests = [(); 2].map(|()| listener.get_request(Some(SOON)).expect("a request"));
    drop(listener);
    // Each blocks for its own event, in whatever order they are accepted.
    for request in requests.iter_mut().rev() {
        thread::scope(|scope| {
            scope.spawn(|| event::<F>(&here, EventKind::Established));
            request.accept(&ConnParam::default()).expect("accept");
        });
    }
}
