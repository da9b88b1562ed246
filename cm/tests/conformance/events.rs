//! Wake-ups (CP-6, RC-1), the limit of a shared receive queue (SRQ-14), asynchronous events (AE-1).
#![expect(unsafe_code, reason = "poll(2) has no safe form in std")]

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{CompletionQueue, ConnParam, Exposed, Fabric, Id, QpInit, SharedReceive};
use doorbell_seam::error::Code;
use doorbell_seam::event::{AsyncEvent, AsyncKind, Object};
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON, part, received, send_inline, sent};
use crate::harness::skip;

cases! {
    cp_06_a_completion_wakes_the_thread_that_armed
    cp_06_earlier_completions_wake_nobody
    cp_06_one_arm_is_one_wake
    cp_06_what_an_earlier_arm_awaited_still_wakes
    cp_06_a_wait_for_any_completion_stays_one
    cp_06_solicited_only_wakes_for_those
    cp_06_errors_wake_a_wait_for_solicited
    cp_06_no_wake_up_is_lost
    cp_06_sends_wake_too
    cp_06_the_descriptors_of_several_queues_say_which_to_look_at
    rc_01_a_wait_for_a_receive_lets_the_thread_sleep
    srq_14_limit_comes_once_and_is_gone
    srq_14_limit_beyond_the_depth_is_refused
    cp_05_an_overrun_is_an_event_of_the_queue
    ae_01_kinds_have_the_numbers_of_c
    ae_01_an_access_error_is_an_event_of_the_target
    srq_16_last_wqe_reached_comes_when_a_queue_pair_is_done_with_its_queue
}

const NOW: Duration = Duration::ZERO;

fn recv_queue<F: Fabric>(id: &Id<F>) -> CompletionQueue<F> {
    id.recv_cq().expect("a queue pair").clone()
}

fn wakes<F: Fabric>(queue: &CompletionQueue<F>) -> bool {
    queue.wait(Some(SOON)).expect("wait")
}

fn sleeps_on<F: Fabric>(queue: &CompletionQueue<F>) -> bool {
    !queue.wait(Some(A_WHILE)).expect("wait")
}

fn cp_06_a_completion_wakes_the_thread_that_armed<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    let queue = recv_queue(&two);
    for byte in [1, 2] {
        queue.arm(false).expect("arm");
        assert!(sleeps_on(&queue), "nothing has come");
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| wakes(&queue));
            thread::sleep(Duration::from_millis(5));
            send_inline(&mut one, &[byte]);
            assert!(sleeper.join().expect("the sleeper"));
        });
        assert_eq!(two.queues().next_recv(NOW).expect("it is there").bytes(), [byte]);
    }
}

fn cp_06_earlier_completions_wake_nobody<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(1)).expect("receives");
    let queue = recv_queue(&two);
    send_inline(&mut one, &[1]);
    sent(&mut one, &mut two).ok().expect("sent: the message is in the other queue");
    queue.arm(false).expect("arm");
    assert!(sleeps_on(&queue));
    assert_eq!(two.queues().next_recv(NOW).expect("it is there").bytes(), [1]);
}

fn cp_06_one_arm_is_one_wake<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    let queue = recv_queue(&two);
    queue.arm(false).expect("arm");
    send_inline(&mut one, &[1]);
    assert!(wakes(&queue));
    send_inline(&mut one, &[2]);
    assert!(sleeps_on(&queue), "it was armed once");
    received(&mut two);
    received(&mut two);
}

fn cp_06_what_an_earlier_arm_awaited_still_wakes<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(1)).expect("receives");
    let queue = recv_queue(&two);
    queue.arm(false).expect("arm");
    send_inline(&mut one, &[1]);
    received(&mut two);
    queue.arm(false).expect("arm");
    assert!(wakes(&queue), "the message came before the second call");
}

