//! The shared memory of a link: two directions between two domains.
//!
//! ```text
//! link:       header 4 lines  users, retries of each side, colour; which sides sleep; the peer's
//!                             regions that each side reads
//!             (two lines for each step of the colour)
//!             slot  18 lines  both sides write; words 0 and 1 = each side's tail | acknowledgement
//!                             of the other direction, then the last record posted alone
//!             direction 0, direction 1, then responses 0 and 1
//! direction:  tail   2 lines  sender writes    word 0 = as in the slot
//!             taken  2 lines  receiver writes  how far it has read, and what it refused
//!             data   1024 lines                sender writes; records, 8-byte aligned
//! responses:  as a direction, with 256 lines of data
//! ```
//! All links begin at a page. If all slots began at the same offset, they would share one set of
//! the nearest cache. That set has twelve lines, so a poll of more links would miss the cache for
//! each. So the maker gives each link a colour: everything behind the header begins two lines later
//! for each step of the colour. A look at 64 links takes 61 ns instead of 147.
//!
//! Responses to one-sided requests have rings of their own. In the ring of the messages they would
//! wait behind a message for which the receiver has no receive.
//!
//! A record is one header word, an immediate word if flagged, and the payload padded to 8. The
//! payload of a one-sided record begins with operand words: address and key, then others it needs.
//! A record never wraps: a jump, which is a header alone, says that the next record is at the start
//! of the data (see [`crate::shm::wrap_policy`]).
//!
//! A record posted alone is also copied into the mailbox slot. It then costs one transfer of a
//! cache line, which the receiver already reads. The reply goes into the same line, which the
//! replying side owns by then. If each direction had a line of its own, the replying side would
//! first have to take its line from the peer, which polls it; that transfer costs as much as the
//! message. A record that is in the ring alone is published in a line of its direction, which its
//! sender never reads. If it were published in the slot, each look of the sender at the slot would
//! take the line away from the receiver.
#![expect(unsafe_code, reason = "words of memory that another process also has")]

use core::ops::Deref;
use core::ptr::NonNull;

use bitflags::bitflags;
use doorbell_alloc::Mapping;
use std_alloc::sync::Arc;

pub(crate) use crate::prefetch::LINE;
use crate::sync::{AtomicU32, AtomicU64, word};
use crate::wr::SendFlags;

/// Bytes of ring data. A ring never touches a line beyond those it has needed.
pub(crate) const AREA: u32 = 4 * SEGMENT;
/// Bytes of the ring that a lap uses unless it needs more: 16 KiB stay in L1 of both cores.
pub(crate) const SEGMENT: u32 = 256 * LINE as u32;
/// The longest payload of one record; longer messages are cut into fragments. A block of the
/// default configuration fits, so that its message is one record.
pub(crate) const FRAGMENT: u32 = 4096;
/// Longest record: header, immediate word and payload.
pub(crate) const RECORD_MAX: u32 = 16 + FRAGMENT;
/// A sender that writes more than this publishes on the way: a quarter of a segment, so that
/// publication never waits on itself. A whole fragment is as long, and so published at once.
pub(crate) const PUBLISH_EVERY: u32 = SEGMENT / 4;
/// Lines of the slot: enough for 1104 bytes. The receiver prefetches all lines that the last
/// message filled, so they move at the same time. On far cores, half a round trip of 1024 bytes
/// takes 220 ns by the slot, and 560 by the ring.
pub(crate) const SLOT_LINES: usize = 18;
/// Words before the payload in the first line of the slot, and in the second. From there on the
/// payload fills the rest of the slot.
const SLOT_HEAD: usize = 4;
const SLOT_REST_HEAD: usize = 2;
/// Bytes of payload in the first line of the slot, and in those behind it.
pub(crate) const SLOT_FIRST_BYTES: usize = LINE - 8 * SLOT_HEAD;
const SLOT_REST_BYTES: usize = (SLOT_LINES - 1) * LINE - 8 * SLOT_REST_HEAD;
/// Bytes of payload in the whole slot.
pub(crate) const SLOT_PAYLOAD_MAX: u32 = (SLOT_FIRST_BYTES + SLOT_REST_BYTES) as u32;
/// The longest record that fits the first line of the slot, and the whole slot.
pub(crate) const SLOT_FIRST_RECORD: u32 = 8 + SLOT_FIRST_BYTES as u32;
pub(crate) const SLOT_RECORD_MAX: u32 = 8 + SLOT_PAYLOAD_MAX;

