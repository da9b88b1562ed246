//! Protection domains: a key is valid within its own domain (MR-2, CK-1).

use super::local_rdma::mapped_pair;
use super::*;
use crate::provider::{ProtectionDomains, Windows, Xrc};
use crate::wc::Status;

const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn statuses(list: &[Wc]) -> Vec<Status> {
    list.iter().map(|wc| wc.status).collect()
}

/// Memory of the same device that belongs to another domain.
fn apart(end: &End) -> SoftRegion {
    end.nic.alloc_pd().unwrap().register(shared(1 << 16), Access::all()).unwrap()
}

fn piece(region: &SoftRegion, length: u32) -> Sge {
    Sge { addr: region.as_ptr() as u64, length, lkey: region.lkey() }
}

#[test]
fn mr_2_a_send_reads_memory_of_its_own_domain() {
    for length in [8, 100, 5000] {
        let (mut one, mut two) = pair(CAPS, false);
        let strange = apart(&one);
        two.recv(1, 0, 8192);
        one.post(1, SendOp::Send, piece(&strange, length), SIGNALED).unwrap();
        one.send(2, 0, 8, SIGNALED).unwrap();
        let (sent, received) = settle(&mut one, &mut two);
        assert_eq!(statuses(&sent), [Status::LocalProtection, Status::Flushed]);
        assert!(received.is_empty());
    }
    // In a list, which is written by other code.
    let (mut one, mut two) = pair(CAPS, false);
    let strange = apart(&one);
    two.recv(1, 0, 64);
    let wr = |wr_id, sge| SendWr { wr_id, op: SendOp::Send, flags: SIGNALED, sge, more: &[] };
    let list = [wr(1, one.sge(0, 8)), wr(2, piece(&strange, 8))];
    unsafe { one.qp.post(&list).unwrap() };
    let (sent, _) = settle(&mut one, &mut two);
    assert_eq!(statuses(&sent), [Status::Success, Status::LocalProtection]);
}

#[test]
fn mr_2_a_message_goes_to_memory_of_the_receive_queues_domain() {
    for (shared_queue, length) in [(false, 8), (false, 5000), (true, 8), (true, 5000)] {
        let (mut one, mut two) = pair(CAPS, shared_queue);
        let strange = apart(&two);
        let wr = RecvWr { wr_id: 1, sge: piece(&strange, 8192) };
        match &two.srq {
            Some(srq) => unsafe { srq.post(&[wr]).unwrap() },
            None => unsafe { two.qp.post_recv(&[wr]).unwrap() },
        }
        one.send(1, 0, length, SIGNALED).unwrap();
        let (sent, received) = settle(&mut one, &mut two);
        assert_eq!(statuses(&received), [Status::LocalProtection]);
        assert_eq!(statuses(&sent), [Status::RemoteOperation]);
    }
}

/// The domain of a shared queue may differ from its queue pairs'.
#[test]
fn a_shared_queue_has_a_domain_of_its_own() {
    let (mut one, mut two) = (end(CAPS, false), end(CAPS, false));
    let apart = two.nic.alloc_pd().unwrap();
    let srq = apart.create_srq(16).unwrap();
    let strange = apart.register(mapping(1 << 16), Access::all()).unwrap();
    two.qp = make_qp(&two.nic, &two.cq, Some(&srq), CAPS);
    join(&mut one.qp, &mut two.qp, 7);
    for length in [8, 5000] {
        let wr = RecvWr { wr_id: 1, sge: piece(&strange, 8192) };
        unsafe { srq.post(&[wr]).unwrap() };
        one.send(1, 0, length, SIGNALED).unwrap();
        let (sent, received) = settle(&mut one, &mut two);
        assert_eq!(
            (statuses(&sent), statuses(&received)),
            (std::vec![Status::Success], std::vec![Status::Success])
        );
    }
    // Removing a region makes the queue look keys up again, in the same domain.
    drop(two.nic.register(mapping(64), Access::all()).unwrap());
    unsafe { srq.post(&[RecvWr { wr_id: 2, sge: piece(&strange, 64) }]).unwrap() };
    one.send(1, 0, 8, SIGNALED).unwrap();
    assert_eq!(statuses(&settle(&mut one, &mut two).1), [Status::Success]);
    unsafe { srq.post(&[RecvWr { wr_id: 3, sge: two.sge(0, 64) }]).unwrap() };
    one.send(1, 0, 8, SIGNALED).unwrap();
    assert_eq!(statuses(&settle(&mut one, &mut two).1), [Status::LocalProtection]);
}

#[test]
fn mr_2_a_peers_key_is_good_for_queue_pairs_of_its_domain() {
    for op in [SendOp::Write, SendOp::Read, |at| SendOp::FetchAdd { at, add: 1 }] {
        for direct in [true, false] {
            let (mut one, mut two) = if direct { mapped_pair() } else { pair(CAPS, false) };
            let strange = apart(&two);
            let op: fn(crate::wr::Remote) -> SendOp = op;
            one.post(1, op(two.region.remote(0)), one.sge(0, 8), SIGNALED).unwrap();
            one.post(2, op(strange.remote(0)), one.sge(0, 8), SIGNALED).unwrap();
            let (sent, _) = settle(&mut one, &mut two);
            assert_eq!(statuses(&sent), [Status::Success, Status::RemoteAccess]);
        }
    }
}

