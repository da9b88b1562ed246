//! Queue pairs with attributes beyond capacities (`ibv_create_qp_ex`): QX.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use doorbell_cm::{
    ExternalQp, Fabric, Id, Join, PortSpace, QpFields, QpInit, QpState, Target, Window,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, AttrMask, CreateFlags, QpType, SendOps, WindowKind};
use doorbell_seam::wr::{PostCause, SendFlags, SendOp};

use crate::bed::{A_WHILE, Bed, received, sent};
use crate::datagrams;
use crate::harness::skip;

cases! {
    qx_01_the_mask_says_which_fields_count
    qx_02_queue_pairs_of_each_type_are_made
    qx_03_with_a_domain_alone_it_is_the_plain_call
    qx_04_fields_have_the_numbers_of_c
    qx_05_each_type_has_a_protection_domain
    qx_06_own_multicast_does_not_come_back
    qx_06_flags_that_do_not_exist_or_fit_are_refused
    qx_10_operations_have_the_bits_of_c
    qx_10_an_operation_not_asked_for_is_refused
    qx_10_windows_are_opened_only_where_that_was_asked_for
    qx_10_datagrams_too_are_refused_where_they_were_not_asked_for
    qx_10_an_operation_that_the_type_lacks_fails_creation
    qx_18_user_data_comes_back
}

/// An external queue pair; `None`, with the reason printed, if the device cannot make it.
pub(crate) fn made<F: Fabric>(bed: &Bed<F>, init: &QpInit<F>) -> Option<ExternalQp<F>> {
    match ExternalQp::new(&bed.fabric, init) {
        Ok(qp) => Some(qp),
        Err(error) if error.code() == Code::NotSupported && !bed.is_strict() => {
            skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The error of a refused queue pair.
pub(crate) fn refusal<F: Fabric>(bed: &Bed<F>, init: &QpInit<F>) -> Code {
    match ExternalQp::new(&bed.fabric, init) {
        Ok(_) => panic!("it was made"),
        Err(error) => error.code(),
    }
}

fn qx_01_the_mask_says_which_fields_count<F: Fabric>(bed: &Bed<F>) {
    let plain = bed.small();
    assert_eq!(plain.comp_mask(), AttrMask::PD);
    let flags = plain.clone().create_flags(CreateFlags::empty());
    assert_eq!(flags.comp_mask(), AttrMask::PD | AttrMask::CREATE_FLAGS);
    let ops = plain.send_ops_flags(SendOps::SEND);
    assert_eq!(ops.comp_mask(), AttrMask::PD | AttrMask::SEND_OPS_FLAGS);
    // A field that counts takes effect, in a copy too; one that does not is ignored.
    let Some(mut qp) = made(bed, &ops.clone()) else { return };
    let mut free = ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair");
    let answer = |qp: &mut ExternalQp<F>| {
        to_err(qp);
        let flags = SendFlags::SIGNALED;
        qp.post_inline(&[1], SendOp::SendWithImm(1), flags).err().map(|failed| failed.cause)
    };
    assert_eq!((answer(&mut qp), answer(&mut free)), (Some(PostCause::NotAsked), None));
}

/// Takes an RC queue pair to ERR, where it accepts sends and flushes them.
fn to_err<F: Fabric>(qp: &mut ExternalQp<F>) {
    let init = QpFields {
        access: Some(Access::empty()),
        pkey_index: Some(0),
        port: Some(1),
        ..QpFields::to(QpState::Init)
    };
    qp.modify(&init).expect("INIT");
    qp.modify(&QpFields::to(QpState::Err)).expect("ERR");
}

fn qx_02_queue_pairs_of_each_type_are_made<F: Fabric>(bed: &Bed<F>) {
    for init in [QpInit::rc(), QpInit::uc(), QpInit::ud()] {
        let qp = ExternalQp::new(&bed.fabric, &init).expect("a type every device has");
        assert_ne!(qp.num(), 0);
    }
    if let Some(qp) = made(bed, &QpInit::raw_packet()) {
        assert_ne!(qp.num(), 0);
    }
}

/// QX-4, with the numbers of the types.
fn qx_04_fields_have_the_numbers_of_c<F: Fabric>(_bed: &Bed<F>) {
    let fields = [
        AttrMask::PD,
        AttrMask::XRCD,
        AttrMask::CREATE_FLAGS,
        AttrMask::MAX_TSO_HEADER,
        AttrMask::IND_TABLE,
        AttrMask::RX_HASH,
        AttrMask::SEND_OPS_FLAGS,
    ];
    for (bit, field) in fields.into_iter().enumerate() {
        assert_eq!(field.bits(), 1 << bit, "{field:?}");
    }
    let types = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket];
    assert_eq!(types.map(|kind| kind as u32), [2, 3, 4, 8]);
}

fn qx_03_with_a_domain_alone_it_is_the_plain_call<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small();
    assert_eq!(init.comp_mask(), AttrMask::PD);
    let (mut one, mut two) = bed.pair(&init);
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    crate::bed::send(&mut one, bed.filled(8, 3));
    assert_eq!(received(&mut two).bytes(), [3; 8]);
    sent(&mut one, &mut two).ok().expect("sent");
}

/// Except for XRC targets, which have a domain in its place.
fn qx_05_each_type_has_a_protection_domain<F: Fabric>(bed: &Bed<F>) {
    let others = [QpInit::<F>::rc(), QpInit::uc(), QpInit::ud(), QpInit::raw_packet()];
    for init in others.into_iter().chain([QpInit::xrc_send()]) {
        assert_eq!(init.comp_mask(), AttrMask::PD);
    }
    assert_eq!(QpInit::<F>::xrc_recv().comp_mask(), AttrMask::XRCD);
    let flags = QpInit::xrc_recv().create_flags(CreateFlags::empty());
    assert_eq!(refusal(bed, &flags), Code::Invalid, "it has a domain, and no other field");
}

fn group(number: u8) -> IpAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    Ipv4Addr::new(239, 140 + number, high, low).into()
}

