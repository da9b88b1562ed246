//! What a connected queue pair takes in each state, by the C interface. It sends to itself.
#![expect(unsafe_code, reason = "the C interface")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "our own calls, with what they gave")]

use std::ffi::c_void;
use std::mem::zeroed;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::abi_context::ibv_qp_init_attr_ex;
use crate::border::lock;
use crate::context::device;
use crate::cq::{
    cq_at, ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_get_cq_event, poll_cq,
    req_notify_cq, wake,
};
use crate::create_ex::create_qp_ex;
use crate::device::{ibv_get_device_list, ibv_query_gid};
use crate::memory::{ibv_alloc_pd, ibv_reg_mr};
use crate::open::ibv_open_device;
use crate::post::{post_recv, post_send};
use crate::qp::{ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use crate::srq::{ibv_create_srq, post_srq_recv};

/// The longest wait for a completion, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Own {
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    /// The same, or one with a channel.
    recv_cq: *mut ibv_cq,
    /// Or NULL.
    srq: *mut ibv_srq,
    piece: ibv_sge,
    to: ibv_ah_attr,
}

impl Own {
    /// In RESET.
    fn new() -> Own {
        Own::of(false, false)
    }

    /// In RESET, with a shared receive queue or without; with a queue for the completions of
    /// receives that has a channel, or without.
    fn of(has_srq: bool, has_channel: bool) -> Own {
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 64, null_mut(), null_mut(), 0);
            let mut recv_cq = cq;
            if has_channel {
                let channel = ibv_create_comp_channel(context);
                recv_cq = ibv_create_cq(context, 64, null_mut(), channel, 0);
                assert!(!recv_cq.is_null());
            }
            let mut cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, ..ibv_qp_cap::default() };
            cap.max_recv_sge = 2;
            let mut attr: ibv_qp_init_attr_ex = zeroed();
            if has_srq {
                let mut init: ibv_srq_init_attr = zeroed();
                (init.attr.max_wr, init.attr.max_sge) = (4, 2);
                attr.srq = ibv_create_srq(pd, &raw mut init);
                assert!(!attr.srq.is_null());
            }
            (attr.send_cq, attr.recv_cq, attr.cap, attr.qp_type) = (cq, recv_cq, cap, 2);
            // With an extended post, of SENDs.
            (attr.pd, attr.comp_mask, attr.send_ops_flags) = (pd, 1 | 1 << 6, 1 << 2);
            let qp = create_qp_ex(context, &raw mut attr);
            assert!(!qp.is_null());
            let room = Box::leak(vec![0_u8; 64].into_boxed_slice()).as_mut_ptr();
            let lkey = (*ibv_reg_mr(pd, room.cast::<c_void>(), 64, 1)).lkey;
            let piece = ibv_sge { addr: room as u64, length: 64, lkey };
            let mut gid = ibv_gid { raw: [0; 16] };
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            let mut to = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
            to.grh.dgid.raw = gid.raw;
            Own { qp, cq, recv_cq, srq: attr.srq, piece, to }
        }
    }

    /// Moves the queue pair to a state, with the attributes that this state needs.
    fn modify(&self, qp_state: i32) {
        let own = unsafe { (*self.qp).qp_num };
        assert_eq!(self.try_modify(qp_state, own), 0, "{qp_state}");
    }

    /// The same with that peer of its own device. Returns the errno.
    fn try_modify(&self, qp_state: i32, dest_qp_num: u32) -> i32 {
        const INIT: i32 = 1 | 8 | 16 | 32;
        const RTR: i32 = 1 | 128 | 256 | 4096 | 1 << 15 | 1 << 17 | 1 << 20;
        const RTS: i32 = 1 | 512 | 1024 | 2048 | 8192 | 1 << 16;
        let mask = *[1, INIT, RTR, RTS].get(qp_state as usize).unwrap_or(&1);
        let (ah_attr, path_mtu, port_num) = (self.to, 5, 1);
        let rest = ibv_qp_attr::default();
        let mut attr = ibv_qp_attr { qp_state, dest_qp_num, ah_attr, path_mtu, port_num, ..rest };
        unsafe { ibv_modify_qp(self.qp, &raw mut attr, mask) }
    }

    /// The state that a query shows.
    fn state(&self) -> i32 {
        unsafe {
            let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed::<ibv_qp_init_attr>());
            assert_eq!(ibv_query_qp(self.qp, &raw mut attr, 1, &raw mut init), 0);
            attr.qp_state
        }
    }

    /// Posts a list of `count` sends. Returns its errno, and the index of the send it refused.
    fn send(&self, count: usize) -> (i32, Option<usize>) {
        let mut piece = self.piece;
        let mut list = [(); 4].map(|()| unsafe { zeroed::<ibv_send_wr>() });
        let mut next = null_mut();
        for (n, wr) in list.iter_mut().enumerate().take(count).rev() {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (n as u64, &raw mut piece, 1);
            (wr.opcode, wr.send_flags, wr.next) = (2, 2, next);
            next = wr;
        }
        let mut bad = null_mut();
        let answer = unsafe { post_send(self.qp, next, &raw mut bad) };
        (answer, list.iter().position(|wr| std::ptr::eq(wr, bad)))
    }

    /// Posts a list of `count` receives, and returns the same.
    fn receive(&self, count: usize) -> (i32, Option<usize>) {
        let mut piece = self.piece;
        let mut list = [(); 8].map(|()| unsafe { zeroed::<ibv_recv_wr>() });
        let mut next = null_mut();
        for (n, wr) in list.iter_mut().enumerate().take(count).rev() {
            (wr.wr_id, wr.sg_list, wr.num_sge) = (100 + n as u64, &raw mut piece, 1);
            wr.next = next;
            next = wr;
        }
        let mut bad = null_mut();
        let answer = unsafe { post_recv(self.qp, next, &raw mut bad) };
        (answer, list.iter().position(|wr| std::ptr::eq(wr, bad)))
    }

    /// Posts a receive of that number that has two pieces.
    fn receive_pieces(&self, wr_id: u64) {
        let mut pieces = [self.piece; 2];
        let (next, sg_list) = (null_mut(), pieces.as_mut_ptr());
        let mut wr = ibv_recv_wr { wr_id, next, sg_list, num_sge: 2 };
        let posted = match self.srq.is_null() {
            true => unsafe { post_recv(self.qp, &raw mut wr, null_mut()) },
            false => unsafe { post_srq_recv(self.srq, &raw mut wr, null_mut()) },
        };
        assert_eq!(posted, 0);
    }

    /// Posts a receive of that number into the room from `skip` on.
    fn receive_at(&self, wr_id: u64, skip: u64) {
        let mut piece = ibv_sge { addr: self.piece.addr + skip, length: 8, ..self.piece };
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        assert_eq!(unsafe { post_recv(self.qp, &raw mut wr, null_mut()) }, 0);
    }

    /// Polls until there is a completion.
    fn completion(&self) -> ibv_wc {
        let (mut wc, begun) = (ibv_wc::default(), Instant::now());
        while unsafe { poll_cq(self.cq, 1, &raw mut wc) } == 0 {
            assert!(begun.elapsed() < LIMIT, "no completion");
            thread::yield_now();
        }
        wc
    }

    /// Polls until it has `count` completions. Returns their `wr_id`s and statuses, sorted.
    fn completions(&self, count: usize) -> Vec<(u64, i32)> {
        let (mut found, begun) = (Vec::new(), Instant::now());
        while found.len() < count {
            assert!(begun.elapsed() < LIMIT, "{found:?}");
            let mut wc = ibv_wc::default();
            if unsafe { poll_cq(self.cq, 1, &raw mut wc) } == 1 {
                found.push((wc.wr_id, wc.status));
            }
        }
        found.sort_unstable();
        found
    }
}

