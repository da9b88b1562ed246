//! Long messages whose bytes the receiver copies from the sender's memory.

use core::sync::atomic::{AtomicBool, fence};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::local_rdma::{device, mapped_pair_of, near_with};
use super::wrap::{of_link, sent};
use super::*;
use crate::model::buffers::Target;
use crate::provider::Polled;
use crate::shm::layout::{LENT_OPERANDS, SLOT_PAYLOAD_MAX, record_bytes};
use crate::shm::offer::{OFFER_MAX, Offer};
use crate::shm::remote_map::{LENT_AHEAD_MAX, NotLent};
use crate::state::policy::copying::Distance;
use crate::steps::lend::LIST_COPY_MAX;
use crate::wc::Status;

const SIGNALED: SendFlags = SendFlags::SIGNALED;
/// Bytes in the ring of a message whose bytes are lent.
const LENT: u64 = record_bytes(LENT_OPERANDS as u64);

/// Memory that no peer may write to.
pub(super) fn lender(nic: Soft) -> End {
    let region = nic.register(readable(4 << 20), Access::LOCAL_WRITE).unwrap();
    near_with(nic, region)
}

fn lenders() -> (End, End) {
    mapped_pair_of(lender).0
}

/// Sends one message, which is taken; returns the bytes that it took in the ring.
fn pass(one: &mut End, two: &mut End, length: usize) -> u64 {
    let bytes = pattern(length, length);
    one.fill(0, &bytes);
    two.recv(7, 2 << 20, length);
    let before = sent(one);
    one.send(1, 0, length, SIGNALED).unwrap();
    let (done, got) = settle(one, two);
    assert_eq!((done.len(), done[0].status), (1, Status::Success), "{length}");
    assert_eq!((got.len(), got[0].status, got[0].wr_id), (1, Status::Success, 7), "{length}");
    assert_eq!(got[0].byte_len as usize, length);
    assert!(two.bytes(2 << 20, length) == bytes, "{length} bytes");
    sent(one) - before
}

/// The bytes of a long message are copied once: the ring holds where they are, and no byte of them.
#[test]
fn the_bytes_of_a_long_message_do_not_pass_the_ring() {
    let (mut one, mut two) = lenders();
    let first = SLOT_PAYLOAD_MAX as usize + 1;
    for length in [first, first + 1, 4096, 4097, OFFER_MAX as usize, 1 << 20] {
        let pieces = length.div_ceil(OFFER_MAX as usize) as u64;
        assert_eq!(pass(&mut one, &mut two, length), pieces * LENT, "{length}");
    }
    assert_eq!(pass(&mut one, &mut two, first - 1), record_bytes(first as u64 - 1), "short");
}

/// In a list, messages up to a length are copied through the ring, and longer ones are lent.
#[test]
fn a_list_lends_longer_messages_than_one_message_alone() {
    let most = LIST_COPY_MAX as usize;
    for (length, each) in [(most, record_bytes(most as u64)), (most + 1, LENT)] {
        let (mut one, mut two) = lenders();
        let bytes = pattern(5, 2 * length);
        one.fill(0, &bytes);
        two.recv(7, 2 << 20, length);
        two.recv(8, (2 << 20) + length, length);
        let wr = |n: usize| SendWr {
            wr_id: n as u64,
            op: SendOp::Send,
            flags: SIGNALED,
            sge: one.sge(n * length, length),
            more: &[],
        };
        let (list, before) = ([wr(0), wr(1)], sent(&one));
        one.post_list(&list).unwrap();
        let (done, got) = settle(&mut one, &mut two);
        assert_eq!((done.len(), got.len()), (2, 2), "{length}");
        assert!(two.bytes(2 << 20, 2 * length) == bytes, "{length} bytes");
        assert_eq!(sent(&one) - before, 2 * each, "{length}");
    }
}

/// A side that has lent gets the lines of its receive before it copies, some at a time, and the
/// bytes arrive all the same.
#[test]
fn an_answer_arrives_whole_though_its_receive_is_filled_in_steps() {
    let (mut one, mut two) = lenders();
    for length in [2049, 4096, 4097, 10_000, OFFER_MAX as usize, 100_000] {
        pass(&mut one, &mut two, length);
        assert!(of_link(&one, |link| link.lending.lent), "{length}");
        pass(&mut two, &mut one, length);
        assert!(!of_link(&one, |link| link.lending.lent), "{length}");
    }
}

