//! The sending end of a direction: `Tx` writes records and publishes them. The other end is
//! [`crate::shm::reader`]'s `Rx`.
//!
//! Positions are byte counts of 64 bits, which never wrap. Their low halves travel, and the reader
//! widens them by what it knows. Neither end uses a position of the other before it has checked
//! that it is possible.
#![expect(unsafe_code, reason = "writes the shared ring")]

use core::ptr::NonNull;

use crate::model::buffers::{Pieces, Source, Target};
use crate::prefetch;
use crate::room::never;
use crate::shm::copy::{self, gather};
use crate::shm::head::Head;
use crate::shm::layout::{
    Data, Direction, Header, JUMP_BYTES, LINE, RECORD_MAX, SEGMENT, SLOT_FIRST_BYTES,
    SLOT_FIRST_RECORD, SLOT_PAYLOAD_MAX, SLOT_SHORT, SLOT_SHORT_RECORD, record_bytes,
};
use crate::shm::peer_waker::PeerWaker;
use crate::shm::refusals::PeerRefusals;
use crate::shm::wrap_policy::WrapPolicy;
use crate::sync::{Ordering, fence, wrote};

/// The sending end.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct Tx {
    dir: Direction,
    /// The data of the current lap.
    data: Data,
    /// Where the next record goes.
    pub(crate) at: u64,
    /// The position up to which there is space, as last read.
    limit: u64,
    /// The position up to which the receiver can see records.
    published: u64,
    /// The position up to which records may stay unpublished: there is space, and the receiver
    /// still has enough to read.
    defer_limit: u64,
    peer_waker: PeerWaker,
    /// The low half of the position behind the last record that was copied into the slot.
    last_in_slot: u32,
    /// The last search for space found none.
    waited: bool,
    /// Ring space the receiver has given back, as last seen.
    freed: u64,
    /// The receiver's own line, as last read.
    taken: u64,
    wrap: WrapPolicy,
    pub(crate) refusals: PeerRefusals,
}

/// Space for the next record, which ends there. Only the sending end makes one; what is written
/// next uses it.
pub(crate) struct Space {
    end: u64,
}

/// What a sender looks for space for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// A record that is published alone.
    Alone,
    /// One of many records, from a side that sends alone: the ring does not grow for them.
    OneWay,
    /// One of many records, and the peer sends as well.
    BothWays,
}

/// The one message in the ring that is not published.
pub(crate) struct Alone {
    header: Header,
    payload: *const u8,
}

/// A position up to which there is space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Until(u64);

impl Until {
    /// No space at all.
    pub(crate) const NONE: Until = Until(0);

    /// The same, but not beyond that position.
    #[inline(always)]
    pub(crate) fn at_most(self, position: u64) -> Until {
        Until(self.0.min(position))
    }
}

impl Tx {
    pub(crate) fn new(dir: Direction, peer_waker: PeerWaker) -> Tx {
        let (wrap, data) = (WrapPolicy::new(0, dir.area().into()), dir.data_from(0));
        let refusals = PeerRefusals::of(dir.clone());
        Tx {
            dir,
            data,
            at: 0,
            limit: wrap.limit(0),
            published: 0,
            freed: 0,
            taken: 0,
            defer_limit: 0,
            wrap,
            waited: false,
            last_in_slot: 0,
            refusals,
            peer_waker,
        }
    }

    /// True if `bytes` more fit, by the limit as last read.
    #[inline(always)]
    pub(crate) fn fits(&self, bytes: u32) -> bool {
        self.writer().fits(bytes)
    }

    /// Renews the limit from the space known to be given back. True if `bytes` more fit.
    pub(crate) fn widen(&mut self, bytes: u32) -> bool {
        self.limit = self.wrap.limit(self.freed);
        self.fits(bytes)
    }

