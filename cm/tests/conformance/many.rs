//! Many connections: at once, and one after the other, which must leave nothing behind.

use std::fs;
use std::process::Command;
use std::thread;

use doorbell_cm::{ConnParam, EventKind, Fabric};

use crate::bed::{Bed, SOON, event, received, send_inline, sent};
use crate::ids::pair_by_events;
use crate::processes::peer;

cases! {
    cm_04_thirty_two_clients_at_once_are_all_served
    a_thousand_connections_leave_nothing_behind
}

fn cm_04_thirty_two_clients_at_once_are_all_served<F: Fabric>(bed: &Bed<F>) {
    const CLIENTS: usize = 32;
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut id = bed.active(addr, &bed.small());
                id.post_recv(bed.filled(1, 0)).expect("a receive");
                id.connect(&ConnParam::default()).expect("connect");
                send_inline(&mut id, &[client as u8]);
                let answer = id.next_recv(SOON).expect("an answer").ok().expect("well");
                assert_eq!(answer.bytes(), [client as u8]);
                id.disconnect().expect("disconnect");
            });
        }
        for _ in 0..CLIENTS {
            let mut id = listener.get_request(Some(SOON)).expect("a request");
            scope.spawn(move || {
                id.post_recv(bed.filled(1, 0)).expect("a receive");
                id.accept(&ConnParam::default()).expect("accept");
                let question = id.next_recv(SOON).expect("a question").ok().expect("well");
                send_inline(&mut id, question.bytes());
                id.next_send(SOON).expect("answered").ok().expect("well");
                while !id.peer_left() {
                    thread::yield_now();
                }
                id.disconnect().expect("disconnect");
            });
        }
    });
}

/// In a process of its own: other cases come and go as well.
fn a_thousand_connections_leave_nothing_behind<F: Fabric>(bed: &Bed<F>) {
    peer("come-and-go", bed.at(0)).ends_well();
}

/// What a process has: open files, pieces of memory, objects of the kernel's RDMA core.
#[derive(Debug, PartialEq, Eq)]
struct Census {
    files: usize,
    maps: usize,
    objects: usize,
}

fn census() -> Census {
    let files = fs::read_dir("/proc/self/fd").expect("open files").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("mappings").lines().count();
    let pid = format!("pid {} ", std::process::id());
    let of_kind = |kind| {
        let output = Command::new("rdma").args(["resource", "show", kind]).output();
        // Without the command there is no kernel device whose objects could stay.
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter(|line| line.contains(&pid)).count()
    };
    let objects = ["qp", "cq", "mr", "pd", "cm_id"].map(of_kind).iter().sum();
    Census { files, maps, objects }
}

pub(crate) fn come_and_go<F: Fabric>(bed: &Bed<F>) {
    let rounds = if bed.is_strict() { 1000 } else { 200 };
    // What is made once is made by then.
    for _ in 0..20 {
        one_round(bed);
    }
    let before = census();
    for _ in 0..rounds {
        one_round(bed);
    }
    let after = census();
    assert_eq!((after.files, after.objects), (before.files, before.objects), "{rounds} rounds");
    let grown = after.maps.saturating_sub(before.maps);
    assert!(grown < 8, "{grown} pieces of memory more after {rounds} rounds");
}

/// By events, in one thread: nobody waits for a processor.
fn one_round<F: Fabric>(bed: &Bed<F>) {
    let here = bed.fabric.open_channel().expect("a channel");
    let there = bed.fabric.open_channel().expect("a channel");
    let [mut one, mut two, _listener] = pair_by_events(bed, &here, &there);
    two.post_recv(bed.filled(8, 0)).expect("a receive");
    send_inline(&mut one, &[1; 8]);
    assert_eq!(received(&mut two).bytes(), [1; 8]);
    sent(&mut one, &mut two).ok().expect("sent");
    one.disconnect().expect("disconnect");
    event::<F>(&there, EventKind::Disconnected);
    two.disconnect().expect("so does the other");
    event::<F>(&here, EventKind::Disconnected);
}
