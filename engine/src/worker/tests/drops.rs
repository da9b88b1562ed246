//! Workers that are dropped without a drain: what they have of a shared queue goes back to it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::credits::COUNTED;
use super::*;
use crate::provider::Poller;

const BLOCKS: u32 = 32;
const SMALL: Config = Config { recv_blocks: BLOCKS, keeps: BLOCKS, ..CONFIG };
const CLIENT: Config = Config { send_queue: 64, send_blocks: 64, ..CONFIG };

/// What a handler does with a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Nothing,
    Keep,
    Reply,
    Panic,
}

/// Does the same with each message, and counts its calls.
struct Steady<'a> {
    does: Does,
    calls: &'a mut u32,
}

impl<'a> Steady<'a> {
    fn new(does: Does, calls: &'a mut u32) -> Steady<'a> {
        Steady { does, calls }
    }
}

impl<P: Provider> Handler<P> for Steady<'_> {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        *self.calls += 1;
        match self.does {
            Does::Nothing => Verdict::Done,
            Does::Keep => out.keep(&message).map_or(Verdict::Done, Verdict::Keep),
            Does::Reply => Verdict::Reply { len: message.len() },
            Does::Panic => panic!("planned"),
        }
    }
    fn on_peer_up(&mut self, _: PeerId, _: &mut Outbox<'_, P>) {
        *self.calls += 1;
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        *self.calls += 1;
    }
}

/// Sends that many messages, which go out, and are not inline.
fn send(client: &mut Side, count: usize) {
    let peer = client.only_peer();
    for n in 0..count {
        client.worker.outbox().send(peer, &payload(n, 300)).unwrap();
    }
    client.worker.outbox().flush();
}

