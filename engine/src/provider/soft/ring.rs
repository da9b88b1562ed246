//! The two ends of a direction: `Tx` writes records and rings the bell, `Rx` reads them.
//!
//! Positions are byte counts of 64 bits, which never wrap; their low halves travel, and are widened
//! against what this side knows. Neither end believes a position the other wrote before it has been
//! compared with what is possible.
#![expect(unsafe_code, reason = "reads and writes the shared ring")]

use super::alarm::Alarm;
use super::burst::Burst;
use super::copy;
use super::lap::Lap;
use super::layout::{
    AREA, BELL_FIRST, BELL_MAX, Data, Direction, Header, JUMP_BYTES, RECORD_MAX, SEGMENT,
};
use super::sync::{AtomicU64, Ordering, fence};
use crate::wc::Status;

/// The sending end.
pub(super) struct Tx {
    way: Direction,
    /// The lap's.
    data: Data,
    /// Where the next record goes.
    pub(super) at: u64,
    /// Up to where there is space, as last looked.
    limit: u64,
    /// What the receiver can see.
    published: u64,
    /// Ring space the receiver has given back, as last seen.
    freed: u64,
    /// Up to where records may be held back: there is space, and it is not too much.
    hold_until: u64,
    lap: Lap,
    /// Number of the last refusal read.
    refusal_seen: u32,
    alarm: Alarm,
}

/// A record that was refused: the sender's queue pair fails there.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    /// Ring position of the record.
    pub(super) at: u64,
    /// The number of the queue pair it was for.
    pub(super) qp: u32,
    /// What the sender's completion says.
    pub(super) status: Status,
}

impl Tx {
    pub(super) fn new(way: Direction, alarm: Alarm) -> Tx {
        let lap = Lap::new(0);
        Tx {
            way,
            data: way.lap(0),
            at: 0,
            limit: lap.limit(0),
            published: 0,
            freed: 0,
            hold_until: 0,
            lap,
            refusal_seen: 0,
            alarm,
        }
    }

    /// True if `bytes` more fit without another look.
    #[inline(always)]
    pub(super) fn fits(&self, bytes: u32) -> bool {
        self.writer().fits(bytes)
    }

    /// True if `bytes` more fit by what is known to be given back.
    pub(super) fn widen(&mut self, bytes: u32) -> bool {
        self.limit = self.lap.limit(self.freed);
        self.fits(bytes)
    }

    /// Finds a place for `bytes` that do not fit, when all that is given back is known: in the next
    /// lap, or if it may `grow` in the next segment.
    pub(super) fn find(&mut self, bytes: u32, grow: bool) -> bool {
        if self.lap.is_over(self.at + u64::from(bytes)) {
            if self.lap.may_jump(self.freed, grow) {
                self.jump();
            } else if grow {
                self.lap.go_on();
            }
        }
        let fits = self.widen(bytes);
        if grow && !fits {
            self.lap.was_full();
        }
        fits
    }

    /// Begins the next lap. Like a record, the jump is not visible before it is published.
    fn jump(&mut self) {
        // SAFETY: a lap's limit leaves space for it in the area, which nobody has read: the lap
        // only grows. Positions are multiples of 8.
        unsafe { self.data.at(self.at).cast::<u64>().write(Header::JUMP.0) };
        self.at += u64::from(JUMP_BYTES);
        self.lap.jump(self.at);
        self.data = self.way.lap(self.at);
    }

    /// True if a record of that size may be held back.
    #[inline(always)]
    pub(super) fn may_hold(&self, record: u32) -> bool {
        self.at + u64::from(record) <= self.hold_until
    }

    /// A quarter segment behind what is published may be held back, as far as there is space.
    #[inline(always)]
    pub(super) fn begin_hold(&mut self) {
        let most = self.published + u64::from(SEGMENT / 4);
        self.hold_until = most.min(self.limit);
    }

    /// A cursor for writing several records with few looks at `self`.
    #[inline(always)]
    pub(super) fn writer(&self) -> Writer {
        Writer { data: self.data, at: self.at, limit: self.limit }
    }

