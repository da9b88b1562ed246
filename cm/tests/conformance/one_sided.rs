//! READ, WRITE and atomics: SQ-6, SQ-7, RC-4, RC-6, CK-1.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Buffer, Completion, ConnParam, Exposed, ExposedChange, Fabric, Id};
use doorbell_cm::{QpInit, Window};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, ReregFlags, WindowKind};
use doorbell_seam::remote::{RemoteError, RemoteMemory};
use doorbell_seam::wc::{Status, WcOpcode};
use doorbell_seam::wr::{PostCause, Remote, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON, received, send_inline, sent};
use crate::harness::skip;

cases! {
    sq_05_a_read_sees_the_write_before_it
    sq_05_a_fence_waits_for_reads
    sq_05_a_fence_waits_for_reads_through_a_window
    sq_05_a_response_passes_messages_that_find_no_receive
    sq_06_writes_of_every_size_land_whole_and_unheard
    sq_06_written_bytes_are_there_when_the_next_message_arrives
    sq_07_more_reads_than_may_be_in_flight_complete_in_order
    sq_07_more_reads_through_a_window_complete_in_order
    sq_09_empty_reads_and_writes_need_no_key
    cp_02_reads_of_every_size_arrive_whole
    rc_04_a_write_with_immediate_data_consumes_a_receive
    rc_04_it_waits_for_a_receive
    rc_06_compare_and_swap_takes_equal_words_only
    rc_06_fetch_and_add_wraps
    rc_06_many_adds_of_two_peers_add_up
    mr_03_a_stale_key_opens_nothing
    sq_04_a_read_is_never_inline
    sq_07_no_rights_to_read_without_depth
    sm_03_a_refused_request_ends_both_queue_pairs_and_ck_01_changes_nothing
    exposed_memory_checks_its_bounds
    memory_that_a_peer_tells_of_refuses_what_would_end_the_connection
}

const ALL: Access = Access::all();
const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(29).wrapping_add((at >> 8) as u8)).collect()
}

/// Memory of the peer that allows every operation.
fn exposed<F: Fabric>(bed: &Bed<F>, len: usize) -> Exposed<F> {
    Exposed::new(&bed.fabric, len, ALL).expect("exposed memory")
}

/// Carries out one request; returns its completion.
fn run<F: Fabric>(
    (one, two): (&mut Id<F>, &mut Id<F>),
    buffer: Buffer<F>,
    op: SendOp,
) -> Completion<F> {
    let len = buffer.len();
    one.queues().post_send(buffer, len, op, SIGNALED).expect("post");
    sent(one, two)
}

fn bytes_of<F: Fabric>(memory: &Exposed<F>, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).expect("inside");
    bytes
}

const SIZES: [usize; 14] = [1, 2, 7, 8, 63, 64, 65, 1023, 1024, 1025, 2017, 4096, 65_537, 1 << 20];

fn sq_05_a_read_sees_the_write_before_it<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 5000);
    for byte in 1..50 {
        let at = memory.remote(8);
        one.queues()
            .post_send(bed.filled(4000, byte), 4000, SendOp::Write(at), SIGNALED)
            .expect("post");
        one.queues()
            .post_send(bed.filled(4000, 0), 4000, SendOp::Read(at), SIGNALED)
            .expect("post");
        sent(&mut one, &mut two).ok().expect("written");
        let read = sent(&mut one, &mut two).ok().expect("read");
        assert!(
            read.bytes().iter().all(|got| *got == byte),
            "the READ returned other bytes than were written"
        );
    }
}

/// The peer changes its memory as soon as it gets the fenced message: the READ before that must
/// return the old bytes.
fn fence_waits<F: Fabric>(
    bed: &Bed<F>,
    (one, two): (&mut Id<F>, &mut Id<F>),
    memory: &Exposed<F>,
    from: Remote,
) {
    let len = memory.len();
    for byte in 1..12 {
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        memory.write(0, &vec![byte; len]).expect("inside");
        one.queues()
            .post_send(bed.filled(len, 0), len, SendOp::Read(from), SIGNALED)
            .expect("post");
        one.queues().post_inline(&[7], SendOp::Send, SIGNALED | SendFlags::FENCE).expect("post");
        let end = Instant::now() + SOON;
        while two.queues().next_recv(Duration::ZERO).is_err() {
            // On a soft device this poll takes the response.
            assert!(one.queues().next_recv(Duration::ZERO).is_err() && Instant::now() < end);
        }
        memory.write(0, &vec![0xff; len]).expect("inside");
        let read = sent(one, two).ok().expect("read");
        assert!(read.bytes().iter().all(|got| *got == byte), "from before the message");
        sent(one, two).ok().expect("sent");
    }
}