    /// Finds a place for `bytes` that do not fit, once all space given back is known: in the next
    /// lap, or in the next segment.
    pub(crate) fn find(&mut self, bytes: u32, traffic: Traffic) -> bool {
        let grow = traffic == Traffic::BothWays;
        if self.wrap.is_over(self.at + u64::from(bytes)) {
            // A sender that waited for space is not in a ping-pong.
            let ping_pong = traffic == Traffic::Alone && !self.waited && self.freed == self.at;
            if !(ping_pong && self.wrap.go_on()) {
                if self.wrap.may_jump(self.freed, grow) {
                    self.jump();
                } else if grow {
                    self.wrap.go_on();
                }
            }
        }
        let fits = self.widen(bytes);
        self.waited = !fits;
        if grow && !fits {
            self.wrap.was_full();
        }
        fits
    }

    /// Begins the next lap. Like a record, the jump is not visible before it is published.
    fn jump(&mut self) {
        // SAFETY: a lap's limit leaves space for a jump in the area, and the receiver does not read
        // there before it is published.
        unsafe { begin_record(self.data, self.at, Header::JUMP, JUMP_BYTES.into()) };
        self.at += u64::from(JUMP_BYTES);
        self.wrap.jump(self.at);
        self.data = self.dir.data_from(self.at);
    }

    /// True if a record of that size may stay unpublished.
    #[inline(always)]
    pub(crate) fn may_defer(&self, record: u32) -> bool {
        self.at + u64::from(record) <= self.defer_limit
    }

    /// From the published position on, `DEFER_MAX` bytes may stay unpublished, if there is space.
    #[inline(always)]
    pub(crate) fn renew_defer_limit(&mut self) {
        let most = self.published + u64::from(DEFER_MAX);
        self.defer_limit = most.min(self.limit);
    }

    /// The position up to which records may stay unpublished.
    #[inline(always)]
    pub(crate) fn defer_limit(&self) -> Until {
        Until(self.defer_limit)
    }

    /// Space for a record of that size, by the limit as last read.
    #[inline(always)]
    pub(crate) fn space(&self, record: u32) -> Option<Space> {
        self.writer().space(record)
    }

    /// Space for a message without immediate data that ends before that position.
    #[inline(always)]
    pub(crate) fn space_until(&self, until: Until, payload: Source<'_>) -> Option<Space> {
        let end = self.at + record_bytes(payload.length().into());
        (end <= until.0).then_some(Space { end })
    }

    /// A cursor that writes several records without reloading `self` for each.
    #[inline(always)]
    pub(crate) fn writer(&self) -> Writer {
        Writer { data: self.data, at: self.at, limit: self.limit }
    }

    /// Continues behind the last record that `writer` has written.
    #[inline(always)]
    pub(crate) fn end_writer(&mut self, writer: &Writer) {
        self.at = writer.at;
    }

    /// How far that position of this lap is from the start of the data.
    #[cfg(test)]
    pub(crate) fn place(&self, at: u64) -> u64 {
        self.data.at(at).addr() as u64 - self.dir.data_from(0).at(0).addr() as u64
    }

    /// Bytes that are written and not yet published.
    #[inline(always)]
    pub(crate) fn unpublished(&self) -> u32 {
        (self.at - self.published) as u32
    }

    /// The position up to which the receiver can see records.
    #[inline(always)]
    pub(crate) fn published(&self) -> u64 {
        self.published
    }

    /// The low half of the position behind the last record that was copied into the slot.
    #[inline(always)]
    pub(crate) fn last_in_slot(&self) -> u32 {
        self.last_in_slot
    }

    /// Records an acknowledgement, from the other direction's word in the slot or from the
    /// receiver's line.
    #[inline(always)]
    pub(crate) fn note_freed(&mut self, upto: u32) {
        // The peer may write anything here: accept only a step forward, up to what was published.
        let step = u64::from(upto.wrapping_sub(self.freed as u32));
        if step > 0 && step <= self.published - self.freed {
            self.freed += step;
        }
    }

    /// True if the receiver's own line has changed.
    #[inline(always)]
    pub(crate) fn has_new_taken(&self) -> bool {
        self.dir.taken(0).load(Ordering::Relaxed) != self.taken
    }

    /// Reads the receiver's own line, and records the space that it gives back. Returns the
    /// position up to which every record was taken. `None`: the line has not changed; 4 GiB later
    /// the old value would look like a new one. Acquire pairs with the receiver's Release: its
    /// reads of the records are over before we overwrite them.
    #[inline(always)]
    pub(crate) fn read_taken(&mut self) -> Option<u32> {
        let word = self.dir.taken(0).load(Ordering::Acquire);
        if word == self.taken {
            return None;
        }
        self.taken = word;
        self.note_freed(word as u32);
        Some((word >> 32) as u32)
    }