fn cp_06_a_wait_for_any_completion_stays_one<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(1)).expect("receives");
    let queue = recv_queue(&two);
    queue.arm(false).expect("arm");
    queue.arm(true).expect("arm");
    send_inline(&mut one, &[1]);
    assert!(wakes(&queue), "the message need not be solicited");
    received(&mut two);
}

fn cp_06_solicited_only_wakes_for_those<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    let queue = recv_queue(&two);
    queue.arm(true).expect("arm");
    send_inline(&mut one, &[1]);
    assert!(sleeps_on(&queue), "not solicited");
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    one.queues().post_inline(&[2], SendOp::Send, flags).expect("post");
    assert!(wakes(&queue));
    received(&mut two);
    received(&mut two);
}

fn cp_06_errors_wake_a_wait_for_solicited<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recvs(&mut bed.numbered(1)).expect("receives");
    let queue = recv_queue(&two);
    if !bed.is_strict() {
        return skip("this device never flushes receives");
    }
    queue.arm(true).expect("arm");
    part(&mut two, &mut one);
    assert!(wakes(&queue));
    assert!(two.queues().next_recv(NOW).expect("flushed").ok().is_err());
}

/// Waits for the next message in the usual way: arm, poll, sleep.
fn next_message<F: Fabric>(id: &mut Id<F>, queue: &CompletionQueue<F>) -> u8 {
    loop {
        queue.arm(false).expect("arm");
        if let Ok(completion) = id.queues().next_recv(NOW) {
            return completion.ok().expect("a message").bytes()[0];
        }
        assert!(wakes(queue), "a wake-up was lost");
    }
}

/// One side of a long exchange in which both sides sleep for each message.
pub(crate) fn sleepy<F: Fabric>(bed: &Bed<F>, id: &mut Id<F>, first: bool) {
    let rounds = if bed.is_strict() { 500 } else { 200 };
    let queue = recv_queue(id);
    for round in 0..rounds {
        if first {
            send_inline(id, &[round as u8]);
        }
        assert_eq!(next_message(id, &queue), round as u8);
        id.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        if !first {
            send_inline(id, &[round as u8]);
        }
        while id.queues().next_send(NOW).is_ok() {}
    }
}

fn cp_06_no_wake_up_is_lost<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    one.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    thread::scope(|scope| {
        scope.spawn(|| sleepy(bed, &mut two, false));
        sleepy(bed, &mut one, true);
    });
}

fn cp_06_sends_wake_too<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let queue = one.send_cq().expect("a queue pair").clone();
    queue.arm(false).expect("arm");
    send_inline(&mut one, &[1]);
    assert!(sleeps_on(&queue), "there is no receive");
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wakes(&queue));
        thread::sleep(Duration::from_millis(5));
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        received(&mut two);
        assert!(sleeper.join().expect("the sleeper"));
    });
    one.queues().next_send(NOW).expect("it is there").ok().expect("sent");
}

/// A device of rdma-core has one stream of events for all users, so one case at a time reads it.
pub(crate) static EVENTS: Mutex<()> = Mutex::new(());