/// The colour, behind the users and the retries of both sides.
const COLOUR_AT: usize = 12;
const MAPPED: usize = 2 * LINE;
const SLOT: usize = 4 * LINE;
const DIRECTIONS: usize = SLOT + SLOT_LINES * LINE;
const TAIL: usize = 0;
const TAKEN: usize = 2 * LINE;
const DATA: usize = 4 * LINE;
const DIRECTION: usize = DATA + AREA as usize;
const RESPONSES: usize = DIRECTIONS + 2 * DIRECTION;
/// Bytes of data of a ring of responses.
const RESPONSE_AREA: u32 = SEGMENT;
const RESPONSE_DIRECTION: usize = DATA + RESPONSE_AREA as usize;

/// Bytes of memory a link needs.
pub const LINK_BYTES: usize = RESPONSES + 2 * RESPONSE_DIRECTION + (COLOURS - 1) * COLOUR;

/// Links have this many colours. Their offsets cover a page.
const COLOURS: usize = 32;
/// Bytes from one colour to the next.
const COLOUR: usize = 2 * LINE;

const _: () = assert!(DIRECTION.is_multiple_of(2 * LINE));
const _: () = assert!(RESPONSE_DIRECTION.is_multiple_of(2 * LINE));
const _: () = assert!(RecordFlags::IMM.bits() == 1, "of_request sets it from a bool");
const _: () = assert!(PUBLISH_EVERY <= FRAGMENT, "a whole fragment is published at once");
const _: () = assert!(LENT_OPERANDS as usize <= SLOT_FIRST_BYTES, "an offer is one line");
const _: () = assert!(FRAGMENT.is_multiple_of(8), "fragments but the last fill whole words");

/// The longest payload that is written to the ring and to the slot at once. A longer one goes the
/// way of deferred messages: its sender writes it to the ring, and copies it from there.
pub(crate) const SLOT_SHORT: usize = 208;
/// The longest record with such a payload.
pub(crate) const SLOT_SHORT_RECORD: u32 = 8 + SLOT_SHORT as u32;

/// For a payload that does not fit the first line of the slot: how many further lines it fills.
#[inline(always)]
pub(crate) fn slot_rest_lines(length: usize) -> usize {
    debug_assert!(length > SLOT_FIRST_BYTES);
    (length - SLOT_FIRST_BYTES + 8 * SLOT_REST_HEAD).div_ceil(LINE)
}

/// Which end of a link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that made the memory.
    Maker,
    /// The end that was given it.
    Taker,
    /// The only end: it reads what it writes, for a queue pair that is its own peer.
    Both,
}

impl Side {
    /// The other end.
    pub(crate) fn peer(self) -> Side {
        match self {
            Side::Maker => Side::Taker,
            Side::Taker => Side::Maker,
            Side::Both => Side::Both,
        }
    }
}

bitflags! {
    /// Flags in a record header.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct RecordFlags: u8 {
        /// An immediate word follows the header. In one-sided records of XRC it is the number of a
        /// shared receive queue.
        const IMM = 1;
        /// The sender asks for an acknowledgement soon: the bit of SIGNALED.
        const ACK_REQ = SendFlags::SIGNALED.bits();
        /// Solicited event: the bit it has in a send request.
        const SOLICITED = SendFlags::SOLICITED.bits();
        /// First fragment of a message.
        const FIRST = 8;
        /// Last fragment of a message.
        const LAST = 16;
        /// The immediate word is the key of a memory window to be closed.
        const INV = 32;
        /// From a queue pair of UC: the receiver drops what it cannot take, and tells nobody.
        const UNRELIABLE = 64;
    }
}