    /// Writes the header, and the immediate word if there is one, at the current position. Returns
    /// the address for the payload. The record is not visible before [`Tx::publish`].
    #[inline(always)]
    fn begin(&mut self, header: Header, imm: u32) -> *mut u8 {
        debug_assert!(self.fits(header.record()));
        self.writer().begin(header, imm)
    }

    /// Writes a record whose payload does not matter.
    #[cfg(all(test, loom))]
    pub(crate) fn put_header(&mut self, header: Header) {
        self.begin(header, 0);
        self.end(header);
    }

    /// Writes a record whose payload is those words and then those bytes.
    pub(crate) fn put_after_words(&mut self, header: Header, words: &[u64], bytes: Source<'_>) {
        let put = |to: Target<'_>| copy::copy(to, bytes);
        self.put_with(header, 0, words, put);
    }

    /// Writes a record whose payload is those words and then the bytes of a gather list, from
    /// `from` on.
    pub(crate) fn put_gathered(
        &mut self,
        (header, imm): (Header, u32),
        words: &[u64],
        (pieces, from): (&Pieces, u32),
    ) {
        self.put_with(header, imm, words, |to| gather(to, pieces, from));
    }

    /// Writes a record: words, and then what `put` writes in the rest.
    #[inline(always)]
    fn put_with(&mut self, header: Header, imm: u32, words: &[u64], put: impl FnOnce(Target<'_>)) {
        let length = (header.length() as usize).saturating_sub(words.len() * 8);
        debug_assert_eq!(words.len() * 8 + length, header.length() as usize);
        let to = self.begin(header, imm);
        // SAFETY: `begin` gives space for the record, 8-byte aligned, which holds the words and
        // behind them the rest; nobody reads it before it is published.
        unsafe {
            to.cast::<u64>().copy_from_nonoverlapping(words.as_ptr(), words.len());
            put(Target::new(to.add(words.len() * 8), length as u32));
        }
        self.end(header);
    }

    /// Writes a record whose payload is those words.
    #[inline]
    pub(crate) fn put_words(&mut self, header: Header, imm: u32, words: &[u64]) {
        self.put_with(header, imm, words, |_| {});
    }

    /// Writes a record whose payload is those bytes.
    #[cfg(any(test, feature = "std", feature = "sim"))]
    pub(crate) fn put_bytes(&mut self, header: Header, imm: u32, payload: &[u8]) {
        self.put_with(header, imm, &[], |to| to.write(payload));
    }

    /// Writes a message without immediate data of a queue pair whose headers have those bits in
    /// common. Returns where it ends.
    #[inline(always)]
    pub(crate) fn put_plain(&mut self, common: u64, payload: Source<'_>, space: Space) -> u64 {
        self.put_message(Header(common | u64::from(payload.length())), payload, space)
    }

    /// Writes a message with that header, which has no immediate data.
    #[inline(always)]
    fn put_message(&mut self, header: Header, payload: Source<'_>, space: Space) -> u64 {
        let Space { end } = space;
        debug_assert_eq!(end - self.at, record_bytes(payload.length().into()));
        // SAFETY: there is space for the record, which is of this size; a source is readable.
        unsafe {
            let to = begin_record(self.data, self.at, header, end - self.at);
            copy::copy_recent(to, payload.as_ptr(), payload.length() as usize);
        }
        self.at = end;
        end
    }

    /// Prefetches, for writing, the lines that the next `bytes` go to: the receiver's core has
    /// them, and without this the first store to each waits for the line. It prefetches one line
    /// more, because a batch may end anywhere in a line: the next batch begins with the line behind
    /// it, and the next claim would be too late for that one.
    #[inline(always)]
    pub(crate) fn claim(&self, bytes: u32) {
        prefetch::claim(self.data.at(self.at), bytes.min(CLAIM_MAX) as usize + LINE);
    }

    /// Gets these lines for the batch that follows at once, as far as there is space. The receiver
    /// has read them, and both cores have them ([`prefetch::own`]).
    #[inline(always)]
    pub(crate) fn own(&self, bytes: u32) {
        if !prefetch::owns() {
            return self.claim(bytes);
        }
        let space = self.limit.saturating_sub(self.at);
        let bytes = u64::from(bytes.min(OWN_MAX) + LINE as u32).min(space);
        prefetch::own(self.data.at(self.at), bytes as usize);
    }

    /// Prefetches the word that says whether the peer sleeps.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self) {
        self.peer_waker.fetch_ahead();
    }

