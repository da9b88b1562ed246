//! Many connections: at once, and one after the other, which must leave nothing behind.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use doorbell_cm::{AddrInfo, CompletionQueue, ConnParam, Endpoint, EventKind, Fabric, Hints};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{Bed, SOON, event, received, send_inline, sent};
use crate::harness::{on_toy, skip};
use crate::ids::{pair_by_events, ready};
use crate::processes::peer;

cases! {
    cm_04_thirty_two_clients_at_once_are_all_served
    cm_04_so_are_thirty_two_processes
    a_thousand_connections_leave_nothing_behind
}

const CLIENTS: usize = 32;

fn cm_04_thirty_two_clients_at_once_are_all_served<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut id = bed.active(addr, &bed.small());
                id.queues().post_recv(bed.filled(1, 0)).expect("a receive");
                id.connect(&ConnParam::default()).expect("connect");
                send_inline(&mut id, &[client as u8]);
                let answer = id.queues().next_recv(SOON).expect("an answer").ok().expect("well");
                assert_eq!(answer.bytes(), [client as u8]);
                id.disconnect().expect("disconnect");
            });
        }
        for _ in 0..CLIENTS {
            let mut id = listener.get_request(Some(SOON)).expect("a request");
            scope.spawn(move || {
                id.queues().post_recv(bed.filled(1, 0)).expect("a receive");
                id.accept(&ConnParam::default()).expect("accept");
                let question = id.queues().next_recv(SOON).expect("a question").ok().expect("well");
                send_inline(&mut id, question.bytes());
                id.queues().next_send(SOON).expect("answered").ok().expect("well");
                while !id.peer_left() {
                    thread::yield_now();
                }
                id.disconnect().expect("disconnect");
            });
        }
    });
}

