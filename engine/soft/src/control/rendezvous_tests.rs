//! Tests of connections by GID and number.
#![expect(unsafe_code, reason = "posts")]

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::{Fabric, Mtu, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{
    Access, AddressVector, Gid, Poller, Ports, Provider, Qp, QpType, Region, Sharing,
};
use doorbell_seam::wc::{Status, Wc};
use doorbell_seam::wr::{RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};

use super::rendezvous::{listener_name, pair_name};
use super::sys::{READY_MAX, Socket};
use super::tests::{SOON, attr};
use super::wire::{ByNumber, Message};
use super::*;

/// One side: a device with a queue pair.
pub(super) struct Side {
    pub(super) device: SoftDevice,
    pub(super) qp: SoftQp,
    pub(super) poller: SoftPoller,
    pub(super) gid: Gid,
}

impl Side {
    pub(super) fn new(kind: QpType) -> Side {
        let device = SoftDevice::open().unwrap();
        device.connect_by_number().unwrap();
        let (cq, poller) = device.create_cq(16, Sharing::Shared).unwrap();
        let qp = queue_pair(&device, kind, [&cq, &cq]);
        let gid = device.query_gid(1, 0).unwrap();
        Side { device, qp, poller, gid }
    }

    pub(super) fn name(&self) -> (Gid, u32) {
        (self.gid, self.qp.num())
    }

    /// `ibv_modify_qp` to RTR.
    pub(super) fn connect(&mut self, to: (Gid, u32)) -> Result<(), CmError> {
        self.connect_with(to, 1)
    }

    /// The same; the peer may have that many READs and atomics in flight.
    pub(super) fn connect_with(&mut self, to: (Gid, u32), depth: u8) -> Result<(), CmError> {
        self.device.modify_qp(&mut self.qp, QpState::Init, &rtr(to, depth))
    }

    pub(super) fn send(&mut self, text: &[u8]) {
        let sge = Sge::inline(text);
        let flags = SendFlags::INLINE;
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &[] };
        // SAFETY: the payload is inline.
        unsafe { self.qp.post(&[wr]) }.unwrap();
    }

    /// Posts a request that moves eight bytes to or from that region.
    pub(super) fn ask(&mut self, op: SendOp, region: &SoftRegion) {
        let sge = Sge { addr: region.as_ptr() as u64, length: 8, lkey: region.lkey() };
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), sge, more: &[] };
        // SAFETY: the test keeps the region, and does not use it meanwhile.
        unsafe { self.qp.post(&[wr]) }.unwrap();
    }

    /// Posts a receive for an empty message.
    pub(super) fn receive(&mut self) {
        // SAFETY: it has no bytes.
        unsafe { self.qp.post_recv(&[RecvWr { wr_id: 2, sge: Sge::default() }]) }.unwrap();
    }

    pub(super) fn poll(&mut self) -> Option<Wc> {
        let mut wc = [Wc::default()];
        (self.poller.poll(&mut wc) == 1).then(|| wc[0])
    }
}

/// The fields of RTR with that peer, which may have that many READs and atomics in flight.
fn rtr((gid, num): (Gid, u32), depth: u8) -> QpFields {
    QpFields {
        av: Some(AddressVector::to(gid)),
        path_mtu: Some(Mtu::Bytes1024),
        dest_qp: Some(num),
        rq_psn: Some(0),
        max_dest_rd_atomic: Some(depth),
        min_rnr_timer: Some(12),
        ..QpFields::to(QpState::Rtr)
    }
}

/// A queue pair that signals all its sends, with a queue for them and one for its receives.
pub(super) fn queue_pair(device: &SoftDevice, kind: QpType, cqs: [&SoftCq; 2]) -> SoftQp {
    Fabric::create_qp(device, &attr(kind, cqs, None)).unwrap()
}

/// The next completion of the first; the other side is polled meanwhile.
pub(super) fn next(one: &mut Side, other: &mut Side) -> Wc {
    let until = Instant::now() + SOON;
    let mut kept = Vec::new();
    loop {
        if let Some(wc) = one.poll() {
            assert!(kept.is_empty(), "{kept:?}");
            return wc;
        }
        assert!(Instant::now() < until, "nothing came");
        kept.extend(other.poll().filter(|wc| wc.wr_id != 1));
    }
}

pub(super) fn next_of(side: &mut Side) -> Wc {
    let until = Instant::now() + SOON;
    loop {
        if let Some(wc) = side.poll() {
            return wc;
        }
        assert!(Instant::now() < until, "nothing came");
    }
}

