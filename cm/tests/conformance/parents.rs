//! Thread domains and parent domains, if the device has them (TD-1).
#![expect(unsafe_code, reason = "a thread domain is a promise, which these cases keep")]

use doorbell_cm::{
    Buffer, CompletionQueue, Exposed, Fabric, InUse, SharedReceive, SrqInit, Window,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, CqInit, WcFields, WindowKind};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, received, send, sent};
use crate::harness::{another, skip};

cases! {
    td_01_a_device_without_them_says_so
    td_01_a_parent_domain_stands_for_its_domain
    td_01_a_parent_domain_is_no_other_domain
    td_01_a_domain_in_use_is_busy
    td_01_a_domain_in_use_outlives_its_handle
    td_01_a_thread_domain_of_another_device_is_refused
}

/// A thread domain. Each case uses the objects made under it from its own thread alone.
fn thread_domain<F: Fabric>(bed: &Bed<F>) -> F::Td {
    // SAFETY: as above.
    unsafe { bed.fabric.alloc_td() }.expect("a thread domain")
}

/// Prints so if the device has none.
fn lacks<F: Fabric>(bed: &Bed<F>) -> bool {
    let caps = bed.fabric.caps();
    let lacks = !(caps.parent_domains && caps.thread_domains);
    if lacks {
        skip(&format!("{} has no thread domains or no parent domains", caps.device));
    }
    lacks
}

fn buffer<F: Fabric>(device: &F, byte: u8) -> Buffer<F> {
    let mut buffer = Buffer::new(device, 64).expect("a buffer");
    buffer.fill(byte);
    buffer
}

fn td_01_a_device_without_them_says_so<F: Fabric>(bed: &Bed<F>) {
    let caps = bed.fabric.caps();
    let parent = bed.fabric.alloc_parent_domain(None);
    assert_eq!(parent.is_ok(), caps.parent_domains);
    // SAFETY: nothing is made under it.
    let td = unsafe { bed.fabric.alloc_td() };
    assert_eq!(td.is_ok(), caps.thread_domains);
    for error in [parent.err(), td.err()].into_iter().flatten() {
        assert_eq!(error.code(), Code::NotSupported, "{error}");
        assert!(error.to_string().contains("; "), "no cure in: {error}");
    }
}

/// Queue pairs, receive queues, completion queues and memory of either domain work together.
fn td_01_a_parent_domain_stands_for_its_domain<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed) {
        return;
    }
    let (base, td, none) = (&bed.fabric, thread_domain(bed), Default::default());
    for parent in [
        base.alloc_parent_domain(Some(&td)).expect("with a thread domain"),
        base.alloc_parent_domain(None).expect("without one"),
    ] {
        let fields = WcFields::BYTE_LEN & parent.caps().wc_fields;
        let init = CqInit { fields, ..CqInit::new(16) };
        let cq = CompletionQueue::with(&parent, &init).expect("a completion queue");
        let srq = SharedReceive::with(base, &SrqInit::new(4).pd(&parent)).expect("a queue");
        let two = bed.small().pd(&parent).recv_cq(&cq).srq(&srq);
        let (mut one, mut two) = bed.pair_with(&bed.small(), &two, &none, &none);
        srq.post(&mut vec![buffer(base, 0), buffer(&parent, 0)]).expect("receives");
        for byte in [3, 4] {
            send(&mut one, buffer(&parent, byte));
            assert_eq!(received(&mut two).bytes(), [byte; 64]);
            sent(&mut one, &mut two).ok().expect("sent");
        }
        let memory = Exposed::new(base, 64, Access::REMOTE_WRITE).expect("memory");
        let op = SendOp::Write(memory.remote(0));
        one.queues().post_send(buffer(base, 7), 64, op, SendFlags::SIGNALED).expect("post");
        sent(&mut one, &mut two).ok().expect("memory of the domain it is of");
    }
}

fn td_01_a_parent_domain_is_no_other_domain<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed) {
        return;
    }
    let other = bed.fabric.alloc_pd().expect("a protection domain");
    let parent = other.alloc_parent_domain(None).expect("a parent domain of that");
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = Exposed::new(&parent, 64, Access::REMOTE_WRITE).expect("memory");
    let op = SendOp::Write(memory.remote(0));
    one.queues().post_send(bed.filled(64, 7), 64, op, SendFlags::SIGNALED).expect("post");
    assert_eq!(sent(&mut one, &mut two).status, Status::RemoteAccess);
}

/// The object that could not be given up.
fn busy<T>(result: Result<(), InUse<T>>) -> T {
    let Err(InUse { cause, back }) = result else { panic!("it is in use") };
    assert_eq!(cause.code(), Code::Busy, "{cause}");
    back
}

fn td_01_a_domain_in_use_is_busy<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed) {
        return;
    }
    let (base, td) = (bed.fabric.alloc_pd().expect("a protection domain"), thread_domain(bed));
    let parent = base.alloc_parent_domain(Some(&td)).expect("a parent domain");
    let (base, td) = (busy(base.dealloc_pd()), busy(F::dealloc_td(td)));
    let window = Window::new(&parent, WindowKind::Two).expect("a window");
    let parent = busy(parent.dealloc_pd());
    drop(window);
    assert!(parent.dealloc_pd().is_ok(), "nothing is in it");
    assert!(base.dealloc_pd().is_ok(), "nor in this");
    assert!(F::dealloc_td(td).is_ok(), "and nothing names that");
}

fn td_01_a_domain_in_use_outlives_its_handle<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed) {
        return;
    }
    let td = thread_domain(bed);
    let parent = bed.fabric.alloc_parent_domain(Some(&td)).expect("a parent domain");
    let (init, none) = (bed.small().pd(&parent), Default::default());
    let (mut one, mut two) = bed.pair_with(&bed.small(), &init, &none, &none);
    drop((parent, init));
    let td = busy(F::dealloc_td(td));
    two.queues().post_recv(bed.filled(64, 0)).expect("a receive");
    send(&mut one, bed.filled(64, 7));
    assert_eq!(received(&mut two).bytes(), [7; 64]);
    sent(&mut one, &mut two).ok().expect("sent");
    drop((one, two));
    assert!(F::dealloc_td(td).is_ok(), "it went with the queue pair");
}

fn td_01_a_thread_domain_of_another_device_is_refused<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed) {
        return;
    }
    let Some(other) = another::<F>() else {
        return skip("there is no second device");
    };
    let error = other.alloc_parent_domain(Some(&thread_domain(bed))).err().expect("refused");
    assert_eq!(error.code(), Code::Invalid, "{error}");
}
