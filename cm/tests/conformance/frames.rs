//! RAW_PACKET queue pairs: who receives an Ethernet frame, and what the create flags do to it
//! (QX-2, QX-6, QX-18).

use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Completion, ExternalQp, Fabric, Id, PortSpace, QpFields, QpInit, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{CreateFlags, FlowRule, Mac};
use doorbell_seam::wc::{Status, WcOpcode};
use doorbell_seam::wr::{PostCause, Remote, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON};
use crate::extended::made;
use crate::harness::skip;

cases! {
    qx_02_frames_go_to_whom_their_address_says
    qx_02_a_rule_for_all_takes_frames_for_others_too
    qx_02_frames_are_padded_and_have_a_longest_length
    qx_02_frames_nobody_takes_are_dropped
    qx_02_only_frames_are_sent
    qx_02_rules_come_and_go
    qx_02_frames_go_between_processes
    qx_02_raw_packets_are_for_no_id
    qx_02_a_failed_frame_leaves_sqe
    qx_02_a_queue_pair_of_frames_has_further_lives
    qx_06_own_frames_to_groups_come_back_unless_blocked
    qx_06_the_check_sequence_follows_the_frame
    qx_06_a_tag_is_taken_out_and_told
    qx_18_raw_packets_need_the_privilege_their_reach_asks_for
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const LONGEST: usize = 4096;

/// A station that belongs to this case: cases run side by side over one switch.
pub(crate) fn mac(case: u8, number: u8) -> Mac {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    Mac([2, high, low, 0x77, case, number])
}

/// The attributes of the queue pairs here.
pub(crate) fn raw<F: Fabric>() -> QpInit<F> {
    QpInit::raw_packet().send_wr(16).recv_wr(16).inline(256)
}

/// Takes a queue pair to RTS.
pub(crate) fn go<F: Fabric>(qp: &mut ExternalQp<F>) {
    let init = QpFields { port: Some(1), ..QpFields::to(QpState::Init) };
    qp.modify(&init).expect("INIT");
    for state in [QpState::Rtr, QpState::Rts] {
        qp.modify(&QpFields::to(state)).expect("no more is needed");
    }
}

/// A queue pair in RTS with a rule for an address; `None`, with the reason printed, if the device
/// has no such queue pairs.
fn station<F: Fabric>(bed: &Bed<F>, init: &QpInit<F>, at: Mac) -> Option<ExternalQp<F>> {
    let mut qp = made(bed, init)?;
    qp.create_flow(FlowRule::To(at)).expect("a rule");
    go(&mut qp);
    Some(qp)
}

/// A frame of an experimental type.
pub(crate) fn frame(to: Mac, from: Mac, payload: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0[..], &[0x88, 0xb5], payload].concat()
}

pub(crate) fn send<F: Fabric>(bed: &Bed<F>, qp: &mut ExternalQp<F>, frame: &[u8]) {
    let mut buffer = bed.filled(frame.len(), 0);
    buffer.copy_from_slice(frame);
    qp.post_send(buffer, frame.len(), SendOp::Send, SIGNALED).expect("post a frame");
    qp.next_send(SOON).expect("it is on its way").ok().expect("sent");
}

fn ready<F: Fabric>(bed: &Bed<F>, qp: &mut ExternalQp<F>, count: usize) {
    (0..count).for_each(|_| qp.post_recv(bed.filled(LONGEST + 4, 0xee)).expect("a receive"));
}

fn received<F: Fabric>(qp: &mut ExternalQp<F>) -> Completion<F> {
    let completion = qp.next_recv(SOON).expect("a frame");
    assert_eq!((completion.status, completion.opcode), (Status::Success, WcOpcode::Recv));
    completion
}

fn nothing_comes<F: Fabric>(qp: &mut ExternalQp<F>) {
    thread::sleep(A_WHILE);
    assert!(qp.next_recv(Duration::ZERO).is_err(), "nothing comes");
}