// SAFETY: the C interface takes calls of any thread.
unsafe impl Sync for Own {}

const FINE: (i32, Option<usize>) = (0, None);
const INVALID: (i32, Option<usize>) = (libc::EINVAL, Some(0));
const FULL: i32 = libc::ENOMEM;
const FLUSHED: i32 = 5;

/// Alone or in a list, requests meet the same rules.
#[test]
fn each_state_takes_what_it_may() {
    let own = Own::new();
    for _ in 0..2 {
        for count in [1, 2] {
            assert_eq!((own.send(count), own.receive(count)), (INVALID, INVALID), "RESET");
        }
        own.modify(1);
        assert_eq!((own.send(1), own.send(2), own.receive(1)), (INVALID, INVALID, FINE), "INIT");
        own.modify(2);
        assert_eq!((own.send(1), own.send(2), own.receive(1)), (INVALID, INVALID, FINE), "RTR");
        own.modify(3);
        assert_eq!((own.send(1), own.receive(1)), (FINE, FINE), "RTS");
        assert_eq!(own.completions(2), [(0, 0), (100, 0)]);
        assert_eq!(own.receive(1), FINE);
        assert_eq!(own.receive(4), (FULL, Some(1)), "a list that does not fit");
        assert_eq!(own.receive(1), (FULL, Some(0)));
        assert_eq!(own.send(2), FINE);
        assert_eq!(own.completions(4), [(0, 0), (1, 0), (100, 0), (100, 0)]);
        // In ERR, the receives that are left are flushed.
        own.modify(6);
        assert_eq!(own.completions(2), [(100, FLUSHED), (100, FLUSHED)]);
        for count in [1, 2] {
            assert_eq!((own.send(count), own.receive(count)), (FINE, FINE), "ERR");
            let flushed = own.completions(2 * count);
            assert!(flushed.iter().all(|(_, status)| *status == FLUSHED), "{flushed:?}");
        }
        own.modify(0);
    }
}

