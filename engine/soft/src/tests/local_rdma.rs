//! One-sided requests carried out in memory that both sides map: the owner never polls.

use std::string::ToString;

use super::*;
use crate::shm::layout::record_bytes;
use crate::wc::{Status, WcOpcode};
use crate::wr::Remote;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// A device with a readable table, and its reader.
pub(super) fn device() -> (Soft, Arc<RemoteMap>) {
    let directory = shared(DIRECTORY_BYTES);
    let view = again(name_file(&directory).unwrap().fd, DIRECTORY_BYTES).unwrap();
    let host = Host { name_file, ..Host::alone(clock) };
    let nic = Soft::new("soft0", host, Some(directory));
    let table = NonNull::new(view.as_ptr()).unwrap();
    let attach: Attach = |_, file, len| again(file.fd, len as usize);
    let look: Look = |_, file, len| read_only(file.fd, len as usize);
    let openers = Openers { attach, look, notifier: |_, _| None };
    // SAFETY: the view is kept, and nobody writes through it.
    let map = unsafe { RemoteMap::new(table, Arc::new(view), 0, openers) };
    (nic, Arc::new(map))
}

/// Maps a file of this process again, to be read. The mapping stays for good.
pub(super) fn read_only(fd: u32, len: usize) -> Option<ReadOnly> {
    let file = std::fs::File::open(std::format!("/proc/self/fd/{fd}")).ok()?;
    let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
    let fd = file.as_raw_fd();
    let base = unsafe { libc::mmap(core::ptr::null_mut(), len, read, shared, fd, 0) };
    let base = NonNull::new(base).filter(|base| base.as_ptr() != libc::MAP_FAILED)?;
    // SAFETY: it is mapped for good.
    Some(unsafe { ReadOnly::new(base.cast(), len, Box::new(())) })
}

pub(super) fn near(nic: Soft) -> End {
    let region = nic.register(shared(1 << 20), Access::all()).unwrap();
    near_with(nic, region)
}

/// A side with that memory.
pub(super) fn near_with(nic: Soft, region: SoftRegion) -> End {
    let (cq, poller) = nic.create_cq(256, Sharing::Exclusive).unwrap();
    let srq = Some(nic.create_srq(64).unwrap());
    let caps = QpCaps { send_wr: 64, send_sge: 4, ..CAPS };
    let qp = make_qp(&nic, &cq, srq.as_ref(), caps);
    End { nic, poller, cq, qp, region, srq }
}

/// A connected pair in which each maps the other's memory.
pub(super) fn mapped_pair() -> (End, End) {
    mapped_pair_of(near).0
}

/// A connected pair of sides that `near` makes, each of which maps the other's memory; and the
/// ends of its link.
pub(super) fn mapped_pair_of(near: fn(Soft) -> End) -> ((End, End), [Arc<LinkShared>; 2]) {
    mapped_pair_over(mapping(LINK_BYTES), [near, near])
}

/// The same over a link in that memory.
fn mapped_pair_over(
    link: Mapping,
    [near_one, near_two]: [impl FnOnce(Soft) -> End; 2],
) -> ((End, End), [Arc<LinkShared>; 2]) {
    let ((nic_one, map_one), (nic_two, map_two)) = (device(), device());
    let (mut one, mut two) = (near_one(nic_one), near_two(nic_two));
    let (maker, taker) = LinkShared::pair(link).unwrap();
    let maker = Arc::new(maker.with_remote_map(Some(map_two)));
    let taker = Arc::new(taker.with_remote_map(Some(map_one)));
    one.qp.attach(&maker);
    two.qp.attach(&taker);
    wire(&mut one.qp, &mut two.qp, &maker, &taker, 7);
    // The commands are carried out.
    one.poll();
    two.poll();
    ((one, two), [maker, taker])
}

fn polled(end: &mut End) -> Vec<Wc> {
    let mut all = Vec::new();
    for _ in 0..20 {
        all.extend(end.poll());
    }
    all
}