fn member<F: Fabric>(bed: &Bed<F>, init: &QpInit<F>, group: IpAddr) -> Id<F> {
    let mut id = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    id.create_qp(init).expect("a queue pair");
    id.multicast().join(group, Join::FullMember).expect("join");
    id
}

fn qx_06_own_multicast_does_not_come_back<F: Fabric>(bed: &Bed<F>) {
    let quiet = datagrams::small().create_flags(CreateFlags::BLOCK_SELF_MCAST_LB);
    if made(bed, &quiet).is_none() {
        return;
    }
    let mut one = member(bed, &quiet, group(1));
    let mut two = member(bed, &quiet, group(1));
    let mut plain = member(bed, &datagrams::small(), group(1));
    let target = Target::new(&bed.fabric, &one.ud().expect("joined")).expect("a target");
    for id in [&mut one, &mut two, &mut plain] {
        (0..3).for_each(|_| datagrams::recv(bed, id, 8));
    }
    datagrams::send(&mut one, &target, &[1]);
    assert_eq!(datagrams::payload(&received(&mut two)), [1], "others hear it");
    assert_eq!(datagrams::payload(&received(&mut plain)), [1]);
    thread::sleep(A_WHILE);
    assert!(one.queues().next_recv(Duration::ZERO).is_err(), "its own does not come back");
    datagrams::send(&mut plain, &target, &[2]);
    for id in [&mut one, &mut two, &mut plain] {
        assert_eq!(datagrams::payload(&received(id)), [2], "without the flag it does");
    }
}

fn qx_06_flags_that_do_not_exist_or_fit_are_refused<F: Fabric>(bed: &Bed<F>) {
    for bits in [1, 1 << 5, 1 << 10, 1 << 11, 1 << 31] {
        let flags = CreateFlags::from_bits_retain(bits);
        let init = QpInit::ud().create_flags(flags);
        assert_eq!(refusal(bed, &init), Code::Invalid, "{bits:#x} is no flag");
    }
    let blocks = CreateFlags::BLOCK_SELF_MCAST_LB;
    for flags in [blocks, CreateFlags::SCATTER_FCS, CreateFlags::CVLAN_STRIPPING] {
        for init in [QpInit::rc(), QpInit::uc()] {
            assert_eq!(refusal(bed, &init.create_flags(flags)), Code::Invalid, "{flags:?}");
        }
        if flags != blocks {
            let init = QpInit::ud().create_flags(flags);
            assert_eq!(refusal(bed, &init), Code::Invalid, "{flags:?} is for frames");
        }
    }
}

fn qx_10_operations_have_the_bits_of_c<F: Fabric>(_bed: &Bed<F>) {
    let operations = [
        SendOps::RDMA_WRITE,
        SendOps::RDMA_WRITE_WITH_IMM,
        SendOps::SEND,
        SendOps::SEND_WITH_IMM,
        SendOps::RDMA_READ,
        SendOps::ATOMIC_CMP_AND_SWP,
        SendOps::ATOMIC_FETCH_AND_ADD,
        SendOps::LOCAL_INV,
        SendOps::BIND_MW,
        SendOps::SEND_WITH_INV,
        SendOps::TSO,
        SendOps::FLUSH,
        SendOps::ATOMIC_WRITE,
    ];
    for (bit, operation) in operations.into_iter().enumerate() {
        assert_eq!(operation.bits(), 1 << bit, "{operation:?}");
    }
}