/// A receive that is posted after a reset is one of the new life, and those before it are gone.
#[test]
fn a_reset_forgets_the_receives_before_it_alone() {
    let own = Own::new();
    for _ in 0..3 {
        (1..4).for_each(|state| own.modify(state));
        for _ in 0..4 {
            assert_eq!(own.receive(1), FINE, "the queue is empty");
        }
        assert_eq!(own.receive(1), (FULL, Some(0)));
        assert_eq!(own.send(1), FINE);
        assert_eq!(own.completions(2), [(0, 0), (100, 0)]);
        own.modify(0);
    }
}

/// A thread has posted so often that its receives go straight to the queue. They meet the same
/// rules, and after a reset they go to the new queue.
#[test]
fn each_state_takes_what_it_may_of_a_thread_that_posts_often() {
    let own = Own::new();
    for _ in 0..2 {
        (1..4).for_each(|state| own.modify(state));
        for _ in 0..200 {
            assert_eq!((own.receive(1), own.send(1)), (FINE, FINE));
            assert_eq!(own.completions(2), [(0, 0), (100, 0)]);
        }
        for _ in 0..4 {
            assert_eq!(own.receive(1), FINE);
        }
        assert_eq!(own.receive(1), (FULL, Some(0)));
        own.modify(6);
        assert_eq!(own.completions(4), [(100, FLUSHED); 4]);
        assert_eq!((own.receive(1), own.completions(1)), (FINE, vec![(100, FLUSHED)]), "ERR");
        own.modify(0);
        assert_eq!(own.receive(1), INVALID, "RESET");
    }
}

/// Sends a message that is its own number, by the extended post.
fn send_extended(qp: usize, number: u64) {
    let ex = qp as *mut ibv_qp_ex;
    unsafe {
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = number;
        // The other thread must not start here.
        thread::yield_now();
        (*ex).wr_flags = 2;
        (*ex).wr_send.unwrap()(ex);
        thread::yield_now();
        (*ex).wr_set_inline_data.unwrap()(ex, (&raw const number).cast_mut().cast(), 8);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
    }
}