/// A worker comes to the state that `prepare` makes, and is dropped. Then another worker on the
/// same queue keeps one message in each block. No call comes from the drop.
fn check(does: Does, prepare: impl FnOnce(&mut Side, Side<Steady<'_>>) -> u32) {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let memory = shared(&nic, &SMALL);
    let (mut calls, mut others) = (0, 0);
    let first = handled(&nic, &memory, &SMALL, Steady::new(does, &mut calls));
    let mut client = side(&CLIENT, false);
    let calls_before = prepare(&mut client, first);
    assert_eq!(calls, calls_before, "the drop called the handler");

    let mut other = handled(&nic, &memory, &SMALL, Steady::new(Does::Keep, &mut others));
    let mut client = side(&CLIENT, false);
    connect(&mut client, &mut other);
    send(&mut client, BLOCKS as usize);
    for _ in 0..100 {
        other.worker.turn();
        client.worker.turn();
    }
    assert_eq!(other.worker.kept(), BLOCKS as usize);
}

/// Drops a worker, and checks that its control plane hears of the end alone; returns the calls.
fn end(first: Side<Steady<'_>>) -> u32 {
    let calls = *first.worker.handler().calls;
    drop(first.worker);
    assert!(first.intake.has_ended());
    assert_eq!(first.intake.next_closing(), None);
    calls
}

/// Fewer blocks are free than make a post.
#[test]
fn free_blocks_go_back() {
    check(Does::Nothing, |client, mut first| {
        connect(client, &mut first);
        send(client, 5);
        first.worker.turn();
        assert_eq!(first.worker.recv_blocks_home(), 5);
        end(first)
    });
}

/// Some messages have come, and their completions wait; one was polled by a turn that another
/// panic ended.
#[test]
fn messages_that_were_not_polled_go_back() {
    check(Does::Nothing, |client, mut first| {
        connect(client, &mut first);
        send(client, 5);
        let core = &mut first.worker.core;
        assert_eq!(core.poller.poll(&mut core.wcs[..1]), 1);
        core.left = 1;
        end(first)
    });
}

#[test]
fn kept_messages_go_back() {
    check(Does::Keep, |client, mut first| {
        connect(client, &mut first);
        send(client, 12);
        first.worker.turn();
        assert_eq!(first.worker.kept(), 12);
        end(first)
    });
}

/// The client's control plane has not told the worker yet what the peer says of itself.
#[test]
fn early_messages_go_back() {
    check(Does::Nothing, |client, mut first| {
        let nums = admit(&mut first, client);
        assert!(client.intake.up(nums.two, Greeting::default()));
        client.worker.turn();
        send(client, 5);
        first.worker.turn();
        assert_eq!((*first.worker.handler().calls, first.worker.recv_blocks_home()), (0, 0));
        end(first)
    });
}

#[test]
fn deferred_replies_go_back() {
    check(Does::Reply, |client, mut first| {
        connect(client, &mut first);
        let peer = first.worker.outbox().next_peer(None).unwrap();
        while first.worker.outbox().send(peer, b"fill").is_ok() {}
        send(client, 12);
        first.worker.turn();
        assert_eq!(first.worker.stats().deferred, 12);
        end(first)
    });
}

/// The peer takes no reply before the worker is dropped.
#[test]
fn blocks_of_sends_in_flight_go_back() {
    check(Does::Reply, |client, mut first| {
        connect(client, &mut first);
        send(client, 12);
        first.worker.turn();
        assert_eq!((first.worker.in_flight(), first.worker.stats().deferred), (12, 0));
        end(first)
    });
}

/// Their queue pair does not drain.
#[test]
fn blocks_of_sends_that_never_end_go_back() {
    check(Does::Reply, |client, mut first| {
        connect(client, &mut first);
        send(client, 12);
        first.worker.turn();
        drop(first.worker.core.sender.peers.at(0).unwrap().qp.take());
        assert_eq!(first.worker.in_flight(), 12);
        end(first)
    });
}

/// The caller of the turn catches the panic, and drops the worker later.
#[test]
fn messages_behind_a_panic_go_back() {
    check(Does::Panic, |client, mut first| {
        connect(client, &mut first);
        send(client, 12);
        assert!(catch_unwind(AssertUnwindSafe(|| first.worker.turn())).is_err());
        assert_eq!(first.worker.core.left, 11);
        end(first)
    });
}

/// The panic unwinds the thread, and the worker goes meanwhile.
#[test]
fn a_panic_that_takes_the_worker_along_gives_back() {
    check(Does::Panic, |client, mut first| {
        connect(client, &mut first);
        send(client, 12);
        let calls = *first.worker.handler().calls;
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let mut worker = first.worker;
            worker.turn()
        }));
        assert!(unwound.is_err());
        calls + 1
    });
}

/// A drained worker has blocks that it has not posted.
#[test]
fn a_drained_worker_gives_back_the_rest() {
    check(Does::Keep, |client, mut first| {
        connect(client, &mut first);
        send(client, 5);
        first.worker.turn();
        let undone = first.worker.drain(|| false);
        assert_eq!((undone.peers, undone.kept, first.worker.peers()), (1, 5, 0));
        assert_eq!(first.worker.recv_blocks_home(), 5);
        drop(first.intake);
        let calls = *first.worker.handler().calls;
        drop(first.worker);
        calls
    });
}

/// What is set aside for the refill list of a worker goes back with it.
#[test]
fn workers_may_come_and_go_for_ever() {
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let memory = shared(&nic, &COUNTED);
    let figures = || (memory.promises().spare(), memory.promises().share());
    let before = figures();
    for _ in 0..20 {
        let one = worker(&nic, &memory, &COUNTED, false);
        assert!(figures() < before);
        drop(one);
        assert_eq!(figures(), before);
    }
}

/// What a handler borrows may be read while the worker is still there: the end of a worker does not
/// use its handler.
#[test]
fn a_handler_may_borrow() {
    let mut calls = 0;
    let mut one = side(&CONFIG, false);
    let mut two = side_of(&CONFIG, Steady::new(Does::Nothing, &mut calls));
    connect(&mut one, &mut two);
    send(&mut one, 3);
    two.worker.turn();
    assert_eq!(calls, 4);
}