impl RecordFlags {
    /// The sender wants an event for this message (CP-6).
    #[inline(always)]
    pub(crate) fn is_solicited(self) -> bool {
        self.contains(RecordFlags::SOLICITED)
    }
}

/// What a record is: a message, or a fragment of one.
pub(crate) const KIND_SEND: u8 = 1;
/// Bytes for the receiver's memory. Operands: address of these bytes; key, and how many bytes the
/// whole request has (high half).
pub(crate) const KIND_WRITE: u8 = 2;
/// Asks for bytes. Operands: address; key, and how many (high half).
pub(crate) const KIND_READ: u8 = 3;
/// Asks for an atomic. Operands: address; key; compare; swap.
pub(crate) const KIND_SWAP: u8 = 4;
/// Asks for an atomic. Operands: address; key; what to add.
pub(crate) const KIND_ADD: u8 = 5;
/// A response, or a piece of one. Operand: the status; bytes follow if that is success.
pub(crate) const KIND_RESPONSE: u8 = 6;

/// Immediate data of a WRITE that its sender has carried out. Operand: the bytes of that WRITE.
pub(crate) const KIND_NOTICE: u8 = 7;

/// A SEND, or a fragment of one, to a shared receive queue of an XRC domain. Operand: the queue's
/// number.
pub(crate) const KIND_TO_SRQ: u8 = 8;

/// Immediate data of an earlier WRITE, for a shared receive queue of an XRC domain. Operand: the
/// queue's number, and the bytes of the WRITE (high half).
pub(crate) const KIND_SRQ_NOTICE: u8 = 9;

/// The next record is at the start of the data.
pub(crate) const KIND_JUMP: u8 = 10;

/// A SEND, or a piece of one, whose bytes the receiver copies from the sender's memory. Operands:
/// those of an [`Offer`](crate::shm::offer::Offer).
pub(crate) const KIND_LENT: u8 = 11;

/// Asks the receiver to map a region of the sender, which wants to lend from it. Operand: its key.
pub(crate) const KIND_SHOW: u8 = 12;

/// Bytes of a jump.
pub(crate) const JUMP_BYTES: u32 = 8;

/// Operand words of each kind, in bytes.
pub(crate) const WRITE_OPERANDS: u32 = 16;
pub(crate) const RESPONSE_OPERANDS: u32 = 8;
pub(crate) const SRQ_OPERANDS: u32 = 8;
pub(crate) const LENT_OPERANDS: u32 = 24;

/// Bytes of a record without an immediate word: the header, and the payload padded to words. This
/// is `8 + ((payload + 7) & !7)` with one addition less.
#[inline(always)]
pub(crate) const fn record_bytes(payload: u64) -> u64 {
    (payload + 15) & !7
}

/// A record header: length, kind, flags, destination queue pair, in one word.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64);

impl Header {
    /// A jump: nothing but the kind.
    pub(crate) const JUMP: Header = Header((KIND_JUMP as u64) << 16);

