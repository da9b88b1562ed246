//! Tests of queue pairs that are their own peer.
#![expect(unsafe_code, reason = "posts, and looks at memory that the device writes")]

use doorbell_fabric::{Fabric, QpFields, QpState};
use doorbell_seam::provider::{Access, Poller, Provider, Qp, QpType, Region};
use doorbell_seam::wc::{Status, Wc};
use doorbell_seam::wr::{RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};

use super::rendezvous_tests::{Side, next_of};
use super::tests::SOON;
use crate::SoftRegion;

/// Bytes of a region: more than a ring has.
const BYTES: u32 = 256 << 10;

/// A queue pair that is its own peer, and its memory.
struct Alone {
    side: Side,
    region: SoftRegion,
}

impl Alone {
    fn new(kind: QpType) -> Alone {
        let mut side = Side::new(kind);
        let memory = side.device.peer_memory(BYTES as usize).unwrap();
        let region = side.device.register(memory, Access::all()).unwrap();
        side.connect(side.name()).unwrap();
        Alone { side, region }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sge: Sge) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sge, more: &[] };
        // SAFETY: the region stays.
        unsafe { self.side.qp.post(&[wr]) }.unwrap();
    }

    fn post_recv(&mut self, wr_id: u64, sge: Sge) {
        // SAFETY: the region stays.
        unsafe { self.side.qp.post_recv(&[RecvWr { wr_id, sge }]) }.unwrap();
    }

    fn sge(&self, at: u32, length: u32) -> Sge {
        let lkey = self.region.lkey();
        Sge { addr: self.region.as_ptr().addr() as u64 + u64::from(at), length, lkey }
    }

    fn next(&mut self) -> Wc {
        next_of(&mut self.side)
    }

    /// The next two completions, by their number: one of each side of the queue pair.
    fn two(&mut self) -> [Wc; 2] {
        let (one, two) = (self.next(), self.next());
        if one.wr_id < two.wr_id { [one, two] } else { [two, one] }
    }

    fn bytes(&self, at: u32, length: u32) -> &[u8] {
        // SAFETY: inside the region, and nothing is under way.
        unsafe {
            std::slice::from_raw_parts(self.region.as_ptr().add(at as usize), length as usize)
        }
    }

    fn fill(&mut self, at: u32, length: u32, with: u8) {
        // SAFETY: as above.
        unsafe { self.region.as_ptr().add(at as usize).write_bytes(with, length as usize) };
    }
}

/// Messages of all lengths, more than a ring holds, in both kinds of connection.
#[test]
fn messages_come_back_in_order() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut alone = Alone::new(kind);
        for round in 0..2000_u32 {
            let length = [0, 8, 200, 3000, 5000, 100_000][round as usize % 6];
            alone.fill(0, length, round as u8);
            let sge = alone.sge(BYTES / 2, BYTES / 2);
            alone.post_recv(2, sge);
            let sge = alone.sge(0, length);
            alone.post(1, SendOp::Send, sge);
            let [sent, received] = alone.two();
            assert_eq!((sent.status, received.status), (Status::Success, Status::Success));
            assert_eq!((received.wr_id, received.byte_len), (2, length), "{kind:?} {round}");
            let came = alone.bytes(BYTES / 2, length);
            assert!(came.iter().all(|byte| *byte == round as u8), "{kind:?} {round}");
        }
    }
}

/// A message that comes before its receive waits for it, and the polls meanwhile are harmless.
#[test]
fn a_message_waits_for_its_receive() {
    let mut alone = Alone::new(QpType::Rc);
    for _ in 0..3 {
        let sge = alone.sge(0, 8);
        alone.post(1, SendOp::Send, sge);
    }
    assert!((0..100).all(|_| alone.side.poll().is_none()));
    for _ in 0..3 {
        let sge = alone.sge(4096, 8);
        alone.post_recv(2, sge);
        assert_eq!(alone.two().map(|wc| (wc.wr_id, wc.status)), [1, 2].map(success));
    }
}

fn success(wr_id: u64) -> (u64, Status) {
    (wr_id, Status::Success)
}

#[test]
fn one_sided_requests_reach_its_own_memory() {
    let mut alone = Alone::new(QpType::Rc);
    for length in [8, 3000, 100_000] {
        let (from, to) = (alone.sge(0, length), BYTES / 2);
        alone.fill(0, length, 7);
        alone.post(1, SendOp::Write(alone.region.remote(to as usize)), from);
        assert_eq!(alone.next().status, Status::Success);
        assert!(alone.bytes(to, length).iter().all(|byte| *byte == 7));
        alone.fill(to, length, 9);
        alone.post(1, SendOp::Read(alone.region.remote(to as usize)), from);
        assert_eq!(alone.next().status, Status::Success);
        assert!(alone.bytes(0, length).iter().all(|byte| *byte == 9));
    }
    alone.fill(0, 16, 0);
    for before in 0..5_u64 {
        let add = SendOp::FetchAdd { at: alone.region.remote(0), add: 1 };
        let sge = alone.sge(8, 8);
        alone.post(1, add, sge);
        assert_eq!(alone.next().status, Status::Success);
        assert_eq!(alone.bytes(8, 8), before.to_ne_bytes());
    }
}

