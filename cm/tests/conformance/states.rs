//! The states of a queue pair, by hand: SM.

use doorbell_cm::{ExternalQp, Fabric, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{PostCause, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, SOON};

cases! {
    sm_07_a_new_queue_pair_is_in_reset_and_takes_nothing
    sm_07_init_takes_receives_and_no_sends
    sm_06_ways_that_are_none_are_refused
    sm_06_a_field_too_few_or_too_many_is_refused
    sm_07_err_takes_all_and_flushes_it
    sm_01_reset_forgets_requests_and_completions
    sm_02_flushed_requests_come_in_the_order_of_posting
}

fn own<F: Fabric>(bed: &Bed<F>) -> ExternalQp<F> {
    ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair")
}

fn init() -> QpFields {
    QpFields {
        access: Some(Access::REMOTE_WRITE),
        pkey_index: Some(0),
        port: Some(1),
        ..QpFields::to(QpState::Init)
    }
}

fn in_init<F: Fabric>(bed: &Bed<F>) -> ExternalQp<F> {
    let mut qp = own(bed);
    qp.modify(&init()).expect("INIT");
    qp
}

fn sm_07_a_new_queue_pair_is_in_reset_and_takes_nothing<F: Fabric>(bed: &Bed<F>) {
    let mut qp = own(bed);
    assert_eq!(qp.state(), QpState::Reset);
    assert_eq!(qp.query().expect("a query").state, Some(QpState::Reset));
    let refused = qp.post_recv(bed.filled(8, 4)).expect_err("RESET");
    assert_eq!(refused.cause, PostCause::State);
    assert_eq!(refused.back.expect("it comes back")[..], [4; 8]);
    let refused = qp.post_inline(&[1], SendOp::Send, SendFlags::SIGNALED);
    assert_eq!(refused.expect_err("RESET").cause, PostCause::State);
}

fn sm_07_init_takes_receives_and_no_sends<F: Fabric>(bed: &Bed<F>) {
    let mut qp = in_init(bed);
    qp.post_recv(bed.filled(8, 0)).expect("INIT takes it");
    let refused = qp.post_send(bed.filled(8, 0), 8, SendOp::Send, SendFlags::SIGNALED);
    assert_eq!(refused.expect_err("INIT").cause, PostCause::State);
    assert!(qp.next_recv(A_WHILE).is_err(), "queued, no more");
    qp.modify(&init()).expect("INIT again");
}

fn sm_06_ways_that_are_none_are_refused<F: Fabric>(bed: &Bed<F>) {
    use QpState::{Err, Init, Rtr, Rts, Sqd, Sqe};
    let mut qp = own(bed);
    for to in [Rtr, Rts, Sqd, Sqe, Err] {
        let error = qp.modify(&QpFields::to(to)).expect_err("not from RESET");
        assert_eq!(error.code(), Code::Invalid, "{to:?}: {error}");
        assert_eq!(qp.state(), QpState::Reset, "it stays");
    }
    qp.modify(&init()).expect("INIT");
    for to in [Rts, Sqd, Sqe] {
        let error = qp.modify(&QpFields::to(to)).expect_err("not from INIT");
        assert_eq!(error.code(), Code::Invalid, "{to:?}: {error}");
        assert_eq!(qp.state(), Init, "it stays");
    }
}

fn sm_06_a_field_too_few_or_too_many_is_refused<F: Fabric>(bed: &Bed<F>) {
    let mut qp = own(bed);
    for bad in [
        QpFields { port: None, ..init() },
        QpFields { access: None, ..init() },
        QpFields { pkey_index: None, ..init() },
        QpFields { timeout: Some(14), ..init() },
        QpFields { dest_qp: Some(17), ..init() },
    ] {
        let error = qp.modify(&bad).expect_err("not these");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    }
    qp.modify(&init()).expect("just these");
}

fn sm_07_err_takes_all_and_flushes_it<F: Fabric>(bed: &Bed<F>) {
    let mut qp = in_init(bed);
    qp.post_recv(bed.filled(8, 1)).expect("INIT takes it");
    qp.modify(&QpFields::to(QpState::Err)).expect("ERR");
    assert_eq!(qp.next_recv(SOON).expect("flushed").status, Status::Flushed);
    qp.post_recv(bed.filled(8, 2)).expect("ERR takes it");
    qp.post_inline(&[1], SendOp::Send, SendFlags::SIGNALED).expect("ERR takes it");
    assert_eq!(qp.next_send(SOON).expect("flushed").status, Status::Flushed);
    // If posting a receive is a write to memory, nobody notices it any more.
    let limit = if bed.is_strict() { SOON } else { A_WHILE };
    match qp.next_recv(limit) {
        Ok(flushed) => assert_eq!(flushed.status, Status::Flushed),
        Err(error) => assert!(!bed.is_strict(), "{error}"),
    }
}

fn sm_01_reset_forgets_requests_and_completions<F: Fabric>(bed: &Bed<F>) {
    let mut qp = in_init(bed);
    qp.post_recv(bed.filled(8, 0)).expect("a receive");
    qp.modify(&QpFields::to(QpState::Reset)).expect("RESET");
    assert!(qp.post_recv(bed.filled(8, 0)).is_err(), "RESET takes nothing");
    qp.modify(&init()).expect("a new life");
    qp.post_recv(bed.filled(8, 7)).expect("a receive");
    qp.modify(&QpFields::to(QpState::Err)).expect("ERR");
    let flushed = qp.next_recv(SOON).expect("flushed");
    assert_eq!(flushed.buffer.expect("that of the new life")[..], [7; 8]);
    assert!(qp.next_recv(A_WHILE).is_err(), "the old one is forgotten");
}

fn sm_02_flushed_requests_come_in_the_order_of_posting<F: Fabric>(bed: &Bed<F>) {
    let mut qp = in_init(bed);
    qp.post_recvs(&mut bed.numbered(4)).expect("receives");
    qp.modify(&QpFields::to(QpState::Err)).expect("ERR");
    for number in 0..4 {
        let flushed = qp.next_recv(SOON).expect("flushed");
        assert_eq!((flushed.status, crate::bed::number(&flushed)), (Status::Flushed, number));
    }
}
