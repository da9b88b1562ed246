//! Rare capabilities under the wrapper: calls pass through it to the device, a trace records them,
//! legal faults happen to them, and a planted mistake shows.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(unsafe_code, reason = "posts requests without buffers of their own")]

use std::sync::Arc;

use doorbell_alloc::Mapping;
use doorbell_seam::error::Code;
use doorbell_seam::event::AsyncEvent;
use doorbell_seam::prng::Prng;
use doorbell_seam::provider::call::{Command, Lane};
use doorbell_seam::provider::fault::{Fault, FaultCq, FaultQp, Odds, Plant};
use doorbell_seam::provider::trace::Trace;
use doorbell_seam::provider::{
    Access, AsyncEvents, CqInit, ExtendedCq, Gid, Multicast, Poller, PollerEx, Ports,
    ProtectionDomains, Provider, Qp, QpCaps, QpType, Region, Rereg, Reregister, ResizeCq, Sharing,
    Srq, SrqLimits, ThreadDomains, WcFields, Window, WindowKind, Windows, Xrc, XrcSrq,
};
use doorbell_seam::wc::Wc;
use doorbell_seam::wr::{Binding, PostCause, RecvWr, SendFlags, SendOp, SendWr, Sge};
use doorbell_soft::{Host, LINK_BYTES, LinkShared, Soft, SoftQpEx, SoftQpInit, Wiring};

type Device = Fault<Trace<Soft>>;

