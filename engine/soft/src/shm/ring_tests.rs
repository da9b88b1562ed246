//! The ring and its slot between two threads: for any mix of publications, each record is read
//! once, in order, whole.
#![expect(unsafe_code, reason = "memory of the ring")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64};
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
        let peer_waker = || PeerWaker::new(&header, side.peer(), None);
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
        tx.find(bytes, true)
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
    let bytes: Vec<u8> = (0..SLOT_RECORD_MAX as usize).map(|i| i as u8 + 1).collect();
    for length in 0..=SLOT_RECORD_MAX as usize - 8 {
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
        assert!(tx.find(RECORD_MAX, true));
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

/// The place in the data of a position of the sender.
fn place(tx: &Tx, at: u64) -> u64 {
    tx.data.at(at).addr() as u64 - tx.dir.data_from(0).at(0).addr() as u64
}

/// Writes one record of that size, if there is space, and publishes it. Returns its place.
fn send(tx: &mut Tx, n: u64, bytes: usize) -> Option<u64> {
    let record = header(bytes).record();
    if !find(tx, record) {
        return None;
    }
    let at = place(tx, tx.at);
    assert!(at + u64::from(record) <= u64::from(AREA - JUMP_BYTES), "no space for a jump");
    put(tx, &vec![n as u8; bytes]);
    tx.publish(0);
    Some(at)
}

/// Reads all records, in order from record `n` on, and gives their space back; returns their
/// number.
fn read_all(rx: &mut Rx, mut n: u64) -> u64 {
    let mut into = [0; 4096];
    let first = n;
    while let Some(length) = get(rx, &mut into) {
        assert!(into[..length].iter().all(|byte| *byte == n as u8), "record {n}");
        n += 1;
    }
    let at = rx.at;
    rx.write_ack(at);
    n - first
}

/// The ring stays in its first segment while the receiver keeps up, grows to its full size while it
/// does not, and shrinks again when it has caught up.
#[test]
fn the_ring_is_as_long_as_it_has_to_be() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let (mut sent, mut read) = (0, 0);
    for round in 0..3 {
        for _ in 0..1000 {
            let at = send(&mut tx, sent, 64).expect("all was given back");
            assert!(at < u64::from(SEGMENT), "round {round}: {at}");
            sent += 1;
            // As many records in flight as leave the front free.
            if sent - read == 64 {
                read += read_all(&mut rx, read);
            }
        }
        // While it is full, each lap is a segment longer.
        let mut most = 0;
        for times in 0..10 {
            let mut full = 0;
            while let Some(at) = send(&mut tx, sent, 64) {
                most = most.max(at);
                full += 72;
                sent += 1;
            }
            assert!(
                full > u64::from(SEGMENT) * times.min(u64::from(AREA / SEGMENT) - 2),
                "round {round}, {times}: {full}"
            );
            read += read_all(&mut rx, read);
            assert_eq!(sent, read);
        }
        assert!(most > u64::from(AREA - 100), "round {round}: {most}");
        // It shrinks gradually.
        for _ in 0..64 * 1000 {
            send(&mut tx, sent, 64).expect("all was given back");
            sent += 1;
            read += read_all(&mut rx, read);
        }
    }
}

/// Messages published one by one stay in the first segment, even where laps were long before;
/// sending continues whenever all space is given back.
#[test]
fn messages_one_by_one_do_not_grow_the_ring() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let (mut sent, mut read) = (0, 0);
    for longer in [false, true] {
        while longer && tx.at < 10 * u64::from(AREA) {
            while send(&mut tx, sent, 64).is_some() {
                sent += 1;
            }
            read += read_all(&mut rx, read);
        }
        let (mut places, mut full) = (0, 0);
        while full < 50 {
            let record = header(64).record();
            tx.read_taken();
            if tx.fits(record) || tx.find(record, false) {
                places = place(&tx, tx.at).max(places);
                put(&mut tx, &[sent as u8; 64]);
                tx.publish(0);
                sent += 1;
            } else {
                let before = read;
                read += read_all(&mut rx, read);
                assert!(read > before && read == sent, "stuck at {}", tx.at);
                full += 1;
                // A long record ends with its lap.
                places = if full < 3 { 0 } else { places };
            }
        }
        assert!(places > 0 && places < u64::from(SEGMENT), "{longer}: {places}");
    }
}

