//! The domain on which queue pairs are made.
#![expect(unsafe_code, reason = "a thread domain is a promise")]

use super::*;
use crate::provider::ProtectionDomains;

/// Handles on the domain that a worker's queue pairs are made on, and queue pairs there.
fn users(side: &Side) -> usize {
    // SAFETY: nothing is made on it here.
    unsafe { side.intake.nic() }.pd_users()
}

/// Workers that share their receives have a domain each. Their queue pairs keep it alive, and
/// everything is given back.
#[test]
fn each_worker_has_a_thread_domain_of_its_own() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let before = nic.pd_users();
    let shared = shared(&nic, &CONFIG);
    let alone = nic.pd_users();
    let mut one = worker(&nic, &shared, &CONFIG, false);
    let two = worker(&nic, &shared, &CONFIG, false);
    let mut other = side(&CONFIG, true);
    assert!(one.intake.has_thread_domain() && two.intake.has_thread_domain());
    assert_eq!((users(&one), users(&two)), (1, 1), "nothing else is on it");
    connect(&mut one, &mut other);
    assert_eq!((users(&one) > 1, users(&two)), (true, 1), "the queue pair of that one is");
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"x").unwrap();
    settle(&mut [&mut one, &mut other]);
    assert_eq!(one.worker.handler().got.len(), 1, "with receives on the protection domain");
    // The intake goes first: the queue pair keeps its domain alive.
    let Side { nic: handle, worker: turning, intake } = one;
    drop((intake, handle, two));
    assert!(nic.pd_users() > alone);
    drop(turning);
    assert_eq!(nic.pd_users(), alone, "the thread domains are gone");
    drop(shared);
    assert_eq!(nic.pd_users(), before);
}

/// A worker without a thread domain makes everything on the protection domain it was made on.
#[test]
fn a_thread_domain_can_be_done_without() {
    let config = Config { thread_domain: false, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&CONFIG, true));
    assert!(!one.intake.has_thread_domain() && two.intake.has_thread_domain());
    assert_eq!(users(&one), one.nic.pd_users());
    connect(&mut one, &mut two);
    assert_eq!(users(&one), one.nic.pd_users());
}
