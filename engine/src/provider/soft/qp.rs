//! A queue pair inside the device: state, send queue accounting, the message being received.
#![expect(unsafe_code, reason = "send queue slots are written before they are read")]

use core::mem::MaybeUninit;

use arrayvec::ArrayVec;
use bitflags::bitflags;
use std_alloc::boxed::Box;

use crate::provider::QpCaps;
use crate::wc::Status;
use crate::wr::{RecvWr, SendOp, Sge};

/// Pieces of a send request at most.
pub(super) const SEND_SGE_MAX: usize = 4;

/// No link.
pub(super) const CLOSED: usize = usize::MAX;

/// The states this device passes through (section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Takes receives; nothing moves yet.
    Init,
    /// Both directions work.
    Rts,
    /// Everything outstanding is flushed.
    Err,
}

bitflags! {
    /// What is known of a posted send.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Sent: u32 {
        /// Its completion is wanted.
        const SIGNALED = 1;
        /// All of it was written to the ring; `end` says up to where.
        const ON_WIRE = 2;
    }
}

/// One slot of the send queue.
#[derive(Clone, Copy)]
pub(super) struct SqEntry {
    pub(super) wr_id: u64,
    /// Ring position behind its last byte.
    pub(super) end: u64,
    pub(super) sent: Sent,
}

/// A send that did not fit the wire when it was posted.
#[derive(Clone)]
pub(super) struct Pending {
    pub(super) op: SendOp,
    pub(super) inline: bool,
    pub(super) solicited: bool,
    pub(super) length: u32,
    pub(super) pieces: ArrayVec<Sge, SEND_SGE_MAX>,
}

/// A message of several fragments on its way in.
#[derive(Clone, Copy)]
pub(super) struct Assembly {
    pub(super) wr: RecvWr,
    pub(super) received: u32,
}

/// A queue pair. Indexes count requests since creation and wrap.
pub(super) struct QpContext {
    pub(super) num: u32,
    pub(super) state: State,
    pub(super) signal_all: bool,
    /// What the headers of all its whole messages have in common; set when connected.
    pub(super) common: u64,
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

    /// Request that could not be carried out here, with its status: the queue pair fails when
    /// all before it are done.
    pub(super) poison: Option<(u32, Status)>,
    /// In ERR: ring position up to which requests succeeded, and the status of the one behind.
    pub(super) good_until: u64,
    pub(super) cause: Option<Status>,
    pub(super) in_todo: bool,

    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    /// Receive queue slot in the domain.
    pub(super) rq: usize,
    pub(super) rq_shared: bool,
    pub(super) assembly: Option<Assembly>,
    /// When the receive queue was first found empty for the record now in front.
    pub(super) rnr_since_ns: Option<u64>,
}

/// What a queue pair is made with, besides its capacities.
pub(super) struct QpParts {
    pub(super) num: u32,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    pub(super) rq_shared: bool,
    pub(super) signal_all: bool,
}

impl QpContext {
    pub(super) fn new(parts: &QpParts, caps: QpCaps) -> QpContext {
        let size = caps.send_wr.max(1).next_power_of_two();
        QpContext {
            num: parts.num,
            state: State::Init,
            signal_all: parts.signal_all,
            common: 0,
            open_on: CLOSED,
            link: CLOSED,
            peer: 0,
            rnr_retry: 7,
            rnr_timer_ns: 0,
            posted: 0,
            sent: 0,
            sent_bytes: 0,
            completed: 0,
            retired: 0,
            depth: caps.send_wr,
            mask: size - 1,
            // Untouched until used: an idle connection costs address space, not memory.
            sq: Box::new_uninit_slice(size as usize),
            pending: Box::new_uninit_slice(size as usize),
            inline: Box::new_uninit_slice(size as usize * caps.inline as usize),
            inline_max: caps.inline,
            in_backlog: false,
            poison: None,
            good_until: 0,
            cause: None,
            in_todo: false,
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            rq: usize::MAX,
            rq_shared: parts.rq_shared,
            assembly: None,
            rnr_since_ns: None,
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
        self.sq[(self.posted & self.mask) as usize].write(entry);
        self.posted = self.posted.wrapping_add(1);
    }

    /// The slot of request `index`, which was pushed and not yet overwritten.
    #[inline(always)]
    pub(super) fn entry(&mut self, index: u32) -> &mut SqEntry {
        debug_assert!(self.posted.wrapping_sub(index).wrapping_sub(1) < self.depth);
        // SAFETY: requests retired..posted were all written by `push`, and every caller's index
        // lies there (the device counts them itself).
        unsafe { self.sq[(index & self.mask) as usize].assume_init_mut() }
    }

    /// Keeps what is needed to send request `posted` later; an inline payload is copied.
    pub(super) fn keep(&mut self, pending: Pending) {
        let slot = (self.posted & self.mask) as usize;
        if pending.inline {
            let mut to = slot * self.inline_max as usize;
            for piece in &pending.pieces {
                let length = piece.length as usize;
                let target = &mut self.inline[to..to + length];
                // SAFETY: the poster vouches for the piece; `target` has its length, checked
                // against the inline limit by the caller.
                unsafe {
                    let from = piece.addr as *const MaybeUninit<u8>;
                    core::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), length);
                }
                to += length;
            }
        }
        self.pending[slot].write(pending);
    }

    /// What was kept of request `index`; an inline payload is one piece, in the device's copy.
    pub(super) fn kept(&self, index: u32) -> Pending {
        let slot = (index & self.mask) as usize;
        // SAFETY: only asked for requests `sent..posted`, all of which went through `keep`.
        let mut pending = unsafe { self.pending[slot].assume_init_ref() }.clone();
        if pending.inline {
            let start = self.inline.as_ptr().wrapping_add(slot * self.inline_max as usize);
            pending.pieces.clear();
            pending.pieces.push(Sge { addr: start as u64, length: pending.length, lkey: 0 });
        }
        pending
    }
}
