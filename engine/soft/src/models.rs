//! Models of what two threads do to a link's memory: see `doorbell_base::models`.

use core::ptr;
use std::sync::Arc;

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_base::models::{Model, check as model};
use loom::thread;

use super::sync::{Ordering, reads, wrote};
use crate::model::buffers::Target;
use crate::shm::layout::{
    Direction, Ends, FRAGMENT, Header, JUMP_BYTES, KIND_LENT, KIND_SEND, LINK_BYTES, LinkHeader,
    RecordFlags, SEGMENT, Side, split, split_responses,
};
use crate::shm::peer_waker::PeerWaker;
use crate::shm::reader::Rx;
use crate::shm::refusals::Refusal;
use crate::shm::ring::{Traffic, Tx};
use crate::state::link_shared::LinkShared;
use crate::steps::sleep::before_last_look;
use crate::wc::Status;

/// The models that are run with each order weakened.
pub(crate) const SMALL_MODELS: &[Model] = &[
    ("a sleeper", || sleep(Place::Slot)),
    ("the next lap, the line says so", || reuse(Answer::Line)),
    ("the next lap, the slot says so", || reuse(Answer::In(Place::Slot))),
    ("the next lap, the ring says so", || reuse(Answer::In(Place::Ring))),
    ("a full ring of responses", full_of_responses),
    ("refusals", refusals),
    ("two in the ring", || exchange([Place::Ring; 2], false)),
    ("two in the slot", || exchange([Place::Slot; 2], false)),
    ("two in all lines of the slot", || exchange([Place::LongSlot; 2], false)),
    ("two offers in the slot", || exchange([Place::Offer; 2], false)),
    ("a question and an answer", || converse(&[SPEAK, None], &[None, SPEAK])),
    ("two questions", || converse(&[SPEAK, None], &[SPEAK, None])),
];

const SPEAK: Option<Place> = Some(Place::Slot);

std::thread_local! {
    /// The memory of a link. A run changes only the ring.
    static MEMORY: Arc<Mapping> =
        Arc::new(MapRequest::new(LINK_BYTES).pages(Ask::Plain).map().expect("memory"));
}

/// One side of the link in that memory.
fn ends(side: Side) -> Ends {
    MEMORY.with(|memory| split(memory, side).expect("enough"))
}

/// The rings of its responses.
fn responses(side: Side) -> (Direction, Direction) {
    MEMORY.with(|memory| split_responses(memory, side).expect("enough"))
}

/// The memory of a link, as both sides have it.
struct Shared([LinkShared; 2]);

impl Shared {
    fn new() -> Arc<Shared> {
        let end = |side| LinkShared::over(MEMORY.with(Arc::clone), side).expect("enough");
        let shared = Shared([Side::Maker, Side::Taker].map(end));
        // Loom must know all words before there are threads.
        let (out, input, header) = ends(Side::Maker);
        (0..32).for_each(|n| out.slot_word(n).store(0, Ordering::Relaxed));
        let (responses, back) = responses(Side::Maker);
        for way in [&out, &input, &responses, &back] {
            way.slot_tail().store(0, Ordering::Relaxed);
            way.tail().store(0, Ordering::Relaxed);
            (0..8).for_each(|n| way.taken(n).store(0, Ordering::Relaxed));
        }
        for side in [Side::Maker, Side::Taker] {
            header.asleep(side).store(0, Ordering::Relaxed);
        }
        Arc::new(shared)
    }

    fn header(&self) -> LinkHeader {
        ends(Side::Maker).2
    }

    fn end(&self, side: Side) -> End {
        let (out, input, header) = ends(side);
        Shared::over((out, input), &header, side)
    }

    /// The same for responses.
    fn response_end(&self, side: Side) -> End {
        Shared::over(responses(side), &self.header(), side)
    }

    fn over((out, input): (Direction, Direction), header: &LinkHeader, side: Side) -> End {
        let peer_waker = || PeerWaker::new(header, side.peer(), Arc::default());
        let (tx, rx) = (Tx::new(out, peer_waker()), Rx::new(input, peer_waker()));
        End { tx, rx, side, said: 0, heard: 0 }
    }
}

/// One end of a link: how many records it has published and taken.
struct End {
    tx: Tx,
    rx: Rx,
    side: Side,
    said: u64,
    heard: u64,
}

fn header(length: u32) -> Header {
    Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, length, 7)
}

