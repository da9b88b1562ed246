//! Regions that change (MR-5), as the device sees them.

use super::*;
use crate::error::Code;
use crate::provider::{Left, Rereg, ReregFailed, Reregister, Windows};
use crate::wc::Status;

/// The region, unchanged.
fn as_it_was(failed: ReregFailed<SoftRegion>, code: Code) -> (SoftRegion, Option<Mapping>) {
    assert_eq!(failed.cause().code(), code, "{failed}");
    let (_, left, memory) = failed.into_parts();
    let Left::Region(region) = left else { panic!("the region is gone") };
    (region, memory)
}

/// MR-1: rights that exclude each other are refused here too, and the key stays valid.
#[test]
fn mr_5_a_refused_change_leaves_the_region_and_gives_the_memory_back() {
    let (nic, other) = (
        Soft::new("soft0", Host::alone(clock), None),
        Soft::new("soft0", Host::alone(clock), None),
    );
    let region = nic.register(mapping(64), Access::LOCAL_WRITE).unwrap();
    let (key, start) = (region.rkey(), region.as_ptr());
    let wanted = || Rereg {
        memory: Some(mapping(128)),
        access: Some(Access::REMOTE_WRITE),
        ..Rereg::default()
    };
    let failed = nic.reregister(region, wanted()).err().unwrap();
    let (region, memory) = as_it_was(failed, Code::Invalid);
    assert!(memory.unwrap().len() >= 128);
    let failed = other.reregister(region, Rereg::default()).err().unwrap();
    let (region, _) = as_it_was(failed, Code::Invalid);
    let mut others = std::vec![];
    while let Ok(region) = nic.register(mapping(64), Access::empty()) {
        others.push(region);
    }
    let change = Rereg { access: Some(Access::all()), ..wanted() };
    let failed = nic.reregister(region, change).err().unwrap();
    let (region, _) = as_it_was(failed, Code::NoMemory);
    assert_eq!((region.rkey(), region.as_ptr()), (key, start));
    others.pop();
    let change = Rereg { access: Some(Access::all()), ..wanted() };
    let (region, old) = nic.reregister(region, change).unwrap();
    assert_ne!(region.rkey(), key);
    assert_eq!(old.unwrap().as_ptr(), start);
    assert_ne!(region.as_ptr(), start);
}

/// MR-3, MR-5: a receive that was prefetched under a removed key fails its message.
#[test]
fn mr_5_a_receive_under_the_old_key_fails() {
    let (mut one, mut two) = pair(CAPS, false);
    two.recv(1, 0, 64);
    one.send(1, 0, 8, SendFlags::SIGNALED).unwrap();
    let (_, got) = settle(&mut one, &mut two);
    assert_eq!(got[0].status, Status::Success);
    two.recv(2, 0, 64);
    let change = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    let (nic, region) = (two.nic.clone(), two.region);
    let (region, old) = nic.reregister(region, change).unwrap();
    assert!(old.is_none(), "the memory is the same");
    let mut two = End { region, ..two };
    one.send(2, 0, 8, SendFlags::SIGNALED).unwrap();
    let (sent, got) = settle(&mut one, &mut two);
    assert_eq!(got[0].status, Status::LocalProtection);
    assert_eq!(sent[0].status, Status::RemoteOperation);
}

/// MR-5: other rights under the same key hold at once, and the windows on the region close.
#[test]
fn mr_5_other_rights_can_keep_the_key() {
    let signaled = SendFlags::SIGNALED;
    let (mut one, mut two) = pair(CAPS, false);
    let key = two.region.rkey();
    let start = two.region.remote(0);
    let write = |one: &mut End, two: &mut End, at| {
        one.post(1, SendOp::Write(at), one.sge(0, 8), signaled).unwrap();
        settle(one, two).0[0].status
    };
    let window = two.nic.create_window(WindowKind::Two).unwrap();
    let binding = |region, length, rkey| Binding {
        window: window.handle(),
        region,
        addr: if region == 0 { 0 } else { start.addr },
        length,
        access: Access::REMOTE_WRITE,
        rkey,
    };
    let through = Remote { addr: start.addr, rkey: window.rkey() };
    let bind = SendOp::Bind(binding(two.region.handle(), 64, window.rkey()));
    two.post(1, bind, Sge::default(), signaled).unwrap();
    assert_eq!(settle(&mut one, &mut two).1[0].status, Status::Success);
    assert_eq!(write(&mut one, &mut two, through), Status::Success);
    let refused = two.region.change_access(Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused.code(), Code::Invalid);
    assert_eq!(write(&mut one, &mut two, start), Status::Success, "nothing has changed");
    two.region.change_access(Access::all()).unwrap();
    assert_eq!(two.region.rkey(), key);
    assert_eq!(write(&mut one, &mut two, start), Status::Success);
    assert_eq!(write(&mut one, &mut two, through), Status::RemoteAccess, "the window is closed");
    // Closing one needs no region.
    let (mut one, mut two) = (pair_again(one), pair_again(two));
    join(&mut one.qp, &mut two.qp, 7);
    let close = SendOp::Bind(binding(0, 0, window.rkey()));
    two.post(1, close, Sge::default(), signaled).unwrap();
    assert_eq!(settle(&mut one, &mut two).1[0].status, Status::Success);
    two.region.change_access(Access::REMOTE_READ).unwrap();
    assert_eq!(write(&mut one, &mut two, start), Status::RemoteAccess);
}

/// MW-1: a BIND that waits fails if its window goes meanwhile.
#[test]
fn mw_1_a_bind_that_waits_does_not_outlive_its_window() {
    let (mut one, mut two) = pair(CAPS, false);
    let window = two.nic.create_window(WindowKind::Two).unwrap();
    let at = Remote { rkey: window.rkey(), ..two.region.remote(0) };
    let binding = Binding {
        window: window.handle(),
        region: two.region.handle(),
        addr: at.addr,
        length: 64,
        access: Access::REMOTE_WRITE,
        rkey: at.rkey,
    };
    two.qp.pause(false);
    two.post(1, SendOp::Bind(binding), Sge::default(), SendFlags::SIGNALED).unwrap();
    drop(window);
    two.qp.resume();
    assert_eq!(settle(&mut one, &mut two).1[0].status, Status::MwBind);
}

/// The same side with a new queue pair.
fn pair_again(side: End) -> End {
    let qp = make_qp(&side.nic, &side.cq, None, CAPS);
    End { qp, ..side }
}
