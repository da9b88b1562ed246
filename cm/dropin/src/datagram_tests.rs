//! Posts and polls through the C interface, by a queue pair of datagrams that sends to itself.
#![expect(unsafe_code, reason = "the C interface")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "our own calls, with what they gave")]

use std::collections::HashSet;
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::abi_context::ibv_qp_init_attr_ex;
use crate::ah::ibv_create_ah;
use crate::cq::{ibv_create_cq, poll_cq};
use crate::create_ex::create_qp_ex;
use crate::device::{ibv_get_device_list, ibv_query_gid};
use crate::memory::{ibv_alloc_pd, ibv_reg_mr};
use crate::open::ibv_open_device;
use crate::post::{post_recv, post_send};
use crate::qp::{ibv_attach_mcast, ibv_destroy_qp, ibv_detach_mcast, ibv_modify_qp, ibv_query_qp};

const QKEY: u32 = 7;
/// What lies before a datagram in its receive.
const HEADER: usize = 40;
/// Receives have numbers from here on, sends from 0.
const RECEIVES: u64 = 1 << 32;
/// The time of one that comes late on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A queue pair, as threads share it: by addresses.
#[derive(Clone, Copy)]
struct Own {
    qp: usize,
    cq: usize,
    ah: usize,
    num: u32,
    lkey: u32,
    room: usize,
}

/// Moves a queue pair to a state, by attributes of that mask.
fn modify(qp: *mut ibv_qp, qp_state: i32, mask: i32) {
    let (qkey, port_num) = (QKEY, 1);
    let mut attr = ibv_qp_attr { qp_state, qkey, port_num, ..ibv_qp_attr::default() };
    assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, mask) }, 0);
}

impl Own {
    fn qp(&self) -> *mut ibv_qp {
        self.qp as *mut ibv_qp
    }

    /// In RTS, with that many receives.
    fn with_receives(count: u64) -> Own {
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 4096, null_mut(), null_mut(), 0);
            let mut attr = ibv_qp_init_attr_ex {
                send_cq: cq,
                recv_cq: cq,
                cap: ibv_qp_cap { max_send_wr: 512, max_recv_wr: 1024, ..ibv_qp_cap::default() },
                qp_type: 4,
                // PD and send operations: sends.
                comp_mask: 1 | 1 << 6,
                pd,
                send_ops_flags: 1 << 2,
                ..zeroed()
            };
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            let qp = create_qp_ex(context, &raw mut attr);
            assert!(!qp.is_null());
            for (qp_state, mask) in [(1, 1 | 16 | 32 | 64), (2, 1), (3, 1 | 1 << 16)] {
                modify(qp, qp_state, mask);
            }
            let mut gid = ibv_gid { raw: [0; 16] };
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            let mut to = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
            to.grh.dgid.raw = gid.raw;
            let ah = ibv_create_ah(pd, &raw mut to);
            let room = Box::leak(vec![0_u8; 4096].into_boxed_slice()).as_mut_ptr();
            let mr = ibv_reg_mr(pd, room.cast::<c_void>(), 4096, 1);
            let (num, lkey) = ((*qp).qp_num, (*mr).lkey);
            let (qp, cq, ah, room) = (qp as usize, cq as usize, ah as usize, room as usize);
            let own = Own { qp, cq, ah, num, lkey, room };
            (0..count).for_each(|n| own.receive(RECEIVES + n));
            own
        }
    }

    fn receive(&self, wr_id: u64) {
        let length = HEADER as u32 + 8;
        let mut sge = ibv_sge { addr: self.room as u64, length, lkey: self.lkey };
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        assert_eq!(unsafe { post_recv(self.qp(), &raw mut wr, null_mut()) }, 0);
    }

    /// Posts one datagram. False: there is no slot.
    fn send(&self, wr_id: u64) -> bool {
        let mut sge = ibv_sge { addr: &raw const wr_id as u64, length: 8, lkey: 0 };
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, &raw mut sge, 1);
            // SEND, signaled and inline.
            (wr.opcode, wr.send_flags) = (2, 2 | 8);
            wr.wr.ud =
                wr_ud { ah: self.ah as *mut ibv_ah, remote_qpn: self.num, remote_qkey: QKEY };
            match post_send(self.qp(), &raw mut wr, null_mut()) {
                0 => true,
                libc::ENOMEM => false,
                other => panic!("{other}"),
            }
        }
    }

    /// Posts that many datagrams at once, by the extended post.
    fn send_all(&self, count: u64) {
        unsafe {
            let ex = self.qp().cast::<ibv_qp_ex>();
            (*ex).wr_start.unwrap()(ex);
            for n in 0..count {
                ((*ex).wr_id, (*ex).wr_flags) = (n, 2);
                (*ex).wr_send.unwrap()(ex);
                (*ex).wr_set_ud_addr.unwrap()(ex, self.ah as *mut ibv_ah, self.num, QKEY);
                (*ex).wr_set_inline_data.unwrap()(ex, (&raw const n).cast_mut().cast(), 8);
            }
            assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        }
    }

    /// Polls until there is a completion. Returns its number and status.
    fn completion(&self) -> (u64, i32) {
        let (mut wc, begun) = (ibv_wc::default(), Instant::now());
        while unsafe { poll_cq(self.cq as *mut ibv_cq, 1, &raw mut wc) } == 0 {
            assert!(begun.elapsed() < LIMIT);
        }
        (wc.wr_id, wc.status)
    }

    /// The state that a query shows.
    fn state(&self) -> i32 {
        unsafe {
            let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed::<ibv_qp_init_attr>());
            assert_eq!(ibv_query_qp(self.qp(), &raw mut attr, 1, &raw mut init), 0);
            attr.qp_state
        }
    }

    /// Posts a datagram from memory without a key: it fails.
    fn send_from_nowhere(&self, wr_id: u64) {
        let mut sge = ibv_sge { addr: self.room as u64, length: 8, lkey: 0 };
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.num_sge) = (wr_id, &raw mut sge, 1);
            (wr.opcode, wr.send_flags) = (2, 2);
            wr.wr.ud =
                wr_ud { ah: self.ah as *mut ibv_ah, remote_qpn: self.num, remote_qkey: QKEY };
            assert_eq!(post_send(self.qp(), &raw mut wr, null_mut()), 0);
        }
    }

    /// Polls once. Returns the numbers of the requests that have completed.
    fn poll(&self) -> Vec<u64> {
        let mut found = [(); 4].map(|()| ibv_wc::default());
        let count = unsafe { poll_cq(self.cq as *mut ibv_cq, 4, found.as_mut_ptr()) };
        let found = &found[..usize::try_from(count).unwrap()];
        assert!(found.iter().all(|wc| wc.status == 0), "{found:?}");
        found.iter().map(|wc| wc.wr_id).collect()
    }
}

