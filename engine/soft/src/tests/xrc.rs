//! Extended reliable connections: XRC-1.

use super::*;
use crate::event::{AsyncKind, Object};
use crate::provider::{AsyncEvents, ProtectionDomains, Xrc, XrcSrq};
use crate::wc::{Status, WcOpcode};
use crate::wr::{Remote, XrcOp};

/// The receiving side: a domain, a queue pair, a shared receive queue, memory.
struct Taker {
    nic: Soft,
    xrcd: SoftXrcd,
    poller: SoftPoller,
    srq: SoftSrq,
    cq: SoftCq,
    region: SoftRegion,
    qps: Vec<SoftQp>,
}

fn taker(depth: u32) -> Taker {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let xrcd = nic.open_xrcd().unwrap();
    let (cq, poller) = nic.create_cq(256, Sharing::Shared).unwrap();
    let srq = nic.create_xrc_srq(&xrcd, &cq, depth).unwrap();
    let region = nic.register(mapping(1 << 20), Access::all()).unwrap();
    Taker { nic, xrcd, poller, srq, cq, region, qps: Vec::new() }
}

impl Taker {
    fn number(&self) -> u32 {
        self.srq.number().unwrap()
    }

    fn recv_on(&self, srq: &SoftSrq, wr_id: u64, at: usize, length: u32) {
        let sge = Sge { addr: self.addr(at), length, lkey: self.region.lkey() };
        unsafe { srq.post(&[RecvWr { wr_id, sge }]).unwrap() };
    }

    fn recv(&self, wr_id: u64, at: usize, length: u32) {
        self.recv_on(&self.srq, wr_id, at, length);
    }

    fn addr(&self, at: usize) -> u64 {
        self.region.as_ptr() as u64 + at as u64
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        unsafe { core::slice::from_raw_parts(self.region.as_ptr().add(at), len) }.to_vec()
    }

    /// A sender in a thread of its own, connected to a queue pair of the domain.
    fn sender(&mut self, rnr_retry: u8) -> End {
        let mut one = end(CAPS, false);
        one.qp = make_qp_of(QpType::XrcSend, &one.nic, &one.cq, None, CAPS);
        let mut qp = self.nic.create_xrc_recv(&self.xrcd).unwrap();
        join(&mut one.qp, &mut qp, rnr_retry);
        self.qps.push(qp);
        one
    }

    fn poll(&mut self) -> Vec<Wc> {
        poll(&mut self.poller)
    }
}

fn poll(poller: &mut SoftPoller) -> Vec<Wc> {
    let mut out = [Wc::default(); 16];
    let n = poller.poll(&mut out);
    out[..n].to_vec()
}

fn to(srq: u32, op: XrcOp) -> SendOp {
    SendOp::Xrc { srq, op }
}

fn settle_with(one: &mut End, two: &mut Taker) -> (Vec<Wc>, Vec<Wc>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        first.extend(one.poll());
        second.extend(two.poll());
    }
    (first, second)
}

fn statuses(list: &[Wc]) -> Vec<Status> {
    list.iter().map(|wc| wc.status).collect()
}

#[test]
fn two_senders_fill_one_queue_and_completions_name_the_target() {
    let mut two = taker(16);
    let (mut left, mut right) = (two.sender(7), two.sender(7));
    let number = two.number();
    for n in 0..4 {
        two.recv(n, n as usize * 64, 64);
    }
    for turn in 0..2 {
        for (which, end) in [&mut left, &mut right].into_iter().enumerate() {
            let seed = 2 * turn + which;
            end.fill(0, &pattern(seed, 40));
            let op = if turn == 0 { XrcOp::Send } else { XrcOp::SendWithImm(7) };
            end.post(seed as u64, to(number, op), end.sge(0, 40), SendFlags::SIGNALED).unwrap();
            let (sent, received) = settle_with(end, &mut two);
            assert_eq!(statuses(&sent), [Status::Success]);
            let [wc] = received[..] else { panic!("{received:?}") };
            assert_eq!((wc.status, wc.opcode, wc.byte_len), (Status::Success, WcOpcode::Recv, 40));
            assert_eq!(wc.wr_id, seed as u64, "receives leave in order");
            assert_eq!(wc.qp_num, two.qps[which].num());
            assert_eq!(wc.flags.contains(WcFlags::WITH_IMM), turn == 1);
            assert_eq!(two.bytes(seed * 64, 40), pattern(seed, 40));
        }
    }
}

