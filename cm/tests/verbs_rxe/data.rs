//! Messages in both directions, and what posting refuses.

use doorbell_seam::provider::{Access, Provider, Qp, Srq};
use doorbell_seam::wc::{Status, Wc, WcFlags, WcOpcode};
use doorbell_seam::wr::{PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr};
use doorbell_verbs::VerbsQp;

use crate::rig::{BLOCK, CAPS, Kit, Side, device, pair, part, send};

const IMM: u32 = 0x0102_0304;

fn post(qp: &mut VerbsQp, list: &[SendWr<'_>]) -> Result<(), PostError> {
    // SAFETY: the tests do not touch the blocks of a send before its completion.
    unsafe { qp.post(list) }
}

/// Sends 64 bytes, inline or not, with or without immediate data, and checks both ends.
fn one_message(from: &mut Side, to: &mut Side, flags: SendFlags, op: SendOp, fill: u8) {
    from.kit.fill(64, &[fill; 64]);
    let wr = SendWr { op, flags: flags | SendFlags::SIGNALED, ..send(7, from.kit.sge(64, 64)) };
    assert_eq!(post(&mut from.qp, &[wr]), Ok(()));
    let sent = from.kit.one();
    assert_eq!((sent.wr_id, sent.status, sent.opcode), (7, Status::Success, WcOpcode::Send));
    assert_eq!(sent.qp_num, from.qp.num());
    let got = to.kit.one();
    assert_eq!((got.status, got.opcode, got.byte_len), (Status::Success, WcOpcode::Recv, 64));
    assert_eq!(got.qp_num, to.qp.num());
    assert_eq!(to.kit.bytes(got.wr_id as usize, 64), [fill; 64]);
    match op {
        SendOp::SendWithImm(imm) => {
            assert!(got.flags.contains(WcFlags::WITH_IMM));
            assert_eq!(got.imm, imm);
        }
        _ => assert!(!got.flags.contains(WcFlags::WITH_IMM)),
    }
}

#[test]
fn messages_go_both_ways() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    let (none, inline) = (SendFlags::empty(), SendFlags::INLINE);
    one_message(&mut active, &mut passive, none, SendOp::Send, 1);
    one_message(&mut passive, &mut active, none, SendOp::Send, 2);
    one_message(&mut active, &mut passive, inline, SendOp::SendWithImm(IMM), 3);
    one_message(&mut passive, &mut active, inline, SendOp::SendWithImm(!IMM), 4);
    part(&mut passive, &mut active);
}

#[test]
fn a_batch_arrives_whole_and_in_order() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    for block in 0..16 {
        active.kit.fill(64 + block, &[block as u8; 8]);
    }
    let list: Vec<SendWr<'_>> = (0..16)
        .map(|n| {
            let last = if n == 15 { SendFlags::SIGNALED } else { SendFlags::empty() };
            SendWr { flags: last, ..send(n as u64, active.kit.sge(64 + n, 8)) }
        })
        .collect();
    assert_eq!(post(&mut active.qp, &list), Ok(()));
    assert_eq!(active.kit.one().wr_id, 15);
    assert!(active.kit.is_quiet(), "only the last was signalled");
    for (n, wc) in passive.kit.several(16).iter().enumerate() {
        assert_eq!((wc.status, wc.byte_len), (Status::Success, 8));
        assert_eq!(passive.kit.bytes(wc.wr_id as usize, 8), [n as u8; 8]);
    }
    part(&mut passive, &mut active);
}

#[test]
fn pieces_are_gathered_and_empty_messages_arrive() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    for (block, byte) in [(64, b'a'), (65, b'b'), (66, b'c')] {
        active.kit.fill(block, &[byte; 4]);
    }
    let more = [active.kit.sge(65, 2), active.kit.sge(66, 3)];
    let also = [active.kit.sge(65, 0), active.kit.sge(64, 4)];
    let list = [
        SendWr { more: &more, ..send(1, active.kit.sge(64, 1)) },
        send(2, active.kit.sge(64, 0)),
        SendWr { more: &also, ..send(3, active.kit.sge(66, 1)) },
    ];
    assert_eq!(post(&mut active.qp, &list), Ok(()));
    let texts: Vec<Vec<u8>> = passive
        .kit
        .several(3)
        .iter()
        .map(|wc| passive.kit.bytes(wc.wr_id as usize, wc.byte_len as usize))
        .collect();
    assert_eq!(texts, [b"abbccc".to_vec(), Vec::new(), b"caaaa".to_vec()]);
    part(&mut passive, &mut active);
}

