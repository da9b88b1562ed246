//! Extended reliable connections: SRQ-5 to SRQ-10, QP-16, QX-2, QX-5, QX-9, QX-15, QX-19,
//! XRC-1.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use doorbell_cm::{
    AddrInfo, CompletionQueue, ConnParam, Endpoint, ExternalQp, Fabric, Hints, Id, PortSpace,
    QpFields, QpInit, QpState, SharedReceive, SrqInit, XrcDomain,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;
use doorbell_seam::wc::{Status, WcOpcode};
use doorbell_seam::wr::{PostCause, SendFlags, SendOp, XrcOp};

use crate::bed::{A_WHILE, Bed, SOON};
use crate::harness::skip;
use crate::processes::peer;

cases! {
    srq_05_without_a_completion_queue_one_is_made_and_shown
    srq_05_a_completion_queue_that_is_given_is_used
    srq_06_a_plain_queue_has_no_number
    srq_07_a_target_made_after_the_queue_uses_it_when_named
    srq_08_receives_of_a_target_go_to_its_shared_queue
    srq_10_two_senders_fill_one_queue_that_they_name
    srq_10_one_sender_fills_two_queues
    srq_10_senders_of_other_processes_fill_a_queue_that_they_are_told
    qp_14_the_side_that_connects_sends
    qp_16_a_target_without_a_domain_gets_that_of_the_device
    qx_02_both_ends_of_xrc_are_made_by_hand
    qx_05_a_target_has_a_domain_instead_of_queues_and_a_sender_receives_nothing
    qx_09_a_target_serves_the_queues_of_its_domain_alone
    qx_09_a_device_without_xrc_says_so
    qx_15_a_domain_in_use_is_busy
    qx_19_a_queue_of_a_domain_is_no_queue_of_rc
    xrc_01_connections_are_made_by_hand
    xrc_01_senders_name_a_queue_with_each_message
    xrc_01_writes_name_a_queue_too
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// Ends the case if the device has no XRC.
fn has<F: Fabric>(bed: &Bed<F>) -> bool {
    let caps = bed.fabric.caps();
    if !caps.xrc {
        skip(&format!("{} has no extended reliable connections", caps.device));
    }
    caps.xrc
}

fn to(srq: u32) -> SendOp {
    SendOp::Xrc { srq, op: XrcOp::Send }
}

fn sender<F: Fabric>() -> QpInit<F> {
    QpInit::xrc_send().send_wr(4).inline(16).signal_all(true)
}

fn listener<F: Fabric>(bed: &Bed<F>, init: Option<&QpInit<F>>) -> (Endpoint<F>, SocketAddr) {
    let info = AddrInfo::of(bed.at(0), &Hints::passive().xrc());
    let mut listener = Endpoint::create(&bed.fabric, &info, init).expect("a listener");
    assert_eq!(listener.qp_type(), QpType::XrcRecv);
    listener.listen(0).expect("listen");
    let addr = listener.local_addr().expect("a bound listener has an address");
    (listener, addr)
}

fn active<F: Fabric>(bed: &Bed<F>, addr: SocketAddr, init: Option<&QpInit<F>>) -> Endpoint<F> {
    let info = AddrInfo::of(addr, &Hints::active().xrc());
    Endpoint::create(&bed.fabric, &info, init).expect("an active endpoint")
}

/// A sender, and its connected target. The private data holds a queue's number, as in rdma_xserver.
fn joined<F: Fabric>(bed: &Bed<F>, target: &QpInit<F>, number: u32) -> (Id<F>, Id<F>) {
    let (mut listener, addr) = listener(bed, Some(target));
    let mut one = active(bed, addr, Some(&sender())).into_id();
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            one.connect(&ConnParam::default()).expect("connect");
            one
        });
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        assert_eq!(two.qp_type(), QpType::XrcRecv);
        let data = number.to_be_bytes();
        two.accept(&ConnParam { private_data: &data, ..Default::default() }).expect("accept");
        let one = connecting.join().expect("the connecting side");
        assert_eq!(one.private_data()[..4], data);
        (one, two)
    })
}

