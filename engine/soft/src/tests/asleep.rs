//! Domains that sleep, and what wakes them.

use super::local_rdma::{mapped_pair_of, near_with};
use super::*;
use crate::model::cq::{Arm, SHARED_BUDGET};
use crate::provider::wake::Notifier;
use crate::provider::{AddressHandle, AddressVector, Datagrams};
use crate::state::domain_state::DomainState;
use crate::wc::Status;
use crate::wr::Destination;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// The end's queue pair and completion queue anew, in the shared domain.
fn in_shared_domain(kind: QpType, end: End) -> End {
    let End { nic, region, .. } = end;
    let (cq, poller) = nic.create_cq(64, Sharing::Shared).unwrap();
    let qp = make_qp_of(kind, &nic, &cq, None, CAPS);
    End { nic, poller, cq, qp, region, srq: None }
}

fn shared_end(kind: QpType) -> End {
    in_shared_domain(kind, end(CAPS, false))
}

fn shared_pair(kind: QpType) -> (End, End) {
    let (mut one, mut two) = (shared_end(kind), shared_end(kind));
    join(&mut one.qp, &mut two.qp, 7);
    (one, two)
}

impl End {
    fn is_asleep(&self) -> bool {
        self.cq.domain.local_waker.is_asleep()
    }

    /// Arms the queue, and looks once more, as a thread does that is about to wait.
    fn wait_for_any(&mut self) {
        let index = self.cq.index;
        self.cq.domain.enter_shared(|state| state.arm(index, Arm::Any)).unwrap();
        assert!(self.poll().is_empty());
        assert!(self.is_asleep());
    }

    /// The thread wakes. True if the entry for which it waits has come; else it sleeps again.
    fn attends(&self) -> bool {
        let index = self.cq.index;
        let attend = |state: &mut DomainState| state.attend_wake(index, SHARED_BUDGET);
        self.cq.domain.enter_shared(attend).unwrap()
    }

    /// True if the thread has been woken from inside its process, and finds its entry.
    fn is_woken(&self) -> bool {
        !self.is_asleep() && self.attends()
    }
}

/// A thread waits for an entry of a shared queue. Another posts what ends without the peer: that
/// wakes the first.
#[test]
fn cp_6_a_post_that_ends_without_the_peer_wakes_the_thread_that_waits() {
    // A key that is wrong.
    let (mut one, _two) = shared_pair(QpType::Rc);
    one.wait_for_any();
    let sge = Sge { lkey: 7, ..one.sge(0, 8) };
    one.post(1, SendOp::Send, sge, SIGNALED).unwrap();
    assert!(one.is_woken());
    assert_eq!(one.poll()[0].status, Status::LocalProtection);

    // A send and a receive in ERR.
    one.wait_for_any();
    one.send(2, 0, 8, SIGNALED).unwrap();
    assert!(one.is_woken());
    assert_eq!((one.poll()[0].wr_id, one.poll().len()), (2, 0));
    one.wait_for_any();
    one.recv(3, 0, 8);
    assert!(one.is_woken());
    assert_eq!(one.poll()[0].wr_id, 3);

    // A send of UC.
    let (mut one, _two) = shared_pair(QpType::Uc);
    one.wait_for_any();
    one.send(1, 0, 8, SIGNALED).unwrap();
    assert!(one.is_woken());

    // One of UD.
    let mut one = in_shared_domain(QpType::Ud, datagrams::side("soft0"));
    one.qp.control().open();
    let ah = one.nic.create_ah(&AddressVector::to(one.nic.gid())).unwrap();
    one.wait_for_any();
    let to = Destination { ah: ah.name(), qpn: 99, qkey: 0 };
    one.post(1, SendOp::SendTo(to), one.sge(0, 8), SIGNALED).unwrap();
    assert!(one.is_woken());

    // A WRITE and a READ of memory that both sides map.
    let near = |nic: Soft| {
        let region = nic.register(shared(1 << 16), Access::all()).unwrap();
        in_shared_domain(QpType::Rc, near_with(nic, region))
    };
    let ((mut one, two), _links) = mapped_pair_of(near);
    for op in [SendOp::Write, SendOp::Read] {
        one.wait_for_any();
        let op: fn(Remote) -> SendOp = op;
        one.post(1, op(two.region.remote(0)), one.sge(0, 8), SIGNALED).unwrap();
        assert!(one.is_woken());
        assert_eq!(one.poll()[0].status, Status::Success);
    }
}

