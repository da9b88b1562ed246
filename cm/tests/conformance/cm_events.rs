//! The contents of events, and polled channels: ID-2, ID-11, CM-9, CE-1.
#![expect(unsafe_code, reason = "poll(2) has no safe form in std")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use doorbell_cm::{
    AddrInfo, Channel, ConnParam, Depths, Endpoint, Event, EventKind, Fabric, Hints, Id, PortSpace,
    Rejection,
};

use crate::bed::{A_WHILE, Bed, SOON, event};
use crate::harness::moves;
use crate::ids::{listening, pair_by_events, ready};

cases! {
    id_02_events_show_the_context_of_their_id
    id_11_the_descriptor_says_when_to_look
    id_11_the_descriptor_speaks_for_each_of_many_events
    id_11_the_descriptor_says_when_time_has_passed
    cm_09_depths_come_swapped
    cm_09_a_synchronous_id_keeps_them
    ce_01_kinds_have_the_kernels_numbers
    ce_01_reject_codes_are_told_apart
}

/// True if the channel's descriptor is readable within `limit`.
fn readable(channel: &impl AsFd, limit: Duration) -> bool {
    let fd = channel.as_fd().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let millis = limit.as_millis().try_into().expect("a short time");
    // SAFETY: one entry, alive during the call.
    unsafe { libc::poll(&raw mut poll, 1, millis) == 1 }
}

/// How often [`polled`] waits for [`A_WHILE`] in vain: two minutes in all. A machine that stands
/// still for a minute costs one of them, and not half of the time.
const VAIN_MAX: u32 = 2400;

/// The next event of a program that only polls descriptors.
fn polled<F: Fabric>(channel: &F::Channel) -> Event<F> {
    let mut vain = 0;
    loop {
        let is_readable = readable(channel, A_WHILE);
        if is_readable && let Some(event) = channel.next(Duration::ZERO).expect("no error") {
            return event;
        }
        vain += 1;
        assert!(vain < VAIN_MAX, "no event, or the descriptor says nothing");
        if is_readable {
            std::thread::sleep(A_WHILE);
        }
        moves();
    }
}

fn id_02_events_show_the_context_of_their_id<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = listening(bed, &there);
    listener.set_context(11);
    let mut one = ready(bed, &here, addr);
    one.set_context(22);
    one.connect(&ConnParam::default()).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    assert_eq!(request.context, 11);
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    assert_eq!(two.context(), 11, "it starts with its listener's");
    two.set_context(33);
    two.create_qp(&bed.small()).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    assert_eq!(event::<F>(&here, EventKind::Established).context, 22);
    assert_eq!(event::<F>(&there, EventKind::Established).context, 33);
    assert_eq!(listener.context(), 11);
}

fn id_11_the_descriptor_says_when_to_look<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    assert!(!readable(&channel, A_WHILE), "nothing has happened");
    let mut id = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    assert_eq!(polled::<F>(&channel).kind, EventKind::AddrResolved);
    assert!(!readable(&channel, A_WHILE), "it was taken");
    assert!(channel.next(Duration::ZERO).expect("no error").is_none());

    let (_listener, addr) = listening(bed, &channel);
    let mut ids = [(); 3].map(|()| {
        let other = bed.fabric.open_channel().expect("a channel");
        (ready(bed, &other, addr), other)
    });
    for (id, _) in &mut ids {
        id.connect(&ConnParam::default()).expect("connect");
    }
    for _ in 0..3 {
        let request = polled::<F>(&channel).request.expect("a request");
        Id::of_request(&bed.fabric, request).reject(&[]).expect("reject");
    }
    for (_, channel) in &ids {
        assert_eq!(polled::<F>(channel).kind, EventKind::Rejected);
    }
}