    #[inline]
    pub(crate) fn new(kind: u8, flags: RecordFlags, length: u32, qp: u32) -> Header {
        Header(
            u64::from(length)
                | u64::from(kind) << 16
                | u64::from(flags.bits()) << 24
                | u64::from(qp) << 32,
        )
    }
    /// The header of a whole message: `common`, which all messages of the queue pair share, and
    /// what this request adds.
    #[inline(always)]
    pub(crate) fn of_request(common: u64, flags: SendFlags, imm: bool, length: u32) -> Header {
        let bits = (SendFlags::SIGNALED.bits() | SendFlags::SOLICITED.bits()) & flags.bits();
        Header(common | u64::from(bits | u8::from(imm)) << 24 | u64::from(length))
    }
    #[inline]
    pub(crate) fn length(self) -> u32 {
        self.0 as u32 & 0xffff
    }
    #[inline]
    pub(crate) fn kind(self) -> u8 {
        (self.0 >> 16) as u8
    }
    #[inline]
    pub(crate) fn flags(self) -> RecordFlags {
        RecordFlags::from_bits_retain((self.0 >> 24) as u8)
    }
    #[inline]
    pub(crate) fn qp(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// True for a SEND in one record that closes no window.
    #[inline(always)]
    pub(crate) fn is_whole_send(self) -> bool {
        const WHOLE: u64 = (RecordFlags::FIRST.bits() | RecordFlags::LAST.bits()) as u64;
        const LOOK: u64 = WHOLE | RecordFlags::INV.bits() as u64;
        self.0 >> 16 & (LOOK << 8 | 0xff) == (WHOLE << 8 | KIND_SEND as u64)
    }
    /// True for a SEND, or a piece of one, in its own queue pair.
    #[inline]
    pub(crate) fn is_send(self) -> bool {
        matches!(self.kind(), KIND_SEND | KIND_LENT)
    }
    /// True for a SEND in one record without immediate data.
    #[inline(always)]
    pub(crate) fn is_plain_send(self) -> bool {
        const WHOLE: u64 = (RecordFlags::FIRST.bits() | RecordFlags::LAST.bits()) as u64;
        const LOOK: u64 = WHOLE | RecordFlags::IMM.bits() as u64;
        self.0 >> 16 & (LOOK << 8 | 0xff) == (WHOLE << 8 | KIND_SEND as u64)
    }
    /// True for an offer of a whole message without immediate data.
    pub(crate) fn is_whole_offer(self) -> bool {
        let like = Header::plain_for(self.qp()).0 ^ u64::from(KIND_SEND ^ KIND_LENT) << 16;
        let asks = u64::from((RecordFlags::ACK_REQ | RecordFlags::SOLICITED).bits()) << 24;
        (self.0 ^ like) & !asks == u64::from(LENT_OPERANDS)
    }
    /// The header, but for its length, of a plain message to that queue pair that asks for nothing:
    /// see [`Header::is_like`].
    #[inline(always)]
    pub(crate) fn plain_for(qp: u32) -> Header {
        Header::new(KIND_SEND, RecordFlags::FIRST | RecordFlags::LAST, 0, qp)
    }
    /// True if the two differ in the length at most.
    #[inline(always)]
    pub(crate) fn is_like(self, other: Header) -> bool {
        (self.0 ^ other.0) >> 16 == 0
    }
    /// The same; one may also ask for an acknowledgement or an event, and the other not.
    #[inline(always)]
    pub(crate) fn is_like_but_asks(self, other: Header) -> bool {
        const ASKS: u64 =
            ((RecordFlags::ACK_REQ.bits() | RecordFlags::SOLICITED.bits()) as u64) << 8;
        (self.0 ^ other.0) >> 16 & !ASKS == 0
    }
    /// Bytes between the header word and the payload.
    #[inline]
    pub(crate) fn immediate_bytes(self) -> u32 {
        ((self.0 >> 24) as u32 & u32::from(RecordFlags::IMM.bits())) * 8
    }
    /// Bytes of the whole record, if it has no immediate data.
    #[inline(always)]
    pub(crate) fn plain_record(self) -> u32 {
        record_bytes(self.length().into()) as u32
    }
    /// Bytes of the whole record.
    #[inline]
    pub(crate) fn record(self) -> u32 {
        self.immediate_bytes() + self.plain_record()
    }
}

/// One direction of a link's memory, which it keeps.
#[derive(Clone)]
pub(crate) struct Direction {
    base: NonNull<u8>,
    slot: NonNull<u8>,
    /// The slot's word that belongs to this direction's sender.
    slot_tail: NonNull<u8>,
    /// Bytes of its data.
    area: u32,
    /// Marks the seals of this direction, since both senders write to the slot. Positions are
    /// multiples of 8, so the low bits are free.
    mark: u64,
    /// `None` for memory that a test keeps.
    _memory: Option<Arc<Mapping>>,
}

// SAFETY: the words behind it are atomics, or one side at a time writes them, as the positions say.
// It does not matter which thread a side runs on.
unsafe impl Send for Direction {}
// SAFETY: as above; by reference it gives out atomics and addresses.
unsafe impl Sync for Direction {}

/// The two directions seen from one side, and the header: (out, in, header).
pub(crate) type Ends = (Direction, Direction, LinkHeader);

/// The start of a link's memory; `None` if it is too short, or not aligned to two lines.
fn start(memory: &Mapping) -> Option<NonNull<u8>> {
    let base = NonNull::new(memory.as_ptr())?;
    let fits = memory.len() >= LINK_BYTES && base.addr().get().is_multiple_of(2 * LINE);
    fits.then_some(base)
}

/// Where the slot and all behind it would begin with an empty header: `base`, moved by the colour
/// that the header names.
///
/// # Safety
/// As for [`split_at`].
unsafe fn coloured(base: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: the word lies in the header. The maker has written it before the peer had the memory;
    // a hostile peer may write there too, so it is loaded once, and every value of it is in bounds.
    unsafe {
        let colour = base.add(COLOUR_AT).cast::<u32>().read_volatile();
        base.add(colour as usize % COLOURS * COLOUR)
    }
}

/// Gives new memory of a link a colour. Nobody else has it yet.
pub(crate) fn set_colour(memory: &Mapping, colour: u32) {
    if let Some(base) = start(memory) {
        // SAFETY: the word lies in the header, and is aligned.
        unsafe { base.add(COLOUR_AT).cast::<u32>().write_volatile(colour) };
    }
}

/// What a side writes, and what it reads: the maker writes the first of each pair, and a side that
/// is both reads it too.
fn out_and_in(side: Side, direction: impl Fn(usize) -> Direction) -> (Direction, Direction) {
    match side {
        Side::Maker => (direction(0), direction(1)),
        Side::Taker => (direction(1), direction(0)),
        Side::Both => (direction(0), direction(0)),
    }
}

/// Both ends of a link in that memory; `None` if it is too short, or not aligned to two lines.
pub(crate) fn split(memory: &Arc<Mapping>, side: Side) -> Option<Ends> {
    let base = start(memory)?;
    // SAFETY: length and alignment are right, and the result keeps the mapping.
    Some(unsafe { split_at(base, side, Some(memory)) })
}

/// # Safety
/// `base` is the start of `LINK_BYTES` bytes, 128-byte aligned, mapped for as long as the
/// result is used; only a link between two domains uses it.
pub(crate) unsafe fn split_at(base: NonNull<u8>, side: Side, keep: Option<&Arc<Mapping>>) -> Ends {
    debug_assert!(base.addr().get().is_multiple_of(2 * LINE));
    // SAFETY: as the caller vouches.
    let start = unsafe { coloured(base) };
    // SAFETY: all offsets lie inside the LINK_BYTES the caller vouches for.
    let (out, input) = out_and_in(side, |n| unsafe {
        let slot = start.add(SLOT);
        let (base, slot_tail) = (start.add(DIRECTIONS + n * DIRECTION), slot.add(n * 8));
        Direction { base, slot, slot_tail, area: AREA, mark: n as u64, _memory: keep.cloned() }
    });
    (out, input, LinkHeader { base, memory: keep.cloned() })
}

/// The rings of the responses, as in [`split`]: (out, in).
pub(crate) fn split_responses(memory: &Arc<Mapping>, side: Side) -> Option<(Direction, Direction)> {
    // SAFETY: length and alignment are right.
    let base = unsafe { coloured(start(memory)?) };
    // SAFETY: all offsets lie inside the LINK_BYTES that `start` has found, and the result keeps
    // the mapping. Nobody writes to the slot of such a direction: in its place are the second line
    // of the tail and what follows it, where a slot has room.
    Some(out_and_in(side, |n| unsafe {
        let base = base.add(RESPONSES + n * RESPONSE_DIRECTION);
        let slot = base.add(TAIL + LINE);
        let (area, mark, memory) = (RESPONSE_AREA, n as u64, Some(memory.clone()));
        Direction { base, slot, slot_tail: slot, area, mark, _memory: memory }
    }))
}

/// Regions of the peer that a side tells it to have mapped: a line of keys.
pub(crate) const KEYS: usize = LINE / 4;

/// The header of a link: how many ends of connections use it, over both sides; which sides sleep;
/// what they have mapped.
#[derive(Clone)]
pub(crate) struct LinkHeader {
    base: NonNull<u8>,
    memory: Option<Arc<Mapping>>,
}

// SAFETY: atomics in memory that it keeps.
unsafe impl Send for LinkHeader {}
// SAFETY: as above.
unsafe impl Sync for LinkHeader {}

/// One word of a link, which it keeps.
pub(crate) struct Word {
    at: NonNull<u8>,
    _memory: Option<Arc<Mapping>>,
}

// SAFETY: an atomic in memory that it keeps.
unsafe impl Send for Word {}

impl Deref for Word {
    type Target = AtomicU32;

