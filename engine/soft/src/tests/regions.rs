//! Regions that change (MR-5), as the device sees them.

use super::*;
use crate::error::Code;
use crate::provider::{Left, Rereg, ReregFailed, Reregister};
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