/// The next completed send, while the receiving side's device works as well.
fn sent<F: Fabric>(id: &mut Id<F>, srq: &SharedReceive<F>) -> Status {
    let end = std::time::Instant::now() + SOON;
    loop {
        if let Ok(completion) = id.queues().next_send(Duration::ZERO) {
            return completion.status;
        }
        assert!(srq.poll().is_none(), "nothing more comes");
        assert!(std::time::Instant::now() < end, "the send did not complete");
        thread::sleep(Duration::from_micros(50));
    }
}

fn queue<F: Fabric>(bed: &Bed<F>, init: &SrqInit<F>) -> (SharedReceive<F>, u32) {
    let srq = SharedReceive::with(&bed.fabric, init).expect("a shared receive queue");
    let number = srq.number().expect("it is of a domain");
    (srq, number)
}

fn srq_05_without_a_completion_queue_one_is_made_and_shown<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (mut listener, _) = listener(bed, None);
    assert!(listener.recv_cq().is_none());
    listener.create_srq(7).expect("a shared receive queue");
    let cq = listener.recv_cq().expect("it is shown on the id");
    assert!(cq.depth() >= 7, "as deep as the queue");
    let srq = listener.srq().expect("it is there");
    assert!(srq.number().is_some() && srq.cq().is_some());
    // As many receives as the completion queue holds may be outstanding at a time, polled or not.
    let mut list = bed.numbered(9);
    let full = srq.post(&mut list).expect_err("seven is the most");
    assert_eq!((full.cause, list.len()), (PostCause::Full, 2));
}

fn srq_05_a_completion_queue_that_is_given_is_used<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let cq = CompletionQueue::new(&bed.fabric, 64).expect("a completion queue");
    let (one, first) = queue(bed, &SrqInit::xrc(4).cq(&cq));
    let (two, second) = queue(bed, &SrqInit::xrc(4).cq(&cq));
    let id = |cq: Option<&CompletionQueue<F>>| cq.map(|cq| cq.id(&bed.fabric));
    assert_eq!(id(one.cq()), id(Some(&cq)));
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv(), first);
    for (srq, number, byte) in [(&two, second, 2), (&one, first, 1)] {
        srq.post(&mut vec![bed.filled(8, 0)]).expect("a receive");
        from.queues().post_inline(&[byte; 8], to(number), SIGNALED).expect("a send");
        // Each queue has its own completions.
        assert_eq!(srq.next(SOON).expect("a message").ok().expect("well").bytes(), [byte; 8]);
        assert_eq!(sent(&mut from, srq), Status::Success);
    }
}

fn srq_06_a_plain_queue_has_no_number<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::with(&bed.fabric, &SrqInit::new(4)).expect("a plain one");
    assert!(srq.number().is_none() && srq.cq().is_none() && srq.poll().is_none());
    assert_eq!(srq.next(A_WHILE).expect_err("it does not say").code(), Code::Invalid);
}

fn srq_07_a_target_made_after_the_queue_uses_it_when_named<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (mut listener, addr) = listener(bed, None);
    let mut one = active(bed, addr, Some(&sender())).into_id();
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            one.connect(&ConnParam::default()).expect("connect");
            one
        });
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        let number = two.create_srq(4).expect("a queue").number().expect("of the domain");
        two.create_qp(&QpInit::xrc_recv()).expect("a queue pair");
        assert_eq!(two.srq().expect("there").users(), 0, "it is no queue of the queue pair's own");
        two.queues().post_recv(bed.filled(8, 0)).expect("SRQ-8");
        two.accept(&ConnParam::default()).expect("accept");
        let mut one = connecting.join().expect("the connecting side");
        one.queues().post_inline(&[5; 8], to(number), SIGNALED).expect("a send");
        assert_eq!(
            two.queues().next_recv(SOON).expect("a message").ok().expect("well").bytes(),
            [5; 8]
        );
        two.destroy_srq().expect("no queue pair has it");
    });
}

