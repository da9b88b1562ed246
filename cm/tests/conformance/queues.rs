//! Queue pairs: QP.

use std::time::Duration;

use doorbell_cm::{
    AddrInfo, CompletionQueue, ConnParam, Endpoint, Fabric, Hints, Id, PortSpace, QpInit,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{AttrMask, SendOps};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{PostCause, SendFlags, SendOp};

use crate::bed::{Bed, SOON, number, received, send, send_inline, sent};

cases! {
    qp_02_an_id_bound_to_no_device_is_refused
    qp_03_a_new_queue_pair_takes_receives_but_no_sends
    qp_05_memory_of_the_device_serves_all_its_ids
    qp_06_missing_completion_queues_are_made
    qp_06_a_given_completion_queue_serves_both_directions_and_several_ids
    qp_07_an_id_has_no_second_completion_queue_of_a_kind
    qp_08_a_queue_of_nothing_is_refused
    qp_10_capacities_come_back_and_qx_11_are_no_less
    qp_11_an_id_holds_one_queue_pair
    qp_19_the_extended_call_keeps_the_rules_of_the_other
    qp_20_both_sides_may_send_once_connected
    qp_22_disconnect_flushes_the_own_side_and_leaves_the_peers
}

fn qp_02_an_id_bound_to_no_device_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    assert_eq!(id.create_qp(&bed.small()).expect_err("unbound").code(), Code::Invalid);
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    id.create_qp(&bed.small()).expect("bound now");
}

fn qp_03_a_new_queue_pair_takes_receives_but_no_sends<F: Fabric>(bed: &Bed<F>) {
    let mut one = bed.active(bed.at(7), &bed.small());
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    let refused = one
        .queues()
        .post_send(bed.filled(8, 1), 8, SendOp::Send, SendFlags::SIGNALED)
        .expect_err("not connected");
    assert_eq!(refused.cause, PostCause::State);
    assert_eq!(refused.back.expect("the buffer comes back")[..], [1; 8]);
}

fn qp_05_memory_of_the_device_serves_all_its_ids<F: Fabric>(bed: &Bed<F>) {
    let mut buffer = bed.filled(8, 3);
    for _ in 0..2 {
        let (mut one, mut two) = bed.pair(&bed.small());
        two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        send(&mut one, buffer);
        assert_eq!(received(&mut two).bytes(), [3; 8]);
        buffer = sent(&mut one, &mut two).ok().expect("sent").buffer.expect("it comes back");
    }
}

fn qp_06_missing_completion_queues_are_made<F: Fabric>(bed: &Bed<F>) {
    let one = bed.active(bed.at(7), &bed.small().send_wr(3).recv_wr(5));
    let (send_cq, recv_cq) = one.send_cq().zip(one.recv_cq()).expect("they are shown");
    assert!(send_cq.depth() >= 3 && recv_cq.depth() >= 5);
}

fn qp_06_a_given_completion_queue_serves_both_directions_and_several_ids<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 64).expect("a completion queue");
    let init = bed.small().send_cq(&cq).recv_cq(&cq);
    let mut pairs = [bed.pair(&init), bed.pair(&init)];
    for (at, (one, two)) in pairs.iter_mut().enumerate() {
        one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        send(one, bed.filled(8, at as u8));
        send(two, bed.filled(8, 10 + at as u8));
    }
    // The first to poll gets the completions of all.
    for (at, (one, two)) in pairs.iter_mut().enumerate().rev() {
        assert_eq!(received(two).bytes(), [at as u8; 8]);
        assert_eq!(received(one).bytes(), [10 + at as u8; 8]);
        let mine = one.queues().next_send(SOON).expect("sent").ok().expect("well");
        assert_eq!(number(&mine), at as u8);
        let theirs = two.queues().next_send(SOON).expect("sent").ok().expect("well");
        assert_eq!(number(&theirs), 10 + at as u8);
    }
}