    /// Takes over how far a cursor has written.
    #[inline(always)]
    pub(super) fn end_writer(&mut self, writer: &Writer) {
        self.at = writer.at;
    }

    /// Bytes written that nobody published yet.
    #[inline(always)]
    pub(super) fn unpublished(&self) -> u32 {
        (self.at - self.published) as u32
    }

    /// What the receiver can see.
    #[inline(always)]
    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Takes over an acknowledgement that came with the other direction's bell.
    #[inline(always)]
    pub(super) fn note_freed(&mut self, upto: u32) {
        // A peer may write anything here: only a step forward, and not past what was published.
        let step = u64::from(upto.wrapping_sub(self.freed as u32));
        if step > 0 && step <= self.published - self.freed {
            self.freed += step;
        }
    }

    /// Reads the receiver's own line: space given back is taken over, and the position is given
    /// up to where every record was taken. Acquire pairs with the receiver's Release: its reads
    /// of the records are over before we overwrite them.
    #[inline(always)]
    pub(super) fn read_taken(&mut self) -> u32 {
        let word = self.way.taken(0).load(Ordering::Acquire);
        self.note_freed(word as u32);
        (word >> 32) as u32
    }

    /// The refusal in the receiver's line, if it is a new one, behind what is known to be taken,
    /// `safe`. Acquire pairs with
    /// [`Rx::write_refusal`]; the line keeps it until [`Rx::settle_refusal`].
    #[inline(always)]
    pub(super) fn read_refusal(&mut self, safe: u64) -> Option<Refusal> {
        let word = self.way.taken(1).load(Ordering::Acquire);
        if word as u32 == self.refusal_seen {
            return None;
        }
        self.refusal_seen = word as u32;
        let rest = self.way.taken(2).load(Ordering::Relaxed);
        let status = Status::from_raw((rest >> 32) as u32);
        // Nothing before `safe` is refused any more.
        let at = safe + u64::from(((word >> 32) as u32).wrapping_sub(safe as u32));
        Some(Refusal { at, qp: rest as u32, status })
    }

    /// Number of the refusal last read.
    pub(super) fn refusal_seen(&self) -> u32 {
        self.refusal_seen
    }

    /// Number of our last refusal that the peer has dealt with.
    pub(super) fn settled_refusal(&self) -> u32 {
        self.way.taken(3).load(Ordering::Acquire) as u32
    }

    /// Writes the header, and the immediate word if there is one, at the current position and
    /// gives back where the payload goes. The record is not visible before [`Tx::publish`].
    #[inline(always)]
    pub(super) fn begin(&mut self, header: Header, imm: u32) -> *mut u8 {
        self.writer().begin(header, imm)
    }