fn srq_08_receives_of_a_target_go_to_its_shared_queue<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (mut listener, _) = listener(bed, None);
    let refused = listener.queues().post_recv(bed.filled(8, 0)).expect_err("there is no queue");
    assert_eq!(refused.cause, PostCause::State);
    listener.create_srq(4).expect("a queue");
    listener.queues().post_recv(bed.filled(8, 0)).expect("to the queue");
    assert!(listener.queues().next_recv(A_WHILE).is_err(), "nothing has come");
}

fn srq_10_two_senders_fill_one_queue_that_they_name<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (srq, number) = queue(bed, &SrqInit::xrc(8));
    srq.post(&mut bed.numbered(6)).expect("receives");
    let mut pairs = [0; 2].map(|_| joined(bed, &QpInit::xrc_recv(), number));
    for (turn, which) in [0, 1, 1, 0, 1, 0].into_iter().enumerate() {
        let (one, _two) = &mut pairs[which];
        // No payload: the buffer still holds the number it was posted with.
        one.queues().post_inline(&[], to(number), SIGNALED).expect("a send");
        let completion = srq.next(SOON).expect("a message").ok().expect("well");
        assert_eq!(completion.opcode, WcOpcode::Recv);
        assert_eq!(crate::bed::number(&completion), turn as u8, "first in, first out");
        assert_eq!(sent(one, &srq), Status::Success);
    }
}

fn srq_10_one_sender_fills_two_queues<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let domain = XrcDomain::open(&bed.fabric).expect("a domain");
    let (one, first) = queue(bed, &SrqInit::xrc(4).domain(&domain));
    let (two, second) = queue(bed, &SrqInit::xrc(4).domain(&domain));
    assert_ne!(first, second);
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv().xrcd(&domain), first);
    // Long enough for several packets.
    let length = 10_000;
    for (srq, number, byte) in [(&one, first, 3), (&two, second, 4), (&one, first, 5)] {
        srq.post(&mut vec![bed.filled(length, 0)]).expect("a receive");
        from.queues()
            .post_send(bed.filled(length, byte), length, to(number), SIGNALED)
            .expect("a send");
        let completion = srq.next(SOON).expect("a message").ok().expect("well");
        assert!(completion.len == length && completion.bytes().iter().all(|b| *b == byte));
        assert_eq!(sent(&mut from, srq), Status::Success);
    }
}

/// The other process: sends messages to the queue whose number comes with the answer.
pub(crate) fn send_from_afar<F: Fabric>(bed: &Bed<F>, addr: SocketAddr) {
    let mut one = active(bed, addr, Some(&sender())).into_id();
    one.connect(&ConnParam::default()).expect("connect");
    let data = one.private_data().first_chunk().expect("a number");
    let number = u32::from_be_bytes(*data);
    for byte in 0..100 {
        one.queues().post_inline(&[byte; 12], to(number), SIGNALED).expect("a send");
        one.queues().next_send(SOON).expect("sent").ok().expect("well");
    }
    one.disconnect().expect("disconnect");
}

fn srq_10_senders_of_other_processes_fill_a_queue_that_they_are_told<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (srq, number) = queue(bed, &SrqInit::xrc(16));
    let (mut listener, addr) = listener(bed, Some(&QpInit::xrc_recv()));
    let mut peers = [0; 2].map(|_| peer("xrc", addr));
    srq.post(&mut vec![bed.filled(16, 0), bed.filled(16, 0)]).expect("receives");
    let _targets = peers.each_ref().map(|_| {
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        let data = number.to_be_bytes();
        two.accept(&ConnParam { private_data: &data, ..Default::default() }).expect("accept");
        two
    });
    let mut sums = 0;
    for _ in 0..200 {
        let completion = srq.next(SOON).expect("a message").ok().expect("well");
        let byte = completion.bytes()[0];
        assert_eq!(completion.bytes(), [byte; 12]);
        sums += u32::from(byte);
        srq.post(&mut vec![completion.buffer.expect("it comes back")]).expect("again");
    }
    assert_eq!(sums, 2 * (0..100).sum::<u32>(), "each message of each once");
    for peer in &mut peers {
        peer.ends_well();
    }
}