/// More than an inbox has room for.
#[test]
fn datagrams_of_an_extended_post_wait_for_room() {
    const COUNT: usize = 200;
    let own = Own::with_receives(COUNT as u64);
    own.send_all(COUNT as u64);
    let (mut seen, begun) = (HashSet::new(), Instant::now());
    while seen.len() < 2 * COUNT && begun.elapsed() < LIMIT {
        seen.extend(own.poll());
    }
    let arrived = seen.iter().filter(|id| **id >= RECEIVES).count();
    assert_eq!((arrived, seen.len()), (COUNT, 2 * COUNT));
}

/// Two threads post on one queue pair and poll its queue at the same time: each request completes
/// once.
#[test]
fn two_threads_post_and_poll_the_same_queues() {
    const EACH: u64 = 400;
    const ALL: usize = 2 * 2 * EACH as usize;
    let own = Own::with_receives(2 * EACH);
    let (count, begun) = (AtomicUsize::new(0), Instant::now());
    let work = |first: u64| {
        let (mut next, mut seen) = (first, Vec::new());
        while count.load(Ordering::Relaxed) < ALL && begun.elapsed() < LIMIT {
            // Some in a row, so that locks that belong to a thread do so.
            for _ in 0..50 {
                if next < first + EACH && own.send(next) {
                    next += 1;
                }
                let more = own.poll();
                count.fetch_add(more.len(), Ordering::Relaxed);
                seen.extend(more);
            }
        }
        seen
    };
    let seen: Vec<u64> = thread::scope(|scope| {
        let threads = [0, EACH].map(|first| scope.spawn(move || work(first)));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let once: HashSet<u64> = seen.iter().copied().collect();
    assert_eq!((seen.len(), once.len()), (ALL, ALL));
}

/// States of `ibv_qp_state`, and statuses of `ibv_wc_status`.
const RTS: i32 = 3;
const SQE: i32 = 5;
const ERR: i32 = 6;
const PROTECTION: i32 = 4;
const FLUSHED: i32 = 5;

#[test]
fn a_flushed_receive_leaves_a_queue_pair_in_err() {
    let own = Own::with_receives(1);
    modify(own.qp(), ERR, 1);
    assert_eq!(own.completion(), (RECEIVES, FLUSHED));
    assert_eq!(own.state(), ERR);
}

#[test]
fn a_failed_send_moves_a_queue_pair_to_sqe_until_the_program_recovers_it() {
    let own = Own::with_receives(1);
    own.send_from_nowhere(0);
    assert!(own.send(1));
    assert_eq!((own.completion(), own.state()), ((0, PROTECTION), SQE));
    modify(own.qp(), RTS, 1);
    // It was flushed before.
    assert_eq!((own.completion(), own.state()), ((1, FLUSHED), RTS));
}

#[test]
fn a_queue_pair_in_a_group_is_not_destroyed() {
    let own = Own::with_receives(0);
    let mut group = ibv_gid { raw: [0; 16] };
    (group.raw[0], group.raw[1], group.raw[15]) = (0xff, 0x0e, 9);
    unsafe {
        for _ in 0..2 {
            assert_eq!(ibv_attach_mcast(own.qp(), &raw const group, 0), 0);
        }
        assert_eq!(ibv_destroy_qp(own.qp()), libc::EBUSY);
        assert_eq!(own.state(), RTS, "it is whole");
        assert_eq!(ibv_detach_mcast(own.qp(), &raw const group, 0), 0);
        assert_eq!(ibv_destroy_qp(own.qp()), 0);
    }
}
