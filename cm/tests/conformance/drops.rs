//! Objects may be dropped in any order: nothing hangs, and nothing is left behind.

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};

use doorbell_cm::{
    Buffer, CompletionQueue, ConnParam, EventKind, Exposed, ExternalQp, Fabric, Id, Join,
    PortSpace, SharedReceive, Target, Window,
};
use doorbell_seam::provider::{Access, WindowKind};
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::bed::{Bed, SOON, event, send_inline};
use crate::datagrams;
use crate::harness::{on_toy, skip};
use crate::ids::{listening, ready};
use crate::many::leaves_nothing;
use crate::processes::peer;

cases! {
    ep_12_and_qx_15_everything_may_be_dropped_in_any_order
}

/// Runs in a process of its own, whose files and objects are counted.
fn ep_12_and_qx_15_everything_may_be_dropped_in_any_order<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("the threads of the toy wire give their files back a little later");
    }
    peer("drop", bed.at(0)).ends_well();
}

/// The same orders in each run, so that one that hangs hangs again.
pub(crate) struct Orders(pub(crate) u64);

impl Orders {
    /// A number below `limit`.
    pub(crate) fn next(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

pub(crate) fn in_any_order<F: Fabric>(bed: &Bed<F>) {
    let mut orders = Orders(0x9e37_79b9_7f4a_7c15);
    let rounds = if bed.is_strict() { 400 } else { 60 };
    leaves_nothing(bed, rounds, |bed| {
        let mut all = everything(bed);
        while !all.is_empty() {
            drop(all.swap_remove(orders.next(all.len())));
        }
    });
}

type All = Vec<Box<dyn Any>>;

/// One object of each kind; they use each other as far as possible.
fn everything<F: Fabric>(bed: &Bed<F>) -> All {
    let mut all: All = vec![Box::new(bed.fabric.clone())];
    connected(bed, &mut all);
    unconnected(bed, &mut all);
    all
}

/// A connection on a completion queue and a shared receive queue, with requests in flight, memory
/// that the peer reads, and a window; and a request that nobody has answered.
fn connected<F: Fabric>(bed: &Bed<F>, all: &mut All) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let cq = CompletionQueue::new(&bed.fabric, 64).expect("a completion queue");
    let srq = SharedReceive::new(&bed.fabric, 8).expect("a shared receive queue");
    let init = bed.small().recv_cq(&cq).srq(&srq);
    let (listener, addr) = listening(bed, &there);
    let mut ids = [ready(bed, &here, addr), ready(bed, &here, addr)];
    let mut requests = ids.each_mut().map(|id| {
        id.connect(&ConnParam::default()).expect("connect");
        event::<F>(&there, EventKind::ConnectRequest)
    });
    let asked = requests[0].request.take().expect("its id");
    let mut two = Id::of_request(&bed.fabric, asked);
    two.create_qp(&init).expect("a queue pair");
    two.accept(&ConnParam::default()).expect("accept");
    event::<F>(&here, EventKind::Established);
    let one = &mut ids[0];
    srq.post(&mut bed.numbered(2)).expect("receives");
    one.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    cq.arm(false).expect("arm");
    send_inline(one, &[1]);
    let memory = Exposed::new(&bed.fabric, 64, Access::all()).expect("memory");
    let read = SendOp::Read(memory.remote(0));
    one.queues().post_send(bed.filled(8, 0), 8, read, SendFlags::SIGNALED).expect("a read");
    let mut window = Window::new(&bed.fabric, WindowKind::Two).expect("a window");
    let rights = Access::REMOTE_READ;
    two.queues()
        .bind_window(&mut window, &memory, 0..8, rights, SendFlags::SIGNALED)
        .expect("bind");
    for id in ids {
        all.push(Box::new(id));
    }
    for request in requests {
        all.push(Box::new(request));
    }
    all.extend([Box::new(here) as Box<dyn Any>, Box::new(there), Box::new(listener)]);
    all.extend([Box::new(two) as Box<dyn Any>, Box::new(cq), Box::new(srq), Box::new(init)]);
    all.extend([Box::new(memory) as Box<dyn Any>, Box::new(window)]);
}

/// A group member with its path and datagrams in flight, an external queue pair, a buffer, a
/// synchronous id.
fn unconnected<F: Fabric>(bed: &Bed<F>, all: &mut All) {
    let group: IpAddr = Ipv4Addr::new(239, 99, 1, 1).into();
    let mut member = datagrams::bound(bed, None);
    member.multicast().join(group, Join::FullMember).expect("join");
    let target = Target::new(&bed.fabric, &member.ud().expect("where")).expect("a target");
    datagrams::recv(bed, &mut member, 8);
    member
        .queues()
        .post_send_to(&target, bed.filled(8, 1), 8, None, SendFlags::SIGNALED)
        .expect("a datagram");
    let own = ExternalQp::new(&bed.fabric, &bed.small()).expect("a queue pair");
    let buffer = Buffer::new(&bed.fabric, 64).expect("a buffer");
    let mut id = Id::create(&bed.fabric, None, PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, bed.at(7), SOON).expect("resolve the address");
    id.create_srq(4).expect("a shared receive queue");
    id.create_qp(&bed.small()).expect("a queue pair");
    all.extend([Box::new(member) as Box<dyn Any>, Box::new(target), Box::new(own)]);
    all.extend([Box::new(buffer) as Box<dyn Any>, Box::new(id)]);
}
