//! A poll of the shared domain that finds nothing has looked at everything: a program that has
//! armed its queue sleeps then.

use doorbell_seam::provider::{Poller, Provider, QpType, Sharing};
use doorbell_seam::wc::Wc;

use super::rendezvous_tests::{Side, next_of, queue_pair};

/// A post that looks for space learns how far the peer has taken messages. A poll behind it has no
/// news then, and tells of them all the same.
#[test]
fn a_poll_tells_what_a_post_has_learned() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    // Three messages each: their records fill a segment of the ring, where a post looks for space,
    // with each of them in turn.
    for round in 0..6000 {
        (0..3).for_each(|_| two.receive());
        one.send(&[]);
        next_of(&mut two);
        (0..2).for_each(|_| one.send(&[]));
        assert!(one.poll().is_some(), "round {round}: the first message was taken");
        for _ in 0..2 {
            next_of(&mut two);
            next_of(&mut one);
        }
    }
}

/// An acknowledgement completes a send in one queue. A poll of the other queue finds the message
/// that has come as well.
#[test]
fn an_acknowledgement_hides_no_message() {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let (sends, _poller) = one.device.create_cq(16, Sharing::Shared).unwrap();
    let (receives, mut poller) = one.device.create_cq(16, Sharing::Shared).unwrap();
    one.qp = queue_pair(&one.device, QpType::Rc, [&sends, &receives]);
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    for round in 0..4 {
        two.receive();
        one.send(&[]);
        next_of(&mut two);
        one.receive();
        two.send(&[]);
        assert_eq!(poller.poll(&mut [Wc::default()]), 1, "round {round}: a message has come");
        next_of(&mut two);
    }
}

/// An entry that a poll of its queue makes and takes at once still wakes whoever has armed the
/// queue, as an entry that came before the poll does.
#[test]
fn an_entry_of_an_armed_queue_is_told_although_a_poll_takes_it() {
    let (mut one, mut two) = connected();
    for armed in [false, true, false] {
        two.receive();
        if armed {
            two.poller.arm(false).unwrap();
        }
        one.send(&[]);
        let mut out = [Wc::default(); 4];
        assert_eq!(two.poller.poll(&mut out), 1);
        assert_eq!((out[0].wr_id, two.poller.woken()), (2, armed));
        next_of(&mut one);
    }
}

/// One message there and one back. Returns the numbers of the completions of the first side, in
/// order.
fn exchange(one: &mut Side, two: &mut Side) -> [u64; 2] {
    two.receive();
    one.receive();
    one.send(&[]);
    assert_eq!(next_of(two).wr_id, 2, "a message");
    two.send(&[]);
    let told = [next_of(one).wr_id, next_of(one).wr_id];
    assert_eq!(next_of(two).wr_id, 1, "the reply was taken");
    told
}

fn connected() -> (Side, Side) {
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    one.connect(two.name()).unwrap();
    two.connect(one.name()).unwrap();
    (one, two)
}

/// A reply that carries an acknowledgement completes the send first, as a NIC does: a program that
/// sees the reply has room for the next send.
#[test]
fn a_send_completes_before_the_reply_to_it() {
    let (mut one, mut two) = connected();
    two.poller.promise_polls(true);
    for round in 0..40 {
        assert_eq!(exchange(&mut one, &mut two), [1, 2], "round {round}");
    }
}

/// Where replies follow messages, an acknowledgement waits for the reply; but only if somebody
/// promises to poll, and not beyond the next poll.
#[test]
fn an_acknowledgement_waits_for_a_reply_where_polls_are_promised() {
    for promised in [true, false] {
        let (mut one, mut two) = connected();
        two.poller.promise_polls(promised);
        (0..40).for_each(|_| _ = exchange(&mut one, &mut two));
        two.receive();
        one.send(&[]);
        assert_eq!(next_of(&mut two).wr_id, 2);
        let at_once = (0..100).find_map(|_| one.poll()).is_some();
        assert_eq!(at_once, !promised);
        if promised {
            // The promise is taken back, and a poll follows.
            two.poller.promise_polls(false);
            assert_eq!(two.poll(), None);
            assert_eq!(next_of(&mut one).wr_id, 1);
        }
        // It has waited in vain, or not at all. A late reply does not make the next one wait.
        one.receive();
        two.send(&[]);
        assert_eq!([next_of(&mut one).wr_id, next_of(&mut two).wr_id], [2, 1]);
        two.poller.promise_polls(promised);
        two.receive();
        one.send(&[]);
        assert_eq!(next_of(&mut two).wr_id, 2);
        assert_eq!(next_of(&mut one).wr_id, 1);
    }
}

/// A poll without places is one in place of the program, as the thread of `cm/dropin` makes it. No
/// reply follows from it, so it acknowledges at once, also what a poll of the program has taken.
#[test]
fn a_poll_in_place_of_the_program_acknowledges_at_once() {
    for taken in [false, true] {
        let (mut one, mut two) = connected();
        two.poller.promise_polls(true);
        (0..40).for_each(|_| _ = exchange(&mut one, &mut two));
        two.receive();
        one.send(&[]);
        if taken {
            assert_eq!(next_of(&mut two).wr_id, 2);
            assert_eq!((0..100).find_map(|_| one.poll()), None, "it waits for a reply");
        }
        assert_eq!(two.poller.poll(&mut []), 0);
        assert_eq!(next_of(&mut one).wr_id, 1);
    }
}

/// As above, for the look of a thread that sleeps until its queue has an entry, and is woken.
#[test]
fn a_thread_that_was_woken_acknowledges_at_once() {
    let (mut one, mut two) = connected();
    two.poller.promise_polls(true);
    two.poller.arm(false).unwrap();
    (0..40).for_each(|_| _ = exchange(&mut one, &mut two));
    assert!(two.poller.woken());
    two.poller.arm(false).unwrap();
    two.receive();
    one.send(&[]);
    assert!(two.poller.woken(), "the message has come");
    assert_eq!(next_of(&mut one).wr_id, 1);
}