    /// Asks for the lines that the next `bytes` will be written to, as its own: the receiver has
    /// them, and without this each first store to a line waits for it.
    #[inline(always)]
    pub(super) fn claim(&self, bytes: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            let mut ahead = 0;
            while ahead < bytes.min(CLAIM_MAX) {
                let at = self.data.at(self.at + u64::from(ahead));
                // SAFETY: a prefetch has no effect on memory, and one that the processor does
                // not know is a no-operation, as is one of an address that is none.
                unsafe {
                    core::arch::asm!(
                        "prefetchw [{}]",
                        in(reg) at,
                        options(nostack, preserves_flags)
                    );
                }
                ahead += 64;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = bytes;
    }

    /// Moves past a record whose bytes are all written.
    #[inline(always)]
    pub(super) fn end(&mut self, header: Header) {
        debug_assert!(header.record() <= RECORD_MAX);
        self.at += u64::from(header.record());
    }

    /// Makes everything written visible, and with it `ack`, how far this side has read the
    /// other direction. Release: the records' bytes are written before the tail that names them.
    #[inline(always)]
    pub(super) fn publish(&mut self, ack: u64) {
        self.published = self.at;
        self.way.bell(0).store(bell_word(self.at, ack), Ordering::Release);
        self.alarm.check();
    }

    /// Writes and publishes one record of up to 40 bytes, in the ring and in the first line of the
    /// bell: the receiver then needs only the line it is reading anyway.
    ///
    /// The bell is a sequence lock. Writer: sequence (the new tail, in full), Release fence,
    /// contents, tail (Release). Reader: tail (Acquire), sequence, contents, Acquire fence,
    /// sequence. If a reader sees one word of a newer record, its last look at the sequence sees
    /// the newer number too, and it reads the ring instead, which always holds the record. Without
    /// the writer's fence the contents could be seen before the sequence changed.
    ///
    /// # Safety
    /// `payload` is readable for the length in `header`, which is at most 40 and comes without an
    /// immediate word; `record` is the size of such a record; nothing but a jump is unpublished,
    /// and there is space. (With a jump, what is new is longer than the record: the ring is read.)
    #[inline(always)]
    pub(super) unsafe fn publish_line(
        &mut self,
        header: Header,
        record: u32,
        payload: *const u8,
        ack: u64,
    ) {
        debug_assert!(record == header.record() && record <= BELL_FIRST);
        debug_assert!(self.unpublished() <= JUMP_BYTES);
        let way = self.way;
        let ring = self.data.at(self.at).cast::<u64>();
        let end = self.at + u64::from(record);
        let length = header.length() as usize;
        // The ring first: of the stores to the line that is being looked at none waits for another
        // line, or the line would be taken away in between.
        // SAFETY: there is space for the record in the ring, padded to words, and the receiver
        // does not read there before the tail says so; the caller vouches for the payload.
        unsafe {
            ring.write(header.0);
            copy::to_words::<BELL_WORDS>(payload, length, |i, word| ring.add(1 + i).write(word));
        }
        way.bell(1).store(end, Ordering::Relaxed);
        fence(Ordering::Release);
        way.bell(2).store(header.0, Ordering::Relaxed);
        let put = |i, word| way.bell(3 + i).store(word, Ordering::Relaxed);
        // SAFETY: the caller vouches for the payload.
        unsafe { copy::to_words::<BELL_WORDS>(payload, length, put) };
        (self.at, self.published) = (end, end);
        way.bell(0).store(bell_word(end, ack), Ordering::Release);
        self.alarm.check();
    }

    /// The first record that is written and not published, if there is one, and no jump before it:
    /// its header, and where its payload is if it has no immediate word.
    #[inline(always)]
    pub(super) fn first_unpublished(&self) -> Option<(Header, *const u8)> {
        if !self.lap.has(self.published) {
            return None;
        }
        let at = self.data.at(self.published);
        // SAFETY: a position of this lap is inside the data and aligned; this side has written it,
        // or it is the next one's.
        unsafe { Some((Header(at.cast::<u64>().read()), at.add(8))) }
    }

    /// Publishes one record that is already in the ring, with a copy of it in the lines of the
    /// bell. See [`Tx::publish_line`].
    ///
    /// # Safety
    /// `payload` is readable for the length in `header`, which has no immediate word, and whose
    /// record is the only unpublished one but for a jump, and at most `BELL_MAX` bytes.
    #[inline(always)]
    pub(super) unsafe fn publish_lines(&mut self, header: Header, payload: *const u8, ack: u64) {
        debug_assert!(header.record() <= BELL_MAX);
        debug_assert!(self.unpublished() - header.record() <= JUMP_BYTES);
        let way = self.way;
        let length = header.length() as usize;
        let end = self.at;
        let put = |n: usize, word| way.bell(n).store(word, Ordering::Relaxed);
        put(1, end);
        fence(Ordering::Release);
        put(2, header.0);
        // SAFETY: the first bytes, below `length`. A whole line has no branches.
        unsafe {
            match length < BELL_PAYLOAD {
                true => copy::to_words::<BELL_WORDS>(payload, length, |i, word| put(3 + i, word)),
                false => {
                    copy::to_words::<BELL_WORDS>(payload, BELL_PAYLOAD, |i, word| put(3 + i, word));
                }
            }
        }
        self.published = end;
        way.bell(0).store(bell_word(end, ack), Ordering::Release);
        // The rest follows behind the tail, each line under a stamp of its own: the receiver is
        // already at work on the first line. Release: words before their stamp.
        let (mut at, mut line) = (BELL_PAYLOAD, 8);
        while length >= at + LINE_PAYLOAD {
            // SAFETY: bytes at .. at + LINE_PAYLOAD lie below `length`.
            let from = unsafe { payload.add(at) };
            // SAFETY: as above.
            unsafe { copy::to_words::<7>(from, LINE_PAYLOAD, |i, word| put(line + 1 + i, word)) };
            way.bell(line).store(end, Ordering::Release);
            at += LINE_PAYLOAD;
            line += 8;
        }
        if at < length {
            let rest = length - at;
            // SAFETY: bytes at .. at + rest lie below `length`.
            unsafe {
                copy::to_words::<7>(payload.add(at), rest, |i, word| put(line + 1 + i, word));
            }
            way.bell(line).store(end, Ordering::Release);
        }
        self.alarm.check();
    }
}

/// The first word of the bell: the low halves of the tail and of the acknowledgement.
#[inline(always)]
fn bell_word(tail: u64, ack: u64) -> u64 {
    u64::from(tail as u32) | ack << 32
}

/// Writes records to the ring, one after the other.
pub(super) struct Writer {
    data: Data,
    /// Where the next record goes.
    pub(super) at: u64,
    /// Up to where there is space.
    limit: u64,
}

impl Writer {
    /// True if there is space for `bytes` more.
    #[inline(always)]
    pub(super) fn fits(&self, bytes: u32) -> bool {
        self.at + u64::from(bytes) <= self.limit
    }

