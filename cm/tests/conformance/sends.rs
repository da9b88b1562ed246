//! The send queue and list posts: SQ, PL, and messages of all sizes.

use std::time::{Duration, Instant};

use doorbell_cm::{Fabric, Id, QpInit, SendRequest};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Provider};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{Binding, PostCause, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON, number, received, send, send_inline, sent};
use crate::harness::skip;

cases! {
    sq_01_a_full_send_queue_refuses_until_a_completion_is_polled
    sq_02_unsignalled_sends_lock_the_queue
    sq_02_a_signalled_send_frees_those_before_it
    sq_03_an_error_completes_signalled_or_not
    sq_04_an_inline_buffer_is_free_at_once_and_its_length_is_checked
    sq_08_signal_all_signals_all
    sq_09_an_empty_message_takes_a_receive
    sq_10_messages_of_every_size_arrive_whole
    pl_01_a_list_stops_at_the_first_refused_and_the_rest_runs
    pl_02_a_list_that_is_taken_is_empty_and_pl_03_is_used_again_at_once
    pl_04_a_batch_that_cannot_be_built_posts_nothing
    pl_05_a_full_receive_queue_takes_the_first_of_a_list
    rc_07_posts_keep_their_order_over_many_rounds
}

fn request<F: Fabric>(bed: &Bed<F>, byte: u8, flags: SendFlags) -> SendRequest<F> {
    SendRequest { buffer: bed.filled(1, byte), len: 1, op: SendOp::Send, flags }
}

/// Posts one-byte inline sends until the queue refuses one; returns how many it accepted.
fn fill<F: Fabric>(id: &mut Id<F>, flags: SendFlags) -> usize {
    let mut posted = 0;
    loop {
        match id.queues().post_inline(&[posted as u8], SendOp::Send, flags) {
            Ok(()) => posted += 1,
            Err(refused) => {
                assert_eq!(refused.cause, PostCause::Full);
                return posted;
            }
        }
        assert!(posted < 1000, "it never is full");
    }
}

fn sq_01_a_full_send_queue_refuses_until_a_completion_is_polled<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let depth = one.qp().expect("a queue pair").1.send_wr as usize;
    let took = fill(&mut one, SendFlags::empty());
    assert!(took >= depth, "{took} of {depth}");
    if bed.is_strict() {
        assert_eq!(took, depth);
    }
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    if bed.is_strict() {
        received(&mut two);
        assert!(one.queues().next_recv(A_WHILE).is_err(), "its device works meanwhile");
        let refused = one.queues().post_inline(&[1], SendOp::Send, SendFlags::empty());
        assert_eq!(refused.expect_err("it has run, and is not polled").cause, PostCause::Full);
    }
    sent(&mut one, &mut two).ok().expect("sent");
    send_inline(&mut one, &[1]);
}

fn sq_02_unsignalled_sends_lock_the_queue<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device frees slots when a send has run, not when it is polled");
    }
    let (mut one, mut two) = bed.pair(&bed.quiet());
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    let took = fill(&mut one, SendFlags::empty());
    for _ in 0..took {
        received(&mut two);
    }
    assert!(one.queues().next_send(A_WHILE).is_err(), "none asked for a completion");
    let refused = one.queues().post_inline(&[1], SendOp::Send, SendFlags::SIGNALED);
    assert_eq!(refused.expect_err("locked for good").cause, PostCause::Full);
}

fn sq_02_a_signalled_send_frees_those_before_it<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    let flags = [SendFlags::empty(), SendFlags::empty(), SendFlags::SIGNALED];
    let mut list = Vec::new();
    for (at, flags) in flags.into_iter().enumerate() {
        list.push(request(bed, at as u8, flags));
    }
    one.queues().post_sends(&mut list).expect("post");
    assert!(list.is_empty(), "the device has them");
    assert!(one.queues().take_retired().is_empty(), "and keeps them");
    let done = sent(&mut one, &mut two);
    assert_eq!((done.status, number(&done)), (Status::Success, 2));
    let retired: Vec<u8> = one.queues().take_retired().iter().map(|buffer| buffer[0]).collect();
    assert_eq!(retired, [0, 1]);
    assert!(one.queues().next_send(A_WHILE).is_err(), "only one asked for a completion");
}