/// From its start to its end, an extended post is one thread's.
#[test]
fn extended_posts_of_two_threads_do_not_mix() {
    const ROUNDS: u64 = 300;
    const RECEIVES: u64 = 1 << 32;
    let own = Own::new();
    (1..4).for_each(|state| own.modify(state));
    (0..4).for_each(|n| own.receive_at(RECEIVES + n, 8 * n));
    // For each thread, the sends that have completed and the messages that have come.
    let done = [(); 2].map(|()| [(); 2].map(|()| AtomicU64::new(0)));
    let (qp, begun) = (own.qp as usize, Instant::now());
    thread::scope(|scope| {
        for (thread, done) in done.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    send_extended(qp, round << 1 | thread as u64);
                    while done.iter().any(|count| count.load(Ordering::Acquire) <= round) {
                        assert!(begun.elapsed() < LIMIT, "{done:?} in round {round}");
                        thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..2 * 2 * ROUNDS {
            let wc = own.completion();
            assert_eq!(wc.status, 0);
            let (mut number, is_receive) = (wc.wr_id, wc.wr_id >= RECEIVES);
            if is_receive {
                let at = (own.piece.addr + 8 * (wc.wr_id - RECEIVES)) as *const u64;
                number = unsafe { at.read() };
                own.receive_at(wc.wr_id, 8 * (wc.wr_id - RECEIVES));
            }
            let count = &done[(number & 1) as usize][usize::from(is_receive)];
            assert_eq!(count.load(Ordering::Relaxed), number >> 1, "once, and in order");
            count.store((number >> 1) + 1, Ordering::Release);
        }
    });
}

#[test]
fn an_extended_post_that_was_given_up_is_forgotten() {
    let own = Own::new();
    (1..4).for_each(|state| own.modify(state));
    own.receive_at(100, 0);
    let ex = own.qp.cast::<ibv_qp_ex>();
    unsafe {
        (*ex).wr_start.unwrap()(ex);
        ((*ex).wr_id, (*ex).wr_flags) = (1, 2);
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_abort.unwrap()(ex);
    }
    send_extended(own.qp as usize, 2);
    assert_eq!(own.completions(2), [(2, 0), (100, 0)]);
}

/// Receives of several pieces have numbers of the library's until they complete.
#[test]
fn a_destroyed_queue_pair_completes_nothing_more() {
    for (has_srq, flushes) in [(false, false), (false, true), (true, false)] {
        let own = Own::of(has_srq, false);
        (1..4).for_each(|state| own.modify(state));
        own.receive_pieces(7);
        own.receive_pieces(8);
        assert_eq!(own.send(1), FINE);
        if flushes {
            own.modify(6);
        }
        // What has come is made a completion, which nobody takes.
        (0..4).for_each(|_| device().unwrap().work());
        assert_eq!(unsafe { ibv_destroy_qp(own.qp) }, 0);
        for _ in 0..10 {
            let mut wc = ibv_wc::default();
            let count = unsafe { poll_cq(own.cq, 1, &raw mut wc) };
            assert_eq!(count, 0, "{} of a queue pair that is gone", wc.wr_id);
        }
    }
}

/// The memory of a receive of several pieces does not stay when its completion has gone.
#[test]
fn a_receive_that_a_queue_pair_takes_along_is_freed() {
    for resets in [false, true] {
        let own = Own::of(true, false);
        (1..4).for_each(|state| own.modify(state));
        own.receive_pieces(7);
        own.receive_pieces(8);
        assert_eq!(own.send(1), FINE);
        (0..4).for_each(|_| device().unwrap().work());
        let srq = unsafe { (*own.srq).handle };
        let count = || device().unwrap().scatter.count_of(srq.into());
        assert_eq!(count(), 2);
        match resets {
            true => own.modify(0),
            false => assert_eq!(unsafe { ibv_destroy_qp(own.qp) }, 0),
        }
        assert_eq!(count(), 1, "the other one is still posted");
    }
}

/// A query shows it, and it goes to no other state but RESET.
#[test]
fn a_queue_pair_that_has_failed_is_in_err_before_anybody_polls() {
    let own = Own::new();
    let stays_in_rts = || {
        let mut attr = ibv_qp_attr { qp_state: 3, ..ibv_qp_attr::default() };
        unsafe { ibv_modify_qp(own.qp, &raw mut attr, 1) == 0 }
    };
    let shows_rts = || own.state() == 3;
    let looks: [&dyn Fn() -> bool; 2] = [&stays_in_rts, &shows_rts];
    for is_rts in looks {
        (1..4).for_each(|state| own.modify(state));
        assert!(is_rts());
        let mut piece = own.piece;
        let mut wr = unsafe { zeroed::<ibv_send_wr>() };
        // A WRITE with a key of nothing.
        (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut piece, 1, 0);
        wr.wr.rdma = wr_rdma { remote_addr: piece.addr, rkey: 1 };
        assert_eq!(unsafe { post_send(own.qp, &raw mut wr, null_mut()) }, 0);
        let begun = Instant::now();
        while is_rts() {
            assert!(begun.elapsed() < LIMIT);
            device().unwrap().work();
        }
        assert_eq!(own.state(), 6);
        own.modify(0);
    }
}

/// The queue has room for four.
#[test]
fn an_extended_post_that_does_not_fit_posts_nothing() {
    let own = Own::new();
    (1..4).for_each(|state| own.modify(state));
    (0..4).for_each(|n| own.receive_at(100 + n, 0));
    let ex = own.qp.cast::<ibv_qp_ex>();
    let post = |first: u64, count: u64| unsafe {
        (*ex).wr_start.unwrap()(ex);
        for n in first..first + count {
            ((*ex).wr_id, (*ex).wr_flags) = (n, 2);
            (*ex).wr_send.unwrap()(ex);
        }
        (*ex).wr_complete.unwrap()(ex)
    };
    assert_eq!(post(10, 6), FULL);
    assert_eq!(post(0, 2), 0);
    assert_eq!(post(20, 3), FULL);
    assert_eq!(own.completions(4), [(0, 0), (1, 0), (100, 0), (101, 0)]);
    assert_eq!(post(2, 2), 0);
    assert_eq!(own.completions(4), [(2, 0), (3, 0), (102, 0), (103, 0)]);
}

/// Takes the name of the pair of that queue pair with another of its device, and makes no offer.
fn stranger(own: &Own, other: u32) -> OwnedFd {
    let side = |num: u32| {
        let bytes = own.to.grh.dgid.raw.into_iter().chain(num.to_be_bytes()[1..].to_vec());
        bytes.map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let mut sides = [side(unsafe { (*own.qp).qp_num }), side(other)];
    sides.sort();
    unsafe {
        let name = format!("\0doorbell/{:x}/{}", libc::geteuid(), sides.concat());
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut at: libc::sockaddr_un = zeroed();
        at.sun_family = libc::AF_UNIX as u16;
        for (to, from) in at.sun_path.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let length = (size_of::<u16>() + name.len()) as u32;
        assert_eq!(libc::bind(socket, (&raw const at).cast(), length), 0);
        OwnedFd::from_raw_fd(socket)
    }
}

/// How often that thread of this process has slept.
fn sleeps(thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// While a step to RTR waits for the peer, other threads use the queue pair and the device. A reset
/// ends the step.
#[test]
fn rtr_waits_with_nothing_locked() {
    let own = Own::new();
    let other = 0x00ab_cdef;
    let _name = stranger(&own, other);
    own.modify(1);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let step = scope.spawn(|| {
            tell.send(unsafe { libc::gettid() }).unwrap();
            own.try_modify(2, other)
        });
        let (thread, begun) = (told.recv_timeout(LIMIT).unwrap(), Instant::now());
        let before = sleeps(thread);
        while sleeps(thread) < before + 3 {
            assert!(begun.elapsed() < LIMIT && !step.is_finished(), "it does not wait");
        }
        assert_eq!(own.receive(1), FINE);
        let another = Own::new();
        assert_eq!(unsafe { ibv_destroy_qp(another.qp) }, 0);
        assert!(!step.is_finished(), "it waits on");
        own.modify(0);
        assert_eq!(step.join().unwrap(), libc::EINVAL);
    });
}

/// A poll of the queue of sends does the work of both. A program that has polled the queue of
/// receives just before, and asks for its event just after, as UCX does, would sleep beside its
/// message.
#[test]
fn an_entry_that_a_poll_of_another_queue_brings_makes_an_event() {
    let own = Own::of(false, true);
    (1..4).for_each(|state| own.modify(state));
    let mut wc = ibv_wc::default();
    let mut receives = || unsafe { poll_cq(own.recv_cq, 1, &raw mut wc) };
    let is_armed = || unsafe { cq_at(own.recv_cq) }.unwrap().own.cq.is_armed();
    let arm = |solicited| assert_eq!(unsafe { req_notify_cq(own.recv_cq, solicited) }, 0);
    let channel = unsafe { (*own.recv_cq).channel };
    assert_eq!((own.receive(1), own.receive(2), receives()), (FINE, FINE, 0));
    assert_eq!((own.send(1), own.completions(1)), (FINE, vec![(0, 0)]));
    arm(1);
    assert!(is_armed(), "the message is not solicited");
    arm(0);
    assert!(!is_armed(), "the message counts");
    let (mut cq, mut context) = (null_mut(), null_mut());
    assert_eq!(unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) }, 0);
    unsafe { ibv_ack_cq_events(cq, 1) };
    // The program knows of the message, and polls when it has asked for the next event.
    arm(0);
    assert!(is_armed(), "a message makes one event");
    assert_eq!((receives(), receives()), (1, 0));
    assert_eq!((own.send(1), own.completions(1)), (FINE, vec![(0, 0)]));
    assert_eq!(unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) }, 0);
    unsafe { ibv_ack_cq_events(cq, 1) };
    assert_eq!((cq, receives()), (own.recv_cq, 1));
}