    /// See [`Tx::begin`].
    #[inline(always)]
    pub(super) fn begin(&self, header: Header, imm: u32) -> *mut u8 {
        let at = self.data.at(self.at);
        // SAFETY: the caller has checked that the record lies below the limit: inside the data, and
        // given back. It is 8-byte aligned (positions are multiples of 8); the receiver does not
        // read here before publication.
        unsafe {
            at.cast::<u64>().write(header.0);
            if header.immediate_bytes() == 0 {
                return at.add(8);
            }
            at.cast::<u64>().add(1).write(u64::from(imm));
            at.add(16)
        }
    }

    /// Moves past a record of that size, whose bytes are all written.
    #[inline(always)]
    pub(super) fn end(&mut self, record: u32) {
        debug_assert!(record <= RECORD_MAX);
        self.at += u64::from(record);
    }
}

/// Bytes claimed ahead of a batch at most.
const CLAIM_MAX: u32 = 32 * 64;

/// Doorbells of fewer bytes claim nothing: their lines are few, and claiming costs more.
pub(super) const CLAIM_MIN: u32 = 128;

/// Bytes read after which the sender is told at the latest.
const TELL_EVERY: u64 = SEGMENT as u64 / 4;

/// Payload bytes in the first line of the bell, and words.
const BELL_PAYLOAD: usize = BELL_FIRST as usize - 8;
const BELL_WORDS: usize = BELL_PAYLOAD / 8;

/// Payload bytes in each further line, behind its stamp.
const LINE_PAYLOAD: usize = 56;

/// How often a reader looks for the stamp of a further bell line before it turns to the ring.
const STAMP_LOOKS: u32 = 64;

/// A record read from the bell.
#[derive(Clone, Copy)]
pub(super) struct Lone {
    pub(super) header: Header,
    /// Ring position behind it, which is the sequence of the bell.
    end: u64,
    /// The bell's first word.
    word: u64,
}

/// The receiving end.
pub(super) struct Rx {
    way: Direction,
    /// The lap's.
    data: Data,
    /// The next record to read.
    pub(super) at: u64,
    /// The tail, as last taken over.
    tail: u64,
    /// The end of the data in this lap.
    end: u64,
    /// The bell's first word, as last read.
    word: u64,
    /// From this position on the sender is to be told how far this side has read.
    due: u64,
    /// Index of the first word of the last line that a record in the bell lately filled.
    lines: usize,
    alarm: Alarm,
}

impl Rx {
    pub(super) fn new(way: Direction, alarm: Alarm) -> Rx {
        let (data, end) = (way.lap(0), u64::from(AREA));
        Rx { way, data, at: 0, tail: 0, end, word: 0, due: TELL_EVERY, lines: 0, alarm }
    }

