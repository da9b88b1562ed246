//! Messages about as long as a record may be.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::wrap::sent;
use super::*;
use crate::wc::Status;

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

/// A list of long messages arrives unchanged, wherever a lap ends and however late the receiver
/// polls: the sender never writes over bytes that the receiver has not read.
#[test]
fn lists_of_long_messages_keep_their_bytes() {
    let caps = QpCaps { send_wr: 64, ..CAPS };
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut one, mut two) = pair(caps, true);
        one.poll();
        let (mut posted, mut taken, mut expected) = (0, 0, std::collections::VecDeque::new());
        let mut turns = 0;
        while taken < 400 {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: nothing comes after message {taken}");
            // Both sides use 32 blocks in turn; fewer messages than that are on their way.
            while posted - taken < 24 && random.next_u32() % 4 != 0 {
                let [first, second] = [0, 1].map(|n| {
                    let at = (posted + n) % 32 * 4096;
                    let length = 4096 - (random.next_u32() % 3 * 8) as usize;
                    let bytes = pattern(posted + n, length);
                    one.fill(at, &bytes);
                    two.recv(0, at, 4096);
                    expected.push_back((at, bytes));
                    let op = if random.next_u32() % 2 == 0 {
                        SendOp::Send
                    } else {
                        SendOp::SendWithImm(3)
                    };
                    SendWr {
                        wr_id: 0,
                        op,
                        flags: SendFlags::SIGNALED,
                        sge: one.sge(at, length),
                        more: &[],
                    }
                });
                one.post_list(&[first, second]).unwrap();
                posted += 2;
            }
            let mut out = [Wc::default(); 4];
            let some = two.poller.poll(&mut out[..random.next_u32() as usize % 4 + 1]);
            for wc in &out[..some] {
                let (at, bytes) = expected.pop_front().unwrap();
                assert_eq!(wc.status, Status::Success);
                assert!(two.bytes(at, bytes.len()) == bytes, "seed {seed}, message {taken}");
                taken += 1;
            }
            one.poll();
        }
    }
}