fn sq_03_an_error_completes_signalled_or_not<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    two.queues().post_recv(bed.filled(4, 0)).expect("a receive");
    one.queues().post_send(bed.filled(8, 1), 8, SendOp::Send, SendFlags::empty()).expect("post");
    let failed = sent(&mut one, &mut two);
    assert!(bed.is_too_long_there(failed.status), "{:?}", failed.status);
    assert_eq!(failed.buffer.expect("its buffer comes back")[..], [1; 8]);
}

fn sq_04_an_inline_buffer_is_free_at_once_and_its_length_is_checked<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(16, 0)).expect("a receive");
    let mut bytes = [1; 16];
    send_inline(&mut one, &bytes);
    bytes.fill(2);
    assert_eq!(received(&mut two).bytes(), [1; 16]);
    assert_eq!(bytes, [2; 16]);
    assert!(sent(&mut one, &mut two).ok().expect("sent").buffer.is_none());
    let limit = one.qp().expect("a queue pair").1.inline as usize;
    let refused = one.queues().post_inline(&vec![1; limit + 1], SendOp::Send, SendFlags::SIGNALED);
    let cause = refused.expect_err("too long").cause;
    assert!(matches!(cause, PostCause::InlineTooLong | PostCause::Device(_)), "{cause}");
}

fn sq_08_signal_all_signals_all<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small().signal_all(true));
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    for byte in [1, 2] {
        one.queues().post_inline(&[byte], SendOp::Send, SendFlags::empty()).expect("post");
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

fn sq_09_an_empty_message_takes_a_receive<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(3)).expect("receives");
    send_inline(&mut one, &[]);
    one.queues().post_send(bed.filled(8, 1), 0, SendOp::Send, SendFlags::SIGNALED).expect("post");
    send_inline(&mut one, &[7]);
    let lengths: Vec<usize> = (0..3).map(|_| received(&mut two).len).collect();
    assert_eq!(lengths, [0, 0, 1]);
    let beyond = one.queues().post_send(bed.filled(8, 1), 9, SendOp::Send, SendFlags::SIGNALED);
    assert_eq!(beyond.expect_err("past the buffer").cause, PostCause::BeyondBuffer);
}

fn sq_10_messages_of_every_size_arrive_whole<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let sizes = [1, 2, 7, 8, 40, 41, 63, 64, 65, 208, 209, 1000, 1023, 1024, 1025, 4096];
    for size in sizes.into_iter().chain([65_535, 65_536, 100_001, 1 << 20]) {
        let mut buffer = bed.filled(size, 0);
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = (at as u8).wrapping_mul(31).wrapping_add(size as u8);
        }
        two.queues().post_recv(bed.filled(size, 0xee)).expect("a receive");
        send(&mut one, buffer);
        let got = received(&mut two);
        assert_eq!(got.len, size, "CP-2");
        let mine = sent(&mut one, &mut two).ok().expect("sent").buffer.expect("it comes back");
        assert!(got.bytes() == &mine[..], "the bytes of a message of {size}");
    }
    let longest = Provider::caps(&bed.fabric).message_max;
    assert!(longest >= 1 << 20);
}

fn pl_01_a_list_stops_at_the_first_refused_and_the_rest_runs<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    let depth = one.qp().expect("a queue pair").1.send_wr as usize;
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    let flags = SendFlags::SIGNALED;
    let mut list: Vec<_> = (0..depth * 4 + 8).map(|at| request(bed, at as u8, flags)).collect();
    let asked = list.len();
    let refused = one.queues().post_sends(&mut list).expect_err("more than fit");
    assert_eq!(refused.cause, PostCause::Full);
    let took = asked - list.len();
    assert!(took >= depth, "{took} of {depth}");
    if bed.is_strict() {
        assert_eq!(took, depth);
    }
    assert_eq!(usize::from(list[0].buffer[0]), took, "the refused one is the first of the rest");
    for at in 0..took {
        let done = sent(&mut one, &mut two);
        assert_eq!((done.status, number(&done)), (Status::Success, at as u8));
        received(&mut two);
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    }
}

