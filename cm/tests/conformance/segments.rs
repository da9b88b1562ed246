//! Segmented sends: one send of TCP becomes frames (QX-7).

use doorbell_cm::{ExternalQp, Fabric, QpInit, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{AttrMask, FlowRule, Mac, SendOps};
use doorbell_seam::wc::{Status, WcOpcode};
use doorbell_seam::wr::{PostCause, Segmentation, SendFlags, SendOp};

use crate::bed::{Bed, SOON};
use crate::extended::{made, refusal};
use crate::frames::{frame, go, mac, raw};

cases! {
    qx_07_a_segmented_send_goes_out_as_frames_of_ipv4
    qx_07_a_segmented_send_goes_out_as_frames_of_ipv6
    qx_07_tags_stay_in_front_of_each_frame
    qx_07_the_longest_header_is_named_at_creation
    qx_07_other_types_have_no_segmented_sends
    qx_07_a_header_that_is_none_of_tcp_fails
    qx_07_only_a_call_that_borrows_the_header_posts_a_segmented_send
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const HEADER_MAX: u16 = 96;

/// Flags of TCP.
const FIN_PSH_ACK: u8 = 0x19;
const CWR: u8 = 0x80;

fn sender<F: Fabric>(bed: &Bed<F>) -> Option<ExternalQp<F>> {
    let mut qp = made(bed, &QpInit::raw_packet().send_wr(8).max_tso_header(HEADER_MAX))?;
    go(&mut qp);
    Some(qp)
}

fn receiver<F: Fabric>(bed: &Bed<F>, at: Mac) -> ExternalQp<F> {
    let mut qp = ExternalQp::new(&bed.fabric, &raw().recv_wr(64)).expect("as the sender");
    qp.create_flow(FlowRule::To(at)).expect("a rule");
    go(&mut qp);
    (0..64).for_each(|_| qp.post_recv(bed.filled(4096, 0)).expect("a receive"));
    qp
}

/// A TCP header with four bytes of options and a sequence number about to wrap.
fn tcp() -> Vec<u8> {
    let mut tcp = vec![0x1f, 0x90, 0, 80, 0xff, 0xff, 0xfc, 0, 0, 0, 0, 9, 0x60];
    tcp.extend([FIN_PSH_ACK | CWR, 1, 0, 0xde, 0xad, 0, 0, 2, 4, 5, 0xb4]);
    tcp
}

fn header_of_four(case: u8, tag: &[u8]) -> Vec<u8> {
    let mut header = frame(mac(case, 1), mac(case, 0), &[]);
    header.truncate(12);
    header.extend(tag);
    header.extend([8, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0xbe, 0xef]);
    header.extend([192, 168, 0, 1, 192, 168, 0, 2]);
    header.extend(tcp());
    header
}

fn header_of_six(case: u8) -> Vec<u8> {
    let mut header = frame(mac(case, 1), mac(case, 0), &[]);
    header.truncate(12);
    header.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
    header.extend([0xfd; 16]);
    header.extend([0xfe; 16]);
    header.extend(tcp());
    header
}

/// The sum of the words as IP and TCP compute it; 0xffff if a checksum is right.
fn sum(parts: &[&[u8]]) -> u32 {
    let bytes = parts.concat();
    let words =
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |b| (*b).into()));
    let sum: u32 = words.sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff)
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Sends `len` bytes in segments and takes the frames apart; returns all payloads together.
fn go_through<F: Fabric>(bed: &Bed<F>, case: u8, header: &[u8], mss: u16, len: usize) {
    let Some(mut one) = sender(bed) else { return };
    let mut two = receiver(bed, mac(case, 1));
    let mut buffer = bed.filled(len.max(1), 0);
    let payload: Vec<u8> = (0..len).map(|n| (n * 7 + n / 251) as u8).collect();
    buffer[..len].copy_from_slice(&payload);
    one.post_tso(header, mss, buffer, len, SIGNALED).expect("post a segmented send");
    let sent = one.next_send(SOON).expect("it ends").ok().expect("well");
    assert_eq!(sent.opcode, WcOpcode::Tso);
    let ip = header.len() - 24 - if header.contains(&0xfd) { 40 } else { 20 };
    let mut seen: Vec<u8> = Vec::new();
    let frames = len.div_ceil(mss.into()).max(1);
    for n in 0..frames {
        let came = two.next_recv(SOON).expect("a frame").ok().expect("well");
        let part = (len - seen.len()).min(mss.into());
        let whole = &came.bytes()[..header.len() + part];
        assert!(came.len == whole.len().max(60), "no more than padding behind it");
        assert_eq!(whole[..ip], header[..ip], "the front of each is as given");
        seen.extend(&whole[header.len()..]);
        check(header, whole, ip, (n, n + 1 == frames, n * usize::from(mss)));
    }
    assert_eq!(seen, payload);
    assert!(two.next_recv(crate::bed::A_WHILE).is_err(), "nor more frames");
}

