//! Peers: they come up, they go, and their slots are used again.

use super::*;
use crate::worker::peers::PeerState;

/// A peer that goes is reported once, its slot is reused under a new generation, and its old name
/// reaches nobody.
#[test]
fn a_peer_that_goes_is_reported_once() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    let mut seen = Vec::new();
    for round in 0..10u16 {
        let (num, other) = connect(&mut one, &mut two);
        let peer = one.only_peer();
        assert!(!seen.contains(&peer));
        seen.push(peer);
        for n in 0..3 {
            one.worker.outbox().send(peer, &payload(n, 300)).unwrap();
        }
        if round % 2 == 0 {
            settle(&mut [&mut one, &mut two]);
        }
        assert!(one.intake.gone(num) && two.intake.gone(other));
        settle(&mut [&mut one, &mut two]);
        assert_eq!(one.worker.handler().down.len(), round as usize + 1);
        assert_eq!(two.worker.handler().down.len(), round as usize + 1);
        assert_eq!(one.worker.handler().down[round as usize], (peer, DownReason::Disconnected));
        assert_eq!(one.worker.outbox().send(peer, &[]), Err(SendError::NotConnected));
        assert_eq!((one.worker.peers(), two.worker.peers()), (0, 0));
        assert_blocks_home(&one, &CONFIG);
        assert_blocks_home(&two, &CONFIG);
    }
}

/// A peer closed by the handler: the control plane learns of it, the other side's sends fail and it
/// reports a failure, every block comes home.
#[test]
fn a_closed_peer_drains_and_is_passed_to_the_control_plane() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    let (num, _) = connect(&mut one, &mut two);
    let peer = one.only_peer();
    for n in 0..10 {
        one.worker.outbox().send(peer, &payload(n, 300)).unwrap();
    }
    one.worker.outbox().close(peer);
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
    assert_eq!(one.intake.next_closing(), Some(num));
    assert_eq!(one.intake.next_closing(), None);
    assert_blocks_home(&one, &CONFIG);
    let back = two.only_peer();
    two.worker.outbox().send(back, b"anybody?").unwrap();
    settle(&mut [&mut one, &mut two]);
    let down = &two.worker.handler().down;
    assert_eq!(*down, [(back, DownReason::Failed(Status::RetryExceeded))]);
}

/// A peer that is about to be ended for what it did ends before the flush by another way. The next
/// peer in its slot stays.
#[test]
fn a_peer_does_not_end_for_what_another_did_in_its_slot() {
    let (mut one, mut two) = (side(&LONE, false), side(&CONFIG, true));
    let (num, _) = connect(&mut one, &mut two);
    let first = one.only_peer();
    one.worker.core.sender.accounts.broken.add(first.slot);
    assert!(one.intake.gone(num));
    admit::admit(&mut one.worker.core, &mut one.worker.handler);
    one.worker.core.turn += CONFIG.drain_turns;
    drain::report_drained(&mut one.worker.core, &mut one.worker.handler);
    assert_eq!(one.worker.handler().down, [(first, DownReason::Disconnected)]);
    connect(&mut one, &mut two);
    let second = one.only_peer();
    assert_eq!(second.slot, first.slot);
    one.worker.outbox().send(second, b"here").unwrap();
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.handler().down.len(), 1);
    assert_eq!(one.worker.handler().got.len(), 1);
}

/// More peers than the worker has slots: the extra one is refused before it is connected, the
/// others stay, and when one goes there is a place again.
#[test]
fn a_peer_too_many_is_turned_away() {
    let (mut one, mut two) = (side(&Config { peers: 8, ..CONFIG }, false), side(&CONFIG, true));
    for _ in 0..4 {
        connect(&mut one, &mut two);
    }
    assert_eq!(two.worker.peers(), 4);
    assert_eq!(two.intake.reserve().err().unwrap().code(), Code::NoMemory);
    assert_eq!(two.intake.no_place().reason(), RefusalReason::NoSlot);
    let last = *two.worker.handler().up.last().unwrap();
    two.worker.outbox().close(last);
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.peers(), 3);
    connect(&mut one, &mut two);
    assert_eq!(two.worker.peers(), 4);
    let peer = one.worker.handler().up[0];
    one.worker.outbox().send(peer, b"still here").unwrap();
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.handler().got.len(), 1);
}

/// A message that comes before the control plane's notice brings the peer up.
#[test]
fn a_first_message_brings_its_peer_up() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    let nums = admit(&mut one, &mut two);
    assert!(one.intake.up(nums.one, nums.greeting));
    one.worker.turn();
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"early").unwrap();
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().up.len(), 1);
    assert_eq!(one.worker.handler().got.len(), 1);
    assert!(two.intake.up(nums.two, Greeting::default()));
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().up.len(), 1, "told twice");
}

/// A peer that ends before the handler knew of it is never reported, whatever it had sent.
#[test]
fn a_peer_that_never_came_up_is_not_reported() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    let nums = admit(&mut one, &mut two);
    assert!(one.intake.up(nums.one, nums.greeting));
    one.worker.turn();
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"early").unwrap();
    one.worker.turn();
    // The message and the end are found in the same turn.
    assert!(two.intake.gone(nums.two));
    settle(&mut [&mut one, &mut two]);
    let log = two.worker.handler();
    assert_eq!((log.got.len(), log.up.len(), log.down.len()), (0, 0, 0));
    assert_eq!(two.worker.peers(), 0);
}

/// A slot that has just become free is the last to be used again, so old names come again late.
#[test]
fn slots_are_used_in_turn() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
    let mut seen = Vec::new();
    for _ in 0..2 * CONFIG.peers {
        let nums = connect(&mut one, &mut two);
        seen.push(one.only_peer().index() as u32);
        assert!(one.intake.gone(nums.0) && two.intake.gone(nums.1));
        settle(&mut [&mut one, &mut two]);
    }
    let turn: Vec<_> = (0..2 * CONFIG.peers).map(|n| n % CONFIG.peers).collect();
    assert_eq!(seen, turn);
}

/// The device has no place for the request that marks the end of a peer's sends. The next turn
/// posts it again, so the handler need not wait until `Config::drain_turns` are over.
#[test]
fn a_mark_of_the_end_that_was_refused_is_posted_again() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    // The answer acknowledges it, and it has no completion of its own.
    one.worker.outbox().send(peer, b"unsignalled").unwrap();
    settle(&mut [&mut one, &mut two]);
    let slot = one.worker.core.sender.peers.at(peer.slot).unwrap();
    assert_eq!(slot.sq.outstanding(), 1);
    one.fill_queue_pair(peer);
    one.worker.outbox().close(peer);
    let slot = one.worker.core.sender.peers.at(peer.slot).unwrap();
    assert!(matches!(slot.state, PeerState::Closing { marked: false, .. }), "{:?}", slot.state);
    let turns = (0..2 * CONFIG.drain_turns).take_while(|_| {
        one.worker.turn();
        one.worker.handler().down.is_empty()
    });
    let turns = turns.count() as u64;
    assert!(turns < CONFIG.drain_turns / 2, "{turns}");
    assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
    assert_blocks_home(&one, &CONFIG);
}
