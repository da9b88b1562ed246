//! When doorbells ring, and the number of requests in flight.

use std::cell::RefCell;
use std::rc::Rc;

use super::credits::settle_credits;
use super::*;

/// Passes one message in eight on to the first peer.
#[derive(Default)]
struct Relay {
    up: Vec<PeerId>,
    got: usize,
    passed: u64,
}

impl<P: Provider> Handler<P> for Relay {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        if self.got.is_multiple_of(8) {
            out.send(self.up[0], message.bytes()).unwrap();
            self.passed += 1;
        }
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
}

/// Messages per doorbell of a relay to which `burst` messages come at a time.
fn messages_per_doorbell(hold_turns: u32, burst: usize) -> f64 {
    let config = Config { recv_blocks: 1024, refill: 32, hold_turns, ..CONFIG };
    let config = Config { send_queue: 256, signal_every: 32, ..config };
    let (mut relay, mut client) = (side_of(&config, Relay::default()), side(&config, false));
    connect(&mut client, &mut relay);
    connect(&mut client, &mut relay);
    let flood = client.worker.handler().up[1];
    for round in 1..50 {
        for n in 0..burst {
            client.worker.outbox().send(flood, &payload(n, 8)).unwrap();
        }
        client.worker.outbox().flush();
        relay.worker.turn();
        if burst < POLL_BATCH {
            let passed = relay.worker.handler().passed;
            assert_eq!(relay.worker.stats().sent, passed, "a short poll rings at once");
        }
        for _ in 0..20 {
            relay.worker.turn();
        }
        assert_eq!(relay.worker.handler().got, round * burst);
        let passed = relay.worker.handler().passed;
        assert_eq!(relay.worker.stats().sent, passed, "none is left");
        for _ in 0..20 {
            client.worker.turn();
            relay.worker.turn();
        }
    }
    relay.worker.handler().passed as f64 / relay.worker.stats().doorbells as f64
}

/// Under load messages wait for others, so that one doorbell serves several; a single message rings
/// at once.
#[test]
fn batches_grow_under_load() {
    // Eight from each of three full polls.
    assert!(messages_per_doorbell(0, 192) < 8.5);
    // Eight, and then sixteen.
    assert!(messages_per_doorbell(3, 192) > 11.5);
    assert_eq!((messages_per_doorbell(0, 8), messages_per_doorbell(3, 8)), (1.0, 1.0));
}

/// The first reply to a short poll rings at once, so that the peer can begin; one doorbell serves
/// the rest.
#[test]
fn the_first_of_several_rings_at_once() {
    assert_eq!(messages_per_doorbell(3, 16), 1.0, "two");
    assert_eq!(messages_per_doorbell(3, 24), 1.5, "three");
}

/// Replies, and turns all clients before each of them.
struct Watched {
    clients: Rc<RefCell<Vec<Side>>>,
    /// The replies that had come before each reply.
    before: Vec<usize>,
}

impl<P: Provider> Handler<P> for Watched {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        let mut come = 0;
        for client in self.clients.borrow_mut().iter_mut() {
            client.worker.turn();
            come += client.worker.handler().got.len();
        }
        self.before.push(come);
        Verdict::Reply { len: message.len() }
    }
}

/// Of messages of several peers that one poll takes, each reply rings at once.
#[test]
fn a_reply_to_a_message_that_stands_alone_rings_at_once() {
    const CLIENTS: usize = 4;
    let clients = Rc::new(RefCell::new(Vec::new()));
    let watched = Watched { clients: clients.clone(), before: Vec::new() };
    let mut server = side_of(&CONFIG, watched);
    for _ in 0..CLIENTS {
        let mut client = side(&CONFIG, false);
        connect(&mut client, &mut server);
        clients.borrow_mut().push(client);
    }
    let mut together = 0;
    for round in 0..20 {
        for client in clients.borrow_mut().iter_mut() {
            client.worker.handler_mut().got.clear();
            let peer = client.only_peer();
            client.worker.outbox().send_now(peer, &payload(round, 24)).unwrap();
        }
        server.worker.handler_mut().before.clear();
        // Some links may rest: then a poll takes fewer messages.
        for _ in 0..CLIENTS {
            together += usize::from(server.worker.turn() >= 3);
        }
        assert_eq!(server.worker.handler().before, [0, 1, 2, 3], "round {round}");
        clients.borrow_mut().iter_mut().for_each(|client| _ = client.worker.turn());
    }
    assert!(together > 10, "{together} polls took several messages");
}

