//! Protection domains: QP-5, EP-6, SRQ-1, MR-2 and QX-15.

use doorbell_cm::{
    Buffer, CompletionQueue, Exposed, ExternalQp, Fabric, SharedReceive, SrqInit, Target, UdParam,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, WindowKind};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, received, send, sent};

cases! {
    qp_05_a_domain_that_is_given_is_used_and_ep_06_saved_for_each_request
    srq_01_a_queue_belongs_to_the_domain_that_is_given
    mr_02_a_send_reads_memory_of_its_own_domain
    mr_02_a_message_goes_to_memory_of_the_receivers_domain
    mr_02_the_result_of_a_read_stays_in_its_domain
    mr_02_a_peers_key_is_good_within_its_domain
    qx_15_a_domain_with_something_in_it_is_busy
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn domain<F: Fabric>(bed: &Bed<F>) -> F {
    bed.fabric.alloc_pd().expect("a protection domain")
}

fn buffer<F: Fabric>(device: &F, byte: u8) -> Buffer<F> {
    let mut buffer = Buffer::new(device, 64).expect("a buffer");
    buffer.fill(byte);
    buffer
}

fn qp_05_a_domain_that_is_given_is_used_and_ep_06_saved_for_each_request<F: Fabric>(bed: &Bed<F>) {
    let (here, there) = (domain(bed), domain(bed));
    let none = Default::default();
    let (one, two) = (bed.small().pd(&here), bed.small().pd(&there));
    let (mut one, mut two) = bed.pair_with(&one, &two, &none, &none);
    two.queues().post_recv(buffer(&there, 0)).expect("a receive");
    send(&mut one, buffer(&here, 7));
    assert_eq!(received(&mut two).bytes(), [7; 64]);
    assert_eq!(sent(&mut one, &mut two).status, Status::Success);
}

fn srq_01_a_queue_belongs_to_the_domain_that_is_given<F: Fabric>(bed: &Bed<F>) {
    let there = domain(bed);
    let srq = SharedReceive::with(&bed.fabric, &SrqInit::new(4).pd(&there)).expect("a queue");
    let two = bed.small().pd(&there).srq(&srq);
    let none = Default::default();
    let (mut one, mut two) = bed.pair_with(&bed.small(), &two, &none, &none);
    srq.post(&mut vec![buffer(&there, 0), buffer(&bed.fabric, 0)]).expect("receives");
    send(&mut one, buffer(&bed.fabric, 7));
    assert_eq!(received(&mut two).bytes(), [7; 64]);
    sent(&mut one, &mut two).ok().expect("sent");
    send(&mut one, buffer(&bed.fabric, 7));
    assert!(!sent(&mut one, &mut two).status.is_ok(), "the second is of another domain");
}

fn mr_02_a_send_reads_memory_of_its_own_domain<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(64, 0)).expect("a receive");
    send(&mut one, buffer(&domain(bed), 7));
    let status = sent(&mut one, &mut two).status;
    if bed.is_strict() {
        assert_eq!(status, Status::LocalProtection);
    }
    assert!(!status.is_ok());
}

fn mr_02_a_message_goes_to_memory_of_the_receivers_domain<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(buffer(&domain(bed), 0)).expect("a receive");
    send(&mut one, bed.filled(64, 7));
    let status = sent(&mut one, &mut two).status;
    if bed.is_strict() {
        assert_eq!(status, Status::RemoteOperation);
        let receive = two.queues().next_recv(crate::bed::SOON).expect("its receive").status;
        assert_eq!(receive, Status::LocalProtection);
    }
    assert!(!status.is_ok());
}

fn mr_02_the_result_of_a_read_stays_in_its_domain<F: Fabric>(bed: &Bed<F>) {
    let memory = Exposed::new(&bed.fabric, 64, Access::REMOTE_READ).expect("memory");
    let (mut one, mut two) = bed.pair(&bed.small());
    let op = SendOp::Read(memory.remote(0));
    one.queues().post_send(bed.filled(64, 0), 64, op, SIGNALED).expect("a read");
    sent(&mut one, &mut two).ok().expect("within one domain");
    one.queues().post_send(buffer(&domain(bed), 0), 64, op, SIGNALED).expect("a read");
    let status = sent(&mut one, &mut two).status;
    if bed.is_strict() {
        assert_eq!(status, Status::LocalProtection);
    }
    assert!(!status.is_ok());
}

fn mr_02_a_peers_key_is_good_within_its_domain<F: Fabric>(bed: &Bed<F>) {
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (near, far) = (bed.fabric.clone(), domain(bed));
    for op in [SendOp::Write, SendOp::Read] {
        let (mut one, mut two) = bed.pair(&bed.small());
        for (device, good) in [(&near, true), (&far, false)] {
            let memory = Exposed::new(device, 64, rights).expect("memory");
            let op: fn(doorbell_seam::wr::Remote) -> SendOp = op;
            let request = op(memory.remote(0));
            one.queues().post_send(bed.filled(64, 3), 64, request, SIGNALED).expect("a request");
            let status = sent(&mut one, &mut two).status;
            assert_eq!(status, if good { Status::Success } else { Status::RemoteAccess });
        }
    }
}

fn qx_15_a_domain_with_something_in_it_is_busy<F: Fabric>(bed: &Bed<F>) {
    fn busy<F: Fabric, T>(pd: F, what: T) -> F {
        let kept = pd.dealloc_pd().expect_err("something is in it");
        assert_eq!(kept.cause.code(), Code::Busy);
        drop(what);
        kept.back
    }
    let pd = domain(bed);
    let cq = CompletionQueue::new(&pd, 16).expect("a completion queue belongs to none");
    let memory = Buffer::new(&pd, 8).expect("memory");
    let pd = busy(pd, memory);
    let srq = SharedReceive::new(&pd, 4).expect("a shared receive queue");
    let pd = busy(pd, srq);
    let window = doorbell_cm::Window::new(&pd, WindowKind::One).expect("a window");
    let pd = busy(pd, window);
    let source = bed.fabric.source(bed.at(0).ip()).expect("where it sends from");
    let to = UdParam { to: source.path_to(source.gid), qp_num: 2, qkey: 1 };
    let target = Target::new(&pd, &to).expect("an address handle");
    let pd = busy(pd, target);
    let init = bed.small().send_cq(&cq).recv_cq(&cq);
    let qp = ExternalQp::new(&bed.fabric, &init.pd(&pd)).expect("a queue pair");
    let pd = busy(pd, qp);
    let handle = pd.clone();
    let pd = busy(pd, handle);
    assert!(pd.dealloc_pd().is_ok(), "nothing is in it");
    drop(cq);
}