const GROUP: Gid = Gid([0xff, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
const FIELDS: WcFields = WcFields::QP_NUM.union(WcFields::BYTE_LEN);

/// A device that records its calls, with faults above it.
fn device(odds: Odds, plant: Option<Plant>) -> Device {
    let soft = Soft::new("soft0", Host::alone(|| 0), None);
    Fault::new(Trace::new(soft), Prng::new(7), odds, plant)
}

/// A device with a queue pair whose completions go to an extended queue.
struct Side {
    device: Device,
    cq: FaultCq<Trace<Soft>>,
    reader: <Device as ExtendedCq>::PollerEx,
    qp: FaultQp<Trace<Soft>>,
    region: <Device as Provider>::Region,
}

fn side(odds: Odds, plant: Option<Plant>) -> Side {
    let device = device(odds, plant);
    let init = CqInit { fields: FIELDS, ..CqInit::new(1024) };
    let (cq, reader) = device.create_cq_ex(&init).unwrap();
    let caps = QpCaps { send_wr: 512, recv_wr: 512, send_sge: 1, recv_sge: 1, inline: 64 };
    let traced = device.inner();
    let (send_cq, recv_cq) = (cq.inner().inner(), cq.inner().inner());
    let ex = SoftQpEx::default();
    let init =
        SoftQpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, caps, signal_all: false, ex };
    let qp = traced.inner().create_qp(&init).unwrap();
    let qp = device.wrap(traced.wrap(qp, cq.inner()), &cq);
    let region = device.register(Mapping::plain(4096).unwrap(), Access::all()).unwrap();
    Side { device, cq, reader, qp, region }
}

/// Two connected sides.
fn pair(odds: Odds, plant: Option<Plant>) -> [Side; 2] {
    let sides = [side(odds, plant), side(odds, plant)];
    let (one, two) = LinkShared::pair(Mapping::plain(LINK_BYTES).unwrap()).unwrap();
    for (n, link) in [Arc::new(one), Arc::new(two)].into_iter().enumerate() {
        let control = sides[n].qp.inner().inner().control();
        control.attach(&link);
        let peer = sides[1 - n].qp.num();
        let wiring = Wiring {
            peer,
            peer_rnr_retry: 7,
            rnr_timer_ns: 0,
            initiator_depth: 4,
            responder_depth: 4,
        };
        control.connect(&link, wiring);
    }
    sides
}

impl Side {
    /// Binds a window over the whole region, and returns the key.
    fn bind(&mut self, window: &mut <Device as Windows>::Window) -> Result<u32, PostCause> {
        let binding = Binding {
            window: window.handle(),
            region: self.region.handle(),
            addr: self.region.as_ptr() as u64,
            length: self.region.len() as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            rkey: 0,
        };
        // SAFETY: the region lives as long as the side.
        let bound = unsafe { window.bind(&mut self.qp, binding, 1, SendFlags::empty()) };
        bound.map_err(|error| error.cause)
    }
}

/// Sends that many messages over an extended queue; the completions that `next` gives for them.
fn crossed(messages: usize, odds: Odds, plant: Option<Plant>) -> Vec<(u64, Option<u32>)> {
    let [mut one, mut two] = pair(odds, plant);
    for wr_id in 0..messages as u64 {
        let sge = Sge { addr: two.region.as_ptr() as u64, length: 8, lkey: two.region.lkey() };
        // SAFETY: the region lives as long as the side, and nobody else uses it.
        unsafe { two.qp.post_recv(&[RecvWr { wr_id, sge }]) }.unwrap();
        let (op, flags) = (SendOp::Send, SendFlags::INLINE);
        let wr = SendWr { wr_id, op, flags, sge: Sge::inline(&[0; 8]), more: &[] };
        // SAFETY: the payload is inline.
        unsafe { one.qp.post(&[wr]) }.unwrap();
    }
    let mut came = Vec::new();
    for _ in 0..messages * 8 {
        came.extend(two.reader.next().map(|wc| (wc.wr_id, wc.byte_len)));
        let _ = one.reader.next();
    }
    came
}

#[test]
fn an_extended_queue_is_read_through_the_wrapper() {
    let all: Vec<_> = (0..200).map(|wr_id| (wr_id, Some(8))).collect();
    let legal = Odds { empty_poll: 200, doze: 1, ..Odds::default() };
    assert_eq!(crossed(200, Odds::default(), None), all);
    assert_eq!(crossed(200, legal, None), all);
    assert!(crossed(200, Odds::default(), Some(Plant::DoubledNext)).len() > 200);
    // What a poll holds back comes before what `next` finds, and only once.
    let [one, mut two] = pair(Odds { short_poll: 1024, ..Odds::default() }, None);
    drop(one);
    two.qp.fail();
    for wr_id in 0..40 {
        let sge = Sge { addr: 0, length: 0, lkey: 0 };
        // SAFETY: the receive has no bytes.
        unsafe { two.qp.post_recv(&[RecvWr { wr_id, sge }]) }.unwrap();
    }
    let mut came = Vec::new();
    for _ in 0..200 {
        let mut out = [Wc::default(); 4];
        let count = two.reader.poll(&mut out);
        came.extend(out[..count].iter().map(|wc| wc.wr_id));
        came.extend(two.reader.next().map(|wc| wc.wr_id));
    }
    assert_eq!(came, (0..40).collect::<Vec<_>>());
}

#[test]
fn a_window_is_bound_through_the_wrapper() {
    let bound = |odds, plant| {
        let [mut one, _two] = pair(odds, plant);
        let mut window = one.device.create_window(WindowKind::One).unwrap();
        let keys: Vec<_> =
            (0..200).map(|_| one.bind(&mut window).map(|key| key == window.rkey())).collect();
        let traced = one.device.inner().take_passed();
        let binds = traced.iter().filter(|passed| passed.lane == Lane::Bind).count();
        assert_eq!(binds, keys.iter().filter(|key| key.is_ok()).count());
        keys
    };
    assert_eq!(bound(Odds::default(), None), vec![Ok(true); 200]);
    let full = Odds { partial_post: 1024, ..Odds::default() };
    assert_eq!(bound(full, None), vec![Err(PostCause::Full); 200]);
    assert!(bound(Odds::default(), Some(Plant::WrongKey)).contains(&Ok(false)));
}

/// Changes objects in every way; the changes that did not happen although the call succeeded.
fn lost_changes(odds: Odds, plant: Option<Plant>) -> Result<Vec<Command>, Code> {
    let Side { device, cq, mut qp, mut region, .. } = side(odds, plant);
    let srq = device.create_srq(16).unwrap();
    let mut lost = Vec::new();
    let mut made = |command: Command, happened: bool| {
        if !happened {
            lost.push(command);
        }
    };
    for round in 0..100 {
        srq.set_limit(1 + round % 8).map_err(|error| error.code())?;
        made(Command::SetSrqLimit, srq.limit() == Ok(1 + round % 8));
        srq.resize(16 + round).map_err(|error| error.code())?;
        made(Command::ResizeSrq, srq.depth() == 16 + round);
        // The device refuses this: the queue pair is no UD one.
        made(Command::AttachMcast, qp.attach_mcast(GROUP).is_err());
        made(Command::DetachMcast, qp.detach_mcast(GROUP).is_err());
        device.resize_cq(&cq, 1024 + round).map_err(|error| error.code())?;
        let access = if round % 2 == 0 { Access::LOCAL_WRITE } else { Access::all() };
        let before = region.rkey();
        let change = Rereg { access: Some(access), ..Rereg::default() };
        region = match device.reregister(region, change) {
            Ok((region, _)) => region,
            Err(failed) => return Err(failed.cause().code()),
        };
        made(Command::Reregister, region.rkey() != before);
    }
    let commands = device.inner().take_commands();
    assert!(plant.is_some() || commands.len() == 600, "{} commands", commands.len());
    Ok(lost)
}

#[test]
fn objects_are_changed_through_the_wrapper() {
    assert_eq!(lost_changes(Odds::default(), None), Ok(Vec::new()));
    let refuse = Odds { refuse_command: 1024, ..Odds::default() };
    assert_eq!(lost_changes(refuse, None), Err(Code::NoMemory));
    let lost = lost_changes(Odds::default(), Some(Plant::LostCommand)).unwrap();
    for command in [
        Command::SetSrqLimit,
        Command::ResizeSrq,
        Command::AttachMcast,
        Command::DetachMcast,
        Command::Reregister,
    ] {
        assert!(lost.contains(&command), "{command:?} is never lost");
    }
}

/// What makes objects, or asks about them, reaches the device inside.
#[test]
fn the_device_answers_through_the_wrapper() {
    let device = device(Odds { refuse_command: 1024, ..Odds::default() }, None);
    let soft = device.inner().inner();
    assert_eq!(device.query_port(1).unwrap().state, soft.query_port(1).unwrap().state);
    assert_eq!(device.query_gid(1, 0), soft.query_gid(1, 0));
    assert_eq!(device.query_pkey(1, 0), soft.query_pkey(1, 0));
    assert_eq!(device.query_port(9).unwrap_err().code(), Code::Invalid);
    let other = device.alloc_pd().unwrap();
    assert!(device.is_same_device(&other) && other.inner().inner().pd_users() == 1);
    assert_eq!(other.pd_users(), 1);
    // SAFETY: nobody posts to anything here.
    let td = unsafe { device.alloc_td() }.unwrap();
    let parent = device.alloc_parent_domain(Some(&td)).unwrap();
    assert!(Device::td_users(&td) == 2 && parent.is_same_device(&device));
    assert_eq!(device.async_fd(), soft.async_fd());
    let (cq, mut poller) = device.create_cq_on(8, Sharing::Shared, 0).unwrap();
    assert!(device.create_cq_on(8, Sharing::Shared, 99).is_err());
    assert_eq!(device.cq_id(&cq), soft.cq_id(cq.inner().inner()));
    assert_eq!(poller.poll(&mut [Wc::default()]), 0);
    let xrcd = device.default_xrcd().unwrap();
    assert!(device.open_xrcd().is_ok());
    let srq = device.create_xrc_srq(&xrcd, &cq, 8).unwrap();
    assert!(srq.number().is_some());
    assert_eq!(device.create_srq(8).unwrap().number(), None);
    assert_eq!(device.next_async_event(), None::<AsyncEvent>);
}
