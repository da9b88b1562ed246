//! Shared receive queues: SRQ.

use std::time::Duration;

use doorbell_cm::{CompletionQueue, Fabric, Id, PortSpace, SharedReceive};
use doorbell_seam::error::Code;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::PostCause;

use crate::bed::{Bed, SOON, part, received, send, send_inline, sent};

cases! {
    srq_01_an_id_bound_to_no_device_is_refused
    srq_02_takes_receives_at_once
    srq_03_the_returned_depth_is_the_real_room
    srq_04_an_id_holds_one
    srq_08_receives_of_the_id_go_to_its_shared_queue_and_qp_13_its_queue_pair_uses_it
    srq_09_is_busy_while_a_queue_pair_uses_it
    srq_11_its_queue_pairs_need_no_receive_capacity
    srq_12_is_taken_from_in_order_by_whichever_queue_pair_needs_one
    pl_05_a_full_shared_queue_takes_the_first_of_a_list
    srq_16_receives_stay_when_a_queue_pair_fails
    srq_13_empty_makes_the_sender_wait
}

fn bound<F: Fabric>(bed: &Bed<F>) -> Id<F> {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    id
}

fn srq_01_an_id_bound_to_no_device_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    let Err(error) = id.create_srq(4) else { panic!("unbound") };
    assert_eq!(error.code(), Code::Invalid);
}

fn srq_02_takes_receives_at_once<F: Fabric>(bed: &Bed<F>) {
    let mut id = bound(bed);
    id.create_srq(5).expect("a shared receive queue");
    id.queues()
        .post_recv(bed.filled(8, 0))
        .expect("it accepts receives before any queue pair exists");
}

fn srq_03_the_returned_depth_is_the_real_room<F: Fabric>(bed: &Bed<F>) {
    for asked in [1, 3, 5, 100] {
        let mut id = bound(bed);
        let srq = id.create_srq(asked).expect("a shared receive queue");
        assert!(srq.depth() >= asked, "{} for {asked}", srq.depth());
        assert_eq!(srq.limit().expect("a query"), 0, "no limit is set");
        srq.post(&mut bed.numbered(srq.depth() as usize)).expect("as many as came back");
        if bed.is_strict() {
            let full = srq.post(&mut bed.numbered(1)).expect_err("and no more");
            assert_eq!(full.cause, PostCause::Full);
        }
    }
    let most = bed.fabric.caps().srq_wr_max;
    for asked in [0, most + 1] {
        let Err(error) = SharedReceive::new(&bed.fabric, asked) else { panic!("{asked}") };
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

fn srq_04_an_id_holds_one<F: Fabric>(bed: &Bed<F>) {
    let mut id = bound(bed);
    id.create_srq(4).expect("the first");
    let Err(error) = id.create_srq(4) else { panic!("the second") };
    assert_eq!(error.code(), Code::Invalid);
}

fn srq_08_receives_of_the_id_go_to_its_shared_queue_and_qp_13_its_queue_pair_uses_it<F: Fabric>(
    bed: &Bed<F>,
) {
    let (mut listener, addr) = bed.listener(None);
    let mut one = bed.active(addr, &bed.small()).into_id();
    let (mut one, mut two) = std::thread::scope(|scope| {
        let connecting = scope.spawn(move || one.connect(&Default::default()).map(|()| one));
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        two.create_srq(4).expect("a shared receive queue");
        two.create_qp(&bed.small()).expect("a queue pair (QP-13)");
        two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        two.accept(&Default::default()).expect("accept");
        (connecting.join().expect("the connecting side").expect("connect"), two)
    });
    assert_eq!(two.srq().expect("its own").users(), 1);
    send_inline(&mut one, &[9; 8]);
    assert_eq!(received(&mut two).bytes(), [9; 8]);
}

fn srq_09_is_busy_while_a_queue_pair_uses_it<F: Fabric>(bed: &Bed<F>) {
    let mut id = bound(bed);
    id.create_srq(4).expect("a shared receive queue");
    id.create_qp(&bed.small()).expect("a queue pair");
    assert_eq!(id.destroy_srq().expect_err("in use").code(), Code::Busy);
    assert!(id.srq().is_some(), "it stays");
    let mut id = bound(bed);
    id.create_srq(4).expect("a shared receive queue");
    id.destroy_srq().expect("not in use");
    assert!(id.srq().is_none());
}

fn srq_11_its_queue_pairs_need_no_receive_capacity<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 4).expect("a shared receive queue");
    let cq = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    let init = bed.small().recv_wr(0).recv_cq(&cq).srq(&srq);
    let mut id = bound(bed);
    id.create_qp(&init).expect("a queue pair");
}

