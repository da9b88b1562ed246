//! The ring and its slot between two threads: for any mix of publications, each record is read
//! once, in order, whole.
#![expect(unsafe_code, reason = "memory of the ring")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

#[path = "ring_tests/hostile.rs"]
mod hostile;
#[path = "ring_tests/wraps.rs"]
mod wraps;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::thread;
use std::vec;
use std::vec::Vec;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::shm::layout::{
    AREA, FRAGMENT, KIND_SEND, LINK_BYTES, PUBLISH_EVERY, RecordFlags, Side, split_at,
};
use crate::shm::reader::Rx;

#[repr(align(128))]
#[derive(Clone)]
struct Line {
    _bytes: [u8; 128],
}

fn ends(memory: &mut Vec<Line>) -> (Tx, Rx) {
    let [(tx, _), (_, rx)] = sides(memory);
    (tx, rx)
}

/// Both ends of both sides.
fn sides(memory: &mut Vec<Line>) -> [(Tx, Rx); 2] {
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    [Side::Maker, Side::Taker].map(|side| {
        let (out, input, header) = unsafe { split_at(base, side, None) };
        let peer_waker = || PeerWaker::new(&header, side.peer(), Arc::default());
        (Tx::new(out, peer_waker()), Rx::new(input, peer_waker()))
    })
}

/// Exactly the memory that a link needs, so that a sanitizer notices an access beyond it.
fn memory() -> Vec<Line> {
    const { assert!(LINK_BYTES.is_multiple_of(128)) };
    vec![Line { _bytes: [0; 128] }; LINK_BYTES / 128]
}

fn header(length: usize) -> Header {
    Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, length as u32, 7)
}

fn put(tx: &mut Tx, payload: &[u8]) -> Header {
    let header = header(payload.len());
    tx.put_bytes(header, 0, payload);
    header
}

fn payload(n: u64) -> Vec<u8> {
    let length = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % 201;
    (0..length).map(|i| (n as usize * 13 + i) as u8).collect()
}

/// Space for that many bytes, found as the device finds it.
fn find(tx: &mut Tx, bytes: u32) -> bool {
    tx.fits(bytes) || {
        tx.read_taken();
        tx.find(bytes, Traffic::BothWays)
    }
}

/// Publishes one record as a post with its own doorbell does.
fn put_lone(tx: &mut Tx, payload: &[u8]) {
    speak(tx, payload, 0);
}

/// The same for a side that has read up to `acked`.
fn speak(tx: &mut Tx, payload: &[u8], ack: u64) {
    let header = header(payload.len());
    tx.publish_bytes_in_slot(header, payload, ack);
}

/// Reads one record as the device does; `None` if there is none.
fn get(rx: &mut Rx, into: &mut [u8; 4096]) -> Option<usize> {
    hear(rx, into, 0)
}

/// The same for a side that has written to the slot itself.
fn hear(rx: &mut Rx, into: &mut [u8; 4096], spoken: u32) -> Option<usize> {
    loop {
        if rx.caught_up() {
            if !rx.look() {
                return None;
            }
            if let Some(lone) = rx.slot_record(spoken)
                && rx.take_from_slot(lone, Target::of(into))
            {
                return Some(lone.header.length() as usize);
            }
            assert!(rx.advance(), "an honest sender looks broken");
            continue;
        }
        let header = rx.header().expect("an honest sender looks broken");
        if header == Header::JUMP {
            assert!(rx.jump(), "an honest sender looks broken");
            continue;
        }
        rx.fetch_into(header, &mut into[..header.length() as usize]);
        rx.consume(header);
        return Some(header.length() as usize);
    }
}

#[test]
fn records_cross_two_threads_once_in_order_and_whole() {
    let rounds = if cfg!(miri) { 200 } else { 300_000u64 };
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    // Both ends use raw pointers into `memory`, which outlives the scope.
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut into = [0; 4096];
            for n in 0..rounds {
                let length = loop {
                    match get(&mut rx, &mut into) {
                        Some(length) => break length,
                        None => core::hint::spin_loop(),
                    }
                };
                assert_eq!(into[..length], payload(n), "record {n}");
                if n % 7 == 0 || rx.ack_is_due() {
                    let at = rx.at;
                    rx.write_ack(at);
                }
            }
            let at = rx.at;
            rx.write_ack(at);
        });
        let mut n = 0;
        while n < rounds {
            let batch = if n % 5 == 0 { 1 + n % 11 } else { 1 };
            for left in (0..batch.min(rounds - n)).rev() {
                let bytes = payload(n);
                let mut alone = tx.unpublished() == 0;
                while !find(&mut tx, header(bytes.len()).record()) {
                    if tx.unpublished() > 0 {
                        tx.publish(0);
                    }
                    alone = true;
                    thread::yield_now();
                }
                if left == 0 && alone {
                    put_lone(&mut tx, &bytes);
                } else {
                    put(&mut tx, &bytes);
                }
                n += 1;
            }
            if tx.unpublished() > 0 {
                tx.publish(0);
            }
        }
    });
}

