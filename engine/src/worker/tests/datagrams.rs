//! Datagrams that the device refuses. `cm/tests/scenarios/datagrams.rs` tests the others.

use super::*;
use crate::wr::{AhName, Destination, SendOp};

/// A well-formed datagram that the device refuses for another reason is not called malformed: here
/// the queue pair is not ready to send.
#[test]
fn a_datagram_that_comes_too_early_is_not_malformed() {
    let mut one = side(&CONFIG, false);
    let qp = one.qp();
    let Core { datagrams, sender, .. } = &mut one.worker.core;
    datagrams.open(qp, &sender.accounts);
    let to = Destination { ah: AhName(0), qpn: 1, qkey: 1 };
    let sent = datagrams.post(SendOp::SendTo(to), b"datagram", 0, &mut sender.accounts);
    assert_eq!(sent, Err(SendError::NotConnected));
}