/// Both queue pairs of the receiving side, and those that send to them.
type Two<F> = ([Id<F>; 2], [Id<F>; 2]);

fn two_on_one<F: Fabric>(bed: &Bed<F>, srq: &SharedReceive<F>) -> Two<F> {
    let (plain, shared) = (bed.small(), bed.small().srq(srq));
    let none = Default::default();
    let (one, two) = bed.pair_with(&plain, &shared, &none, &none);
    let (other, second) = bed.pair_with(&plain, &shared, &none, &none);
    ([one, other], [two, second])
}

fn srq_12_is_taken_from_in_order_by_whichever_queue_pair_needs_one<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 8).expect("a shared receive queue");
    srq.post(&mut bed.numbered(6)).expect("receives");
    let (mut senders, mut takers) = two_on_one(bed, &srq);
    let mut lengths = Vec::new();
    for (turn, which) in [0, 1, 1, 0, 1, 0].into_iter().enumerate() {
        // No payload: the buffer still holds the number it was posted with.
        send_inline(&mut senders[which], &[]);
        let completion = received(&mut takers[which]);
        assert_eq!(crate::bed::number(&completion), turn as u8, "first in, first out");
        lengths.push(completion.len);
        let (sender, taker) = (&mut senders[which], &mut takers[which]);
        sent(sender, taker).ok().expect("sent");
    }
    assert_eq!(lengths, [0; 6]);
}

fn pl_05_a_full_shared_queue_takes_the_first_of_a_list<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 3).expect("a shared receive queue");
    let depth = srq.depth() as usize;
    let mut list = bed.numbered(depth + 2);
    // On some devices the ring has room for a few more than the granted depth.
    let (mut posted, mut error) = (0, None);
    while posted < 64 && error.is_none() {
        let before = list.len();
        error = srq.post(&mut list).err();
        posted += before - list.len();
        if error.is_none() {
            list = bed.numbered(depth + 2);
        }
    }
    assert_eq!(error.expect("it is full at some time").cause, PostCause::Full);
    assert!(posted >= depth && !list.is_empty());
    if bed.is_strict() {
        assert_eq!((posted, list.len()), (depth, 2));
    }
}

fn srq_16_receives_stay_when_a_queue_pair_fails<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 8).expect("a shared receive queue");
    srq.post(&mut bed.numbered(2)).expect("receives");
    let ([mut one, mut other], [mut two, mut second]) = two_on_one(bed, &srq);
    part(&mut two, &mut one);
    let flushed = two.queues().next_recv(Duration::from_millis(50));
    assert!(flushed.is_err(), "what is shared is not flushed (SM-2)");
    send_inline(&mut other, &[]);
    assert_eq!(crate::bed::number(&received(&mut second)), 0, "the first is still there");
}

fn srq_13_empty_makes_the_sender_wait<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 8).expect("a shared receive queue");
    let ([mut one, _other], [mut two, _second]) = two_on_one(bed, &srq);
    send(&mut one, bed.filled(8, 4));
    assert!(two.queues().next_recv(Duration::from_millis(20)).is_err());
    assert!(one.queues().next_send(Duration::ZERO).is_err(), "not acknowledged");
    srq.post(&mut vec![bed.filled(8, 0)]).expect("a receive");
    assert_eq!(received(&mut two).bytes(), [4; 8]);
    assert_eq!(sent(&mut one, &mut two).status, Status::Success);
}