fn done(end: &mut End) -> Wc {
    let all = polled(end);
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0].status, Status::Success);
    all[0]
}

#[test]
fn all_of_it_works_while_the_owner_sleeps() {
    let (mut one, two) = mapped_pair();
    for (n, length) in [1, 8, 100, 5000, 1 << 19].into_iter().enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        let at = two.region.remote(64);
        one.post(1, SendOp::Write(at), one.sge(0, length), SIGNALED).unwrap();
        assert_eq!(two.bytes(64, length), bytes, "there before the completion");
        assert_eq!(done(&mut one).opcode, WcOpcode::Write);
        one.post(2, SendOp::Read(at), one.sge(1 << 19, length), SIGNALED).unwrap();
        let wc = done(&mut one);
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::Read, length));
        assert_eq!(one.bytes(1 << 19, length), bytes);
    }
    two.fill(64, &5u64.to_ne_bytes());
    let at = two.region.remote(64);
    for (op, before, after) in [
        (SendOp::FetchAdd { at, add: 7 }, 5u64, 12u64),
        (SendOp::CompareSwap { at, compare: 3, swap: 1 }, 12, 12),
        (SendOp::CompareSwap { at, compare: 12, swap: 1 }, 12, 1),
    ] {
        one.post(3, op, one.sge(0, 8), SIGNALED).unwrap();
        assert_eq!(done(&mut one).opcode, op.completes_as());
        assert_eq!(
            (one.bytes(0, 8), two.bytes(64, 8)),
            (before.to_ne_bytes().into(), after.to_ne_bytes().into())
        );
    }
}

/// Several pieces, and the result of an atomic in two.
#[test]
fn pieces_are_gathered_and_scattered() {
    let (mut one, two) = mapped_pair();
    one.fill(0, b"abcdefgh");
    let more = [one.sge(6, 0), one.sge(2, 6)];
    let op = SendOp::Write(two.region.remote(0));
    let wr = SendWr { wr_id: 1, op, flags: SIGNALED, sge: one.sge(0, 2), more: &more };
    unsafe { one.qp.post(&[wr]).unwrap() };
    assert_eq!(two.bytes(0, 8), b"abcdefgh");
    done(&mut one);
    // A first piece of eight bytes need not be a word, nor is a word that spans two pieces.
    for at in [0, 16, 21] {
        one.fill(0, b"0123456789a");
        let more = [one.sge(8, 3)];
        let op = SendOp::Write(two.region.remote(at));
        let wr = SendWr { wr_id: 1, op, flags: SIGNALED, sge: one.sge(0, 8), more: &more };
        unsafe { one.qp.post(&[wr]).unwrap() };
        done(&mut one);
        assert_eq!(two.bytes(at, 11), b"0123456789a");
        one.post(1, op, one.sge(3, 8), SIGNALED).unwrap();
        done(&mut one);
        assert_eq!(two.bytes(at, 11), b"3456789a89a");
    }
    two.fill(0, b"abcdefgh");
    let at = two.region.remote(0);
    let more = [one.sge(200, 5)];
    let op = SendOp::FetchAdd { at, add: 0 };
    let wr = SendWr { wr_id: 1, op, flags: SIGNALED, sge: one.sge(100, 3), more: &more };
    unsafe { one.qp.post(&[wr]).unwrap() };
    done(&mut one);
    assert_eq!((one.bytes(100, 3), one.bytes(200, 5)), (b"abc".to_vec(), b"defgh".to_vec()));
}

/// RC-4: immediate data needs the owner and one of its receives; the bytes are there before.
#[test]
fn rc_4_immediate_data_still_takes_a_receive() {
    let (mut one, mut two) = mapped_pair();
    one.fill(0, &pattern(1, 3000));
    let op = SendOp::WriteWithImm(two.region.remote(64), 99);
    one.post(1, op, one.sge(0, 3000), SIGNALED).unwrap();
    assert!(polled(&mut one).is_empty() && polled(&mut two).is_empty(), "no receive");
    two.recv(7, 0, 8);
    let got = done(&mut two);
    assert_eq!((got.wr_id, got.opcode), (7, WcOpcode::RecvWriteWithImm));
    assert_eq!((got.imm, got.byte_len), (99, 3000));
    assert_eq!(two.bytes(64, 3000), pattern(1, 3000));
    done(&mut one);
}