/// A ping-pong uses the ring from end to end, so that there are few jumps.
#[test]
fn a_conversation_seldom_jumps() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let record = header(64).record();
    for n in 0..10_000 {
        tx.read_taken();
        assert!(tx.fits(record) || tx.find(record, false), "all was given back");
        put(&mut tx, &[n as u8; 64]);
        tx.publish(0);
        assert_eq!(read_all(&mut rx, n), 1);
    }
    let jumps = (tx.at - 10_000 * u64::from(record)) / u64::from(JUMP_BYTES);
    assert_eq!(jumps, 10_000 / u64::from((AREA - JUMP_BYTES) / record));
}

/// A steady number of records in flight, of any size: none waits, and the ring is no longer than
/// necessary.
#[test]
fn a_steady_stream_never_waits() {
    for on_its_way in [1, 16, 64, 85, 128, 256, 512, 800] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let mut into = [0; 4096];
        let mut most = 0;
        for n in 0..20 * on_its_way {
            most = send(&mut tx, n, 64).expect("there is space").max(most);
            if n >= on_its_way {
                assert_eq!(get(&mut rx, &mut into), Some(64));
                assert_eq!(into[0], (n - on_its_way) as u8);
                if rx.ack_is_due() {
                    let at = rx.at;
                    rx.write_ack(at);
                }
            }
        }
        // Acknowledgements are up to a quarter segment late, as much is left free at the front, and
        // a lap ends with a segment.
        let need = on_its_way * 72 + 2 * u64::from(PUBLISH_EVERY) + 72;
        let segments = need.div_ceil(SEGMENT.into()).max(1);
        assert!(most < segments * u64::from(SEGMENT), "{on_its_way}: up to {most}");
    }
}

/// Whatever the sizes, and however far the receiver is behind, each record arrives once, in order
/// and whole, and none lies outside the data.
#[test]
fn laps_of_any_length_lose_nothing() {
    let rounds = if cfg!(miri) { 400 } else { 200_000u64 };
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut below = |bound: u32| random.next_u32() % bound;
    let (mut sent, mut read, mut laps, mut longest) = (0, 0, 0, 0);
    while read < rounds {
        // Sometimes the receiver stops for long.
        let batch = if below(8) == 0 { 2000 } else { below(60) };
        let large = [24, 200, FRAGMENT + 1][below(3) as usize];
        for _ in 0..batch {
            let Some(at) = send(&mut tx, sent, below(large) as usize) else { break };
            laps += u64::from(at == 0);
            longest = longest.max(at);
            sent += 1;
        }
        read += read_all(&mut rx, read);
        assert_eq!(read, sent);
    }
    assert!(laps > 10 && longest > u64::from(AREA - SEGMENT), "{laps} laps, up to {longest}");
}

/// Both ends in the first lap, with everything before read.
fn start_at(tx: &mut Tx, rx: &mut Rx, offset: u32) {
    (tx.at, tx.published) = (offset.into(), offset.into());
    (rx.at, rx.tail) = (offset.into(), offset.into());
}

/// A receiver does not follow a jump that no honest sender makes.
#[test]
fn a_jump_is_near_the_end_of_a_segment() {
    for (offset, follows) in [
        (0, false),
        (SEGMENT / 4, false),
        (SEGMENT - RECORD_MAX - 8, true),
        (SEGMENT - 8, true),
        (SEGMENT, false),
        (AREA - SEGMENT, false),
        (AREA - 8, true),
    ] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        start_at(&mut tx, &mut rx, offset);
        tx.jump();
        tx.publish(0);
        assert!(rx.look() && rx.advance());
        assert!(rx.header() == Some(Header::JUMP));
        assert_eq!(rx.jump(), follows, "at {offset}");
        assert!(!follows || (rx.caught_up() && place(&tx, tx.at) == 0));
    }
}