/// A domain asks another one for its prefetched receives while that one is awake. The other one
/// goes to sleep without a full poll, and has given them back.
#[test]
fn a_domain_gives_receives_back_before_it_sleeps() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let srq = nic.create_srq(64).unwrap();
    let region = nic.register(mapping(1 << 12), Access::LOCAL_WRITE).unwrap();
    let mut clients = [(); 2].map(|()| end(QpCaps { send_wr: 64, ..CAPS }, true));
    let serve = |sharing, client: &mut End| {
        let (cq, poller) = nic.create_cq(64, sharing).unwrap();
        let mut qp = make_qp(&nic, &cq, Some(&srq), CAPS);
        join(&mut client.qp, &mut qp, 7);
        (cq, poller, qp)
    };
    let (cq, mut poller, _qp) = serve(Sharing::Shared, &mut clients[0]);
    post_recvs(&srq, &region, 64);
    let mut out = [Wc::default(); 64];
    // It prefetches more than the one that it uses.
    clients[0].send(0, 0, 8, SendFlags::empty()).unwrap();
    assert_eq!(poller.poll(&mut out), 1);
    let (_cq, mut other, _qp) = serve(Sharing::Exclusive, &mut clients[1]);
    (0..63).for_each(|_| clients[1].send(0, 0, 8, SendFlags::empty()).unwrap());
    let mut got: usize = (0..100).map(|_| other.poll(&mut out)).sum();
    assert!(got < 63, "some are prefetched elsewhere");
    cq.domain.enter_shared(|state| state.arm(cq.index, Arm::Any)).unwrap();
    got += (0..100).map(|_| other.poll(&mut out)).sum::<usize>();
    assert_eq!(got, 63);
}

/// A post whose end the peer will announce wakes nobody before that.
#[test]
fn cp_6_a_post_that_the_peer_ends_wakes_nobody() {
    let (mut one, _two) = shared_pair(QpType::Rc);
    one.wait_for_any();
    one.post(1, SendOp::SendWithImm(5), one.sge(0, 8), SIGNALED).unwrap();
    assert!(one.is_asleep());
}

impl End {
    /// The rest of the time for which it may sleep, in nanoseconds.
    fn left(&mut self) -> Option<u128> {
        self.poller.look_again().map(|left| left.as_nanos())
    }

    /// Looks as a sleeper does whose time is over, or that was woken. Returns how often it looks
    /// until it may sleep, without an entry.
    fn looks(&mut self) -> usize {
        let mut looks = 0;
        while looks == 0 || !self.is_asleep() {
            assert!(looks < 10, "it looks again and again");
            match self.cq.domain.sharing() {
                Sharing::Shared => assert!(!self.attends(), "no entry has come"),
                Sharing::Exclusive => {
                    let fall_asleep = |state: &mut DomainState| {
                        state.wake_up();
                        state.fall_asleep();
                    };
                    unsafe { self.cq.domain.enter(fall_asleep) };
                    assert!(self.poll().is_empty());
                }
            }
            looks += 1;
        }
        looks
    }
}

