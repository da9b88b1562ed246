//! The ring and its bell, between two threads: whatever mix of publications, each record is read
//! once, in order, whole.
#![expect(unsafe_code, reason = "memory of the ring")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

use core::ptr::NonNull;
use std::thread;
use std::vec;
use std::vec::Vec;

use super::super::layout::{KIND_SEND, LINK_BYTES, RecordFlags, Side, split};
use super::*;

#[repr(align(128))]
#[derive(Clone)]
struct Line {
    _bytes: [u8; 128],
}

fn ends(memory: &mut Vec<Line>) -> (Tx, Rx) {
    let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
    let (out, _, header) = unsafe { split(base, Side::Maker) };
    let (_, input, _) = unsafe { split(base, Side::Taker) };
    let alarm = || Alarm::new(&header, Side::Taker, None);
    (Tx::new(out, alarm()), Rx::new(input, alarm()))
}

fn memory() -> Vec<Line> {
    vec![Line { _bytes: [0; 128] }; LINK_BYTES / 128 + 1]
}

fn header(length: usize) -> Header {
    Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, length as u32, 7)
}

fn put(tx: &mut Tx, payload: &[u8]) -> Header {
    let header = header(payload.len());
    let to = tx.begin(header, 0);
    unsafe { copy::exact(to, payload.as_ptr(), payload.len()) };
    tx.end(header);
    header
}

fn payload(n: u64) -> Vec<u8> {
    let length = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize % 209;
    (0..length).map(|i| (n as usize * 13 + i) as u8).collect()
}

/// Publishes one record the way a lone post does.
fn put_lone(tx: &mut Tx, payload: &[u8]) {
    let header = header(payload.len());
    if header.record() <= BELL_FIRST {
        unsafe { tx.publish_line(header, header.record(), payload.as_ptr(), 0) };
    } else {
        put(tx, payload);
        unsafe { tx.publish_lines(header, payload.as_ptr(), 0) };
    }
}

/// Reads one record as the device does; `None` if there is none.
fn get(rx: &mut Rx, into: &mut [u8; 4096]) -> Option<usize> {
    loop {
        if rx.caught_up() {
            if !rx.look() {
                return None;
            }
            if let Some(lone) = rx.lone()
                && unsafe { rx.take_lone(lone, into.as_mut_ptr()) }
            {
                return Some(lone.header.length() as usize);
            }
            assert!(rx.advance(), "an honest sender looks broken");
            continue;
        }
        let header = rx.header().expect("an honest sender looks broken");
        unsafe { rx.fetch(header, into.as_mut_ptr()) };
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
                if n % 7 == 0 || rx.owes() {
                    let at = rx.at;
                    rx.tell(at);
                }
            }
            let at = rx.at;
            rx.tell(at);
        });
        let mut n = 0;
        while n < rounds {
            let batch = if n % 5 == 0 { 1 + n % 11 } else { 1 };
            for left in (0..batch.min(rounds - n)).rev() {
                let bytes = payload(n);
                while !tx.fits(header(bytes.len()).record()) {
                    if tx.unpublished() > 0 {
                        tx.publish(0);
                    }
                    tx.read_taken();
                    thread::yield_now();
                }
                if left == 0 && tx.unpublished() == 0 {
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

/// A reader that comes late finds a newer lone record in the bell, and reads the ring instead.
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

/// A record in the bell that changes while it is read is not taken.
#[test]
fn a_bell_that_changes_under_the_reader_is_given_up() {
    let mut memory = memory();
    let (mut tx, mut rx) = ends(&mut memory);
    let first = [1u8; 200];
    put_lone(&mut tx, &first);
    assert!(rx.look());
    let seen = rx.lone().unwrap();
    let second = [2u8; 200];
    put_lone(&mut tx, &second);
    let mut into = [0; 4096];
    assert!(!unsafe { rx.take_lone(seen, into.as_mut_ptr()) });
    assert!(rx.advance());
    assert_eq!(get(&mut rx, &mut into), Some(200));
    assert_eq!(into[..200], first);
    assert_eq!(get(&mut rx, &mut into), Some(200));
    assert_eq!(into[..200], second);
}

/// What the bell held 4 GiB ago is not taken for a record that ends at the same low half.
#[test]
fn a_bell_from_4_gib_ago_is_not_taken() {
    for length in [24, 200] {
        let mut memory = memory();
        let (mut tx, mut rx) = ends(&mut memory);
        let mut into = [0; 4096];
        put_lone(&mut tx, &vec![1; length]);
        assert_eq!(get(&mut rx, &mut into), Some(length));
        let before = tx.at - u64::from(header(length).record());
        let later = before + (1 << 32);
        (tx.at, tx.published, tx.freed) = (later, later, later);
        (rx.at, rx.tail, rx.due) = (later, later, later);
        rx.word = 0;
        put(&mut tx, &vec![2; length]);
        tx.publish(0);
        assert_eq!(get(&mut rx, &mut into), Some(length));
        assert_eq!(into[..length], vec![2; length]);
    }
}

/// An acknowledgement beyond what was published is not believed.
#[test]
fn acknowledgements_are_checked() {
    let mut memory = memory();
    let (mut tx, _) = ends(&mut memory);
    put(&mut tx, &[0; 100]);
    tx.publish(0);
    let before = tx.at;
    let before = before as u32;
    tx.note_freed(before + 8);
    assert!(!tx.fits(RING - before + 8));
    tx.note_freed(before);
    assert!(tx.fits(RING));
    tx.note_freed(0);
    assert!(tx.fits(RING), "nor one that goes back");
}