/// A frame as it arrives: padded to sixty bytes.
fn padded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn qx_02_frames_go_to_whom_their_address_says<F: Fabric>(bed: &Bed<F>) {
    let stations: Option<Vec<_>> = (0..3).map(|n| station(bed, &raw(), mac(1, n))).collect();
    let Some(mut stations) = stations else { return };
    assert!(stations.iter().all(|qp| qp.num() != 0));
    let [one, two, three] = &mut stations[..] else { unreachable!() };
    for qp in [&mut *one, &mut *two, &mut *three] {
        ready(bed, qp, 4);
    }
    let there = frame(mac(1, 1), mac(1, 0), &[7; 100]);
    send(bed, one, &there);
    let came = received(two);
    assert_eq!((came.bytes(), came.vlan_tag, came.imm), (&there[..], None, None));
    let back = frame(mac(1, 0), mac(1, 1), &[8; 1486]);
    two.post_inline(&back[..200], SendOp::Send, SIGNALED).expect("inline");
    send(bed, two, &back);
    assert_eq!(received(one).bytes(), &back[..200]);
    assert_eq!(received(one).bytes(), back);
    nothing_comes(three);
    // A frame to a group reaches each member.
    let group = Mac([3, 0, 0x5e, mac(1, 0).0[1], mac(1, 0).0[2], 1]);
    for qp in [&mut *two, &mut *three] {
        qp.create_flow(FlowRule::To(group)).expect("a rule");
    }
    let all = frame(group, mac(1, 0), &[9; 60]);
    send(bed, one, &all);
    assert_eq!((received(two).bytes(), received(three).bytes()), (&all[..], &all[..]));
    nothing_comes(one);
}

/// The next frame from a station; other stations of this process may be heard too.
fn from<F: Fabric>(bed: &Bed<F>, qp: &mut ExternalQp<F>, source: Mac) -> Completion<F> {
    let end = Instant::now() + SOON;
    loop {
        let came = received(qp);
        if came.bytes()[6..12] == source.0 {
            return came;
        }
        ready(bed, qp, 1);
        assert!(Instant::now() < end, "it did not come");
    }
}

fn qx_02_a_rule_for_all_takes_frames_for_others_too<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(2, 0)) else { return };
    let mut two = station(bed, &raw(), mac(2, 1)).expect("as the first");
    let mut all = made(bed, &raw()).expect("as the first");
    go(&mut all);
    ready(bed, &mut all, 16);
    ready(bed, &mut two, 4);
    for rule in [FlowRule::All, FlowRule::To(mac(2, 1))] {
        all.create_flow(rule).expect("a rule");
    }
    for (number, to) in [(0, mac(2, 1)), (1, mac(2, 9)), (2, mac(2, 1))] {
        send(bed, &mut one, &frame(to, mac(2, 0), &[number; 60]));
    }
    for number in 0..3 {
        let came = from(bed, &mut all, mac(2, 0));
        assert_eq!(came.bytes()[14..], [number; 60], "each once, whatever rules it fits");
    }
    assert_eq!(received(&mut two).bytes()[14], 0);
    assert_eq!(received(&mut two).bytes()[14], 2);
}

fn qx_02_frames_are_padded_and_have_a_longest_length<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(3, 0)) else { return };
    let mut two = station(bed, &raw(), mac(3, 1)).expect("as the first");
    ready(bed, &mut two, 8);
    for len in [1500, 0, 1, 45, 46, 47, LONGEST - 14] {
        let whole = frame(mac(3, 1), mac(3, 0), &vec![5; len]);
        send(bed, &mut one, &whole);
        assert_eq!(received(&mut two).bytes(), padded(&whole), "{len} bytes");
    }
    for len in [13, LONGEST + 1] {
        let mut one = station(bed, &raw(), mac(3, 2)).expect("as the first");
        let whole = frame(mac(3, 1), mac(3, 0), &vec![5; LONGEST]);
        let mut buffer = bed.filled(len, 0);
        buffer.copy_from_slice(&whole[..len]);
        one.post_send(buffer, len, SendOp::Send, SIGNALED).expect("it is taken");
        assert_eq!(one.next_send(SOON).expect("it ends").status, Status::LocalLength, "{len}");
    }
    nothing_comes(&mut two);
}

