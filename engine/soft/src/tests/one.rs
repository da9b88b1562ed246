//! Posts of one request, which have a way of their own.

use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::model::limits::SEND_SGE_MAX;
use crate::provider::ProtectionDomains;
use crate::state::domain_state::DomainState;
use crate::wc::Status;

const NONE: SendFlags = SendFlags::empty();
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// An end in the shared domain.
fn shared_end(srq: bool) -> End {
    let End { nic, region, srq, .. } = end(CAPS, srq);
    let (cq, poller) = nic.create_cq(256, Sharing::Shared).unwrap();
    let qp = make_qp(&nic, &cq, srq.as_ref(), CAPS);
    End { nic, poller, cq, qp, region, srq }
}

fn shared_pair(srq: bool) -> (End, End) {
    let (mut one, mut two) = (shared_end(srq), shared_end(srq));
    join(&mut one.qp, &mut two.qp, 7);
    (one, two)
}

impl End {
    fn wr(&self, wr_id: u64, length: usize, flags: SendFlags) -> SendWr<'static> {
        SendWr { wr_id, op: SendOp::Send, flags, sge: self.sge(0, length), more: &[] }
    }

    fn send_one(&self, wr_id: u64, length: usize, flags: SendFlags) -> Result<(), PostCause> {
        let posted = unsafe { self.qp.shared_sends().post_one(|| self.wr(wr_id, length, flags)) };
        posted.map_err(|PostError { accepted, cause }| {
            assert_eq!(accepted, 0);
            cause
        })
    }

    fn recv_one(&mut self, wr_id: u64) -> bool {
        let sge = self.sge(0, 64);
        unsafe { self.qp.post_one_recv(|| RecvWr { wr_id, sge }) }
    }
}

fn numbers(list: &[Wc], status: Status) -> Vec<u64> {
    assert!(list.iter().all(|wc| wc.status == status), "{list:?}");
    list.iter().map(|wc| wc.wr_id).collect()
}

/// SM-6, SQ-1: the rules of a list hold for one send, which may leave at once or not.
#[test]
fn one_send_meets_the_rules_of_a_list() {
    let one = shared_end(false);
    assert_eq!(one.send_one(1, 8, NONE), Err(PostCause::State), "before RTS");

    let (mut one, mut two) = shared_pair(false);
    (0..8).for_each(|n| two.recv(n, 0, 64));
    for n in 0..8 {
        let flags = if n == 4 { SIGNALED | SendFlags::FENCE } else { SIGNALED };
        one.send_one(n, [8, 64][n as usize % 2], flags).unwrap();
    }
    assert_eq!(one.send_one(8, 8, NONE), Err(PostCause::Full));
    assert_eq!(one.send_one(8, 65, SendFlags::INLINE), Err(PostCause::Full));
    let (sent, received) = settle(&mut one, &mut two);
    assert_eq!(numbers(&sent, Status::Success), (0..8).collect::<Vec<_>>());
    assert_eq!(numbers(&received, Status::Success), (0..8).collect::<Vec<_>>());
    assert_eq!(one.send_one(8, 65, SendFlags::INLINE), Err(PostCause::InlineTooLong));

    one.qp.fail();
    one.send_one(9, 8, NONE).unwrap();
    assert_eq!(numbers(&settle(&mut one, &mut two).0, Status::Flushed), [9]);

    let (mut one, _two) = pair(CAPS, false);
    assert_eq!(one.send_one(1, 8, NONE), Err(PostCause::State), "the domain of one thread");
    assert!(unsafe { one.qp.shared_sends().post(&[one.wr(1, 8, NONE)]) }.is_err());
    one.send(1, 0, 8, NONE).unwrap();
}

/// PL-2: the pieces of an inline message leave at once, in the slot if that holds them.
#[test]
fn pieces_of_an_inline_message_leave_at_once() {
    let (mut one, mut two) = shared_pair(false);
    let state = |one: &End| {
        let in_slot = |state: &mut DomainState| state.links.only().unwrap().tx.last_in_slot();
        one.poller.cq.domain.enter_shared(in_slot).unwrap()
    };
    one.fill(0, &pattern(1, 64));
    let inline = SendFlags::INLINE | SIGNALED;
    for (n, lengths) in [[9, 8, 0], [0, 0, 0], [1, 2, 3], [20, 20, 24]].into_iter().enumerate() {
        two.recv(n as u64, 4096, 64);
        let starts = [0, 9, 40];
        let [first, more @ ..] = [0, 1, 2].map(|n| one.sge(starts[n], lengths[n]));
        let before = state(&one);
        let wr = SendWr { sge: first, more: &more, ..one.wr(n as u64, 0, inline) };
        unsafe { one.qp.post(&[wr]) }.unwrap();
        assert_ne!(state(&one), before, "{lengths:?}");
        let (sent, received) = settle(&mut one, &mut two);
        assert_eq!(numbers(&sent, Status::Success), [n as u64]);
        assert_eq!(numbers(&received, Status::Success), [n as u64]);
        let bytes: Vec<u8> = (0..3).flat_map(|n| one.bytes(starts[n], lengths[n])).collect();
        assert_eq!(received[0].byte_len as usize, bytes.len());
        assert_eq!(two.bytes(4096, bytes.len()), bytes);
    }
    let (sge, more) = (one.sge(0, 40), [one.sge(0, 25)]);
    let long = SendWr { sge, more: &more, ..one.wr(9, 0, inline) };
    let refused = unsafe { one.qp.post(&[long]) }.map_err(|error| error.cause);
    assert_eq!(refused, Err(PostCause::InlineTooLong));
    let many = SendWr { more: &[Sge::default(); SEND_SGE_MAX], ..one.wr(9, 0, inline) };
    let refused = unsafe { one.qp.post(&[many]) }.map_err(|error| error.cause);
    assert_eq!(refused, Err(PostCause::TooManyPieces));
}