/// RC-1: a message waits for a receive, and the domain that lacks one sleeps. It sleeps until the
/// retries of the peer end, and refuses the message then.
#[test]
fn rc_1_rnr_retries_run_out_while_the_receiver_sleeps() {
    for sharing in [Sharing::Shared, Sharing::Exclusive] {
        let (mut one, mut two) = (end(CAPS, true), end(CAPS, false));
        if sharing == Sharing::Shared {
            two = in_shared_domain(QpType::Rc, two);
            two.wait_for_any();
        }
        join(&mut one.qp, &mut two.qp, 2);
        assert_eq!((two.looks(), two.left()), (1, None));
        one.send(1, 0, 8, SIGNALED).unwrap();
        assert!(two.looks() <= 2);
        assert_eq!(two.left(), Some(3000), "it hears how long it may sleep");
        pass(2999);
        assert_eq!((two.looks(), two.left()), (1, Some(1)), "it knows that");
        pass(1);
        two.looks();
        assert_eq!(two.left(), None);
        assert_eq!(one.poll()[0].status, Status::RnrRetryExceeded);
    }

    // A message that waits without a limit wakes nobody.
    let (mut one, mut two) = (end(CAPS, true), shared_end(QpType::Rc));
    join(&mut one.qp, &mut two.qp, 7);
    one.send(1, 0, 8, SIGNALED).unwrap();
    two.wait_for_any();
    assert_eq!(two.left(), None);
}

/// A message has waited, and has got a receive. The next one waits anew, and its time counts.
#[test]
fn rc_1_a_sleeper_hears_of_each_message_that_waits() {
    let (mut one, mut two) = (end(CAPS, true), shared_end(QpType::Rc));
    join(&mut one.qp, &mut two.qp, 2);
    two.wait_for_any();
    for n in 0..6 {
        one.send(n, 0, 8, SIGNALED).unwrap();
        assert!(two.looks() <= 2);
        assert!(two.left().is_some_and(|left| left <= 3000));
        pass(2000);
        two.recv(n, 0, 8);
        assert!(two.is_woken(), "the receive wakes it");
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((got[0].wr_id, sent[0].status), (n, Status::Success));
        two.wait_for_any();
    }
    // The last time that it knew passes, and nothing is due then.
    pass(3000);
    assert_eq!((two.looks(), two.left()), (1, None));
    one.send(7, 0, 8, SIGNALED).unwrap();
    assert!(two.looks() <= 2);
    assert_eq!(two.left(), Some(3000));
}

/// CP-6: both sides of a connection are in the shared domain. One wake-up is enough for a message
/// that has waited for a receive: it is taken, and its send completes.
#[test]
fn cp_6_a_late_receive_completes_a_send_of_the_same_domain() {
    for retries in [2, 7] {
        let nic = Soft::new("soft0", Host::alone(clock), None);
        let region = nic.register(mapping(1 << 12), Access::all()).unwrap();
        let [(mut one, mut poller), (mut two, _other)] = [(); 2].map(|()| {
            let (cq, poller) = nic.create_cq(64, Sharing::Shared).unwrap();
            (make_qp_of(QpType::Rc, &nic, &cq, None, CAPS), poller)
        });
        join(&mut one, &mut two, retries);
        let sge = Sge { addr: region.as_ptr() as u64, length: 8, lkey: region.lkey() };
        let send = SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, sge, more: &[] };
        unsafe { one.post(&[send]) }.unwrap();
        let (domain, index) = (poller.cq.domain.clone(), poller.cq.index);
        domain.enter_shared(|state| state.arm(index, Arm::Any));
        assert_eq!(poller.poll(&mut [Wc::default()]), 0);
        let attend = |state: &mut DomainState| state.attend_wake(index, SHARED_BUDGET);
        while !domain.local_waker.is_asleep() {
            assert_eq!(domain.enter_shared(attend), Some(false));
        }
        unsafe { two.post_recv(&[RecvWr { wr_id: 2, sge }]) }.unwrap();
        let mut wakes = 0;
        while !domain.enter_shared(attend).unwrap() {
            wakes += 1;
            assert!(!domain.local_waker.is_asleep(), "{wakes} wake-ups, and nobody wakes it");
        }
    }
}