#[test]
fn fragments_stay_in_the_queue_they_began_in() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    let long = 9000;
    one.fill(0, &pattern(5, long));
    two.recv(1, 0, 16384);
    let other = two.nic.create_xrc_srq(&two.xrcd, &two.cq, 4).unwrap();
    two.recv_on(&other, 2, 16384, 16384);
    for (srq, wr_id, at) in [(two.number(), 1, 0), (other.number().unwrap(), 2, 16384)] {
        let sge = one.sge(0, long);
        one.post(wr_id, to(srq, XrcOp::Send), sge, SendFlags::SIGNALED).unwrap();
        let (sent, received) = settle_with(&mut one, &mut two);
        assert_eq!(statuses(&sent), [Status::Success]);
        assert_eq!((received[0].wr_id, received[0].byte_len), (wr_id, long as u32));
        assert_eq!(two.bytes(at, long), pattern(5, long));
    }
}

#[test]
fn a_write_with_immediate_data_takes_a_receive_of_the_named_queue() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    for length in [0, 24, 5000, 20_000_usize] {
        one.fill(0, &pattern(length, length));
        two.recv(3, 1 << 19, 8);
        let at = Remote { addr: two.addr(0), rkey: two.region.rkey() };
        let op = to(two.number(), XrcOp::WriteWithImm(at, 99));
        one.post(1, op, one.sge(0, length), SendFlags::SIGNALED).unwrap();
        let (sent, received) = settle_with(&mut one, &mut two);
        assert_eq!(statuses(&sent), [Status::Success]);
        let [wc] = received[..] else { panic!("{received:?}") };
        assert_eq!((wc.wr_id, wc.opcode), (3, WcOpcode::RecvWriteWithImm));
        assert_eq!((wc.imm, wc.byte_len), (99, length as u32));
        assert_eq!(two.bytes(0, length), pattern(length, length));
    }
}

/// The record with the immediate data gets its place before the last bytes of the WRITE are
/// written: a ring that is almost full takes neither.
#[test]
fn writes_fill_the_ring_to_its_last_bytes() {
    for length in (1280..1360_usize).step_by(8) {
        let mut two = taker(16);
        let mut one = two.sender(7);
        let number = two.number();
        for n in 0..8_usize {
            two.recv(n as u64, 1 << 19, 8);
            one.fill(n * 2048, &pattern(n, length));
            let at = Remote { addr: two.addr(n * 2048), rkey: two.region.rkey() };
            let op = to(number, XrcOp::WriteWithImm(at, n as u32));
            one.post(n as u64, op, one.sge(n * 2048, length), SendFlags::SIGNALED).unwrap();
        }
        let (sent, received) = settle_with(&mut one, &mut two);
        assert_eq!(statuses(&sent), [Status::Success; 8], "{length}");
        assert!(received.iter().map(|wc| wc.imm).eq(0..8), "{length}: {received:?}");
        for n in 0..8 {
            assert_eq!(two.bytes(n * 2048, length), pattern(n, length), "{length}");
        }
    }
}

#[test]
fn one_sided_requests_take_no_receive() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    let number = two.number();
    let at = Remote { addr: two.addr(64), rkey: two.region.rkey() };
    let long = 9000;
    one.fill(0, &pattern(1, long));
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    let list = [
        (XrcOp::Write(at), one.sge(0, long)),
        (XrcOp::Read(at), one.sge(10_000, long)),
        (XrcOp::FetchAdd { at, add: 1 }, one.sge(20_000, 8)),
        (XrcOp::CompareSwap { at, compare: 0, swap: 9 }, one.sge(20_008, 8)),
    ];
    for (wr_id, (op, sge)) in list.into_iter().enumerate() {
        one.post(wr_id as u64, to(number, op), sge, fenced).unwrap();
    }
    let (sent, received) = settle_with(&mut one, &mut two);
    assert_eq!(statuses(&sent), [Status::Success; 4]);
    let done = [WcOpcode::Write, WcOpcode::Read, WcOpcode::FetchAdd, WcOpcode::CompareSwap];
    assert!(sent.iter().map(|wc| wc.opcode).eq(done));
    assert!(received.is_empty());
    assert_eq!(one.bytes(10_000, long), pattern(1, long));
    assert_eq!(two.bytes(64, 1)[0], pattern(1, 1)[0] + 1);
}

