//! Messages kept beyond the call, and timers.

use std::collections::BTreeSet;

use super::*;

/// Keeps what it can, and never replies by itself.
#[derive(Default)]
struct Keeper {
    tokens: Vec<Token>,
    full: usize,
    /// Asks for a token and then returns another verdict.
    fickle: bool,
    /// Returns `Keep` with a token of another message.
    stale: bool,
    /// Does so without asking for a token.
    silent: bool,
    down: Vec<Option<u8>>,
    fired: Vec<u64>,
    /// Sets another timer, for now or for the past.
    again: bool,
    past: bool,
    /// The addresses of the messages.
    blocks: BTreeSet<usize>,
}

impl<P: Provider> Handler<P> for Keeper {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.blocks.insert(message.bytes().as_ptr() as usize);
        if let (true, Some(token)) = (self.stale, self.tokens.first()) {
            let _ = if self.silent { None } else { out.keep(&message) };
            return Verdict::Keep(*token);
        }
        let Some(token) = out.keep(&message) else {
            self.full += 1;
            return Verdict::Done;
        };
        assert!(out.kept(token).is_none(), "not before the verdict");
        self.tokens.push(token);
        if self.fickle { Verdict::Done } else { Verdict::Keep(token) }
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, out: &mut Outbox<'_, P>) {
        let first = |token: &Token| out.kept(*token).map(|message| message.bytes()[0]);
        self.down = self.tokens.iter().map(first).collect();
    }
    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        self.fired.push(key);
        if self.again {
            let at = if self.past { 0 } else { out.now() };
            assert!(out.set_timer(at, key + 1).is_some());
        }
    }
}

fn pair(handler: Keeper) -> (Side, Side<Keeper>, (u32, u32)) {
    let (mut one, mut two) = (side(&CONFIG, false), side_of(&CONFIG, handler));
    let nums = connect(&mut one, &mut two);
    (one, two, nums)
}

fn send(one: &mut Side, two: &mut Side<Keeper>, numbers: std::ops::Range<u8>) {
    let peer = one.only_peer();
    for number in numbers {
        one.worker.outbox().send(peer, &[number; 300]).unwrap();
        turns(one, two);
    }
}

fn turns(one: &mut Side, two: &mut Side<Keeper>) {
    for _ in 0..200 {
        one.worker.turn();
        two.worker.turn();
    }
}

/// Kept messages stay unchanged while others come and go, are answered in any order, and each token
/// works once.
#[test]
fn kept_messages_are_answered_later_each_once() {
    let (mut one, mut two, _) = pair(Keeper::default());
    send(&mut one, &mut two, 0..4);
    send(&mut one, &mut two, 4..200);
    assert_eq!((two.worker.handler().full, two.worker.kept()), (196, 4));
    assert_eq!(two.worker.core.sender.peers.at(0).unwrap().kept, 4);
    let tokens = two.worker.handler().tokens.clone();
    for (n, token) in tokens.iter().enumerate().rev() {
        let mut out = two.worker.outbox();
        let mut message = out.kept(*token).unwrap();
        assert_eq!(message.bytes(), &[n as u8; 300]);
        message.block()[0] = 100 + n as u8;
        assert_eq!(out.reply(*token, 200), Ok(()));
        assert_eq!(out.reply(*token, 200), Err(SendError::NotConnected));
        assert!(out.kept(*token).is_none() && !out.give_back(*token));
    }
    turns(&mut one, &mut two);
    let got = &one.worker.handler().got;
    let heads: Vec<_> = got.iter().map(|(_, bytes, _)| (bytes[0], bytes.len())).collect();
    assert_eq!(heads, [(103, 200), (102, 200), (101, 200), (100, 200)]);
    // Their places are reused under other names.
    send(&mut one, &mut two, 0..2);
    let new = two.worker.handler_mut().tokens.split_off(4);
    assert!(new.len() == 2 && new.iter().all(|token| !tokens.contains(token)));
    assert!(tokens.iter().all(|old| two.worker.outbox().kept(*old).is_none()));
    for token in new {
        assert!(two.worker.outbox().give_back(token) && !two.worker.outbox().give_back(token));
    }
    assert_eq!((two.worker.kept(), two.worker.outbox().keep_room()), (0, 4));
    assert_eq!(two.worker.core.sender.peers.at(0).unwrap().kept, 0);
    assert_all_receives_go_round(&mut one, &mut two);
}

/// A token that is not followed by the verdict names nothing, and costs nothing.
#[test]
fn a_token_without_the_verdict_keeps_nothing() {
    let (mut one, mut two, _) = pair(Keeper { fickle: true, ..Keeper::default() });
    send(&mut one, &mut two, 0..100);
    assert_eq!((two.worker.kept(), two.worker.handler().full), (0, 0));
    for token in two.worker.handler().tokens.clone() {
        assert!(two.worker.outbox().kept(token).is_none());
    }
    assert_all_receives_go_round(&mut one, &mut two);
}

