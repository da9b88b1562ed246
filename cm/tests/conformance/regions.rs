//! Regions that change: MR-5.

use doorbell_cm::{Exposed, ExposedChange, Fabric, NotChanged, Window};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, ReregFlags, WindowKind};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{Remote, SendFlags, SendOp};

use crate::bed::{Bed, sent};
use crate::harness::{another, skip};

cases! {
    mr_05_other_rights_hold_at_once_and_an_old_key_opens_nothing
    mr_05_a_region_goes_to_another_domain
    mr_05_a_region_goes_to_other_memory
    mr_05_all_changes_at_once
    mr_05_a_change_that_the_device_cannot_make_changes_nothing
    mr_05_memory_in_use_stays
    mr_05_a_region_of_another_device_stays
}

const READ: Access = Access::REMOTE_READ;
const WRITE: Access = Access::REMOTE_WRITE;

fn memory<F: Fabric>(bed: &Bed<F>, rights: Access) -> Exposed<F> {
    Exposed::new(&bed.fabric, 4096, rights).expect("memory")
}

/// True, with the reason printed, if the device cannot make all of these changes.
fn lacks<F: Fabric>(bed: &Bed<F>, wanted: ReregFlags) -> bool {
    let caps = bed.fabric.caps();
    let lacks = !caps.rereg.contains(wanted);
    if lacks {
        skip(&format!("{} cannot change a region by {wanted:?}", caps.device));
    }
    lacks
}

/// The status of a write to that place, over a connection of its own.
fn write_to<F: Fabric>(bed: &Bed<F>, to: Remote) -> Status {
    let (mut one, mut two) = bed.pair(&bed.small());
    one.queues()
        .post_send(bed.filled(64, 7), 64, SendOp::Write(to), SendFlags::SIGNALED)
        .expect("post");
    sent(&mut one, &mut two).status
}

fn read_from<F: Fabric>(bed: &Bed<F>, from: Remote) -> Status {
    let (mut one, mut two) = bed.pair(&bed.small());
    one.queues()
        .post_send(bed.filled(64, 0), 64, SendOp::Read(from), SendFlags::SIGNALED)
        .expect("post");
    sent(&mut one, &mut two).status
}

fn first_bytes<F: Fabric>(memory: &Exposed<F>) -> [u8; 64] {
    let mut bytes = [0; 64];
    memory.read(0, &mut bytes).expect("inside");
    bytes
}

fn mr_05_other_rights_hold_at_once_and_an_old_key_opens_nothing<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed, ReregFlags::CHANGE_ACCESS) {
        return;
    }
    let first = memory(bed, WRITE);
    let old = first.remote(0);
    assert_eq!(write_to(bed, old), Status::Success);
    let change = ExposedChange::new().rights(READ);
    let changed = first.reregister(&bed.fabric, &change).expect("fewer rights");
    let new = changed.remote(0);
    assert_eq!(new.addr, old.addr, "it lies where it lay");
    assert_eq!(write_to(bed, new), Status::RemoteAccess);
    assert_eq!(read_from(bed, new), Status::Success);
    if bed.is_strict() {
        assert_ne!(new.rkey, old.rkey);
    }
    if new.rkey != old.rkey {
        assert_eq!(write_to(bed, old), Status::RemoteAccess);
    }
    assert_eq!(first_bytes(&changed), [7; 64], "its bytes are the same");
    let change = ExposedChange::new().rights(READ | WRITE);
    let again = changed.reregister(&bed.fabric, &change).expect("and more again");
    assert_eq!(write_to(bed, again.remote(0)), Status::Success);
}

fn mr_05_a_region_goes_to_another_domain<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed, ReregFlags::CHANGE_PD) {
        return;
    }
    let there = bed.fabric.alloc_pd().expect("a protection domain");
    let change = ExposedChange::new().pd(&there);
    let moved = memory(bed, WRITE).reregister(&bed.fabric, &change).expect("to that domain");
    assert_eq!(write_to(bed, moved.remote(0)), Status::RemoteAccess);
    let (init, none) = (bed.small(), Default::default());
    let (mut one, mut two) = bed.pair_with(&init, &bed.small().pd(&there), &none, &none);
    let op = SendOp::Write(moved.remote(0));
    one.queues().post_send(bed.filled(64, 7), 64, op, SendFlags::SIGNALED).expect("post");
    sent(&mut one, &mut two).ok().expect("its queue pair is of that domain");
    drop((one, two, change));
    let there = there.dealloc_pd().expect_err("the region is in it").back;
    drop(moved);
    assert!(there.dealloc_pd().is_ok(), "nothing is in it");
}

