//! Memory windows: MW-1, MW-2, RC-5.

use std::ops::Range;

use doorbell_cm::{Completion, Exposed, Fabric, Id, Window};
use doorbell_seam::provider::{Access, WindowKind};
use doorbell_seam::wc::{Status, WcOpcode};
use doorbell_seam::wr::{PostCause, Remote, SendFlags, SendOp};

use crate::bed::{Bed, received, sent};
use crate::harness::skip;

cases! {
    mw_01_type_2_opens_and_local_invalidation_closes
    mw_01_type_1_opens_under_a_new_key_and_closes_without_bytes
    mw_01_only_the_bytes_and_rights_it_was_bound_with
    mw_01_binding_needs_rights_and_bounds_of_the_region
    mw_01_type_2_is_for_the_peer_of_its_queue_pair
    mw_01_type_2_ends_with_its_queue_pair
    mw_02_only_an_open_window_of_type_2_is_invalidated
    rc_05_a_send_with_invalidate_closes_before_it_is_heard
    rc_05_a_key_that_is_none_of_its_windows_ends_the_connection
    mw_01_dropping_a_window_closes_it
    mr_04_a_window_keeps_its_memory
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const WRITE: Access = Access::REMOTE_WRITE;

fn memory<F: Fabric>(bed: &Bed<F>) -> Exposed<F> {
    // Peers reach it only through windows.
    Exposed::new(&bed.fabric, 4096, Access::MW_BIND | Access::LOCAL_WRITE).expect("memory")
}

fn window<F: Fabric>(bed: &Bed<F>, kind: WindowKind) -> Window<F> {
    Window::new(&bed.fabric, kind).expect("a window")
}

/// Binds a window of the second side; returns what the first side is told.
pub(crate) fn bind<F: Fabric>(
    (one, two): (&mut Id<F>, &mut Id<F>),
    window: &mut Window<F>,
    memory: &Exposed<F>,
    range: Range<usize>,
    rights: Access,
) -> Remote {
    let remote = two.queues().bind_window(window, memory, range, rights, SIGNALED).expect("post");
    let done = sent(two, one).ok().expect("bound");
    assert_eq!(done.opcode, WcOpcode::Bind);
    remote
}

fn write<F: Fabric>(
    bed: &Bed<F>,
    (one, two): (&mut Id<F>, &mut Id<F>),
    to: Remote,
    len: usize,
) -> Completion<F> {
    one.queues().post_send(bed.filled(len, 7), len, SendOp::Write(to), SIGNALED).expect("post");
    sent(one, two)
}

fn bytes<F: Fabric>(memory: &Exposed<F>, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).expect("inside");
    bytes
}

fn mw_01_type_2_opens_and_local_invalidation_closes<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 64..192, WRITE);
    write(bed, (&mut one, &mut two), to, 128).ok().expect("it is open");
    assert_eq!(bytes(&memory, 64, 128), [7; 128]);
    two.queues().invalidate(to.rkey, SIGNALED | SendFlags::FENCE).expect("post");
    let done = sent(&mut two, &mut one).ok().expect("closed");
    assert_eq!(done.opcode, WcOpcode::LocalInv);
    let refused = write(bed, (&mut one, &mut two), to, 8);
    assert_eq!(refused.status, Status::RemoteAccess);
}

fn mw_01_type_1_opens_under_a_new_key_and_closes_without_bytes<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::One);
    let first = bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    write(bed, (&mut one, &mut two), first, 64).ok().expect("it is open");
    let second = bind((&mut one, &mut two), &mut window, &memory, 64..128, WRITE);
    assert_ne!(first.rkey, second.rkey, "each binding has a key of its own");
    write(bed, (&mut one, &mut two), second, 64).ok().expect("it is open");
    let none = bind((&mut one, &mut two), &mut window, &memory, 0..0, Access::empty());
    let closed = Remote { rkey: none.rkey, ..second };
    assert_eq!(write(bed, (&mut one, &mut two), closed, 8).status, Status::RemoteAccess);
}

fn mw_01_only_the_bytes_and_rights_it_was_bound_with<F: Fabric>(bed: &Bed<F>) {
    // This device does not check a window's own bounds (R7).
    let offsets = if bed.is_strict() { vec![(-1, 8), (57, 8), (64, 1)] } else { Vec::new() };
    for (offset, len) in offsets {
        let (mut one, mut two) = bed.pair(&bed.small());
        let memory = memory(bed);
        let mut window = window(bed, WindowKind::Two);
        let to = bind((&mut one, &mut two), &mut window, &memory, 64..128, WRITE);
        let beside = Remote { addr: to.addr.wrapping_add_signed(offset), ..to };
        let refused = write(bed, (&mut one, &mut two), beside, len);
        assert_eq!(refused.status, Status::RemoteAccess, "{offset}");
        assert_eq!(bytes(&memory, 0, 256), [0; 256]);
    }
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 64..128, Access::REMOTE_READ);
    one.queues().post_send(bed.filled(8, 7), 8, SendOp::Read(to), SIGNALED).expect("post");
    sent(&mut one, &mut two).ok().expect("it may be read");
    assert_eq!(write(bed, (&mut one, &mut two), to, 8).status, Status::RemoteAccess);
}

