//! Spreading the frames of one queue pair over several work queues, by hash (QX-8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Duration;

use doorbell_cm::{
    Buffer, Completion, CompletionQueue, ExternalQp, Fabric, IndirectionTable, QpFields, QpInit,
    QpState, SharedReceive, WorkQueue,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{
    AttrMask, CreateFlags, FlowRule, HASH_KEY_BYTES, HashFields, HashFunction, RxHash, WqFlags,
    WqState,
};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{PostCause, SendFlags};

use crate::bed::{A_WHILE, Bed, SOON};
use crate::extended::refusal;
use crate::frames::{frame, go, mac, raw, send};
use crate::harness::skip;

cases! {
    qx_08_frames_are_spread_as_the_published_hashes_say
    qx_08_frames_without_the_fields_go_to_the_first
    qx_08_tables_have_a_power_of_two_of_queues
    qx_08_a_queue_or_table_in_use_is_busy
    qx_08_a_queue_or_table_in_use_outlives_its_handle
    qx_08_with_a_table_there_are_no_other_receives
    qx_08_only_frames_are_spread_and_by_fields_that_go_together
    qx_08_work_queues_go_from_reset_to_ready_to_error
    qx_08_flags_of_a_work_queue_apply_to_its_frames
    qx_08_a_receive_too_short_or_none_drops_the_frame
    qx_08_a_receive_of_another_domain_ends_its_queue
}

/// The key of the published RSS verification suite.
const KEY: [u8; HASH_KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const FOUR: HashFields = HashFields::SRC_IPV4.union(HashFields::DST_IPV4);
const SIX: HashFields = HashFields::SRC_IPV6.union(HashFields::DST_IPV6);
const TCP: HashFields = HashFields::SRC_PORT_TCP.union(HashFields::DST_PORT_TCP);
const UDP: HashFields = HashFields::SRC_PORT_UDP.union(HashFields::DST_PORT_UDP);

fn by(fields: HashFields) -> RxHash {
    RxHash { function: HashFunction::Toeplitz, key: KEY, fields }
}

fn cq<F: Fabric>(bed: &Bed<F>) -> CompletionQueue<F> {
    CompletionQueue::new(&bed.fabric, 256).expect("a completion queue")
}

/// Work queues for frames; `None`, with the reason printed, if the device has none.
fn queues<F: Fabric>(bed: &Bed<F>, count: usize, flags: WqFlags) -> Option<Vec<WorkQueue<F>>> {
    let cq = cq(bed);
    let one = || match WorkQueue::new(&bed.fabric, &cq, 32, flags) {
        Ok(mut queue) => {
            queue.modify(WqState::Ready).expect("it takes frames");
            Some(queue)
        }
        Err(error) if error.code() == Code::NotSupported && !bed.is_strict() => {
            skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    };
    (0..count).map(|_| one()).collect()
}

fn table<F: Fabric>(bed: &Bed<F>, queues: &[WorkQueue<F>]) -> IndirectionTable<F> {
    let all: Vec<&WorkQueue<F>> = queues.iter().collect();
    IndirectionTable::new(&bed.fabric, &all).expect("a table")
}

/// A queue pair for such frames, in RTS, with a rule for a station of the case.
fn spreading<F: Fabric>(
    bed: &Bed<F>,
    table: &IndirectionTable<F>,
    fields: HashFields,
    case: u8,
) -> ExternalQp<F> {
    let init = QpInit::raw_packet().rwq_ind_tbl(table).rx_hash_conf(by(fields));
    let mut qp = ExternalQp::new(&bed.fabric, &init).expect("a queue pair");
    qp.create_flow(FlowRule::To(mac(case, 1))).expect("a rule");
    go(&mut qp);
    qp
}

fn sender<F: Fabric>(bed: &Bed<F>) -> ExternalQp<F> {
    let mut qp = ExternalQp::new(&bed.fabric, &raw()).expect("a queue pair");
    go(&mut qp);
    qp
}

fn fill<F: Fabric>(bed: &Bed<F>, queues: &mut [WorkQueue<F>]) {
    for queue in queues {
        let mut list: Vec<_> = (0..32).map(|_| bed.filled(200, 0)).collect();
        queue.post(&mut list).expect("receives");
    }
}

/// A TCP packet to a station of the case.
fn packet(case: u8, source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
    let [from, to] = [source.0, destination.0].map(|addr| addr.parse().expect("an address"));
    let (kind, ip) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (0x0800_u16, four(from, to)),
        (IpAddr::V6(from), IpAddr::V6(to)) => (0x86dd, six(from, to)),
        _ => unreachable!(),
    };
    let mut frame = frame(mac(case, 1), mac(case, 0), &[]);
    frame.truncate(12);
    frame.extend(kind.to_be_bytes());
    frame.extend(ip);
    frame.extend([source.1, destination.1].map(u16::to_be_bytes).concat());
    frame.extend([0; 16]);
    frame
}

fn four(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let start = [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    [&start[..], &from.octets(), &to.octets()].concat()
}

fn six(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let start = [0x60, 0, 0, 0, 0, 20, 6, 64];
    [&start[..], &from.octets(), &to.octets()].concat()
}

/// The next frame of a work queue, which must have succeeded.
fn next<F: Fabric>(queue: &mut WorkQueue<F>) -> Completion<F> {
    let completion = queue.next(SOON).expect("a frame");
    assert_eq!(completion.status, Status::Success);
    completion
}

/// Sends a frame, and checks that it reaches that queue and no other.
fn lands<F: Fabric>(
    bed: &Bed<F>,
    one: &mut ExternalQp<F>,
    queues: &mut [WorkQueue<F>],
    frame: &[u8],
    place: usize,
) {
    send(bed, one, frame);
    assert_eq!(&next(&mut queues[place]).bytes()[..frame.len()], frame);
    for (n, queue) in queues.iter_mut().enumerate() {
        assert!(queue.next(Duration::ZERO).is_err(), "it came to {n} as well as {place}");
    }
}

/// Destination, source, the hash of the addresses, the hash with the ports.
type Vector = ((&'static str, u16), (&'static str, u16), usize, usize);

const PUBLISHED: [Vector; 5] = [
    (("161.142.100.80", 1766), ("66.9.149.187", 2794), 0x323e_8fc2, 0x51cc_c178),
    (("65.69.140.83", 4739), ("199.92.111.2", 14230), 0xd718_262a, 0xc626_b0ea),
    (("12.22.207.184", 38024), ("24.19.198.95", 12898), 0xd2d0_a5de, 0x5c2b_394a),
    (("209.142.163.6", 2217), ("38.27.205.30", 48228), 0x8298_9176, 0xafc7_327f),
    (("202.188.127.2", 1303), ("153.39.163.191", 44251), 0x5d18_09c5, 0x10e8_28a2),
];

const PUBLISHED_SIX: [Vector; 3] = [
    (("3ffe:2501:200:3::1", 1766), ("3ffe:2501:200:1fff::7", 2794), 0x2cc1_8cd5, 0x4020_7d3d),
    (("ff02::1", 4739), ("3ffe:501:8::260:97ff:fe40:efab", 14230), 0x0f0c_461c, 0xdde5_1bbf),
    (
        ("fe80::200:f8ff:fe21:67cf", 38024),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
        0x4b61_e985,
        0x02d1_feef,
    ),
];

fn qx_08_frames_are_spread_as_the_published_hashes_say<F: Fabric>(bed: &Bed<F>) {
    const PLACES: usize = 16;
    let Some(mut queues) = queues(bed, PLACES, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    assert_eq!(table.size(), PLACES);
    fill(bed, &mut queues);
    let mut one = sender(bed);
    for (addresses, vectors, case) in [(FOUR, &PUBLISHED[..], 40), (SIX, &PUBLISHED_SIX[..], 41)] {
        let alone = spreading(bed, &table, addresses, case);
        for (destination, source, hash, _) in vectors {
            let frame = packet(case, *source, *destination);
            lands(bed, &mut one, &mut queues, &frame, hash % PLACES);
        }
        drop(alone);
        let _with_ports = spreading(bed, &table, addresses | TCP, case);
        for (destination, source, _, hash) in vectors {
            let frame = packet(case, *source, *destination);
            lands(bed, &mut one, &mut queues, &frame, hash % PLACES);
        }
    }
}

fn qx_08_frames_without_the_fields_go_to_the_first<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 4, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    fill(bed, &mut queues);
    let mut one = sender(bed);
    let _two = spreading(bed, &table, FOUR, 42);
    lands(bed, &mut one, &mut queues, &frame(mac(42, 1), mac(42, 0), &[9; 100]), 0);
    let six = packet(42, PUBLISHED_SIX[0].1, PUBLISHED_SIX[0].0);
    lands(bed, &mut one, &mut queues, &six, 0);
}

fn qx_08_tables_have_a_power_of_two_of_queues<F: Fabric>(bed: &Bed<F>) {
    let Some(queues) = queues(bed, 3, WqFlags::empty()) else { return };
    let [a, b, c] = &queues[..] else { unreachable!() };
    let make = |list: &[&WorkQueue<F>]| IndirectionTable::new(&bed.fabric, list);
    for list in [&[][..], &[a, b, c], &[a; 5], &[b; 12], &[c; 256]] {
        let error = make(list).err().expect("no such table");
        assert_eq!(error.code(), Code::Invalid, "{} queues: {error}", list.len());
    }
    for list in [&[a][..], &[a, b], &[a, b, c, a], &[b; 64]] {
        assert_eq!(make(list).expect("a table").size(), list.len());
    }
}

fn qx_08_a_queue_or_table_in_use_is_busy<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 2, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let queue = queues.pop().expect("two");
    let (queue, error) = queue.destroy().expect_err("a table has it");
    assert_eq!(error.code(), Code::Busy, "{error}");
    let qp = spreading(bed, &table, FOUR, 43);
    let (table, error) = table.destroy().expect_err("a queue pair uses it");
    assert_eq!(error.code(), Code::Busy, "{error}");
    drop(qp);
    assert!(table.destroy().is_ok(), "nothing uses it any more");
    assert!(queue.destroy().is_ok(), "nor this");
}

fn qx_08_a_queue_or_table_in_use_outlives_its_handle<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 2, WqFlags::empty()) else { return };
    fill(bed, &mut queues);
    let table = table(bed, &queues);
    let qp = spreading(bed, &table, FOUR, 44);
    let mut one = sender(bed);
    drop(table);
    // A table entry whose queue nobody reads any more; frames still go there.
    queues.truncate(1);
    for (destination, source, hash, _) in PUBLISHED {
        let frame = packet(44, source, destination);
        send(bed, &mut one, &frame);
        if hash % 2 == 0 {
            assert_eq!(&next(&mut queues[0]).bytes()[..frame.len()], frame);
        }
    }
    assert!(queues[0].next(Duration::ZERO).is_err());
    drop(qp);
}