    /// See [`Writer::claim_behind`].
    #[inline(always)]
    pub(crate) fn claim_behind(&self, payload: u32) {
        self.writer().claim_behind(payload);
    }

    /// Moves past a record that is completely written.
    #[inline(always)]
    fn end(&mut self, header: Header) {
        debug_assert!(header.record() <= RECORD_MAX);
        self.at += u64::from(header.record());
    }

    /// Publishes everything written, and with it `ack`: how far this side has read the other
    /// direction. Release: the records' bytes are written before the tail that covers them.
    #[inline(always)]
    pub(crate) fn publish(&mut self, ack: u64) {
        self.published = self.at;
        self.dir.tail().store(tail_word(self.at, ack), Ordering::Release);
        self.peer_waker.check();
    }

    /// Writes and publishes one record, in the ring and in the slot: the receiver then needs only
    /// the lines that it polls anyway. See [`Tx::begin_slot`]. It writes the ring first, so that no
    /// store to the slot waits for another line: the receiver polls the slot, and would take its
    /// line away in between.
    ///
    /// It stands apart from [`Tx::publish_copy_in_slot`] because it loads the payload once for both
    /// places; a copy from the ring would load it again, right behind the stores.
    ///
    /// The message has no immediate word, and its record at most `SLOT_SHORT_RECORD` bytes; nothing
    /// but a jump is unpublished. (With a jump, what is new is longer than the record: the ring is
    /// read.)
    #[inline(always)]
    pub(crate) fn publish_in_slot(
        &mut self,
        head: Head,
        payload: Source<'_>,
        space: Space,
        ack: u64,
    ) {
        self.put_in_slot::<true>(head, payload, space, ack);
    }

    /// The same, but [`Tx::wake_peer`] must follow.
    #[inline(always)]
    pub(crate) fn publish_in_slot_only(
        &mut self,
        head: Head,
        payload: Source<'_>,
        space: Space,
        ack: u64,
    ) {
        self.put_in_slot::<false>(head, payload, space, ack);
    }

    /// Both. Without `WAKES` a record that fits the first line wakes nobody.
    #[inline(always)]
    fn put_in_slot<const WAKES: bool>(
        &mut self,
        head: Head,
        payload: Source<'_>,
        space: Space,
        ack: u64,
    ) {
        let Head { header, record, length, .. } = head;
        if payload.length() != length {
            return never();
        }
        let (start, length, Space { end }) = (self.at, length as usize, space);
        debug_assert!(record == header.record() && end == start + u64::from(record));
        self.at = end;
        // SAFETY: there is space for the record in the ring, padded to words, and the receiver
        // does not read there before the tail says so; a source is readable. A record of this size
        // has a payload of `SLOT_FIRST_BYTES` at most.
        unsafe {
            let to = begin_record(self.data, start, header, record.into());
            if record > SLOT_FIRST_RECORD {
                return self.publish_long_in_slot(to, header, payload.as_ptr(), ack);
            }
            copy::copy_dual(to, payload.as_ptr(), length, || self.begin_slot(header, end));
        }
        match WAKES {
            true => self.end_slot(end, ack),
            false => self.put_slot_tail(end, ack),
        }
    }

    /// Wakes the peer if it sleeps. What it must see is published.
    #[inline(always)]
    pub(crate) fn wake_peer(&self) {
        self.peer_waker.check();
    }

