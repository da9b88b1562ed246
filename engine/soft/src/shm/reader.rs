//! The receiving end of a direction: reads the slot, and the records in the ring. It checks that
//! what the sender wrote is possible before it uses it; see [`crate::shm::ring`].
#![expect(unsafe_code, reason = "reads the shared ring")]

use crate::model::buffers::Target;
use crate::prefetch::{self, fetch_line};
use crate::room::never;
use crate::shm::burst::Burst;
use crate::shm::copy;
use crate::shm::layout::{
    AREA, Data, Direction, Header, JUMP_BYTES, LENT_OPERANDS, LINE, RECORD_MAX, SEGMENT,
    SLOT_FIRST_BYTES, SLOT_PAYLOAD_MAX, SLOT_RECORD_MAX, SLOT_SHORT, slot_rest_lines,
};
use crate::shm::offer::Offer;
use crate::shm::peer_waker::PeerWaker;
use crate::shm::refusals::Refusal;
use crate::shm::ring::tail_word;
use crate::sync::{AtomicU64, Ordering, fence, reads};

/// The receiver acknowledges after this many bytes at the latest.
const ACK_EVERY: u64 = SEGMENT as u64 / 4;

/// The most lines behind the first of the next record in the ring that are prefetched. The copy of
/// a longer record prefetches the rest.
const RING_LINES: u64 = 3;

/// A record read from the slot.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotRecord {
    pub(crate) header: Header,
    /// The ring position behind it.
    end: u64,
    /// The sender's word in the slot.
    word: u64,
}

/// A record read from the ring alone.
pub(crate) struct RingRecord {
    pub(crate) header: Header,
    burst: Burst,
    /// The sender's word.
    word: u64,
}

/// The receiving end.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct Rx {
    pub(crate) dir: Direction,
    /// The data of the current lap.
    pub(crate) data: Data,
    /// The next record to read.
    pub(crate) at: u64,
    /// The position up to which records are published, as last read. After [`Rx::take_from_ring`]
    /// it equals `at`, even if a record is left: the next look finds that one again.
    pub(crate) tail: u64,
    /// The end of the data in this lap.
    pub(crate) end: u64,
    /// The sender's last word, `tail` and acknowledgement.
    pub(crate) word: u64,
    /// The sender's two words, as last read: the one in the slot, and the one for records that are
    /// in the ring alone.
    seen: [u64; 2],
    /// From this position on, this side owes the sender an acknowledgement.
    pub(crate) due: u64,
    /// Lines behind the first that the last long record in the slot filled.
    pub(crate) slot_lines: usize,
    /// Bytes of the last record that [`Rx::take_from_ring`] has taken, at least 8.
    ring_record: u32,
    /// The sender is on a near core.
    pub(crate) is_near: bool,
    peer_waker: PeerWaker,
}