/// Nothing is read behind the end from a sender that should have jumped: neither a record that
/// begins there nor one that crosses it, nor after single messages in the slot.
#[test]
fn nothing_behind_the_end_is_read() {
    for (before, length) in [(16, 8), (8, 1), (8, 2000), (RECORD_MAX, FRAGMENT)] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        start_at(&mut tx, &mut rx, AREA - before);
        // No honest sender goes on at the end.
        tx.limit = u64::MAX;
        let end = rx.dir.data_from(0).at(AREA.into());
        put(&mut tx, &vec![1; length as usize]);
        put(&mut tx, &[2; 8]);
        tx.publish(0);
        assert!(rx.look() && rx.advance());
        while let Some(header) = rx.header() {
            rx.consume(header);
            assert!(rx.data.at(rx.at) <= end, "{before} {length}");
        }
        assert!(!rx.caught_up(), "{before} {length}");
    }
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let mut into = [0; 4096];
    start_at(&mut tx, &mut rx, AREA - 16);
    tx.limit = u64::MAX;
    for n in 0..3 {
        put_lone(&mut tx, &[n; 32]);
        assert_eq!(get(&mut rx, &mut into), Some(32));
    }
    put(&mut tx, &[0; 8]);
    put(&mut tx, &[0; 8]);
    tx.publish(0);
    assert!(rx.look() && rx.advance() && rx.header().is_none());
}

/// Whatever words a peer writes, every read stays inside the data.
#[test]
fn every_read_stays_inside_the_data() {
    let mut memory = memory();
    let (tx, mut rx) = ends(&mut memory);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let (start, end) = (rx.dir.data_from(0).at(0), rx.dir.data_from(0).at(AREA.into()));
    let (mut records, mut jumps, mut laps) = (0, 0, 0);
    for _ in 0..if cfg!(miri) { 20 } else { 3000 } {
        let words = rx.dir.data_from(0).at(0).cast::<u64>();
        for n in 0..AREA as usize / 8 {
            let kind = if random.next_u32() % 4 == 0 { Header::JUMP.0 } else { 0x1_0000 };
            let length = u64::from(random.next_u32() % (RECORD_MAX + 16));
            let more = u64::from(random.next_u32() % 2) << 24;
            unsafe {
                words.add(n).write(if kind == Header::JUMP.0 { kind } else { kind | length | more })
            };
        }
        for _ in 0..20 {
            let news = u64::from(random.next_u32() % (AREA / 8 + 1)) * 8;
            rx.word = tail_word(rx.at, 0);
            tx.dir.tail().store(tail_word(rx.at + news, 0), Ordering::Release);
            if !rx.look() || !rx.advance() {
                continue;
            }
            let mut left = 10_000;
            while let Some(header) = rx.header()
                && left > 0
            {
                left -= 1;
                let at = rx.data.at(rx.at);
                assert!(at >= start && at.wrapping_add(header.record() as usize) <= end);
                records += 1;
                if header == Header::JUMP {
                    if !rx.jump() {
                        break;
                    }
                    jumps += 1;
                    continue;
                }
                rx.consume(header);
            }
            // Single messages advance without the ring.
            if random.next_u32() % 16 == 0 {
                rx.at = rx.end + 64 - u64::from(random.next_u32() % 32) * 8;
                rx.tail = rx.at;
                laps += u64::from(rx.at > rx.end);
            }
        }
        let at = rx.at;
        (rx.tail, rx.data, rx.end) = (at, rx.dir.data_from(at), at + u64::from(AREA));
    }
    assert!(records > 1000 || cfg!(miri));
    assert!((jumps > 100 && laps > 10) || cfg!(miri), "{records} {jumps} {laps}");
}

/// A header may change while it is checked: the checked value is the one used.
#[test]
fn a_hostile_header_is_read_once() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    put(&mut tx, &[7; 8]);
    put(&mut tx, &[7; 4000]);
    tx.publish(0);
    assert!(rx.look() && rx.advance());
    let at = rx.dir.data_from(0).at(0).expose_provenance();
    let word = move || unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at)) };
    let stop = AtomicBool::new(false);
    let mut short = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for length in [8, 4000] {
                    word().store(header(length).0, Ordering::Relaxed);
                    (0..20).for_each(|_| core::hint::spin_loop());
                }
            }
        });
        for n in 0..if cfg!(miri) { 50 } else { 200_000 } {
            let mut into = [0xee; 64];
            if n % 2 == 0 {
                let header = rx.header().expect("it is one of the two");
                if header.length() == 8 {
                    rx.fetch_into(header, &mut into[..8]);
                    short += 1;
                }
            } else {
                let mut plain = rx.burst().plain(header(0));
                if let Some(next) = plain.next(Target::of(&mut into[..40])) {
                    assert_eq!(next.length(), 8);
                    plain.take(next);
                    short += 1;
                }
            }
            if into[8..] != [0xee; 56] {
                stop.store(true, Ordering::Relaxed);
                panic!("more than was checked");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(short > 0);
}
