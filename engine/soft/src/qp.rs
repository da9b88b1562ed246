//! A queue pair inside the device: state, send queue accounting, the message being received.
#![expect(unsafe_code, reason = "send queue slots are written before they are read")]

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use bitflags::bitflags;
use std_alloc::boxed::Box;

use super::host::Member;
use super::inbox::Inbox;
use super::layout::{Header, KIND_WRITE, RecordFlags};
use super::limits::READS_MAX;
use super::link::{CLOSED, Link};
use super::memory::{PdMark, Who};
use super::pieces::{Pieces, gathered};
use super::raw::state::Raw;
use super::xrc_part::XrcPart;
use crate::provider::{Access, QpCaps, QpType};
use crate::wc::{Status, WcOpcode};
use crate::wr::{RecvWr, SendOp, Sge};

/// The states this device passes through (section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Takes receives; nothing moves yet.
    Init,
    /// Both directions work, and the peer acknowledges what it takes (RC).
    Rts,
    /// Both directions work, and nobody hears what became of a send (UC, UD in RTS).
    Unreliable,
    /// As `Unreliable`, but a send has failed here: sends are flushed until the owner recovers the
    /// queue pair (SQE).
    Sqe,
    /// Everything outstanding is flushed.
    Err,
}

impl State {
    /// True if messages come in and nobody is told what became of them.
    pub(super) fn is_unreliable(self) -> bool {
        matches!(self, State::Unreliable | State::Sqe)
    }

    /// True if what waits may be written to the wire.
    pub(super) fn sends(self) -> bool {
        matches!(self, State::Rts | State::Unreliable)
    }
}

bitflags! {
    /// What is known of a posted send.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Sent: u32 {
        /// Its completion is wanted.
        const SIGNALED = 1;
        /// All of it was written to the ring; `end` says up to where.
        const ON_WIRE = 2;
        /// What its completion says it was: the opcode's number, in the second byte.
        const OPCODE = 0xff00;
        /// How it ended where nobody is asked, UC and UD: a status, in the third byte.
        const STATUS = 0xff_0000;
    }
}

impl Sent {
    /// Nothing known yet, but what it is.
    #[inline(always)]
    pub(super) fn of(op: SendOp) -> Sent {
        Sent::from_bits_retain(u32::from(op.completes_as() as u8) << 8)
    }

    /// It failed with that status, or was flushed.
    pub(super) fn failed(status: Status) -> Sent {
        Sent::from_bits_retain(u32::from(status as u8) << 16)
    }

    /// How it ended, as far as [`Sent::failed`] has said.
    pub(super) fn status(self) -> Status {
        Status::from_raw(self.bits() >> 16 & 0xff)
    }

    /// What its completion says it was.
    #[inline(always)]
    pub(super) fn opcode(self) -> WcOpcode {
        WcOpcode::from_raw(self.bits() >> 8 & 0xff)
    }
}

/// One slot of the send queue.
#[derive(Clone, Copy)]
pub(super) struct SqEntry {
    pub(super) wr_id: u64,
    /// Ring position behind its last byte.
    pub(super) end: u64,
    pub(super) sent: Sent,
    /// Bytes of its first piece, or of all if it is one-sided.
    pub(super) length: u32,
}

/// A send that did not fit the wire when it was posted.
pub(super) struct Pending {
    pub(super) op: SendOp,
    pub(super) inline: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    pub(super) length: u32,
    pub(super) pieces: Pieces,
}

/// A message of several fragments on its way in.
#[derive(Clone, Copy)]
pub(super) struct Assembly {
    pub(super) wr: RecvWr,
    pub(super) received: u32,
}

/// What an unreliable queue pair has of a message whose fragments are coming in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Nothing, or one that is being dropped.
    Nothing,
    /// A SEND.
    Send,
    /// So many bytes of a WRITE.
    Write(u32),
}

/// What a queue pair of UD or RAW_PACKET has besides.
pub(super) struct Datagrams {
    pub(super) inbox: Inbox,
    /// The inbox's place in the device's table, if it can be found there.
    pub(super) place: Option<usize>,
    /// What senders have to know.
    pub(super) qkey: u32,
    /// Itself, if what it sends to groups is not to come back.
    pub(super) not_to: Option<Member>,
    /// Of RAW_PACKET: the rest of it.
    pub(super) raw: Option<Box<Raw>>,
}