/// The completion of a WRITE behind a message comes when that message is taken, although nobody
/// asked for an acknowledgement.
#[test]
fn sq_5_completions_stay_in_order_with_messages() {
    let (mut one, mut two) = mapped_pair();
    two.recv(1, 0, 8);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    one.post(2, SendOp::Write(two.region.remote(64)), one.sge(0, 8), SIGNALED).unwrap();
    assert!(polled(&mut one).is_empty(), "the message is not taken");
    assert_eq!(polled(&mut two).len(), 1);
    assert_eq!(done(&mut one).wr_id, 2);
}

/// A READ behind a message that is not taken goes through the ring. Long ones behind it wait for
/// its response, and are carried out here then.
#[test]
fn long_reads_come_back_from_the_ring() {
    let (mut one, mut two) = mapped_pair();
    let (long, to) = (32 << 10, 1 << 19);
    let bytes = pattern(1, 3 * long);
    two.fill(0, &bytes);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    for n in 0..3 {
        let (from, sge) = (two.region.remote(n * long), one.sge(to + n * long, long));
        one.post(2 + n as u64, SendOp::Read(from), sge, SIGNALED).unwrap();
    }
    assert!(polled(&mut one).is_empty());
    assert!(one.bytes(to, 3 * long).iter().all(|byte| *byte == 0), "none passes the message");
    two.recv(1, 1 << 19, 8);
    let mut rounds = 0;
    let first = loop {
        two.poll();
        two.poll();
        if let Some(wc) = one.poll().into_iter().next() {
            break wc;
        }
        rounds += 1;
        assert!(rounds < 1000);
    };
    assert_eq!((first.wr_id, first.status), (2, Status::Success));
    let rest = polled(&mut one);
    assert!(one.bytes(to, 3 * long) == bytes, "its owner need not poll");
    let behind = settle(&mut one, &mut two).0;
    let numbers: Vec<u64> = rest.iter().chain(&behind).map(|wc| wc.wr_id).collect();
    assert_eq!(numbers, [3, 4]);
}

/// A READ never overtakes a WRITE of the same queue pair that went through the ring.
#[test]
fn reads_do_not_overtake_writes_in_the_ring() {
    let (mut one, mut two) = mapped_pair();
    let private = two.nic.register(mapping(4096), Access::all()).unwrap();
    one.fill(0, &[7; 8]);
    // Memory without a file: the owner must carry the request out.
    one.post(1, SendOp::Write(private.remote(0)), one.sge(0, 8), SendFlags::empty()).unwrap();
    one.post(2, SendOp::Read(two.region.remote(0)), one.sge(64, 8), SIGNALED).unwrap();
    assert!(polled(&mut one).is_empty(), "it waits behind the WRITE");
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), sent[0].wr_id), (1, 2));
    assert_eq!(unsafe { private.as_ptr().read_volatile() }, 7);
}

/// A READ that may pass messages reads before the peer has taken them, and completes behind them.
/// It passes no WRITE that went through the ring.
#[test]
fn an_unordered_read_passes_messages_and_no_writes() {
    let flags = SIGNALED | SendFlags::UNORDERED;
    let (mut one, mut two) = mapped_pair();
    two.fill(64, &[5; 8]);
    let read = SendOp::Read(two.region.remote(64));
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    one.post(2, read, one.sge(100, 8), flags).unwrap();
    assert_eq!(one.bytes(100, 8), [5; 8], "the message need not be taken");
    assert!(polled(&mut one).is_empty() && polled(&mut two).is_empty(), "no receive");
    two.recv(1, 0, 8);
    assert_eq!(polled(&mut two).len(), 1);
    assert_eq!(done(&mut one).wr_id, 2);

    let private = two.nic.register(mapping(4096), Access::all()).unwrap();
    one.post(3, SendOp::Write(private.remote(0)), one.sge(0, 8), SendFlags::empty()).unwrap();
    two.fill(64, &[6; 8]);
    one.post(4, read, one.sge(200, 8), flags).unwrap();
    assert!(polled(&mut one).is_empty() && one.bytes(200, 8) != [6; 8], "behind the WRITE");
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), sent[0].wr_id, one.bytes(200, 8)), (1, 4, std::vec![6; 8]));
}