/// A message from a far core, whose lines this side flushes, arrives whole as well; and so does the
/// next one from the same memory.
#[test]
fn a_message_arrives_whole_though_its_lines_are_flushed() {
    let (mut one, mut two) = lenders();
    for length in [4096, 4097, 100_000, OFFER_MAX as usize, 1 << 20] {
        of_link(&two, |link| link.lending.distance = Distance::far());
        pass(&mut one, &mut two, length);
        pass(&mut one, &mut two, length - 1);
    }
}

/// The first message from a region that is newer than the link goes through the ring, and asks the
/// peer to map the region. So does that from a region of which there were too many.
#[test]
fn a_region_is_asked_for_once() {
    let first = 16 + record_bytes(2000);
    let (mut one, mut two) = lenders();
    one.region = one.nic.register(readable(8192), Access::LOCAL_WRITE).unwrap();
    assert_eq!(pass(&mut one, &mut two, 2000), first, "a newer region");
    assert_eq!(pass(&mut one, &mut two, 2000), LENT);
    let many = |nic: Soft| {
        for _ in 0..LENT_AHEAD_MAX {
            let other = nic.register(readable(8192), Access::LOCAL_WRITE).unwrap();
            core::mem::forget(other);
        }
        lender(nic)
    };
    let (mut one, mut two) = mapped_pair_of(many).0;
    assert_eq!(pass(&mut one, &mut two, 2000), first, "one of many");
    assert_eq!(pass(&mut one, &mut two, 2000), LENT);
}

/// RC-1: without a receive the message waits, whole. What is in the sender's memory when it is
/// taken arrives: there is no other copy.
#[test]
fn rc_1_a_lent_message_waits_for_its_receive() {
    let (mut one, mut two) = lenders();
    one.send(1, 0, 5000, SIGNALED).unwrap();
    for _ in 0..100 {
        assert!(one.poll().is_empty() && two.poll().is_empty());
    }
    let late = pattern(9, 5000);
    one.fill(0, &late);
    two.recv(1, 1 << 20, 5000);
    assert_eq!(settle(&mut one, &mut two).1.len(), 1);
    assert_eq!(two.bytes(1 << 20, 5000), late);
}

/// A lent message that is under way arrives though its sender changes what the peer may do.
#[test]
fn other_rights_take_no_lent_message_back() {
    let (mut one, mut two) = lenders();
    let bytes = pattern(3, 5000);
    one.fill(0, &bytes);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    one.qp.control().set_rights(Access::empty());
    one.poll();
    two.recv(1, 1 << 20, 5000);
    let (done, got) = settle(&mut one, &mut two);
    assert_eq!((done[0].status, got[0].status), (Status::Success, Status::Success));
    assert_eq!(two.bytes(1 << 20, 5000), bytes);
    assert_eq!(pass(&mut one, &mut two, 5000), LENT);
}

/// Messages of all lengths, lent and not, with and without immediate data, alone and in lists,
/// arrive in the order of posting, whole, however late the receiver polls.
#[test]
fn messages_keep_their_order_and_their_bytes() {
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut one, mut two) = lenders();
        let (mut posted, mut expected) = (0_u64, std::collections::VecDeque::new());
        let (mut taken, mut done, mut turns) = (0_u64, 0, 0);
        while taken < 200 {
            turns += 1;
            assert!(turns < 100_000, "seed {seed}: nothing comes after message {taken}");
            while posted < done + 16 && random.next_u32() % 3 != 0 {
                let count = 1 + random.next_u32() % 3;
                let list: Vec<_> = (0..u64::from(count))
                    .map(|n| {
                        let at = ((posted + n) % 32) as usize * (100 << 10);
                        let most = [64, 1000, 5000, 100 << 10][random.next_u32() as usize % 4];
                        let length = 1 + random.next_u32() as usize % most;
                        let bytes = pattern((posted + n) as usize, length);
                        one.fill(at, &bytes);
                        two.recv(posted + n, at, length);
                        expected.push_back((at, bytes));
                        let imm = random.next_u32() % 3 == 0;
                        let op = if imm { SendOp::SendWithImm(5) } else { SendOp::Send };
                        let sge = one.sge(at, length);
                        SendWr { wr_id: posted + n, op, flags: SIGNALED, sge, more: &[] }
                    })
                    .collect();
                one.post_list(&list).unwrap();
                posted += u64::from(count);
            }
            for wc in two.poll() {
                let (at, bytes) = expected.pop_front().unwrap();
                assert_eq!((wc.status, wc.wr_id), (Status::Success, taken), "seed {seed}");
                assert!(two.bytes(at, bytes.len()) == bytes, "seed {seed}, message {taken}");
                taken += 1;
            }
            if random.next_u32() % 2 == 0 {
                done += one.poll().len() as u64;
            }
        }
    }
}