pub(crate) fn event<F: Fabric>(bed: &Bed<F>, wanted: AsyncEvent) {
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        match bed.fabric.next_async_event() {
            Some(event) if event == wanted => return,
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("{wanted:?} did not come");
}

pub(crate) fn is_silent<F: Fabric>(bed: &Bed<F>, unwanted: AsyncEvent) -> bool {
    thread::sleep(A_WHILE);
    std::iter::from_fn(|| bed.fabric.next_async_event()).all(|event| event != unwanted)
}

/// True if a descriptor of one of the queues becomes readable in time.
fn readable<F: Fabric>(queues: &[&CompletionQueue<F>], limit: Duration) -> bool {
    let fds = queues.iter().filter_map(|queue| queue.wake_fds());
    let mut entries: Vec<libc::pollfd> = fds
        .flat_map(|fds| [Some(fds.device), fds.queue])
        .flatten()
        .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
        .collect();
    let millis = limit.as_millis() as i32;
    // SAFETY: the vector has that many entries.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, millis) > 0 }
}

fn cp_06_the_descriptors_of_several_queues_say_which_to_look_at<F: Fabric>(bed: &Bed<F>) {
    let mut pairs = [bed.pair(&bed.small()), bed.pair(&bed.small())];
    let queues = [recv_queue(&pairs[0].1), recv_queue(&pairs[1].1)];
    let both = [&queues[0], &queues[1]];
    for queue in both {
        queue.arm(false).expect("arm");
    }
    for at in [1, 0] {
        let end = Instant::now() + SOON;
        // They may be readable because of the device's own work, which a poll does.
        while readable(&both, A_WHILE) {
            assert!(both.iter().all(|queue| sleeps_on(queue)), "nothing has come");
            assert!(Instant::now() < end, "it does not become quiet");
        }
        let (one, two) = &mut pairs[at];
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        send_inline(one, &[at as u8]);
        while !queues[at].wait(Some(NOW)).expect("a look") {
            assert!(readable(&both, SOON) && Instant::now() < end, "it did not come");
        }
        assert!(!queues[1 - at].wait(Some(NOW)).expect("a look"), "not this one");
        assert_eq!(two.queues().next_recv(NOW).expect("it is there").bytes(), [at as u8]);
        one.queues().next_send(SOON).expect("sent").ok().expect("well");
    }
}

/// The time for which this thread has had a core.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Until the retries end, or until another thread posts a receive.
fn rc_01_a_wait_for_a_receive_lets_the_thread_sleep<F: Fabric>(bed: &Bed<F>) {
    // Each is 164 ms later than the one before.
    const SLOW: u8 = 28;
    let init = bed.small();
    for late in [false, true] {
        let twice = ConnParam { rnr_retry: if late { 7 } else { 2 }, ..ConnParam::default() };
        let (mut one, mut two) = bed.pair_with(&init, &init, &ConnParam::default(), &twice);
        two.set_rnr_timer(SLOW).expect("connected");
        let queue = one.send_cq().expect("a queue pair").clone();
        let (begin, used_before) = (Instant::now(), used());
        thread::scope(|scope| {
            send_inline(&mut one, &[1]);
            queue.arm(false).expect("arm");
            assert!(one.queues().next_send(NOW).is_err(), "it waits");
            if late {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(200));
                    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
                });
            }
            assert!(wakes(&queue));
        });
        let (waited, used) = (begin.elapsed(), used() - used_before);
        let status = one.queues().next_send(SOON).expect("it has ended").status;
        assert_eq!(status, if late { Status::Success } else { Status::RnrRetryExceeded });
        assert!(used < waited / 4, "the thread slept for {waited:?} and used {used:?}");
    }
}

fn srq_14_limit_comes_once_and_is_gone<F: Fabric>(bed: &Bed<F>) {
    let _one_at_a_time = EVENTS.lock();
    let srq = SharedReceive::new(&bed.fabric, 16).expect("a shared receive queue");
    let wanted = AsyncEvent { kind: AsyncKind::SrqLimitReached, object: Object::Srq(srq.id()) };
    let init = bed.small();
    let shared = bed.small().srq(&srq);
    let (mut one, mut two) =
        bed.pair_with(&init, &shared, &Default::default(), &Default::default());
    srq.post(&mut bed.numbered(10)).expect("receives");
    srq.set_limit(7).expect("a limit");
    assert_eq!(srq.limit().expect("query"), 7);
    for byte in 0..3 {
        send_inline(&mut one, &[byte]);
        received(&mut two);
        sent(&mut one, &mut two).ok().expect("sent");
    }
    assert!(is_silent(bed, wanted), "seven are left");
    send_inline(&mut one, &[3]);
    received(&mut two);
    event(bed, wanted);
    assert_eq!(srq.limit().expect("query"), 0, "one shot");
    sent(&mut one, &mut two).ok().expect("sent");
    send_inline(&mut one, &[4]);
    received(&mut two);
    assert!(is_silent(bed, wanted));
}