/// Each peer is a process of its own, which connects, sends something and leaves.
fn cm_04_so_are_thirty_two_processes<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| peer("leave", addr)).collect();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut id = listener.get_request(Some(SOON)).expect("a request");
            scope.spawn(move || {
                id.queues().post_recv(bed.filled(1, 0)).expect("a receive");
                id.accept(&ConnParam::default()).expect("accept");
                assert_eq!(received(&mut id).bytes(), [1]);
                // It leaves when it knows that this has arrived; until then its device needs ours.
                while !id.peer_left() {
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    for client in &mut clients {
        client.ends_well();
    }
}

/// Runs in a process of its own, because other cases open and close objects too.
fn a_thousand_connections_leave_nothing_behind<F: Fabric>(bed: &Bed<F>) {
    if on_toy() {
        return skip("the threads of the toy wire give their files back a little later");
    }
    peer("come-and-go", bed.at(0)).ends_well();
}

/// The resources of a process: open files, mappings of files and devices, other mappings, objects
/// of the kernel's RDMA core.
#[derive(Debug)]
struct Census {
    files: usize,
    mapped: usize,
    pieces: usize,
    objects: usize,
}

fn census<F: Fabric>(bed: &Bed<F>) -> Census {
    let files = fs::read_dir("/proc/self/fd").expect("open files").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
    let is_of_device = |line: &&str| line.contains("memfd:") || line.contains("/dev/");
    let mapped = maps.lines().filter(is_of_device).count();
    let pid = format!("pid {} ", std::process::id());
    let of_kind = |kind| {
        let output = Command::new("rdma").args(["resource", "show", kind]).output();
        let output = output.expect("the command rdma of iproute2");
        assert!(output.status.success(), "rdma resource show {kind}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().filter(|line| line.contains(&pid)).count()
    };
    let kinds = ["qp", "cq", "mr", "pd", "cm_id", "srq", "ctx"];
    // The soft device has no kernel objects.
    let objects = if bed.is_strict() { 0 } else { kinds.map(of_kind).iter().sum() };
    Census { files, mapped, pieces: maps.lines().count() - mapped, objects }
}

/// Carries out a round many times. The resources must be those after the first few rounds, in which
/// everything that is made once is made.
pub(crate) fn leaves_nothing<F: Fabric>(
    bed: &Bed<F>,
    rounds: usize,
    mut round: impl FnMut(&Bed<F>),
) {
    for _ in 0..20 {
        round(bed);
    }
    // The next connection to end gives back what remains.
    one_round(bed);
    let before = census(bed);
    for _ in 0..rounds {
        round(bed);
    }
    one_round(bed);
    let after = census(bed);
    let exact = |census: &Census| [census.files, census.mapped, census.objects];
    assert_eq!(exact(&after), exact(&before), "{rounds} rounds: {before:?} {after:?}");
    // The allocator's own mappings vary; a leak in each round would be a hundred at least.
    assert!(after.pieces < before.pieces + 8, "{rounds} rounds: {before:?} {after:?}");
}

pub(crate) fn come_and_go<F: Fabric>(bed: &Bed<F>) {
    leaves_nothing(bed, 1000, one_round);
}

/// EP-10: no request can be served with the listener's attributes.
pub(crate) fn refuse<F: Fabric>(bed: &Bed<F>) {
    let impossible = bed.small().send_wr(Provider::caps(&bed.fabric).qp_wr_max + 1);
    let (mut listener, addr) = bed.listener(Some(&impossible));
    let channel = bed.fabric.open_channel().expect("a channel");
    leaves_nothing(bed, 100, |bed| {
        let mut one = ready(bed, &channel, addr);
        one.connect(&ConnParam::default()).expect("connect");
        let refused = listener.get_request(Some(SOON)).map(drop).expect_err("EP-10");
        assert_eq!(refused.code(), Code::Invalid, "{refused}");
        event::<F>(&channel, EventKind::Rejected);
    });
}

/// QP-18: one completion queue is given, the other is made.
pub(crate) fn destroy<F: Fabric>(bed: &Bed<F>) {
    let given = CompletionQueue::new(&bed.fabric, 16).expect("a completion queue");
    let mut id = bed.active(bed.at(7), &bed.small()).into_id();
    id.destroy_qp().expect("it is there");
    leaves_nothing(bed, 100, |bed| {
        for init in [bed.small().recv_cq(&given), bed.small().send_cq(&given)] {
            id.create_qp(&init).expect("a queue pair");
            id.destroy_qp().expect("it is there");
        }
    });
}

/// QP-17: the completion queues are made, and the queue pair is not.
pub(crate) fn fail<F: Fabric>(bed: &Bed<F>) {
    let mut id = bed.active(bed.at(7), &bed.small()).into_id();
    id.destroy_qp().expect("it is there");
    let beyond = Provider::caps(&bed.fabric).inline_max + 1;
    leaves_nothing(bed, 40, |bed| {
        id.create_qp(&bed.small().inline(beyond)).expect_err("beyond the device");
        assert!(id.send_cq().is_none() && id.recv_cq().is_none());
    });
}

/// EP-13: address and route are resolved, and the queue pair is not made; an address is taken.
pub(crate) fn fail_endpoint<F: Fabric>(bed: &Bed<F>) {
    let beyond = bed.small().inline(Provider::caps(&bed.fabric).inline_max + 1);
    let (_listener, addr) = bed.listener(None);
    let (active, passive) = (Hints::active(), Hints::passive());
    leaves_nothing(bed, 40, |bed| {
        let made = Endpoint::create(&bed.fabric, &AddrInfo::of(addr, &active), Some(&beyond));
        assert!(made.is_err(), "beyond the device");
        let made = Endpoint::<F>::create(&bed.fabric, &AddrInfo::of(addr, &passive), None);
        assert!(made.and_then(|mut endpoint| endpoint.listen(0)).is_err(), "it is taken");
    });
}

/// By events, in one thread: nobody waits for a processor.
fn one_round<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let [mut one, mut two, _listener] = pair_by_events(bed, &here, &there);
    two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
    send_inline(&mut one, &[1; 8]);
    assert_eq!(received(&mut two).bytes(), [1; 8]);
    sent(&mut one, &mut two).ok().expect("sent");
    one.disconnect().expect("disconnect");
    event::<F>(&there, EventKind::Disconnected);
    two.disconnect().expect("so does the other");
    event::<F>(&here, EventKind::Disconnected);
}