fn qx_02_frames_nobody_takes_are_dropped<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(4, 0)) else { return };
    let mut two = station(bed, &raw(), mac(4, 1)).expect("as the first");
    let one_to = |byte| frame(mac(4, 1), mac(4, 0), &[byte; 100]);
    // Without a receive, and with one that is too short.
    send(bed, &mut one, &one_to(1));
    nothing_comes(&mut two);
    two.post_recv(bed.filled(100, 0)).expect("a receive");
    send(bed, &mut one, &one_to(2));
    nothing_comes(&mut two);
    send(bed, &mut one, &frame(mac(4, 1), mac(4, 0), &[3; 86]));
    assert_eq!(received(&mut two).bytes()[14..], [3; 86], "that receive is still there");
    // To a station that does not exist, and before RTR.
    send(bed, &mut one, &frame(mac(4, 9), mac(4, 0), &[4; 60]));
    let mut three = made(bed, &raw()).expect("as the first");
    three.create_flow(FlowRule::To(mac(4, 1))).expect("a rule");
    three.modify(&QpFields { port: Some(1), ..QpFields::to(QpState::Init) }).expect("INIT");
    ready(bed, &mut three, 2);
    send(bed, &mut one, &one_to(5));
    three.modify(&QpFields::to(QpState::Rtr)).expect("RTR");
    nothing_comes(&mut three);
    send(bed, &mut one, &one_to(6));
    assert_eq!(received(&mut three).bytes()[14], 6, "from RTR on it receives");
}

fn qx_02_only_frames_are_sent<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(5, 0)) else { return };
    let remote = Remote::default();
    for op in [SendOp::SendWithImm(1), SendOp::SendWithInv(1), SendOp::Write(remote)] {
        let refused = one.post_send(bed.filled(64, 0), 64, op, SIGNALED).expect_err("no frame");
        assert_eq!(refused.cause, PostCause::Malformed, "{op:?}");
    }
    let early =
        made(bed, &raw()).expect("as the first").post_inline(&[0; 60], SendOp::Send, SIGNALED);
    assert_eq!(early.expect_err("in RESET").cause, PostCause::State);
}

fn qx_02_rules_come_and_go<F: Fabric>(bed: &Bed<F>) {
    let mut rc = ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair");
    let refused = rc.create_flow(FlowRule::All).expect_err("it has no frames");
    assert_eq!(refused.code(), Code::Invalid, "{refused}");
    let Some(mut one) = station(bed, &raw(), mac(6, 0)) else { return };
    let mut two = station(bed, &raw(), mac(6, 1)).expect("as the first");
    ready(bed, &mut two, 8);
    let rule = FlowRule::To(mac(6, 1));
    assert_eq!(two.create_flow(rule).expect_err("it has that").code(), Code::Invalid);
    let there = |byte| frame(mac(6, 1), mac(6, 0), &[byte; 60]);
    send(bed, &mut one, &there(1));
    assert_eq!(received(&mut two).bytes()[14], 1);
    two.destroy_flow(rule).expect("it has that");
    assert_eq!(two.destroy_flow(rule).expect_err("not any more").code(), Code::Invalid);
    send(bed, &mut one, &there(2));
    nothing_comes(&mut two);
    two.create_flow(rule).expect("once more");
    send(bed, &mut one, &there(3));
    assert_eq!(received(&mut two).bytes()[14], 3);
    drop(two);
    let mut three = station(bed, &raw(), mac(6, 1)).expect("its rule went along with it");
    ready(bed, &mut three, 1);
    send(bed, &mut one, &there(4));
    assert_eq!(received(&mut three).bytes()[14], 4);
}

/// The station of the process whose number has those low bits.
fn there(process: u16) -> Mac {
    let [high, low] = process.to_be_bytes();
    Mac([2, high, low, 0x78, 0, 0])
}

/// The other process: answers the first frame, and reports it.
pub(crate) fn answer<F: Fabric>(bed: &Bed<F>, process: u16) {
    let mut qp = station(bed, &raw(), there(process)).expect("as in the first process");
    ready(bed, &mut qp, 4);
    let came = received(&mut qp);
    let source = came.bytes()[6..12].try_into().expect("six bytes");
    let answer = frame(Mac(source), there(process), &[came.bytes()[14] + 1; 1000]);
    send(bed, &mut qp, &answer);
}