/// A poll copies a bounded number of bytes for one link, and goes on where it stopped.
#[test]
fn a_poll_copies_a_part_of_a_very_long_message() {
    let (mut one, mut two) = lenders();
    let length = 1 << 20;
    one.fill(0, &pattern(3, length));
    two.recv(1, 2 << 20, length);
    one.send(1, 0, length, SIGNALED).unwrap();
    let polls = (1..50).find(|_| !two.poll().is_empty()).unwrap();
    assert_eq!(polls, 4, "256 KiB each");
    assert_eq!(two.bytes(2 << 20, length), pattern(3, length));
}

/// SM-3: when a queue pair fails, its sends are flushed, and the program may use their memory. The
/// peer then takes neither the messages whose bytes were lent nor anything behind them.
#[test]
fn sm_3_a_failed_sender_lends_nothing() {
    for last in ["fail", "fail and deregister", "reset"] {
        let (mut one, mut two) = lenders();
        for n in 0..3 {
            two.recv(n, (2 << 20) + n as usize * 8192, 8192);
        }
        one.send(1, 0, 5000, SIGNALED).unwrap();
        one.send(2, 0, 8, SIGNALED).unwrap();
        match last {
            "reset" => one.qp.reset(),
            _ => one.qp.fail(),
        }
        one.poll();
        one.fill(0, &[0xee; 5000]);
        if last == "fail and deregister" {
            let other = one.nic.register(readable(4096), Access::LOCAL_WRITE).unwrap();
            drop(core::mem::replace(&mut one.region, other));
        }
        for _ in 0..100 {
            let got = two.poll();
            assert!(got.is_empty(), "after {last}: {got:?}");
        }
        // The rest of its device goes on.
        two.qp.fail();
        let flushed: Vec<_> = (0..20).flat_map(|_| two.poll()).collect();
        assert!(flushed.iter().all(|wc| wc.status == Status::Flushed), "{flushed:?}");
    }
}

/// A queue pair that has connected again is another sender: a message of its earlier connection
/// does not come to life.
#[test]
fn sm_3_a_message_of_an_earlier_connection_stays_dead() {
    let ((mut one, mut two), _first) = mapped_pair_of(lender);
    two.recv(1, 2 << 20, 8192);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    one.qp.reset();
    one.poll();
    // To another peer, which need not take anything.
    let (mut other, _) = lenders();
    other.qp.reset();
    other.poll();
    let _second = join(&mut one.qp, &mut other.qp, 7);
    one.poll();
    one.fill(0, &[0xee; 5000]);
    for _ in 0..100 {
        let got = two.poll();
        assert!(got.is_empty(), "{got:?}");
    }
}

/// MR-3: a region that is deregistered under a message breaks the contract of the post. The message
/// fails, and nothing else.
#[test]
fn mr_3_bytes_of_a_region_that_is_gone_are_not_taken() {
    let (mut one, mut two) = lenders();
    two.recv(1, 2 << 20, 8192);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    let other = one.nic.register(readable(4096), Access::LOCAL_WRITE).unwrap();
    drop(core::mem::replace(&mut one.region, other));
    let (done, got) = settle(&mut one, &mut two);
    assert_eq!(done[0].status, Status::LocalProtection);
    assert!(got.iter().all(|wc| wc.status == Status::Flushed), "{got:?}");
}

/// LL-1: a message that is longer than its receive is refused before a byte is copied.
#[test]
fn a_lent_message_that_is_too_long_is_refused() {
    let (mut one, mut two) = lenders();
    two.fill(2 << 20, &[7; 8192]);
    two.recv(1, 2 << 20, 4999);
    one.send(1, 0, 5000, SIGNALED).unwrap();
    let (done, got) = settle(&mut one, &mut two);
    assert_eq!(done[0].status, Status::RemoteInvalidRequest);
    assert_eq!(got[0].status, Status::LocalLength);
    assert_eq!(two.bytes(2 << 20, 8192), [7; 8192]);
}