fn offer_header(length: u32) -> Header {
    Header::new(KIND_LENT, RecordFlags::FIRST | RecordFlags::LAST, length, 7)
}

/// Words of a payload: one that fills a line of the slot, and one that is longer.
const SHORT: usize = 2;
const LONG: usize = 5;
/// Words of an offer.
const OFFER: usize = 3;

/// Record `n` of a side. Each word of its payload names both.
fn payload(side: Side, n: u64) -> [u8; LONG * 8] {
    let side = u64::from(side == Side::Maker);
    let word = |word: usize| ((n * 2 + side + 1) << 8 | word as u64).to_ne_bytes();
    core::array::from_fn(|at| word(at / 8)[at % 8])
}

/// Where a record is published: in the ring alone, or in the slot as well.
#[derive(Clone, Copy)]
enum Place {
    Ring,
    Slot,
    LongSlot,
    /// As [`Place::Slot`], an offer of bytes of the sender.
    Offer,
}

impl End {
    /// Publishes the next record.
    fn say(&mut self, place: Place) {
        let (words, header): (usize, fn(u32) -> Header) = match place {
            Place::LongSlot => (LONG, header),
            Place::Offer => (OFFER, offer_header),
            Place::Slot | Place::Ring => (SHORT, header),
        };
        let bytes = 8 * words;
        let (header, payload) = (header(bytes as u32), payload(self.side, self.said));
        let (payload, ack) = (&payload[..bytes], self.rx.at);
        self.said += 1;
        match place {
            Place::Slot | Place::LongSlot | Place::Offer => {
                self.tx.publish_bytes_in_slot(header, payload, ack)
            }
            Place::Ring => {
                self.tx.put_bytes(header, 0, payload);
                self.tx.publish(ack);
            }
        }
    }

    /// Takes what has come, as the device's poll does.
    fn hear(&mut self) {
        let mut to = [0; LONG * 8];
        let mut written = !self.rx.has_seen_written();
        while written
            && let Some(first) = self.rx.first_of_few()
            && let came = first.header
            && self.rx.take_from_ring(first, header(0), Target::of(&mut to))
        {
            self.check(to, came, "the ring, as expected,");
            written = !self.rx.has_seen_written();
        }
        let word = self.rx.peek();
        if !(written || self.rx.has_seen(word))
            && let Some(lone) = self.rx.predicted_in_slot(word, header(0), self.tx.published())
            && self.rx.take_from_slot(lone, Target::of(&mut to))
        {
            return self.check(to, lone.header, "the slot, as expected,");
        }
        if !self.rx.look() {
            return;
        }
        if let Some(lone) = self.rx.slot_record(self.tx.last_in_slot()) {
            if lone.header.is_plain_send() && self.rx.take_from_slot(lone, Target::of(&mut to)) {
                return self.check(to, lone.header, "the slot");
            }
            if let Some(offer) = self.rx.offer_in_slot(lone) {
                self.rx.take_lone(lone);
                let words = offer.words().map(u64::to_ne_bytes);
                to[..8 * OFFER].copy_from_slice(words.as_flattened());
                return self.check(to, lone.header, "the offer in the slot");
            }
        }
        assert!(self.rx.advance(), "a tail that no sender writes");
        while !self.rx.caught_up() {
            let header = self.rx.header().expect("a header that a sender wrote");
            if header == Header::JUMP {
                assert!(self.rx.jump(), "where no sender jumps");
                continue;
            }
            self.rx.fetch_into(header, &mut to[..header.length() as usize]);
            self.rx.consume(header);
            self.check(to, header, "the ring");
        }
    }

    fn check(&mut self, got: [u8; LONG * 8], header: Header, place: &str) {
        let bytes = header.length() as usize;
        let want = payload(self.side.peer(), self.heard);
        assert_eq!(got[..bytes], want[..bytes], "{place} gave parts of another record");
        self.heard += 1;
    }
}

/// Fills the first segment, leaving room for one record.
fn fill_segment(tx: &mut Tx) {
    let large = header(FRAGMENT);
    while tx.fits(large.record() + 2 * header(16).record()) {
        tx.put_header(large);
    }
    let rest = SEGMENT - JUMP_BYTES - tx.at as u32 - header(16).record();
    let rest = header(rest - header(0).record());
    tx.put_header(rest);
    tx.publish(0);
}

