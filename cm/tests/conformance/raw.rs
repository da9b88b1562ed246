//! Mistakes that the safe layer rules out, made on the device below it: keys, bounds, rights, and
//! garbage in undefined fields.
#![expect(unsafe_code, reason = "posts requests with wrong keys")]

use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{AddrInfo, CmId, ConnParam, Fabric, Hints, QpAttr, QpAttrEx};
use doorbell_seam::provider::{Access, Poller, Qp, QpCaps, QpType, Region, Sharing};
use doorbell_seam::wc::{Status, Wc};
use doorbell_seam::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::bed::{A_WHILE, Bed, SOON};

cases! {
    mr_01_remote_write_needs_local_write
    ck_01_a_send_under_a_wrong_key_fails_alone
    mr_02_a_send_past_its_region_fails_alone
    mr_02_a_read_into_a_read_only_region_fails_alone
    ck_01_a_receive_under_a_wrong_key_fails_both_sides
    ck_01_a_receive_into_a_read_only_region_fails_both_sides
    mr_03_a_stale_key_fails
    qx_17_a_destroyed_queue_pair_completes_nothing_more
}

/// A side below the safe layer: id, queue pair, reader of its one completion queue.
struct Side<F: Fabric> {
    qp: F::Qp,
    poller: F::Poller,
    _id: F::Id,
}

const CAPS: QpCaps = QpCaps { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 16 };

fn side<F: Fabric>(bed: &Bed<F>, mut id: F::Id) -> Side<F> {
    let (cq, poller) = bed.fabric.create_cq(16, Sharing::Shared).expect("a completion queue");
    let attr = QpAttr {
        kind: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        caps: CAPS,
        signal_all: true,
        ex: QpAttrEx::default(),
    };
    let qp = id.create_qp(&bed.fabric, &attr).expect("a queue pair");
    Side { qp, poller, _id: id }
}

fn pair<F: Fabric>(bed: &Bed<F>) -> (Side<F>, Side<F>) {
    let passive = AddrInfo::of(bed.at(0), &Hints::passive());
    let mut listener = bed.fabric.create_endpoint(&passive).expect("a listener");
    listener.listen(0).expect("listen");
    let active = AddrInfo::of(listener.local_addr().expect("bound"), &Hints::active());
    let one = bed.fabric.create_endpoint(&active).expect("an active endpoint");
    let mut one = side(bed, one);
    thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            one._id.connect(&ConnParam::default()).expect("connect");
            one
        });
        let mut two = side(bed, listener.get_request(Some(SOON)).expect("a request"));
        two._id.accept(&ConnParam::default()).expect("accept");
        (connecting.join().expect("the connecting side"), two)
    })
}

impl<F: Fabric> Side<F> {
    fn send(&mut self, sge: Sge) {
        self.request(SendOp::Send, sge);
    }

    fn request(&mut self, op: SendOp, sge: Sge) {
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id: 11, op, flags, sge, more: &[] };
        // SAFETY: the regions of a case outlive its queue pairs; the device must refuse any address
        // beyond them.
        unsafe { self.qp.post(&[wr]) }.expect("post");
    }

    fn receive(&mut self, sge: Sge) {
        // SAFETY: as in `send`.
        unsafe { self.qp.post_recv(&[RecvWr { wr_id: 22, sge }]) }.expect("post");
    }

    fn poll(&mut self) -> Option<Wc> {
        let mut out = [Wc::default()];
        (self.poller.poll(&mut out) == 1).then_some(out[0])
    }

    fn next(&mut self, other: &mut Side<F>) -> Wc {
        let end = Instant::now() + SOON;
        loop {
            if let Some(wc) = self.poll() {
                return wc;
            }
            assert!(other.poll().is_none(), "the other side comes second");
            assert!(Instant::now() < end, "nothing completed");
            thread::sleep(Duration::from_micros(50));
        }
    }
}

fn region<F: Fabric>(bed: &Bed<F>, access: Access) -> F::Region {
    let memory = Mapping::plain(4096).expect("memory");
    bed.fabric.register(memory, access).expect("a region")
}

fn sge<R: Region>(region: &R, length: u32) -> Sge {
    Sge { addr: region.as_ptr() as u64, length, lkey: region.lkey() }
}

/// Reads the completion queue itself, because the safe layer hides completions that belong to no
/// queue pair.
fn qx_17_a_destroyed_queue_pair_completes_nothing_more<F: Fabric>(bed: &Bed<F>) {
    let memory = region(bed, Access::LOCAL_WRITE);
    for sends in [true, false] {
        let (mut one, mut two) = pair(bed);
        if sends {
            // There is no receive for these: they stay outstanding.
            one.send(sge(&memory, 8));
            one.send(sge(&memory, 8));
        }
        one.receive(sge(&memory, 8));
        one.receive(sge(&memory, 8));
        assert!(one.poll().is_none(), "all is outstanding");
        one.poller.arm(false).expect("arm");
        let Side { qp, mut poller, _id } = one;
        drop(qp);
        let end = Instant::now() + A_WHILE;
        while Instant::now() < end {
            let mut out = [Wc::default()];
            assert_eq!(poller.poll(&mut out), 0, "{:?} of a queue pair that is gone", out[0]);
            two.poll();
        }
        drop((_id, two));
    }
}