/// Waits until the peer of that side is known to have left.
pub(super) fn wait_until_left(side: &Side) {
    let until = Instant::now() + SOON;
    while side.device.rendezvous_step().is_empty() {
        assert!(Instant::now() < until, "nobody says that the peer has left");
    }
}

/// The first side sends before the second has come. Then both send.
#[test]
fn either_side_may_come_first_and_need_not_wait() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut one, mut two) = (Side::new(kind), Side::new(kind));
        one.connect(two.name()).unwrap();
        one.receive();
        one.send(b"");
        two.receive();
        two.connect(one.name()).unwrap();
        assert_eq!(next(&mut two, &mut one).wr_id, 2);
        two.send(b"");
        // The completion of its own send may have been polled before.
        let wc = next_of(&mut one);
        let received = if wc.wr_id == 1 { next_of(&mut one) } else { wc };
        assert_eq!(received.wr_id, 2);
        assert_eq!(next(&mut two, &mut one).wr_id, 1);
    }
}

/// RTS tells the peer how often a message that finds no receive is sent again.
#[test]
fn the_fields_of_rts_count() {
    for (first, retries) in [(true, 0), (false, 0), (true, 7)] {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let (a, b) = (one.name(), two.name());
        if first {
            one.connect(b).unwrap();
        }
        two.connect(a).unwrap();
        if !first {
            one.connect(b).unwrap();
        }
        let fields = QpFields {
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(retries),
            sq_psn: Some(0),
            max_rd_atomic: Some(0),
            ..QpFields::to(QpState::Rts)
        };
        one.device.modify_qp(&mut one.qp, QpState::Rtr, &fields).unwrap();
        one.send(b"");
        if retries == 7 {
            let until = Instant::now() + Duration::from_millis(50);
            while Instant::now() < until {
                assert_eq!((one.poll(), two.poll()), (None, None));
            }
            two.receive();
            assert_eq!(next(&mut two, &mut one).wr_id, 2);
            // Without a right to any, a READ is refused before it is sent.
            let (sge, op) = (Sge::default(), SendOp::Read(Remote { addr: 0, rkey: 0 }));
            let wr = SendWr { wr_id: 3, op, flags: SendFlags::empty(), sge, more: &[] };
            // SAFETY: it has no bytes.
            unsafe { one.qp.post(&[wr]) }.unwrap();
            assert_eq!(next_of(&mut one).status, Status::Success);
            assert_eq!(next_of(&mut one).status, Status::LocalQpOperation);
        } else {
            assert_eq!(next(&mut one, &mut two).status, Status::RnrRetryExceeded);
        }
    }
}

/// The name of the pair decides who makes the link, however the sides meet.
#[test]
fn both_sides_may_come_at_once() {
    for _ in 0..100 {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let (a, b) = (one.name(), two.name());
        thread::scope(|scope| {
            scope.spawn(|| one.connect(b).unwrap());
            scope.spawn(|| two.connect(a).unwrap());
        });
        two.receive();
        one.send(b"");
        assert_eq!(next(&mut two, &mut one).status, Status::Success);
    }
}

/// Two queue pairs of one device, and so of one domain.
#[test]
fn a_device_connects_to_itself() {
    let mut one = Side::new(QpType::Rc);
    let (cq, poller) = one.device.create_cq(16, Sharing::Shared).unwrap();
    let qp = queue_pair(&one.device, QpType::Rc, [&cq, &cq]);
    let mut two = Side { device: one.device.clone(), qp, poller, gid: one.gid };
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    two.receive();
    one.send(b"");
    assert_eq!(next(&mut two, &mut one).status, Status::Success);
    assert_eq!(next_of(&mut one).status, Status::Success);
}

/// RESET on both sides, and the pair meets again.
#[test]
fn a_pair_connects_again_after_a_reset() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    for _ in 0..3 {
        let (a, b) = (one.name(), two.name());
        one.connect(b).unwrap();
        two.connect(a).unwrap();
        two.receive();
        one.send(b"");
        assert_eq!(next(&mut two, &mut one).status, Status::Success);
        for side in [&mut one, &mut two] {
            let fields = QpFields::to(QpState::Reset);
            side.device.modify_qp(&mut side.qp, QpState::Rts, &fields).unwrap();
        }
        (one, two) = (two, one);
    }
}

