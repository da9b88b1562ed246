//! The length of a link's ring. Positions in it travel by their low halves; one from 4 GiB ago is
//! no news.

use super::*;
use crate::shm::layout::SEGMENT;
use crate::state::link::Link;

const ROUND: u64 = 1 << 32;

/// The position behind the last record that this side has written.
pub(super) fn sent(end: &End) -> u64 {
    of_link(end, |link| link.tx.at)
}

/// Something of the only link of that side.
pub(super) fn of_link<T>(end: &End, get: impl FnOnce(&mut Link) -> T) -> T {
    unsafe { end.poller.cq.domain.enter(|state| get(state.links.table[0].as_mut().unwrap())) }
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

/// How far from the start of the ring a side comes with lists of 20 KiB, once it knows whether the
/// peer sends as many.
fn lap_of_lists(both: bool) -> u64 {
    const COUNT: usize = 20;
    let caps = QpCaps { send_wr: COUNT as u32, ..CAPS };
    let (mut one, mut two) = (end(caps, false), end(caps, true));
    join(&mut one.qp, &mut two.qp, 7);
    let mut longest = 0;
    for round in 0..40 {
        for end in [&mut two, &mut one].into_iter().take(1 + usize::from(both)) {
            (0..COUNT).for_each(|n| end.recv(0, n * 1024, 1024));
        }
        for end in [&mut one, &mut two].into_iter().take(1 + usize::from(both)) {
            let sge = end.sge(1 << 20, 1024);
            let flags = SendFlags::SIGNALED;
            end.post_list(&[SendWr { wr_id: 0, op: SendOp::Send, flags, sge, more: &[] }; COUNT])
                .unwrap();
        }
        let place = of_link(&one, |link| link.tx.place(link.tx.at));
        if round >= 20 {
            longest = longest.max(place);
        }
        let (done, came) = settle(&mut one, &mut two);
        let many = if both { 2 * COUNT } else { COUNT };
        assert_eq!((done.len(), came.len()), (many, many));
    }
    longest
}

/// With the same lists, the ring of a side that sends alone stays a segment long. The ring of a
/// side whose peer sends as well grows.
#[test]
fn a_ring_grows_if_both_sides_send() {
    let [alone, both] = [false, true].map(lap_of_lists);
    assert!(alone <= SEGMENT.into() && both > SEGMENT.into(), "{alone}, {both}");
}
