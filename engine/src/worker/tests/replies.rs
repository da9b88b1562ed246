//! Replies that wait for room in the send queue.

use super::*;

/// Deferred replies and many dirty peers at once: the replies keep their order, and nothing
/// overtakes them.
#[test]
fn nothing_overtakes_deferred_replies() {
    let config = Config {
        peers: 80,
        send_queue: 64,
        signal_every: 32,
        recv_blocks: 1024,
        refill: 8,
        ..CONFIG
    };
    let (mut one, mut two) = (side(&config, false), side(&config, true));
    for _ in 0..70 {
        connect(&mut one, &mut two);
    }
    let (ones, twos) = (one.worker.handler().up.clone(), two.worker.handler().up.clone());
    // The server's queue to the first peer is full, and twenty replies wait behind it.
    while two.worker.outbox().send(twos[0], b"fill").is_ok() {}
    two.worker.turn();
    for n in 0..20u8 {
        one.worker.outbox().send(ones[0], &[100 + n; 5]).unwrap();
    }
    one.worker.outbox().flush();
    for _ in 0..3 {
        two.worker.turn();
    }
    for _ in 0..6 {
        one.worker.turn();
    }
    // A completion, and more dirty peers than there are batches before the turn ends.
    two.worker.core.retire(0, 0, 63, SendStatus::WELL);
    for peer in &twos[1..=DIRTY_PEERS] {
        two.worker.outbox().send(*peer, b"to all").unwrap();
    }
    for n in 0..16u8 {
        assert_eq!(two.worker.outbox().send(twos[0], &[n; 9]), Err(SendError::Full));
        assert_eq!(two.worker.outbox().send_now(twos[0], &[n; 9]), Err(SendError::Full));
    }
    settle(&mut [&mut one, &mut two]);
    let got: Vec<u8> = one
        .worker
        .handler()
        .got
        .iter()
        .filter(|(from, bytes, _)| *from == ones[0] && bytes != b"fill")
        .map(|(_, bytes, _)| bytes[0])
        .collect();
    assert_eq!(got, (100..120).collect::<Vec<_>>());
}

/// Replies that find the send queue full wait in order and are not lost. Meanwhile their blocks are
/// missing from the shared queue, which slows that peer and nobody else.
#[test]
fn replies_wait_for_room_in_order() {
    let big = Config { send_queue: 256, recv_blocks: 256, ..CONFIG };
    let small = Config { send_queue: 4, signal_every: 2, ..CONFIG };
    let (mut one, mut two) = (side(&big, false), side(&small, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    for n in 0..200 {
        one.worker.outbox().send(peer, &payload(n, 24)).unwrap();
        if n % 16 == 0 {
            one.worker.outbox().flush();
            two.worker.turn();
        }
    }
    one.worker.outbox().flush();
    for _ in 0..50 {
        two.worker.turn();
    }
    assert!(two.worker.stats().deferred > 0, "the queue of four was never full");
    settle(&mut [&mut one, &mut two]);
    assert_in_order(one.worker.handler(), 200, 24);
}
