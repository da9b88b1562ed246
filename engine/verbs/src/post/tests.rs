//! Lists as the drivers of these tests see them.
#![expect(unsafe_code, reason = "the drivers of the tests read lists as C does")]

use core::cell::RefCell;
use core::ptr::NonNull;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::*;
use crate::provider::QpType;
use crate::rdma_core::{ibv_qp, ibv_send_wr};
use crate::send::{EMPTY, fill_in};
use crate::wr::{AhName, Destination, Remote, SendOp, Sge, XrcOp};

/// What the driver of the tests saw of one request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    wr_id: u64,
    opcode: u32,
    flags: u32,
    imm: u32,
    lengths: Vec<u32>,
}

/// The driver of the tests: takes `room` requests, then answers `errno`.
struct Driver {
    room: usize,
    errno: c_int,
    names_bad: bool,
    calls: usize,
    seen: Vec<Seen>,
}

unsafe extern "C" fn driver(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the tests hand their driver's cell over as the queue pair.
    let mut driver = unsafe { (*qp.cast::<RefCell<Driver>>()).borrow_mut() };
    driver.calls += 1;
    while !wr.is_null() {
        if driver.seen.len() == driver.room {
            if driver.names_bad {
                // SAFETY: the address of the sender's variable.
                unsafe { *bad = wr };
            }
            return driver.errno;
        }
        // SAFETY: the list was built by the sender and ends with NULL, and each request
        // names as many pieces as it has.
        unsafe {
            let one = &*wr;
            let count = one.num_sge as usize;
            let pieces = (0..count).map(|index| (*one.sg_list.add(index)).length);
            driver.seen.push(Seen {
                wr_id: one.wr_id,
                opcode: one.opcode,
                flags: one.send_flags,
                imm: one.imm_data_invalidated_rkey_union.imm_data,
                lengths: pieces.collect(),
            });
            wr = one.next;
        }
    }
    0
}

