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
