//! A list of messages has the effect of single sends.

use super::*;

/// Lengths of each kind: inline, in a block, empty.
fn lengths(round: usize) -> Vec<usize> {
    (0..round % 40).map(|n| [8, 64, 8, 0, 65, 8, 33, 8, 8, 200, 8][(n + round) % 11]).collect()
}

/// Sends a list, and after a turn of each side the rest that back-pressure left.
fn send(one: &mut Side, two: &mut Side, peer: PeerId, mut list: &[&[u8]]) {
    while let Err(ListError { accepted, cause }) = one.worker.outbox().send_list(peer, list) {
        assert!(accepted < list.len());
        assert!(cause.is_back_pressure(), "{cause}");
        list = &list[accepted..];
        one.worker.turn();
        two.worker.turn();
    }
}

/// Whatever is in the way (windows, full queues, completions that are due, reservations of single
/// sends), each message arrives once, in order, and is counted once.
#[test]
fn a_list_arrives_as_single_sends_would() {
    for (window, send_queue) in [(0, 16), (8, 16), (16, 64), (32, 256)] {
        let config = Config { window, send_queue, signal_every: send_queue / 2, ..CONFIG };
        let (mut one, mut two) = (side(&config, false), side(&config, false));
        connect(&mut one, &mut two);
        let peer = one.only_peer();
        let (mut want, mut uncounted_singles) = (Vec::new(), 0);
        for round in 0..200 {
            let first = want.len();
            want.extend(lengths(round).iter().enumerate().map(|(n, len)| payload(first + n, *len)));
            let list: Vec<_> = want[first..].iter().map(Vec::as_slice).collect();
            // The first of them one by one, as far as they go.
            let single = |bytes: &&&[u8]| one.worker.outbox().send(peer, bytes).is_ok();
            let before = list.iter().take(round % 5).take_while(single).count();
            uncounted_singles += before;
            send(&mut one, &mut two, peer, &list[before..]);
            if round % 3 == 0 {
                one.worker.outbox().flush();
                two.worker.turn();
            }
        }
        settle(&mut [&mut one, &mut two]);
        let got: Vec<_> = two.worker.handler_mut().got.drain(..).map(|got| got.1).collect();
        assert!(got == want, "{} of {}", got.len(), want.len());
        assert!(uncounted_singles > 10, "{uncounted_singles}");
        let stats = one.worker.stats();
        assert_eq!((stats.sent, one.worker.in_flight()), (want.len() as u64, 0));
        assert_eq!(one.worker.send_blocks_home(), config.send_blocks as usize);
    }
}

/// Replies to each message with three.
struct Three;

impl<P: Provider> Handler<P> for Three {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let bytes = message.bytes();
        out.send_list(message.peer(), &[bytes; 3]).unwrap();
        Verdict::Done
    }
}

/// The first reply of a list rings at once, so that the peer can begin with it.
#[test]
fn the_first_of_an_answer_rings_at_once() {
    let config = Config { send_queue: 256, signal_every: 128, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side_of(&config, Three));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    for round in 0..20 {
        one.worker.outbox().send_now(peer, b"question").unwrap();
        let before = two.worker.stats().doorbells;
        for _ in 0..20 {
            two.worker.turn();
        }
        // Not the very first: it checks the room.
        let doorbells = two.worker.stats().doorbells - before;
        assert!(doorbells == 2 || round == 0 && doorbells == 1, "{doorbells} in round {round}");
        for _ in 0..20 {
            one.worker.turn();
        }
        assert_eq!(one.worker.handler().got.len(), 3 * (round + 1));
    }
}

/// A list rings with the flush, and for each full batch. Messages sent one by one fill a batch
/// sooner, because their peer could take the first already.
#[test]
fn a_list_gathers_more_for_a_doorbell_than_single_messages() {
    let config = Config { recv_blocks: 1024, refill: 32, send_queue: 256, ..CONFIG };
    let config = Config { signal_every: 128, ..config };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let doorbells = |side: &Side| side.worker.stats().doorbells;
    let list = [&b"12345678"[..]; 100];
    // The very first checks the room.
    one.worker.outbox().send_list(peer, &list[..1]).unwrap();
    one.worker.outbox().flush();
    let before = doorbells(&one);
    one.worker.outbox().send_list(peer, &list[..10]).unwrap();
    assert_eq!(doorbells(&one), before, "nobody rings before the flush");
    one.worker.outbox().flush();
    assert_eq!(doorbells(&one), before + 1);
    one.worker.outbox().send_list(peer, &list).unwrap();
    assert_eq!(doorbells(&one), before + 2, "a full batch");
    one.worker.outbox().flush();
    assert_eq!((doorbells(&one), two.worker.turn()), (before + 3, POLL_BATCH));
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().got.len(), 111);
    for _ in 0..2 {
        let before = doorbells(&one);
        for sent in 1..=30 {
            one.worker.outbox().send(peer, list[0]).unwrap();
            let full = [STORE_BATCH, 3 * STORE_BATCH].iter().filter(|full| sent >= **full).count();
            assert_eq!(doorbells(&one), before + full as u64, "after {sent}");
        }
        one.worker.outbox().flush();
        assert_eq!(doorbells(&one), before + 3);
        settle(&mut [&mut one, &mut two]);
    }
    assert_eq!(two.worker.handler().got.len(), 171);
}

/// A message of a list that asks for a completion goes alone, and rings for nothing.
#[test]
fn a_list_with_a_message_that_asks_for_a_completion_rings_once() {
    let config = Config { recv_blocks: 1024, refill: 32, send_queue: 256, ..CONFIG };
    let config = Config { signal_every: 12, ..config };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    one.worker.outbox().send(peer, b"12345678").unwrap();
    settle(&mut [&mut one, &mut two]);
    let before = one.worker.stats().doorbells;
    for rung in 1..10 {
        one.worker.outbox().send_list(peer, &[&b"12345678"[..]; 16]).unwrap();
        assert_eq!(one.worker.stats().doorbells, before + rung - 1);
        one.worker.outbox().flush();
        assert_eq!(one.worker.stats().doorbells, before + rung);
        settle(&mut [&mut one, &mut two]);
    }
}

/// A peer without enough credit, or one that is gone: how many messages were accepted, and why not
/// the next.
#[test]
fn a_list_says_how_much_of_it_went() {
    let config = Config { window: 8, window_min: 8, send_queue: 64, ..CONFIG };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let long = [0; 513];
    let odd = [&b"good"[..], b"good", &long, b"good"];
    let too_long = ListError { accepted: 2, cause: SendError::TooLong };
    assert_eq!(one.worker.outbox().send_list(peer, &odd), Err(too_long));
    // One credit is reserved for replies.
    let rest = ListError { accepted: 5, cause: SendError::NoCredit };
    assert_eq!(one.worker.outbox().send_list(peer, &[&b"good"[..]; 20]), Err(rest));
    assert_eq!(one.worker.outbox().send_list(peer, &[]), Ok(()));
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().got.len(), 7);
    one.worker.outbox().close(peer);
    settle(&mut [&mut one, &mut two]);
    let gone = ListError { accepted: 0, cause: SendError::NotConnected };
    assert_eq!(one.worker.outbox().send_list(peer, &[&b"late"[..]; 3]), Err(gone));
    assert!(std::format!("{gone}").contains("0 messages of the list were taken"));
}
