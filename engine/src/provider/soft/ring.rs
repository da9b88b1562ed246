//! The two ends of a direction: `Tx` writes records and rings the bell, `Rx` reads them.
//!
//! Positions are byte counts of 64 bits, which never wrap; their low halves travel, and are widened
//! against what this side knows. Neither end believes a position the other wrote before it has been
//! compared with what is possible.
#![expect(unsafe_code, reason = "reads and writes the shared ring")]

use core::sync::atomic::{Ordering, fence};

use super::copy;
use super::layout::{BELL_FIRST, BELL_MAX, Direction, Header, RECORD_MAX, RING};
use crate::wc::Status;

/// The sending end.
pub(super) struct Tx {
    way: Direction,
    /// Where the next record goes.
    pub(super) at: u64,
    /// What the receiver can see.
    published: u64,
    /// Ring space the receiver has given back, as last seen.
    freed: u64,
    /// Number of the last refusal read.
    refusal_seen: u32,
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
    pub(super) fn new(way: Direction) -> Tx {
        Tx { way, at: 0, published: 0, freed: 0, refusal_seen: 0 }
    }

    /// True if `bytes` more fit without looking at shared memory.
    #[inline(always)]
    pub(super) fn fits(&self, bytes: u32) -> bool {
        self.at - self.freed + u64::from(bytes) <= u64::from(RING)
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

    /// True if the receiver had read everything, as far as this side has heard.
    #[inline(always)]
    pub(super) fn drained(&self) -> bool {
        self.freed == self.published
    }

    /// Takes over an acknowledgement that came with the other direction's bell.
    #[inline(always)]
    pub(super) fn note_freed(&mut self, upto: u32) {
        // A peer may write anything here: only a step forward, and not past what was published.
        let step = u64::from(upto.wrapping_sub(self.freed as u32));
        if step <= self.published - self.freed {
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

    /// True if something on the wire is not known to be taken, `safe` being what is known.
    #[inline(always)]
    pub(super) fn waits(&self, safe: u64) -> bool {
        safe != self.published
    }

    /// Writes the header, and the immediate word if there is one, at the current position and
    /// gives back where the payload goes. The record is not visible before [`Tx::publish`].
    #[inline(always)]
    pub(super) fn begin(&mut self, header: Header, imm: u32) -> *mut u8 {
        let at = self.way.data(self.at);
        // SAFETY: `data` is valid for RECORD_MAX bytes and 8-byte aligned (positions are
        // multiples of 8); the receiver does not read here before publication, and the caller
        // has checked that the space was given back.
        unsafe {
            at.cast::<u64>().write(header.0);
            let skip = 8 + header.immediate_bytes() as usize;
            if skip == 16 {
                at.cast::<u64>().add(1).write(u64::from(imm));
            }
            at.add(skip)
        }
    }

    /// Asks for the lines that the next `bytes` will be written to, as its own: the receiver has
    /// them, and without this each first store to a line waits for it.
    #[inline(always)]
    pub(super) fn claim(&self, bytes: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            let mut ahead = 0;
            while ahead < bytes.min(CLAIM_MAX) {
                let at = self.way.data(self.at + u64::from(ahead));
                // SAFETY: a prefetch has no effect on memory, and one that the processor does
                // not know is a no-operation; the address is inside the ring.
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
        self.ring(ack);
    }

    #[inline(always)]
    fn ring(&mut self, ack: u64) {
        let word = u64::from(self.published as u32) | ack << 32;
        self.way.bell(0).store(word, Ordering::Release);
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
    /// immediate word; nothing is unpublished, and there is space.
    #[inline(always)]
    pub(super) unsafe fn publish_line(&mut self, header: Header, payload: *const u8, ack: u64) {
        debug_assert!(header.record() <= BELL_FIRST && self.unpublished() == 0);
        // SAFETY: as the caller vouches; N words cover the length.
        unsafe {
            match header.length().div_ceil(8) {
                0 => self.line::<0>(header, payload, ack),
                1 => self.line::<1>(header, payload, ack),
                2 => self.line::<2>(header, payload, ack),
                3 => self.line::<3>(header, payload, ack),
                4 => self.line::<4>(header, payload, ack),
                _ => self.line::<5>(header, payload, ack),
            }
        }
    }

    /// # Safety
    /// As for `publish_line`; the length takes N words.
    #[inline(always)]
    unsafe fn line<const N: usize>(&mut self, header: Header, payload: *const u8, ack: u64) {
        let length = header.length() as usize;
        let mut words = [0u64; N];
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: n < N, so n * 8 < length.
            *word = unsafe { copy::word(payload, n * 8, length) };
        }
        let to = self.begin(header, 0).cast::<u64>();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: `begin` gives space for the whole record, padded to words.
            unsafe { to.add(n).write(*word) };
        }
        self.end(header);
        self.published = self.at;
        self.way.bell(1).store(self.published, Ordering::Relaxed);
        fence(Ordering::Release);
        self.way.bell(2).store(header.0, Ordering::Relaxed);
        for (n, word) in words.iter().enumerate() {
            self.way.bell(3 + n).store(*word, Ordering::Relaxed);
        }
        self.ring(ack);
    }

    /// Copies whole words of a payload into the bell, from word `from` on.
    ///
    /// # Safety
    /// `payload` is readable for `(from + count) * 8` bytes; `n + count` words are in the bell.
    #[inline(always)]
    unsafe fn put_words(&self, n: usize, payload: *const u8, from: usize, count: usize) {
        for i in 0..count {
            // SAFETY: as the caller vouches.
            let word = unsafe { payload.add((from + i) * 8).cast::<u64>().read_unaligned() };
            self.way.bell(n + i).store(word, Ordering::Relaxed);
        }
    }

    /// Publishes one record of more than 40 bytes, already in the ring, with a copy of it in the
    /// lines of the bell. See [`Tx::publish_line`].
    ///
    /// # Safety
    /// `payload` is readable for the length in `header`, which has no immediate word, and whose
    /// record is the only unpublished one and at most `BELL_MAX` bytes.
    #[inline(always)]
    pub(super) unsafe fn publish_lines(&mut self, header: Header, payload: *const u8, ack: u64) {
        let length = header.length() as usize;
        debug_assert!(header.record() <= BELL_MAX && self.unpublished() == header.record());
        self.published = self.at;
        let sequence = self.published;
        self.way.bell(1).store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        self.way.bell(2).store(header.0, Ordering::Relaxed);
        let whole = length / 8;
        // SAFETY: five words are below `length`, which is over 40.
        unsafe { self.put_words(3, payload, 0, 5) };
        self.ring(ack);
        // The rest follows behind the tail, each line under a stamp of its own: the receiver is
        // already at work on the first line. Release: words before their stamp.
        let (mut word, mut line) = (5, 8);
        while word * 8 < length {
            let count = (whole - word).min(7);
            // SAFETY: words up to `whole` are below `length`.
            unsafe { self.put_words(line + 1, payload, word, count) };
            word += count;
            if count < 7 && word * 8 < length {
                // SAFETY: the last, partial word starts below `length`.
                let last = unsafe { copy::word(payload, word * 8, length) };
                self.way.bell(line + 1 + count).store(last, Ordering::Relaxed);
                word += 1;
            }
            self.way.bell(line).store(sequence, Ordering::Release);
            line += 8;
        }
    }
}

/// Bytes claimed ahead of a batch at most.
const CLAIM_MAX: u32 = 16 * 64;

/// Doorbells of fewer bytes claim nothing: their lines are few, and claiming costs more.
pub(super) const CLAIM_MIN: u32 = 128;

/// How often a reader looks for the stamp of a further bell line before it turns to the ring.
const STAMP_LOOKS: u32 = 64;

/// The receiving end.
pub(super) struct Rx {
    way: Direction,
    /// The next record to read.
    pub(super) at: u64,
    /// The tail, as last read.
    tail: u64,
    /// The bell's first word, as last read.
    word: u64,
    /// What the sender has been told this side has read.
    pub(super) told: u64,
    /// The bell holds the record at `at`.
    in_bell: bool,
    /// Index of the last line's first word that the last record in the bell filled, or 0.
    lines: usize,
}

impl Rx {
    pub(super) fn new(way: Direction) -> Rx {
        Rx { way, at: 0, tail: 0, word: 0, told: 0, in_bell: false, lines: 0 }
    }

    /// The acknowledgement in the sender's bell, now: for a side that needs space and has not
    /// polled.
    pub(super) fn peer_ack(&self) -> u32 {
        (self.way.bell(0).load(Ordering::Acquire) >> 32) as u32
    }

    /// True if every record seen so far has been read.
    #[inline(always)]
    pub(super) fn caught_up(&self) -> bool {
        self.at == self.tail
    }

    /// Reads the bell; its first word, tail and acknowledgement, if it has changed. Acquire pairs
    /// with `publish`: the records below the tail are complete.
    #[inline(always)]
    pub(super) fn look(&mut self) -> Option<u64> {
        let word = self.way.bell(0).load(Ordering::Acquire);
        if word == self.word {
            self.expect_lines();
            return None;
        }
        self.word = word;
        Some(word)
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
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.way.bell(line).as_ptr().cast()) };
                line += 8;
            }
        }
    }

    /// Takes over a tail just read. False: no honest sender writes it.
    #[inline(always)]
    pub(super) fn advance(&mut self, tail: u32) -> bool {
        let published = tail.wrapping_sub(self.at as u32);
        if published == 0 {
            return true;
        }
        if published > RING || !published.is_multiple_of(8) {
            return false;
        }
        self.tail = self.at + u64::from(published);
        self.in_bell = self.way.bell(1).load(Ordering::Relaxed) == self.tail;
        if !self.in_bell {
            self.prefetch(published);
        }
        true
    }

    /// The header of the next record, of which there is one; `None` if no honest sender writes
    /// it. It is loaded once: what is checked is what is used.
    #[inline(always)]
    pub(super) fn header(&mut self) -> Option<Header> {
        let published = (self.tail - self.at) as u32;
        if self.in_bell {
            let header = Header(self.way.bell(2).load(Ordering::Relaxed));
            if header.record() == published && published <= BELL_MAX {
                return Some(header);
            }
            self.in_bell = false;
        }
        // SAFETY: `data` is valid for a whole record and aligned.
        let header = Header(unsafe { self.way.data(self.at).cast::<u64>().read_volatile() });
        let record = header.record();
        if record > RECORD_MAX || record > published { None } else { Some(header) }
    }

    /// A cursor over the records in the ring, for reading several with few looks at `self`; `None`
    /// while the next record is in the bell.
    #[inline(always)]
    pub(super) fn burst(&self) -> Option<Burst> {
        if self.in_bell {
            None
        } else {
            Some(Burst { way: self.way, at: self.at, tail: self.tail })
        }
    }

    /// Takes over how far a burst has read.
    #[inline(always)]
    pub(super) fn end_burst(&mut self, burst: &Burst) {
        self.at = burst.at;
    }

    /// Gives up the copy in the bell: the next look reads the ring. True if there was one.
    #[inline(always)]
    pub(super) fn leave_bell(&mut self) -> bool {
        core::mem::replace(&mut self.in_bell, false)
    }

    /// Copies the payload of the record whose header was read to `to`. False: the bell changed
    /// meanwhile; nothing was consumed, read the header again.
    ///
    /// # Safety
    /// `to` is writable for `header.length()` bytes, and nobody else uses them.
    #[inline(always)]
    pub(super) unsafe fn fetch(&mut self, header: Header, to: *mut u8) -> bool {
        let length = header.length() as usize;
        if !self.in_bell {
            // SAFETY: `header` checked that the record, and so its payload, lies inside what was
            // published; an honest sender does not write there before it is given back, and what
            // a hostile one writes is only ever copied, never interpreted in place.
            unsafe {
                let from = self.way.data(self.at).add(8 + header.immediate_bytes() as usize);
                copy::exact(to, from, length);
            }
            return true;
        }
        // SAFETY: the caller vouches for `to`.
        let whole = unsafe { self.fetch_bell(length, to) };
        self.lines = length.saturating_sub(BELL_FIRST as usize - 8).div_ceil(56) * 8;
        if !whole {
            self.in_bell = false;
        }
        whole
    }

    /// # Safety
    /// As for `fetch`; `length` fits the bell.
    #[inline(always)]
    unsafe fn fetch_bell(&self, length: usize, to: *mut u8) -> bool {
        let first = length.min(BELL_FIRST as usize - 8);
        // SAFETY: the first words of the bell, below `length`.
        unsafe { copy::from_words(to, first, |i| self.way.bell(3 + i)) };
        let mut at = first;
        let mut line = 8;
        while at < length {
            if !self.stamped(line) {
                return false;
            }
            let some = (length - at).min(56);
            // SAFETY: bytes at .. at + some lie below `length`.
            unsafe { copy::from_words(to.add(at), some, |i| self.way.bell(line + 1 + i)) };
            at += some;
            line += 8;
        }
        // See `publish_line`: with this the contents read above belong to `tail`.
        fence(Ordering::Acquire);
        self.way.bell(1).load(Ordering::Relaxed) == self.tail
    }

    #[inline(always)]
    fn stamped(&self, line: usize) -> bool {
        for _ in 0..STAMP_LOOKS {
            if self.way.bell(line).load(Ordering::Acquire) == self.tail {
                return true;
            }
            core::hint::spin_loop();
        }
        false
    }

    /// The immediate word of the record whose header was read, 0 without one. It is only in the
    /// ring, never in the bell.
    #[inline(always)]
    pub(super) fn immediate(&self, header: Header) -> u32 {
        if header.immediate_bytes() == 0 {
            return 0;
        }
        // SAFETY: `header` checked that a record with an immediate word has room for it.
        unsafe { self.way.data(self.at).cast::<u64>().add(1).read_volatile() as u32 }
    }

    /// The first words of the payload of the record whose header was read, from the ring; `None` if
    /// it is not that long. Each is loaded once.
    pub(super) fn operands<const N: usize>(&self, header: Header) -> Option<[u64; N]> {
        debug_assert!(!self.in_bell);
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
        debug_assert!(!self.in_bell && skip + length <= header.length());
        // SAFETY: as in `fetch`; the caller vouches for `to`.
        unsafe { copy::exact(to, self.payload(header).add(skip as usize), length as usize) };
    }

    /// # Safety
    /// [`Rx::header`] has just given this header.
    unsafe fn payload(&self, header: Header) -> *mut u8 {
        // SAFETY: header and immediate word lie inside the record.
        unsafe { self.way.data(self.at).add(8 + header.immediate_bytes() as usize) }
    }

    /// Moves past the record whose header was read.
    #[inline(always)]
    pub(super) fn consume(&mut self, header: Header) {
        self.at += u64::from(header.record());
        self.in_bell = false;
    }

    /// True if so much was read since the sender was told that it should be told now.
    #[inline(always)]
    pub(super) fn owes(&self) -> bool {
        self.at - self.told >= u64::from(RING / 4)
    }

    /// Writes a refusal into this side's line, under a number that is not the last one's. Release:
    /// who sees the number sees the rest.
    pub(super) fn write_refusal(&self, number: u32, refusal: Refusal) {
        let rest = u64::from(refusal.qp) | (refusal.status as u64) << 32;
        self.way.taken(2).store(rest, Ordering::Relaxed);
        let word = u64::from(number) | refusal.at << 32;
        self.way.taken(1).store(word, Ordering::Release);
    }

    /// Tells the peer that its refusal with that number was dealt with.
    pub(super) fn settle_refusal(&self, number: u32) {
        self.way.taken(3).store(u64::from(number), Ordering::Release);
    }

    /// Tells the sender, in this side's own line: everything read, and `safe`, up to where every
    /// record was taken. Release: our reads come before the space is given back.
    #[inline(always)]
    pub(super) fn tell(&mut self, safe: u64) {
        self.told = self.at;
        let word = u64::from(self.at as u32) | safe << 32;
        self.way.taken(0).store(word, Ordering::Release);
    }

    #[inline(always)]
    fn prefetch(&self, published: u32) {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let mut ahead = 64;
            while ahead < published && ahead <= 1024 {
                // SAFETY: a prefetch has no effect on memory; the address is inside the ring.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(self.way.data(self.at + u64::from(ahead)).cast())
                };
                ahead += 64;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = published;
    }
}

/// Reads whole records from the ring, one after the other.
pub(super) struct Burst {
    way: Direction,
    at: u64,
    tail: u64,
}

impl Burst {
    /// The next record's header and size, if there is a next one that lies inside what was
    /// published. The word is loaded once.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<(Header, u32)> {
        let published = (self.tail - self.at) as u32;
        if published == 0 {
            return None;
        }
        // SAFETY: `data` is valid for a whole record and aligned.
        let header = Header(unsafe { self.way.data(self.at).cast::<u64>().read_volatile() });
        let record = header.record();
        if record > RECORD_MAX || record > published { None } else { Some((header, record)) }
    }

    /// Copies the payload of the record just looked at.
    ///
    /// # Safety
    /// `to` is writable for `header.length()` bytes, and nobody else uses them; `header` is what
    /// [`Burst::next`] gave, without an immediate word.
    #[inline(always)]
    pub(super) unsafe fn fetch(&self, header: Header, to: *mut u8) {
        // SAFETY: as in `Rx::fetch`.
        unsafe { copy::exact(to, self.way.data(self.at).add(8), header.length() as usize) };
    }

    /// Moves past a record of that size.
    #[inline(always)]
    pub(super) fn consume(&mut self, record: u32) {
        self.at += u64::from(record);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
