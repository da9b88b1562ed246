//! The receiving end of a direction: reads the slot, and the records in the ring. What the sender
//! wrote is compared with what is possible before anything is done with it; see [`super::ring`].
#![expect(unsafe_code, reason = "reads the shared ring")]

use super::burst::Burst;
use super::copy;
use super::layout::{
    AREA, Data, Direction, Header, JUMP_BYTES, SEGMENT, SLOT_FIRST_BYTES, SLOT_RECORD_MAX,
    slot_rest_lines,
};
use super::peer_waker::PeerWaker;
use super::ring::{Refusal, fetch_line, tail_word};
use super::sync::{Ordering, fence, reads};

/// Bytes read after which the sender is told at the latest.
const ACK_EVERY: u64 = SEGMENT as u64 / 4;

/// A record read from the slot.
#[derive(Clone, Copy)]
pub(super) struct SlotRecord {
    pub(super) header: Header,
    /// Ring position behind it.
    end: u64,
    /// The sender's word in the slot.
    word: u64,
}

/// The receiving end.
pub(super) struct Rx {
    pub(super) dir: Direction,
    /// The lap's.
    pub(super) data: Data,
    /// The next record to read.
    pub(super) at: u64,
    /// The tail, as last taken over.
    pub(super) tail: u64,
    /// The end of the data in this lap.
    pub(super) end: u64,
    /// The sender's last word, tail and acknowledgement.
    pub(super) word: u64,
    /// Its word in the slot, and the one for what is in the ring alone, as last read.
    seen: [u64; 2],
    /// From this position on the sender is to be told how far this side has read.
    pub(super) due: u64,
    /// Lines behind the first of the slot that the last record there had, if it had any.
    pub(super) slot_lines: usize,
    /// The sender is close by.
    pub(super) is_near: bool,
    peer_waker: PeerWaker,
}

impl Rx {
    pub(super) fn new(dir: Direction, peer_waker: PeerWaker) -> Rx {
        let (data, end) = (dir.data_from(0), u64::from(AREA));
        Rx {
            dir,
            data,
            at: 0,
            tail: 0,
            end,
            word: 0,
            seen: [0; 2],
            due: ACK_EVERY,
            slot_lines: 0,
            is_near: false,
            peer_waker,
        }
    }

    /// The sender's last acknowledgement, now: for a side that needs space and has not polled.
    pub(super) fn peer_ack_now(&self) -> u32 {
        (self.newest(self.words()) >> 32) as u32
    }

    /// The sender's last acknowledgement, as last read.
    #[inline(always)]
    pub(super) fn peer_ack(&self) -> u32 {
        (self.word >> 32) as u32
    }

    /// True if every record seen so far has been read.
    #[inline(always)]
    pub(super) fn caught_up(&self) -> bool {
        self.at == self.tail
    }

    /// Reads the sender's words: true if its tail has moved on. Acquire pairs with `publish` and
    /// `end_slot`: the records below the tail are complete.
    #[inline(always)]
    pub(super) fn look(&mut self) -> bool {
        let words = self.words();
        if words == self.seen {
            return false;
        }
        let newest = self.newest(words);
        let moved = newest != self.word;
        (self.seen, self.word) = (words, newest);
        moved
    }

    #[inline(always)]
    fn words(&self) -> [u64; 2] {
        [self.dir.slot_tail().load(Ordering::Acquire), self.dir.tail().load(Ordering::Acquire)]
    }

    /// The last of the sender's words, which are these now: of those that have changed the one with
    /// the further tail, if it is further than what was seen. One that has not may be from long
    /// ago, and say anything.
    #[inline(always)]
    fn newest(&self, words: [u64; 2]) -> u64 {
        let [spoken, written] = words;
        let further = |word: u64, than: u64| (word as u32).wrapping_sub(than as u32) as i32 > 0;
        let mut newest = self.word;
        if written != self.seen[1] && further(written, newest) {
            newest = written;
        }
        if spoken != self.seen[0] && further(spoken, newest) {
            newest = spoken;
        }
        newest
    }