fn qp_14_the_side_that_connects_sends<F: Fabric>(bed: &Bed<F>) {
    let kinds = [(true, QpType::XrcSend), (false, QpType::XrcRecv)];
    for (passive, kind) in kinds {
        let space = PortSpace::Ib;
        let hints = Hints { passive, space, qp_type: Some(kind), ..Hints::default() };
        let info = AddrInfo::of(bed.at(7), &hints);
        let error = Endpoint::create(&bed.fabric, &info, None).err().expect("the wrong side");
        assert_eq!(error.code(), Code::Invalid);
    }
    let hints = Hints { qp_type: Some(QpType::XrcSend), ..Hints::active() };
    let info = AddrInfo::of(bed.at(7), &hints);
    let error = Endpoint::create(&bed.fabric, &info, None).err().expect("another port space");
    assert_eq!(error.code(), Code::Invalid);
    let info = AddrInfo::of(bed.at(7), &Hints::active());
    let error = Endpoint::create(&bed.fabric, &info, Some(&sender())).err().expect("an id of RC");
    assert!(matches!(error.code(), Code::Invalid | Code::NotSupported));
}

fn qp_16_a_target_without_a_domain_gets_that_of_the_device<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let common = XrcDomain::common(&bed.fabric).expect("the device's");
    let (srq, number) = queue(bed, &SrqInit::xrc(4).domain(&common));
    srq.post(&mut vec![bed.filled(8, 0)]).expect("a receive");
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv(), number);
    from.queues().post_inline(&[1; 8], to(number), SIGNALED).expect("a send");
    assert_eq!(srq.next(SOON).expect("a message").ok().expect("well").bytes(), [1; 8]);
}

fn qx_02_both_ends_of_xrc_are_made_by_hand<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let domain = XrcDomain::open(&bed.fabric).expect("a domain");
    let one = ExternalQp::new(&bed.fabric, &sender()).expect("XRC_SEND");
    let init = QpInit::xrc_recv().xrcd(&domain);
    let two = ExternalQp::new(&bed.fabric, &init).expect("XRC_RECV");
    assert_ne!(one.num(), two.num());
    assert_eq!((one.state(), two.state()), (QpState::Reset, QpState::Reset));
}

fn qx_05_a_target_has_a_domain_instead_of_queues_and_a_sender_receives_nothing<F: Fabric>(
    bed: &Bed<F>,
) {
    let domain = XrcDomain::open(&bed.fabric);
    if let Ok(domain) = &domain {
        for init in [QpInit::rc(), QpInit::xrc_send()] {
            let error = ExternalQp::new(&bed.fabric, &init.xrcd(domain)).err();
            assert_eq!(error.expect("only a target has one").code(), Code::Invalid);
        }
    }
    let srq = SharedReceive::new(&bed.fabric, 4).expect("a plain shared receive queue");
    for init in [QpInit::xrc_recv(), QpInit::xrc_send()] {
        let error = ExternalQp::new(&bed.fabric, &init.srq(&srq)).err();
        assert_eq!(error.expect("it takes receives of none").code(), Code::Invalid);
    }
    if !has(bed) {
        return;
    }
    let mut one = ExternalQp::new(&bed.fabric, &sender().recv_wr(9)).expect("XRC_SEND");
    assert!(one.caps().send_wr >= 4 && one.send_cq().is_some());
    assert_eq!((one.caps().recv_wr, one.recv_cq().is_none()), (0, true));
    let mut two = ExternalQp::new(&bed.fabric, &QpInit::xrc_recv()).expect("XRC_RECV");
    assert_eq!((two.caps().send_wr, two.caps().recv_wr), (0, 0));
    assert!(two.send_cq().is_none() && two.recv_cq().is_none());
    for qp in [&mut one, &mut two] {
        let init = QpFields {
            access: Some(doorbell_seam::provider::Access::REMOTE_WRITE),
            pkey_index: Some(0),
            port: Some(1),
            ..QpFields::to(QpState::Init)
        };
        qp.modify(&init).expect("INIT");
        let refused = qp.post_recv(bed.filled(8, 0)).expect_err("it has no receive queue");
        assert_eq!(refused.cause, PostCause::State);
    }
}