/// CP-6: an acknowledgement has come before a thread arms. The poll that follows finds its send, on
/// the only link or on one of two.
#[test]
fn cp_6_a_poll_after_arming_sees_an_acknowledgement() {
    for (sharing, links) in [
        (Sharing::Shared, 1),
        (Sharing::Shared, 2),
        (Sharing::Exclusive, 1),
        (Sharing::Exclusive, 2),
    ] {
        for idle in 0..70 {
            let (mut one, mut two) = (end(CAPS, false), end(CAPS, false));
            if sharing == Sharing::Shared {
                one = in_shared_domain(QpType::Rc, one);
            }
            join(&mut one.qp, &mut two.qp, 7);
            let mut others = (make_qp(&one.nic, &one.cq, None, CAPS), end(CAPS, false));
            if links == 2 {
                join(&mut others.0, &mut others.1.qp, 7);
            }
            one.send(1, 0, 8, SIGNALED).unwrap();
            for _ in 0..idle {
                assert!(one.poll().is_empty());
            }
            two.recv(2, 0, 8);
            assert_eq!((two.poll().len(), two.poll().len()), (1, 0));
            unsafe { one.cq.domain.enter(|state| state.arm(0, Arm::Any)) };
            assert_eq!(one.poll().len(), 1, "{sharing:?}, {links} links, {idle} polls");
        }
    }
}

/// CP-6: the same with a refusal. The thread finds it, or is woken.
#[test]
fn cp_6_a_refusal_before_a_sleep_wakes_the_thread() {
    let (mut one, mut two) = (shared_end(QpType::Rc), end(CAPS, false));
    join(&mut one.qp, &mut two.qp, 0);
    let mut others = (make_qp(&one.nic, &one.cq, None, CAPS), end(CAPS, false));
    join(&mut others.0, &mut others.1.qp, 7);
    one.send(1, 0, 8, SIGNALED).unwrap();
    assert!(two.poll().is_empty());
    pass(1000);
    assert!(two.poll().is_empty());
    unsafe { one.cq.domain.enter(|state| state.arm(0, Arm::Any)) };
    let mut got = one.poll();
    if got.is_empty() {
        assert!(one.is_woken());
        got = one.poll();
    }
    assert_eq!(got[0].status, Status::RnrRetryExceeded);
}

/// Two threads sleep in the shared domain. Whichever of them finds the message, both hear how long
/// they may sleep: the first may go elsewhere.
#[test]
fn rc_1_each_of_several_sleepers_hears_of_a_message_that_waits() {
    let rung = |nic: &Soft| {
        let (cq, poller) = nic.create_cq(64, Sharing::Shared).unwrap();
        (cq, poller)
    };
    let host = Host { notifier: || Some(counter()), ..Host::alone(clock) };
    let nic = Soft::new("soft0", host, None);
    let ((cq, mut poller), (_other_cq, mut other)) = (rung(&nic), rung(&nic));
    let mut qp = make_qp_of(QpType::Rc, &nic, &cq, None, CAPS);
    let mut one = end(CAPS, true);
    join(&mut one.qp, &mut qp, 2);
    for sleeper in [&mut poller, &mut other] {
        sleeper.arm(false).unwrap();
        assert_eq!(sleeper.poll(&mut [Wc::default()]), 0);
        assert_eq!(sleeper.look_again(), None);
    }
    one.send(1, 0, 8, SIGNALED).unwrap();
    // The first wakes, and clears the notifier of the domain before the other sees it.
    assert!(!poller.woken());
    let fds = other.wake_fds().unwrap();
    assert!(rings(fds.queue.unwrap()) > 0, "the other is woken too");
    assert!(!other.woken());
    assert!(other.look_again().is_some_and(|left| left.as_nanos() == 3000));
    // Each hears of it once.
    for sleeper in [&mut poller, &mut other] {
        assert!(!sleeper.woken());
        let fds = sleeper.wake_fds().unwrap();
        assert_eq!(fds.all().map(rings), [0, 0]);
    }
}