/// Reads everything that is published.
fn drain(rx: &mut Rx) {
    let mut to = [0; FRAGMENT as usize];
    if rx.look() {
        assert!(rx.advance(), "a tail that no sender writes");
    }
    while !rx.caught_up() {
        let header = rx.header().expect("a header that a sender wrote");
        if header == Header::JUMP {
            assert!(rx.jump(), "where no sender jumps");
            continue;
        }
        rx.fetch_into(header, &mut to[..header.length() as usize]);
        rx.consume(header);
    }
}

fn exchange(places: [Place; 2], jumps: bool) {
    model(move || {
        let shared = Shared::new();
        let (mut from, mut to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        if jumps {
            fill_segment(&mut from.tx);
            drain(&mut to.rx);
            to.rx.write_ack(to.rx.at);
        }
        let writer = thread::spawn(move || {
            for place in places {
                let record = header(16).record();
                if !from.tx.fits(record) {
                    from.tx.read_taken();
                    assert!(from.tx.find(record, Traffic::BothWays));
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

/// Two single records, one after the other: a reader in between never mixes them.
#[test]
fn models_two_records_in_the_slot() {
    exchange([Place::Slot; 2], false);
}

/// The same with offers, and with a message and an offer in turn.
#[test]
fn models_two_offers_in_the_slot() {
    exchange([Place::Offer; 2], false);
    exchange([Place::Offer, Place::Slot], false);
    exchange([Place::Slot, Place::Offer], false);
    converse(&[Some(Place::Offer), None], &[Some(Place::Offer), None]);
    converse(&[Some(Place::Offer), None], &[None, Some(Place::Slot)]);
}

/// The same with long records, and with a short and a long one in turn.
#[test]
fn models_two_long_records_in_the_slot() {
    exchange([Place::LongSlot; 2], false);
    exchange([Place::LongSlot, Place::Slot], false);
    exchange([Place::Slot, Place::LongSlot], false);
}

/// The same where the second record begins the ring's next lap.
#[test]
fn models_a_jump_before_the_second() {
    exchange([Place::Slot; 2], true);
    exchange([Place::Ring, Place::Slot], true);
    exchange([Place::Slot, Place::Ring], true);
}

/// One record in the slot, then one in the ring alone, and the other way round.
#[test]
fn models_slot_and_ring_in_turn() {
    exchange([Place::Slot, Place::Ring], false);
    exchange([Place::Ring, Place::Slot], false);
}

/// Both sides write to the slot at any time. The arrays say what each does, in order; `None` polls.
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

/// Both sides write to the same line of the slot, at once or one after the other. Neither takes its
/// own record for the peer's.
#[test]
fn models_two_writers_of_the_slot() {
    converse(&[Some(Place::Slot), None], &[Some(Place::Slot), None]);
    converse(&[Some(Place::Slot), None], &[None, Some(Place::Slot)]);
    converse(&[Some(Place::Slot), Some(Place::Slot)], &[None, Some(Place::Slot)]);
    converse(&[Some(Place::Slot), None], &[Some(Place::Ring), None, Some(Place::Slot)]);
    // A reply that is in the ring alone, and ends at the same position as the record in the slot.
    converse(&[Some(Place::Slot), None], &[None, Some(Place::Ring)]);
}

/// The same with long records.
#[test]
fn models_two_writers_of_all_lines() {
    converse(&[Some(Place::LongSlot), None], &[Some(Place::LongSlot), None]);
    converse(&[Some(Place::LongSlot), None], &[None, Some(Place::LongSlot)]);
    converse(&[Some(Place::Slot), None], &[None, Some(Place::LongSlot)]);
}

/// How the receiver gives space back.
#[derive(Clone, Copy)]
enum Answer {
    /// In the receiver's own line.
    Line,
    /// By the acknowledgement that comes with a message.
    In(Place),
}

/// In its next lap, the sender writes where the receiver has read.
fn reuse(answer: Answer) {
    model(move || {
        let shared = Shared::new();
        let (mut from, mut to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        fill_segment(&mut from.tx);
        let last = header(16);
        from.tx.put_header(last);
        from.tx.publish(0);
        let reader = thread::spawn(move || {
            drain(&mut to.rx);
            match answer {
                Answer::Line => to.rx.write_ack(to.rx.at),
                Answer::In(place) => to.say(place),
            }
            to
        });
        let told = match answer {
            Answer::Line => from.tx.read_taken().is_some(),
            Answer::In(_) => {
                let told = from.rx.look();
                from.tx.note_freed(from.rx.peer_ack());
                told
            }
        };
        let full = from.tx.at;
        assert!(!from.tx.fits(last.record()) && from.tx.find(last.record(), Traffic::BothWays));
        assert_eq!(from.tx.at > full, told, "in the next lap, or else in the next segment");
        from.say(Place::Ring);
        let mut to = reader.join().expect("the reader");
        to.hear();
        // Or together with the first.
        assert!(to.heard == from.said || !told, "each record once");
        drop(shared);
    });
}

/// Space is given back before it is written to again, however it is given back.
#[test]
fn models_space_is_used_again() {
    reuse(Answer::Line);
    reuse(Answer::In(Place::Slot));
    reuse(Answer::In(Place::LongSlot));
    reuse(Answer::In(Place::Ring));
}

/// A side finds no space for a response and falls asleep. It learns of the space that the receiver
/// gives back, or is woken, and writes only where the receiver has read.
fn full_of_responses() {
    model(|| {
        let shared = Shared::new();
        let (mut from, mut to) =
            (shared.response_end(Side::Maker), shared.response_end(Side::Taker));
        fill_segment(&mut from.tx);
        let last = header(16);
        from.tx.put_header(last);
        from.tx.publish(0);
        let reader = thread::spawn(move || {
            drain(&mut to.rx);
            to.rx.write_ack(to.rx.at);
            to
        });
        shared.0[0].set_asleep(true);
        before_last_look(|| ());
        from.tx.read_taken();
        let fits = from.tx.find(last.record(), Traffic::BothWays);
        if fits {
            from.say(Place::Ring);
        }
        let mut to = reader.join().expect("the reader");
        let rung = shared.header().asleep(Side::Maker).load(Ordering::Relaxed) == 0;
        assert!(fits || rung, "asleep for good");
        drain(&mut to.rx);
        assert_eq!(to.rx.at, from.tx.at, "each record once");
    });
}

/// Responses wait for space, and use it again.
#[test]
fn models_responses_find_space_again() {
    full_of_responses();
}

/// A receiver refuses a record, and refuses another when the sender has settled that.
fn refusals() {
    model(|| {
        let shared = Shared::new();
        let (mut from, to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        let status = [Status::RetryExceeded, Status::RnrRetryExceeded];
        let refusal = move |n: u32| Refusal {
            at: u64::from(n) * 8,
            qp: n + 4,
            status: status[n as usize % 2],
        };
        // Instead of the line's second word, which is not written again while it may be read.
        const PLACE: *const u8 = ptr::without_provenance(8);
        let refuser = thread::spawn(move || {
            wrote(PLACE, 8);
            to.rx.write_refusal(1, refusal(1));
            if to.tx.refusals.settled() == 1 {
                wrote(PLACE, 8);
                to.rx.write_refusal(2, refusal(2));
            }
        });
        for _ in 0..2 {
            if let Some(got) = from.tx.refusals.read(0) {
                let number = from.tx.refusals.seen();
                let want = refusal(number);
                assert!((got.at, got.qp, got.status) == (want.at, want.qp, want.status));
                reads(PLACE, 8);
                from.rx.settle_refusal(number);
            }
        }
        refuser.join().expect("the refuser");
        drop(shared);
    });
}

/// The sender reads a refusal whole, and the receiver does not overwrite it before that.
#[test]
fn models_refusals_are_whole() {
    refusals();
}

/// CP-6: the publisher wakes a sleeper that saw nothing, or published before its last look.
fn sleep(place: Place) {
    model(move || {
        let shared = Shared::new();
        let (mut from, mut to) = (shared.end(Side::Maker), shared.end(Side::Taker));
        let publisher = thread::spawn(move || from.say(place));
        shared.0[1].set_asleep(true);
        before_last_look(|| ());
        to.hear();
        publisher.join().expect("the publisher");
        // The waker has cleared the word if it found the sleeper asleep.
        let rung = shared.header().asleep(Side::Taker).load(Ordering::Relaxed) == 0;
        assert!(to.heard == 1 || rung, "asleep for good");
    });
}

/// See [`sleep`].
#[test]
fn models_no_wake_up_is_lost() {
    [Place::Slot, Place::LongSlot, Place::Ring].into_iter().for_each(sleep);
}