/// The verdict with the token of another message keeps nothing, though one was asked for in the
/// same call; the other message stays as it is.
#[test]
fn a_verdict_with_the_token_of_another_message_keeps_nothing() {
    let (mut one, mut two, _) = pair(Keeper { stale: true, ..Keeper::default() });
    send(&mut one, &mut two, 0..100);
    assert_eq!((two.worker.kept(), two.worker.handler().tokens.len()), (1, 1));
    let token = two.worker.handler().tokens[0];
    assert_eq!(two.worker.outbox().kept(token).unwrap().bytes(), &[0; 300]);
    assert!(two.worker.outbox().give_back(token));
    two.worker.handler_mut().stale = false;
    assert_all_receives_go_round(&mut one, &mut two);
}

/// A token that was not used names no later message, though that comes in the same block.
#[test]
fn an_unused_token_keeps_no_later_message_in_its_block() {
    let (mut one, mut two, _) = pair(Keeper { fickle: true, ..Keeper::default() });
    send(&mut one, &mut two, 0..1);
    let mut other = side(&CONFIG, false);
    connect(&mut other, &mut two);
    (two.worker.handler_mut().stale, two.worker.handler_mut().silent) = (true, true);
    send(&mut other, &mut two, 0..2 * CONFIG.recv_blocks as u8);
    let hands = two.worker.handler();
    assert_eq!((hands.blocks.len(), two.worker.kept()), (CONFIG.recv_blocks as usize, 0));
}

/// Lost tokens leak nothing: the kept messages of a peer can be read when it goes, and come home.
#[test]
fn kept_messages_of_a_lost_peer_come_home() {
    let (mut one, mut two, nums) = pair(Keeper::default());
    send(&mut one, &mut two, 7..10);
    assert_eq!(two.worker.kept(), 3);
    assert!(one.intake.gone(nums.0) && two.intake.gone(nums.1));
    turns(&mut one, &mut two);
    assert_eq!(two.worker.handler().down, [Some(7), Some(8), Some(9)]);
    assert_eq!((two.worker.kept(), two.worker.peers()), (0, 0));
    let token = two.worker.handler().tokens[0];
    assert!(two.worker.outbox().reply(token, 1) == Err(SendError::NotConnected));
    two.worker.handler_mut().tokens.clear();
    connect(&mut one, &mut two);
    assert_all_receives_go_round(&mut one, &mut two);
}

/// No receive block is missing: one message after the other uses all of them.
fn assert_all_receives_go_round(one: &mut Side, two: &mut Side<Keeper>) {
    two.worker.handler_mut().fickle = true;
    two.worker.handler_mut().blocks.clear();
    send(one, two, 0..150);
    assert_eq!(two.worker.handler().blocks.len(), CONFIG.recv_blocks as usize);
}

/// Timers fire in order, once, and not early. A handler that sets a timer that is due at once does
/// not hold the worker in one call.
#[test]
fn timers_fire_once_and_in_order() {
    let (_, mut two, _) = pair(Keeper::default());
    let mut out = two.worker.outbox();
    let ids: Vec<_> = [30, 10, 20, 10].map(|at| out.set_timer(at, at).unwrap()).into();
    assert_eq!(out.set_timer(1, 1), None, "all are set");
    assert!(out.cancel_timer(ids[1]) && !out.cancel_timer(ids[1]));
    assert_eq!(two.worker.next_timer(), Some(10));
    assert_eq!(two.worker.advance(9), 0);
    assert_eq!(two.worker.advance(25), 2);
    assert_eq!((two.worker.outbox().now(), two.worker.advance(3)), (25, 0), "time stays");
    assert_eq!(two.worker.advance(40), 1);
    assert_eq!(two.worker.handler().fired, [10, 20, 30]);
    two.worker.handler_mut().again = true;
    two.worker.outbox().set_timer(0, 100).unwrap();
    assert_eq!((two.worker.advance(41), two.worker.advance(41)), (1, 1));
    assert_eq!(two.worker.handler().fired[3..], [100, 101]);
}

/// A handler that sets a timer for a time that is over keeps no other back.
#[test]
fn timers_set_for_the_past_keep_no_other_back() {
    let (_, mut two, _) = pair(Keeper { again: true, past: true, ..Keeper::default() });
    two.worker.advance(50);
    let mut out = two.worker.outbox();
    assert!(out.set_timer(50, 10).is_some() && out.set_timer(50, 20).is_some());
    assert_eq!(two.worker.advance(50), 2);
    assert_eq!(two.worker.handler().fired, [10, 20]);
    assert_eq!(two.worker.advance(50), 2);
    assert_eq!(two.worker.handler().fired[2..], [11, 21]);
}

/// Enough blocks for a whole post, given back between two turns, are posted with the next turn,
/// although it finds nothing.
#[test]
fn blocks_given_back_between_turns_are_posted_with_the_next() {
    let config = Config { keeps: 8, refill: 8, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side_of(&config, Keeper::default()));
    connect(&mut one, &mut two);
    for round in 0..5 {
        send(&mut one, &mut two, 0..8);
        let tokens = std::mem::take(&mut two.worker.handler_mut().tokens);
        (0..round).for_each(|_| assert_eq!(two.worker.turn(), 0));
        for token in tokens {
            assert!(two.worker.outbox().give_back(token));
        }
        assert_eq!((two.worker.recv_blocks_home(), two.worker.turn()), (8, 0));
        assert_eq!(two.worker.recv_blocks_home(), 0, "round {round}");
    }
}