#[test]
fn a_refused_request_stops_the_list_there() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    let fine = send(1, active.kit.sge(64, 8));
    let inline_max = active.qp.caps().inline as usize;
    let long = SendWr {
        flags: SendFlags::INLINE,
        ..send(2, doorbell_seam::wr::Sge { length: inline_max as u32 + 1, ..fine.sge })
    };
    let wide = [fine.sge; 8];
    let wide = SendWr { more: &wide, ..send(3, fine.sge) };
    for (bad, cause) in [(long, PostCause::InlineTooLong), (wide, PostCause::TooManyPieces)] {
        let answer = post(&mut active.qp, &[fine, fine, bad, fine]);
        assert_eq!(answer, Err(PostError { accepted: 2, cause }));
        assert_eq!(passive.kit.several(2).len(), 2);
        assert_eq!(active.kit.several(2).len(), 2);
        assert!(passive.kit.is_quiet(), "a request behind the refused one was sent");
    }
    part(&mut passive, &mut active);
}

#[test]
fn a_full_send_queue_is_back_pressure() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    let unsignalled = SendWr { flags: SendFlags::empty(), ..send(1, active.kit.sge(64, 0)) };
    let list = vec![unsignalled; 4 * CAPS.send_wr as usize];
    let error = post(&mut active.qp, &list).expect_err("more than the queue holds");
    assert_eq!(error.cause, PostCause::Full);
    // The device may have made its ring larger, but one list never exceeds the capacity.
    assert_eq!(error.accepted, CAPS.send_wr as usize);
    // All of those are sent as receives are posted; the shared queue has 16 of them.
    passive.kit.receive(&mut passive.qp, 16..32);
    assert_eq!(passive.kit.several(32).len(), 32);
    part(&mut passive, &mut active);
}

#[test]
fn sends_before_the_connection_are_refused_and_stay_so() {
    let Some((device, ip)) = device() else { return };
    use doorbell_cm::{AddrInfo, CmId, Fabric, Hints};
    let (_listener, addr) = crate::rig::listener(&device, ip);
    let mut kit = Kit::new(&device, false);
    let mut id = device.create_endpoint(&AddrInfo::of(addr, &Hints::active())).expect("resolved");
    let mut qp = id.create_qp(&kit.device, &kit.attr()).expect("a queue pair");
    let wr = send(1, kit.sge(64, 8));
    let refused = PostError { accepted: 0, cause: PostCause::State };
    assert_eq!(post(&mut qp, &[wr]), Err(refused));
    assert_eq!(post(&mut qp, &[]), Ok(()));
    kit.receive(&mut qp, 0..4);
    qp.fail();
    let flushed: Vec<Wc> = kit.several(4);
    assert!(flushed.iter().all(|wc| wc.status == Status::Flushed), "{flushed:?}");
    // In ERR, sends are accepted and flushed.
    assert_eq!(post(&mut qp, &[wr]), Ok(()));
    assert_eq!(kit.one().status, Status::Flushed);
}

#[test]
fn receives_have_their_queue_and_its_limit() {
    let Some((device, ip)) = device() else { return };
    let (mut passive, mut active) = pair(&device, ip);
    let receive = RecvWr { wr_id: 40, sge: passive.kit.sge(40, BLOCK) };
    // SAFETY: nothing else uses the block.
    let own = unsafe { passive.qp.post_recv(&[receive]) };
    assert_eq!(own, Err(PostError { accepted: 0, cause: PostCause::State }));
    let srq = passive.kit.srq.clone().expect("it has one");
    let list = vec![receive; 2 * srq.depth() as usize];
    // SAFETY: no message arrives.
    let error = unsafe { srq.post(&list) }.expect_err("more than the queue holds");
    assert_eq!(error.cause, PostCause::Full);
    assert!(error.accepted >= 64 - 16, "{error}");
    part(&mut passive, &mut active);
}

#[test]
fn memory_is_registered_with_access_that_goes_together() {
    let Some((device, _)) = device() else { return };
    let memory = || doorbell_alloc::Mapping::plain(4096).expect("memory");
    assert!(device.register(memory(), Access::REMOTE_WRITE).is_err());
    assert!(device.register(memory(), Access::REMOTE_WRITE | Access::LOCAL_WRITE).is_ok());
    for depth in [0, device.caps().srq_wr_max + 1] {
        assert!(device.create_srq(depth).is_err());
    }
}
