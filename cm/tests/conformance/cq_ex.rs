//! Extended completion queues: CP-9, and completion vectors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use doorbell_cm::{
    CompletionQueue, Fabric, Id, PortSpace, SharedReceive, Target, UDP_QKEY, UdParam,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{CqFlags, CqInit, PollerEx, WcEx, WcFields};
use doorbell_seam::wc::{Status, WcFlags, WcOpcode};
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, Pair, SOON, number, part, received, send, sent};
use crate::datagrams;
use crate::harness::{address, skip};

cases! {
    cp_09_completions_have_the_fields_that_were_asked_for
    cp_09_a_field_that_was_not_asked_for_is_not_there
    cp_09_an_error_has_only_defined_fields
    cp_09_a_datagram_says_where_it_came_from
    cp_09_times_are_those_of_the_clocks
    cp_09_times_stay_with_their_completions
    cp_09_an_empty_queue_gives_nothing_and_goes_on
    cp_09_an_extended_queue_is_a_queue
    cp_09_fields_that_the_device_lacks_are_refused
    cp_09_without_overrun_the_oldest_make_room
    cp_09_a_missing_completion_vector_is_refused
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const TIMES: WcFields =
    WcFields::COMPLETION_TIMESTAMP.union(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK);

/// An extended queue with those fields. If the device lacks some, prints so and returns `None`.
fn extended<F: Fabric>(bed: &Bed<F>, fields: WcFields) -> Option<CompletionQueue<F>> {
    let caps = bed.fabric.caps();
    if !caps.wc_fields.contains(fields) {
        skip(&format!("completions of {} have {:?}", caps.device, caps.wc_fields));
        return None;
    }
    let init = CqInit { fields, ..CqInit::new(16) };
    Some(CompletionQueue::with(&bed.fabric, &init).expect("an extended queue"))
}

/// A pair whose second side's receives complete in `cq`.
fn pair_into<F: Fabric>(bed: &Bed<F>, cq: &CompletionQueue<F>) -> Pair<F> {
    let (init, none) = (bed.small(), Default::default());
    bed.pair_with(&init, &bed.small().recv_cq(cq), &none, &none)
}

/// The fields of the next receive.
fn fields<F: Fabric>(two: &mut Id<F>) -> WcEx {
    *two.queues()
        .next_recv(SOON)
        .expect("a receive")
        .extended
        .expect("its queue is an extended one")
}

fn cp_09_completions_have_the_fields_that_were_asked_for<F: Fabric>(bed: &Bed<F>) {
    let wanted = WcFields::BYTE_LEN | WcFields::IMM | WcFields::QP_NUM;
    let Some(cq) = extended(bed, wanted) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    two.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    one.queues().post_inline(&[5], SendOp::SendWithImm(0x0102_0304), SIGNALED).expect("post");
    let wc = fields(&mut two);
    assert_eq!((wc.status, wc.opcode), (Status::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.imm), (Some(1), Some(0x0102_0304)));
    assert_eq!(wc.qp_num, two.qp().map(|(number, _)| number));
    assert_eq!((wc.invalidated, wc.cvlan), (None, None));
    if bed.is_strict() {
        assert_eq!(wc.src_qp, None, "it is no datagram");
    }
    assert!(wc.flags.contains(WcFlags::WITH_IMM));
    one.queues().post_inline(&[], SendOp::Send, SIGNALED).expect("post");
    let wc = fields(&mut two);
    assert_eq!((wc.byte_len, wc.imm), (Some(0), None));
}

/// Read below the ids, which request some fields themselves.
fn cp_09_a_field_that_was_not_asked_for_is_not_there<F: Fabric>(bed: &Bed<F>) {
    if !bed.fabric.caps().wc_fields.contains(WcFields::BYTE_LEN) {
        return skip("this device has no extended queues");
    }
    let init = CqInit { fields: WcFields::BYTE_LEN, ..CqInit::new(16) };
    let (cq, mut reader) = bed.fabric.create_cq_ex(&init).expect("an extended queue");
    assert_eq!(reader.next(), None, "it is empty");
    drop(cq);
    assert_eq!(reader.next(), None, "the reader keeps it");
    let Some(cq) = extended(bed, WcFields::BYTE_LEN) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    two.queues().post_recvs(&mut bed.numbered(1)).expect("a receive");
    one.queues().post_inline(&[5], SendOp::Send, SIGNALED).expect("post");
    let wc = fields(&mut two);
    assert_eq!((wc.completion_ts, wc.wallclock_ns, wc.slid, wc.sl), (None, None, None, None));
}

fn cp_09_an_error_has_only_defined_fields<F: Fabric>(bed: &Bed<F>) {
    let all = bed.fabric.caps().wc_fields;
    let Some(cq) = extended(bed, all | WcFields::QP_NUM) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    two.queues().post_recvs(&mut bed.numbered(1)).expect("a receive");
    part(&mut two, &mut one);
    let wc = fields(&mut two);
    let qp_num = two.qp().map(|(number, _)| number);
    let (wr_id, vendor_err) = (wc.wr_id, wc.vendor_err);
    let status = Status::Flushed;
    assert_eq!(wc, WcEx { wr_id, status, vendor_err, qp_num, ..WcEx::default() });
}

fn cp_09_a_datagram_says_where_it_came_from<F: Fabric>(bed: &Bed<F>) {
    let wanted = WcFields::SRC_QP | WcFields::SLID | WcFields::SL | WcFields::DLID_PATH_BITS;
    let Some(cq) = extended(bed, wanted) else { return };
    let mut two = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    two.bind(bed.at(0)).expect("bind");
    two.create_qp(&datagrams::small().recv_cq(&cq)).expect("a queue pair");
    let source = bed.fabric.source(address()).expect("its address");
    let qp_num = two.qp().expect("a queue pair").0;
    let way = UdParam { to: source.path_to(source.gid), qp_num, qkey: UDP_QKEY };
    let target = Target::new(&bed.fabric, &way).expect("a target");
    let mut one = datagrams::bound(bed, None);
    datagrams::recv(bed, &mut two, 64);
    datagrams::send(&mut one, &target, b"from one");
    let wc = fields(&mut two);
    assert_eq!(wc.byte_len, Some(48), "with its header");
    assert_eq!(wc.src_qp, one.qp().map(|(number, _)| number));
    assert!(wc.flags.contains(WcFlags::GRH));
    assert_eq!((wc.slid, wc.sl, wc.dlid_path_bits), (Some(0), Some(0), Some(0)), "no subnet");
}

fn wallclock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

fn cp_09_times_are_those_of_the_clocks<F: Fabric>(bed: &Bed<F>) {
    let Some(cq) = extended(bed, TIMES) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    let (mut last, mut before) = (0, wallclock_ns());
    for at in 0..4 {
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        send(&mut one, bed.filled(1, at));
        let wc = fields(&mut two);
        let (ticks, wall) = (wc.completion_ts.expect("ticks"), wc.wallclock_ns.expect("time"));
        let now = wallclock_ns();
        assert!(ticks > last, "{ticks} after {last}");
        assert!((before..=now).contains(&wall), "{wall} in {before} to {now}");
        (last, before) = (ticks, wall);
        sent(&mut one, &mut two).ok().expect("sent");
    }
}

/// The time is when the completion was made, not when it was polled, and it survives a resize.
fn cp_09_times_stay_with_their_completions<F: Fabric>(bed: &Bed<F>) {
    const PAUSE: Duration = Duration::from_millis(20);
    let Some(cq) = extended(bed, WcFields::COMPLETION_TIMESTAMP) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    two.queues().post_recvs(&mut bed.numbered(3)).expect("receives");
    for at in 0..3 {
        send(&mut one, bed.filled(1, at));
        sent(&mut one, &mut two).ok().expect("it has arrived");
        std::thread::sleep(PAUSE);
    }
    cq.resize(&bed.fabric, 64).expect("it grows");
    let times: Vec<u64> = (0..3).filter_map(|_| fields(&mut two).completion_ts).collect();
    assert_eq!(times.len(), 3);
    if bed.is_strict() {
        let apart = |pair: &[u64]| pair[1] - pair[0] >= PAUSE.as_nanos() as u64;
        assert!(times.windows(2).all(apart), "{times:?}");
    }
}

fn cp_09_an_empty_queue_gives_nothing_and_goes_on<F: Fabric>(bed: &Bed<F>) {
    let Some(cq) = extended(bed, WcFields::BYTE_LEN) else { return };
    let (mut one, mut two) = pair_into(bed, &cq);
    for round in 0..5_u8 {
        for _ in 0..3 {
            assert!(two.queues().next_recv(Duration::ZERO).is_err(), "round {round}");
        }
        two.queues().post_recvs(&mut bed.numbered(usize::from(round % 4) + 1)).expect("receives");
        for at in 0..=round % 4 {
            send(&mut one, bed.filled(1, at));
            sent(&mut one, &mut two).ok().expect("it has arrived");
        }
        for at in 0..=round % 4 {
            let completion = received(&mut two);
            assert_eq!((number(&completion), completion.bytes()), (at, &[at][..]));
        }
    }
}

fn cp_09_an_extended_queue_is_a_queue<F: Fabric>(bed: &Bed<F>) {
    let Some(cq) = extended(bed, WcFields::BYTE_LEN) else { return };
    let srq = SharedReceive::new(&bed.fabric, 4).expect("a shared receive queue");
    let init = bed.small().send_cq(&cq).recv_cq(&cq).srq(&srq);
    let mut pairs = [bed.pair(&init), bed.pair(&init)];
    srq.post(&mut bed.numbered(2)).expect("receives");
    cq.arm(false).expect("arm");
    for (at, (one, _)) in pairs.iter_mut().enumerate() {
        one.queues().post_inline(&[at as u8], SendOp::Send, SIGNALED).expect("post");
    }
    assert!(cq.wait(Some(SOON)).expect("wait"), "the first wakes");
    for (at, (one, two)) in pairs.iter_mut().enumerate().rev() {
        assert_eq!(received(two).bytes(), [at as u8]);
        let sent = one.queues().next_send(SOON).expect("sent").ok().expect("well");
        assert_eq!(sent.extended.map(|wc| wc.opcode), Some(WcOpcode::Send));
    }
}

fn cp_09_fields_that_the_device_lacks_are_refused<F: Fabric>(bed: &Bed<F>) {
    let caps = bed.fabric.caps();
    let mut tries = Vec::new();
    for fields in WcFields::all() - caps.wc_fields {
        tries.push((CqInit { fields, ..CqInit::new(4) }, Code::NotSupported));
    }
    for flags in CqFlags::all() - caps.cq_flags {
        tries.push((CqInit { flags, ..CqInit::new(4) }, Code::NotSupported));
    }
    for depth in [0, caps.cqe_max + 1] {
        let init = CqInit { depth, fields: WcFields::BYTE_LEN, ..CqInit::default() };
        tries.push((init, Code::Invalid));
    }
    for (init, code) in tries {
        let error = CompletionQueue::with(&bed.fabric, &init).err().expect("refused");
        assert_eq!(error.code(), code, "{init:?}: {error}");
    }
}

fn cp_09_without_overrun_the_oldest_make_room<F: Fabric>(bed: &Bed<F>) {
    if !bed.fabric.caps().cq_flags.contains(CqFlags::IGNORE_OVERRUN) {
        return skip("queues of this device always end when they overrun");
    }
    let init = CqInit { flags: CqFlags::IGNORE_OVERRUN, ..CqInit::new(2) };
    let cq = CompletionQueue::with(&bed.fabric, &init).expect("a queue with these attributes");
    let (mut one, mut two) = pair_into(bed, &cq);
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    for at in 0..3 {
        send(&mut one, bed.filled(1, at));
        sent(&mut one, &mut two).ok().expect("it has arrived");
    }
    if bed.is_strict() {
        assert_eq!([received(&mut two), received(&mut two)].map(|wc| number(&wc)), [1, 2]);
    }
    send(&mut one, bed.filled(1, 3));
    assert_eq!(received(&mut two).bytes(), [3], "the connection goes on");
}

fn cp_09_a_missing_completion_vector_is_refused<F: Fabric>(bed: &Bed<F>) {
    let count = bed.fabric.caps().comp_vectors;
    assert!(count > 0);
    for fields in [WcFields::empty(), WcFields::BYTE_LEN] {
        let last = CqInit { comp_vector: count - 1, fields, ..CqInit::new(4) };
        let cq = CompletionQueue::with(&bed.fabric, &last).expect("the last of them");
        let (mut one, mut two) = pair_into(bed, &cq);
        two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
        cq.arm(false).expect("arm");
        send(&mut one, bed.filled(1, 7));
        assert!(cq.wait(Some(SOON)).expect("wait"), "it wakes, too");
        assert_eq!(received(&mut two).bytes(), [7]);
        for comp_vector in [count, u32::MAX] {
            let beyond = CqInit { comp_vector, ..last };
            let error = CompletionQueue::with(&bed.fabric, &beyond).err().expect("refused");
            assert_eq!(error.code(), Code::Invalid, "{error}");
        }
    }
}
