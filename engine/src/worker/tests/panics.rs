//! Handlers that panic, where the caller of the turn catches that.

use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::provider::Poller;
use crate::remote::RequestOp;
use crate::wc::Wc;
use crate::wr::SendOp;

/// Records what it is given, and panics at one message in three, at some peers that come up, at the
/// first request that ends and at the first peer that goes.
#[derive(Default)]
struct Shaky {
    up: Vec<PeerId>,
    got: Vec<Vec<u8>>,
    echo: bool,
    fails_up: bool,
    ended: Vec<u64>,
    down: Vec<PeerId>,
}

impl Handler<Soft> for Shaky {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, Soft>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        assert!(!self.got.len().is_multiple_of(3), "planned");
        if self.echo { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, Soft>) {
        self.up.push(peer);
        assert!(!self.fails_up, "planned");
    }

    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        _: Result<(), Status>,
        _: &mut Outbox<'_, Soft>,
    ) {
        self.ended.push(token);
        assert!(self.ended.len() > 1, "planned");
    }

    fn on_peer_down(&mut self, peer: PeerId, _: DownReason, _: &mut Outbox<'_, Soft>) {
        self.down.push(peer);
        assert!(self.down.len() > 1, "planned");
    }
}

/// Runs a turn; returns whether its handler panicked.
fn turn(side: &mut Side<Shaky>) -> bool {
    catch_unwind(AssertUnwindSafe(|| side.worker.turn())).is_err()
}

/// A turn on a device that finds each completion alone.
fn turn_alone(side: &mut Side<Shaky>) -> bool {
    let mut wc = [Wc::default()];
    assert_eq!(side.worker.core.poller.poll(&mut wc), 1);
    catch_unwind(AssertUnwindSafe(|| side.worker.turn_one(&wc[0]))).is_err()
}

/// The messages behind one at which the handler panics come with the next turn, once and in order,
/// before anything newer. No block is lost, and no credit.
#[test]
fn a_panic_costs_no_message_and_no_block() {
    let plain = Config { send_queue: 64, ..CONFIG };
    let counted = Config { window: 14, window_min: 14, refill: 4, ..plain };
    for (config, echo) in [(plain, false), (counted, false), (plain, true), (counted, true)] {
        let mut one = side(&config, false);
        let mut two = side_of(&config, Shaky { echo, ..Shaky::default() });
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        let (mut sent, mut panics) = (0, 0);
        for burst in 1..400 {
            // Some alone, some many to a poll.
            let burst = [1, 1, 7, 2, 16, 1, 1, 1][burst % 8];
            for _ in 0..burst {
                if one.worker.outbox().send(peer, &payload(sent, 24)).is_ok() {
                    sent += 1;
                }
            }
            one.worker.turn();
            panics += usize::from(turn(&mut two));
            panics += usize::from(turn(&mut two));
            one.worker.turn();
        }
        for _ in 0..2000 {
            panics += usize::from(turn(&mut two));
            one.worker.turn();
        }
        let got = &two.worker.handler.got;
        assert!(sent > 1000, "{sent}");
        assert_eq!((got.len(), panics), (sent, sent / 3));
        assert!(got.iter().enumerate().all(|(n, bytes)| *bytes == payload(n, 24)));
        assert_eq!(two.worker.stats().received, sent as u64);
        let echoes = if echo { sent - panics } else { 0 };
        assert_eq!(one.worker.handler().got.len(), echoes);
        assert_eq!(two.worker.recv_blocks_home() as u64 + two.worker.stats().refilled, sent as u64);
    }
}

/// No block is lost either if the handler panics when it learns of a peer by its first message.
#[test]
fn a_panic_at_a_peer_that_comes_up_costs_no_block() {
    let config = Config { send_queue: 64, ..CONFIG };
    let mut one = side(&config, false);
    let mut two = side_of(&config, Shaky { fails_up: true, ..Shaky::default() });
    let nums = admit(&mut one, &mut two);
    assert!(one.intake.up(nums.one, nums.greeting));
    one.worker.turn();
    let peer = one.only_peer();
    for n in 0..5 {
        one.worker.outbox().send(peer, &payload(n, 24)).unwrap();
    }
    one.worker.turn();
    assert!(turn(&mut two), "it hears of the peer");
    for _ in 0..50 {
        turn(&mut two);
    }
    let (worker, want) = (&two.worker, (1..5).map(|n| payload(n, 24)).collect::<Vec<_>>());
    assert_eq!(worker.handler.got, want, "the first went with the panic");
    assert_eq!(worker.recv_blocks_home() as u64 + worker.stats().refilled, 5);
}

