//! How many records a message takes.

use super::wrap::sent;
use super::*;

/// A message of a block of the default configuration is one record, with immediate data too, and
/// one byte more adds a second record of two words.
#[test]
fn a_message_of_a_default_block_is_one_record() {
    let (mut one, mut two) = pair(CAPS, true);
    for (op, length, bytes) in [
        (SendOp::Send, 4080, 4088),
        (SendOp::Send, 4088, 4096),
        (SendOp::Send, 4096, 4104),
        (SendOp::SendWithImm(7), 4096, 4112),
        (SendOp::Send, 4097, 4104 + 16),
    ] {
        two.recv(1, 0, 8192);
        // The queue pairs are connected by now.
        one.poll();
        let before = sent(&one);
        one.post(1, op, one.sge(0, length), SendFlags::SIGNALED).unwrap();
        assert_eq!(sent(&one) - before, bytes, "{op:?} of {length}");
        assert_eq!(settle(&mut one, &mut two).1.len(), 1);
    }
}