/// A thread asks between a wake-up and the look that follows. Another thread makes that look, so
/// nobody wakes the first: it must have heard how long it may sleep.
#[test]
fn rc_1_a_thread_that_asks_before_a_look_of_another_hears_how_long_it_may_sleep() {
    let host = Host { notifier: || Some(counter()), ..Host::alone(clock) };
    let nic = Soft::new("soft0", host, None);
    let [(cq, mut poller), (_other_cq, mut other)] =
        [(); 2].map(|()| nic.create_cq(64, Sharing::Shared).unwrap());
    let mut qp = make_qp_of(QpType::Rc, &nic, &cq, None, CAPS);
    let mut one = end(CAPS, true);
    join(&mut one.qp, &mut qp, 2);
    one.send(1, 0, 8, SIGNALED).unwrap();
    for sleeper in [&mut poller, &mut other] {
        sleeper.arm(false).unwrap();
        assert_eq!(sleeper.poll(&mut [Wc::default()]), 0);
    }
    assert!(!poller.woken() && !other.woken());
    pass(1000);
    cq.domain.local_waker.wake();
    let left = other.look_again();
    assert!(!poller.woken());
    assert_eq!(other.wake_fds().unwrap().all().map(rings), [0, 0], "nobody wakes it");
    assert_eq!(left.map(|left| left.as_nanos()), Some(2000));
    // A time that has passed is old: the next look renews it.
    pass(2000);
    cq.domain.local_waker.wake();
    assert_eq!(other.look_again(), None);
    assert!(!poller.woken(), "its queue pair has failed, without a receive");
    assert_eq!(one.poll()[0].status, Status::RnrRetryExceeded);
}

std::thread_local! {
    /// How often each notifier of this test was rung since it was last cleared, by its number.
    static RINGS: core::cell::RefCell<Vec<u32>> = const { core::cell::RefCell::new(Vec::new()) };
}

fn rings(fd: i32) -> u32 {
    RINGS.with_borrow(|rings| rings[fd as usize])
}

/// A notifier that counts.
fn counter() -> Notifier {
    let fd = RINGS.with_borrow_mut(|rings| {
        rings.push(0);
        rings.len() as i32 - 1
    });
    let ring = |fd| RINGS.with_borrow_mut(|rings| rings[fd as usize] += 1);
    let clear = |fd| RINGS.with_borrow_mut(|rings| rings[fd as usize] = 0);
    Notifier::new(fd, Arc::new(()), ring, clear)
}

/// A sender ends in the middle of a datagram. The owner waits for it for a while, and sleeps no
/// longer than that: nobody announces again what lies behind it.
#[test]
fn ud_an_owner_that_waits_for_a_sender_sleeps_for_a_while() {
    let mut one = in_shared_domain(QpType::Ud, datagrams::side("soft0"));
    one.qp.control().open();
    one.wait_for_any();
    let num = one.qp.num();
    let leave = |state: &mut DomainState| {
        let qp = state.transport.qps.get(num).unwrap();
        qp.datagrams.as_ref().unwrap().inbox.claim_and_leave();
    };
    one.cq.domain.enter_shared(leave).unwrap();
    assert_eq!((one.looks(), one.left()), (2, Some(1_000_000)), "it hears how long it may sleep");
    pass(999_999);
    assert_eq!((one.looks(), one.left()), (1, Some(1)));
    pass(1);
    one.looks();
    assert_eq!(one.left(), None, "it waits for that sender no more");
    // In ERR it takes nothing, and would look again for ever.
    one.cq.domain.enter_shared(leave).unwrap();
    one.qp.fail();
    one.attends();
    assert_eq!((one.looks(), one.left()), (1, None));
}
