//! Models of what two threads do to a link's memory, in every order that the rules of memory allow:
//! `RUSTFLAGS="--cfg loom" cargo test -p doorbell-engine --release models`.
#![expect(unsafe_code, reason = "memory of the ring")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

use core::ptr::NonNull;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use loom::thread;

use super::alarm::Alarm;
use super::copy;
use super::layout::{
    FRAGMENT, Header, JUMP_BYTES, KIND_SEND, LINK_BYTES, LinkHeader, RecordFlags, SEGMENT, Side,
    split,
};
use super::reader::Rx;
use super::ring::Tx;
use super::sync::{AtomicU32, Ordering, fence, forget_words};

#[repr(align(128))]
#[derive(Clone)]
struct Line {
    _bytes: [u8; 128],
}

/// The memory of a link; the bytes of its ring are written and read under the rule that is
/// modelled.
struct Shared(Vec<Line>);

unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        forget_words();
        let shared = Shared(vec![Line { _bytes: [0; 128] }; LINK_BYTES / 128 + 1]);
        // All words are there before there are threads.
        let (out, input, header) = unsafe { split(shared.base(), Side::Maker) };
        for way in [out, input] {
            (0..32).for_each(|n| way.bell(n).store(0, Ordering::Relaxed));
            (0..8).for_each(|n| way.taken(n).store(0, Ordering::Relaxed));
        }
        for side in [Side::Maker, Side::Taker] {
            header.asleep(side).store(0, Ordering::Relaxed);
        }
        Arc::new(shared)
    }

    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_ptr().cast_mut().cast()).expect("it has an address")
    }

    fn header(&self) -> LinkHeader {
        unsafe { split(self.base(), Side::Maker).2 }
    }

    fn tx(&self) -> Tx {
        let (out, _, header) = unsafe { split(self.base(), Side::Maker) };
        Tx::new(out, Alarm::new(&header, Side::Taker, None))
    }

    fn rx(&self) -> Rx {
        let (_, input, header) = unsafe { split(self.base(), Side::Taker) };
        Rx::new(input, Alarm::new(&header, Side::Maker, None))
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // More switches than that show nothing new in reasonable time.
    builder.preemption_bound = Some(3);
    builder.check(f);
}

fn header(length: u32) -> Header {
    Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, length, 7)
}

/// Record `n`: its payload names it in each word.
fn payload(n: u64) -> [u64; 2] {
    [n * 3 + 1, n * 5 + 2]
}

fn publish(tx: &mut Tx, n: u64, in_bell: bool) {
    let (header, payload) = (header(16), payload(n));
    if in_bell {
        unsafe { tx.publish_line(header, header.record(), payload.as_ptr().cast(), 0) };
    } else {
        let to = tx.begin(header, 0);
        unsafe { copy::exact(to, payload.as_ptr().cast(), 16) };
        tx.end(header);
        tx.publish(0);
    }
}

/// Takes what there is, as the device's poll does; how many records.
fn poll(rx: &mut Rx, seen: &mut u64) {
    if !rx.look() {
        return;
    }
    let mut to = [0u64; 2];
    if let Some(lone) = rx.lone()
        && unsafe { rx.take_lone(lone, to.as_mut_ptr().cast()) }
    {
        assert_eq!(to, payload(*seen), "the bell gave parts of two records");
        *seen += 1;
        return;
    }
    assert!(rx.advance(), "a tail that no sender writes");
    while !rx.caught_up() {
        let header = rx.header().expect("a header that a sender wrote");
        if header == Header::JUMP {
            assert!(rx.jump(), "where no sender jumps");
            continue;
        }
        unsafe { rx.fetch(header, to.as_mut_ptr().cast()) };
        rx.consume(header);
        assert_eq!(to, payload(*seen), "the ring gave another record");
        *seen += 1;
    }
}

/// Fills the first segment, all of which the reader takes, up to where one record more fits.
fn fill_segment(tx: &mut Tx, rx: &mut Rx) {
    let large = header(FRAGMENT);
    while tx.fits(large.record() + 2 * header(16).record()) {
        tx.begin(large, 0);
        tx.end(large);
    }
    let rest = SEGMENT - JUMP_BYTES - tx.at as u32 - header(16).record();
    let rest = header(rest - header(0).record());
    tx.begin(rest, 0);
    tx.end(rest);
    tx.publish(0);
    assert!(rx.look() && rx.advance());
    while !rx.caught_up() {
        let header = rx.header().expect("a header that a sender wrote");
        rx.consume(header);
    }
    rx.tell(rx.at);
}

fn exchange(in_bell: [bool; 2], jumps: bool) {
    model(move || {
        let shared = Shared::new();
        let (mut tx, mut rx) = (shared.tx(), shared.rx());
        if jumps {
            fill_segment(&mut tx, &mut rx);
        }
        let writer = thread::spawn(move || {
            for (n, in_bell) in in_bell.into_iter().enumerate() {
                let record = header(16).record();
                if !tx.fits(record) {
                    tx.read_taken();
                    assert!(tx.find(record, true));
                }
                publish(&mut tx, n as u64, in_bell);
            }
        });
        let mut seen = 0;
        for _ in 0..2 {
            poll(&mut rx, &mut seen);
        }
        writer.join().expect("the writer");
        poll(&mut rx, &mut seen);
        assert_eq!(seen, 2, "each record once");
        drop(shared);
    });
}

/// Two records alone, one after the other: a reader in the middle never mixes them.
#[test]
fn models_two_records_in_the_bell() {
    exchange([true, true], false);
}

/// The same where the second begins the ring's next lap.
#[test]
fn models_a_jump_before_the_second() {
    exchange([true, true], true);
    exchange([false, true], true);
    exchange([true, false], true);
}

/// One in the bell, then one in the ring alone, and the other way round.
#[test]
fn models_bell_and_ring_in_turn() {
    exchange([true, false], false);
    exchange([false, true], false);
}

/// CP-6: a sleeper that saw nothing is rung, or the publisher came before its last look.
#[test]
fn models_no_wake_up_is_lost() {
    model(|| {
        let shared = Shared::new();
        let (mut tx, mut rx) = (shared.tx(), shared.rx());
        let theirs = shared.clone();
        let publisher = thread::spawn(move || {
            publish(&mut tx, 0, true);
            // The alarm of `tx` has taken the word away if it found the sleeper asleep.
            theirs.header().asleep(Side::Taker).load(Ordering::Relaxed)
        });
        let header = shared.header();
        let asleep: &AtomicU32 = header.asleep(Side::Taker);
        asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut seen = 0;
        poll(&mut rx, &mut seen);
        let left = publisher.join().expect("the publisher");
        let rung = asleep.load(Ordering::Relaxed) == 0;
        assert!(seen == 1 || rung, "asleep for good; the publisher saw {left}");
    });
}