/// The named queue determines the protection domain of the memory.
#[test]
fn one_sided_requests_are_for_the_domain_of_the_queue_they_name() {
    for (of_region, named) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut two = taker(4);
        let apart = two.nic.alloc_pd().unwrap();
        let other = apart.create_xrc_srq(&two.xrcd, &two.cq, 4).unwrap();
        let strange = apart.register(mapping(4096), Access::all()).unwrap();
        let mut one = two.sender(7);
        let at = if of_region { two.region.remote(0) } else { strange.remote(0) };
        let number = if named { two.number() } else { other.number().unwrap() };
        one.post(1, to(number, XrcOp::Write(at)), one.sge(0, 8), SendFlags::SIGNALED).unwrap();
        let (sent, _) = settle_with(&mut one, &mut two);
        let good = of_region == named;
        let status = if good { Status::Success } else { Status::RemoteAccess };
        assert_eq!(statuses(&sent), [status]);
    }
    let mut two = taker(4);
    let mut one = two.sender(7);
    let op = to(4711, XrcOp::Write(two.region.remote(0)));
    one.post(1, op, one.sge(0, 8), SendFlags::SIGNALED).unwrap();
    assert_eq!(statuses(&settle_with(&mut one, &mut two).0), [Status::RemoteInvalidRequest]);
}

/// A queue that does not exist, or is of another domain: the sender gets an invalid-request error,
/// no receive is taken, and the target is in error with an event, because it has no completion
/// queue.
#[test]
fn a_queue_of_another_domain_is_refused() {
    for foreign in [true, false] {
        let mut two = taker(4);
        let mut one = two.sender(7);
        let xrcd = two.nic.open_xrcd().unwrap();
        let other = two.nic.create_xrc_srq(&xrcd, &two.cq, 4).unwrap();
        two.recv(1, 0, 64);
        two.recv_on(&other, 2, 64, 64);
        let number = if foreign { other.number().unwrap() } else { 4711 };
        one.post(7, to(number, XrcOp::Send), one.sge(0, 8), SendFlags::empty()).unwrap();
        one.post(8, to(two.number(), XrcOp::Send), one.sge(0, 8), SendFlags::empty()).unwrap();
        let (sent, received) = settle_with(&mut one, &mut two);
        assert_eq!(statuses(&sent), [Status::RemoteInvalidRequest, Status::Flushed]);
        assert!(received.is_empty(), "{received:?}");
        let event = two.nic.next_async_event().unwrap();
        let num = two.qps[0].num();
        assert_eq!((event.kind, event.object), (AsyncKind::QpRequestError, Object::Qp(num)));
        assert!(two.nic.next_async_event().is_none(), "it is on no receive queue for good");
    }
}

#[test]
fn without_receives_its_sender_waits_and_no_other() {
    let mut two = taker(4);
    let (mut one, mut other) = (two.sender(7), two.sender(7));
    let full = two.nic.create_xrc_srq(&two.xrcd, &two.cq, 4).unwrap();
    two.recv_on(&full, 5, 0, 64);
    let (empty, number) = (two.number(), full.number().unwrap());
    one.post(1, to(empty, XrcOp::Send), one.sge(0, 8), SendFlags::SIGNALED).unwrap();
    let (sent, received) = settle_with(&mut one, &mut two);
    assert!(sent.is_empty() && received.is_empty());
    other.post(2, to(number, XrcOp::Send), other.sge(0, 8), SendFlags::SIGNALED).unwrap();
    let (sent, received) = settle_with(&mut other, &mut two);
    assert_eq!((statuses(&sent), received[0].wr_id), (std::vec![Status::Success], 5));
    two.recv(6, 64, 64);
    let (sent, received) = settle_with(&mut one, &mut two);
    assert_eq!((statuses(&sent), received[0].wr_id), (std::vec![Status::Success], 6));
}

/// From the removal of the queue on, nothing is written to its buffers, not even the rest of a
/// message that had begun.
#[test]
fn a_queue_that_goes_takes_its_receives_along() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    let going = two.nic.create_xrc_srq(&two.xrcd, &two.cq, 4).unwrap();
    two.recv_on(&going, 1, 0, 1 << 19);
    let long = 100_000;
    one.fill(0, &pattern(3, long));
    let op = to(going.number().unwrap(), XrcOp::Send);
    one.post(1, op, one.sge(0, long), SendFlags::SIGNALED).unwrap();
    two.poll();
    assert_ne!(two.bytes(0, 2000), [0; 2000], "it has begun");
    assert_eq!(two.bytes(long - 2000, 2000), [0; 2000], "and not ended");
    drop(going);
    let (sent, received) = settle_with(&mut one, &mut two);
    assert_eq!(statuses(&sent), [Status::RemoteInvalidRequest]);
    assert!(received.is_empty());
    assert_eq!(two.bytes(long - 2000, 2000), [0; 2000]);
    drop(two.qps.pop());
}

