//! A failed send completes, whether or not it asked for a completion (SQ-3): one case for each
//! error of a post.

use doorbell_cm::{ConnParam, Exposed, ExternalQp, Fabric, Id, QpFields, QpState, Window};
use doorbell_seam::provider::{Access, WindowKind};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, Pair, SOON, number, part, sent};
use crate::external::{joined_by, up_as};
use crate::harness::skip;

cases! {
    sq_03_a_wrong_local_key_completes
    sq_03_a_refused_remote_access_completes
    sq_03_a_receive_too_short_completes
    sq_03_a_receive_that_cannot_be_written_completes
    sq_03_running_out_of_receives_completes
    sq_03_a_send_to_a_lost_peer_completes
    sq_03_a_window_that_cannot_be_bound_completes
    sq_03_an_invalidation_of_nothing_completes
    sq_03_a_read_that_may_not_run_completes
    sq_03_a_flush_completes
}

/// Nothing here asks for a completion.
const SILENT: SendFlags = SendFlags::empty();

/// Posts a good message, then runs `fail`, which posts one failing request. The good message must
/// stay silent, the failing request must complete with one of `legal`, and nothing may follow.
fn fails<F: Fabric>(
    bed: &Bed<F>,
    (mut one, mut two): Pair<F>,
    legal: &[Status],
    fail: impl FnOnce(&mut Id<F>, &mut Id<F>),
) {
    two.queues().post_recv(bed.filled(1, 0)).expect("a receive");
    one.queues().post_send(bed.filled(1, 7), 1, SendOp::Send, SILENT).expect("a good message");
    crate::bed::received(&mut two);
    fail(&mut one, &mut two);
    let failed = sent(&mut one, &mut two);
    assert!(legal.contains(&failed.status), "{:?} is none of {legal:?}", failed.status);
    if let Some(buffer) = &failed.buffer {
        assert_ne!(buffer[0], 7, "the good message asked for no completion");
    }
    assert!(one.queues().next_send(A_WHILE).is_err(), "nothing else completes");
}

/// A pair whose sends complete only if they ask for it or fail.
fn quiet<F: Fabric>(bed: &Bed<F>) -> Pair<F> {
    bed.pair(&bed.quiet())
}

/// The statuses of a request that such a device refuses by itself. Soft-RoCE has another one for an
/// unknown key (R6).
const LOCAL: [Status; 2] = [Status::LocalProtection, Status::LocalQpOperation];

fn sq_03_a_wrong_local_key_completes<F: Fabric>(bed: &Bed<F>) {
    let there = bed.fabric.alloc_pd().expect("a protection domain");
    let foreign = doorbell_cm::Buffer::new(&there, 8).expect("a buffer");
    let legal = if bed.is_strict() { &LOCAL[..1] } else { &LOCAL[..] };
    fails(bed, quiet(bed), legal, |one, _| {
        one.queues().post_send(foreign, 8, SendOp::Send, SILENT).expect("post");
    });
}

fn sq_03_a_refused_remote_access_completes<F: Fabric>(bed: &Bed<F>) {
    let memory = Exposed::new(&bed.fabric, 4096, Access::REMOTE_READ).expect("memory");
    let forbidden = SendOp::Write(memory.remote(0));
    fails(bed, quiet(bed), &[Status::RemoteAccess], |one, _| {
        one.queues().post_send(bed.filled(8, 1), 8, forbidden, SILENT).expect("post");
    });
    let beyond = SendOp::Read(memory.remote(4096 - 4));
    fails(bed, quiet(bed), &[Status::RemoteAccess], |one, _| {
        one.queues().post_send(bed.filled(8, 1), 8, beyond, SILENT).expect("post");
    });
}

fn sq_03_a_receive_too_short_completes<F: Fabric>(bed: &Bed<F>) {
    // Soft-RoCE finds out while it copies (R6).
    let legal = [Status::RemoteInvalidRequest, Status::RemoteOperation];
    let legal = if bed.is_strict() { &legal[..1] } else { &legal[..] };
    fails(bed, quiet(bed), legal, |one, two| {
        two.queues().post_recv(bed.filled(4, 0)).expect("a receive");
        one.queues().post_send(bed.filled(8, 1), 8, SendOp::Send, SILENT).expect("post");
    });
}