/// Checks the header of a frame: lengths, number, sequence, flags, checksums.
fn check(header: &[u8], frame: &[u8], ip: usize, (n, last, offset): (usize, bool, usize)) {
    let (start, packet, tcp) = (&header[ip..], &frame[ip..], &frame[header.len() - 24..]);
    let addresses = match packet[0] >> 4 {
        4 => {
            assert_eq!(number(&packet[2..4]), packet.len(), "total length");
            assert_eq!(number(&packet[4..6]), (number(&start[4..6]) + n) & 0xffff, "its number");
            assert_eq!(sum(&[&packet[..20]]), 0xffff, "the checksum of IP");
            &packet[12..20]
        }
        _ => {
            assert_eq!(number(&packet[4..6]), tcp.len(), "payload length");
            &packet[8..40]
        }
    };
    let length = (tcp.len() as u16).to_be_bytes();
    assert_eq!(sum(&[addresses, &[0, 6], &length, tcp]), 0xffff, "the checksum of TCP");
    assert_eq!(number(&tcp[4..8]), (0xffff_fc00 + offset) & 0xffff_ffff, "the sequence");
    let mut flags = 0x10;
    flags |= if n == 0 { CWR } else { 0 };
    flags |= if last { FIN_PSH_ACK } else { 0 };
    assert_eq!(tcp[13], flags, "CWR with the first, FIN and PSH with the last");
}

fn qx_07_a_segmented_send_goes_out_as_frames_of_ipv4<F: Fabric>(bed: &Bed<F>) {
    for (mss, len) in [(1000, 3500), (1000, 3000), (1448, 9), (536, 1), (100, 0), (3333, 20_000)] {
        go_through(bed, 60, &header_of_four(60, &[]), mss, len);
    }
}

fn qx_07_a_segmented_send_goes_out_as_frames_of_ipv6<F: Fabric>(bed: &Bed<F>) {
    for (mss, len) in [(1001, 3500), (1, 7)] {
        go_through(bed, 61, &header_of_six(61), mss, len);
    }
}

fn qx_07_tags_stay_in_front_of_each_frame<F: Fabric>(bed: &Bed<F>) {
    go_through(bed, 62, &header_of_four(62, &[0x81, 0, 0, 9]), 500, 1300);
}