fn with(driver_of: Driver, list: &[SendWr<'_>]) -> (Result<(), PostError>, Driver) {
    with_kind(QpType::Rc, driver_of, list)
}

fn with_kind(
    kind: QpType,
    driver_of: Driver,
    list: &[SendWr<'_>],
) -> (Result<(), PostError>, Driver) {
    let caps = QpCaps { send_wr: 8, send_sge: 3, inline: 64, ..QpCaps::default() };
    let cell = RefCell::new(driver_of);
    let mut sender = Sender::new(NonNull::from(&cell).cast().as_ptr(), driver, caps, kind);
    // SAFETY: the driver of the tests takes the cell, and looks at no buffer.
    let answer = unsafe { post_sends(&mut sender, list) };
    (answer, cell.into_inner())
}

fn roomy() -> Driver {
    Driver { room: 1000, errno: 0, names_bad: true, calls: 0, seen: Vec::new() }
}

fn wr(wr_id: u64, length: u32) -> SendWr<'static> {
    let sge = Sge { addr: 4096, length, lkey: 1 };
    SendWr { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sge, more: &[] }
}

#[test]
fn one_slice_is_one_doorbell() {
    let list: Vec<SendWr<'_>> = (0..8).map(|n| wr(n, 8)).collect();
    let (answer, driver) = with(roomy(), &list);
    assert_eq!((answer, driver.calls), (Ok(()), 1));
    assert!(driver.seen.iter().map(|seen| seen.wr_id).eq(0..8));
    assert_eq!((driver.seen[0].opcode, driver.seen[0].flags), (2, 2));
    let (answer, driver) = with(roomy(), &[]);
    assert_eq!((answer, driver.calls), (Ok(()), 0));
}

#[test]
fn immediate_data_is_in_network_order() {
    let imm = SendWr { op: SendOp::SendWithImm(0x0102_0304), ..wr(1, 8) };
    let (_, driver) = with(roomy(), &[imm]);
    assert_eq!(driver.seen[0].opcode, 3);
    assert_eq!(driver.seen[0].imm.to_ne_bytes(), [1, 2, 3, 4]);
}

#[test]
fn one_sided_requests_carry_address_key_and_operands() {
    let at = Remote { addr: 0x1234_5678_9abc, rkey: 77 };
    for (op, want) in [
        (SendOp::Write(at), (0, [at.addr, 77, 0, 0])),
        (SendOp::WriteWithImm(at, 5), (1, [at.addr, 77, 0, 0])),
        (SendOp::Read(at), (4, [at.addr, 77, 0, 0])),
        (SendOp::CompareSwap { at, compare: 3, swap: 4 }, (5, [at.addr, 3, 4, 77])),
        (SendOp::FetchAdd { at, add: 9 }, (6, [at.addr, 9, 0, 77])),
    ] {
        let mut raw = EMPTY;
        fill_in(op, &mut raw);
        // SAFETY: the field goes with the operation, and both are plain numbers.
        let operands = unsafe {
            let (rdma, atomic) = (raw.wr.rdma, raw.wr.atomic);
            match op.is_outward() || matches!(op, SendOp::Read(_)) {
                true => [rdma.remote_addr, rdma.rkey.into(), 0, 0],
                false => [atomic.remote_addr, atomic.compare_add, atomic.swap, atomic.rkey.into()],
            }
        };
        assert_eq!((raw.opcode, operands), want, "{op:?}");
    }
}

#[test]
fn datagrams_carry_their_destination_and_go_nowhere_else() {
    let to = Destination { ah: AhName(0x7f00), qpn: 0x12_3456, qkey: 0x0123_4567 };
    let mut raw = EMPTY;
    fill_in(SendOp::SendToWithImm(to, 5), &mut raw);
    // SAFETY: the field goes with the operation.
    let ud = unsafe { raw.wr.ud };
    assert_eq!((ud.ah.addr(), ud.remote_qpn, ud.remote_qkey), (0x7f00, 0x12_3456, 0x0123_4567));
    assert_eq!(raw.opcode, 3);
    let datagram = SendWr { op: SendOp::SendTo(to), ..wr(1, 8) };
    let malformed = PostError { accepted: 0, cause: PostCause::Malformed };
    assert_eq!(with(roomy(), &[datagram]).0, Err(malformed));
    assert_eq!(with_kind(QpType::Ud, roomy(), &[wr(1, 8)]).0, Err(malformed));
    assert_eq!(with_kind(QpType::Ud, roomy(), &[datagram]).1.seen[0].opcode, 2);
}

#[test]
fn the_shared_queue_goes_along_with_the_request() {
    let at = Remote { addr: 0x1000, rkey: 7 };
    for (op, opcode) in [
        (XrcOp::Send, 2),
        (XrcOp::SendWithImm(5), 3),
        (XrcOp::WriteWithImm(at, 5), 1),
        (XrcOp::SendWithInv(9), 9),
        (XrcOp::Write(at), 0),
        (XrcOp::Read(at), 4),
        (XrcOp::CompareSwap { at, compare: 1, swap: 2 }, 5),
        (XrcOp::FetchAdd { at, add: 1 }, 6),
    ] {
        let mut raw = EMPTY;
        fill_in(SendOp::Xrc { srq: 0x12_3456, op }, &mut raw);
        // SAFETY: the field goes with queue pairs of XRC.
        let srqn = unsafe { raw.qp_type.xrc.remote_srqn };
        assert_eq!((raw.opcode, srqn), (opcode, 0x12_3456), "{op:?}");
        let named = SendWr { op: SendOp::Xrc { srq: 1, op }, ..wr(1, 8) };
        assert_eq!(with_kind(QpType::XrcSend, roomy(), &[named]).1.seen[0].opcode, opcode);
        let malformed = PostError { accepted: 0, cause: PostCause::Malformed };
        assert_eq!(with(roomy(), &[named]).0, Err(malformed));
        assert_eq!(with_kind(QpType::XrcSend, roomy(), &[wr(1, 8)]).0, Err(malformed));
    }
}

#[test]
fn pieces_keep_their_order_and_empty_ones_go() {
    let more = [Sge { length: 0, ..wr(1, 8).sge }, Sge { length: 5, ..wr(1, 8).sge }];
    let list = [SendWr { more: &more, ..wr(1, 7) }, wr(2, 0), SendWr { more: &more, ..wr(3, 0) }];
    let (answer, driver) = with(roomy(), &list);
    assert_eq!(answer, Ok(()));
    let lengths: Vec<&[u32]> = driver.seen.iter().map(|seen| &seen.lengths[..]).collect();
    assert_eq!(lengths, [&[7, 5][..], &[], &[5]]);
}

#[test]
fn requests_that_a_driver_would_refuse_are_refused_with_a_cause() {
    let inline = SendWr { flags: SendFlags::INLINE, ..wr(2, 65) };
    let pieces = [wr(0, 1).sge; 3];
    let wide = SendWr { more: &pieces, ..wr(2, 1) };
    let at = Remote::default();
    let read = SendWr { op: SendOp::Read(at), flags: SendFlags::INLINE, ..wr(2, 8) };
    let add = SendWr { op: SendOp::FetchAdd { at, add: 1 }, ..wr(2, 4) };
    for (bad, cause) in [
        (inline, PostCause::InlineTooLong),
        (wide, PostCause::TooManyPieces),
        (read, PostCause::Malformed),
        (add, PostCause::Malformed),
    ] {
        let (answer, driver) = with(roomy(), &[wr(1, 8), bad, wr(3, 8)]);
        assert_eq!(answer, Err(PostError { accepted: 1, cause }));
        assert_eq!((driver.calls, driver.seen.len()), (1, 1));
        assert_eq!(with(roomy(), &[bad]).1.calls, 0);
    }
    let long = vec![wr(0, 8); 9];
    let full = PostError { accepted: 8, cause: PostCause::Full };
    assert_eq!(with(roomy(), &long).0, Err(full));
}

#[test]
fn a_drivers_refusal_tells_how_many_it_took() {
    let list: Vec<SendWr<'_>> = (0..6).map(|n| wr(n, 8)).collect();
    for (errno, cause) in [
        (libc::ENOMEM, PostCause::Full),
        (-libc::ENOMEM, PostCause::Full),
        (libc::ENOSPC, PostCause::Full),
        (libc::EINVAL, PostCause::Device(libc::EINVAL)),
        (-libc::EINVAL, PostCause::Device(libc::EINVAL)),
        (0, PostCause::Device(libc::EIO)),
    ] {
        for room in 0..6 {
            let (answer, _) = with(Driver { room, errno, ..roomy() }, &list);
            assert_eq!(answer, Err(PostError { accepted: room, cause }));
        }
    }
}

#[test]
fn a_driver_that_names_no_bad_request_owns_them_all() {
    let silent = Driver { room: 2, errno: libc::EINVAL, names_bad: false, ..roomy() };
    let (answer, _) = with(silent, &[wr(1, 8), wr(2, 8), wr(3, 8)]);
    let error = PostError { accepted: 3, cause: PostCause::Device(libc::EINVAL) };
    assert_eq!(answer, Err(error));
}

fn receives(count: u64) -> Vec<RecvWr> {
    let sge = Sge { addr: 4096, length: 64, lkey: 3 };
    (0..count).map(|wr_id| RecvWr { wr_id, sge }).collect()
}

/// Walks the list as a driver does, takes up to `room`, and names the first refused one.
fn walk(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    seen: &mut Vec<u64>,
    room: usize,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: the list was built by `post_chunks` and ends with NULL.
        let one = unsafe { &*wr };
        if seen.len() == room {
            // SAFETY: the caller passes the address of its own variable.
            unsafe { *bad = wr };
            return libc::ENOMEM;
        }
        // SAFETY: one piece, in the slice that is being posted.
        assert_eq!(unsafe { (*one.sg_list).length }, 64);
        seen.push(one.wr_id);
        wr = one.next;
    }
    0
}

