//! Completions, statuses and failure: CP, RC, SM.

use std::time::Duration;

use doorbell_cm::{Buffer, ConnParam, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, SOON, number, part, received, send, send_inline, sent};
use crate::harness::skip;

cases! {
    cp_01_an_error_has_its_buffer_and_status_and_nothing_else
    cp_02_a_receive_tells_how_much_has_come
    cp_03_immediate_data_arrives_as_it_was_sent
    cp_04_completions_keep_the_order_of_their_queue
    rc_01_a_sender_waits_for_a_receive
    rc_01_a_sender_with_finite_retries_gets_status_13
    ck_01_a_receive_too_short_fails_both_sides
    sm_02_outstanding_requests_are_flushed_in_order
    sm_02_posts_in_error_are_taken_and_flushed
    a_wait_for_a_completion_ends_in_time
}

fn cp_01_an_error_has_its_buffer_and_status_and_nothing_else<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    one.queues().post_recv(bed.filled(8, 3)).expect("a receive");
    part(&mut one, &mut two);
    let flushed = one.queues().next_recv(SOON).expect("it comes back");
    assert_eq!((flushed.status, flushed.len, flushed.imm), (Status::Flushed, 0, None));
    assert!(flushed.bytes().is_empty());
    let error = flushed.ok().expect_err("flushed");
    assert!(error.to_string().contains("status 5"), "{error}");
}

/// The receive's own length does not count. Other tests cover READs, WRITEs with immediate data and
/// datagrams.
fn cp_02_a_receive_tells_how_much_has_come<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    let memory = doorbell_cm::Exposed::new(&bed.fabric, 64, Access::all()).expect("memory");
    for len in [1, 8, 63, 64, 1500, 9000] {
        // Several in a row as well: a device may handle those differently from a single one.
        for count in [1, 4] {
            let mut receives = Buffer::many(&bed.fabric, count, 9000).expect("buffers");
            two.queues().post_recvs(&mut receives).expect("receives");
            let mut buffers = Buffer::many(&bed.fabric, count, len).expect("buffers");
            let last = buffers.pop().expect("one at least");
            for buffer in buffers {
                one.queues()
                    .post_send(buffer, len, SendOp::Send, SendFlags::empty())
                    .expect("post");
            }
            send(&mut one, last);
            for _ in 0..count {
                let got = received(&mut two);
                assert_eq!((got.len, got.bytes().len()), (len, len));
            }
            sent(&mut one, &mut two).ok().expect("sent");
        }
    }
    let add = SendOp::FetchAdd { at: memory.remote(0), add: 1 };
    one.queues().post_send(bed.filled(8, 0), 8, add, SendFlags::SIGNALED).expect("an atomic");
    assert_eq!(sent(&mut one, &mut two).ok().expect("done").len, 8);
}

fn cp_03_immediate_data_arrives_as_it_was_sent<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(3)).expect("receives");
    let flags = SendFlags::SIGNALED;
    one.queues().post_inline(&[5], SendOp::SendWithImm(0x0102_0304), flags).expect("post");
    one.queues().post_inline(&[], SendOp::SendWithImm(0), flags).expect("post");
    one.queues().post_inline(&[6], SendOp::Send, flags).expect("post");
    let got: Vec<_> = (0..3).map(|_| received(&mut two)).collect();
    let imms: Vec<_> = got.iter().map(|completion| completion.imm).collect();
    assert_eq!(imms, [Some(0x0102_0304), Some(0), None]);
    assert_eq!((got[0].bytes(), got[1].len, got[2].bytes()), (&[5][..], 0, &[6][..]));
}

fn cp_04_completions_keep_the_order_of_their_queue<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let depth = 4;
    two.queues().post_recvs(&mut bed.numbered(depth)).expect("receives");
    let mut buffers = bed.numbered(depth);
    for buffer in buffers.drain(..) {
        send(&mut one, buffer);
    }
    for at in 0..depth {
        assert_eq!(received(&mut two).bytes(), [at as u8]);
        assert_eq!(number(&sent(&mut one, &mut two)), at as u8);
    }
}

fn rc_01_a_sender_waits_for_a_receive<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    send(&mut one, bed.filled(8, 7));
    assert!(two.queues().next_recv(Duration::from_millis(20)).is_err());
    assert!(one.queues().next_send(Duration::from_millis(20)).is_err(), "not acknowledged");
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    assert_eq!(received(&mut two).bytes(), [7; 8]);
    sent(&mut one, &mut two).ok().expect("it went through");
}

fn rc_01_a_sender_with_finite_retries_gets_status_13<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small();
    let accept = ConnParam { rnr_retry: 1, ..ConnParam::default() };
    let (mut one, mut two) = bed.pair_with(&init, &init, &ConnParam::default(), &accept);
    send(&mut one, bed.filled(8, 7));
    assert_eq!(sent(&mut one, &mut two).status, Status::RnrRetryExceeded);
}

fn ck_01_a_receive_too_short_fails_both_sides<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(8, 9)).expect("a receive");
    send(&mut one, bed.filled(9, 7));
    let got = two.queues().next_recv(SOON).expect("the receive is used up");
    // Hardware reports 1. rxe finds out while it copies, and reports 2 here and 11 there.
    let legal = [Status::LocalLength, Status::RemoteInvalidRequest, Status::LocalQpOperation];
    assert!(legal.contains(&got.status), "{:?}", got.status);
    if bed.is_strict() {
        assert_eq!(got.status, Status::LocalLength);
        assert_eq!(got.buffer.expect("it comes back")[..], [9; 8], "nothing was written");
    }
    assert!(bed.is_too_long_there(sent(&mut one, &mut two).status));
}

fn sm_02_outstanding_requests_are_flushed_in_order<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    one.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    // No receive is posted at the other side: these stay outstanding.
    for (at, buffer) in bed.numbered(4).into_iter().enumerate() {
        let flags = if at % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        one.queues().post_send(buffer, 1, SendOp::Send, flags).expect("post");
    }
    part(&mut one, &mut two);
    for at in 0..4 {
        let receive = one.queues().next_recv(SOON).expect("every receive comes back");
        assert_eq!((receive.status, number(&receive)), (Status::Flushed, at));
        let send = one.queues().next_send(SOON).expect("every send, signalled or not");
        assert_eq!((send.status, number(&send)), (Status::Flushed, at));
    }
}

fn sm_02_posts_in_error_are_taken_and_flushed<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    part(&mut one, &mut two);
    one.queues().post_recv(bed.filled(8, 0)).expect("taken");
    one.queues().post_inline(&[1], SendOp::Send, SendFlags::empty()).expect("taken");
    if bed.is_strict() {
        assert_eq!(one.queues().next_recv(SOON).expect("comes back").status, Status::Flushed);
    } else {
        skip("this device does not look at receives that are posted in error");
    }
    assert_eq!(one.queues().next_send(SOON).expect("comes back").status, Status::Flushed);
}

fn a_wait_for_a_completion_ends_in_time<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    send_inline(&mut one, &[]);
    let error = two.queues().next_recv(Duration::from_millis(5)).expect_err("no receive is posted");
    assert_eq!(error.code(), Code::TimedOut);
    let error = two.queues().next_send(Duration::ZERO).expect_err("nothing was sent");
    assert_eq!(error.code(), Code::TimedOut);
}