fn qx_09_a_target_serves_the_queues_of_its_domain_alone<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let here = XrcDomain::open(&bed.fabric).expect("a domain");
    let there = XrcDomain::open(&bed.fabric).expect("another");
    let (srq, number) = queue(bed, &SrqInit::xrc(4).domain(&there));
    srq.post(&mut bed.numbered(2)).expect("receives");
    for wrong in [number, number + 1000] {
        let (mut from, mut target) = joined(bed, &QpInit::xrc_recv().xrcd(&here), number);
        from.queues().post_inline(&[], to(wrong), SIGNALED).expect("a send");
        from.queues().post_inline(&[], to(wrong), SIGNALED).expect("a send");
        assert_eq!(sent(&mut from, &srq), Status::RemoteInvalidRequest);
        assert_eq!(sent(&mut from, &srq), Status::Flushed);
        target.disconnect().expect("disconnect");
    }
    // No receive was taken.
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv().xrcd(&there), number);
    from.queues().post_inline(&[], to(number), SIGNALED).expect("a send");
    let completion = srq.next(SOON).expect("a message").ok().expect("well");
    assert_eq!(crate::bed::number(&completion), 0);
}

fn qx_09_a_device_without_xrc_says_so<F: Fabric>(bed: &Bed<F>) {
    let domain = XrcDomain::open(&bed.fabric);
    if bed.fabric.caps().xrc {
        domain.expect("a device with XRC opens one");
        return;
    }
    assert_eq!(domain.expect_err("it has none").code(), Code::NotSupported);
    let error = SharedReceive::with(&bed.fabric, &SrqInit::xrc(4)).err();
    assert_eq!(error.expect("nor a queue of one").code(), Code::NotSupported);
    let error = ExternalQp::new(&bed.fabric, &QpInit::xrc_recv()).err();
    assert_eq!(error.expect("nor a queue pair in one").code(), Code::NotSupported);
}

fn qx_15_a_domain_in_use_is_busy<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let domain = XrcDomain::open(&bed.fabric).expect("a domain");
    let (srq, _) = queue(bed, &SrqInit::xrc(4).domain(&domain));
    let init = QpInit::xrc_recv().xrcd(&domain);
    let qp = ExternalQp::new(&bed.fabric, &init).expect("a queue pair");
    drop(init);
    assert_eq!(domain.users(), 2);
    let kept = domain.close().expect_err("two use it");
    assert_eq!(kept.cause.code(), Code::Busy);
    drop(qp);
    let kept = kept.back.close().expect_err("one does");
    drop(srq);
    kept.back.close().expect("nobody does");
}

fn qx_19_a_queue_of_a_domain_is_no_queue_of_rc<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (srq, _) = queue(bed, &SrqInit::xrc(4));
    for init in [bed.small().srq(&srq), QpInit::ud().srq(&srq), sender().srq(&srq)] {
        let error = ExternalQp::new(&bed.fabric, &init).err().expect("the wrong kind of queue");
        assert_eq!(error.code(), Code::Invalid);
    }
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve");
    id.create_srq_ex(&SrqInit::xrc(4)).expect("an id may have one");
    let error = id.create_qp(&bed.small()).expect_err("and no queue pair of RC with it");
    assert_eq!(error.code(), Code::Invalid);
    assert_eq!(srq.users(), 0);
}

fn go<F: Fabric>(qp: &mut ExternalQp<F>, id: &mut Id<F>, to: QpState) {
    let fields = id.by_hand().init_qp_attr(to).expect("the fields for this state");
    qp.modify(&fields).expect("a way of the table");
}

