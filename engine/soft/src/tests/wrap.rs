//! Positions travel by their low halves: a position from 4 GiB ago is no news.

use super::*;

const ROUND: u64 = 1 << 32;

/// The position behind the last record that this side has written.
pub(super) fn sent(end: &End) -> u64 {
    unsafe { end.poller.cq.domain.enter(|state| state.links.table[0].as_ref().unwrap().tx.at) }
}

/// A message that is taken, and acknowledged.
fn pass(one: &mut End, two: &mut End, length: usize) {
    two.recv(0, 0, length);
    one.send(0, 0, length, SendFlags::SIGNALED).unwrap();
    let mut done = 0;
    for _ in 0..10_000 {
        two.poll();
        done += one.poll().len();
        if done > 0 {
            break;
        }
    }
    assert_eq!(done, 1, "{length} bytes");
}

/// A side that replied once and then only reads has acknowledged long ago. When the sender reaches
/// the same low half again, its messages there have not been taken.
#[test]
fn an_old_acknowledgement_is_no_news() {
    let caps = QpCaps { send_wr: 256, recv_wr: 256, ..CAPS };
    let (mut one, mut two) = (end(caps, false), end(caps, true));
    join(&mut one.qp, &mut two.qp, 7);
    pass(&mut one, &mut two, 4000);
    one.recv(0, 0, 64);
    two.send(0, 0, 8, SendFlags::INLINE).unwrap();
    assert_eq!(one.poll().len(), 1);
    for (length, before) in [(1 << 20, 1 << 21), (4000, 8192), (8, 64)] {
        while sent(&one) < ROUND - before {
            pass(&mut one, &mut two, length);
        }
    }
    let mut count = 0;
    while sent(&one) < ROUND + 8192 {
        two.recv(0, 0, 256);
        one.send(0, 0, 256, SendFlags::SIGNALED).unwrap();
        count += 1;
    }
    for _ in 0..200 {
        assert!(one.poll().is_empty(), "no part of it was taken");
    }
    let (done, taken) = settle(&mut one, &mut two);
    assert_eq!((done.len(), taken.len()), (count, count));
}