    /// As [`Tx::publish_in_slot`], with a payload of the length in `header`, for which there is
    /// space.
    #[cfg(any(test, feature = "std", feature = "sim"))]
    pub(crate) fn publish_bytes_in_slot(&mut self, header: Header, payload: &[u8], ack: u64) {
        debug_assert_eq!(header.length() as usize, payload.len());
        if header.record() > SLOT_SHORT_RECORD {
            self.put_bytes(header, 0, payload);
            return match self.alone_unpublished() {
                Some(alone) => self.publish_alone_in_slot(alone, ack),
                None => self.publish(ack),
            };
        }
        let (record, payload) = (header.record(), Source::of(payload));
        let head = Head { header, imm: 0, record, length: payload.length() };
        match self.space(record) {
            Some(space) => self.publish_in_slot(head, payload, space, ack),
            None => never(),
        }
    }

    /// The same in the ring alone, for a record of any size.
    #[inline(always)]
    pub(crate) fn publish_in_ring(
        &mut self,
        head: Head,
        payload: Source<'_>,
        space: Space,
        ack: u64,
    ) {
        if payload.length() != head.length {
            return never();
        }
        self.put_message(head.header, payload, space);
        self.publish(ack);
    }

    /// Writes a message to the ring, unpublished.
    #[inline(always)]
    pub(crate) fn put_in_ring(&mut self, head: Head, payload: Source<'_>, space: Space) {
        let mut writer = self.writer();
        writer.put(head, payload, space);
        self.end_writer(&writer);
    }

    /// The rest of `publish_in_slot`, for a record that fills more than the first line of the slot.
    /// It is a function of its own so that it costs a short record nothing.
    ///
    /// # Safety
    /// `to` has room for the payload, which is longer than that line, and readable for the length
    /// in `header`.
    #[cold]
    #[inline(never)]
    unsafe fn publish_long_in_slot(
        &mut self,
        to: *mut u8,
        header: Header,
        payload: *const u8,
        ack: u64,
    ) {
        let (length, first, end) = (header.length() as usize, SLOT_FIRST_BYTES, self.at);
        let rest = length - first;
        // SAFETY: as the caller vouches; `rest` fits the slot.
        unsafe {
            if rest > copy::DUAL_MAX {
                copy::copy_recent(to, payload, length);
                return self.publish_copy_in_slot(header, payload, ack);
            }
            copy::copy_dual(to.add(first), payload.add(first), rest, || self.begin_slot_rest(end));
            copy::copy_dual(to, payload, first, || self.begin_slot(header, end));
        }
        self.end_slot(end, ack);
    }

    /// Publishes one record that is already in the ring, and copies it into the slot. It serves a
    /// doorbell for one deferred message: while it was deferred, nobody knew that it stays alone.
    #[inline(always)]
    pub(crate) fn publish_alone_in_slot(&mut self, alone: Alone, ack: u64) {
        let Alone { header, payload } = alone;
        // SAFETY: `alone_unpublished` has found its payload in the ring, behind the header.
        unsafe {
            match header.length() as usize > SLOT_SHORT {
                true => self.publish_long_copy_in_slot(header, payload, ack),
                false => self.publish_copy_in_slot(header, payload, ack),
            }
        }
    }

    /// As [`Tx::publish_copy_in_slot`], for a payload that is longer than `SLOT_SHORT`.
    ///
    /// # Safety
    /// As there.
    unsafe fn publish_long_copy_in_slot(&mut self, header: Header, payload: *const u8, ack: u64) {
        let (length, first, end) = (header.length(), SLOT_FIRST_BYTES, self.at);
        let rest = length.min(SLOT_PAYLOAD_MAX) as usize - first;
        // SAFETY: as the caller vouches; each part fits its lines of the slot.
        unsafe {
            copy::to_shared_long(self.begin_slot_rest(end), payload.add(first), rest);
            copy::to_shared(self.begin_slot(header, end), payload, first);
        }
        self.end_slot(end, ack);
    }

