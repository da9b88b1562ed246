//! Mistakes that librdmacm answers with a crash, a leak or a hang: here each gets an error or does
//! no harm. `cm/conformance/hazards.txt` lists them with their tests.

use std::thread;

use doorbell_cm::{CompletionQueue, EventKind, Fabric, Id, PortSpace, SharedReceive};
use doorbell_seam::error::Code;
use doorbell_seam::event::{AsyncEvent, AsyncKind, Object};
use doorbell_seam::provider::Provider;

use crate::bed::{A_WHILE, Bed, SOON, event, received, send_inline};
use crate::events::{EVENTS, event as event_of};
use crate::harness::{another, on_toy, skip};
use crate::ids::pair_by_events;
use crate::processes::peer;

cases! {
    id_08_dropping_an_id_with_its_event_in_hand_does_not_block
    ep_10_refused_requests_leave_nothing_behind
    qp_02_queues_of_another_device_are_refused
    qp_10_a_failed_creation_shows_no_queues
    qp_18_destroying_a_missing_queue_pair_is_refused
    qp_18_destroying_takes_its_own_queues_along
    srq_01_a_shared_queue_of_another_device_is_refused
    srq_09_destroying_a_missing_queue_is_refused
    qx_16_dropping_with_wake_ups_in_hand_does_not_block_and_cp_07_nobody_acknowledges
    qx_16_dropping_with_asynchronous_events_in_hand_does_not_block
}

/// Bound to the device, without a queue pair.
fn bound<F: Fabric>(bed: &Bed<F>) -> Id<F> {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    id
}

fn id_08_dropping_an_id_with_its_event_in_hand_does_not_block<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let mut id = Id::create(&bed.fabric, Some(&here), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    let in_hand = event::<F>(&here, EventKind::AddrResolved);
    assert_eq!(in_hand.key, id.key());
    drop(id);
    // The same with both ends of a connection, and the event of its end.
    let [mut one, mut two, listener] = pair_by_events(bed, &here, &there);
    one.disconnect().expect("disconnect");
    let left = event::<F>(&there, EventKind::Disconnected);
    two.disconnect().expect("so does the other");
    let answered = event::<F>(&here, EventKind::Disconnected);
    drop((one, two, listener));
    drop((in_hand, left, answered, here, there));
}

/// Runs in a process of its own, whose files and objects are counted.
fn ep_10_refused_requests_leave_nothing_behind<F: Fabric>(bed: &Bed<F>) {
    peer("refuse", bed.at(0)).ends_well();
}

fn qp_02_queues_of_another_device_are_refused<F: Fabric>(bed: &Bed<F>) {
    let Some(other) = another::<F>() else { return skip("this machine has one RDMA device") };
    let queue = |device: &F| CompletionQueue::new(device, 16).expect("a completion queue");
    let (own, foreign) = (queue(&bed.fabric), queue(&other));
    let mut id = bound(bed);
    for (send, recv) in [(&own, &foreign), (&foreign, &own), (&foreign, &foreign)] {
        let error = id.create_qp(&bed.small().send_cq(send).recv_cq(recv)).expect_err("QP-2");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
    id.create_qp(&bed.small().send_cq(&own).recv_cq(&own)).expect("its own device's");
}

fn qp_10_a_failed_creation_shows_no_queues<F: Fabric>(bed: &Bed<F>) {
    let beyond = Provider::caps(&bed.fabric).qp_wr_max + 1;
    let mut id = bound(bed);
    let init = bed.small().send_wr(beyond);
    id.create_qp(&init).expect_err("beyond the device");
    assert!(id.qp().is_none() && id.send_cq().is_none(), "nothing is shown that is not there");
    id.create_qp(&init.send_wr(4)).expect("the attributes are as they were");
    assert!(id.send_cq().is_some() && id.recv_cq().is_some());
}

fn qp_18_destroying_a_missing_queue_pair_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = bound(bed);
    assert_eq!(id.destroy_qp().expect_err("there is none").code(), Code::Invalid);
    id.create_qp(&bed.small()).expect("a queue pair");
    id.destroy_qp().expect("it is there");
    assert_eq!(id.destroy_qp().expect_err("it was there").code(), Code::Invalid);
    id.create_qp(&bed.small()).expect("another");
}

/// Runs in a process of its own, whose files and objects are counted.
fn qp_18_destroying_takes_its_own_queues_along<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("the threads of the toy wire give their files back a little later");
    }
    peer("destroy", bed.at(0)).ends_well();
}

fn srq_01_a_shared_queue_of_another_device_is_refused<F: Fabric>(bed: &Bed<F>) {
    let Some(other) = another::<F>() else { return skip("this machine has one RDMA device") };
    let foreign = SharedReceive::new(&other, 4).expect("a shared receive queue");
    let mut id = bound(bed);
    let error = id.create_qp(&bed.small().srq(&foreign)).expect_err("SRQ-1");
    assert_eq!((error.code(), foreign.users()), (Code::Invalid, 0), "{error}");
    let own = SharedReceive::new(&bed.fabric, 4).expect("a shared receive queue");
    id.create_qp(&bed.small().srq(&own)).expect("its own device's");
}

fn srq_09_destroying_a_missing_queue_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = bound(bed);
    assert_eq!(id.destroy_srq().expect_err("there is none").code(), Code::Invalid);
    id.create_srq(4).expect("a shared receive queue");
    id.destroy_srq().expect("it is there");
    assert_eq!(id.destroy_srq().expect_err("it was there").code(), Code::Invalid);
}

/// One wake-up that was taken, one that has come and was not taken, one that is still due.
fn qx_16_dropping_with_wake_ups_in_hand_does_not_block_and_cp_07_nobody_acknowledges<F: Fabric>(
    bed: &Bed<F>,
) {
    let cq = CompletionQueue::new(&bed.fabric, 64).expect("a completion queue");
    let init = bed.small().recv_cq(&cq);
    let (mut one, mut two) = bed.pair_with(&bed.small(), &init, &<_>::default(), &<_>::default());
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    let sends = one.send_cq().expect("a queue pair").clone();
    cq.arm(false).expect("arm");
    send_inline(&mut one, &[1]);
    assert!(cq.wait(Some(SOON)).expect("wait"), "this one is taken");
    received(&mut two);
    cq.arm(false).expect("arm");
    sends.arm(false).expect("arm");
    send_inline(&mut one, &[2]);
    received(&mut two);
    thread::sleep(A_WHILE);
    drop((two, cq, sends, one, init));
}

fn qx_16_dropping_with_asynchronous_events_in_hand_does_not_block<F: Fabric>(bed: &Bed<F>) {
    let _one_at_a_time = EVENTS.lock();
    let srq = SharedReceive::new(&bed.fabric, 16).expect("a shared receive queue");
    let wanted = AsyncEvent { kind: AsyncKind::SrqLimitReached, object: Object::Srq(srq.id()) };
    let init = bed.small().srq(&srq);
    let (mut one, mut two) = bed.pair_with(&bed.small(), &init, &<_>::default(), &<_>::default());
    let mut low = || {
        srq.post(&mut bed.numbered(1)).expect("a receive");
        srq.set_limit(1).expect("a limit");
        send_inline(&mut one, &[1]);
        received(&mut two);
    };
    low();
    event_of(bed, wanted);
    // A second request, which nobody fetches.
    low();
    drop((one, two, init, srq));
}