/// The address of the word by which the peer of a side publishes records in the ring alone.
fn tail_of_peer(end: &End) -> usize {
    let state = unsafe { end.poller.cq.domain.alone() };
    let link = state.links.table[0].as_ref().unwrap();
    core::ptr::from_ref(link.rx.dir.tail()) as usize
}

/// A message in front of a long READ is published before the copy, which takes long. The bytes that
/// are read here are those of the link, so they tell what was published by then.
#[test]
fn a_message_does_not_wait_for_the_copy_behind_it() {
    let link = shared(LINK_BYTES);
    let (base, file) = (link.as_ptr() as usize, name_file(&link).unwrap().fd);
    let sides = [false, true].map(|reads_link| {
        move |nic: Soft| {
            let of_link = reads_link.then(|| again(file, LINK_BYTES).unwrap());
            let memory = of_link.unwrap_or_else(|| shared(1 << 20));
            let region = nic.register(memory, Access::all()).unwrap();
            near_with(nic, region)
        }
    });
    let ((mut one, two), _) = mapped_pair_over(link, sides);
    let message =
        SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, sge: one.sge(0, 8), more: &[] };
    let read = SendWr {
        wr_id: 2,
        op: SendOp::Read(two.region.remote(0)),
        flags: SIGNALED | SendFlags::UNORDERED,
        sge: one.sge(64, LINK_BYTES),
        ..message
    };
    one.post_list(&[message, read]).unwrap();
    let tail = tail_of_peer(&two) - base;
    let then = one.bytes(64 + tail, 4).try_into().map(u32::from_ne_bytes);
    assert_eq!(then, Ok(record_bytes(8) as u32));
}

/// A long READ looks behind its copy whether the peer has taken everything, and then completes
/// without it. A short one asks the peer, which has to poll again.
#[test]
fn a_long_read_sees_what_the_peer_took_during_the_copy() {
    for (length, completions) in [(8, 1), (16 << 10, 2)] {
        let (mut one, mut two) = mapped_pair();
        two.recv(1, 0, 8);
        one.send(1, 0, 8, SIGNALED).unwrap();
        assert_eq!(polled(&mut two).len(), 1);
        let read = SendOp::Read(two.region.remote(64));
        one.post(2, read, one.sge(100, length), SIGNALED | SendFlags::UNORDERED).unwrap();
        assert_eq!(polled(&mut one).len(), completions, "{length} bytes");
        polled(&mut two);
        assert_eq!(polled(&mut one).len(), 2 - completions, "{length} bytes");
    }
}

/// SQ-5: behind a message that is not taken yet, the device asks for an acknowledgement of a READ
/// by a WRITE of nothing. A peer that allows no WRITEs takes that one, and no other.
#[test]
fn sq_5_a_read_completes_at_a_peer_that_allows_only_reads() {
    let readable = |nic: Soft| {
        let end = near(nic);
        end.qp.control().set_rights(Access::REMOTE_READ);
        end
    };
    let ((mut one, mut two), _) = mapped_pair_of(readable);
    two.fill(64, &[5; 8]);
    one.send(1, 0, 8, SendFlags::empty()).unwrap();
    let read = SendOp::Read(two.region.remote(64));
    one.post(2, read, one.sge(100, 8), SIGNALED | SendFlags::UNORDERED).unwrap();
    two.recv(1, 0, 8);
    assert_eq!(polled(&mut two).len(), 1);
    assert_eq!((done(&mut one).wr_id, one.bytes(100, 8)), (2, [5; 8].to_vec()));
    one.post(3, SendOp::Write(two.region.remote(0)), one.sge(0, 0), SIGNALED).unwrap();
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), sent[0].status), (1, Status::RemoteInvalidRequest));
}