fn mr_01_remote_write_needs_local_write<F: Fabric>(bed: &Bed<F>) {
    let register = |access| {
        let memory = Mapping::plain(4096).expect("memory");
        bed.fabric.register(memory, access)
    };
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::all() - Access::LOCAL_WRITE]
    {
        assert!(register(remote).is_err(), "{remote:?}");
        register(remote | Access::LOCAL_WRITE).expect("with the owner's right");
    }
    register(Access::REMOTE_READ).expect("reading changes nothing");
    let rights = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::MW_BIND,
    ];
    assert_eq!(rights.map(|right| right.bits()), [1, 2, 4, 8, 16]);
}

/// A send that fails where it is posted: the peer notices nothing, and its receive stays.
fn fails_alone<F: Fabric>(bed: &Bed<F>, bad: impl FnOnce(&F::Region) -> Sge) {
    let memory = region(bed, Access::LOCAL_WRITE);
    let (mut one, mut two) = pair(bed);
    two.receive(sge(&memory, 64));
    one.send(bad(&memory));
    let wc = one.next(&mut two);
    // rxe reports 2 for an unknown key (R6).
    let legal = [Status::LocalProtection, Status::LocalQpOperation];
    assert!(legal.contains(&wc.status), "{:?}", wc.status);
    assert_eq!((wc.wr_id, wc.qp_num), (11, one.qp.num()));
    if bed.is_strict() {
        assert_eq!(wc.status, Status::LocalProtection);
        assert_ne!(wc.byte_len, 0, "undefined fields hold garbage (CP-1)");
    }
    assert!(two.poll().is_none());
    drop((one, two));
}

fn ck_01_a_send_under_a_wrong_key_fails_alone<F: Fabric>(bed: &Bed<F>) {
    fails_alone(bed, |memory| Sge { lkey: memory.lkey() ^ 0x00ff_ff00, ..sge(memory, 8) });
}

fn mr_02_a_send_past_its_region_fails_alone<F: Fabric>(bed: &Bed<F>) {
    fails_alone(bed, |memory| {
        let end = memory.as_ptr() as u64 + memory.len() as u64;
        Sge { addr: end - 4, ..sge(memory, 8) }
    });
}

fn mr_02_a_read_into_a_read_only_region_fails_alone<F: Fabric>(bed: &Bed<F>) {
    let source = region(bed, Access::REMOTE_READ);
    let (closed, open) = (region(bed, Access::empty()), region(bed, Access::LOCAL_WRITE));
    let (mut one, mut two) = pair(bed);
    one.request(SendOp::Read(source.remote(0)), sge(&open, 8));
    assert_eq!(one.next(&mut two).status, Status::Success);
    one.request(SendOp::Read(source.remote(0)), sge(&closed, 8));
    let wc = one.next(&mut two);
    let legal = [Status::LocalProtection, Status::LocalQpOperation];
    assert!(legal.contains(&wc.status), "{:?}", wc.status);
    assert!(!bed.is_strict() || wc.status == Status::LocalProtection);
    drop((one, two));
}

/// A message for a receive whose memory is not writable.
fn fails_both<F: Fabric>(bed: &Bed<F>, memory: &F::Region, bad: Sge) {
    let (mut one, mut two) = pair(bed);
    two.receive(bad);
    one.send(sge(memory, 8));
    let there = two.next(&mut one);
    let legal = [Status::LocalProtection, Status::LocalQpOperation];
    assert!(legal.contains(&there.status), "{:?}", there.status);
    assert_eq!((there.wr_id, there.qp_num), (22, two.qp.num()));
    assert_eq!(one.next(&mut two).status, Status::RemoteOperation);
    drop((one, two));
}

fn ck_01_a_receive_under_a_wrong_key_fails_both_sides<F: Fabric>(bed: &Bed<F>) {
    let memory = region(bed, Access::LOCAL_WRITE);
    let bad = Sge { lkey: memory.lkey() ^ 0x00ff_ff00, ..sge(&memory, 64) };
    fails_both(bed, &memory, bad);
}

fn ck_01_a_receive_into_a_read_only_region_fails_both_sides<F: Fabric>(bed: &Bed<F>) {
    let memory = region(bed, Access::LOCAL_WRITE);
    let read_only = region(bed, Access::empty());
    fails_both(bed, &memory, sge(&read_only, 64));
}

fn mr_03_a_stale_key_fails<F: Fabric>(bed: &Bed<F>) {
    let old = region(bed, Access::LOCAL_WRITE);
    let stale = sge(&old, 8);
    drop(old);
    fails_alone(bed, |memory| Sge { addr: memory.as_ptr() as u64, ..stale });
}