/// A completion that is found together with mail is not lost if the handler panics at the mail,
/// however many are left from turns before, and however often it panics.
#[test]
fn a_panic_at_another_peer_costs_no_message() {
    let config = Config { peers: 128, send_queue: 256, recv_blocks: 256, ..CONFIG };
    for first in [0, 1, POLL_BATCH] {
        let mut one = side(&config, false);
        let mut two = side_of(&config, Shaky::default());
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        two.worker.handler.fails_up = true;
        let mut sent = 0;
        for burst in once(first).chain([1; POLL_BATCH + 4]) {
            for _ in 0..burst {
                one.worker.outbox().send(peer, &payload(sent, 24)).unwrap();
                sent += 1;
            }
            one.worker.turn();
            let nums = admit(&mut one, &mut two);
            assert!(two.intake.up(nums.two, Greeting::default()));
            let panicked = match sent == first {
                true => turn(&mut two),
                false => turn_alone(&mut two),
            };
            assert!(panicked, "it hears of a peer");
        }
        for _ in 0..100 {
            turn(&mut two);
        }
        let want = (0..sent).map(|n| payload(n, 24)).collect::<Vec<_>>();
        assert_eq!(two.worker.handler.got, want, "{first}");
        assert_eq!(two.worker.recv_blocks_home() as u64 + two.worker.stats().refilled, sent as u64);
    }
}

/// The messages that came before a peer's handshake come to the handler after its panics, too.
#[test]
fn a_panic_at_a_peer_strands_no_early_message() {
    let mut one = side_of(&CONFIG, Shaky { fails_up: true, ..Shaky::default() });
    let mut two = side(&CONFIG, false);
    let nums = admit(&mut one, &mut two);
    assert!(two.intake.up(nums.two, Greeting::default()));
    two.worker.turn();
    let back = two.only_peer();
    for n in 0..8 {
        two.worker.outbox().send(back, &payload(n, 24)).unwrap();
    }
    for _ in 0..50 {
        two.worker.turn();
        assert!(!turn(&mut one), "it does not hear of the peer yet");
    }
    assert!(one.intake.up(nums.one, nums.greeting));
    let panics = (0..50).filter(|_| turn(&mut one)).count();
    let worker = &one.worker;
    assert_eq!((panics, worker.handler.up.len()), (3, 1), "at the peer, and at two messages");
    assert_eq!(worker.handler.got, (0..8).map(|n| payload(n, 24)).collect::<Vec<_>>());
    assert_eq!(worker.recv_blocks_home() as u64 + worker.stats().refilled, 8);
}

/// A panic at the end of a request or of a peer leaves nothing: the other requests are answered,
/// the peer is reported once, and its slot is free again.
#[test]
fn a_panic_at_the_end_of_a_peer_leaves_no_half_closed_one() {
    let mut one = side_of(&LONE, Shaky::default());
    let mut two = side(&CONFIG, false);
    connect(&mut one, &mut two);
    let peer = one.worker.handler.up[0];
    for token in 0..3 {
        let op = RequestOp::unchecked(SendOp::Send);
        let request = Request { op, pieces: &[], fence: false, token };
        one.worker.outbox().request(peer, &request).unwrap();
    }
    // Without a queue pair it does not drain: its time passes.
    one.worker.outbox().flush();
    drop(one.worker.core.sender.peers.get(peer).unwrap().qp.take());
    one.worker.outbox().close(peer);
    let panics = (0..2 * CONFIG.drain_turns).filter(|_| turn(&mut one)).count();
    let Shaky { ended, down, .. } = &one.worker.handler;
    assert_eq!((panics, ended.as_slice(), down.as_slice()), (2, &[0, 1, 2][..], &[peer][..]));
    assert_eq!((one.worker.peers(), one.worker.pending()), (0, 0));
    assert_eq!(one.worker.outbox().send(peer, &[]), Err(SendError::NotConnected));
    connect(&mut one, &mut two);
    let next = one.worker.handler.up[1];
    assert_eq!(next.slot, peer.slot);
    one.worker.outbox().send(next, b"here").unwrap();
    for _ in 0..50 {
        turn(&mut one);
        two.worker.turn();
    }
    assert_eq!(two.worker.handler().got.last().unwrap().1, b"here");
}