fn qx_07_the_longest_header_is_named_at_creation<F: Fabric>(bed: &Bed<F>) {
    let init = QpInit::<F>::raw_packet().max_tso_header(HEADER_MAX);
    assert_eq!(init.comp_mask(), AttrMask::PD | AttrMask::MAX_TSO_HEADER);
    let ops = SendOps::SEND | SendOps::TSO;
    assert_eq!(refusal(bed, &raw().send_ops_flags(ops)), Code::Invalid, "no room is asked for");
    assert_eq!(refusal(bed, &raw().max_tso_header(0)), Code::Invalid);
    let Some(mut one) = sender(bed) else { return };
    assert_eq!(refusal(bed, &raw().max_tso_header(u16::MAX)), Code::Invalid);
    let header = header_of_four(63, &[]);
    let refused = |qp: &mut ExternalQp<F>, header: &[u8], mss| {
        let refused = qp.post_tso(header, mss, bed.filled(64, 0), 64, SIGNALED);
        let refused = refused.expect_err("it may not");
        assert!(refused.back.is_some(), "the buffer comes back");
        refused.cause
    };
    let long = vec![0; usize::from(HEADER_MAX) + 1];
    assert_eq!(refused(&mut one, &long, 100), PostCause::Malformed, "a longer header");
    assert_eq!(refused(&mut one, &header, 0), PostCause::Malformed, "no end of frames");
    assert_eq!(refused(&mut one, &[], 100), PostCause::Malformed, "no header");
    let mut plain = made(bed, &raw()).expect("as the first");
    assert_eq!(refused(&mut plain, &header, 100), PostCause::State, "in RESET");
    go(&mut plain);
    assert_eq!(refused(&mut plain, &header, 100), PostCause::Malformed, "without room for any");
    let only = raw().max_tso_header(HEADER_MAX).send_ops_flags(SendOps::SEND);
    let mut only = made(bed, &only).expect("as the first");
    go(&mut only);
    assert_eq!(refused(&mut only, &header, 100), PostCause::NotAsked);
    let both = raw().max_tso_header(HEADER_MAX).send_ops_flags(ops);
    let mut both = made(bed, &both).expect("as the first");
    go(&mut both);
    both.post_tso(&header, 100, bed.filled(64, 0), 64, SIGNALED).expect("it was asked for");
    both.next_send(SOON).expect("it ends").ok().expect("well");
}

fn qx_07_other_types_have_no_segmented_sends<F: Fabric>(bed: &Bed<F>) {
    assert_eq!(refusal(bed, &QpInit::rc().max_tso_header(HEADER_MAX)), Code::Invalid);
    assert_eq!(refusal(bed, &QpInit::uc().max_tso_header(HEADER_MAX)), Code::Invalid);
    assert_eq!(refusal(bed, &QpInit::ud().max_tso_header(HEADER_MAX)), Code::NotSupported);
}

fn qx_07_a_header_that_is_none_of_tcp_fails<F: Fabric>(bed: &Bed<F>) {
    let good = header_of_four(64, &[]);
    let mut udp = good.clone();
    udp[23] = 17;
    let mut long = good.clone();
    long.extend([0; 4]);
    for header in [&udp, &long, &good[..40].to_vec()] {
        let Some(mut one) = sender(bed) else { return };
        one.post_tso(header, 100, bed.filled(64, 0), 64, SIGNALED).expect("it is taken");
        let ended = one.next_send(SOON).expect("it ends");
        assert_eq!(ended.status, Status::LocalQpOperation);
        assert_eq!(one.state(), QpState::Sqe);
    }
    // Frames longer than a port accepts.
    let Some(mut one) = sender(bed) else { return };
    one.post_tso(&good, 5000, bed.filled(64, 0), 64, SIGNALED).expect("it is taken");
    assert_eq!(one.next_send(SOON).expect("it ends").status, Status::LocalLength);
}

/// A header is named by address, so only a call that borrows it may use it.
fn qx_07_only_a_call_that_borrows_the_header_posts_a_segmented_send<F: Fabric>(bed: &Bed<F>) {
    let Some(mut one) = sender(bed) else { return };
    let op = SendOp::Tso(Segmentation { header: 8, header_len: 54, mss: 100 });
    let refused = one.post_send(bed.filled(64, 0), 64, op, SIGNALED).expect_err("by address");
    assert_eq!(refused.cause, PostCause::Malformed);
    let refused = one.post_inline(&[0; 8], op, SIGNALED).expect_err("by address");
    assert_eq!(refused.cause, PostCause::Malformed);
}