#[test]
fn a_queue_pair_that_goes_gives_its_receive_back() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    two.recv(1, 0, 1 << 19);
    let op = to(two.number(), XrcOp::Send);
    one.post(1, op, one.sge(0, 100_000), SendFlags::SIGNALED).unwrap();
    two.poll();
    drop(two.qps.pop());
    let mut next = two.sender(7);
    next.post(2, op, next.sge(0, 8), SendFlags::SIGNALED).unwrap();
    let (sent, received) = settle_with(&mut next, &mut two);
    assert_eq!((statuses(&sent), received[0].wr_id), (std::vec![Status::Success], 1));
}

#[test]
fn a_request_that_does_not_fit_is_refused() {
    let mut two = taker(4);
    let mut one = two.sender(7);
    let at = Remote { addr: two.addr(0), rkey: two.region.rkey() };
    let malformed = Err(PostError { accepted: 0, cause: PostCause::Malformed });
    for op in [SendOp::Send, SendOp::SendWithInv(1), SendOp::WriteWithImm(at, 1), SendOp::Write(at)]
    {
        assert_eq!(one.post(1, op, one.sge(0, 8), SendFlags::INLINE), malformed, "{op:?}");
    }
    let (mut plain, _peer) = pair(CAPS, false);
    let op = to(two.number(), XrcOp::Send);
    assert_eq!(plain.post(1, op, plain.sge(0, 8), SendFlags::INLINE), malformed);
    let receive = RecvWr::default();
    let state = Err(PostError { accepted: 0, cause: PostCause::State });
    assert_eq!(unsafe { one.qp.post_recv(&[receive]) }, state, "a sender takes nothing");
    assert_eq!(unsafe { two.qps[0].post_recv(&[receive]) }, state, "its queues do");
    // QX-19.
    let (send_cq, recv_cq, srq) = (&two.cq, &two.cq, Some(&two.srq));
    for kind in [QpType::Rc, QpType::Uc, QpType::XrcSend] {
        let (caps, signal_all, ex) = (CAPS, false, SoftQpEx::default());
        let init = SoftQpInit { kind, send_cq, recv_cq, srq, caps, signal_all, ex };
        let Err(error) = two.nic.create_qp(&init) else { panic!("{kind:?}") };
        assert_eq!(error.code(), Code::Invalid);
    }
    let (alone, _poller) = two.nic.create_cq(4, Sharing::Exclusive).unwrap();
    let Err(error) = two.nic.create_xrc_srq(&two.xrcd, &alone, 4) else { panic!("one thread's") };
    assert_eq!(error.code(), Code::NotSupported);
    let stranger = Soft::new("soft0", Host::alone(clock), None);
    assert_eq!(stranger.create_xrc_recv(&two.xrcd).err().map(|e| e.code()), Some(Code::Invalid));
}

/// The peer is not believed: a plain SEND to an XRC queue pair is refused, and so is a record that
/// names a queue, on a queue pair of another type.
#[test]
fn records_of_the_wrong_kind_of_queue_pair_are_refused() {
    let mut two = taker(4);
    two.recv(1, 0, 64);
    let mut one = end(CAPS, false);
    let mut qp = two.nic.create_xrc_recv(&two.xrcd).unwrap();
    join(&mut one.qp, &mut qp, 7);
    two.qps.push(qp);
    one.send(1, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, received) = settle_with(&mut one, &mut two);
    assert_eq!((statuses(&sent), received.len()), (std::vec![Status::RemoteInvalidRequest], 0));

    let (mut one, mut other) = (end(CAPS, false), end(CAPS, false));
    one.qp = make_qp_of(QpType::XrcSend, &one.nic, &one.cq, None, CAPS);
    join(&mut one.qp, &mut other.qp, 7);
    other.recv(1, 0, 64);
    one.post(1, to(1, XrcOp::Send), one.sge(0, 8), SendFlags::SIGNALED).unwrap();
    let (sent, received) = settle(&mut one, &mut other);
    assert_eq!(statuses(&sent), [Status::RemoteInvalidRequest]);
    assert_eq!(statuses(&received), [Status::Flushed]);
}

#[test]
fn the_common_domain_is_one_while_anybody_has_it() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (cq, _poller) = nic.create_cq(16, Sharing::Shared).unwrap();
    let one = nic.default_xrcd().unwrap();
    let srq = nic.create_xrc_srq(&nic.default_xrcd().unwrap(), &cq, 4).unwrap();
    drop(one);
    let again = nic.create_xrc_srq(&nic.default_xrcd().unwrap(), &cq, 4).unwrap();
    assert_ne!(srq.number(), again.number());
    assert!(nic.create_srq(4).unwrap().number().is_none());
}