    /// The sender's word in the slot, now. What may have come with it is asked for along with it,
    /// unless that takes long: then too much of it is taken away from a sender that is about to
    /// write it.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        if self.is_near || self.slot_lines == 1 {
            self.prefetch_slot();
        }
        self.dir.slot_tail().load(Ordering::Acquire)
    }

    /// True if there is nothing in the ring alone.
    #[inline(always)]
    pub(super) fn has_seen_written(&self) -> bool {
        self.dir.tail().load(Ordering::Relaxed) == self.seen[1]
    }

    /// True if that word in the slot was seen.
    #[inline(always)]
    pub(super) fn has_seen(&self, word: u64) -> bool {
        word == self.seen[0]
    }

    /// True if there is something to look at; what may have come with it is asked for along with
    /// it.
    #[inline(always)]
    pub(super) fn has_news(&self) -> bool {
        self.prefetch_slot();
        self.words() != self.seen
    }

    /// If the last record in the slot filled lines behind the first, the next may too: where they
    /// are asked for along with the first the misses overlap.
    #[inline(always)]
    fn prefetch_slot(&self) {
        for line in 1..=self.slot_lines {
            fetch_line(self.dir.slot_line(line).as_ptr());
        }
    }

    /// The bytes between what was read and the tail in the slot.
    #[inline(always)]
    fn news(&self) -> u32 {
        (self.word as u32).wrapping_sub(self.at as u32)
    }

    /// The record in the slot, if all that is new is this one, and it is a plain message; the ring
    /// holds it as well. Its header is loaded once: what is checked is what is used. `spoken` is
    /// the [`Tx::last_in_slot`](super::ring::Tx::last_in_slot) of this side.
    #[inline(always)]
    pub(super) fn slot_record(&self, spoken: u32) -> Option<SlotRecord> {
        let (word, news) = (self.word, self.news());
        let end = self.at + u64::from(news);
        // See `Tx::begin_slot`. 2 GiB after it was last written to from here the slot looks as
        // if it was just now: then the ring is read.
        let peer_ack = self.peer_ack().wrapping_sub(spoken) as i32 >= 0;
        if !peer_ack || self.dir.seal().load(Ordering::Relaxed) != self.dir.seal_of(end) {
            return None;
        }
        let header = Header(self.dir.slot_header().load(Ordering::Relaxed));
        let fits =
            header.is_plain_send() && header.plain_record() == news && news <= SLOT_RECORD_MAX;
        if fits { Some(SlotRecord { header, end, word }) } else { None }
    }

    /// The record in the slot, whose first word that is, if it is such a message, all that is new,
    /// and of a sender that has heard all up to `said`, where this side's last record ends. Whether
    /// the rest of the slot is of the same record [`Rx::take_from_slot`] finds out.
    #[inline(always)]
    pub(super) fn predicted_in_slot(
        &self,
        word: u64,
        like: Header,
        said: u64,
    ) -> Option<SlotRecord> {
        let header = Header(self.dir.slot_header().load(Ordering::Relaxed));
        let end = self.at + u64::from(header.plain_record());
        let fits = header.is_like(like) && word == tail_word(end, said);
        if fits { Some(SlotRecord { header, end, word }) } else { None }
    }

    /// Copies the payload of the record in the slot to `to`, and moves past it. False: the slot
    /// changed meanwhile, and nothing was consumed; the record is in the ring.
    ///
    /// # Safety
    /// `lone` is what [`Rx::slot_record`] or [`Rx::predicted_in_slot`] just returned, in the second
    /// case no longer than the slot; `to` is writable for the length in its header, and nobody else
    /// uses those bytes.
    #[inline(always)]
    pub(super) unsafe fn take_from_slot(&mut self, lone: SlotRecord, to: *mut u8) -> bool {
        let length = lone.header.length() as usize;
        if length > SLOT_FIRST_BYTES {
            // SAFETY: as the caller vouches.
            return unsafe { self.take_long_from_slot(length, (lone.end, lone.word), to) };
        }
        // SAFETY: the caller vouches for `to`.
        unsafe { copy::from_shared(to, self.dir.slot_payload(), length) };
        // See `Tx::begin_slot`: with this the contents read above belong to the tail.
        fence(Ordering::Acquire);
        let whole = self.dir.seal().load(Ordering::Relaxed) == self.dir.seal_of(lone.end);
        if whole {
            self.move_to(lone.end, lone.word);
        }
        whole
    }

    /// The same with a payload of more than one line of the slot. By itself and to its end, so that
    /// nothing of a short one has to be kept over a call.
    ///
    /// # Safety
    /// As for `take_from_slot`; the length is more than the first line holds.
    #[cold]
    #[inline(never)]
    unsafe fn take_long_from_slot(
        &mut self,
        length: usize,
        (end, word): (u64, u64),
        to: *mut u8,
    ) -> bool {
        let way = self.dir;
        // SAFETY: as the caller vouches: the first line's part is less than `length`.
        unsafe {
            copy::from_shared(to, way.slot_payload(), SLOT_FIRST_BYTES);
            let behind = length - SLOT_FIRST_BYTES;
            copy::from_shared(to.add(SLOT_FIRST_BYTES), way.slot_rest(), behind);
        }
        self.slot_lines = slot_rest_lines(length);
        // See `Tx::begin_slot`.
        fence(Ordering::Acquire);
        let (seal, seals) = (way.seal_of(end), [way.seal(), way.slot_rest_seal()]);
        let whole = seals.iter().all(|it| it.load(Ordering::Relaxed) == seal);
        if whole {
            self.move_to(end, word);
        }
        whole
    }

    /// Takes over that everything up to there was read, and the sender's word in the slot.
    #[inline(always)]
    fn move_to(&mut self, end: u64, word: u64) {
        (self.at, self.tail, self.word) = (end, end, word);
        self.seen[0] = word;
    }

    /// Takes over the tail in the slot, for reading from the ring. False: no honest sender writes
    /// it.
    #[inline(always)]
    pub(super) fn advance(&mut self) -> bool {
        let news = self.news();
        if news > AREA || !news.is_multiple_of(8) {
            return false;
        }
        self.tail = self.at + u64::from(news);
        self.prefetch(news);
        true
    }

    /// A cursor over the records of this lap, for reading several with few looks at `self`.
    #[inline(always)]
    pub(super) fn burst(&self) -> Burst {
        // A sender that goes on where it must jump has nothing that can be read.
        let last = if self.tail <= self.end { self.tail } else { self.end.max(self.at) };
        Burst::new(self.data, self.at, last)
    }

    /// Follows the jump whose header was read. False: no honest sender jumps there.
    pub(super) fn jump(&mut self) -> bool {
        let behind = self.at + u64::from(JUMP_BYTES);
        // Who writes records fills at least half of a segment.
        if (self.end - behind) as u32 % SEGMENT > SEGMENT / 2 {
            return false;
        }
        self.at = behind;
        (self.data, self.end) = (self.dir.data_from(self.at), self.at + u64::from(AREA));
        self.prefetch((self.tail - self.at) as u32);
        true
    }

    /// Takes over how far a burst has read.
    #[inline(always)]
    pub(super) fn end_burst(&mut self, burst: &Burst) {
        self.at = burst.at();
    }

    /// The header of the next record in the ring, of which there is one; `None` if no honest sender
    /// writes it.
    #[inline(always)]
    pub(super) fn header(&self) -> Option<Header> {
        self.burst().next().map(|(header, _)| header)
    }

    /// Copies the payload of the record whose header was read to `to`.
    ///
    /// # Safety
    /// `to` is writable for `header.length()` bytes, and nobody else uses them; `header` is what
    /// [`Rx::header`] gave.
    pub(super) unsafe fn fetch(&self, header: Header, to: *mut u8) {
        // SAFETY: as the caller vouches.
        unsafe { self.burst().fetch(header, to) };
    }

    /// The immediate data of the record whose header was read, 0 if it has none.
    #[inline]
    pub(super) fn immediate(&self, header: Header) -> u32 {
        self.burst().immediate(header)
    }

    /// The first words of the payload of the record whose header was read, from the ring; `None` if
    /// it is not that long. Each is loaded once.
    pub(super) fn operands<const N: usize>(&self, header: Header) -> Option<[u64; N]> {
        if (header.length() as usize) < N * 8 {
            return None;
        }
        // SAFETY: `header` checked that the record lies inside what was published; its payload is
        // 8-byte aligned and holds N words.
        let words = unsafe { self.payload(header).cast::<u64>() };
        // SAFETY: as above.
        Some(core::array::from_fn(|n| unsafe { words.add(n).read_volatile() }))
    }

    /// Copies `length` bytes of the payload to `to`, those from `skip` on, from the ring.
    ///
    /// # Safety
    /// `skip + length` is at most `header.length()`; `to` is writable for `length` bytes, and
    /// nobody else uses those, or they are memory that the peer may write to.
    pub(super) unsafe fn fetch_part(&self, header: Header, skip: u32, length: u32, to: *mut u8) {
        debug_assert!(skip + length <= header.length());
        // SAFETY: as in `fetch`; the caller vouches for `to`.
        unsafe { copy::untrusted(to, self.payload(header).add(skip as usize), length as usize) };
    }

    /// # Safety
    /// [`Rx::header`] has just given this header.
    unsafe fn payload(&self, header: Header) -> *mut u8 {
        reads(self.data.at(self.at), header.record() as usize);
        // SAFETY: header and immediate word lie inside the record.
        unsafe { self.data.at(self.at).add(8 + header.immediate_bytes() as usize) }
    }

    /// Moves past the record whose header was read.
    #[inline(always)]
    pub(super) fn consume(&mut self, header: Header) {
        self.at += u64::from(header.record());
    }

    /// The sender wants to hear soon how far this side has read.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        self.due = 0;
    }

    /// True if the sender asked, or so much was read since it was told that it should be told now.
    #[inline(always)]
    pub(super) fn ack_is_due(&self) -> bool {
        self.at >= self.due
    }

    /// The sender is told of everything read.
    #[inline(always)]
    pub(super) fn note_ack_sent(&mut self) {
        // Where nothing comes, nothing is stored.
        if !self.has_acked() {
            self.due = self.at + ACK_EVERY;
        }
    }

    /// True if the sender knows all there is to tell.
    #[inline(always)]
    pub(super) fn has_acked(&self) -> bool {
        self.due == self.at + ACK_EVERY
    }

    /// Writes a refusal into this side's line, under a number that is not the last one's. Release:
    /// who sees the number sees the rest.
    pub(super) fn write_refusal(&self, number: u32, refusal: Refusal) {
        let rest = u64::from(refusal.qp) | (refusal.status as u64) << 32;
        self.dir.taken(2).store(rest, Ordering::Relaxed);
        let word = u64::from(number) | refusal.at << 32;
        self.dir.taken(1).store(word, Ordering::Release);
        self.peer_waker.check();
    }

    /// Tells the peer that its refusal with that number was dealt with.
    pub(super) fn settle_refusal(&self, number: u32) {
        self.dir.taken(3).store(u64::from(number), Ordering::Release);
        self.peer_waker.check();
    }

    /// Tells the sender, in this side's own line: everything read, and `acked`, up to where every
    /// record was taken. Release: our reads come before the space is given back.
    #[inline(always)]
    pub(super) fn write_ack(&mut self, acked: u64) {
        self.note_ack_sent();
        let word = u64::from(self.at as u32) | acked << 32;
        self.dir.taken(0).store(word, Ordering::Release);
        self.peer_waker.check();
    }

    #[inline(always)]
    fn prefetch(&self, published: u32) {
        let mut ahead = 64;
        while ahead < published && ahead <= 2048 {
            fetch_line(self.data.at(self.at + u64::from(ahead)));
            ahead += 64;
        }
    }
}
