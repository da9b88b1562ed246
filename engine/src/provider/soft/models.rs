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
        (0..32).for_each(|n| out.bell(n).store(0, Ordering::Relaxed));
        for way in [out, input] {
            way.tail().store(0, Ordering::Relaxed);
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

    fn end(&self, side: Side) -> End {
        let (out, input, header) = unsafe { split(self.base(), side) };
        let alarm = || Alarm::new(&header, side.peer(), None);
        let (tx, rx) = (Tx::new(out, alarm()), Rx::new(input, alarm()));
        End { tx, rx, side, said: 0, heard: 0 }
    }
}

/// One end of a link: how many records it published, and how many it took.
struct End {
    tx: Tx,
    rx: Rx,
    side: Side,
    said: u64,
    heard: u64,
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

/// Words of a payload: as many as one line of the bell has, and one that is behind it.
const SHORT: usize = 2;
const LONG: usize = 5;

/// Record `n` of a side: its payload names both in each word.
fn payload(side: Side, n: u64) -> [u64; LONG] {
    let side = u64::from(side == Side::Maker);
    core::array::from_fn(|word| (n * 2 + side + 1) << 8 | word as u64)
}

/// Where a record is published: in the ring alone, or in the bell as well.
#[derive(Clone, Copy)]
enum Place {
    Ring,
    Bell,
    LongBell,
}

impl End {
    /// Publishes the next record.
    fn say(&mut self, place: Place) {
        let words = if matches!(place, Place::LongBell) { LONG } else { SHORT };
        let (header, payload) = (header(words as u32 * 8), payload(self.side, self.said));
        let (from, ack) = (payload.as_ptr().cast::<u8>(), self.rx.at);
        self.said += 1;
        let record = header.record();
        match place {
            Place::Bell | Place::LongBell => unsafe {
                self.tx.publish_lone(header, record, from, ack);
            },
            Place::Ring => {
                let to = self.tx.begin(header, 0);
                unsafe { copy::exact(to, from, words * 8) };
                self.tx.end(header);
                self.tx.publish(ack);
            }
        }
    }

    /// Takes what there is, as the device's poll does.
    fn hear(&mut self) {
        let mut to = [0u64; LONG];
        let written = !self.rx.has_seen_written();
        let word = self.rx.peek();
        if !(written || self.rx.has_seen(word))
            && let Some(lone) = self.rx.lone_like(word, header(0), self.tx.published())
            && lone.header.length() as usize <= LONG * 8
            && unsafe { self.rx.take_lone(lone, to.as_mut_ptr().cast()) }
        {
            return self.check(to, lone.header, "the bell, as expected,");
        }
        if !self.rx.look() {
            return;
        }
        if let Some(lone) = self.rx.lone(self.tx.spoken())
            && unsafe { self.rx.take_lone(lone, to.as_mut_ptr().cast()) }
        {
            return self.check(to, lone.header, "the bell");
        }
        assert!(self.rx.advance(), "a tail that no sender writes");
        while !self.rx.caught_up() {
            let header = self.rx.header().expect("a header that a sender wrote");
            if header == Header::JUMP {
                assert!(self.rx.jump(), "where no sender jumps");
                continue;
            }
            unsafe { self.rx.fetch(header, to.as_mut_ptr().cast()) };
            self.rx.consume(header);
            self.check(to, header, "the ring");
        }
    }