    /// The acknowledgement in the sender's bell, now: for a side that needs space and has not
    /// polled.
    pub(super) fn peer_ack(&self) -> u32 {
        (self.way.bell(0).load(Ordering::Acquire) >> 32) as u32
    }

    /// The acknowledgement that came with the bell, as last read.
    #[inline(always)]
    pub(super) fn heard(&self) -> u32 {
        (self.word >> 32) as u32
    }

    /// True if every record seen so far has been read.
    #[inline(always)]
    pub(super) fn caught_up(&self) -> bool {
        self.at == self.tail
    }

    /// Reads the bell: true if its first word, tail and acknowledgement, has changed. Acquire
    /// pairs with `publish`: the records below the tail are complete.
    #[inline(always)]
    pub(super) fn look(&mut self) -> bool {
        let word = self.peek();
        if self.has_seen(word) {
            return false;
        }
        self.word = word;
        true
    }

    /// The first word of the bell, now. See [`Rx::look`].
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        self.way.bell(0).load(Ordering::Acquire)
    }

    /// True if that is what was last seen; then what may come next is asked for.
    #[inline(always)]
    pub(super) fn has_seen(&self, word: u64) -> bool {
        let seen = word == self.word;
        if seen {
            self.expect_lines();
        }
        seen
    }

