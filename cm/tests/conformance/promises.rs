//! Single promises of the man pages, and mistakes that librdmacm answers with a crash or a hang: G,
//! ID, EP, QP, QX, SM.

use doorbell_cm::{
    AddrInfo, CompletionQueue, ConnParam, Device, Endpoint, EventKind, ExternalQp, Fabric, Hints,
    Id, PortSpace, QpInit, QpState,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, event, received, send_inline, sent};
use crate::harness::{on_toy, skip};
use crate::ids::{listening, ready};

cases! {
    g_01_errors_have_the_errno_of_c
    g_02_an_errno_counts_whatever_its_sign
    g_03_a_missing_device_is_refused
    g_04_a_device_opened_again_has_the_same_context_or_is_another
    g_05_port_spaces_have_the_kernels_numbers
    id_01_an_id_is_on_a_device_once_it_has_an_address
    id_05_messages_keep_their_bounds_and_their_order
    ep_01_a_name_and_a_port_make_an_endpoint
    ep_12_all_goes_with_an_endpoint
    qp_01_connecting_takes_the_queue_pair_through_its_states
    qp_09_depths_beyond_the_completion_queues_are_refused
    qp_17_a_failed_queue_pair_leaves_its_completion_queue
    qp_17_a_failed_queue_pair_takes_its_own_queues_along
    qp_21_the_wait_for_a_receive_is_set_once_connected
    qx_12_all_sends_complete_where_that_is_asked_for_and_qp_15_of_an_id
    qx_13_each_queue_pair_has_a_number_of_its_own
    qx_15_an_object_in_use_outlives_its_handle
    qx_16_dropping_with_completions_untaken_does_not_block
    qx_17_nothing_completes_after_dropping
    qx_19_capacities_beyond_the_devices_are_refused
    sm_04_a_message_may_come_before_the_event
    sm_05_a_query_tells_the_state
}

fn new<F: Fabric>(bed: &Bed<F>) -> Id<F> {
    Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id")
}

fn g_01_errors_have_the_errno_of_c<F: Fabric>(bed: &Bed<F>) {
    let (listener, addr) = bed.listener(None);
    let mut id = new(bed);
    let in_use = id.bind(addr).and_then(|()| id.listen(0)).expect_err("the port is taken");
    assert!([libc::EADDRINUSE, libc::EADDRNOTAVAIL].contains(&in_use.code().errno()), "{in_use}");
    assert_eq!(new(bed).create_qp(&bed.small()).expect_err("QP-2").code().errno(), libc::EINVAL);
    drop(listener);
    let refused = bed.active(addr, &bed.small()).connect(&ConnParam::default());
    assert_eq!(refused.expect_err("nobody is there").code().errno(), libc::ECONNREFUSED);
}

fn g_02_an_errno_counts_whatever_its_sign<F: Fabric>(_bed: &Bed<F>) {
    for errno in [libc::EINVAL, libc::ENOMEM, libc::EPERM, libc::ENOENT] {
        assert_eq!(Code::from_errno(errno), Code::from_errno(-errno));
    }
    assert_eq!(Code::from_errno(-libc::EBUSY).errno(), libc::EBUSY);
}

fn g_03_a_missing_device_is_refused<F: Fabric>(_bed: &Bed<F>) {
    let Err(error) = Device::named("none") else { panic!("there is no such device") };
    assert_eq!(error.code(), Code::NoDevice, "{error}");
}

/// librdmacm has one context of each device in a process; the soft device opens a new one each
/// time.
fn g_04_a_device_opened_again_has_the_same_context_or_is_another<F: Fabric>(bed: &Bed<F>) {
    let name = std::env::var("DOORBELL_DEVICE").unwrap_or_default();
    let name = if bed.is_strict() { "soft0" } else { &name };
    let again = crate::harness::open::<F>(name).expect("the same once more");
    let cq = CompletionQueue::new(&again, 16).expect("a completion queue");
    let mut id = new(bed);
    id.bind(bed.at(0)).expect("bind");
    let made = id.create_qp(&bed.small().send_cq(&cq).recv_cq(&cq));
    match bed.is_strict() {
        true => assert_eq!(made.expect_err("another device's").code(), Code::Invalid),
        false => made.expect("its own"),
    }
}

fn g_05_port_spaces_have_the_kernels_numbers<F: Fabric>(_bed: &Bed<F>) {
    let spaces = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
    assert_eq!(spaces.map(|space| space as u32), [0x0002, 0x0106, 0x0111, 0x013f]);
}