/// A reply waits no longer than allowed, even if every poll is full.
#[test]
fn the_bound_holds_while_polls_are_full() {
    let config = Config { recv_blocks: 1024, refill: 32, hold_turns: 2, ..CONFIG };
    let config = Config { send_queue: 256, signal_every: 32, ..config };
    let (mut server, mut client) = (side(&config, false), side(&config, false));
    connect(&mut client, &mut server);
    connect(&mut client, &mut server);
    let (flooding, calm) = (server.worker.handler().up[0], server.worker.handler().up[1]);
    let flood = client.worker.handler().up[0];
    for round in 0..20 {
        for n in 0..200 {
            client.worker.outbox().send(flood, &payload(n, 8)).unwrap();
        }
        client.worker.outbox().flush();
        server.worker.outbox().send(calm, b"for whom nobody waits").unwrap();
        let doorbells = server.worker.stats().doorbells;
        let mut turns = 0;
        while server.worker.stats().doorbells == doorbells {
            assert_eq!(server.worker.turn(), POLL_BATCH, "the polls are full");
            turns += 1;
        }
        assert_eq!(turns, 3, "round {round}");
        assert!(server.worker.outbox().room(flooding) > 0);
        settle(&mut [&mut server, &mut client]);
    }
}

/// Idle peers that have sent a few messages without a completion hold no more than half of the
/// requests in flight, so others can always go on.
#[test]
fn idle_peers_strand_nothing() {
    let config = Config {
        peers: 64,
        recv_blocks: 1024,
        refill: 32,
        send_queue: 64,
        signal_every: 32,
        sends: 256,
        ..CONFIG
    };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    for _ in 0..64 {
        connect(&mut one, &mut two);
    }
    let peers = one.worker.handler().up.clone();
    for (n, peer) in peers.iter().enumerate() {
        for m in 0..10 {
            let mut tries = 0;
            while one.worker.outbox().send(*peer, &payload(m, 16)).is_err() {
                settle(&mut [&mut one, &mut two]);
                tries += 1;
                assert!(tries < 10, "message {m} to peer {n} is never accepted");
            }
        }
        settle(&mut [&mut one, &mut two]);
        assert!(one.worker.in_flight() <= 128);
        assert_eq!(two.worker.handler().got.len(), 10 * (n + 1), "peer {n}");
    }
    for peer in &peers {
        one.worker.outbox().close(*peer);
    }
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.in_flight(), 0);
}

/// The completion queue's depth follows the limit of requests in flight, not the sum over all
/// peers.
#[test]
fn the_completion_queue_does_not_count_every_send_of_every_peer() {
    let many = Config { peers: 10_000, ..Config::DEFAULT };
    let mut caps = side(&CONFIG, false).nic.caps().clone();
    let blocks = Config::DEFAULT.recv_blocks;
    let depth =
        |caps: &crate::provider::Caps, config| setup::completions(caps, config, blocks).ok();
    assert_eq!(depth(&caps, &many), Some((1024 + (1 << 14) + 10_000, 1 << 14)));
    let few = Config { peers: 2, ..Config::DEFAULT };
    assert_eq!(depth(&caps, &few), Some((1024 + 2 * 257 + 2, 1 << 14)));
    // A device with shorter queues: fewer requests are in flight, down to the least.
    for (cqe_max, sends) in [(20_000, Some(8976)), (11_280, Some(256)), (11_279, None)] {
        caps.cqe_max = cqe_max;
        assert_eq!(depth(&caps, &many), sends.map(|sends| (cqe_max, sends)));
    }
    let error = setup::completions(&caps, &many, blocks).unwrap_err();
    assert!(std::format!("{error}").contains("lower Config::recv_blocks"), "{error}");
}