    /// Copies a record into the slot, and publishes it. It has no immediate word and a payload of
    /// at most `SLOT_SHORT` bytes; nothing else but a jump is unpublished.
    ///
    /// # Safety
    /// `payload` is readable for the length in `header`.
    #[inline(always)]
    unsafe fn publish_copy_in_slot(&mut self, header: Header, payload: *const u8, ack: u64) {
        debug_assert!(header.record() <= SLOT_SHORT_RECORD);
        debug_assert!(self.unpublished() - header.record() <= JUMP_BYTES);
        let (length, end) = (header.length() as usize, self.at);
        let first = length.min(SLOT_FIRST_BYTES);
        // SAFETY: as the caller vouches; each part fits its lines of the slot.
        unsafe {
            if length > first {
                let rest = (length - first).min(SLOT_SHORT - SLOT_FIRST_BYTES);
                copy::to_shared(self.begin_slot_rest(end), payload.add(first), rest);
            }
            copy::to_shared(self.begin_slot(header, end), payload, first);
        }
        self.end_slot(end, ack);
    }

    /// Seals the lines of the slot behind the first, which the caller writes next; see
    /// [`Tx::begin_slot`]. Returns the address for the payload there.
    #[inline(always)]
    fn begin_slot_rest(&self, end: u64) -> NonNull<u8> {
        self.dir.slot_rest_seal().store(self.dir.seal_of(end), Ordering::Relaxed);
        fence(Ordering::Release);
        self.dir.slot_rest()
    }

    /// Writes seal and header of a record that is in the ring and ends at `end` to the first line
    /// of the slot. The caller has written the lines behind the first already. It then writes the
    /// payload of the first line to the address that this returns, and calls [`Tx::end_slot`].
    ///
    /// The slot is a sequence lock. Writer: seal (the new tail, in full, and the direction),
    /// Release fence, contents, tail (Release). Reader: tail (Acquire), contents, Acquire fence,
    /// seal. If a reader sees one word of a newer record, its load of the seal sees the newer seal
    /// too, and it reads the ring instead, which always holds the record. Without the writer's
    /// fence the reader could see the contents before the seal changed. The lines behind the first
    /// are written before it and have a seal of their own, by the same rule: so the stores to the
    /// first line, which the receiver polls, come all at once.
    ///
    /// The slot has two writers, and neither locks it. Each side believes what the other wrote only
    /// if the acknowledgement beside the tail covers its own last record there
    /// ([`Tx::last_in_slot`]). Then the peer had read a tail behind that record (Acquire) before it
    /// wrote, and this side has written nothing there since: every word that this side reads is the
    /// peer's. If both write at once, both read the ring.
    #[inline(always)]
    fn begin_slot(&self, header: Header, end: u64) -> NonNull<u8> {
        let dir = &self.dir;
        dir.seal().store(dir.seal_of(end), Ordering::Relaxed);
        fence(Ordering::Release);
        dir.slot_header().store(header.0, Ordering::Relaxed);
        dir.slot_payload()
    }

    /// Publishes the record in the slot.
    #[inline(always)]
    fn end_slot(&mut self, end: u64, ack: u64) {
        self.put_slot_tail(end, ack);
        self.peer_waker.check();
    }

    #[inline(always)]
    fn put_slot_tail(&mut self, end: u64, ack: u64) {
        (self.published, self.last_in_slot) = (end, end as u32);
        self.dir.slot_tail().store(tail_word(end, ack), Ordering::Release);
    }

    /// What is unpublished, if it is one plain message.
    #[inline(always)]
    pub(crate) fn alone_unpublished(&self) -> Option<Alone> {
        let (header, payload) = self.first_unpublished()?;
        let alone = header.record() == self.unpublished() && header.is_plain_send();
        alone.then_some(Alone { header, payload })
    }

    /// The first unpublished record, unless a jump precedes it: its header, and the address of its
    /// payload if it has no immediate word.
    #[inline(always)]
    fn first_unpublished(&self) -> Option<(Header, *const u8)> {
        if !self.wrap.has(self.published) {
            return None;
        }
        let at = self.data.at(self.published);
        // SAFETY: a position of this lap is inside the data and aligned; this side has written
        // there, or will write the next record there. The peer may write there too, so the word is
        // loaded once.
        unsafe { Some((Header(at.cast::<u64>().read_volatile()), at.add(8))) }
    }
}

/// The word that publishes: the low halves of a tail and of an acknowledgement.
#[inline(always)]
pub(crate) fn tail_word(tail: u64, ack: u64) -> u64 {
    u64::from(tail as u32) | ack << 32
}