/// Memory that peers cannot map goes through the ring: private memory; gathered and inline
/// messages.
#[test]
fn what_cannot_be_lent_goes_through_the_ring() {
    let private = |nic: Soft| {
        let region = nic.register(mapping(4 << 20), Access::LOCAL_WRITE).unwrap();
        near_with(nic, region)
    };
    let (mut one, mut two) = mapped_pair_of(private).0;
    for _ in 0..3 {
        assert_eq!(pass(&mut one, &mut two, 4000), record_bytes(4000));
    }
    let (mut one, mut two) = lenders();
    let before = sent(&one);
    one.fill(0, &pattern(1, 3000));
    two.recv(1, 2 << 20, 3000);
    let more = [one.sge(2000, 1000)];
    let wr =
        SendWr { wr_id: 1, op: SendOp::Send, flags: SIGNALED, sge: one.sge(0, 2000), more: &more };
    one.post_list(&[wr]).unwrap();
    assert_eq!(settle(&mut one, &mut two).1.len(), 1);
    assert_eq!(two.bytes(2 << 20, 3000), pattern(1, 3000));
    assert_eq!(sent(&one) - before, record_bytes(3000));
}

/// Each side tells of a line of keys. Messages from further regions go through the ring.
#[test]
fn regions_beyond_a_line_of_keys_are_not_lent() {
    let (mut one, mut two) = lenders();
    // The first is known since the link was made.
    let mut lent = 1;
    for _ in 0..20 {
        let region = one.nic.register(readable(8192), Access::LOCAL_WRITE).unwrap();
        let _before = core::mem::replace(&mut one.region, region);
        for _ in 0..2 {
            two.recv(1, 0, 2000);
            let before = sent(&one);
            one.send(1, 0, 2000, SIGNALED).unwrap();
            assert_eq!(settle(&mut one, &mut two).1.len(), 1);
            lent += u32::from(sent(&one) - before == LENT);
        }
    }
    assert_eq!(lent, 16);
}

/// The sender's program changes the bytes of a message as soon as its queue pair has failed, while
/// the receiver copies them. The receiver believes only copies of the bytes as they were posted.
#[test]
fn sm_3_a_copy_that_the_sender_has_changed_is_not_believed() {
    const WORDS: usize = 1024;
    let (nic, map) = device();
    let region = nic.register(readable(WORDS * 8), Access::LOCAL_WRITE).unwrap();
    assert!(map.show(region.rkey()));
    let (qp, word) = (5, |n: u64| n << 8 | 1);
    let bytes = region.as_ptr() as u64;
    let (shown, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut believed, mut refused, mut mixed) = (0, 0, None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let table = nic.nic.memory.table();
            for n in 1.. {
                words(&region)[..WORDS].iter().for_each(|at| at.store(n, Ordering::Relaxed));
                table.lenders[qp].store(word(n), Ordering::Release);
                shown.store(n, Ordering::Release);
                for _ in 0..n % 7 * 200 {
                    core::hint::spin_loop();
                }
                // As `take_word_back` does it.
                table.lenders[qp].store(0, Ordering::Release);
                fence(Ordering::Release);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut copy = std::vec![0_u8; WORDS * 8];
        while mixed.is_none() && (believed < 50 || refused < 50) {
            let n = shown.load(Ordering::Acquire);
            let (length, key) = (copy.len() as u32, region.rkey());
            let offer = Offer { addr: bytes, key, length, word: word(n) };
            let lent = match map.borrow(qp as u32, offer) {
                Ok(lent) => lent,
                Err(NotLent::SenderGone) => continue,
                Err(NotLent::Nowhere) => {
                    mixed = Some(0);
                    continue;
                }
            };
            Target::of(&mut copy).copy(lent.bytes);
            match lent.check() {
                Ok(()) => {}
                Err(NotLent::SenderGone) => {
                    refused += 1;
                    continue;
                }
                Err(NotLent::Nowhere) => {
                    mixed = Some(0);
                    continue;
                }
            }
            believed += 1;
            mixed = copy.chunks(8).any(|word| word != n.to_ne_bytes()).then_some(n);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(mixed, None, "a mixed copy was believed");
}

/// MR-3, SM-3: a region that goes during the copy is another fault than a sender that fails. The
/// second counts if both happen: a failed sender reads no refusal.
#[test]
fn a_copy_tells_a_lost_region_from_a_lost_sender() {
    let (nic, map) = device();
    let region = nic.register(readable(4096), Access::LOCAL_WRITE).unwrap();
    assert!(map.show(region.rkey()));
    let lender = &nic.nic.memory.table().lenders[5];
    lender.store(9, Ordering::Release);
    let (addr, key) = (region.as_ptr() as u64, region.rkey());
    let lent = map.borrow(5, Offer { addr, key, length: 8, word: 9 }).unwrap();
    assert_eq!(lent.check(), Ok(()));
    drop(region);
    assert_eq!(lent.check(), Err(NotLent::Nowhere));
    lender.store(0, Ordering::Release);
    assert_eq!(lent.check(), Err(NotLent::SenderGone));
}

/// MR-4: a program deregisters a region while the peer copies from there. No send ends with success
/// unless its message arrived.
#[test]
fn mr_4_no_send_from_a_region_that_goes_looks_as_if_it_had_arrived() {
    const SENDS: u64 = 8;
    for round in 0..100 {
        let (mut one, mut two) = lenders();
        for n in 0..SENDS {
            two.recv(n, 2 << 20, 64 << 10);
        }
        let stop = AtomicBool::new(false);
        let (sent, taken) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut taken = 0;
                loop {
                    let last = stop.load(Ordering::Acquire);
                    let got = two.poll();
                    taken += got.iter().filter(|wc| wc.status == Status::Success).count();
                    if last && got.is_empty() {
                        return taken;
                    }
                }
            });
            (0..SENDS).for_each(|n| one.send(n, 0, 64 << 10, SIGNALED).unwrap());
            let mut done = Vec::new();
            for _ in 0..round * 7 {
                done.extend(one.poll());
            }
            let other = one.nic.register(readable(4096), Access::LOCAL_WRITE).unwrap();
            drop(core::mem::replace(&mut one.region, other));
            let begun = std::time::Instant::now();
            while done.len() < SENDS as usize && begun.elapsed().as_secs() < 60 {
                done.extend(one.poll());
            }
            stop.store(true, Ordering::Release);
            (done, receiver.join().unwrap())
        });
        assert_eq!(sent.len(), SENDS as usize, "round {round}");
        let sent = sent.iter().filter(|wc| wc.status == Status::Success).count();
        assert_eq!(sent, taken, "round {round}");
    }
}