/// A reply to a single message rings at once, between turns too; further replies gather.
#[test]
fn the_first_send_after_a_single_message_rings_at_once() {
    let config = Config { send_queue: 128, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let (here, there) = (one.only_peer(), two.only_peer());
    for round in 1..20 {
        two.worker.outbox().send(there, &payload(round, 16)).unwrap();
        two.worker.turn();
        while one.worker.turn() == 0 {}
        let before = two.worker.handler().got.len();
        for n in 0..3 {
            one.worker.outbox().send(here, &payload(n, 16)).unwrap();
        }
        two.worker.turn();
        assert_eq!(two.worker.handler().got.len() - before, 1, "round {round}");
        one.worker.turn();
        settle(&mut [&mut one, &mut two]);
        assert_eq!(two.worker.handler().got.len() - before, 3);
    }
}

/// A message that is to ring now takes those before it along: one doorbell serves all, whether the
/// last of them ended a reservation or not, and nothing waits for a flush.
#[test]
fn a_message_that_rings_now_takes_those_before_it_along() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
    connect(&mut one, &mut two);
    connect(&mut one, &mut two);
    let [peer, other] = [0, 1].map(|n| one.worker.handler().up[n]);
    let mut sent = 0;
    for round in 0..200 {
        let before = one.worker.stats();
        let count = round % 9;
        for _ in 0..count {
            one.worker.outbox().send(peer, &payload(sent, 24)).unwrap();
            sent += 1;
        }
        let rang = one.worker.stats().doorbells - before.doorbells;
        // In half of the rounds the other peer is the last in the list.
        let other_waits = round % 2 == 0;
        if other_waits {
            one.worker.outbox().send(other, b"later").unwrap();
        }
        one.worker.outbox().send_now(peer, &payload(sent, 24)).unwrap();
        sent += 1;
        let sender = &mut one.worker.core.sender;
        assert_eq!(sender.peers.at(peer.slot).unwrap().sq.pending, 0, "round {round}");
        // A batch that was just full has rung, and leaves its peer in the list.
        let waits = sender.has_unsent();
        assert!(if other_waits { waits } else { !waits || count == STORE_BATCH }, "round {round}");
        let after = one.worker.stats();
        assert_eq!(after.sent - before.sent, count as u64 + 1, "round {round}");
        assert_eq!(after.doorbells - before.doorbells, rang + 1, "round {round}");
        // What is sent behind it waits for the flush.
        one.worker.outbox().send(peer, &payload(sent, 24)).unwrap();
        sent += 1;
        assert!(one.worker.core.sender.has_unsent(), "round {round}");
        settle(&mut [&mut one, &mut two]);
        assert!(!one.worker.core.sender.has_unsent(), "round {round}");
    }
    let all = two.worker.handler().got.len();
    assert_eq!(all, sent + 100, "the other peer's messages have come, too");
    let got = two.worker.handler().got.iter().filter(|(_, bytes, _)| bytes.len() == 24);
    for (n, (_, bytes, _)) in got.clone().enumerate() {
        assert_eq!(*bytes, payload(n, 24), "message {n}");
    }
    assert_eq!(got.count(), sent);
}

/// A reply that finds its peer's budget used up opens it anew, and still rings at once: else it
/// would wait for the end of the turn, and travel behind the slot.
#[test]
fn a_reply_that_opens_the_budget_rings_at_once() {
    let config = Config { send_queue: 128, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let mut seen = 0;
    for round in 0..40 {
        one.worker.outbox().send_now(peer, &payload(round, 16)).unwrap();
        let sender = &mut two.worker.core.sender;
        if let Some(peer) = sender.peers.at(0) {
            peer.sq.close_budget();
        }
        sender.accounts.count_singles();
        let alone = two.worker.alone;
        assert_eq!(two.worker.turn(), 1);
        // A full turn counts at its end what was sent at once, so only short turns tell.
        if two.worker.alone > alone {
            assert_eq!(two.worker.core.sender.accounts.uncounted_singles, 1, "round {round}");
            seen += 1;
        }
        two.worker.turn();
        settle(&mut [&mut one, &mut two]);
    }
    assert!(seen > 20, "{seen} short turns");
}

/// In a ping-pong no message finds its budget used up: each completion of a send renews it.
#[test]
fn completions_keep_the_budget_open() {
    let windows = Config { window: 40, window_min: 40, recv_blocks: 256, ..CONFIG };
    let config = Config { send_queue: 128, signal_every: 16, ..windows };
    let (mut one, mut two) = (side(&config, false), side(&config, true));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    for round in 0..400 {
        one.worker.outbox().send_now(peer, &payload(round, 16)).unwrap();
        for side in [&mut two, &mut one] {
            assert_eq!(side.worker.turn().min(1), 1, "round {round}");
            side.worker.turn();
            let peer = side.worker.core.sender.peers.at(0);
            let is_open = peer.is_some_and(|peer| peer.sq.has_budget::<true>());
            assert!(is_open || round < 2, "round {round}");
        }
    }
}

/// Reservations block nobody and count for nothing at the end: between two doorbells more peers get
/// messages than the watermark leaves reservations for.
#[test]
fn reservations_do_not_last() {
    let config = Config {
        peers: 64,
        recv_blocks: 1024,
        send_queue: 64,
        signal_every: 32,
        sends: 256,
        ..CONFIG
    };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    for _ in 0..64 {
        connect(&mut one, &mut two);
    }
    let (peers, mut sent) = (one.worker.handler().up.clone(), 0);
    for round in 0..50 {
        for (n, peer) in peers.iter().enumerate() {
            for _ in 0..(n + round) % 3 {
                let batches =
                    one.worker.in_flight() >= 128 || !one.worker.core.sender.batches.are_idle();
                one.worker.outbox().send(*peer, &payload(sent, 16)).unwrap();
                sent += 1;
                assert!(one.worker.in_flight() <= 128, "{}", one.worker.in_flight());
                assert!(
                    batches || one.worker.core.sender.batches.are_idle(),
                    "it was in nobody's way"
                );
            }
        }
        one.worker.outbox().flush();
        assert_eq!(
            one.worker.core.sender.accounts.in_flight.count as usize,
            one.worker.in_flight(),
            "all reservations are over"
        );
        settle(&mut [&mut one, &mut two]);
        assert_eq!(two.worker.handler().got.len(), sent);
        assert_eq!(one.worker.stats().sent as usize, sent);
    }
    for peer in &peers {
        one.worker.outbox().send(*peer, b"the last").unwrap();
        one.worker.outbox().close(*peer);
    }
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.in_flight(), 0);
}