fn qx_08_with_a_table_there_are_no_other_receives<F: Fabric>(bed: &Bed<F>) {
    let Some(queues) = queues(bed, 1, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let init = || QpInit::raw_packet().rwq_ind_tbl(&table).rx_hash_conf(by(FOUR));
    let fields = AttrMask::PD | AttrMask::IND_TABLE | AttrMask::RX_HASH;
    assert_eq!(init().comp_mask(), fields);
    assert_eq!(refusal(bed, &init().recv_cq(&cq(bed))), Code::Invalid);
    assert_eq!(refusal(bed, &init().recv_wr(1)), Code::Invalid);
    assert_eq!(refusal(bed, &init().recv_sge(1)), Code::Invalid);
    let srq = SharedReceive::new(&bed.fabric, 8).expect("a shared queue");
    assert_eq!(refusal(bed, &init().srq(&srq)), Code::Invalid);
    let mut qp = ExternalQp::new(&bed.fabric, &init()).expect("a queue pair");
    assert_eq!(qp.caps().recv_wr, 0);
    go(&mut qp);
    let refused = qp.post_recv(bed.filled(8, 0)).expect_err("it has no queue for it");
    assert_eq!(refused.cause, PostCause::State);
    // It sends like any other queue pair.
    let there = frame(mac(45, 1), mac(45, 0), &[1; 60]);
    qp.post_inline(&there, doorbell_seam::wr::SendOp::Send, SendFlags::SIGNALED)
        .expect_err("no inline was asked for");
    send(bed, &mut qp, &there);
}

fn qx_08_only_frames_are_spread_and_by_fields_that_go_together<F: Fabric>(bed: &Bed<F>) {
    let Some(queues) = queues(bed, 1, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let spread = |init: QpInit<F>| init.rwq_ind_tbl(&table).rx_hash_conf(by(FOUR));
    assert_eq!(refusal(bed, &spread(QpInit::rc())), Code::Invalid);
    assert_eq!(refusal(bed, &spread(QpInit::uc())), Code::Invalid);
    assert_eq!(refusal(bed, &spread(QpInit::ud())), Code::NotSupported);
    assert_eq!(refusal(bed, &raw().rwq_ind_tbl(&table)), Code::Invalid, "a table alone");
    assert_eq!(refusal(bed, &raw().rx_hash_conf(by(FOUR))), Code::Invalid, "a hash alone");
    let unknown = HashFields::from_bits_retain(1 << 20);
    for fields in [FOUR | SIX, FOUR | TCP | UDP, HashFields::empty(), FOUR | unknown] {
        let init = QpInit::raw_packet().rwq_ind_tbl(&table).rx_hash_conf(by(fields));
        assert_eq!(refusal(bed, &init), Code::Invalid, "{fields:?}");
    }
}

fn qx_08_work_queues_go_from_reset_to_ready_to_error<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 1, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let (mut one, _two) = (sender(bed), spreading(bed, &table, FOUR, 46));
    let there = frame(mac(46, 1), mac(46, 0), &[1; 60]);
    let queue = &mut queues[0];
    fill(bed, std::slice::from_mut(queue));
    let mut more = vec![bed.filled(200, 0)];
    assert_eq!(queue.post(&mut more).expect_err("it is full").cause, PostCause::Full);
    assert_eq!(more.len(), 1, "the buffer stays");
    send(bed, &mut one, &there);
    next(queue);
    // In ERR, posted receives and later ones are flushed.
    queue.modify(WqState::Err).expect("ERR");
    assert_eq!(queue.state(), WqState::Err);
    for _ in 0..31 {
        assert_eq!(queue.next(SOON).expect("it is flushed").status, Status::Flushed);
    }
    queue.post(&mut more).expect("it is taken");
    assert_eq!(queue.next(SOON).expect("it is flushed").status, Status::Flushed);
    assert_eq!(queue.modify(WqState::Ready).expect_err("not from ERR").code(), Code::Invalid);
    // In RESET nothing is accepted, and posted receives are forgotten.
    queue.modify(WqState::Reset).expect("RESET");
    assert_eq!(queue.modify(WqState::Err).expect_err("not from RESET").code(), Code::Invalid);
    let mut list = vec![bed.filled(200, 0)];
    assert_eq!(queue.post(&mut list).expect_err("in RESET").cause, PostCause::State);
    send(bed, &mut one, &there);
    queue.modify(WqState::Ready).expect("RDY again");
    queue.post(&mut list).expect("a receive");
    queue.modify(WqState::Reset).expect("RESET");
    queue.modify(WqState::Ready).expect("RDY again");
    send(bed, &mut one, &there);
    thread::sleep(A_WHILE);
    assert!(queue.next(Duration::ZERO).is_err(), "the receive was forgotten");
    queue.post(&mut vec![bed.filled(200, 0)]).expect("a receive");
    send(bed, &mut one, &there);
    next(queue);
}

fn qx_08_flags_of_a_work_queue_apply_to_its_frames<F: Fabric>(bed: &Bed<F>) {
    let flags = WqFlags::CVLAN_STRIPPING | WqFlags::SCATTER_FCS;
    let Some(mut both) = queues(bed, 1, flags) else { return };
    let Some(mut none) = queues(bed, 1, WqFlags::empty()) else { return };
    let mut one = sender(bed);
    let plain = frame(mac(47, 1), mac(47, 0), &[6; 60]);
    let tagged = [&plain[..12], &[0x81, 0x00, 0, 7], &plain[12..]].concat();
    for (queues, length, tag) in
        [(&mut both, plain.len() + 4, Some(7)), (&mut none, tagged.len(), None)]
    {
        fill(bed, queues);
        let table = table(bed, queues);
        let _two = spreading(bed, &table, FOUR, 47);
        send(bed, &mut one, &tagged);
        let came = next(&mut queues[0]);
        assert_eq!(came.len, length);
        if bed.is_strict() {
            assert_eq!(came.vlan_tag, tag);
        }
    }
    let unknown = WqFlags::from_bits_retain(1 << 7);
    let refused = WorkQueue::new(&bed.fabric, &cq(bed), 8, unknown).err().expect("no such flag");
    assert_eq!(refused.code(), Code::Invalid);
    let refused = WorkQueue::new(&bed.fabric, &cq(bed), 0, flags).err().expect("no depth");
    assert_eq!(refused.code(), Code::Invalid);
    // The queue pair's own flags count as well.
    let mut queues = queues(bed, 1, WqFlags::empty()).expect("as before");
    fill(bed, &mut queues);
    let table = table(bed, &queues);
    let init = QpInit::raw_packet().rwq_ind_tbl(&table).rx_hash_conf(by(FOUR));
    let init = init.create_flags(CreateFlags::SCATTER_FCS);
    let mut two = ExternalQp::new(&bed.fabric, &init).expect("a queue pair");
    two.create_flow(FlowRule::To(mac(47, 1))).expect("a rule");
    go(&mut two);
    send(bed, &mut one, &plain);
    assert_eq!(next(&mut queues[0]).len, plain.len() + 4);
}

fn qx_08_a_receive_too_short_or_none_drops_the_frame<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 1, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let (mut one, mut two) = (sender(bed), spreading(bed, &table, FOUR, 48));
    let there = |len| frame(mac(48, 1), mac(48, 0), &vec![len as u8; len]);
    send(bed, &mut one, &there(60));
    thread::sleep(A_WHILE);
    assert!(queues[0].next(Duration::ZERO).is_err(), "there was no receive");
    queues[0].post(&mut vec![bed.filled(100, 0)]).expect("a receive");
    send(bed, &mut one, &there(100));
    send(bed, &mut one, &there(70));
    assert_eq!(next(&mut queues[0]).bytes(), there(70), "it waited for one that fits");
    // The end of the queue pair does not affect the queue's receives.
    queues[0].post(&mut vec![bed.filled(100, 0)]).expect("a receive");
    two.modify(&QpFields::to(QpState::Err)).expect("ERR");
    send(bed, &mut one, &there(60));
    thread::sleep(A_WHILE);
    assert!(queues[0].next(Duration::ZERO).is_err(), "neither flushed nor filled");
}

fn qx_08_a_receive_of_another_domain_ends_its_queue<F: Fabric>(bed: &Bed<F>) {
    let Some(mut queues) = queues(bed, 1, WqFlags::empty()) else { return };
    let table = table(bed, &queues);
    let (mut one, _two) = (sender(bed), spreading(bed, &table, FOUR, 49));
    let foreign = bed.fabric.alloc_pd().expect("another domain");
    let mut list = vec![Buffer::new(&foreign, 200).expect("a buffer"), bed.filled(200, 0)];
    queues[0].post(&mut list).expect("it is taken");
    send(bed, &mut one, &frame(mac(49, 1), mac(49, 0), &[1; 60]));
    let ended = queues[0].next(SOON).expect("it ends");
    assert_eq!(ended.status, Status::LocalProtection);
    assert_eq!(queues[0].next(SOON).expect("so does the rest").status, Status::Flushed);
}