/// Both sides write to the slot and to the ring at random, sometimes waiting for each other: each
/// record is read once, in order and whole.
#[test]
fn two_sides_speak_at_once() {
    let rounds = if cfg!(miri) { 100 } else { 50_000u64 };
    let mut memory = memory();
    let mut sides = sides(&mut memory);
    thread::scope(|scope| {
        for (seed, (tx, rx)) in (1..).zip(&mut sides) {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mine = move |n| payload(n * 2 + seed);
            let theirs = move |n| payload(n * 2 + 3 - seed);
            scope.spawn(move || {
                let (mut said, mut heard, mut into) = (0, 0, [0; 4096]);
                while said < rounds || heard < rounds {
                    while let Some(length) = hear(rx, &mut into, tx.last_in_slot()) {
                        assert_eq!(into[..length], theirs(heard), "record {heard}");
                        heard += 1;
                    }
                    tx.note_freed(rx.peer_ack());
                    if rx.ack_is_due() {
                        rx.write_ack(rx.at);
                    }
                    // Most of the time this side waits for the peer's answer.
                    let turn = said <= heard || random.next_u32().is_multiple_of(32);
                    let bytes = mine(said);
                    if said == rounds || !turn || !find(tx, header(bytes.len()).record()) {
                        thread::yield_now();
                        continue;
                    }
                    match random.next_u32().is_multiple_of(8) {
                        true => {
                            put(tx, &bytes);
                            tx.publish(rx.at);
                        }
                        false => speak(tx, &bytes, rx.at),
                    }
                    said += 1;
                }
                rx.write_ack(rx.at);
            });
        }
    });
}

/// A peer that had not read this side's record may have mixed its own record with it in the slot:
/// the record is read from the ring. The one behind it is taken from the slot.
#[test]
fn a_record_from_a_side_that_had_not_read_ours_is_read_from_the_ring() {
    for length in [0, 24, 32, 33, 96, 200] {
        let mut memory = memory();
        let [(mut tx, mut rx), (mut far_tx, mut far_rx)] = sides(&mut memory);
        let mut into = [0; 4096];
        let at = rx.at;
        speak(&mut tx, &vec![1; length], at);
        speak(&mut far_tx, &vec![2; length], far_rx.at);
        assert!(rx.look() && rx.slot_record(tx.last_in_slot()).is_none(), "{length}");
        assert!(far_rx.look() && far_rx.slot_record(far_tx.last_in_slot()).is_none(), "{length}");
        assert!(rx.advance() && far_rx.advance());
        assert_eq!(hear(&mut rx, &mut into, tx.last_in_slot()), Some(length));
        assert_eq!(into[..length], vec![2; length]);
        assert_eq!(hear(&mut far_rx, &mut into, far_tx.last_in_slot()), Some(length));
        assert_eq!(into[..length], vec![1; length]);
        speak(&mut far_tx, &vec![3; length], far_rx.at);
        assert!(rx.look());
        let lone =
            rx.slot_record(tx.last_in_slot()).expect("this side has read the other's record");
        assert!(rx.take_from_slot(lone, Target::of(&mut into)));
        assert_eq!(into[..length], vec![3; length]);
    }
}

/// A single message is read from the slot, for every size that the slot holds.
#[test]
fn the_slot_holds_a_record_of_any_size() {
    let bytes: Vec<u8> = (0..SLOT_PAYLOAD_MAX as usize).map(|i| (i % 251) as u8 + 1).collect();
    for length in 0..=SLOT_PAYLOAD_MAX as usize {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        put_lone(&mut tx, &bytes[..length]);
        let mut into = [0; 4096];
        assert!(rx.look(), "{length}");
        let lone =
            rx.slot_record(0).unwrap_or_else(|| panic!("{length} bytes are in the ring alone"));
        assert!(rx.take_from_slot(lone, Target::of(&mut into)), "{length}");
        assert_eq!(into[..length], bytes[..length]);
        assert!(into[length..].iter().all(|byte| *byte == 0), "more than {length}");
    }
}