/// A queue pair. Indexes count requests since creation and wrap.
pub(super) struct QpContext {
    pub(super) num: u32,
    pub(super) state: State,
    pub(super) kind: QpType,
    pub(super) signal_all: bool,
    /// What the headers of all its whole messages have in common; set when connected.
    pub(super) common: u64,
    /// The protection domain it belongs to.
    pub(super) pd: PdMark,
    /// A connection of this queue pair goes over links of that key: that of its receive queue, as
    /// long as it has one life; later ones have keys, and so links, of their own. What comes over a
    /// link of another is from a peer it had before.
    pub(super) key: u32,
    /// Sends are taken and do not begin (SQD).
    pub(super) paused: bool,
    /// Somebody wants to hear when those that have begun are over.
    pub(super) draining: bool,
    /// The link from which a whole message may be taken without another look: the link slot in
    /// RTS with no message half received, `CLOSED` otherwise.
    pub(super) open_on: usize,
    /// Link slot in the domain, and the peer's number; set when connected.
    pub(super) link: usize,
    pub(super) peer: u32,
    /// Retries the peer allows when we have no receive; 7 is for ever (RC-1).
    pub(super) rnr_retry: u8,
    /// Our wait between them, in nanoseconds.
    pub(super) rnr_timer_ns: u64,

    /// What plain messages may use without further checks.
    pub(super) reserved: Reserved,
    /// Requests posted.
    pub(super) posted: u32,
    /// Requests that are wholly on the wire, counted from the front.
    pub(super) sent: u32,
    /// Bytes of request `sent` that are on the wire already.
    pub(super) sent_bytes: u32,
    /// Requests whose completion, if any, was made.
    pub(super) completed: u32,
    /// Requests whose slot is free again: a completion behind them was polled (SQ-2).
    pub(super) retired: u32,
    pub(super) depth: u32,
    mask: u32,
    sq: Box<[MaybeUninit<SqEntry>]>,
    pending: Box<[MaybeUninit<Pending>]>,
    inline: Box<[MaybeUninit<u8>]>,
    inline_max: u32,
    /// It is in its link's backlog.
    pub(super) in_backlog: bool,

    /// READs and atomics it may have in flight, and the peer may (SQ-7).
    pub(super) initiator_depth: u8,
    pub(super) responder_depth: u8,
    /// What the peer may do to memory through this queue pair.
    pub(super) rights: Access,
    /// READs and atomics put on the wire, and those of them answered; both wrap.
    pub(super) reads_sent: u32,
    pub(super) reads_done: u32,
    /// Ring position behind the last one-sided request that was put there.
    pub(super) one_sided_until: u64,
    /// The requests in flight, by their count modulo the size.
    reads: [u32; READS_MAX],
    /// Bytes of the oldest one's answer that have come.
    pub(super) response_bytes: u32,
    /// Its next request waits for an answer: fenced, or as many asked as may be. It is in no
    /// backlog until one comes.
    pub(super) waits_for_response: bool,
    /// READs and atomics of the peer that are taken and not answered.
    pub(super) pending_reads: u8,
    /// Completions up to this request are due, and wait for answers to requests before them.
    pub(super) parked: Option<u32>,
    /// Bytes of a WRITE that is coming in pieces.
    pub(super) writing: Option<u32>,

    /// Of UD: where datagrams come in.
    pub(super) datagrams: Option<Box<Datagrams>>,
    /// Of UC: what comes in, and that the peer is gone, so that what is sent goes nowhere.
    pub(super) incoming: Incoming,
    pub(super) peer_lost: bool,

    /// Request that could not be carried out here, with its status: the queue pair fails when
    /// all before it are done.
    pub(super) poison: Option<(u32, Status)>,
    /// The peer was asked how far it has come with those.
    pub(super) urged: bool,
    /// In ERR: ring position up to which requests succeeded, and the status of the one behind.
    pub(super) good_until: u64,
    pub(super) cause: Option<Status>,
    pub(super) is_scheduled: bool,
    /// It was said that it takes nothing more from its shared receive queue.
    pub(super) last_wqe_raised: bool,

    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    /// Receive queue slot in the domain.
    pub(super) rq: usize,
    pub(super) rq_shared: bool,
    pub(super) assembly: Option<Assembly>,
    /// When the receive queue was first found empty for the record now in front.
    pub(super) rnr_since_ns: Option<u64>,
    pub(super) xrc: XrcPart,
}