fn pl_02_a_list_that_is_taken_is_empty_and_pl_03_is_used_again_at_once<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let (mut receives, mut sends) = (bed.numbered(4), Vec::new());
    two.queues().post_recvs(&mut receives).expect("receives");
    assert!(receives.is_empty());
    for bytes in [[1, 2], [3, 4]] {
        sends.extend(bytes.map(|byte| request(bed, byte, SendFlags::SIGNALED)));
        one.queues().post_sends(&mut sends).expect("sends");
        assert!(sends.is_empty());
    }
    for byte in 1..=4 {
        assert_eq!(received(&mut two).bytes(), [byte]);
        assert_eq!(number(&sent(&mut one, &mut two)), byte);
    }
}

/// Errors that a batch of calls would collect and report at its end are reported here before the
/// device sees the request.
fn pl_04_a_batch_that_cannot_be_built_posts_nothing<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    let good = |byte| request(bed, byte, SendFlags::SIGNALED);
    let window =
        Binding { window: 0, region: 0, rkey: 0, addr: 0, length: 0, access: Access::empty() };
    // One byte too long, and an operation that has another call.
    let wrong = [
        (2, SendOp::Send, PostCause::BeyondBuffer),
        (1, SendOp::Bind(window), PostCause::Malformed),
    ];
    for (len, op, cause) in wrong {
        for at in 0..3 {
            let mut list: Vec<_> = (0..2).map(good).collect();
            list.insert(at, SendRequest { len, op, ..good(9) });
            let refused = one.queues().post_sends(&mut list).expect_err("one is wrong");
            assert_eq!((refused.cause, list.len()), (cause, 3), "{at}");
        }
    }
    assert!(two.queues().next_recv(A_WHILE).is_err(), "nothing was posted");
    one.queues().post_sends(&mut (0..4).map(good).collect()).expect("one that can be built");
    for at in 0..4 {
        assert_eq!(received(&mut two).bytes(), [at]);
        assert_eq!(number(&sent(&mut one, &mut two)), at);
    }
}

fn pl_05_a_full_receive_queue_takes_the_first_of_a_list<F: Fabric>(bed: &Bed<F>) {
    let mut one = bed.active(bed.at(7), &QpInit::rc().recv_wr(3));
    let mut list = bed.numbered(12);
    let refused = one.queues().post_recvs(&mut list).expect_err("more than fit");
    assert_eq!(refused.cause, PostCause::Full);
    let took = 12 - list.len();
    assert!((3..12).contains(&took), "{took}");
    assert_eq!(usize::from(list[0][0]), took, "the refused one is the first of the rest");
}

fn rc_07_posts_keep_their_order_over_many_rounds<F: Fabric>(bed: &Bed<F>) {
    let rounds = if bed.is_strict() { 20_000 } else { 200 };
    let init = QpInit::rc().send_wr(32).recv_wr(32).inline(16);
    let (mut one, mut two) = bed.pair(&init);
    two.queues()
        .post_recvs(&mut doorbell_cm::Buffer::many(&bed.fabric, 32, 8).expect("buffers"))
        .expect("receives");
    let (mut sent, mut seen) = (0_u64, 0_u64);
    let mut end = Instant::now() + SOON;
    while seen < rounds {
        // Every eighth send asks for a completion, which frees those before it.
        let ask = if sent % 8 == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        if sent < rounds && one.queues().post_inline(&sent.to_le_bytes(), SendOp::Send, ask).is_ok()
        {
            sent += 1;
        }
        match two.queues().next_recv(Duration::ZERO) {
            Ok(got) => {
                assert_eq!(got.bytes(), seen.to_le_bytes(), "in order, none twice, none lost");
                seen += 1;
                end = Instant::now() + SOON;
                two.queues().post_recv(got.buffer.expect("its buffer")).expect("again");
            }
            Err(error) => assert_eq!(error.code(), Code::TimedOut),
        }
        if let Ok(done) = one.queues().next_send(Duration::ZERO) {
            done.ok().expect("sent");
        }
        assert!(Instant::now() < end, "it stands still at {seen} of {sent}");
    }
}