/// A send that the peer has not taken ends when the peer has left. A queue pair with nothing on its
/// way stays as it is.
#[test]
fn a_peer_that_leaves_ends_only_what_it_has_not_taken() {
    for sends in [0, 1] {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let (a, b) = (one.name(), two.name());
        one.connect(b).unwrap();
        two.connect(a).unwrap();
        two.receive();
        one.receive();
        one.send(b"");
        assert_eq!(next(&mut two, &mut one).wr_id, 2);
        for _ in 0..sends {
            one.send(b"");
        }
        let Side { device, qp, .. } = two;
        let parting = device.part(qp.num());
        drop(qp);
        drop(parting);
        wait_until_left(&one);
        assert_eq!(next_of(&mut one).status, Status::Success, "the peer has taken it");
        if sends == 1 {
            assert_eq!(next_of(&mut one).status, Status::RetryExceeded);
            assert_eq!(next_of(&mut one).status, Status::Flushed);
        } else {
            assert!((0..100).all(|_| one.poll().is_none()), "its receive waits on");
        }
    }
}

/// The side that came first learns late how to wake the other.
#[test]
fn a_sleeping_second_side_is_woken() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let (a, b) = (one.name(), two.name());
    one.connect(b).unwrap();
    two.connect(a).unwrap();
    two.receive();
    two.poller.arm(false).unwrap();
    assert!(two.poll().is_none());
    one.device.rendezvous_step();
    one.send(b"");
    let fds = two.poller.wake_fds().unwrap();
    let epoll = super::sys::Epoll::new().unwrap();
    epoll.add(fds.device, 1).unwrap();
    let mut keys = [0; super::sys::READY_MAX];
    assert!(!epoll.wait(Some(SOON), &mut keys).unwrap().is_empty(), "nobody wakes it");
    assert!(two.poller.woken());
    assert_eq!(next_of(&mut two).wr_id, 2);
}

/// Peers that lie about who they are, send nonsense, or no link: they are not heard, and the honest
/// one is.
#[test]
fn offers_of_liars_do_not_count() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let name = listener_name(two.device.name(), two.gid);
    let connected = || {
        let socket = Socket::new().unwrap();
        socket.connect(&name).unwrap();
        socket
    };
    let offer = |gid: Gid, from, to| Message::ByNumber(ByNumber { gid: gid.0, from, to }).encode();
    let mut liars: Vec<Socket> = (0..100).map(|_| connected()).collect();
    for bytes in [vec![7; 200], Message::Bye.encode(), offer(Gid([9; 16]), 3, two.qp.num())] {
        let liar = connected();
        liar.send(&bytes, &[]).unwrap();
        liars.push(liar);
    }
    let (a, b) = (one.name(), two.name());
    one.connect(b).unwrap();
    two.connect(a).unwrap();
    two.receive();
    one.send(b"");
    assert_eq!(next(&mut two, &mut one).status, Status::Success);
    // Without memory there is no link.
    let mut three = Side::new(QpType::Rc);
    let name = listener_name(three.device.name(), three.gid);
    let empty = Socket::new().unwrap();
    empty.connect(&name).unwrap();
    empty.send(&offer(one.gid, 77, three.qp.num()), &[]).unwrap();
    assert_eq!(three.connect((one.gid, 77)).unwrap_err().code(), Code::Invalid);
    // A GID of another process than the one that sends it: the offer is not looked at.
    let mut other = one.gid;
    other.0[3] ^= 1;
    let liar = Socket::new().unwrap();
    liar.connect(&name).unwrap();
    liar.send(&offer(other, 78, three.qp.num()), &[]).unwrap();
    assert_eq!(three.connect((other, 78)).unwrap_err().code(), Code::NoDevice);
}

/// A GID that no device has.
#[test]
fn a_peer_that_does_not_exist_is_an_error() {
    let mut one = Side::new(QpType::Rc);
    assert_eq!(one.connect((Gid([1; 16]), 17)).unwrap_err().code(), Code::NoDevice);
}

/// Each error of a step to RTR says what to do.
#[test]
fn errors_name_the_cure() {
    let mut one = Side::new(QpType::Rc);
    let (here, device) = (one.name(), one.device.clone());
    let mut failed = |to| {
        let mut attempt = Attempt { until: Some(Instant::now()), ..Attempt::default() };
        let fields = rtr(to, 1);
        let step = device.try_modify_qp(&mut one.qp, QpState::Init, &fields, &mut attempt);
        step.unwrap_err().to_string()
    };
    // Somebody else has the name of the pair.
    let name = Socket::new().unwrap();
    name.bind(&pair_name(here, (here.0, 17))).unwrap();
    let error = failed((here.0, 17));
    assert!(error.contains("end the process that holds the name"), "{error}");
    // The listener is full; or it is that of another process than the GID says.
    for (byte, peers, cure) in [(15, 1, "is not stopped"), (3, 0, "in one PID name space")] {
        let mut gid = here.0;
        gid.0[byte] ^= 0x55;
        let name = listener_name(device.name(), gid);
        let [listener, peer] = [(); 2].map(|()| Socket::new().unwrap());
        listener.bind(&name).unwrap();
        listener.listen(0).unwrap();
        (0..peers).for_each(|_| peer.connect(&name).unwrap());
        let error = failed((gid, 17));
        assert!(error.contains(cure), "{error}");
    }
}