    #[inline(always)]
    fn deref(&self) -> &AtomicU32 {
        // SAFETY: `LinkHeader::asleep_word` has made it, aligned, and it is only ever used as an
        // atomic.
        unsafe { word(self.at) }
    }
}

impl LinkHeader {
    pub(crate) fn users(&self) -> &AtomicU32 {
        // SAFETY: `split`'s caller vouches for the memory; offset 0 is 4-byte aligned, and the
        // word is only ever used as an atomic.
        unsafe { word(self.base) }
    }

    /// How often the only queue pair of that side sends again what finds no receive, plus 1; 0 if
    /// the side has not said. It writes this before its first message.
    pub(crate) fn rnr_retry(&self, side: Side) -> &AtomicU32 {
        let offset = if side == Side::Maker { 4 } else { 8 };
        // SAFETY: the offset lies in the first line of the header, and is that of a word, which is
        // only ever used as an atomic.
        unsafe { word(self.base.add(offset)) }
    }

    /// Not 0 while the domain on that side sleeps, or is about to: the peer must wake it. The word
    /// is in a line of its own, which nobody writes while nobody sleeps.
    pub(crate) fn asleep(&self, side: Side) -> &AtomicU32 {
        // SAFETY: as above; `asleep_at` is 4-byte aligned.
        unsafe { word(self.asleep_at(side)) }
    }