fn mr_05_a_region_goes_to_other_memory<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed, ReregFlags::CHANGE_TRANSLATION) {
        return;
    }
    let first = memory(bed, WRITE);
    let old = first.remote(0);
    assert_eq!(write_to(bed, old), Status::Success);
    let change = ExposedChange::new().memory(1 << 20);
    let moved = first.reregister(&bed.fabric, &change).expect("more memory");
    assert_eq!((moved.len(), first_bytes(&moved)), (1 << 20, [0; 64]));
    let new = moved.remote(0);
    assert_eq!(write_to(bed, new), Status::Success, "the rights stayed");
    assert_eq!(first_bytes(&moved), [7; 64]);
    assert_eq!(write_to(bed, moved.remote((1 << 20) - 64)), Status::Success);
    if (new.rkey, new.addr) != (old.rkey, old.addr) {
        assert_eq!(write_to(bed, old), Status::RemoteAccess, "the old region is gone");
    }
}

fn mr_05_all_changes_at_once<F: Fabric>(bed: &Bed<F>) {
    if lacks(bed, ReregFlags::all()) {
        return;
    }
    let there = bed.fabric.alloc_pd().expect("a protection domain");
    let (away, home) = (ExposedChange::new().pd(&there), ExposedChange::new().pd(&bed.fabric));
    let moved = memory(bed, READ).reregister(&bed.fabric, &away).expect("away");
    let home = home.memory(64).rights(WRITE);
    let back = moved.reregister(&bed.fabric, &home).expect("home again");
    assert_eq!(write_to(bed, back.remote(0)), Status::Success);
    assert_eq!(read_from(bed, back.remote(0)), Status::RemoteAccess);
    assert_eq!(first_bytes(&back), [7; 64]);
}

/// The refused one, unchanged.
fn still<F: Fabric>(
    bed: &Bed<F>,
    result: Result<Exposed<F>, NotChanged<Exposed<F>>>,
    code: Code,
) -> Exposed<F> {
    let NotChanged { cause, back } = result.expect_err("refused");
    assert_eq!(cause.code(), code, "{cause}");
    let back = back.expect("it comes back");
    assert_eq!(write_to(bed, back.remote(0)), Status::Success, "it is as it was");
    back
}

fn mr_05_a_change_that_the_device_cannot_make_changes_nothing<F: Fabric>(bed: &Bed<F>) {
    let offered = bed.fabric.caps().rereg;
    let mut back = memory(bed, WRITE);
    for change in ReregFlags::all() - offered {
        let asked = match change {
            ReregFlags::CHANGE_PD => ExposedChange::new().pd(&bed.fabric),
            ReregFlags::CHANGE_ACCESS => ExposedChange::new().rights(READ | WRITE),
            _ => ExposedChange::new().memory(8192),
        };
        back = still(bed, back.reregister(&bed.fabric, &asked), Code::NotSupported);
    }
    if offered.is_all() {
        // More than the system has.
        let asked = ExposedChange::new().memory(1 << 60);
        still(bed, back.reregister(&bed.fabric, &asked), Code::NoMemory);
    }
}

fn mr_05_memory_in_use_stays<F: Fabric>(bed: &Bed<F>) {
    let change = ExposedChange::new().rights(READ);
    let first = memory(bed, WRITE | Access::MW_BIND);
    let other = first.clone();
    let first = still(bed, first.reregister(&bed.fabric, &change), Code::Busy);
    drop(other);
    let (mut one, mut two) = bed.pair(&bed.small());
    let mut window = Window::new(&bed.fabric, WindowKind::Two).expect("a window");
    let flags = SendFlags::SIGNALED;
    two.queues().bind_window(&mut window, &first, 0..64, WRITE, flags).expect("post");
    sent(&mut two, &mut one).ok().expect("bound");
    let first = still(bed, first.reregister(&bed.fabric, &change), Code::Busy);
    drop((one, two, window));
    if bed.fabric.caps().rereg.contains(ReregFlags::CHANGE_ACCESS) {
        first.reregister(&bed.fabric, &change).expect("nobody else has it");
    }
}

fn mr_05_a_region_of_another_device_stays<F: Fabric>(bed: &Bed<F>) {
    let Some(other) = another::<F>() else {
        return skip("there is no second device");
    };
    let change = ExposedChange::new().rights(READ);
    still(bed, memory(bed, WRITE).reregister(&other, &change), Code::Invalid);
}