/// Begins a record of `record` bytes: the one place that writes a header to the ring. Returns the
/// address behind the header.
///
/// # Safety
/// There is space for the record at that position, in the lap that `data` is of.
#[inline(always)]
unsafe fn begin_record(data: Data, at: u64, header: Header, record: u64) -> *mut u8 {
    let place = data.at(at);
    wrote(place, record as usize);
    // SAFETY: as the caller vouches. Positions are multiples of 8, so it is aligned; the receiver
    // does not read here before publication.
    unsafe {
        place.cast::<u64>().write(header.0);
        place.add(8)
    }
}

/// Writes records to the ring, one after the other: any kind of record, with or without an
/// immediate word. It keeps position and limit in registers while a list is written.
pub(crate) struct Writer {
    data: Data,
    /// Where the next record goes.
    pub(crate) at: u64,
    /// The position up to which there is space.
    limit: u64,
}

impl Writer {
    /// True if there is space for `bytes` more.
    #[inline(always)]
    pub(crate) fn fits(&self, bytes: u32) -> bool {
        self.at + u64::from(bytes) <= self.limit
    }

    /// Space for a record of that size.
    #[inline(always)]
    pub(crate) fn space(&self, record: u32) -> Option<Space> {
        let end = self.at + u64::from(record);
        (end <= self.limit).then_some(Space { end })
    }

    /// `payload` is the length of the message that is written next. If it is long, this prefetches
    /// the lines of the one behind it, which is probably of the same length.
    #[inline(always)]
    pub(crate) fn claim_behind(&self, payload: u32) {
        if payload > SHORT_MAX {
            let record = record_bytes(payload.into());
            let behind = self.at + record;
            let bytes = record.min(self.limit.saturating_sub(behind));
            prefetch::claim(self.data.at(behind), bytes as usize);
        }
    }

    /// Writes a message with that payload.
    #[inline(always)]
    pub(crate) fn put(&mut self, head: Head, payload: Source<'_>, space: Space) {
        let Head { header, imm, record, length } = head;
        if payload.length() != length {
            return never();
        }
        debug_assert!(record == header.record() && self.at + u64::from(record) == space.end);
        let to = self.begin(header, imm);
        // SAFETY: there is space for the record, which holds the payload; a source is readable.
        unsafe { copy::copy_recent(to, payload.as_ptr(), length as usize) };
        self.at = space.end;
    }

    /// See [`Tx::begin`].
    #[inline(always)]
    fn begin(&self, header: Header, imm: u32) -> *mut u8 {
        // SAFETY: the caller has checked that the record lies below the limit: inside the data, and
        // given back. The immediate word is part of it.
        unsafe {
            let to = begin_record(self.data, self.at, header, header.record().into());
            if header.immediate_bytes() == 0 {
                return to;
            }
            to.cast::<u64>().write(u64::from(imm));
            to.add(8)
        }
    }
}

/// At most this many bytes stay unpublished: half a segment, so that the receiver reads the other
/// half meanwhile.
const DEFER_MAX: u32 = SEGMENT / 2;

/// The most bytes that are prefetched at once.
const CLAIM_MAX: u32 = 32 * 64;

/// The most bytes that a batch gets ahead. One way in lists of 16, near cores, 8, 64 and 200 bytes
/// then take 0.8 of the time, and 32 bytes 0.72. With 1 KiB, 200 bytes took longer than without.
const OWN_MAX: u32 = 64 * 64;

/// A list of longer messages does not get them. A batch does not get them either if it is published
/// because no more may wait. With them, 1 KiB took 1.05 of the time near and 1.1 far.
pub(crate) const OWN_MESSAGE_MAX: u32 = 256;
pub(crate) const OWN_BATCH_MAX: u32 = DEFER_MAX - 1024;

/// In a list, the lines behind a record with a longer payload are prefetched while it is written,
/// and while it is read. One way in lists of 16, near cores, 256 bytes then take 0.93 of the time.
/// Below 128 bytes prefetches gain nothing.
pub(crate) const SHORT_MAX: u32 = 128;

/// A doorbell of fewer bytes claims nothing: it touches few lines, and claiming costs more.
pub(crate) const CLAIM_MIN: u32 = 128;

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