fn id_01_an_id_is_on_a_device_once_it_has_an_address<F: Fabric>(bed: &Bed<F>) {
    let mut id = new(bed);
    assert_eq!((id.local_addr(), id.peer_addr()), (None, None));
    assert!(id.create_qp(&bed.small()).is_err(), "on no device");
    id.bind(bed.at(0)).expect("bind");
    id.create_qp(&bed.small()).expect("on a device");
    assert_eq!(id.local_addr().map(|addr| addr.ip()), Some(bed.at(0).ip()));
}

fn id_05_messages_keep_their_bounds_and_their_order<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    for _ in 0..4 {
        two.queues().post_recv(bed.filled(16, 0)).expect("a receive");
    }
    for length in [1, 0, 16, 7] {
        send_inline(&mut one, &vec![length; usize::from(length)]);
    }
    for length in [1, 0, 16, 7_u8] {
        assert_eq!(received(&mut two).bytes(), vec![length; usize::from(length)]);
    }
    for _ in 0..4 {
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

fn ep_01_a_name_and_a_port_make_an_endpoint<F: Fabric>(bed: &Bed<F>) {
    let host = bed.at(0).ip().to_string();
    let passive = AddrInfo::resolve(&host, "0", &Hints::passive()).expect("an address");
    assert!(passive.is_passive());
    let mut listener = Endpoint::<F>::create(&bed.fabric, &passive, None).expect("a listener");
    listener.listen(0).expect("listen");
    let port = listener.local_addr().expect("bound").port();
    let active = AddrInfo::resolve(&host, &port.to_string(), &Hints::active());
    let active = active.expect("an address");
    let one = Endpoint::create(&bed.fabric, &active, Some(&bed.small())).expect("an endpoint");
    assert_eq!(one.peer_addr(), listener.local_addr());
}

fn ep_12_all_goes_with_an_endpoint<F: Fabric>(bed: &Bed<F>) {
    let (listener, addr) = bed.listener(Some(&bed.small()));
    drop(listener);
    let passive = AddrInfo::of(addr, &Hints::passive());
    let mut again = Endpoint::<F>::create(&bed.fabric, &passive, None).expect("the port is free");
    again.listen(0).expect("listen");
    let (one, mut two) = bed.pair(&bed.small());
    drop(one);
    while !two.peer_left() {
        std::thread::yield_now();
    }
}

fn qp_01_connecting_takes_the_queue_pair_through_its_states<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (_listener, addr) = listening(bed, &there);
    let mut one = ready(bed, &here, addr);
    let state = |id: &Id<F>| id.query_qp().expect("a query").state;
    assert_eq!(state(&one), Some(QpState::Init));
    one.connect(&ConnParam::default()).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    two.create_qp(&bed.small()).expect("a queue pair");
    assert_eq!(state(&two), Some(QpState::Init));
    two.accept(&ConnParam::default()).expect("accept");
    event::<F>(&here, EventKind::Established);
    event::<F>(&there, EventKind::Established);
    assert_eq!((state(&one), state(&two)), (Some(QpState::Rts), Some(QpState::Rts)));
    one.disconnect().expect("disconnect");
    assert_eq!(state(&one), Some(QpState::Err), "QP-22");
}

fn qp_09_depths_beyond_the_completion_queues_are_refused<F: Fabric>(bed: &Bed<F>) {
    let limit = Provider::caps(&bed.fabric).cqe_max;
    assert!(CompletionQueue::<F>::new(&bed.fabric, limit.saturating_add(1)).is_err());
    let mut id = new(bed);
    id.bind(bed.at(0)).expect("bind");
    for beyond in [limit + 1, u32::MAX] {
        for init in [QpInit::rc().send_wr(beyond), QpInit::rc().recv_wr(beyond)] {
            let error = id.create_qp(&init).expect_err("no completion queue is that deep");
            assert_eq!(error.code(), Code::Invalid, "{error}");
        }
    }
    id.create_qp(&bed.small()).expect("after the refusal");
}

fn qp_17_a_failed_queue_pair_leaves_its_completion_queue<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 16).expect("a completion queue");
    let mut id = new(bed);
    id.bind(bed.at(0)).expect("bind");
    let init = bed.small().send_cq(&cq).recv_cq(&cq);
    let beyond = Provider::caps(&bed.fabric).qp_wr_max + 1;
    assert!(id.create_qp(&init.clone().send_wr(beyond)).is_err());
    assert!(id.qp().is_none());
    id.create_qp(&init).expect("the queue is as it was");
}

/// Runs in a process of its own, whose files and objects are counted.
fn qp_17_a_failed_queue_pair_takes_its_own_queues_along<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("the threads of the toy wire give their files back a little later");
    }
    crate::processes::peer("fail", bed.at(0)).ends_well();
}