#[test]
fn a_long_list_goes_out_in_order_and_whole() {
    let mut seen = Vec::new();
    let list = receives(3 * CHUNK as u64 + 1);
    assert_eq!(post_chunks(&list, |wr, bad| walk(wr, bad, &mut seen, 1000)), Ok(()));
    assert!(seen.iter().copied().eq(0..list.len() as u64));
}

#[test]
fn a_full_queue_says_how_many_it_took() {
    for room in [0, 1, CHUNK - 1, CHUNK, CHUNK + 5] {
        let mut seen = Vec::new();
        let list = receives(2 * CHUNK as u64);
        let error = post_chunks(&list, |wr, bad| walk(wr, bad, &mut seen, room));
        assert_eq!(error, Err(PostError { accepted: room, cause: PostCause::Full }));
        assert_eq!(seen.len(), room);
    }
}

#[test]
fn a_driver_that_answers_nothing_but_names_a_bad_one_has_refused() {
    let list = receives(4);
    let answer = post_chunks(&list, |first, bad| {
        // SAFETY: the variable of `post_chunks`.
        unsafe { *bad = first.wrapping_add(2) };
        0
    });
    assert_eq!(answer, Err(PostError { accepted: 2, cause: PostCause::Device(libc::EIO) }));
}

#[test]
fn an_empty_receive_has_no_piece() {
    let list = [RecvWr::default()];
    let answer = post_chunks(&list, |first, _| {
        // SAFETY: the list has one entry.
        unsafe { assert_eq!((*first).num_sge, 0) };
        0
    });
    assert_eq!(answer, Ok(()));
}
