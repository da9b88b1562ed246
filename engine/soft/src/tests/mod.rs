//! The device's rules, over a link in one address space. Clause numbers are those of
//! `cm/CLAUSES.md`.
#![expect(unsafe_code, reason = "posts, and looks at memory the device writes")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

mod asleep;
mod beside;
mod datagrams;
mod deferred;
mod domains;
mod failures;
#[cfg(not(miri))]
mod hostile;
mod large;
mod lent;
mod link_scheduler;
mod local_rdma;
mod messages;
mod one;
mod one_sided;
mod predicted;
mod predicted_shared;
mod regions;
mod rnr;
mod unreliable;
mod wrap;
mod xrc;

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::vec::Vec;

use core::ptr::NonNull;
use doorbell_alloc::{Ask, MapRequest, Mapping};
use std_alloc::boxed::Box;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::*;
use crate::error::{Code, SetupError};
use crate::provider::{
    Access, Poller, Provider, Qp, QpCaps, QpType, Region, Sharing, Srq, Window, WindowKind,
};
use crate::wc::{Wc, WcFlags};
use crate::wr::{Binding, PostCause, PostError, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};

std::thread_local! {
    /// The time of each test: tests run side by side, in a thread each.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn clock() -> u64 {
    NOW.get()
}

fn pass(ns: u64) {
    NOW.set(NOW.get() + ns);
}

/// One side: device, queues, a queue pair, memory.
struct End {
    nic: Soft,
    poller: SoftPoller,
    cq: SoftCq,
    qp: SoftQp,
    region: SoftRegion,
    srq: Option<SoftSrq>,
}

const CAPS: QpCaps = QpCaps { send_wr: 8, recv_wr: 64, send_sge: 1, recv_sge: 1, inline: 64 };

fn mapping(len: usize) -> Mapping {
    Mapping::plain(len).unwrap()
}

fn shared(len: usize) -> Mapping {
    MapRequest::new(len).pages(Ask::Plain).shared(true).map().unwrap()
}

/// Memory that others may read.
fn readable(len: usize) -> Mapping {
    MapRequest::new(len).pages(Ask::Plain).readable(true).map().unwrap()
}

/// The words of a region, for tests in which two threads use them.
fn words(region: &SoftRegion) -> &[AtomicU64] {
    let start = region.as_ptr().cast::<AtomicU64>();
    unsafe { core::slice::from_raw_parts(start, region.len() / 8) }
}

fn again(fd: u32, len: usize) -> Option<Mapping> {
    let path = std::format!("/proc/self/fd/{fd}");
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    Mapping::from_memfd(file.into(), len).ok()
}

fn name_file(memory: &Mapping) -> Option<FileName> {
    Some(FileName { fd: memory.fd()?.as_raw_fd().try_into().ok()?, inode: 0 })
}

fn end(caps: QpCaps, srq: bool) -> End {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (cq, poller) = nic.create_cq(256, Sharing::Exclusive).unwrap();
    let srq = srq.then(|| nic.create_srq(caps.recv_wr).unwrap());
    let qp = make_qp(&nic, &cq, srq.as_ref(), caps);
    let region = nic.register(mapping(4 << 20), Access::all()).unwrap();
    End { nic, poller, cq, qp, region, srq }
}

fn make_qp(nic: &Soft, cq: &SoftCq, srq: Option<&SoftSrq>, caps: QpCaps) -> SoftQp {
    make_qp_of(QpType::Rc, nic, cq, srq, caps)
}

fn make_qp_of(
    kind: QpType,
    nic: &Soft,
    cq: &SoftCq,
    srq: Option<&SoftSrq>,
    caps: QpCaps,
) -> SoftQp {
    let init = SoftQpInit {
        kind,
        send_cq: cq,
        recv_cq: cq,
        srq,
        caps,
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    nic.create_qp(&init).unwrap()
}

/// Joins two queue pairs: memory, both link ends, both connections.
fn join(one: &mut SoftQp, two: &mut SoftQp, rnr_retry: u8) -> (Arc<LinkShared>, Arc<LinkShared>) {
    let (maker, taker) = LinkShared::pair(mapping(LINK_BYTES)).unwrap();
    let (maker, taker) = (Arc::new(maker), Arc::new(taker));
    one.attach(&maker);
    two.attach(&taker);
    wire(one, two, &maker, &taker, rnr_retry);
    (maker, taker)
}

fn wire(
    one: &mut SoftQp,
    two: &mut SoftQp,
    maker: &Arc<LinkShared>,
    taker: &Arc<LinkShared>,
    rnr_retry: u8,
) {
    let wiring = |peer| Wiring {
        peer,
        peer_rnr_retry: rnr_retry,
        rnr_timer_ns: 1000,
        initiator_depth: 4,
        responder_depth: 4,
    };
    let (first, second) = (one.num(), two.num());
    one.connect(maker, wiring(second));
    two.connect(taker, wiring(first));
}

fn pair(caps: QpCaps, srq: bool) -> (End, End) {
    let (mut one, mut two) = (end(caps, srq), end(caps, srq));
    join(&mut one.qp, &mut two.qp, 7);
    (one, two)
}

impl End {
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.region.len());
        // The device writes here only during a poll of this thread.
        unsafe { core::slice::from_raw_parts(self.region.as_ptr().add(at), len) }.to_vec()
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.region.len());
        unsafe {
            core::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.region.as_ptr().add(at),
                bytes.len(),
            );
        }
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.region.as_ptr() as u64 + at as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    fn recv(&mut self, wr_id: u64, at: usize, length: usize) {
        let wr = RecvWr { wr_id, sge: self.sge(at, length) };
        unsafe {
            match &self.srq {
                Some(srq) => srq.post(&[wr]).unwrap(),
                None => self.qp.post_recv(&[wr]).unwrap(),
            }
        }
    }

    fn send(
        &mut self,
        wr_id: u64,
        at: usize,
        length: usize,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post(wr_id, SendOp::Send, self.sge(at, length), flags)
    }

    fn post(
        &mut self,
        wr_id: u64,
        op: SendOp,
        sge: Sge,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post_list(&[SendWr { wr_id, op, flags, sge, more: &[] }])
    }

    fn post_list(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        unsafe { self.qp.post(list) }
    }

    fn poll(&mut self) -> Vec<Wc> {
        let mut out = [Wc::default(); 16];
        let n = self.poller.poll(&mut out);
        out[..n].to_vec()
    }
}

/// Posts that many receives of 64 bytes, all in the same place.
fn post_recvs(srq: &SoftSrq, region: &SoftRegion, count: usize) {
    let sge = Sge { addr: region.as_ptr() as u64, length: 64, lkey: region.lkey() };
    unsafe { srq.post(&std::vec![RecvWr { wr_id: 0, sge }; count]) }.unwrap();
}

/// Polls both sides in turn until nothing more happens.
fn settle(one: &mut End, two: &mut End) -> (Vec<Wc>, Vec<Wc>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut quiet = 0;
    while quiet < 600 {
        let (a, b) = (one.poll(), two.poll());
        quiet = if a.is_empty() && b.is_empty() { quiet + 1 } else { 0 };
        first.extend(a);
        second.extend(b);
    }
    (first, second)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + (i >> 8)) as u8).collect()
}