/// MR-2: one send reads memory of its own domain.
#[test]
fn mr_2_one_send_reads_memory_of_its_own_domain() {
    let (mut one, mut two) = shared_pair(false);
    two.recv(1, 0, 64);
    let strange = one.nic.alloc_pd().unwrap().register(shared(64), Access::all()).unwrap();
    let sge = Sge { addr: strange.as_ptr() as u64, length: 8, lkey: strange.lkey() };
    let sends = one.qp.shared_sends();
    unsafe { sends.post_one(|| SendWr { sge, ..one.wr(1, 8, NONE) }) }.unwrap();
    let (sent, received) = settle(&mut one, &mut two);
    assert_eq!(numbers(&sent, Status::LocalProtection), [1]);
    assert!(received.is_empty());
}

#[test]
fn one_send_overtakes_no_send_that_waits() {
    let (mut one, mut two) = shared_pair(false);
    (0..2).for_each(|n| two.recv(n, 0, 4 << 20));
    one.send_one(0, 1 << 20, NONE).unwrap();
    one.send_one(1, 8, NONE).unwrap();
    let lengths = settle(&mut one, &mut two).1.iter().map(|wc| wc.byte_len).collect::<Vec<_>>();
    assert_eq!(lengths, [1 << 20, 8]);
}

/// One receive enters the queue, or is left to the general post: in a full queue, in one that is
/// flushed or shared, and where a message waits for it.
#[test]
fn one_receive_enters_the_queue_where_nobody_waits_for_it() {
    let (mut one, mut two) = shared_pair(false);
    (0..64).for_each(|n| assert!(two.recv_one(n)));
    assert!(!two.recv_one(64), "the queue is full");
    for n in 0..64 {
        one.send(n, 0, 8, SIGNALED).unwrap();
        let (sent, received) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), numbers(&received, Status::Success)), (1, std::vec![n]));
    }
    one.send(64, 0, 8, NONE).unwrap();
    assert!(settle(&mut one, &mut two).1.is_empty());
    assert!(!two.recv_one(65), "a message waits");
    two.recv(65, 0, 64);
    assert_eq!(numbers(&settle(&mut one, &mut two).1, Status::Success), [65]);

    two.qp.fail();
    assert!(settle(&mut one, &mut two).1.is_empty());
    assert!(!two.recv_one(66), "the queue is flushed");
    two.recv(67, 0, 64);
    assert_eq!(numbers(&two.poll(), Status::Flushed), [67]);

    let (mut one, mut two) = shared_pair(true);
    assert!(!two.recv_one(1), "it has no queue of its own");
    let sge = two.sge(0, 64);
    assert!(unsafe { two.srq.as_ref().unwrap().post_one(|| RecvWr { wr_id: 2, sge }) });
    one.send(1, 0, 8, NONE).unwrap();
    assert_eq!(numbers(&settle(&mut one, &mut two).1, Status::Success), [2]);
}

/// Several threads post on one queue pair. None of their requests is lost or doubled.
#[test]
fn threads_post_on_one_queue_pair() {
    const EACH: u64 = if cfg!(miri) { 20 } else { 2000 };
    /// The longest time for all messages, on a busy machine.
    const LIMIT: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    let (mut one, two) = shared_pair(true);
    let (sends, srq) = (one.qp.shared_sends(), two.srq.as_ref().unwrap());
    let (request, receive) = (one.wr(0, 8, SIGNALED), two.sge(0, 64));
    let mut two_poller = two.poller;
    let again = |mut post: Box<dyn FnMut(u64) -> bool + Send + '_>, from: u64| {
        for wr_id in from..from + EACH {
            while !post(wr_id) {
                assert!(begun.elapsed() < LIMIT, "no room");
                thread::yield_now();
            }
        }
    };
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        for from in [0, EACH] {
            let (sends, again) = (&sends, &again);
            let send = move |wr_id| unsafe {
                let wr = SendWr { wr_id, ..request };
                if wr_id % 2 == 0 { sends.post_one(|| wr) } else { sends.post(&[wr]) }.is_ok()
            };
            scope.spawn(move || again(Box::new(send), from));
            let receive = move |wr_id| unsafe {
                let wr = RecvWr { wr_id, sge: receive };
                srq.post_one(|| wr) || srq.post(&[wr]).is_ok()
            };
            scope.spawn(move || again(Box::new(receive), from));
        }
        let mut out = [Wc::default(); 16];
        while sent.len() < 2 * EACH as usize || received.len() < 2 * EACH as usize {
            assert!(begun.elapsed() < LIMIT, "{} sent, {} received", sent.len(), received.len());
            let count = two_poller.poll(&mut out);
            received.extend(numbers(&out[..count], Status::Success));
            sent.extend(numbers(&one.poll(), Status::Success));
        }
    });
    for mut list in [sent, received] {
        list.sort_unstable();
        assert_eq!(list, (0..2 * EACH).collect::<Vec<_>>());
    }
}