/// Ring space and send slots that the next plain messages may use without further checks, whether
/// they are deferred or published one by one. The general functions reserve
/// ([`super::domain::DomainState::hold`], [`super::domain::DomainState::post_first`]). The
/// reservation holds until something else happens to the queue pair. It is dropped by
///
/// - every other post: a one-sided or long request, or one that finds no space, takes a send slot
///   without the bytes in the ring, or leaves a request that no other may overtake;
/// - whatever takes the queue pair out of RTS: an error, SQD, a reset.
///
/// Posts of other queue pairs on the same link use none of the reserved space: they move `at`
/// forward, and `until` is a position. A message may be written to a link that has left the fast
/// path meanwhile: it is as if it had been posted a little earlier.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    /// The link. The queue pair counts as one of its users.
    pub(super) link: Option<NonNull<Link>>,
    /// Ring space is free up to this position, with a send slot for each record that fits.
    pub(super) until: u64,
}

impl Reserved {
    /// No reservation.
    pub(super) const NONE: Reserved = Reserved { link: None, until: 0 };
}

/// The memory of a send queue: its slots, what is kept of requests that wait, their payloads.
struct QpMemory {
    sq: Box<[MaybeUninit<SqEntry>]>,
    pending: Box<[MaybeUninit<Pending>]>,
    inline: Box<[MaybeUninit<u8>]>,
}

/// What a queue pair is made with, besides its capacities.
pub(super) struct QpParts {
    pub(super) num: u32,
    pub(super) kind: QpType,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    pub(super) rq_shared: bool,
    pub(super) signal_all: bool,
    pub(super) pd: PdMark,
    pub(super) key: u32,
}

impl QpContext {
    pub(super) fn new(parts: &QpParts, caps: QpCaps) -> QpContext {
        let size = caps.send_wr.max(1).next_power_of_two();
        let memory = QpMemory {
            // Untouched until used: an idle connection costs address space, not memory.
            sq: Box::new_uninit_slice(size as usize),
            pending: Box::new_uninit_slice(size as usize),
            inline: Box::new_uninit_slice(size as usize * caps.inline as usize),
        };
        QpContext::over(parts, memory, (size, caps.send_wr, caps.inline))
    }

    /// In memory for a send queue of `size` slots, of which `depth` are used.
    fn over(
        parts: &QpParts,
        memory: QpMemory,
        (size, depth, inline_max): (u32, u32, u32),
    ) -> QpContext {
        QpContext {
            num: parts.num,
            state: State::Init,
            kind: parts.kind,
            signal_all: parts.signal_all,
            common: 0,
            pd: parts.pd,
            key: parts.key,
            paused: false,
            draining: false,
            open_on: CLOSED,
            link: CLOSED,
            peer: 0,
            rnr_retry: 7,
            rnr_timer_ns: 0,
            reserved: Reserved::NONE,
            posted: 0,
            sent: 0,
            sent_bytes: 0,
            completed: 0,
            retired: 0,
            depth,
            mask: size - 1,
            sq: memory.sq,
            pending: memory.pending,
            inline: memory.inline,
            inline_max,
            in_backlog: false,
            initiator_depth: 0,
            responder_depth: 0,
            rights: Access::empty(),
            reads_sent: 0,
            one_sided_until: 0,
            reads_done: 0,
            reads: [0; READS_MAX],
            response_bytes: 0,
            waits_for_response: false,
            pending_reads: 0,
            parked: None,
            writing: None,
            datagrams: None,
            incoming: Incoming::Nothing,
            peer_lost: false,
            poison: None,
            urged: false,
            good_until: 0,
            cause: None,
            is_scheduled: false,
            last_wqe_raised: false,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            rq: usize::MAX,
            rq_shared: parts.rq_shared,
            assembly: None,
            rnr_since_ns: None,
            xrc: XrcPart::default(),
        }
    }

    /// A new life in the memory of the one before: everything else is as if it had just been made.
    pub(super) fn begin_again(&mut self, parts: &QpParts) {
        let (size, depth, inline_max) = (self.mask + 1, self.depth, self.inline_max);
        let memory = QpMemory {
            sq: core::mem::take(&mut self.sq),
            pending: core::mem::take(&mut self.pending),
            inline: core::mem::take(&mut self.inline),
        };
        *self = QpContext {
            datagrams: self.datagrams.take(),
            xrc: self.xrc.again(),
            ..QpContext::over(parts, memory, (size, depth, inline_max))
        };
    }

    /// On whose behalf it uses memory.
    pub(super) fn who(&self) -> Who {
        Who { qp: self.num, pd: self.pd }
    }