fn sq_03_a_receive_that_cannot_be_written_completes<F: Fabric>(bed: &Bed<F>) {
    let there = bed.fabric.alloc_pd().expect("a protection domain");
    let foreign = doorbell_cm::Buffer::new(&there, 8).expect("a buffer");
    fails(bed, quiet(bed), &[Status::RemoteOperation], |one, two| {
        two.queues().post_recv(foreign).expect("post");
        one.queues().post_send(bed.filled(8, 1), 8, SendOp::Send, SILENT).expect("post");
    });
}

fn sq_03_running_out_of_receives_completes<F: Fabric>(bed: &Bed<F>) {
    let (init, none) = (bed.quiet(), ConnParam::default());
    let once = ConnParam { rnr_retry: 1, ..none };
    let pair = bed.pair_with(&init, &init, &none, &once);
    fails(bed, pair, &[Status::RnrRetryExceeded], |one, _| {
        one.queues().post_send(bed.filled(8, 1), 8, SendOp::Send, SILENT).expect("post");
    });
}

fn sq_03_a_send_to_a_lost_peer_completes<F: Fabric>(bed: &Bed<F>) {
    let none = ConnParam::default();
    let qps = [(); 2].map(|()| ExternalQp::new(&bed.fabric, &bed.quiet()).expect("a queue pair"));
    let [(one, mut left), (two, right)] = joined_by(bed, qps, &none, &none, |qp, id| {
        up_as(qp, id, |fields| match fields.state {
            // Two milliseconds, and one retry: more than 6 may mean without end (R4).
            Some(QpState::Rts) => QpFields { timeout: Some(9), retry_cnt: Some(1), ..fields },
            _ => fields,
        });
    });
    drop((two, right));
    left.post_send(bed.filled(8, 7), 8, SendOp::Send, SILENT).expect("it does not know yet");
    assert_eq!(left.next_send(SOON).expect("it ends").status, Status::RetryExceeded);
    drop(one);
}

fn sq_03_a_window_that_cannot_be_bound_completes<F: Fabric>(bed: &Bed<F>) {
    let closed = Exposed::new(&bed.fabric, 64, Access::REMOTE_WRITE).expect("without MW_BIND");
    let mut window = Window::new(&bed.fabric, WindowKind::Two).expect("a window");
    let legal = [Status::MwBind, Status::LocalQpOperation];
    let legal = if bed.is_strict() { &legal[..1] } else { &legal[..] };
    fails(bed, quiet(bed), legal, |one, _| {
        one.queues()
            .bind_window(&mut window, &closed, 0..64, Access::REMOTE_WRITE, SILENT)
            .expect("post");
    });
}

fn sq_03_an_invalidation_of_nothing_completes<F: Fabric>(bed: &Bed<F>) {
    // MW-2: a window of type 1 is closed only by binding it to nothing.
    let memory = Exposed::new(&bed.fabric, 64, Access::all()).expect("memory");
    let mut window = Window::new(&bed.fabric, WindowKind::One).expect("a window");
    let legal = [Status::LocalQpOperation, Status::LocalProtection, Status::MwBind];
    fails(bed, quiet(bed), &legal, |one, two| {
        let rights = Access::REMOTE_WRITE;
        let bound =
            one.queues().bind_window(&mut window, &memory, 0..64, rights, SendFlags::SIGNALED);
        let rkey = bound.expect("post").rkey;
        sent(one, two).ok().expect("bound");
        one.queues().invalidate(rkey, SILENT).expect("post");
    });
}

fn sq_03_a_read_that_may_not_run_completes<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device takes a READ that can never start, and says nothing");
    }
    let (init, none) = (bed.quiet(), ConnParam::default());
    let no_depth = ConnParam { responder_resources: 0, ..none };
    let pair = bed.pair_with(&init, &init, &none, &no_depth);
    let memory = Exposed::new(&bed.fabric, 64, Access::all()).expect("memory");
    fails(bed, pair, &[Status::LocalQpOperation], |one, _| {
        one.queues()
            .post_send(bed.filled(8, 1), 8, SendOp::Read(memory.remote(0)), SILENT)
            .expect("post");
    });
}

fn sq_03_a_flush_completes<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = quiet(bed);
    // Nobody posts a receive for these.
    for buffer in bed.numbered(3) {
        one.queues().post_send(buffer, 1, SendOp::Send, SILENT).expect("post");
    }
    part(&mut one, &mut two);
    for at in 0..3 {
        let flushed = one.queues().next_send(SOON).expect("each of them completes");
        assert_eq!((flushed.status, number(&flushed)), (Status::Flushed, at));
    }
}
