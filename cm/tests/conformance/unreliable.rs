//! Unreliable connections (UC, section 2.6) of ids.

use std::thread;
use std::time::Duration;

use doorbell_cm::{Fabric, Id, QpInit};
use doorbell_engine::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, Pair, received, sent};
use crate::harness::skip;

cases! {
    uc_messages_arrive_and_sends_complete_when_they_are_on_their_way
    uc_without_a_receive_a_message_is_dropped_in_silence
}

/// A connected pair; none where connection managers connect reliable ones only (QP-14).
fn pair<F: Fabric>(bed: &Bed<F>) -> Option<Pair<F>> {
    if !bed.is_strict() {
        skip("librdmacm connects no queue pairs of UC");
        return None;
    }
    Some(bed.pair(&QpInit::uc().send_wr(8).recv_wr(8).inline(16)))
}

fn post<F: Fabric>(id: &mut Id<F>, byte: u8) {
    id.post_inline(&[byte], SendOp::Send, SendFlags::SIGNALED).expect("post a send");
}

fn uc_messages_arrive_and_sends_complete_when_they_are_on_their_way<F: Fabric>(bed: &Bed<F>) {
    let Some((mut one, mut two)) = pair(bed) else { return };
    two.post_recvs(&mut bed.numbered(4)).expect("receives");
    for byte in 0..4 {
        post(&mut one, byte);
        sent(&mut one, &mut two).ok().expect("sent");
        assert_eq!(received(&mut two).bytes(), [byte]);
    }
}

fn uc_without_a_receive_a_message_is_dropped_in_silence<F: Fabric>(bed: &Bed<F>) {
    let Some((mut one, mut two)) = pair(bed) else { return };
    post(&mut one, 1);
    sent(&mut one, &mut two).ok().expect("sent");
    thread::sleep(A_WHILE);
    assert!(two.next_recv(Duration::ZERO).is_err(), "it was dropped");
    two.post_recvs(&mut bed.numbered(1)).expect("a receive");
    post(&mut one, 2);
    sent(&mut one, &mut two).ok().expect("sent");
    assert_eq!(received(&mut two).bytes(), [2]);
}