fn xrc_01_connections_are_made_by_hand<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let (srq, number) = queue(bed, &SrqInit::xrc(4));
    srq.post(&mut vec![bed.filled(8, 0)]).expect("a receive");
    let (mut listener, addr) = listener(bed, None);
    let mut one = active(bed, addr, None).into_id();
    thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let mut qp = ExternalQp::new(&bed.fabric, &sender()).expect("XRC_SEND");
            go(&mut qp, &mut one, QpState::Init);
            one.by_hand().connect(&qp, &ConnParam::default()).expect("the peer's answer");
            let fields =
                one.by_hand().init_qp_attr(QpState::Rtr).expect("the fields for this state");
            let more = QpFields { min_rnr_timer: Some(12), ..fields };
            assert_eq!(qp.modify(&more).expect_err("it receives nothing").code(), Code::Invalid);
            qp.modify(&fields).expect("RTR");
            go(&mut qp, &mut one, QpState::Rts);
            one.by_hand().establish().expect("establish");
            qp
        });
        let mut two = listener.get_request(Some(SOON)).expect("a request");
        let mut target = ExternalQp::new(&bed.fabric, &QpInit::xrc_recv()).expect("XRC_RECV");
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            go(&mut target, &mut two, state);
        }
        two.by_hand().accept(&target, &ConnParam::default()).expect("accept");
        let mut qp = connecting.join().expect("the connecting side");
        qp.post_inline(&[6; 8], to(number), SIGNALED).expect("a send");
        assert_eq!(srq.next(SOON).expect("a message").ok().expect("well").bytes(), [6; 8]);
        qp.next_send(SOON).expect("sent").ok().expect("well");
    });
}

fn xrc_01_senders_name_a_queue_with_each_message<F: Fabric>(bed: &Bed<F>) {
    let (mut plain, _peer) = bed.pair(&bed.small());
    let refused = plain.queues().post_inline(&[], to(1), SIGNALED).expect_err("RC names none");
    assert_eq!(refused.cause, PostCause::Malformed);
    if !has(bed) {
        return;
    }
    let (srq, number) = queue(bed, &SrqInit::xrc(4));
    srq.post(&mut vec![bed.filled(8, 0)]).expect("a receive");
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv(), number);
    let at = doorbell_seam::wr::Remote::default();
    for op in [SendOp::Send, SendOp::SendWithImm(1), SendOp::Write(at)] {
        let refused = from.queues().post_inline(&[], op, SIGNALED).expect_err("it names none");
        assert_eq!(refused.cause, PostCause::Malformed);
    }
    let op = SendOp::Xrc { srq: number, op: XrcOp::SendWithImm(0x1234_5678) };
    from.queues().post_inline(&[1], op, SIGNALED).expect("a send");
    let completion = srq.next(SOON).expect("a message").ok().expect("well");
    assert_eq!((completion.imm, completion.bytes()), (Some(0x1234_5678), &[1][..]));
}

fn xrc_01_writes_name_a_queue_too<F: Fabric>(bed: &Bed<F>) {
    if !has(bed) {
        return;
    }
    let rights = doorbell_seam::provider::Access::REMOTE_WRITE;
    let memory = doorbell_cm::Exposed::new(&bed.fabric, 64, rights).expect("memory");
    let (srq, number) = queue(bed, &SrqInit::xrc(4));
    srq.post(&mut vec![bed.filled(8, 7)]).expect("a receive");
    let (mut from, _target) = joined(bed, &QpInit::xrc_recv(), number);
    let op = SendOp::Xrc { srq: number, op: XrcOp::Write(memory.remote(0)) };
    from.queues().post_inline(&[3; 8], op, SIGNALED).expect("a write");
    assert_eq!(sent(&mut from, &srq), Status::Success);
    let op = SendOp::Xrc { srq: number, op: XrcOp::WriteWithImm(memory.remote(8), 99) };
    from.queues().post_inline(&[4; 8], op, SIGNALED).expect("a write");
    let completion = srq.next(SOON).expect("its data").ok().expect("well");
    assert_eq!(completion.opcode, WcOpcode::RecvWriteWithImm);
    assert_eq!((completion.imm, completion.len), (Some(99), 8));
    let mut seen = [0; 16];
    memory.read(0, &mut seen).expect("inside");
    assert_eq!(seen, [[3; 8], [4; 8]].concat()[..]);
    assert_eq!(sent(&mut from, &srq), Status::Success);
}
