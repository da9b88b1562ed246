//! Graceful ends.

use super::*;

const NARROW: Config = Config { window: 4, window_min: 4, ..CONFIG };

/// Everything that was accepted arrives, whatever it had to wait for. Nothing is accepted after
/// that, and the peer is closed once.
#[test]
fn accepted_messages_arrive_before_the_end() {
    for (config, length) in [(CONFIG, 16), (CONFIG, 300), (NARROW, 16), (NARROW, 300)] {
        for count in [0, 1, 2, 7, 16] {
            let (mut one, mut two) = (side(&config, false), side(&config, false));
            let (num, other) = connect(&mut one, &mut two);
            let peer = one.only_peer();
            let mut sent = 0;
            while sent < count && one.worker.outbox().send(peer, &payload(sent, length)).is_ok() {
                sent += 1;
            }
            one.worker.outbox().finish(peer);
            one.worker.outbox().finish(peer);
            assert_eq!(one.worker.outbox().send(peer, &[]), Err(SendError::NotConnected));
            assert_eq!(one.worker.outbox().send_now(peer, &[]), Err(SendError::NotConnected));
            assert_eq!(one.worker.outbox().room(peer), 0);
            let turns = (0..5000).take_while(|_| {
                one.worker.turn();
                two.worker.turn();
                one.intake.next_closing().is_none()
            });
            assert!(turns.count() < 100, "it waits for the time limit");
            // The control plane passes it on as soon as it can.
            assert!(one.intake.gone(num) && two.intake.gone(other));
            settle(&mut [&mut one, &mut two]);
            assert_in_order(two.worker.handler(), sent, length);
            assert_eq!(one.worker.handler().down, [(peer, DownReason::Closed)]);
            assert_eq!(two.worker.handler().down.len(), 1);
            assert_blocks_home(&one, &config);
        }
    }
}

/// Replies that wait for credit are accepted messages too.
#[test]
fn replies_that_wait_arrive_before_the_end() {
    let (mut one, mut two) = (side(&NARROW, false), side(&CONFIG, true));
    let (_, _) = connect(&mut one, &mut two);
    let peer = one.only_peer();
    for n in 0..16 {
        one.worker.outbox().send(peer, &payload(n, 24)).unwrap();
    }
    one.worker.outbox().flush();
    for _ in 0..3 {
        two.worker.turn();
    }
    assert!(two.worker.stats().deferred > 4, "there was credit for all");
    let back = two.only_peer();
    two.worker.outbox().finish(back);
    settle(&mut [&mut one, &mut two]);
    assert_in_order(one.worker.handler(), 16, 24);
    assert_eq!(two.worker.handler().down, [(back, DownReason::Closed)]);
}

/// A peer that acknowledges nothing is closed in the end; one that is lost meanwhile is not waited
/// for.
#[test]
fn an_end_does_not_wait_for_ever() {
    let (mut one, mut two) = (side(&CONFIG, false), side(&CONFIG, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"to nobody").unwrap();
    one.worker.outbox().finish(peer);
    let turns = (0..5000).take_while(|_| {
        one.worker.turn();
        one.intake.next_closing().is_none()
    });
    assert_eq!(turns.count() as u64, CONFIG.drain_turns);
    settle(&mut [&mut one]);
    assert_eq!(one.worker.handler().down, [(peer, DownReason::CutOff)]);
    let (num, _) = connect(&mut one, &mut two);
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"to nobody").unwrap();
    one.worker.outbox().finish(peer);
    one.worker.turn();
    assert!(one.intake.gone(num));
    settle(&mut [&mut one, &mut two]);
    assert_eq!(one.worker.handler().down.len(), 2);
    assert_eq!(one.worker.handler().down[1], (peer, DownReason::Disconnected));
}

/// Keeps every message, as long as it may.
#[derive(Default)]
struct Holder {
    up: Vec<PeerId>,
    tokens: Vec<Token>,
    got: usize,
}

impl<P: Provider> Handler<P> for Holder {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        match out.keep(&message) {
            Some(token) => {
                self.tokens.push(token);
                Verdict::Keep(token)
            }
            None => Verdict::Done,
        }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
}

/// All posted sends are acknowledged, but replies still wait for credit: the peer is not finished.
#[test]
fn replies_without_credit_hold_up_the_end() {
    let (mut one, mut two) = (side_of(&NARROW, Holder::default()), side(&CONFIG, true));
    connect(&mut one, &mut two);
    let peer = one.worker.handler().up[0];
    for n in 0..10 {
        one.worker.outbox().send(peer, &payload(n, 24)).unwrap();
    }
    let turns = |one: &mut Side<Holder>, two: &mut Side| {
        for _ in 0..100 {
            one.worker.turn();
            two.worker.turn();
        }
    };
    turns(&mut one, &mut two);
    let back = two.only_peer();
    two.worker.outbox().finish(back);
    turns(&mut one, &mut two);
    assert_eq!((one.worker.handler().got, two.worker.handler().down.len()), (4, 0));
    while one.worker.handler().got < 10 {
        let tokens = std::mem::take(&mut one.worker.handler_mut().tokens);
        assert!(!tokens.is_empty(), "no more comes");
        for token in tokens {
            one.worker.outbox().give_back(token);
        }
        turns(&mut one, &mut two);
    }
    assert_eq!(two.worker.handler().down, [(back, DownReason::Closed)]);
}
