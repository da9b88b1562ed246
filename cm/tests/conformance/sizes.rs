//! Queues that change their size: CP-8 and SRQ-15.

use std::time::Duration;

use doorbell_cm::{CompletionQueue, Fabric, Id, SharedReceive, SrqInit};
use doorbell_seam::error::Code;
use doorbell_seam::wr::PostCause;

use crate::bed::{Bed, Pair, SOON, number, received, send, sent};
use crate::harness::{another, skip};

cases! {
    cp_08_a_queue_grows_and_keeps_its_entries
    cp_08_a_queue_does_not_shrink_below_its_entries
    cp_08_sizes_out_of_range_are_refused
    cp_08_a_queue_stays_armed
    cp_08_a_queue_grows_while_messages_come
    srq_15_grows_and_keeps_its_receives
    srq_15_does_not_shrink_below_its_posted_receives
    srq_15_of_xrc_takes_its_completion_queue_along
}

/// A pair whose second side's receives complete in `cq`.
fn pair_into<F: Fabric>(bed: &Bed<F>, cq: &CompletionQueue<F>) -> Pair<F> {
    let (deep, none) = (bed.small().send_wr(8).recv_wr(8), Default::default());
    let (one, mut two) = bed.pair_with(&deep, &deep.clone().recv_cq(cq), &none, &none);
    two.queues().post_recvs(&mut bed.numbered(8)).expect("receives");
    (one, two)
}

/// Sends that many messages; their completions wait in the other side's queue.
fn send_all<F: Fabric>(bed: &Bed<F>, (one, two): (&mut Id<F>, &mut Id<F>), count: usize) {
    for buffer in bed.numbered(count) {
        send(one, buffer);
        sent(one, two).ok().expect("it has arrived");
    }
}

fn assert_order<F: Fabric>(two: &mut Id<F>, count: u8) {
    for at in 0..count {
        let completion = received(two);
        assert_eq!((number(&completion), completion.bytes()), (at % 4, &[at % 4][..]));
    }
    let none = two.queues().next_recv(Duration::from_millis(5)).expect_err("that was all");
    assert_eq!(none.code(), Code::TimedOut);
}

fn cp_08_a_queue_grows_and_keeps_its_entries<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 4).expect("a completion queue");
    let (mut one, mut two) = pair_into(bed, &cq);
    send_all(bed, (&mut one, &mut two), 4);
    let depth = cq.resize(&bed.fabric, 8).expect("it grows");
    assert!(depth >= 8 && cq.depth() == depth, "{depth}");
    send_all(bed, (&mut one, &mut two), 4);
    assert_order(&mut two, 8);
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    send_all(bed, (&mut one, &mut two), 4);
    assert_order(&mut two, 4);
}

fn cp_08_a_queue_does_not_shrink_below_its_entries<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    let (mut one, mut two) = pair_into(bed, &cq);
    send_all(bed, (&mut one, &mut two), 4);
    let error = cq.resize(&bed.fabric, 3).expect_err("four wait in it");
    assert_eq!((error.code(), cq.depth()), (Code::Invalid, 8), "{error}");
    let depth = cq.resize(&bed.fabric, 4).expect("they have room");
    if bed.is_strict() {
        assert_eq!(depth, 4);
    }
    assert_order(&mut two, 4);
    cq.resize(&bed.fabric, 1).expect("nothing waits in it");
}

fn cp_08_sizes_out_of_range_are_refused<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    for depth in [0, bed.fabric.caps().cqe_max + 1, u32::MAX] {
        let error = cq.resize(&bed.fabric, depth).expect_err("no such size");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
    cq.resize(&bed.fabric, 16).expect("after the refusals");
    if let Some(other) = another::<F>() {
        let error = cq.resize(&other, 16).expect_err("another device's");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

fn cp_08_a_queue_stays_armed<F: Fabric>(bed: &Bed<F>) {
    let cq = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    let (mut one, mut two) = pair_into(bed, &cq);
    cq.arm(false).expect("arm");
    cq.resize(&bed.fabric, 64).expect("it grows");
    send_all(bed, (&mut one, &mut two), 1);
    assert!(cq.wait(Some(SOON)).expect("wait"), "the message wakes");
    assert_order(&mut two, 1);
}

fn cp_08_a_queue_grows_while_messages_come<F: Fabric>(bed: &Bed<F>) {
    const ROUNDS: u32 = 40;
    let cq = CompletionQueue::new(&bed.fabric, 8).expect("a completion queue");
    let (mut one, mut two) = pair_into(bed, &cq);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for depth in 0..4 * ROUNDS {
                cq.resize(&bed.fabric, 8 + depth).expect("it grows");
            }
        });
        for _ in 0..ROUNDS {
            for buffer in bed.numbered(4) {
                send(&mut one, buffer);
            }
            for at in 0..4 {
                assert_eq!(received(&mut two).bytes(), [at]);
                two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
                sent(&mut one, &mut two).ok().expect("sent");
            }
        }
    });
}