fn qp_07_an_id_has_no_second_completion_queue_of_a_kind<F: Fabric>(bed: &Bed<F>) {
    let of = |cq: Option<&CompletionQueue<F>>| cq.map(|cq| cq.id(&bed.fabric));
    let mut one = bed.active(bed.at(7), &bed.small());
    let own = (of(one.send_cq()), of(one.recv_cq()));
    assert!(own.0.is_some() && own.1.is_some() && own.0 != own.1);
    let other = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    for init in [bed.small().send_cq(&other), bed.small().recv_cq(&other)] {
        assert_eq!(one.create_qp(&init).expect_err("it has them").code(), Code::Invalid);
        assert_eq!((of(one.send_cq()), of(one.recv_cq())), own);
    }
    one.destroy_qp().expect("nothing is in its way");
    assert_eq!((of(one.send_cq()), of(one.recv_cq())), (None, None), "they went along");
    one.create_qp(&bed.small().send_cq(&other).recv_cq(&other)).expect("with that for both");
    assert_eq!((of(one.send_cq()), of(one.recv_cq())), (of(Some(&other)), of(Some(&other))));
    drop(one);
    if bed.fabric.caps().xrc {
        let info = AddrInfo::of(bed.at(0), &Hints::passive().xrc());
        let mut target = Endpoint::create(&bed.fabric, &info, None).expect("an endpoint").into_id();
        let own = target.create_srq(4).expect("a queue").cq().map(|cq| cq.id(&bed.fabric));
        for init in [QpInit::xrc_recv().recv_cq(&other), QpInit::xrc_recv().send_cq(&other)] {
            let error = target.create_qp(&init).expect_err("its shared queue has one");
            assert_eq!(error.code(), Code::Invalid, "{error}");
        }
        assert_eq!(of(target.recv_cq()), own);
    }
}

fn qp_08_a_queue_of_nothing_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    for init in [QpInit::rc().send_wr(0), QpInit::rc().recv_wr(0)] {
        let error = id.create_qp(&init).expect_err("no room for completions");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
    id.create_qp(&QpInit::rc()).expect("after the refusals");
}

fn qp_10_capacities_come_back_and_qx_11_are_no_less<F: Fabric>(bed: &Bed<F>) {
    let init = QpInit::rc().send_wr(5).recv_wr(6).send_sge(2).recv_sge(1).inline(40);
    let one = bed.active(bed.at(7), &init);
    let (number, caps) = one.qp().expect("a queue pair");
    assert!(number != 0);
    assert!(caps.send_wr >= 5 && caps.recv_wr >= 6, "{caps:?}");
    assert!(caps.send_sge >= 2 && caps.recv_sge >= 1 && caps.inline >= 40, "{caps:?}");
}

fn qp_11_an_id_holds_one_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let mut one = bed.active(bed.at(7), &bed.small());
    let first = one.qp();
    assert_eq!(one.create_qp(&bed.small()).expect_err("has one").code(), Code::Invalid);
    assert_eq!(one.qp(), first);
}

/// With a field of the extended call on both sides, QP-2, QP-5, QP-6, QP-8, QP-10 and QP-11 still
/// hold.
fn qp_19_the_extended_call_keeps_the_rules_of_the_other<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small().send_ops_flags(SendOps::SEND);
    assert_eq!(init.comp_mask(), AttrMask::PD | AttrMask::SEND_OPS_FLAGS, "the domain is always");
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    assert_eq!(id.create_qp(&init).expect_err("unbound").code(), Code::Invalid, "QP-2");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    let nothing = init.clone().send_wr(0);
    assert_eq!(id.create_qp(&nothing).expect_err("of nothing").code(), Code::Invalid, "QP-8");
    id.create_qp(&init).expect("bound now");
    assert_eq!(id.create_qp(&init).expect_err("has one").code(), Code::Invalid, "QP-11");
    let caps = id.qp().expect("a queue pair").1;
    assert!(caps.send_wr >= 4 && caps.recv_wr >= 4 && caps.inline >= 16, "QP-10: {caps:?}");
    assert!(id.send_cq().is_some() && id.recv_cq().is_some(), "QP-6");
    let (mut one, mut two) = bed.pair(&init);
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive into memory of the usual domain");
    send(&mut one, bed.filled(8, 7));
    assert_eq!(received(&mut two).bytes(), [7; 8], "QP-5");
    sent(&mut one, &mut two).ok().expect("sent");
}

fn qp_20_both_sides_may_send_once_connected<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    send_inline(&mut one, &[1; 8]);
    send_inline(&mut two, &[2; 8]);
    assert_eq!(received(&mut two).bytes(), [1; 8]);
    assert_eq!(received(&mut one).bytes(), [2; 8]);
}

fn qp_22_disconnect_flushes_the_own_side_and_leaves_the_peers<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small();
    let param = ConnParam::default();
    let (mut one, mut two) = bed.pair_with(&init, &init, &param, &param);
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    one.disconnect().expect("disconnect");
    let flushed = one.queues().next_recv(SOON).expect("its receive comes back");
    assert_eq!(flushed.status, Status::Flushed);
    let untouched = two.queues().next_recv(Duration::from_millis(50));
    assert!(untouched.is_err(), "the peer's receives stay");
    two.disconnect().expect("the other side as well");
    let flushed = two.queues().next_recv(SOON).expect("now they come back");
    assert_eq!(flushed.status, Status::Flushed);
}