/// Quiet peers, each with a send or two that no completion has ended, do not keep the others at the
/// watermark, or near it: the review ends their sends. One each is the least number for that, and
/// the words of the review stay below the watermark. Two each are at the watermark.
#[test]
fn quiet_peers_do_not_keep_others_at_the_watermark() {
    for each in [1, 2] {
        let config = Config { peers: 64, recv_blocks: 1024, send_queue: 64, sends: 256, ..CONFIG };
        let (mut one, mut two) = (side(&config, false), side(&config, false));
        for _ in 0..64 {
            connect(&mut one, &mut two);
        }
        let peers = one.worker.handler().up.clone();
        for peer in &peers {
            for _ in 0..each {
                one.worker.outbox().send(*peer, b"the last for long").unwrap();
            }
        }
        settle(&mut [&mut one, &mut two]);
        assert_eq!(one.worker.in_flight(), 64 * each);
        settle_credits(&mut one);
        settle(&mut [&mut one, &mut two]);
        assert_eq!(one.worker.in_flight(), 0, "{each} each");
        let (busy, before) = (peers[7], one.worker.stats().completions);
        for n in 0..5 {
            one.worker.outbox().send_now(busy, &payload(n, 16)).unwrap();
            settle(&mut [&mut one, &mut two]);
        }
        assert_eq!(one.worker.stats().completions, before, "none asks for a completion by itself");
        assert_eq!(two.worker.handler().got.len(), 64 * each + 5);
    }
}

/// Every event that may come between two messages of a reservation, in every order of a few: all
/// messages arrive once and in order, none exceeds what the peer has promised to take, and nothing
/// is left behind.
#[test]
fn whatever_comes_between_messages_of_a_burst_keeps_its_place() {
    let config = Config { send_queue: 64, signal_every: 16, window: 40, refill: 4, ..CONFIG };
    let config = Config { recv_blocks: 512, ..config };
    let mut seed = 1u64;
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let mut sent = 0;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = |length| payload(sent, length);
        let free = one.worker.send_blocks_home();
        let mut out = one.worker.outbox();
        let room = out.room(peer);
        let went = match seed >> 59 {
            0 => out.send_now(peer, &bytes(20)),
            1 => out.send_imm(peer, &bytes(20), 1),
            2 => out.send(peer, &bytes(65)),
            3 => {
                one.worker.turn();
                continue;
            }
            4 => {
                two.worker.turn();
                continue;
            }
            5 => {
                out.flush();
                continue;
            }
            _ => out.send(peer, &bytes(24)),
        };
        sent += usize::from(went.is_ok());
        let inline = one.worker.send_blocks_home() == free;
        assert!(inline == (went.is_err() || seed >> 59 != 2), "message {sent} of 65 bytes");
        assert!(went.is_err() || room > 0, "message {sent} had no credit");
    }
    settle(&mut [&mut one, &mut two]);
    assert!(sent > 5_000, "{sent}");
    let got = &two.worker.handler().got;
    assert_eq!(got.len(), sent);
    for (n, (_, bytes, _)) in got.iter().enumerate() {
        assert_eq!(*bytes, payload(n, bytes.len()), "message {n}");
    }
    assert!(two.worker.handler().down.is_empty());
    one.worker.outbox().close(peer);
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.in_flight(), 0);
}

/// The name of a peer that is gone names nobody, even while the next peer in its slot has a
/// reservation.
#[test]
fn a_burst_is_for_the_peer_it_was_begun_for() {
    let (mut one, mut two) = (side(&LONE, false), side(&CONFIG, false));
    connect(&mut one, &mut two);
    let gone = one.only_peer();
    one.worker.outbox().close(gone);
    settle(&mut [&mut one, &mut two]);
    connect(&mut one, &mut two);
    let here = one.only_peer();
    assert_eq!((here.slot, one.worker.handler().down.len()), (gone.slot, 1));
    for n in 0..4 {
        one.worker.outbox().send(here, &payload(n, 8)).unwrap();
        let lost = one.worker.outbox().send(gone, b"whose?");
        assert_eq!(lost, Err(SendError::NotConnected));
    }
    settle(&mut [&mut one, &mut two]);
    assert_in_order(two.worker.handler(), 4, 8);
}