fn sq_05_a_fence_waits_for_reads<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 60_000);
    fence_waits(bed, (&mut one, &mut two), &memory, memory.remote(0));
}

/// The soft device carries out most requests in the peer's memory at once; those that name a window
/// use the link, and their responses take time.
fn sq_05_a_fence_waits_for_reads_through_a_window<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let (memory, rights) = (exposed(bed, 1 << 20), Access::REMOTE_READ);
    let mut window = Window::new(&bed.fabric, WindowKind::Two).expect("a window");
    let sides = (&mut one, &mut two);
    let from = crate::windows::bind(sides, &mut window, &memory, 0..1 << 20, rights);
    fence_waits(bed, (&mut one, &mut two), &memory, from);
}

/// A side without receives gets the responses to its own requests.
fn sq_05_a_response_passes_messages_that_find_no_receive<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 64);
    two.queues().post_send(bed.filled(8, 1), 8, SendOp::Send, SIGNALED).expect("a message");
    assert!(one.queues().next_recv(A_WHILE).is_err(), "it finds no receive");
    for n in 0..3 {
        let op = SendOp::FetchAdd { at: memory.remote(0), add: 1 };
        let done = run((&mut one, &mut two), bed.filled(8, 9), op).ok().expect("an addition");
        assert_eq!(done.bytes(), u64::to_ne_bytes(n));
    }
    assert!(two.queues().next_send(Duration::ZERO).is_err());
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    assert_eq!(received(&mut one).buffer.expect("its buffer")[..], [1; 8]);
    assert_eq!(sent(&mut two, &mut one).opcode, WcOpcode::Send);
}

fn sq_06_writes_of_every_size_land_whole_and_unheard<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    let memory = exposed(bed, (1 << 20) + 64);
    for size in SIZES {
        let before = vec![0xee; size + 64];
        memory.write(0, &before).expect("inside");
        let mut buffer = bed.filled(size, 0);
        buffer.copy_from_slice(&pattern(size));
        let done = run((&mut one, &mut two), buffer, SendOp::Write(memory.remote(32)));
        assert_eq!((done.status, done.opcode), (Status::Success, WcOpcode::Write), "{size}");
        assert!(bytes_of(&memory, 32, size) == pattern(size), "the bytes of {size}");
        assert_eq!(bytes_of(&memory, 0, 32), [0xee; 32]);
        assert_eq!(bytes_of(&memory, 32 + size, 32), [0xee; 32]);
    }
    assert!(two.queues().next_recv(A_WHILE).is_err(), "a WRITE does not notify the peer");
}