/// A program that asks twice gets one event for the message that was there before, and its second
/// request stands for the next message.
#[test]
fn a_message_makes_one_event_however_often_the_program_asks() {
    let own = Own::of(false, true);
    (1..4).for_each(|state| own.modify(state));
    let mut wc = ibv_wc::default();
    let mut receives = || unsafe { poll_cq(own.recv_cq, 1, &raw mut wc) };
    let is_armed = || unsafe { cq_at(own.recv_cq) }.unwrap().own.cq.is_armed();
    let arm = || assert_eq!(unsafe { req_notify_cq(own.recv_cq, 0) }, 0);
    let channel = unsafe { (*own.recv_cq).channel };
    assert_eq!((own.receive(1), own.receive(2), receives()), (FINE, FINE, 0));
    assert_eq!((own.send(1), own.completions(1)), (FINE, vec![(0, 0)]));
    // The thread looks for the queue in this list before it gives the program the event.
    let listed = lock(&device().unwrap().cqs);
    arm();
    assert!(!is_armed(), "the message counts");
    for _ in 0..2 {
        arm();
        assert!(is_armed(), "it has made its event");
    }
    drop(listed);
    let (mut cq, mut context) = (null_mut(), null_mut());
    for is_last in [false, true] {
        assert_eq!(unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) }, 0);
        unsafe { ibv_ack_cq_events(cq, 1) };
        assert_eq!((is_armed(), receives(), receives()), (!is_last, 1, 0));
        if !is_last {
            assert_eq!((own.send(1), own.completions(1)), (FINE, vec![(0, 0)]));
        }
    }
    // As the thread would, if the notifier had rung again.
    wake(own.recv_cq as usize);
    let mut asked = libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
    assert_eq!(unsafe { libc::poll(&raw mut asked, 1, 0) }, 0, "an event is left");
}