fn id_11_the_descriptor_speaks_for_each_of_many_events<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let [one, _two, listener] = pair_by_events(bed, &here, &there);
    let mut other = ready(bed, &here, listener.local_addr().expect("bound"));
    assert!(there.next(Duration::ZERO).expect("no error").is_none(), "all has been taken");
    // A request, a goodbye and an answer are all there before the first is taken.
    other.connect(&ConnParam::default()).expect("connect");
    drop(one);
    let mut third = Id::create(&bed.fabric, Some(&there), PortSpace::Tcp).expect("an id");
    third.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    std::thread::sleep(A_WHILE);
    let mut kinds = [(); 3].map(|()| polled::<F>(&there).kind as u32);
    kinds.sort_unstable();
    let all = [EventKind::AddrResolved, EventKind::ConnectRequest, EventKind::Disconnected];
    assert_eq!(kinds, all.map(|kind| kind as u32));
}

fn id_11_the_descriptor_says_when_time_has_passed<F: Fabric>(bed: &Bed<F>) {
    let info = AddrInfo::of(bed.at(0), &Hints::passive());
    let saved = bed.small();
    let mut listener = Endpoint::create(&bed.fabric, &info, Some(&saved)).expect("a listener");
    listener.listen(1).expect("listen");
    let addr = listener.local_addr().expect("bound");
    // More than the backlog holds: the last ones must retry, after seconds on a network.
    let clients = if bed.is_strict() { 8 } else { 2 };
    let ready = |_| {
        let channel = bed.fabric.open_channel().expect("a channel");
        (ready(bed, &channel, addr), channel)
    };
    let mut ids: Vec<_> = (0..clients).map(ready).collect();
    for (id, _) in &mut ids {
        id.connect(&ConnParam::default()).expect("connect");
    }
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let accept = |_| {
                let mut two = listener.get_request(Some(SOON)).expect("a request");
                two.accept(&ConnParam::default()).expect("accept");
                two
            };
            (0..clients).map(accept).collect::<Vec<_>>()
        });
        for (_, channel) in &ids {
            assert_eq!(polled::<F>(channel).kind, EventKind::Established);
        }
        accepting.join().expect("the listening side");
    });
}

fn cm_09_depths_come_swapped<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (_listener, addr) = listening(bed, &there);
    let mut one = ready(bed, &here, addr);
    let asks = ConnParam { responder_resources: 3, initiator_depth: 5, ..ConnParam::default() };
    one.connect(&asks).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    assert_eq!(request.depths, Some(Depths { responder: 5, initiator: 3 }));
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    assert_eq!(two.depths(), request.depths);
    two.create_qp(&bed.small()).expect("a queue pair");
    let grants = ConnParam { responder_resources: 4, initiator_depth: 2, ..ConnParam::default() };
    two.accept(&grants).expect("accept");
    let established = event::<F>(&here, EventKind::Established);
    assert_eq!(established.depths, Some(Depths { responder: 2, initiator: 4 }));
    assert_eq!(one.depths(), established.depths);
    assert_eq!(event::<F>(&there, EventKind::Established).depths, None);
}

fn cm_09_a_synchronous_id_keeps_them<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small();
    let asks = ConnParam { responder_resources: 1, initiator_depth: 7, ..ConnParam::default() };
    let grants = ConnParam { responder_resources: 6, initiator_depth: 1, ..ConnParam::default() };
    let (one, two) = bed.pair_with(&init, &init, &asks, &grants);
    assert_eq!(two.depths(), Some(Depths { responder: 7, initiator: 1 }));
    assert_eq!(one.depths(), Some(Depths { responder: 1, initiator: 6 }));
}

fn ce_01_kinds_have_the_kernels_numbers<F: Fabric>(_bed: &Bed<F>) {
    for number in 0..16 {
        let kind = EventKind::from_raw(number).expect("sixteen kinds");
        assert_eq!(kind as u32, number);
    }
    assert_eq!(EventKind::TimewaitExit as u32, 15);
    assert_eq!(EventKind::from_raw(16), None);
}

fn ce_01_reject_codes_are_told_apart<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let (mut listener, addr) = bed.listener(None);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    listener.get_request(Some(SOON)).expect("a request").reject(&[]).expect("reject");
    let rejected = event::<F>(&here, EventKind::Rejected);
    assert_eq!(rejected.rejection(), Some(Rejection::Consumer));
    drop(listener);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let rejected = event::<F>(&here, EventKind::Rejected);
    assert_eq!(rejected.rejection(), Some(Rejection::NoListener));
    assert_eq!(Rejection::from_raw(-111), None);
}