fn srq_14_limit_beyond_the_depth_is_refused<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 16).expect("a shared receive queue");
    let error = srq.set_limit(srq.depth() + 1).expect_err("too much");
    assert_eq!(error.code(), Code::Invalid);
}

fn cp_05_an_overrun_is_an_event_of_the_queue<F: Fabric>(bed: &Bed<F>) {
    let _one_at_a_time = EVENTS.lock();
    let small = CompletionQueue::new(&bed.fabric, 1).expect("a queue");
    let wanted = AsyncEvent { kind: AsyncKind::CqError, object: Object::Cq(small.id(&bed.fabric)) };
    let init = QpInit::rc().send_wr(8).recv_wr(8).inline(16).signal_all(true);
    let tight = init.clone().recv_cq(&small);
    let (mut one, mut two) = bed.pair_with(&init, &tight, &Default::default(), &Default::default());
    two.queues().post_recvs(&mut bed.numbered(8)).expect("receives");
    for byte in 0..8 {
        // The peer fails meanwhile.
        if one.queues().post_inline(&[byte], SendOp::Send, SendFlags::SIGNALED).is_err() {
            break;
        }
        let _ = one.queues().next_send(A_WHILE);
    }
    event(bed, wanted);
    if bed.is_strict() {
        let fatal = AsyncEvent {
            kind: AsyncKind::QpFatal,
            object: Object::Qp(two.qp().expect("a queue pair").0),
        };
        event(bed, fatal);
        while two.queues().next_recv(A_WHILE).is_ok() {}
        two.queues().post_inline(&[1], SendOp::Send, SendFlags::SIGNALED).expect("ERR takes it");
        assert_eq!(two.queues().next_send(SOON).expect("flushed").status, Status::Flushed);
        assert!(two.queues().next_recv(A_WHILE).is_err(), "the queue has stopped for good");
    }
}

fn ae_01_kinds_have_the_numbers_of_c<F: Fabric>(_bed: &Bed<F>) {
    let some = [
        (AsyncKind::CqError, 0),
        (AsyncKind::QpFatal, 1),
        (AsyncKind::QpRequestError, 2),
        (AsyncKind::QpAccessError, 3),
        (AsyncKind::SrqError, 14),
        (AsyncKind::SrqLimitReached, 15),
        (AsyncKind::LastWqeReached, 16),
    ];
    for (kind, number) in some {
        assert_eq!(kind as u32, number, "{kind:?}");
    }
}

fn ae_01_an_access_error_is_an_event_of_the_target<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device has no such event (R13b)");
    }
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = Exposed::new(&bed.fabric, 64, Access::REMOTE_READ).expect("exposed memory");
    let qp = two.qp().expect("a queue pair").0;
    one.queues()
        .post_send(bed.filled(8, 1), 8, SendOp::Write(memory.remote(0)), SendFlags::SIGNALED)
        .expect("post");
    assert!(sent(&mut one, &mut two).ok().is_err());
    event(bed, AsyncEvent { kind: AsyncKind::QpAccessError, object: Object::Qp(qp) });
}

fn srq_16_last_wqe_reached_comes_when_a_queue_pair_is_done_with_its_queue<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device never says so (R5)");
    }
    let srq = SharedReceive::new(&bed.fabric, 16).expect("a shared receive queue");
    let (mut one, mut two) = bed.pair(&bed.small().srq(&srq));
    let qp = two.qp().expect("a queue pair").0;
    let wanted = AsyncEvent { kind: AsyncKind::LastWqeReached, object: Object::Qp(qp) };
    assert!(is_silent(bed, wanted));
    part(&mut two, &mut one);
    assert!(two.queues().next_recv(A_WHILE).is_err(), "the receives stay");
    event(bed, wanted);
}