/// The queue pair is both the side that refuses and the side that is refused. Its request tells
/// why, those before it have succeeded, and those behind it are flushed.
#[test]
fn a_refused_request_says_why() {
    let mut alone = Alone::new(QpType::Rc);
    let wrong = Remote { rkey: alone.region.remote(0).rkey ^ 0x5555, ..alone.region.remote(0) };
    let (sge, to) = (alone.sge(0, 8), alone.sge(4096, 8));
    alone.post_recv(9, to);
    alone.post(1, SendOp::Send, sge);
    alone.post(2, SendOp::Read(alone.region.remote(64)), sge);
    alone.post(3, SendOp::Write(wrong), sge);
    alone.post(4, SendOp::Send, sge);
    let mut ends: Vec<_> = (0..5).map(|_| alone.next()).map(|wc| (wc.wr_id, wc.status)).collect();
    ends.sort_by_key(|(wr_id, _)| *wr_id);
    let (denied, flushed) = ((3, Status::RemoteAccess), (4, Status::Flushed));
    assert_eq!(ends, [success(1), success(2), denied, flushed, success(9)]);
}

/// A message that does not fit its receive fails both.
#[test]
fn a_message_that_is_too_long_fails_its_receive_too() {
    let mut alone = Alone::new(QpType::Rc);
    let sge = alone.sge(4096, 8);
    alone.post_recv(2, sge);
    let sge = alone.sge(0, 16);
    alone.post(1, SendOp::Send, sge);
    let ends = alone.two().map(|wc| wc.status);
    assert_eq!(ends, [Status::RemoteInvalidRequest, Status::LocalLength]);
}

/// A post while the domain sleeps wakes it, as that of a peer does.
#[test]
fn it_wakes_itself() {
    let mut alone = Alone::new(QpType::Rc);
    let sge = alone.sge(4096, 8);
    alone.post_recv(2, sge);
    alone.side.poller.arm(false).unwrap();
    assert!(alone.side.poll().is_none());
    let sge = alone.sge(0, 8);
    alone.post(1, SendOp::Send, sge);
    let epoll = super::sys::Epoll::new().unwrap();
    epoll.add(alone.side.poller.wake_fds().unwrap().device, 1).unwrap();
    let mut keys = [0; super::sys::READY_MAX];
    assert!(!epoll.wait(Some(SOON), &mut keys).unwrap().is_empty(), "nobody wakes it");
    assert!(alone.side.poller.woken());
    assert_eq!(alone.two().map(|wc| (wc.wr_id, wc.status)), [1, 2].map(success));
}

/// Its own `rnr_retry` counts, as with any peer (RC-1).
#[test]
fn a_message_without_a_receive_fails_after_its_retries() {
    let mut alone = Alone::new(QpType::Rc);
    let fields = QpFields {
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(0),
        sq_psn: Some(0),
        max_rd_atomic: Some(1),
        ..QpFields::to(QpState::Rts)
    };
    let side = &mut alone.side;
    side.device.modify_qp(&mut side.qp, QpState::Rtr, &fields).unwrap();
    let sge = alone.sge(0, 8);
    alone.post(1, SendOp::Send, sge);
    assert_eq!(alone.next().status, Status::RnrRetryExceeded);
}

/// It leaves nothing behind, and connects again after a reset: to itself, or to another.
#[test]
fn it_may_go_at_any_time() {
    let mut alone = Alone::new(QpType::Rc);
    for _ in 0..3 {
        let sge = alone.sge(0, 8);
        alone.post(1, SendOp::Send, sge);
        let side = &mut alone.side;
        let fields = QpFields::to(QpState::Reset);
        side.device.modify_qp(&mut side.qp, QpState::Rts, &fields).unwrap();
        side.connect(side.name()).unwrap();
        let sge = alone.sge(4096, 8);
        alone.post_recv(2, sge);
        let sge = alone.sge(0, 8);
        alone.post(1, SendOp::Send, sge);
        assert_eq!(alone.two().map(|wc| (wc.wr_id, wc.status)), [1, 2].map(success));
    }
    let sge = alone.sge(0, 8);
    alone.post(1, SendOp::Send, sge);
    let Side { device, qp, mut poller, .. } = alone.side;
    let control = qp.control();
    let links = || control.domain.enter_shared(|state| state.links.table.iter().flatten().count());
    assert_eq!(links(), Some(1));
    let parting = device.part(qp.num());
    drop((qp, parting));
    assert_eq!(poller.poll(&mut [Wc::default()]), 0);
    assert_eq!(links(), Some(0));
}