fn sq_06_written_bytes_are_there_when_the_next_message_arrives<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.quiet());
    let memory = exposed(bed, 8192);
    for round in 1..=50 {
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        let op = SendOp::Write(memory.remote(0));
        let flags = SendFlags::empty();
        one.queues().post_send(bed.filled(8192, round), 8192, op, flags).expect("a write");
        send_inline(&mut one, &[round]);
        received(&mut two);
        assert_eq!(bytes_of(&memory, 0, 8192), [round; 8192]);
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

/// Twenty READs where two may be in flight: a responder that saw a third would refuse it.
fn twenty_reads<F: Fabric>(bed: &Bed<F>, in_window: bool) {
    const LEN: usize = 20 * 64;
    let init = QpInit::rc().send_wr(32).recv_wr(4).signal_all(true);
    let few = ConnParam { initiator_depth: 2, ..ConnParam::default() };
    let (mut one, mut two) = bed.pair_with(&init, &init, &few, &ConnParam::default());
    let memory = exposed(bed, LEN);
    memory.write(0, &pattern(LEN)).expect("inside");
    let mut window = Window::new(&bed.fabric, WindowKind::Two).expect("a window");
    let mut from = memory.remote(0);
    if in_window {
        let (sides, rights) = ((&mut one, &mut two), Access::REMOTE_READ);
        from = crate::windows::bind(sides, &mut window, &memory, 0..LEN, rights);
    }
    for n in 0..20 {
        let op = SendOp::Read(Remote { addr: from.addr + n * 64, ..from });
        one.queues().post_send(bed.filled(64, 0), 64, op, SIGNALED).expect("a read");
    }
    for n in 0..20 {
        let done = sent(&mut one, &mut two).ok().expect("read");
        assert_eq!(done.bytes(), &pattern(LEN)[n * 64..][..64]);
    }
}

fn sq_07_more_reads_than_may_be_in_flight_complete_in_order<F: Fabric>(bed: &Bed<F>) {
    twenty_reads(bed, false);
}

/// As [`sq_05_a_fence_waits_for_reads_through_a_window`], over the wire.
fn sq_07_more_reads_through_a_window_complete_in_order<F: Fabric>(bed: &Bed<F>) {
    twenty_reads(bed, true);
}

fn sq_09_empty_reads_and_writes_need_no_key<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let nowhere = Remote { addr: 0, rkey: 1 };
    for op in [SendOp::Write(nowhere), SendOp::Read(nowhere)] {
        one.queues().post_send(bed.filled(1, 0), 0, op, SIGNALED).expect("post");
        assert_eq!(sent(&mut one, &mut two).ok().expect("done").len, 0);
    }
}

fn cp_02_reads_of_every_size_arrive_whole<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, (1 << 20) + 64);
    memory.write(0, &pattern((1 << 20) + 64)).expect("inside");
    for size in SIZES {
        let op = SendOp::Read(memory.remote(17));
        let done = run((&mut one, &mut two), bed.filled(size, 0xee), op).ok().expect("read");
        assert_eq!((done.opcode, done.len), (WcOpcode::Read, size));
        assert!(done.bytes() == &pattern((1 << 20) + 64)[17..17 + size], "the bytes of {size}");
    }
}

fn rc_04_a_write_with_immediate_data_consumes_a_receive<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 4096);
    for (len, imm) in [(0, 0x0102_0304), (8, 0), (3000, u32::MAX)] {
        two.queues().post_recv(bed.filled(16, 0xee)).expect("a receive");
        let mut buffer = bed.filled(4096, 0);
        buffer.copy_from_slice(&pattern(4096));
        let op = SendOp::WriteWithImm(memory.remote(0), imm);
        one.queues().post_send(buffer, len, op, SIGNALED).expect("a write");
        let got = received(&mut two);
        assert_eq!((got.opcode, got.imm), (WcOpcode::RecvWriteWithImm, Some(imm)));
        assert_eq!(got.len, len, "CP-2");
        assert_eq!(got.buffer.expect("its buffer comes back")[..], [0xee; 16]);
        assert_eq!(bytes_of(&memory, 0, len), pattern(len));
        assert_eq!(sent(&mut one, &mut two).opcode, WcOpcode::Write);
    }
}

fn rc_04_it_waits_for_a_receive<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 64);
    let op = SendOp::WriteWithImm(memory.remote(0), 9);
    one.queues().post_send(bed.filled(8, 1), 8, op, SIGNALED).expect("a write");
    assert!(two.queues().next_recv(A_WHILE).is_err());
    assert!(one.queues().next_send(Duration::ZERO).is_err());
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    assert_eq!(received(&mut two).imm, Some(9));
    assert_eq!(bytes_of(&memory, 0, 8), [1; 8]);
}

fn rc_06_compare_and_swap_takes_equal_words_only<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 64);
    memory.word(8).expect("a word").store(5, Ordering::Relaxed);
    for (compare, swap, before, after) in
        [(4, 9, 5_u64, 5), (5, 9, 5, 9), (9, u64::MAX, 9, u64::MAX)]
    {
        let op = SendOp::CompareSwap { at: memory.remote(8), compare, swap };
        let done = run((&mut one, &mut two), bed.filled(8, 0xee), op).ok().expect("done");
        assert_eq!((done.opcode, done.len), (WcOpcode::CompareSwap, 8));
        assert_eq!(done.bytes(), before.to_ne_bytes());
        assert_eq!(memory.word(8).expect("a word").load(Ordering::Relaxed), after);
    }
}