/// Long READs that were posted while the queue pair paused are carried out when it goes on, also if
/// they fill the send queue, so that it keeps nothing of the requests before them.
#[test]
fn sm_2_long_reads_that_waited_in_sqd_are_carried_out() {
    for before in [0, 1, 70] {
        let (mut one, mut two) = mapped_pair();
        for n in 0..before {
            two.recv(n, 0, 8);
            one.send(n, 0, 8, SIGNALED).unwrap();
            settle(&mut one, &mut two);
        }
        one.qp.pause(false);
        two.fill(0, &pattern(3, 16 << 10));
        let read = SendOp::Read(two.region.remote(0));
        (0..64).for_each(|n| one.post(n, read, one.sge(64, 16 << 10), SIGNALED).unwrap());
        assert!(polled(&mut one).is_empty(), "it pauses");
        one.qp.resume();
        assert_eq!(settle(&mut one, &mut two).0.len(), 64, "behind {before}");
        assert_eq!(one.bytes(64, 16 << 10), pattern(3, 16 << 10));
    }
}

/// A WRITE that may pass messages passes no earlier WRITE, although that one went through the ring,
/// which was full: the last word written is the last one posted.
#[test]
fn an_unordered_write_does_not_overtake_writes_in_the_ring() {
    const UNORDERED: SendFlags = SendFlags::UNORDERED;
    for steps in 0..40 {
        let (mut one, mut two) = mapped_pair();
        (0..20).for_each(|n| two.recv(n, 4096, 4096));
        (0..20).for_each(|n| one.send(n, 4096, 4000, SIGNALED).unwrap());
        let write = SendOp::Write(two.region.remote(0));
        for (word, steps) in [(1u64, steps), (2, 0)] {
            one.fill(0, &word.to_ne_bytes());
            one.post(20, write, one.sge(0, 8), UNORDERED).unwrap();
            (0..steps).for_each(|n| drop(if n % 2 == 0 { two.poll() } else { one.poll() }));
        }
        settle(&mut one, &mut two);
        assert_eq!(two.bytes(0, 8), 2u64.to_ne_bytes(), "after {steps} polls");
    }
}

/// The owner refuses what the table does not allow, with its own status.
#[test]
fn the_owner_refuses_forbidden_requests() {
    type Op = fn(Remote) -> SendOp;
    let read: Op = SendOp::Read;
    let cases: [(&str, Op, Access, usize); 5] = [
        ("no right to write", SendOp::Write, Access::REMOTE_READ, 0),
        ("no right to read", read, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0),
        ("past the end", read, Access::all(), 4089),
        ("far past it", SendOp::Write, Access::all(), 1 << 40),
        ("before the start", SendOp::Write, Access::all(), usize::MAX - 3),
    ];
    for (name, op, rights, offset) in cases {
        let (mut one, mut two) = mapped_pair();
        let target = two.nic.register(shared(4096), rights).unwrap();
        one.fill(0, &[1; 8]);
        one.post(1, op(target.remote(offset)), one.sge(0, 8), SendFlags::empty()).unwrap();
        let (sent, _) = settle(&mut one, &mut two);
        assert_eq!((sent.len(), sent[0].status), (1, Status::RemoteAccess), "{name}");
        let bytes = unsafe { core::slice::from_raw_parts(target.as_ptr(), 4096) };
        assert!(bytes.iter().all(|b| *b == 0), "{name}");
    }
}