/// Offers that no honest sender makes: too long, beyond the region, of a region that is not mapped.
#[test]
fn false_offers_lead_nowhere() {
    let (nic, map) = device();
    let region = nic.register(readable(1 << 20), Access::LOCAL_WRITE).unwrap();
    let other = nic.register(readable(4096), Access::LOCAL_WRITE).unwrap();
    assert!(map.show(region.rkey()) && !map.show(0) && !map.show(region.rkey() ^ 1));
    nic.nic.memory.table().lenders[5].store(9, Ordering::Release);
    let start = region.as_ptr() as u64;
    let offer = |addr, key, length| Offer { addr, key, length, word: 9 };
    let end = start + region.len() as u64;
    for (addr, length) in [(start, 8), (start, 64 << 10), (end - 8, 8), (end, 0)] {
        let lent = map.borrow(5, offer(addr, region.rkey(), length)).unwrap();
        assert_eq!(lent.bytes.length(), length);
    }
    for (addr, key, length) in [
        (start - 1, region.rkey(), 8),
        (end - 7, region.rkey(), 8),
        (end, region.rkey(), 1),
        (u64::MAX, region.rkey(), u32::MAX),
        (start, region.rkey() ^ 1, 8),
        (other.as_ptr() as u64, other.rkey(), 8),
        (0, 0, 0),
    ] {
        let found = map.borrow(5, offer(addr, key, length)).err();
        assert_eq!(found, Some(NotLent::Nowhere), "{addr:x} {key:x} {length}");
    }
    let long = offer(start, region.rkey(), OFFER_MAX + 1);
    assert_eq!(Offer::of(long.words()), None);
    let longest = Offer { length: OFFER_MAX, ..long };
    assert_eq!(Offer::of(longest.words()), Some(longest));
}

/// After a long lent message, the poll that waits prefetches the next receive, once, and no more of
/// it than the message would fill.
#[test]
fn the_next_receive_is_prefetched_after_a_long_message() {
    let lines = |end: &End| of_link(end, |link| link.lent_lines);
    for (length, expected) in [(2048, 0), (2049, 32), (4096, 63), (16 << 10, 255), (64 << 10, 255)]
    {
        let (mut one, mut two) = lenders();
        pass(&mut one, &mut two, 4096);
        for _ in 0..20 {
            two.recv(0, 2 << 20, length);
        }
        assert!((0..130).all(|_| two.poll().is_empty()), "it prefetches its receives");
        one.send(1, 0, length, SIGNALED).unwrap();
        // A poll with room for more would wait for the next at once.
        assert_eq!(two.poller.poll(&mut [Wc::default()]), 1);
        assert_eq!(lines(&two), expected, "{length} bytes");
        for _ in 0..130 {
            // The short poll prepares for the next message.
            if matches!(two.poller.poll_one(), Polled::More) {
                assert_eq!(two.poller.poll_more(&mut [Wc::default()]), 0);
            }
        }
        assert_eq!(lines(&two), 0, "{length} bytes");
    }
}