    fn asleep_at(&self, side: Side) -> NonNull<u8> {
        let offset = LINE + if side == Side::Maker { 0 } else { 4 };
        // SAFETY: the offset lies in the header.
        unsafe { self.base.add(offset) }
    }

    /// One of the [`KEYS`] keys of the peer's regions that this side has mapped, 0 where there is
    /// none: the peer may lend from them. The side writes each once; the peer reads them.
    pub(crate) fn mapped(&self, side: Side, n: usize) -> &AtomicU32 {
        let line = if side == Side::Maker { 0 } else { LINE };
        // SAFETY: the offset lies in that line of the header, and is that of a word, which is only
        // ever used as an atomic.
        unsafe { word(self.base.add(MAPPED + line + n % KEYS * 4)) }
    }

    /// The same word, to be kept.
    pub(crate) fn asleep_word(&self, side: Side) -> Word {
        Word { at: self.asleep_at(side), _memory: self.memory.clone() }
    }
}

impl Direction {
    /// Bytes of its data.
    pub(crate) fn area(&self) -> u32 {
        self.area
    }

    /// Tail and acknowledgement (low halves) of records that are in the ring alone.
    #[inline(always)]
    pub(crate) fn tail(&self) -> &AtomicU64 {
        // SAFETY: aligned, and in the direction, whose memory `split`'s caller vouches for; the
        // word is only ever used as an atomic.
        unsafe { word(self.base.add(TAIL)) }
    }