fn rc_06_fetch_and_add_wraps<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 64);
    memory.word(0).expect("a word").store(u64::MAX, Ordering::Relaxed);
    for (add, before, after) in [(3, u64::MAX, 2), (0, 2, 2), (u64::MAX, 2, 1)] {
        let op = SendOp::FetchAdd { at: memory.remote(0), add };
        let done = run((&mut one, &mut two), bed.filled(8, 0), op).ok().expect("done");
        assert_eq!((done.opcode, done.bytes()), (WcOpcode::FetchAdd, &before.to_ne_bytes()[..]));
        assert_eq!(memory.word(0).expect("a word").load(Ordering::Relaxed), after);
    }
}

fn rc_06_many_adds_of_two_peers_add_up<F: Fabric>(bed: &Bed<F>) {
    const ROUNDS: u64 = 200;
    let memory = exposed(bed, 8);
    let at = memory.remote(0);
    let pairs = [bed.pair(&bed.small()), bed.pair(&bed.small())];
    thread::scope(|scope| {
        for (mut one, mut two) in pairs {
            let bed = &bed;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let op = SendOp::FetchAdd { at, add: 1 };
                    run((&mut one, &mut two), bed.filled(8, 0), op).ok().expect("done");
                }
            });
        }
    });
    assert_eq!(memory.word(0).expect("a word").load(Ordering::Relaxed), 2 * ROUNDS);
}

fn mr_03_a_stale_key_opens_nothing<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = exposed(bed, 64);
    let at = memory.remote(0);
    drop(memory);
    let failed = run((&mut one, &mut two), bed.filled(8, 1), SendOp::Write(at));
    assert_eq!(failed.status, Status::RemoteAccess);
}

fn sq_04_a_read_is_never_inline<F: Fabric>(bed: &Bed<F>) {
    let (mut one, _two) = bed.pair(&bed.small());
    let at = exposed(bed, 8).remote(0);
    for op in [SendOp::Read(at), SendOp::FetchAdd { at, add: 1 }] {
        let refused = one.queues().post_send(bed.filled(8, 0), 8, op, SIGNALED | SendFlags::INLINE);
        assert_eq!(refused.expect_err("inline").cause, PostCause::Malformed);
    }
    let short =
        one.queues().post_send(bed.filled(8, 0), 4, SendOp::FetchAdd { at, add: 1 }, SIGNALED);
    assert_eq!(short.expect_err("four bytes").cause, PostCause::Malformed);
}

fn sq_07_no_rights_to_read_without_depth<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device takes a READ that can never start, and says nothing");
    }
    let none = ConnParam { responder_resources: 0, ..ConnParam::default() };
    let init = bed.small();
    let (mut one, mut two) = bed.pair_with(&init, &init, &ConnParam::default(), &none);
    let memory = exposed(bed, 64);
    let done = run((&mut one, &mut two), bed.filled(8, 1), SendOp::Write(memory.remote(0)));
    assert_eq!(done.status, Status::Success, "remote write is always on (QP-20)");
    let failed = run((&mut one, &mut two), bed.filled(8, 0), SendOp::Read(memory.remote(0)));
    // The sender's own depth follows the peer's, so the sender is the one that cannot.
    assert_eq!(failed.status, Status::LocalQpOperation);
}

