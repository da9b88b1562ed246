//! Multicast (CM-13, QX-14, UD-1).

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;

use doorbell_cm::{Channel, EventKind, Fabric, Id, Join, PortSpace, Target, UDP_QKEY, UdParam};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Gid, Multicast};
use doorbell_seam::wr::MULTICAST_QPN;

use crate::bed::{A_WHILE, Bed, SOON, event, received};
use crate::datagrams::{bound, payload, recv, send, small};
use crate::harness::skip;

cases! {
    cm_13_joining_says_where_to_send
    cm_13_each_member_gets_a_copy
    cm_13_a_member_that_only_sends_receives_nothing
    cm_13_after_leaving_nothing_comes
    cm_13_an_unknown_group_cannot_be_left
    cm_13_only_bound_ids_of_datagrams_join
    qx_14_a_queue_pair_in_a_group_is_not_destroyed_and_qp_18_keeps_its_handle
    qx_14_a_queue_pair_that_is_dropped_leaves_its_groups
    ud_01_a_queue_pair_is_attached_once
}

/// A group that belongs to this case: cases run side by side.
fn group(number: u8) -> IpAddr {
    let process = std::process::id() as u16;
    let [high, low] = process.to_be_bytes();
    Ipv4Addr::new(239, 100 + number, high, low).into()
}

fn joined<F: Fabric>(bed: &Bed<F>, group: IpAddr, how: Join) -> (Id<F>, UdParam) {
    let mut id = bound(bed, None);
    id.multicast().join(group, how).expect("join");
    let ud = id.ud().expect("the event names a destination");
    (id, ud)
}

fn nothing_comes<F: Fabric>(id: &mut Id<F>) {
    thread::sleep(A_WHILE);
    assert!(id.queues().next_recv(Duration::ZERO).is_err(), "nothing comes");
}

fn cm_13_joining_says_where_to_send<F: Fabric>(bed: &Bed<F>) {
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut id = bound(bed, Some(&channel));
    id.multicast().join(group(0), Join::FullMember).expect("join");
    let event = event::<F>(&channel, EventKind::MulticastJoin);
    let ud = event.ud.expect("the event names a destination");
    assert_eq!((event.key, event.status), (id.key(), 0));
    assert_eq!((ud.qp_num, ud.qkey), (MULTICAST_QPN, UDP_QKEY));
    assert_eq!(id.ud(), Some(ud));
    Target::new(&bed.fabric, &ud).expect("a target");
    id.multicast().leave(group(0)).expect("leave");
    assert!(channel.next(Duration::ZERO).expect("no error").is_none(), "leaving has no event");
}

fn cm_13_each_member_gets_a_copy<F: Fabric>(bed: &Bed<F>) {
    let (mut one, ud) = joined(bed, group(1), Join::FullMember);
    let (mut two, _) = joined(bed, group(1), Join::FullMember);
    let (mut other, _) = joined(bed, group(2), Join::FullMember);
    let target = Target::new(&bed.fabric, &ud).expect("a target");
    for byte in 0..5 {
        for id in [&mut one, &mut two, &mut other] {
            recv(bed, id, 8);
        }
        send(&mut one, &target, &[byte]);
        let came = received(&mut two);
        assert_eq!((payload(&came), came.src_qp), (&[byte][..], one.qp().expect("made").0));
        if bed.is_strict() {
            assert_eq!(payload(&received(&mut one)), [byte], "its own too");
        }
    }
    nothing_comes(&mut other);
}

fn cm_13_a_member_that_only_sends_receives_nothing<F: Fabric>(bed: &Bed<F>) {
    let (mut one, ud) = joined(bed, group(3), Join::SendOnly);
    let (mut two, _) = joined(bed, group(3), Join::FullMember);
    let target = Target::new(&bed.fabric, &ud).expect("a target");
    recv(bed, &mut one, 8);
    recv(bed, &mut two, 8);
    send(&mut one, &target, &[1]);
    assert_eq!(payload(&received(&mut two)), [1]);
    nothing_comes(&mut one);
}

fn cm_13_after_leaving_nothing_comes<F: Fabric>(bed: &Bed<F>) {
    let (mut one, ud) = joined(bed, group(4), Join::FullMember);
    let (mut two, _) = joined(bed, group(4), Join::FullMember);
    two.multicast().leave(group(4)).expect("leave");
    let target = Target::new(&bed.fabric, &ud).expect("a target");
    recv(bed, &mut two, 8);
    send(&mut one, &target, &[1]);
    nothing_comes(&mut two);
    two.multicast().join(group(4), Join::FullMember).expect("join again");
    let target = Target::new(&bed.fabric, &ud).expect("a target");
    send(&mut one, &target, &[2]);
    assert_eq!(payload(&received(&mut two)), [2]);
}