fn qx_02_frames_go_between_processes<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(11, 0)) else { return };
    ready(bed, &mut one, 4);
    let process = std::process::id() as u16;
    let mut peer = crate::processes::peer("frames", bed.at(process));
    let end = Instant::now() + SOON;
    let came = loop {
        // Nobody announces the other side's rule: it may come at any time.
        send(bed, &mut one, &frame(there(process), mac(11, 0), &[40; 60]));
        match one.next_recv(A_WHILE) {
            Ok(came) => break came.ok().expect("well"),
            Err(_) => assert!(Instant::now() < end, "no answer"),
        }
    };
    assert_eq!(came.bytes(), frame(mac(11, 0), there(process), &[41; 1000]));
    peer.ends_well();
}

fn qx_02_raw_packets_are_for_no_id<F: Fabric>(bed: &Bed<F>) {
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let mut id = Id::create(&bed.fabric, None, space).expect("an id");
        id.bind(bed.at(0)).expect("bind");
        let error = id.create_qp(&raw()).expect_err("QP-14");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
}

fn qx_02_a_failed_frame_leaves_sqe<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(7, 0)) else { return };
    let mut two = station(bed, &raw(), mac(7, 1)).expect("as the first");
    ready(bed, &mut two, 2);
    one.post_inline(&[0; 5], SendOp::Send, SIGNALED).expect("it is taken");
    let good = frame(mac(7, 1), mac(7, 0), &[1; 60]);
    one.post_inline(&good, SendOp::Send, SIGNALED).expect("it is taken");
    assert_eq!(one.next_send(SOON).expect("it ends").status, Status::LocalLength);
    assert_eq!(one.next_send(SOON).expect("it ends").status, Status::Flushed);
    assert_eq!(one.state(), QpState::Sqe);
    one.modify(&QpFields::to(QpState::Rts)).expect("back to RTS");
    send(bed, &mut one, &good);
    assert_eq!(received(&mut two).bytes(), good);
    // And in ERR everything is flushed.
    two.modify(&QpFields::to(QpState::Err)).expect("ERR");
    assert_eq!(two.next_recv(SOON).expect("it is flushed").status, Status::Flushed);
}

/// RESET forgets posted requests and keeps the rules; frames are not held back.
fn qx_02_a_queue_pair_of_frames_has_further_lives<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = station(bed, &raw(), mac(12, 0)) else { return };
    let mut two = station(bed, &raw(), mac(12, 1)).expect("as the first");
    ready(bed, &mut two, 2);
    let there = |byte| frame(mac(12, 1), mac(12, 0), &[byte; 60]);
    send(bed, &mut one, &there(1));
    for qp in [&mut one, &mut two] {
        qp.modify(&QpFields::to(QpState::Reset)).expect("RESET");
        go(qp);
    }
    nothing_comes(&mut two);
    send(bed, &mut one, &there(2));
    nothing_comes(&mut two);
    ready(bed, &mut two, 1);
    send(bed, &mut one, &there(3));
    assert_eq!(received(&mut two).bytes()[14], 3);
    if bed.is_strict() {
        let error = one.modify(&QpFields::to(QpState::Sqd)).expect_err("nothing is held back");
        assert_eq!((error.code(), one.state()), (Code::NotSupported, QpState::Rts));
    }
}