impl Rx {
    pub(crate) fn new(dir: Direction, peer_waker: PeerWaker) -> Rx {
        let (data, end) = (dir.data_from(0), dir.area().into());
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
            ring_record: 8,
            is_near: false,
            peer_waker,
        }
    }

    /// Reads the sender's last acknowledgement again, for a side that needs space and has not
    /// polled.
    pub(crate) fn peer_ack_now(&self) -> u32 {
        (self.newest(self.words()) >> 32) as u32
    }

    /// The sender's last acknowledgement, as last read.
    #[inline(always)]
    pub(crate) fn peer_ack(&self) -> u32 {
        (self.word >> 32) as u32
    }

    /// True if every record seen so far has been read.
    #[inline(always)]
    pub(crate) fn caught_up(&self) -> bool {
        self.at == self.tail
    }

    /// Reads the sender's words. True if its tail has moved on. Acquire pairs with `publish` and
    /// `end_slot`: the records below the tail are complete.
    #[inline(always)]
    pub(crate) fn look(&mut self) -> bool {
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

    /// The newest of the sender's words: among those that have changed, the one with the further
    /// tail, if that is further than the last one seen. A word that has not changed may be old, and
    /// means nothing.
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

    /// Reads the sender's word in the slot. It prefetches the other lines of the slot along with
    /// it, unless the sender is far: a prefetch takes the lines from a sender that is about to
    /// write them, and from far away that costs too much.
    #[inline(always)]
    pub(crate) fn peek(&self) -> u64 {
        if self.is_near || self.slot_lines == 1 {
            self.prefetch_slot();
        }
        self.dir.slot_tail().load(Ordering::Acquire)
    }

    /// True if no record has come in the ring alone.
    #[inline(always)]
    pub(crate) fn has_seen_written(&self) -> bool {
        self.dir.tail().load(Ordering::Relaxed) == self.seen[1]
    }

    /// True if this side has seen that word of the slot.
    #[inline(always)]
    pub(crate) fn has_seen(&self, word: u64) -> bool {
        word == self.seen[0]
    }

    /// The sender's word in the slot, if it is new, and no record has come in the ring alone.
    #[inline(always)]
    pub(crate) fn new_in_slot(&self) -> Option<u64> {
        self.new_among(self.words())
    }

    /// The same among words that were just read.
    #[inline(always)]
    pub(crate) fn new_among(&self, words: [u64; 2]) -> Option<u64> {
        let [word, written] = words;
        (written == self.seen[1] && !self.has_seen(word)).then_some(word)
    }

    /// True if something has come. It prefetches the other lines of the slot.
    #[inline(always)]
    pub(crate) fn has_news(&self) -> bool {
        self.prefetch_slot();
        self.words() != self.seen
    }

    /// The same for a look that will probably find a message, to which this side replies: it
    /// prefetches the slot for writing. The lines then come for good, and the reply need not ask
    /// for them again. Half a round trip of 8 bytes between far cores takes 100 ns in place of 120.
    #[inline(always)]
    pub(crate) fn has_awaited(&self) -> bool {
        self.awaited() != self.seen
    }

    /// The words that [`Rx::has_awaited`] reads.
    #[inline(always)]
    pub(crate) fn awaited(&self) -> [u64; 2] {
        prefetch::claim(self.dir.slot_line(0).as_ptr(), (self.slot_lines + 1) * LINE);
        self.words()
    }

    /// The sender's two words, and each as last read.
    pub(crate) fn watched(&self) -> [(&AtomicU64, u64); 2] {
        [(self.dir.slot_tail(), self.seen[0]), (self.dir.tail(), self.seen[1])]
    }

    /// The sender's two words, as last read.
    #[inline(always)]
    pub(crate) fn seen(&self) -> [u64; 2] {
        self.seen
    }

    /// Prefetches the first lines of the slot, before the sender's words are read.
    #[inline(always)]
    pub(crate) fn fetch_slot(&self) {
        for line in 0..2 {
            fetch_line(self.dir.slot_line(line).as_ptr());
        }
    }

    /// If the last record in the slot filled lines behind the first, the next may too. A prefetch
    /// of those lines lets their misses overlap that of the first.
    #[inline(always)]
    fn prefetch_slot(&self) {
        for line in 1..=self.slot_lines {
            fetch_line(self.dir.slot_line(line).as_ptr());
        }
    }

    /// Prefetches the lines of the next record in the ring, if it is as long as the last.
    #[inline(always)]
    pub(crate) fn fetch_next(&self) {
        let lines = self.lines_behind_next() as usize + 1;
        prefetch::fetch(self.data.at(self.at), lines * LINE);
    }

    /// The lines behind the first that the next record in the ring fills, if it is as long as the
    /// last, but [`RING_LINES`] at most.
    #[inline(always)]
    pub(super) fn lines_behind_next(&self) -> u64 {
        let last_byte = self.at % LINE as u64 + u64::from(self.ring_record) - 1;
        (last_byte / LINE as u64).min(RING_LINES)
    }

    /// The bytes between the position read and the newest tail.
    #[inline(always)]
    fn news(&self) -> u32 {
        (self.word as u32).wrapping_sub(self.at as u32)
    }

    /// The record in the slot, if it is the only new one; the ring holds it as well. The header is
    /// loaded once, so the checked value is the one used. `spoken` is the
    /// [`Tx::last_in_slot`](crate::shm::ring::Tx::last_in_slot) of this side.
    #[inline(always)]
    pub(crate) fn slot_record(&self, spoken: u32) -> Option<SlotRecord> {
        let (word, news) = (self.word, self.news());
        let end = self.at + u64::from(news);
        // See `Tx::begin_slot`. 2 GiB after this side last wrote to the slot, it looks as if that
        // were just now: then this side reads the ring.
        let peer_ack = self.peer_ack().wrapping_sub(spoken) as i32 >= 0;
        if !peer_ack || self.dir.seal().load(Ordering::Relaxed) != self.dir.seal_of(end) {
            return None;
        }
        let header = Header(self.dir.slot_header().load(Ordering::Relaxed));
        let fits = header.plain_record() == news && news <= SLOT_RECORD_MAX;
        if fits { Some(SlotRecord { header, end, word }) } else { None }
    }

    /// The offer in the record that [`Rx::slot_record`] just returned. `None`: it is another kind
    /// of record, or the slot changed meanwhile.
    pub(crate) fn offer_in_slot(&self, lone: SlotRecord) -> Option<Offer> {
        if !lone.header.is_whole_offer() {
            return None;
        }
        let mut words = [0; 3];
        let to = words.as_mut_ptr().cast();
        // SAFETY: the words are as long as the operands of an offer, which fit the first line.
        unsafe { copy::from_shared(to, self.dir.slot_payload(), LENT_OPERANDS as usize) };
        // See `Tx::begin_slot`.
        fence(Ordering::Acquire);
        let whole = self.dir.seal().load(Ordering::Relaxed) == self.dir.seal_of(lone.end);
        if whole { Offer::of(words) } else { None }
    }

    /// Moves past a record of the slot whose contents were taken.
    pub(crate) fn take_lone(&mut self, lone: SlotRecord) {
        self.move_to(lone.end, lone.word);
    }

    /// The record in the slot, whose first word is `word`, if it is the only new one and a message
    /// like `like`, and if its sender has read everything up to `said`, the end of this side's last
    /// record. It may ask for an acknowledgement or an event. [`Rx::take_from_slot`] finds out
    /// whether the rest of the slot belongs to the same record.
    #[inline(always)]
    pub(crate) fn predicted_in_slot(
        &self,
        word: u64,
        like: Header,
        said: u64,
    ) -> Option<SlotRecord> {
        let header = Header(self.dir.slot_header().load(Ordering::Relaxed));
        let end = self.at + u64::from(header.plain_record());
        let fits = header.is_like_but_asks(like) && word == tail_word(end, said);
        if fits { Some(SlotRecord { header, end, word }) } else { None }
    }

    /// Takes the acknowledgement beside the record that [`Rx::predicted_in_slot`] just returned.
    /// The record stays where it is.
    #[inline(always)]
    pub(crate) fn hear(&mut self, lone: SlotRecord) {
        self.word = tail_word(self.word, lone.word >> 32);
    }

    /// Copies the payload of the record in the slot, which [`Rx::slot_record`] or
    /// [`Rx::predicted_in_slot`] just returned, to `to`, and moves past the record. False: the slot
    /// changed meanwhile, or the payload is too long, and nothing was consumed; the record is in
    /// the ring.
    #[inline(always)]
    pub(crate) fn take_from_slot(&mut self, lone: SlotRecord, to: Target<'_>) -> bool {
        self.take_from_slot_by::<true>(&lone, to)
    }

    /// The same without a call. False also if the payload is longer than `SLOT_SHORT`.
    #[inline(always)]
    pub(crate) fn take_short_from_slot(&mut self, lone: &SlotRecord, to: Target<'_>) -> bool {
        self.take_from_slot_by::<false>(lone, to)
    }

    /// Both. With `LONG`, a call takes a payload of more than the first line. The record comes by
    /// reference, so that each field may be read where it is used.
    #[inline(always)]
    fn take_from_slot_by<const LONG: bool>(&mut self, lone: &SlotRecord, to: Target<'_>) -> bool {
        if lone.header.length() > to.length() {
            return false;
        }
        let (length, to) = (lone.header.length() as usize, to.as_ptr());
        if length > SLOT_FIRST_BYTES {
            if LONG {
                // SAFETY: the target has the length, which is more than the first line holds.
                return unsafe { self.take_long_from_slot(length, (lone.end, lone.word), to) };
            }
            if length > SLOT_SHORT {
                return false;
            }
            // SAFETY: as above, and it is not too long.
            unsafe { self.copy_lines(length, to) };
            return self.has_copied(length, (lone.end, lone.word));
        }
        // SAFETY: the target has the length, which fits the first line.
        unsafe { copy::from_shared(to, self.dir.slot_payload(), length) };
        // See `Tx::begin_slot`: this makes sure that the contents read above belong to the tail.
        fence(Ordering::Acquire);
        let whole = self.dir.seal().load(Ordering::Relaxed) == self.dir.seal_of(lone.end);
        if whole {
            self.move_to(lone.end, lone.word);
        }
        whole
    }

    /// The same with a payload of more than one line of the slot. It is a function of its own, in
    /// tail position, so that a short record keeps nothing over a call.
    ///
    /// # Safety
    /// `to` is writable for the length, which is more than the first line holds.
    #[cold]
    #[inline(never)]
    unsafe fn take_long_from_slot(
        &mut self,
        length: usize,
        (end, word): (u64, u64),
        to: *mut u8,
    ) -> bool {
        if length > SLOT_SHORT {
            // SAFETY: as the caller vouches.
            return unsafe { self.take_longest_from_slot(length, (end, word), to) };
        }
        // SAFETY: as the caller vouches.
        unsafe { self.copy_lines(length, to) };
        self.has_copied(length, (end, word))
    }

    /// Copies a payload of more than the first line, of at most `SLOT_SHORT` bytes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn copy_lines(&self, length: usize, to: *mut u8) {
        let way = &self.dir;
        // SAFETY: as the caller vouches: the first line's part is less than `length`. The rest fits
        // the lines behind it.
        unsafe {
            copy::from_shared(to, way.slot_payload(), SLOT_FIRST_BYTES);
            let behind = length - SLOT_FIRST_BYTES;
            copy::from_shared(to.add(SLOT_FIRST_BYTES), way.slot_rest(), behind);
        }
    }

    /// The same with a payload of more than `SLOT_SHORT` bytes, for the same reason apart.
    ///
    /// # Safety
    /// As there.
    #[cold]
    #[inline(never)]
    unsafe fn take_longest_from_slot(
        &mut self,
        length: usize,
        (end, word): (u64, u64),
        to: *mut u8,
    ) -> bool {
        if length > SLOT_PAYLOAD_MAX as usize {
            return false;
        }
        let way = &self.dir;
        // SAFETY: as the caller vouches; the slot holds the length.
        unsafe {
            copy::from_shared(to, way.slot_payload(), SLOT_FIRST_BYTES);
            let behind = length - SLOT_FIRST_BYTES;
            copy::from_shared_long(to.add(SLOT_FIRST_BYTES), way.slot_rest(), behind);
        }
        self.has_copied(length, (end, word))
    }

    /// The payload of a record of more than one line has been copied out of the slot. Moves past
    /// the record, unless the slot has changed meanwhile.
    #[inline(always)]
    fn has_copied(&mut self, length: usize, (end, word): (u64, u64)) -> bool {
        let way = &self.dir;
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

    /// The first new record in the ring, if all that is new is at most twice as long: one record,
    /// or two of about the same length. More are taken together. [`Rx::take_from_ring`] takes it.
    #[inline(always)]
    pub(crate) fn first_of_few(&self) -> Option<RingRecord> {
        // As in `look`.
        let word = self.dir.tail().load(Ordering::Acquire);
        let published = (word as u32).wrapping_sub(self.at as u32);
        let tail = self.at + u64::from(published);
        if published > 2 * RECORD_MAX || tail > self.end || !published.is_multiple_of(8) {
            return None;
        }
        let burst = Burst::new(self.data, self.at, tail);
        let (header, record) = burst.next()?;
        (published <= 2 * record).then_some(RingRecord { header, burst, word })
    }

    /// Copies the payload of the record that [`Rx::first_of_few`] just returned to `to`, and moves
    /// past the record, if it is a message like `like`, which may ask for an acknowledgement or an
    /// event. False: it is another kind of record, or the payload is too long, and nothing was
    /// consumed.
    #[inline(always)]
    pub(crate) fn take_from_ring(
        &mut self,
        first: RingRecord,
        like: Header,
        to: Target<'_>,
    ) -> bool {
        let RingRecord { header, mut burst, word } = first;
        if header.length() > to.length() || !header.is_like_but_asks(like) {
            return false;
        }
        burst.fetch(header, to.part(0, header.length()));
        burst.consume(header.record());
        self.ring_record = header.record();
        let end = burst.at();
        (self.at, self.tail, self.word) = (end, end, tail_word(end, word >> 32));
        if burst.left() == 0 {
            self.seen[1] = word;
        }
        true
    }

    /// Notes that this side has read up to `end`, and seen `word` in the slot.
    #[inline(always)]
    fn move_to(&mut self, end: u64, word: u64) {
        (self.at, self.tail, self.word) = (end, end, word);
        self.seen[0] = word;
    }

    /// Moves the tail to the newest one, to read from the ring. False: no honest sender writes such
    /// a tail.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> bool {
        let news = self.news();
        if news > AREA || !news.is_multiple_of(8) {
            return false;
        }
        self.tail = self.at + u64::from(news);
        self.prefetch(news);
        true
    }

    /// A cursor over the records of this lap, which reads several without reloading `self`.
    #[inline(always)]
    pub(crate) fn burst(&self) -> Burst {
        // If the sender has written past the end of its lap, read nothing.
        let last = if self.tail <= self.end { self.tail } else { self.end.max(self.at) };
        Burst::new(self.data, self.at, last)
    }

    /// Follows the jump whose header was just read. False: no honest sender jumps here.
    pub(crate) fn jump(&mut self) -> bool {
        let behind = self.at + u64::from(JUMP_BYTES);
        // An honest sender has filled at least half of a segment.
        if (self.end - behind) as u32 % SEGMENT > SEGMENT / 2 {
            return false;
        }
        self.at = behind;
        (self.data, self.end) = (self.dir.data_from(self.at), self.at + u64::from(self.dir.area()));
        self.prefetch((self.tail - self.at) as u32);
        true
    }

    /// Continues behind the last record that `burst` has read.
    #[inline(always)]
    pub(crate) fn end_burst(&mut self, burst: &Burst) {
        self.at = burst.at();
    }

    /// The header of the next record in the ring, which is not empty; `None` if no honest sender
    /// writes such a header.
    #[inline(always)]
    pub(crate) fn header(&self) -> Option<Header> {
        self.burst().next().map(|(header, _)| header)
    }

    /// Copies the payload of the record whose header was read to a buffer of its length.
    #[cfg(any(test, feature = "std", feature = "sim"))]
    pub(crate) fn fetch_into(&self, header: Header, to: &mut [u8]) {
        debug_assert_eq!(header.length() as usize, to.len());
        self.fetch(header, 0, Target::of(to));
    }

    /// The immediate data of the record whose header was read, 0 if it has none.
    #[inline]
    pub(crate) fn immediate(&self, header: Header) -> u32 {
        self.burst().immediate(header)
    }

    /// The first words of the payload of the record whose header was read; `None` if the payload is
    /// shorter. Each is loaded once.
    pub(crate) fn operands<const N: usize>(&self, header: Header) -> Option<[u64; N]> {
        if (header.length() as usize) < N * 8 {
            return None;
        }
        // SAFETY: `header` checked that the record lies inside what was published; its payload is
        // 8-byte aligned and holds N words.
        let words = unsafe { self.payload(header).cast::<u64>() };
        // SAFETY: as above.
        Some(core::array::from_fn(|n| unsafe { words.add(n).read_volatile() }))
    }

    /// Fills `to` with the payload of the record whose header was read, from `skip` on. There are
    /// as many bytes.
    pub(crate) fn fetch(&self, header: Header, skip: u32, to: Target<'_>) {
        let published = self.burst().left() >= u64::from(header.record());
        if !published || skip.saturating_add(to.length()) > header.length() {
            return never();
        }
        // SAFETY: the record lies inside what was published, and these bytes inside its payload.
        unsafe {
            let from = self.payload(header).add(skip as usize);
            copy::untrusted(to.as_ptr(), from, to.length() as usize);
        }
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
    pub(crate) fn consume(&mut self, header: Header) {
        self.at += u64::from(header.record());
    }

    /// The sender asks for an acknowledgement soon.
    #[inline(always)]
    pub(crate) fn ask(&mut self) {
        self.due = 0;
    }

    /// True if the sender asked for an acknowledgement, or enough was read since the last one.
    #[inline(always)]
    pub(crate) fn ack_is_due(&self) -> bool {
        self.at >= self.due
    }

    /// Notes that an acknowledgement of everything read is sent.
    #[inline(always)]
    pub(crate) fn note_ack_sent(&mut self) {
        // An idle link stores nothing.
        if !self.has_acked() {
            self.due = self.at + ACK_EVERY;
        }
    }

    /// True if everything read is acknowledged.
    #[inline(always)]
    pub(crate) fn has_acked(&self) -> bool {
        self.due == self.at + ACK_EVERY
    }

    /// Writes a refusal into this side's line, under a number that differs from the last one.
    /// Release: a peer that sees the number sees the rest.
    pub(crate) fn write_refusal(&self, number: u32, refusal: Refusal) {
        let rest = u64::from(refusal.qp) | (refusal.status as u64) << 32;
        self.dir.taken(2).store(rest, Ordering::Relaxed);
        let word = u64::from(number) | refusal.at << 32;
        self.dir.taken(1).store(word, Ordering::Release);
        self.peer_waker.check();
    }

    /// Tells the peer that its refusal with that number is settled.
    pub(crate) fn settle_refusal(&self, number: u32) {
        self.dir.taken(3).store(u64::from(number), Ordering::Release);
        self.peer_waker.check();
    }

    /// Acknowledges in this side's own line: everything read, and `acked`, the position up to which
    /// every record was taken. Release: our reads come before the space is given back.
    #[inline(always)]
    pub(crate) fn write_ack(&mut self, acked: u64) {
        self.note_ack_sent();
        let word = u64::from(self.at as u32) | acked << 32;
        self.dir.taken(0).store(word, Ordering::Release);
        self.peer_waker.check();
    }

    #[inline(always)]
    fn prefetch(&self, published: u32) {
        // `prefetch::fetch` takes two instructions more for a short record.
        let mut ahead = 64;
        while ahead < published && ahead <= 2048 {
            fetch_line(self.data.at(self.at + u64::from(ahead)));
            ahead += 64;
        }
    }
}