fn qx_10_an_operation_not_asked_for_is_refused<F: Fabric>(bed: &Bed<F>) {
    let (init, offered) = (bed.small().send_ops_flags(SendOps::SEND), bed.fabric.caps().send_ops);
    let there = made(bed, &init).is_some();
    assert_eq!(there, offered.contains(SendOps::SEND), "it differs from the table: {offered:?}");
    if !there {
        return;
    }
    assert!(made(bed, &bed.small().send_ops_flags(offered)).is_some(), "{offered:?}");
    let (mut one, mut two) = bed.pair(&init);
    let flags = SendFlags::SIGNALED;
    let inline = one.queues().post_inline(&[1], SendOp::SendWithImm(7), flags);
    assert_eq!(inline.expect_err("only SEND").cause, PostCause::NotAsked);
    let refused = one.queues().post_send(bed.filled(8, 1), 8, SendOp::SendWithImm(7), flags);
    let refused = refused.expect_err("only SEND");
    assert_eq!((refused.cause, refused.cause.errno()), (PostCause::NotAsked, 22));
    assert!(refused.back.is_some(), "the buffer comes back");
    // In a list, the ones before it are posted.
    let request =
        |byte, op| doorbell_cm::SendRequest { buffer: bed.filled(1, byte), len: 1, op, flags };
    let mut list = vec![
        request(1, SendOp::Send),
        request(2, SendOp::SendWithImm(2)),
        request(3, SendOp::Send),
    ];
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    let error = one.queues().post_sends(&mut list).expect_err("the second was not asked for");
    assert_eq!((error.cause, list.len()), (PostCause::NotAsked, 2));
    assert_eq!(received(&mut two).bytes(), [1]);
    sent(&mut one, &mut two).ok().expect("sent");
}

fn qx_10_windows_are_opened_only_where_that_was_asked_for<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small().send_ops_flags(SendOps::SEND | SendOps::RDMA_WRITE);
    if made(bed, &init).is_none() {
        return;
    }
    let (mut one, _two) = bed.pair(&init);
    let memory = doorbell_cm::Exposed::new(&bed.fabric, 64, Access::MW_BIND).expect("memory");
    for kind in [WindowKind::One, WindowKind::Two] {
        let mut window = Window::new(&bed.fabric, kind).expect("a window");
        let (rights, flags) = (Access::REMOTE_READ, SendFlags::SIGNALED);
        let bound = one.queues().bind_window(&mut window, &memory, 0..64, rights, flags);
        assert_eq!(bound.expect_err("not asked for").cause, PostCause::NotAsked, "{kind:?}");
    }
}

fn qx_10_datagrams_too_are_refused_where_they_were_not_asked_for<F: Fabric>(bed: &Bed<F>) {
    let init = datagrams::small().send_ops_flags(SendOps::SEND);
    if made(bed, &init).is_none() {
        return;
    }
    let mut one = member(bed, &init, group(2));
    let target = Target::new(&bed.fabric, &one.ud().expect("joined")).expect("a target");
    let flags = SendFlags::SIGNALED;
    let inline = one.queues().post_inline_to(&target, &[1], Some(1), flags);
    assert_eq!(inline.expect_err("only SEND").cause, PostCause::NotAsked);
    let refused = one.queues().post_send_to(&target, bed.filled(8, 1), 8, Some(1), flags);
    assert_eq!(refused.expect_err("only SEND").cause, PostCause::NotAsked);
    datagrams::send(&mut one, &target, &[1]);
}

fn qx_10_an_operation_that_the_type_lacks_fails_creation<F: Fabric>(bed: &Bed<F>) {
    let tso = SendOps::SEND | SendOps::TSO;
    for init in [
        QpInit::rc().send_ops_flags(tso),
        QpInit::rc().send_ops_flags(SendOps::FLUSH),
        QpInit::rc().send_ops_flags(SendOps::ATOMIC_WRITE),
        QpInit::uc().send_ops_flags(SendOps::RDMA_READ),
        QpInit::uc().send_ops_flags(SendOps::ATOMIC_FETCH_AND_ADD),
        QpInit::ud().send_ops_flags(SendOps::RDMA_WRITE),
    ] {
        assert_eq!(refusal(bed, &init), Code::NotSupported);
    }
    let unknown = QpInit::rc().send_ops_flags(SendOps::from_bits_retain(1 << 20));
    assert_eq!(refusal(bed, &unknown), Code::Invalid);
}

fn qx_18_user_data_comes_back<F: Fabric>(bed: &Bed<F>) {
    let init = bed.small().context(0x1234_5678_9abc_def0);
    let qp = ExternalQp::new(&bed.fabric, &init).expect("a queue pair");
    assert_eq!(qp.context(), 0x1234_5678_9abc_def0);
    let (one, two) = bed.pair(&init);
    assert_eq!((one.qp_context(), two.qp_context()), (Some(qp.context()), Some(qp.context())));
}
