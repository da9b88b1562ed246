//! Short posts: they go by a link that an earlier post has remembered, and one that is like the
//! last is not checked again.

use super::*;
use crate::model::buffers::Posted;

/// True if a SEND of that piece went as a short one.
fn short(one: &Program, sge: Sge, flags: SendFlags) -> bool {
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
    one.state(|state| unsafe { state.post_short(one.end.qp.context.get_alone(), Posted::one(&wr)) })
}

/// The same by the post that remembers the link.
fn post(one: &Program, sge: Sge, flags: SendFlags) -> Result<(), PostError> {
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
    unsafe { one.end.qp.shared_sends().post_one(|| wr) }
}

/// The bytes of the peer's next message, which goes to its receive of that number.
fn taken(two: &mut End, number: usize) -> Vec<u8> {
    let wc = (0..200).find_map(|_| two.poll().first().copied()).unwrap();
    assert_eq!(wc.status, Status::Success);
    two.bytes(4096 * number, wc.byte_len as usize)
}

/// A program that has sent its peer the same eight bytes three times, the last time unchecked. The
/// peer's next message is that of number 5.
fn again() -> (Program, End, Sge) {
    let (one, mut two) = talking();
    (0..256).for_each(|n| one.end.fill(n, &[n as u8]));
    let sge = one.end.sge(0, 8);
    post(&one, sge, SendFlags::empty()).unwrap();
    assert_eq!(taken(&mut two, 2), one.end.bytes(0, 8));
    for number in [3, 4] {
        assert!(short(&one, sge, SendFlags::empty()));
        assert_eq!(taken(&mut two, number), one.end.bytes(0, 8));
    }
    (one, two, sge)
}

/// SQ-3, SQ-4, SQ-9: what differs from the last send in one thing is sent as it is.
#[test]
fn a_send_that_differs_from_the_last_one_is_checked() {
    let (mut one, mut two, sge) = again();
    let inline = Sge { lkey: 0, ..sge };
    let sends = [
        (sge, SendFlags::SIGNALED),
        (Sge { addr: sge.addr + 8, ..sge }, SendFlags::empty()),
        (Sge { length: 9, ..sge }, SendFlags::empty()),
        (Sge { length: 0, ..sge }, SendFlags::empty()),
        (inline, SendFlags::INLINE),
        (sge, SendFlags::empty()),
    ];
    for (number, (sge, flags)) in (5..).zip(sends) {
        assert!(short(&one, sge, flags), "{sge:?} {flags:?}");
        let from = (sge.addr - one.end.sge(0, 0).addr) as usize;
        assert_eq!(taken(&mut two, number), one.end.bytes(from, sge.length as usize));
        two.poll();
        let ends: Vec<_> = (0..200).flat_map(|_| one.sent()).collect();
        assert_eq!(ends.len(), usize::from(flags == SendFlags::SIGNALED));
    }
    for (sge, flags) in [
        (Sge { lkey: sge.lkey ^ 1, ..sge }, SendFlags::empty()),
        (Sge { addr: sge.addr + (1 << 20), ..sge }, SendFlags::empty()),
        (Sge { length: 65, ..sge }, SendFlags::INLINE),
        (sge, SendFlags::FENCE),
    ] {
        assert!(!short(&one, sge, flags), "{sge:?} {flags:?}");
    }
    assert!(short(&one, sge, SendFlags::empty()), "there is room");
}

/// MR-3: the key of the last send is gone.
#[test]
fn a_send_like_the_last_one_needs_its_region() {
    let (mut one, mut two, sge) = again();
    let other = one.end.nic.register(mapping(4096), Access::all()).unwrap();
    drop(core::mem::replace(&mut one.end.region, other));
    assert!(!short(&one, sge, SendFlags::empty()));
    post(&one, sge, SendFlags::empty()).unwrap();
    // The peer has taken those before it.
    let ends = (0..200).flat_map(|_| {
        two.poll();
        one.sent()
    });
    assert_eq!(ends.collect::<Vec<_>>(), [(7, Status::LocalProtection)]);
}

/// A short post goes by the link that an earlier one has remembered. A post of another kind forgets
/// that link, because its requests may wait, and so does a failure.
#[test]
fn a_short_post_needs_a_link_that_is_remembered() {
    let long: fn(&mut Program) = |one| one.end.send(8, 0, 4 << 10, SendFlags::empty()).unwrap();
    let fails: fn(&mut Program) = |one| one.end.qp.fail();
    for change in [long, fails] {
        let (mut one, mut two) = talking();
        let bytes = [9_u8; 8];
        let sge = Sge { addr: bytes.as_ptr() as u64, length: 8, lkey: 0 };
        assert!(!short(&one, sge, SendFlags::INLINE), "nothing is remembered");
        post(&one, sge, SendFlags::INLINE).unwrap();
        assert_eq!(taken(&mut two, 2), [9; 8]);
        assert!(short(&one, sge, SendFlags::INLINE));
        assert_eq!(taken(&mut two, 3), [9; 8]);
        change(&mut one);
        assert!(!short(&one, sge, SendFlags::INLINE));
    }
}
