//! Unreliable connections (UC-1) of ids.

use std::thread;
use std::time::Duration;

use doorbell_cm::{ConnParam, Exposed, ExternalQp, Fabric, Id, Mtu, QpFields, QpInit, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, Pair, SOON, received, sent};
use crate::external::{joined_by, up_as};
use crate::harness::skip;

cases! {
    uc_01_messages_arrive_and_sends_complete_when_they_are_on_their_way
    uc_01_without_a_receive_a_message_is_dropped_in_silence
    uc_01_queue_pairs_are_connected_by_hand
}

/// A connected pair; `None` where connection managers connect only reliable queue pairs (QP-14).
fn pair<F: Fabric>(bed: &Bed<F>) -> Option<Pair<F>> {
    if !bed.is_strict() {
        skip("librdmacm connects no queue pairs of UC");
        return None;
    }
    Some(bed.pair(&QpInit::uc().send_wr(8).recv_wr(8).inline(16)))
}

fn post<F: Fabric>(id: &mut Id<F>, byte: u8) {
    id.queues().post_inline(&[byte], SendOp::Send, SendFlags::SIGNALED).expect("post a send");
}

fn uc_01_messages_arrive_and_sends_complete_when_they_are_on_their_way<F: Fabric>(bed: &Bed<F>) {
    let Some((mut one, mut two)) = pair(bed) else { return };
    two.queues().post_recvs(&mut bed.numbered(4)).expect("receives");
    for byte in 0..4 {
        post(&mut one, byte);
        sent(&mut one, &mut two).ok().expect("sent");
        assert_eq!(received(&mut two).bytes(), [byte]);
    }
}

fn uc_01_without_a_receive_a_message_is_dropped_in_silence<F: Fabric>(bed: &Bed<F>) {
    let Some((mut one, mut two)) = pair(bed) else { return };
    post(&mut one, 1);
    sent(&mut one, &mut two).ok().expect("sent");
    thread::sleep(A_WHILE);
    assert!(two.queues().next_recv(Duration::ZERO).is_err(), "it was dropped");
    two.queues().post_recvs(&mut bed.numbered(1)).expect("a receive");
    post(&mut one, 2);
    sent(&mut one, &mut two).ok().expect("sent");
    assert_eq!(received(&mut two).bytes(), [2]);
}

/// From RESET to RTS, towards the other's number and its first packet number.
fn by_hand<F: Fabric>(bed: &Bed<F>, mut qps: [ExternalQp<F>; 2]) -> [ExternalQp<F>; 2] {
    let source = bed.fabric.source(bed.at(0).ip()).expect("where it sends from");
    let numbers = [qps[1].num(), qps[0].num()];
    for (qp, there) in qps.iter_mut().zip(numbers) {
        let fields = QpFields {
            access: Some(Access::REMOTE_WRITE),
            pkey_index: Some(0),
            port: Some(source.port),
            ..QpFields::to(QpState::Init)
        };
        qp.modify(&fields).expect("INIT");
        let fields = QpFields {
            av: Some(source.path_to(source.gid)),
            path_mtu: Some(Mtu::Bytes1024),
            dest_qp: Some(there),
            rq_psn: Some(1),
            ..QpFields::to(QpState::Rtr)
        };
        let more = QpFields { min_rnr_timer: Some(1), ..fields };
        assert_eq!(qp.modify(&more).expect_err("not for UC").code(), Code::Invalid);
        qp.modify(&fields).expect("RTR");
        qp.modify(&QpFields { sq_psn: Some(1), ..QpFields::to(QpState::Rts) }).expect("RTS");
    }
    qps
}

/// With fields that both sides agree on by themselves, or that a connection manager gives out if
/// the device has no other way to a peer.
fn uc_01_queue_pairs_are_connected_by_hand<F: Fabric>(bed: &Bed<F>) {
    let init = QpInit::uc().send_wr(4).recv_wr(4).inline(16);
    let qps = [(); 2].map(|()| ExternalQp::new(&bed.fabric, &init).expect("a queue pair"));
    let ([mut one, mut two], _ids) = if bed.is_strict() {
        let none = ConnParam::default();
        // The connection manager's fields are for RC; UC does not have all of them.
        let fitting = |fields: QpFields| QpFields {
            min_rnr_timer: None,
            max_dest_rd_atomic: None,
            timeout: None,
            retry_cnt: None,
            rnr_retry: None,
            max_rd_atomic: None,
            ..fields
        };
        let up = |qp: &mut ExternalQp<F>, id: &mut Id<F>| up_as(qp, id, fitting);
        let [(left, one), (right, two)] = joined_by(bed, qps, &none, &none, up);
        ([one, two], Some((left, right)))
    } else {
        (by_hand(bed, qps), None)
    };
    let send = |one: &mut ExternalQp<F>, byte| {
        one.post_inline(&[byte], SendOp::Send, SendFlags::SIGNALED).expect("post a send");
        one.next_send(SOON).expect("on its way").ok().expect("sent");
    };
    send(&mut one, 1);
    assert!(two.next_recv(A_WHILE).is_err(), "dropped without a receive");
    two.post_recvs(&mut bed.numbered(2)).expect("receives");
    send(&mut one, 2);
    assert_eq!(two.next_recv(SOON).expect("it came").ok().expect("received").bytes(), [2]);
    // SM-3: READ is not for UC.
    let at = Exposed::new(&bed.fabric, 64, Access::REMOTE_READ).expect("memory").remote(0);
    one.post_send(bed.filled(8, 0), 8, SendOp::Read(at), SendFlags::SIGNALED).expect("post");
    let failed = one.next_send(SOON).expect("it failed");
    assert_eq!(failed.status, Status::LocalQpOperation);
}