/// MR-3: the key of removed memory opens nothing, even if it was used before.
#[test]
fn mr_3_a_key_that_worked_fails_once_it_is_stale() {
    let (mut one, mut two) = mapped_pair();
    let target = two.nic.register(shared(4096), Access::all()).unwrap();
    let at = target.remote(0);
    one.post(1, SendOp::Write(at), one.sge(0, 8), SIGNALED).unwrap();
    done(&mut one);
    drop(target);
    one.post(2, SendOp::Write(at), one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(settle(&mut one, &mut two).0[0].status, Status::RemoteAccess);
}

/// A queue pair in error takes nothing any more, mapped or not.
#[test]
fn a_dead_peers_memory_is_out_of_reach() {
    let (mut one, mut two) = mapped_pair();
    one.fill(0, &[9; 8]);
    two.qp.fail();
    two.poll();
    one.post(1, SendOp::Write(two.region.remote(0)), one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(two.bytes(0, 8), [0; 8]);
    assert_eq!(settle(&mut one, &mut two).0[0].status, Status::RetryExceeded);
    assert_eq!(two.bytes(0, 8), [0; 8]);
}

/// A false table leads into the peer's own memory: never beyond what is mapped here.
#[test]
fn a_table_that_claims_too_much_is_not_believed() {
    let (mut one, two) = mapped_pair();
    let target = two.nic.register(shared(4096), Access::all()).unwrap();
    let at = target.remote(0);
    one.post(1, SendOp::Write(at), one.sge(0, 8), SIGNALED).unwrap();
    done(&mut one);
    let slot = &two.nic.nic.memory.table().slots[crate::model::table::index_of(at.rkey)];
    slot.length.store(1 << 40, Ordering::Relaxed);
    one.post(2, SendOp::Write(at.offset(4090)), one.sge(0, 8), SIGNALED).unwrap();
    assert!(polled(&mut one).is_empty(), "left to the owner");
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(text.contains(&"memfd:doorbell".to_string()));
}

/// Memory that a peer may be waiting for is mapped with the link, and memory that the peer may lend
/// from. Memory to be written is not mapped if it is large or has no file, and not all of it is.
#[test]
fn small_regions_are_mapped_ahead() {
    let (nic, map) = device();
    let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let closed = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mut others = Vec::from([(shared(4096), closed), (shared(2 << 20), open)]);
    others.extend((0..20).map(|_| (mapping(4096), open)));
    let others = others.into_iter().map(|(memory, access)| nic.register(memory, access).unwrap());
    let _others: Vec<_> = others.collect();
    let link =
        || LinkShared::pair(mapping(LINK_BYTES)).unwrap().0.with_remote_map(Some(map.clone()));
    let mut open: Vec<_> = (0..2).map(|_| nic.register(shared(4096), open).unwrap()).collect();
    link();
    assert_eq!(map.mapped(), 3);
    open.extend((0..20).map(|_| nic.register(shared(4096), Access::all()).unwrap()));
    link();
    assert_eq!(map.mapped(), 16 + 1, "to be written, and to be lent from");
}

/// The hook of a range whose file somebody else keeps.
unsafe fn keep(_: *mut (), _: NonNull<u8>, _: usize) {}

/// A region may begin anywhere in its file.
#[test]
fn a_region_begins_behind_the_beginning_of_its_file() {
    const SKIP: usize = 4096 + 24;
    const LENGTH: usize = 10_000;
    let (mut one, two) = mapped_pair();
    let whole = shared(1 << 16);
    let fd = name_file(&whole).unwrap().fd as i32;
    let start = NonNull::new(whole.as_ptr().wrapping_add(SKIP)).unwrap();
    // SAFETY: the whole lives longer, and the range lies in it.
    let part = unsafe {
        Mapping::from_memfd_parts((start, LENGTH), (fd, SKIP as u64), core::ptr::null_mut(), keep)
    };
    let region = two.nic.register(part, Access::all()).unwrap();
    let bytes = pattern(5, LENGTH);
    one.fill(0, &bytes);
    one.post(1, SendOp::Write(region.remote(0)), one.sge(0, LENGTH), SIGNALED).unwrap();
    // SAFETY: the bytes of the region, which nobody writes now.
    let seen = unsafe { core::slice::from_raw_parts(start.as_ptr(), LENGTH) };
    assert_eq!(seen, bytes, "carried out without the owner");
    done(&mut one);
    drop(region);
    drop(whole);
}