/// A late reader finds a newer record in the slot, and reads the ring instead.
#[test]
fn a_late_reader_reads_the_ring() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let mut into = [0; 4096];
    for n in 0..20u8 {
        put_lone(&mut tx, &[n; 32]);
    }
    for n in 0..20u8 {
        assert_eq!(get(&mut rx, &mut into), Some(32));
        assert_eq!(into[..32], [n; 32]);
    }
    assert_eq!(get(&mut rx, &mut into), None);
}

/// A record in the slot that changes while it is read is not taken.
#[test]
fn a_slot_that_changes_under_the_reader_is_given_up() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let first = [1u8; 200];
    put_lone(&mut tx, &first);
    assert!(rx.look());
    let seen = rx.slot_record(0).unwrap();
    let second = [2u8; 200];
    put_lone(&mut tx, &second);
    let mut into = [0; 4096];
    assert!(!rx.take_from_slot(seen, Target::of(&mut into)));
    assert!(rx.advance());
    assert_eq!(get(&mut rx, &mut into), Some(200));
    assert_eq!(into[..200], first);
    assert_eq!(get(&mut rx, &mut into), Some(200));
    assert_eq!(into[..200], second);
}

/// A record in the slot from 4 GiB ago is not taken for one whose position has the same low half.
#[test]
fn a_slot_from_4_gib_ago_is_not_taken() {
    for length in [24, 200] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let mut into = [0; 4096];
        put_lone(&mut tx, &vec![1; length]);
        assert_eq!(get(&mut rx, &mut into), Some(length));
        let before = tx.at - u64::from(header(length).record());
        let later = before + (1 << 32);
        (tx.at, tx.published, tx.freed) = (later, later, later);
        (tx.wrap, tx.data, tx.limit) =
            (WrapPolicy::new(later, AREA.into()), tx.dir.data_from(later), later);
        (rx.at, rx.tail, rx.due) = (later, later, later);
        (rx.data, rx.end) = (rx.dir.data_from(later), later + u64::from(AREA));
        assert!(tx.find(RECORD_MAX, Traffic::BothWays));
        rx.word = 0;
        put(&mut tx, &vec![2; length]);
        tx.publish(0);
        assert_eq!(get(&mut rx, &mut into), Some(length));
        assert_eq!(into[..length], vec![2; length]);
    }
}

/// An acknowledgement beyond the published position is not believed.
#[test]
fn acknowledgements_are_checked() {
    let mut memory = memory();
    let (mut tx, _) = ends(&mut memory);
    put(&mut tx, &[0; 100]);
    tx.publish(0);
    let before = tx.at as u32;
    tx.note_freed(before + 8);
    assert_eq!(tx.freed, 0);
    tx.note_freed(before);
    assert_eq!(tx.freed, tx.at);
    tx.note_freed(0);
    assert_eq!(tx.freed, tx.at, "nor a position that moves back");
}

/// A word that was read before is no news, whatever position it would name by now.
#[test]
fn the_receivers_line_is_taken_over_once() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    assert_eq!(tx.read_taken(), None);
    put(&mut tx, &[0; 8]);
    tx.publish(0);
    assert!(rx.look() && rx.advance());
    rx.consume(rx.header().unwrap());
    rx.write_ack(16);
    assert_eq!((tx.read_taken(), tx.freed), (Some(16), 16));
    assert_eq!((tx.read_taken(), tx.freed), (None, 16));
}

/// A side that waits prefetches what the next record fills if it is as long as the last, four lines
/// at most.
#[test]
fn the_next_record_is_prefetched_whole() {
    for (length, lines) in [(0, [0; 4]), (64, [1; 4]), (100, [2, 2, 1, 1]), (4000, [3; 4])] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let mut to = vec![0; length];
        for behind in lines {
            put(&mut tx, &vec![7; length]);
            tx.publish(0);
            let first = rx.first_of_few().unwrap();
            assert!(rx.take_from_ring(first, header(0), Target::of(&mut to)));
            assert_eq!(rx.lines_behind_next(), behind, "{length} bytes, at {}", rx.at);
        }
    }
}