/// What a queue pair's own access flags do not allow, its peer may not do (QP rights, SM-6).
#[test]
fn rights_of_a_queue_pair_bind_its_peer() {
    for rights in [Access::empty(), Access::REMOTE_WRITE] {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let init = QpFields {
            access: Some(rights),
            pkey_index: Some(0),
            port: Some(1),
            ..QpFields::to(QpState::Init)
        };
        two.device.modify_qp(&mut two.qp, QpState::Reset, &init).unwrap();
        let (a, b) = (one.name(), two.name());
        one.connect(b).unwrap();
        two.connect(a).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = two.device.peer_memory(4096).unwrap();
        let region = two.device.register(memory, all).unwrap();
        let op = SendOp::Write(region.remote(0));
        let (sge, flags) = (Sge::inline(b"bytes"), SendFlags::INLINE);
        let wr = SendWr { wr_id: 1, op, flags, sge, more: &[] };
        // SAFETY: the payload is inline.
        unsafe { one.qp.post(&[wr]) }.unwrap();
        let wanted = if rights.is_empty() { Status::RemoteInvalidRequest } else { Status::Success };
        assert_eq!(next(&mut one, &mut two).status, wanted, "{rights:?}");
    }
}

/// A connection whose queue pair has gone is not reported for ever because a child process holds
/// its file.
#[test]
fn a_pair_that_a_child_shares_is_not_watched() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    let Side { device, qp, .. } = two;
    let rendezvous = device.0.rendezvous.get().unwrap();
    let _child = rendezvous.shared_with_child(qp.num());
    drop(qp);
    rendezvous.step();
    drop(one);
    assert_eq!(rendezvous.watch.wait(Some(Duration::ZERO), &mut [0; READY_MAX]).unwrap(), []);
}

/// One side goes to RESET and RTR while the other is still connected, whichever came first.
#[test]
fn one_side_may_come_again_before_the_other() {
    for first_comes_again in [true, false] {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        let (a, b) = (one.name(), two.name());
        one.connect(b).unwrap();
        two.connect(a).unwrap();
        if !first_comes_again {
            (one, two) = (two, one);
        }
        let fields = QpFields::to(QpState::Reset);
        one.device.modify_qp(&mut one.qp, QpState::Rts, &fields).unwrap();
        wait_until_left(&two);
        one.connect(two.name()).unwrap();
        two.device.modify_qp(&mut two.qp, QpState::Rts, &fields).unwrap();
        two.connect(one.name()).unwrap();
        two.receive();
        one.send(b"");
        assert_eq!(next(&mut two, &mut one).status, Status::Success);
    }
}

/// Sends to a peer that has left fail when their retries have run out, as on a NIC. Until then a
/// program may read what came before, and end.
#[test]
fn sends_to_a_peer_that_left_fail_after_their_retries() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    // Two times 67 ms.
    let fields = QpFields {
        timeout: Some(14),
        retry_cnt: Some(1),
        rnr_retry: Some(7),
        sq_psn: Some(0),
        max_rd_atomic: Some(1),
        ..QpFields::to(QpState::Rts)
    };
    one.device.modify_qp(&mut one.qp, QpState::Rtr, &fields).unwrap();
    one.send(&[]);
    let begin = Instant::now();
    let Side { device, qp, mut poller, .. } = two;
    let parting = device.part(qp.num());
    drop(qp);
    drop(parting);
    while one.device.rendezvous_step().is_empty() {
        // The rest of that device goes on.
        poller.poll(&mut []);
        assert_eq!(one.poll(), None, "its retries go on");
        assert!(begin.elapsed() < SOON, "nobody says that the peer has left");
        let fd = one.device.rendezvous_fd().unwrap();
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd`.
        unsafe { libc::poll(&raw mut asked, 1, 60_000) };
    }
    assert!(begin.elapsed() >= Duration::from_millis(134), "{:?}", begin.elapsed());
    assert_eq!(next_of(&mut one).status, Status::RetryExceeded);
}