    /// If the last record filled further lines of the bell, the next may too: they are asked for
    /// along with the first, so that the misses overlap.
    #[inline(always)]
    fn expect_lines(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let mut line = 8;
            while line <= self.lines {
                // SAFETY: a prefetch has no effect on memory; the line is one of the bell's.
                unsafe { _mm_prefetch::<_MM_HINT_T0>((&raw const *self.way.bell(line)).cast()) };
                line += 8;
            }
        }
    }

    /// The bytes between what was read and the tail in the bell.
    #[inline(always)]
    fn news(&self) -> u32 {
        (self.word as u32).wrapping_sub(self.at as u32)
    }

    /// The record in the bell, if all that is new is this one, and it is a plain message; the ring
    /// holds it as well. Its header is loaded once: what is checked is what is used.
    #[inline(always)]
    pub(super) fn lone(&self) -> Option<Lone> {
        self.lone_in(self.word)
    }

    /// As `lone`, with that first word, which need not have been taken over.
    #[inline(always)]
    pub(super) fn lone_in(&self, word: u64) -> Option<Lone> {
        self.lone_where(word, Header::is_plain_send)
    }

    /// As `lone_in`, if it is one of those messages without immediate data.
    #[inline(always)]
    pub(super) fn lone_where(
        &self,
        word: u64,
        is_one: impl FnOnce(Header) -> bool,
    ) -> Option<Lone> {
        let news = (word as u32).wrapping_sub(self.at as u32);
        let end = self.at + u64::from(news);
        if self.way.bell(1).load(Ordering::Relaxed) != end {
            return None;
        }
        let header = Header(self.way.bell(2).load(Ordering::Relaxed));
        let fits = is_one(header) && header.plain_record() == news && news <= BELL_MAX;
        if fits { Some(Lone { header, end, word }) } else { None }
    }

    /// Copies the payload of the record in the bell to `to`, and moves past it. False: the bell
    /// changed meanwhile, and nothing was consumed; the record is in the ring.
    ///
    /// # Safety
    /// `lone` is what [`Rx::lone`] gave just now; `to` is writable for the length in its header,
    /// and nobody else uses those bytes.
    #[inline(always)]
    pub(super) unsafe fn take_lone(&mut self, lone: Lone, to: *mut u8) -> bool {
        let way = self.way;
        let length = lone.header.length() as usize;
        if length <= BELL_PAYLOAD {
            // SAFETY: the caller vouches for `to`.
            unsafe { copy::from_words::<BELL_WORDS>(to, length, |i| way.bell(3 + i)) };
        // SAFETY: as above; `lone` checked that the bell holds the length.
        } else if !unsafe { self.fetch_lines(lone, to) } {
            return false;
        }
        // See `publish_line`: with this the contents read above belong to the tail.
        fence(Ordering::Acquire);
        if way.bell(1).load(Ordering::Relaxed) != lone.end {
            return false;
        }
        (self.at, self.tail, self.word) = (lone.end, lone.end, lone.word);
        true
    }

    /// Copies a payload of more than one line of the bell. False: a line is of another record.
    ///
    /// # Safety
    /// As for `take_lone`; the length is more than the first line holds.
    #[inline(never)]
    unsafe fn fetch_lines(&mut self, lone: Lone, to: *mut u8) -> bool {
        let way = self.way;
        let length = lone.header.length() as usize;
        // SAFETY: as the caller vouches, here and below: always less than `length`.
        unsafe { copy::from_words::<BELL_WORDS>(to, BELL_PAYLOAD, |i| way.bell(3 + i)) };
        let mut at = BELL_PAYLOAD;
        let mut line = 8;
        while length >= at + LINE_PAYLOAD {
            if !stamped(way.bell(line), lone.end) {
                return false;
            }
            // SAFETY: bytes at .. at + LINE_PAYLOAD lie below `length`. A whole line has no
            // branches.
            unsafe { copy::from_words::<7>(to.add(at), LINE_PAYLOAD, |i| way.bell(line + 1 + i)) };
            at += LINE_PAYLOAD;
            line += 8;
        }
        if at < length {
            if !stamped(way.bell(line), lone.end) {
                return false;
            }
            // SAFETY: bytes at .. length.
            unsafe { copy::from_words::<7>(to.add(at), length - at, |i| way.bell(line + 1 + i)) };
            line += 8;
        }
        self.lines = line - 8;
        true
    }

    /// Takes over the tail in the bell, for reading from the ring. False: no honest sender writes
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
        (self.data, self.end) = (self.way.lap(self.at), self.at + u64::from(AREA));
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
        unsafe { copy::exact(to, self.payload(header).add(skip as usize), length as usize) };
    }

    /// # Safety
    /// [`Rx::header`] has just given this header.
    unsafe fn payload(&self, header: Header) -> *mut u8 {
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
    pub(super) fn owes(&self) -> bool {
        self.at >= self.due
    }

    /// The sender is told of everything read.
    #[inline(always)]
    pub(super) fn note_told(&mut self) {
        // Where nothing comes, nothing is stored.
        if !self.has_told() {
            self.due = self.at + TELL_EVERY;
        }
    }

    /// True if the sender knows all there is to tell.
    #[inline(always)]
    pub(super) fn has_told(&self) -> bool {
        self.due == self.at + TELL_EVERY
    }

    /// Writes a refusal into this side's line, under a number that is not the last one's. Release:
    /// who sees the number sees the rest.
    pub(super) fn write_refusal(&self, number: u32, refusal: Refusal) {
        let rest = u64::from(refusal.qp) | (refusal.status as u64) << 32;
        self.way.taken(2).store(rest, Ordering::Relaxed);
        let word = u64::from(number) | refusal.at << 32;
        self.way.taken(1).store(word, Ordering::Release);
        self.alarm.check();
    }

    /// Tells the peer that its refusal with that number was dealt with.
    pub(super) fn settle_refusal(&self, number: u32) {
        self.way.taken(3).store(u64::from(number), Ordering::Release);
        self.alarm.check();
    }

    /// Tells the sender, in this side's own line: everything read, and `safe`, up to where every
    /// record was taken. Release: our reads come before the space is given back.
    #[inline(always)]
    pub(super) fn tell(&mut self, safe: u64) {
        self.note_told();
        let word = u64::from(self.at as u32) | safe << 32;
        self.way.taken(0).store(word, Ordering::Release);
        self.alarm.check();
    }

    #[inline(always)]
    fn prefetch(&self, published: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let mut ahead = 64;
            while ahead < published && ahead <= 2048 {
                // SAFETY: a prefetch has no effect on memory, whatever the address.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(self.data.at(self.at + u64::from(ahead)).cast())
                };
                ahead += 64;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = published;
    }
}

/// Waits a little for a further line of the bell to carry the stamp of the record in the first. A
/// dead sender never writes it; the ring holds the record then.
#[inline(always)]
fn stamped(stamp: &AtomicU64, sequence: u64) -> bool {
    for _ in 0..STAMP_LOOKS {
        if stamp.load(Ordering::Acquire) == sequence {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
