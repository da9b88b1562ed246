//! Receiver not ready: waiting for a receive, retries, and refusals.

use super::*;
use crate::wc::Status;

/// CP-6: a thread that arms and then polls sees what came before, including the refusal of a send
/// that asked for no completion, however long nothing had come.
#[test]
fn cp_6_a_poll_after_arming_sees_a_refusal() {
    for idle in 0..70 {
        let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
        join(&mut one.qp, &mut two.qp, 0);
        one.send(1, 0, 8, SendFlags::empty()).unwrap();
        assert!(two.poll().is_empty());
        for _ in 0..idle {
            assert!(one.poll().is_empty());
        }
        pass(1000);
        assert!(two.poll().is_empty());
        unsafe { one.poller.cq.domain.enter(|state| state.fall_asleep()) };
        let got = one.poll();
        assert_eq!(got.len(), 1, "after {idle} polls");
        assert_eq!(got[0].status, Status::RnrRetryExceeded);
    }
}

/// RNR (RC-1): without a receive the message waits, whole and in order, and proceeds when one is
/// posted.
#[test]
fn rnr_waits_for_a_receive() {
    let (mut one, mut two) = pair(QpCaps { send_wr: 64, ..CAPS }, true);
    for n in 0..20u8 {
        one.fill(n as usize * 8, &[n; 8]);
        one.send(n.into(), n as usize * 8, 8, SendFlags::SIGNALED).unwrap();
    }
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), got.len()), (0, 0), "nothing is acknowledged before it is taken");
    for n in 0..20 {
        two.recv(n, 0, 8);
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), got.len()), (1, 1));
        assert_eq!((sent[0].wr_id, got[0].wr_id), (n, n));
        assert_eq!(two.bytes(0, 8), [n as u8; 8]);
    }
}

/// RC-1: after a finite number of retries the send fails with 13, and both queue pairs are in
/// error.
#[test]
fn rc_1_rnr_retries_run_out() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 2);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    one.send(2, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.is_empty());
    pass(2999);
    let (sent, _) = settle(&mut one, &mut two);
    assert!(sent.is_empty(), "two retries of 1000 ns each after the first try");
    pass(1);
    let (sent, got) = settle(&mut one, &mut two);
    let ends: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ends, [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
    assert!(got.is_empty());
    two.send(3, 0, 8, SendFlags::empty()).unwrap();
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!((got[0].wr_id, got[0].status), (3, Status::Flushed));
}

/// RC-1: retries count per sequence and start again with progress.
#[test]
fn rc_1_retries_start_again_with_each_message() {
    let (mut one, mut two) = (end(CAPS, true), end(CAPS, true));
    join(&mut one.qp, &mut two.qp, 2);
    for n in 0..6 {
        one.send(n, 0, 8, SendFlags::SIGNALED).unwrap();
        settle(&mut one, &mut two);
        pass(2500);
        let (sent, _) = settle(&mut one, &mut two);
        assert!(sent.is_empty(), "message {n} has not waited 3000 ns");
        two.recv(n, 0, 8);
        let (sent, got) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), got.len()), (1, 1));
        assert_eq!(sent[0].status, Status::Success);
    }
}