fn sm_03_a_refused_request_ends_both_queue_pairs_and_ck_01_changes_nothing<F: Fabric>(
    bed: &Bed<F>,
) {
    type Op = fn(Remote) -> SendOp;
    let write: Op = SendOp::Write;
    let imm: Op = |at| SendOp::WriteWithImm(at, 1);
    let read: Op = SendOp::Read;
    let add: Op = |at| SendOp::FetchAdd { at, add: 1 };
    let odd = [Status::RemoteInvalidRequest, Status::RemoteAccess];
    let access = [Status::RemoteAccess; 2];
    let cases: [(Op, Access, usize, [Status; 2]); 9] = [
        (write, ALL - Access::REMOTE_WRITE, 0, access),
        (imm, ALL - Access::REMOTE_WRITE, 0, access),
        (read, ALL - Access::REMOTE_READ, 0, access),
        (add, ALL - Access::REMOTE_ATOMIC, 0, access),
        (write, ALL, 4096 - 4, access),
        (imm, ALL, 4096 - 4, access),
        (read, ALL, 4096 - 4, access),
        (add, ALL, 4096, access),
        (add, ALL, 4, odd),
    ];
    for (number, (op, rights, offset, legal)) in cases.into_iter().enumerate() {
        let (mut one, mut two) = bed.pair(&bed.small());
        let memory = Exposed::new(&bed.fabric, 4096, rights).expect("exposed memory");
        two.queues().post_recv(bed.filled(16, 0)).expect("a receive");
        let (buffer, op) = (bed.filled(8, 1), op(memory.remote(offset)));
        if let Err(refused) = one.queues().post_send(buffer, 8, op, SIGNALED) {
            // Some drivers check the alignment of an atomic themselves.
            assert!(!bed.is_strict() && legal == odd, "case {number}: {refused:?}");
            continue;
        }
        let failed = sent(&mut one, &mut two);
        assert!(legal.contains(&failed.status), "case {number}: {:?}", failed.status);
        let refused = one.queues().post_inline(&[1], SendOp::Send, SIGNALED);
        refused.expect("ERR takes it (SM-7)");
        assert_eq!(sent(&mut one, &mut two).status, Status::Flushed, "case {number}");
        assert_eq!(bytes_of(&memory, 0, 4096), [0; 4096], "case {number}");
    }
}

fn memory_that_a_peer_tells_of_refuses_what_would_end_the_connection<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = Exposed::new(&bed.fabric, 128, Access::REMOTE_READ).expect("memory");
    memory.write(64, b"readable").expect("inside");
    let told = memory.remote_memory(64, 8).expect("it is inside").to_bytes();
    let there = RemoteMemory::from_bytes(&told);
    let granted = Access::REMOTE_READ;
    let no = |asked| Err(RemoteError::NotAllowed { asked, granted });
    assert_eq!(there.write(0, 8), no(Access::REMOTE_WRITE));
    assert_eq!(there.fetch_add(0, 1), no(Access::REMOTE_ATOMIC));
    let beyond = |offset, length, len| RemoteError::OutOfBounds { offset, length, len };
    assert_eq!(there.read(1, 8), Err(beyond(1, 8, 8)));
    for _ in 0..2 {
        let read = there.read(0, 8).expect("allowed");
        let done = run((&mut one, &mut two), bed.filled(8, 0), read.op()).ok().expect("done");
        assert_eq!(done.bytes(), b"readable");
    }
    assert_eq!(memory.remote_memory(64, 65), Err(beyond(64, 65, 128)));
    let own = Exposed::new(&bed.fabric, 128, Access::empty()).expect("memory");
    assert_eq!(own.remote_memory(0, 1), Err(RemoteError::NoRights));
    if bed.fabric.caps().rereg.contains(ReregFlags::CHANGE_ACCESS) {
        let change = ExposedChange::new().rights(Access::REMOTE_WRITE);
        let changed = memory.reregister(&bed.fabric, &change).expect("other rights");
        let there = changed.remote_memory(0, 128).expect("all of it");
        assert_eq!(there.rights(), Access::REMOTE_WRITE);
        let write = there.write(0, 8).expect("allowed now");
        run((&mut one, &mut two), bed.filled(8, 7), write.op()).ok().expect("done");
    }
}

fn exposed_memory_checks_its_bounds<F: Fabric>(bed: &Bed<F>) {
    let memory = exposed(bed, 100);
    assert_eq!(memory.len(), 100);
    memory.write(96, &[1; 4]).expect("inside");
    assert_eq!(memory.write(97, &[1; 4]).expect_err("past the end").code(), Code::Invalid);
    assert_eq!(memory.read(usize::MAX, &mut [0; 4]).expect_err("past").code(), Code::Invalid);
    assert_eq!(memory.word(96).expect_err("past the end").code(), Code::Invalid);
    assert_eq!(memory.word(4).expect_err("odd").code(), Code::Invalid);
}