    /// True if a record goes on with what is coming in, or begins something when nothing is;
    /// messages are of that kind.
    pub(super) fn is_in_order(&self, header: Header, message: u8) -> bool {
        let first = header.flags().contains(RecordFlags::FIRST);
        match (self.assembly, self.writing) {
            (Some(_), _) => header.kind() == message && !first,
            (None, Some(_)) => header.kind() == KIND_WRITE && !first,
            (None, None) => first,
        }
    }

    /// Free slots of the send queue.
    #[inline(always)]
    pub(super) fn room(&self) -> u32 {
        self.depth - self.posted.wrapping_sub(self.retired)
    }

    /// The longest inline payload.
    #[inline(always)]
    pub(super) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Enters request `posted` in the send queue.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: SqEntry) {
        debug_assert_eq!(self.sq.len(), self.mask as usize + 1);
        // SAFETY: the queue has `mask + 1` slots, as `new` made it.
        unsafe { self.sq.get_unchecked_mut((self.posted & self.mask) as usize) }.write(entry);
        self.posted = self.posted.wrapping_add(1);
    }

    /// The slot of request `index`, which was pushed and not yet overwritten.
    #[inline(always)]
    pub(super) fn entry(&mut self, index: u32) -> &mut SqEntry {
        debug_assert!(self.posted.wrapping_sub(index).wrapping_sub(1) < self.depth);
        // SAFETY: requests retired..posted were all written by `push`, and every caller's index
        // lies there (the device counts them itself). The queue has `mask + 1` slots, as `new`
        // made it.
        unsafe {
            let slot = (index & self.mask) as usize;
            self.sq.get_unchecked_mut(slot).assume_init_mut()
        }
    }

    /// Notes that request `sent`, a READ or an atomic, is on the wire.
    pub(super) fn ask(&mut self) {
        self.reads[self.reads_sent as usize % READS_MAX] = self.sent;
        self.reads_sent = self.reads_sent.wrapping_add(1);
    }

    /// READs and atomics in flight.
    #[inline(always)]
    pub(super) fn reads_in_flight(&self) -> u32 {
        self.reads_sent.wrapping_sub(self.reads_done)
    }

    /// The oldest request in flight that an answer is for.
    #[inline(always)]
    pub(super) fn oldest_read(&self) -> Option<u32> {
        let oldest = self.reads[self.reads_done as usize % READS_MAX];
        (self.reads_sent != self.reads_done).then_some(oldest)
    }

    /// True if request `index`, or one before it, waits for its answer.
    #[inline(always)]
    pub(super) fn awaits_response(&self, index: u32) -> bool {
        // Both lie in `completed .. posted`.
        let place = |index: u32| index.wrapping_sub(self.completed);
        self.oldest_read().is_some_and(|oldest| place(oldest) <= place(index))
    }

    /// Keeps what is needed to send request `posted` later; an inline payload is copied.
    pub(super) fn keep(&mut self, pending: Pending) {
        let slot = (self.posted & self.mask) as usize;
        if pending.inline {
            let mut to = slot * self.inline_max as usize;
            for piece in &pending.pieces {
                let length = piece.length as usize;
                let target = self.inline.get_mut(to..).and_then(|to| to.get_mut(..length));
                let Some(target) = target else { break };
                // SAFETY: the poster vouches for the piece; `target` has its length, checked
                // against the inline limit by the caller.
                unsafe {
                    let from = piece.addr as *const MaybeUninit<u8>;
                    core::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), length);
                }
                to += length;
            }
        }
        if let Some(place) = self.pending.get_mut(slot) {
            place.write(pending);
        }
    }

    /// What was kept of request `index`; an inline payload is one piece, in the device's copy.
    pub(super) fn kept(&self, index: u32) -> Pending {
        let slot = (index & self.mask) as usize;
        // SAFETY: only asked for requests `sent..posted` and for READs and atomics in flight, all
        // of which went through `keep` and have their slot still. There are `mask + 1` slots, as
        // `new` made them.
        let kept = unsafe { self.pending.get_unchecked(slot).assume_init_ref() };
        let pieces = if kept.inline {
            let start = self.inline.as_ptr().wrapping_add(slot * self.inline_max as usize);
            gathered([Sge { addr: start as u64, length: kept.length, lkey: 0 }])
        } else {
            gathered(kept.pieces.iter().copied())
        };
        Pending { pieces, ..*kept }
    }
}