fn mw_01_binding_needs_rights_and_bounds_of_the_region<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let closed = Exposed::new(&bed.fabric, 4096, WRITE).expect("memory without MW_BIND");
    let mut window = window(bed, WindowKind::Two);
    let beyond = two.queues().bind_window(&mut window, &memory(bed), 4095..4097, WRITE, SIGNALED);
    assert_eq!(beyond.expect_err("past the end").cause, PostCause::BeyondBuffer);
    two.queues().bind_window(&mut window, &closed, 0..64, WRITE, SIGNALED).expect("post");
    let failed = sent(&mut two, &mut one);
    // Soft-RoCE has one status for all errors of a local request.
    let legal = [Status::MwBind, Status::LocalQpOperation];
    assert!(legal.contains(&failed.status), "{:?}", failed.status);
    if bed.is_strict() {
        assert_eq!(failed.status, Status::MwBind);
    }
}

fn mw_01_type_2_is_for_the_peer_of_its_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let (mut other, mut another) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    let refused = write(bed, (&mut other, &mut another), to, 8);
    assert_eq!(refused.status, Status::RemoteAccess);
    write(bed, (&mut one, &mut two), to, 8).ok().expect("its own peer may");
}

fn mw_02_only_an_open_window_of_type_2_is_invalidated<F: Fabric>(bed: &Bed<F>) {
    for kind in [None, Some(WindowKind::One), Some(WindowKind::Two)] {
        let (mut one, mut two) = bed.pair(&bed.small());
        let memory = memory(bed);
        let mut window = kind.map(|kind| window(bed, kind));
        let rkey = match &mut window {
            None => memory.remote(0).rkey,
            Some(window) if window.kind() == WindowKind::One => {
                bind((&mut one, &mut two), window, &memory, 0..64, WRITE).rkey
            }
            // Never bound.
            Some(window) => window.rkey(),
        };
        if !bed.is_strict() && kind != Some(WindowKind::One) {
            // Soft-RoCE closes whole regions as well, and windows that are closed already.
            continue;
        }
        two.queues().invalidate(rkey, SIGNALED).expect("post");
        let failed = sent(&mut two, &mut one);
        assert!(!failed.status.is_ok(), "{kind:?}");
    }
}

fn rc_05_a_send_with_invalidate_closes_before_it_is_heard<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    write(bed, (&mut one, &mut two), to, 64).ok().expect("it is open");
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    one.queues().post_inline(&[5; 8], SendOp::SendWithInv(to.rkey), SIGNALED).expect("post");
    let got = received(&mut two);
    assert_eq!((got.bytes(), got.imm), (&[5; 8][..], None));
    if bed.is_strict() {
        // Soft-RoCE passes the kernel's flag on, which has another number.
        assert_eq!(got.invalidated, Some(to.rkey));
    }
    sent(&mut one, &mut two).ok().expect("sent");
    assert_eq!(write(bed, (&mut one, &mut two), to, 8).status, Status::RemoteAccess);
}

fn rc_05_a_key_that_is_none_of_its_windows_ends_the_connection<F: Fabric>(bed: &Bed<F>) {
    if !bed.is_strict() {
        return skip("this device passes over keys it does not know");
    }
    let (mut one, mut two) = bed.pair(&bed.small());
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    one.queues().post_inline(&[5; 8], SendOp::SendWithInv(0x0012_3456), SIGNALED).expect("post");
    assert_eq!(sent(&mut one, &mut two).status, Status::RemoteAccess);
}

fn mw_01_dropping_a_window_closes_it<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    drop(window);
    assert_eq!(write(bed, (&mut one, &mut two), to, 8).status, Status::RemoteAccess);
}

fn mr_04_a_window_keeps_its_memory<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&bed.small());
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let to = bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    // The device could not let go of it; here nobody can ask it to.
    drop(memory);
    write(bed, (&mut one, &mut two), to, 64).ok().expect("it is open");
}

/// When the queue pair goes, some devices wait for the window, which nobody would ever close.
fn mw_01_type_2_ends_with_its_queue_pair<F: Fabric>(bed: &Bed<F>) {
    let memory = memory(bed);
    let mut window = window(bed, WindowKind::Two);
    let (mut one, mut two) = bed.pair(&bed.small());
    bind((&mut one, &mut two), &mut window, &memory, 0..64, WRITE);
    two.queues().invalidate(window.rkey(), SIGNALED).expect("close it");
    sent(&mut two, &mut one).ok().expect("closed");
    // A window opened on another queue pair belongs to that one.
    let (mut left, mut right) = bed.pair(&bed.small());
    let to = bind((&mut left, &mut right), &mut window, &memory, 0..64, WRITE);
    drop((one, two));
    write(bed, (&mut left, &mut right), to, 8).ok().expect("it is open");
    drop(right);
    let (mut other, mut last) = bed.pair(&bed.small());
    let refused = last.queues().bind_window(&mut window, &memory, 0..64, WRITE, SIGNALED);
    assert_eq!(refused.expect_err("its queue pair is gone").cause, PostCause::Device(22));
    bind((&mut other, &mut last), &mut self::window(bed, WindowKind::Two), &memory, 0..64, WRITE);
}