fn srq_15_grows_and_keeps_its_receives<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 4).expect("a receive queue");
    if !bed.fabric.caps().srq_resize {
        let error = srq.resize(8).expect_err("the device cannot");
        assert_eq!(error.code(), Code::NotSupported);
        return skip("this device's receive queues have one size");
    }
    let none = Default::default();
    let (deep, shared) = (bed.small().send_wr(8), bed.small().recv_wr(64).srq(&srq));
    let (mut one, mut two) = bed.pair_with(&deep, &shared, &none, &none);
    let mut list = bed.numbered(8);
    let mut later = list.split_off(4);
    srq.post(&mut list).expect("four receives");
    srq.resize(40).expect("it grows");
    assert!(srq.depth() >= 40, "{}", srq.depth());
    srq.post(&mut later).expect("four more");
    for round in 0..2 {
        for at in 0..8_u8 {
            send(&mut one, bed.filled(1, at));
            let completion = received(&mut two);
            assert_eq!(completion.bytes(), [at]);
            let mut again: Vec<_> = completion.buffer.into_iter().collect();
            srq.post(&mut again).expect("its receive again");
            sent(&mut one, &mut two).ok().expect("sent");
        }
        if round == 0 {
            srq.resize(64).expect("and once more");
        }
    }
    let mut rest = bed.numbered(srq.depth() as usize - 8);
    srq.post(&mut rest).expect("as many as it has room for");
    let full = srq.post(&mut bed.numbered(1)).expect_err("and no more");
    assert_eq!(full.cause, PostCause::Full);
}

fn srq_15_does_not_shrink_below_its_posted_receives<F: Fabric>(bed: &Bed<F>) {
    if !bed.fabric.caps().srq_resize {
        return skip("this device's receive queues have one size");
    }
    let srq = SharedReceive::new(&bed.fabric, 16).expect("a receive queue");
    let none = Default::default();
    let shared = bed.small().srq(&srq);
    let (mut one, mut two) = bed.pair_with(&bed.small(), &shared, &none, &none);
    srq.post(&mut bed.numbered(8)).expect("receives");
    for depth in [0, 7, bed.fabric.caps().srq_wr_max + 1] {
        let error = srq.resize(depth).expect_err("no such size");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
    srq.resize(8).expect("they have room");
    if bed.is_strict() {
        assert_eq!(srq.depth(), 8);
        srq.set_limit(6).expect("a limit");
        send(&mut one, bed.filled(1, 7));
        received(&mut two);
        let error = srq.resize(5).expect_err("the limit is more");
        assert_eq!(error.code(), Code::Invalid, "{error}");
        sent(&mut one, &mut two).ok().expect("sent");
    }
    for at in 0..4 {
        send(&mut one, bed.filled(1, at));
        assert_eq!(received(&mut two).bytes(), [at], "the refusals have cost nothing");
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

fn srq_15_of_xrc_takes_its_completion_queue_along<F: Fabric>(bed: &Bed<F>) {
    let caps = bed.fabric.caps();
    if !caps.xrc || !caps.srq_resize {
        return skip("this device has no receive queues of XRC that grow");
    }
    let srq = SharedReceive::with(&bed.fabric, &SrqInit::xrc(2)).expect("a receive queue");
    let full = srq.post(&mut bed.numbered(3)).expect_err("it is for two");
    assert_eq!(full.cause, PostCause::Full);
    srq.resize(6).expect("it grows");
    assert_eq!((srq.depth(), srq.cq().map(CompletionQueue::depth)), (6, Some(6)));
    srq.post(&mut bed.numbered(4)).expect("four more");
    let full = srq.post(&mut bed.numbered(1)).expect_err("it is for six");
    assert_eq!(full.cause, PostCause::Full);
}