#[test]
fn mr_2_the_result_of_a_read_stays_in_its_domain() {
    for direct in [true, false] {
        let (mut one, mut two) = if direct { mapped_pair() } else { pair(CAPS, false) };
        let strange = apart(&one);
        let op = SendOp::Read(two.region.remote(0));
        one.post(1, op, piece(&strange, 8), SIGNALED).unwrap();
        assert_eq!(statuses(&settle(&mut one, &mut two).0), [Status::LocalProtection]);
    }
}

/// A whole connection in another domain works as one in the device's own.
#[test]
fn all_of_it_works_in_any_domain() {
    let (mut one, mut two) = (end(CAPS, false), end(CAPS, false));
    for end in [&mut one, &mut two] {
        end.nic = end.nic.alloc_pd().unwrap();
        end.region = end.nic.register(mapping(1 << 20), Access::all()).unwrap();
        end.qp = make_qp(&end.nic, &end.cq, None, CAPS);
    }
    join(&mut one.qp, &mut two.qp, 7);
    one.fill(0, &pattern(1, 5000));
    two.recv(1, 0, 8192);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    one.post(2, SendOp::Read(two.region.remote(0)), one.sge(8192, 5000), SIGNALED).unwrap();
    let (sent, received) = settle(&mut one, &mut two);
    assert_eq!((statuses(&sent), received.len()), (std::vec![Status::Success; 2], 1));
    assert_eq!(one.bytes(8192, 5000), pattern(1, 5000));
}

/// MW-1: window, memory and queue pair belong to one domain.
#[test]
fn mw_1_windows_open_memory_of_their_domain_to_queue_pairs_of_it() {
    let binding = |window: &SoftWindow, region: &SoftRegion, rkey| Binding {
        window: window.handle(),
        region: region.handle(),
        addr: region.as_ptr() as u64,
        length: 64,
        access: Access::REMOTE_WRITE,
        rkey,
    };
    for (own_window, own_memory) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut one, mut two) = pair(CAPS, false);
        let elsewhere = two.nic.alloc_pd().unwrap();
        let strange = elsewhere.register(mapping(4096), Access::all()).unwrap();
        let nic = if own_window { &two.nic } else { &elsewhere };
        let window = nic.create_window(WindowKind::Two).unwrap();
        let region = if own_memory { &two.region } else { &strange };
        let op = SendOp::Bind(binding(&window, region, window.rkey()));
        two.post(1, op, Sge::default(), SIGNALED).unwrap();
        let (_, bound) = settle(&mut one, &mut two);
        let good = own_window && own_memory;
        assert_eq!(statuses(&bound), [if good { Status::Success } else { Status::MwBind }]);
    }
    // A window of type 1 is open to all queue pairs of its domain.
    let (mut one, mut two) = pair(CAPS, false);
    let elsewhere = two.nic.alloc_pd().unwrap();
    let mut other = end(CAPS, false);
    let mut strange = make_qp(&elsewhere, &two.cq, None, CAPS);
    join(&mut other.qp, &mut strange, 7);
    let mut window = two.nic.create_window(WindowKind::One).unwrap();
    let wanted = binding(&window, &two.region, 0);
    let rkey = unsafe { window.bind(&mut two.qp, wanted, 1, SIGNALED).unwrap() };
    assert_eq!(statuses(&settle(&mut one, &mut two).1), [Status::Success]);
    let at = crate::wr::Remote { addr: two.region.as_ptr() as u64, rkey };
    one.post(1, SendOp::Write(at), one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(statuses(&settle(&mut one, &mut two).0), [Status::Success]);
    other.post(1, SendOp::Write(at), other.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(statuses(&settle(&mut other, &mut two).0), [Status::RemoteAccess]);
}

#[test]
fn a_domain_counts_its_objects() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let (cq, _poller) = nic.create_cq(16, Sharing::Shared).unwrap();
    let xrcd = nic.open_xrcd().unwrap();
    let pd = nic.alloc_pd().unwrap();
    assert_eq!(pd.pd_users(), 1);
    let region = pd.register(mapping(64), Access::all()).unwrap();
    let srq = pd.create_srq(4).unwrap();
    let named = pd.create_xrc_srq(&xrcd, &cq, 4).unwrap();
    let window = pd.create_window(WindowKind::One).unwrap();
    let qp = make_qp(&pd, &cq, None, CAPS);
    let target = pd.create_xrc_recv(&xrcd).unwrap();
    let queue = pd.create_cq(4, Sharing::Shared).unwrap();
    assert_eq!(pd.pd_users(), 6, "queue pairs of XRC_RECV and completion queues are the device's");
    drop((region, srq, named, window, qp));
    assert_eq!(pd.pd_users(), 1);
    drop((target, queue));
}