fn qp_21_the_wait_for_a_receive_is_set_once_connected<F: Fabric>(bed: &Bed<F>) {
    let mut early = bed.active(bed.at(7), &bed.small());
    assert_eq!(early.set_rnr_timer(12).expect_err("not connected").code(), Code::Invalid);
    let (mut one, mut two) = bed.pair(&bed.small());
    assert_eq!(two.set_rnr_timer(32).expect_err("no such code").code(), Code::Invalid);
    two.set_rnr_timer(1).expect("connected");
    assert_eq!(two.query_qp().expect("a query").min_rnr_timer, Some(1));
    send_inline(&mut one, &[1]);
    assert!(two.queues().next_recv(A_WHILE).is_err(), "there is no receive");
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    assert_eq!(received(&mut two).bytes(), [1]);
}

fn qx_12_all_sends_complete_where_that_is_asked_for_and_qp_15_of_an_id<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small().signal_all(true));
    for _ in 0..2 {
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        one.queues().post_inline(&[1], SendOp::Send, SendFlags::empty()).expect("not signalled");
        sent(&mut one, &mut two).ok().expect("it completes all the same");
    }
}

fn qx_13_each_queue_pair_has_a_number_of_its_own<F: Fabric>(bed: &Bed<F>) {
    let own = |_| ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair");
    let pairs: Vec<ExternalQp<F>> = (0..8).map(own).collect();
    let mut numbers: Vec<u32> = pairs.iter().map(ExternalQp::num).collect();
    assert!(numbers.iter().all(|number| (2..1 << 24).contains(number)), "{numbers:?}");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 8);
}

fn qx_15_an_object_in_use_outlives_its_handle<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 16).expect("a completion queue");
    let init = bed.small().send_cq(&cq).recv_cq(&cq);
    let (mut one, mut two) = bed.pair(&init);
    drop((cq, init));
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    send_inline(&mut one, &[3]);
    assert_eq!(received(&mut two).bytes(), [3]);
}

fn qx_16_dropping_with_completions_untaken_does_not_block<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    send_inline(&mut one, &[1]);
    send_inline(&mut one, &[2]);
    received(&mut two);
    // One completion is in the queue or on its way; nobody takes it.
    drop(two);
    drop(one);
}

fn qx_17_nothing_completes_after_dropping<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 64).expect("a completion queue");
    let init = bed.small().send_cq(&cq).recv_cq(&cq);
    let (mut gone, mut other) = bed.pair(&init);
    gone.queues().post_recvs(&mut bed.numbered(3)).expect("receives");
    gone.disconnect().expect("disconnect");
    drop(gone);
    assert!(other.queues().next_recv(A_WHILE).is_err(), "its own receives only");
    let (mut one, mut two) = bed.pair(&init);
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    send_inline(&mut one, &[4]);
    assert_eq!(received(&mut two).bytes(), [4], "the queue serves on");
}

fn qx_19_capacities_beyond_the_devices_are_refused<F: Fabric>(bed: &Bed<F>) {
    let limit = Provider::caps(&bed.fabric);
    let (wr, sge) = (limit.qp_wr_max + 1, limit.send_sge_max + 1);
    let inline = limit.inline_max + 1;
    for init in [
        bed.small().send_wr(wr),
        bed.small().recv_wr(wr),
        bed.small().send_sge(sge),
        bed.small().inline(inline),
    ] {
        let Err(error) = ExternalQp::new(&bed.fabric, &init) else { panic!("beyond the device") };
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

fn sm_04_a_message_may_come_before_the_event<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let (_listener, addr) = listening(bed, &there);
    let mut one = ready(bed, &here, addr);
    one.connect(&ConnParam::default()).expect("connect");
    let request = event::<F>(&there, EventKind::ConnectRequest);
    let mut two = Id::of_request(&bed.fabric, request.request.expect("its id"));
    two.create_qp(&bed.small()).expect("a queue pair");
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    two.accept(&ConnParam::default()).expect("accept");
    event::<F>(&here, EventKind::Established);
    send_inline(&mut one, &[6]);
    assert_eq!(received(&mut two).bytes(), [6], "nobody has taken ESTABLISHED");
    send_inline(&mut two, &[7]);
    event::<F>(&there, EventKind::Established);
}

fn sm_05_a_query_tells_the_state<F: Fabric>(bed: &Bed<F>) {
    let (one, two) = bed.pair(&bed.small());
    for id in [&one, &two] {
        assert_eq!(id.query_qp().expect("a query").state, Some(QpState::Rts));
        assert!(id.qp().expect("a queue pair").1.send_wr >= 4);
    }
    assert_eq!(new(bed).query_qp().expect_err("it has none").code(), Code::Invalid);
}