fn qx_06_own_frames_to_groups_come_back_unless_blocked<F: Fabric>(bed: &Bed<F>) {
    let group = Mac([3, 0x11, 0x5e, mac(8, 0).0[1], mac(8, 0).0[2], 8]);
    let quiet = raw().create_flags(CreateFlags::BLOCK_SELF_MCAST_LB);
    let Some(mut plain) = station(bed, &raw(), group) else { return };
    let Some(mut quiet) = station(bed, &quiet, group) else { return };
    for qp in [&mut plain, &mut quiet] {
        qp.create_flow(FlowRule::To(mac(8, 1))).expect("a rule");
        ready(bed, qp, 4);
    }
    send(bed, &mut quiet, &frame(group, mac(8, 0), &[1; 60]));
    assert_eq!(received(&mut plain).bytes()[14], 1);
    nothing_comes(&mut quiet);
    send(bed, &mut plain, &frame(group, mac(8, 0), &[2; 60]));
    assert_eq!(received(&mut plain).bytes()[14], 2, "its own too");
    assert_eq!(received(&mut quiet).bytes()[14], 2);
    // A frame for one station never goes back to its sender.
    send(bed, &mut plain, &frame(mac(8, 1), mac(8, 0), &[3; 60]));
    assert_eq!(received(&mut quiet).bytes()[14], 3);
    nothing_comes(&mut plain);
}

fn qx_06_the_check_sequence_follows_the_frame<F: Fabric>(bed: &Bed<F>) {
    let checked = raw().create_flags(CreateFlags::SCATTER_FCS);
    let Some(mut two) = station(bed, &checked, mac(9, 1)) else { return };
    let mut one = station(bed, &raw(), mac(9, 0)).expect("as the other");
    ready(bed, &mut two, 4);
    for len in [20, 60, 1500, LONGEST - 14] {
        let whole = frame(mac(9, 1), mac(9, 0), &vec![len as u8; len]);
        send(bed, &mut one, &whole);
        let came = received(&mut two);
        let (body, fcs) = came.bytes().split_last_chunk::<4>().expect("it has four bytes more");
        assert_eq!(body, padded(&whole));
        assert_eq!(u32::from_le_bytes(*fcs), crc_32(body), "{len} bytes");
    }
}

/// The check sequence of IEEE 802.3, bit by bit.
fn crc_32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc: u32, _| {
            if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 }
        })
    })
}

fn qx_06_a_tag_is_taken_out_and_told<F: Fabric>(bed: &Bed<F>) {
    let stripping = raw().create_flags(CreateFlags::CVLAN_STRIPPING);
    let both = raw().create_flags(CreateFlags::CVLAN_STRIPPING | CreateFlags::SCATTER_FCS);
    let Some(mut two) = station(bed, &stripping, mac(10, 1)) else { return };
    let mut one = station(bed, &raw(), mac(10, 0)).expect("as the others");
    let mut three = station(bed, &both, mac(10, 1)).expect("as the others");
    let mut four = station(bed, &raw(), mac(10, 1)).expect("as the others");
    for qp in [&mut two, &mut three, &mut four] {
        ready(bed, qp, 2);
    }
    let plain = frame(mac(10, 1), mac(10, 0), &[6; 100]);
    let tagged = [&plain[..12], &[0x81, 0x00, 0xa0, 0x64], &plain[12..]].concat();
    send(bed, &mut one, &tagged);
    let came = received(&mut two);
    assert_eq!(came.bytes(), plain);
    if bed.is_strict() {
        assert_eq!(came.vlan_tag, Some(0xa064), "priority and number");
    }
    let came = received(&mut three);
    let (body, fcs) = came.bytes().split_last_chunk::<4>().expect("it has four bytes more");
    assert_eq!((body, u32::from_le_bytes(*fcs)), (&plain[..], crc_32(&tagged)), "as it was sent");
    let came = received(&mut four);
    assert_eq!((came.bytes(), came.vlan_tag), (&tagged[..], None), "without the flag it stays");
    send(bed, &mut one, &plain);
    let came = received(&mut two);
    assert_eq!((came.bytes(), came.vlan_tag), (&plain[..], None), "there is none to take out");
}

/// A port to a real network requires a privilege; the soft switch reaches only this user's
/// processes and requires none.
fn qx_18_raw_packets_need_the_privilege_their_reach_asks_for<F: Fabric>(bed: &Bed<F>) {
    match ExternalQp::new(&bed.fabric, &raw()) {
        Ok(qp) => assert_ne!(qp.num(), 0),
        Err(error) => {
            assert!(!bed.is_strict(), "{error}");
            assert!(matches!(error.code(), Code::Denied | Code::NotSupported), "{error}");
            skip(&error.to_string());
        }
    }
}