    fn check(&mut self, got: [u64; LONG], header: Header, place: &str) {
        let words = header.length() as usize / 8;
        let want = payload(self.side.peer(), self.heard);
        assert_eq!(got[..words], want[..words], "{place} gave parts of another record");
        self.heard += 1;
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

fn exchange(places: [Place; 2], jumps: bool) {
    model(move || {
        let shared = Shared::new();
        let (mut from, mut to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        if jumps {
            fill_segment(&mut from.tx, &mut to.rx);
        }
        let writer = thread::spawn(move || {
            for place in places {
                let record = header(16).record();
                if !from.tx.fits(record) {
                    from.tx.read_taken();
                    assert!(from.tx.find(record, true));
                }
                from.say(place);
            }
        });
        (0..2).for_each(|_| to.hear());
        writer.join().expect("the writer");
        to.hear();
        assert_eq!(to.heard, 2, "each record once");
        drop(shared);
    });
}

/// Two records alone, one after the other: a reader in the middle never mixes them.
#[test]
fn models_two_records_in_the_bell() {
    exchange([Place::Bell; 2], false);
}

/// The same with records of more than one line, and of one line and more in turn.
#[test]
fn models_two_long_records_in_the_bell() {
    exchange([Place::LongBell; 2], false);
    exchange([Place::LongBell, Place::Bell], false);
    exchange([Place::Bell, Place::LongBell], false);
}

/// The same where the second begins the ring's next lap.
#[test]
fn models_a_jump_before_the_second() {
    exchange([Place::Bell; 2], true);
    exchange([Place::Ring, Place::Bell], true);
    exchange([Place::Bell, Place::Ring], true);
}

/// One in the bell, then one in the ring alone, and the other way round.
#[test]
fn models_bell_and_ring_in_turn() {
    exchange([Place::Bell, Place::Ring], false);
    exchange([Place::Ring, Place::Bell], false);
}

/// Both sides write to the bell when they like. What each does, in order: `None` hears.
fn converse(maker: &'static [Option<Place>], taker: &'static [Option<Place>]) {
    fn run(end: &mut End, steps: &[Option<Place>]) {
        for step in steps {
            match step {
                Some(place) => end.say(*place),
                None => end.hear(),
            }
        }
    }
    model(move || {
        let shared = Shared::new();
        let (mut one, mut two) = (shared.end(Side::Maker), shared.end(Side::Taker));
        let other = thread::spawn(move || {
            run(&mut one, maker);
            one
        });
        run(&mut two, taker);
        let mut one = other.join().expect("the other side");
        one.hear();
        two.hear();
        assert_eq!((one.heard, two.heard), (two.said, one.said), "each record once");
        drop(shared);
    });
}

/// Both write to the same line of the bell, at once or one behind the other: neither takes what it
/// wrote itself for the peer's.
#[test]
fn models_two_writers_of_the_bell() {
    converse(&[Some(Place::Bell), None], &[Some(Place::Bell), None]);
    converse(&[Some(Place::Bell), None], &[None, Some(Place::Bell)]);
    converse(&[Some(Place::Bell), Some(Place::Bell)], &[None, Some(Place::Bell)]);
    converse(&[Some(Place::Bell), None], &[Some(Place::Ring), None, Some(Place::Bell)]);
    // An answer that is in the ring alone, and ends where what is in the bell does.
    converse(&[Some(Place::Bell), None], &[None, Some(Place::Ring)]);
}

/// The same with records of more than one line.
#[test]
fn models_two_writers_of_all_lines() {
    converse(&[Some(Place::LongBell), None], &[Some(Place::LongBell), None]);
    converse(&[Some(Place::LongBell), None], &[None, Some(Place::LongBell)]);
    converse(&[Some(Place::Bell), None], &[None, Some(Place::LongBell)]);
}

/// CP-6: a sleeper that saw nothing is rung, or the publisher came before its last look.
#[test]
fn models_no_wake_up_is_lost() {
    model(|| {
        let shared = Shared::new();
        let (mut from, mut to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        let theirs = shared.clone();
        let publisher = thread::spawn(move || {
            from.say(Place::Bell);
            // Its alarm has taken the word away if it found the sleeper asleep.
            theirs.header().asleep(Side::Taker).load(Ordering::Relaxed)
        });
        let header = shared.header();
        let asleep: &AtomicU32 = header.asleep(Side::Taker);
        asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        to.hear();
        let left = publisher.join().expect("the publisher");
        let rung = asleep.load(Ordering::Relaxed) == 0;
        assert!(to.heard == 1 || rung, "asleep for good; the publisher saw {left}");
    });
}