    /// The same for records that are in the slot as well.
    #[inline(always)]
    pub(crate) fn slot_tail(&self) -> &AtomicU64 {
        // SAFETY: as above; it is in the slot.
        unsafe { word(self.slot_tail) }
    }

    /// The seal of the record in the slot, which both directions share: see
    /// [`crate::shm::ring::Tx::begin_slot`].
    #[inline(always)]
    pub(crate) fn seal(&self) -> &AtomicU64 {
        self.slot_word(2)
    }

    /// The seal of the lines behind the first.
    #[inline(always)]
    pub(crate) fn slot_rest_seal(&self) -> &AtomicU64 {
        self.slot_word(LINE / 8)
    }

    /// The header of the record in the slot.
    #[inline(always)]
    pub(crate) fn slot_header(&self) -> &AtomicU64 {
        self.slot_word(3)
    }

    /// The payload in the first line. All words of the slot are only ever used as atomics.
    #[inline(always)]
    pub(crate) fn slot_payload(&self) -> NonNull<u8> {
        // SAFETY: as in `tail`; it is in the slot.
        unsafe { self.slot.add(8 * SLOT_HEAD) }
    }

    /// The payload behind the first line.
    #[inline(always)]
    pub(crate) fn slot_rest(&self) -> NonNull<u8> {
        // SAFETY: as in `tail`; it is in the slot.
        unsafe { self.slot.add(LINE + 8 * SLOT_REST_HEAD) }
    }

    /// Line `n` of the slot.
    #[inline(always)]
    pub(crate) fn slot_line(&self, n: usize) -> NonNull<u8> {
        debug_assert!(n < SLOT_LINES);
        // SAFETY: as in `tail`; it is in the slot.
        unsafe { self.slot.add(n * LINE) }
    }

    /// Word `n` of the slot.
    #[inline(always)]
    pub(crate) fn slot_word(&self, n: usize) -> &AtomicU64 {
        // SAFETY: as in `tail`; the word is in the slot.
        unsafe { word(self.slot.add(n * 8)) }
    }

    /// The seal of the record that ends at a position. No other record of either direction has it.
    #[inline(always)]
    pub(crate) fn seal_of(&self, end: u64) -> u64 {
        end | self.mark
    }

    /// Word `n` of the receiver's line. 0: low half, ring space given back; high half, the position
    /// up to which every record was taken. 1: low half, number of the refusal in the line; high
    /// half, the ring position refused. 2: low half, the queue pair of that record; high half, the
    /// status. 3: number of the last refusal of the *other* direction that this side has settled.
    #[inline(always)]
    pub(crate) fn taken(&self, n: usize) -> &AtomicU64 {
        debug_assert!(n < 8);
        // SAFETY: aligned, and in the direction, whose memory `split`'s caller vouches for; these
        // words are only ever used as atomics.
        unsafe { word(self.base.add(TAKEN + n * 8)) }
    }

    /// The data of a lap that begins at position `base`.
    #[inline(always)]
    pub(crate) fn data_from(&self, base: u64) -> Data {
        // SAFETY: the data lies in the direction.
        let start = unsafe { self.base.add(DATA) };
        Data { origin: start.as_ptr().wrapping_sub(base as usize) }
    }
}

/// The data of one lap, by position.
#[derive(Clone, Copy)]
pub(crate) struct Data {
    /// The address that position 0 would have.
    origin: *mut u8,
}

// SAFETY: as for `Direction`.
unsafe impl Send for Data {}

impl Data {
    /// Data that begins there, with position 0.
    #[cfg(test)]
    pub(crate) fn over(origin: *mut u8) -> Data {
        Data { origin }
    }

    /// The address of a position, valid up to the end of the data.
    #[inline(always)]
    pub(crate) fn at(self, at: u64) -> *mut u8 {
        self.origin.wrapping_add(at as usize)
    }
}