fn cm_13_an_unknown_group_cannot_be_left<F: Fabric>(bed: &Bed<F>) {
    let (mut one, _) = joined(bed, group(5), Join::FullMember);
    let error = one.multicast().leave(group(6)).expect_err("it is in another");
    assert_eq!(error.code(), Code::AddrNotAvailable, "{error}");
    one.multicast().leave(group(5)).expect("leave");
    let error = one.multicast().leave(group(5)).expect_err("it has left");
    assert_eq!(error.code(), Code::AddrNotAvailable, "{error}");
}

fn cm_13_only_bound_ids_of_datagrams_join<F: Fabric>(bed: &Bed<F>) {
    let join = |id: &mut Id<F>| {
        let error = id.multicast().join(group(7), Join::FullMember).expect_err("it may not");
        assert_eq!(error.code(), Code::Invalid, "{error}");
    };
    let mut id = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    join(&mut id);
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    join(&mut id);
    let mut id = bound(bed, None);
    let error = id.multicast().join(bed.at(0).ip(), Join::FullMember).expect_err("no group");
    assert_eq!(error.code(), Code::Invalid, "{error}");
    // It may join once its address is resolved, even if that is the group's.
    let mut id = Id::create(&bed.fabric, None, PortSpace::Udp).expect("an id");
    let to = std::net::SocketAddr::new(group(7), 0);
    id.resolve_addr(Some(bed.at(0)), to, SOON).expect("resolve the group");
    id.create_qp(&small()).expect("a queue pair");
    id.multicast().join(group(7), Join::FullMember).expect("join");
}

fn qx_14_a_queue_pair_in_a_group_is_not_destroyed_and_qp_18_keeps_its_handle<F: Fabric>(
    bed: &Bed<F>,
) {
    let (mut one, ud) = joined(bed, group(8), Join::FullMember);
    assert_eq!(one.destroy_qp().expect_err("in a group").code(), Code::Busy);
    let target = Target::new(&bed.fabric, &ud).expect("a target");
    send(&mut one, &target, &[1]);
    one.multicast().leave(group(8)).expect("leave");
    one.destroy_qp().expect("in none");
    assert_eq!(one.destroy_qp().expect_err("there is none").code(), Code::Invalid);
}

/// Otherwise the queue pair, and the device with it, would stay for ever (QP-18).
fn qx_14_a_queue_pair_that_is_dropped_leaves_its_groups<F: Fabric>(bed: &Bed<F>) {
    for _ in 0..3 {
        let (mut one, ud) = joined(bed, group(9), Join::FullMember);
        let (two, _) = joined(bed, group(9), Join::FullMember);
        let target = Target::new(&bed.fabric, &ud).expect("a target");
        drop(two);
        send(&mut one, &target, &[1]);
    }
}

/// Calls `ibv_attach_mcast` by hand for the queue pair of an id.
fn ud_01_a_queue_pair_is_attached_once<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("a kernel wants to know the group's own form of address");
    }
    use doorbell_cm::{CmId, QpAttr, QpAttrEx};
    use doorbell_seam::provider::{QpCaps, QpType, Sharing};
    let mut id = bed.fabric.create_id(None, PortSpace::Udp).expect("an id");
    id.bind(bed.at(0)).expect("bind");
    let (cq, _poller) = bed.fabric.create_cq(16, Sharing::Shared).expect("a completion queue");
    let caps = QpCaps { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 0 };
    let (kind, signal_all) = (QpType::Ud, false);
    let attr = QpAttr {
        kind,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        caps,
        signal_all,
        ex: QpAttrEx::default(),
    };
    let mut qp = id.create_qp(&bed.fabric, &attr).expect("a queue pair");
    let gid = Gid([0xff; 16]);
    qp.attach_mcast(gid).expect("attach");
    qp.attach_mcast(gid).expect("once more is no error");
    qp.detach_mcast(gid).expect("detach");
    assert_eq!(qp.detach_mcast(gid).expect_err("it is in none").code(), Code::Invalid);
    assert_eq!(qp.attach_mcast(Gid([1; 16])).expect_err("no group").code(), Code::Invalid);
}
