//! The send queue of a queue pair: its slots, and what is posted, sent, completed and retired.
#![expect(unsafe_code, reason = "slots are written before they are read")]

use core::mem::MaybeUninit;

use bitflags::bitflags;
use std_alloc::boxed::Box;

use crate::model::buffers::Pieces;
use crate::prefetch::fetch_line;
use crate::wc::{Status, WcOpcode};
use crate::wr::SendOp;

bitflags! {
    /// The state of a posted send.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Sent: u32 {
        /// Its completion is wanted.
        const SIGNALED = 1;
        /// All of it was written to the ring; `end` says up to where.
        const ON_WIRE = 2;
        /// The opcode's number for its completion, in the second byte.
        const OPCODE = 0xff00;
        /// Its status where no peer is asked (UC and UD), in the third byte.
        const STATUS = 0xff_0000;
    }
}

impl Sent {
    /// Nothing is known yet but its opcode.
    #[inline(always)]
    pub(crate) fn of(op: SendOp) -> Sent {
        Sent::from_bits_retain(u32::from(op.completes_as() as u8) << 8)
    }

    /// It failed with that status, or was flushed.
    pub(crate) fn failed(status: Status) -> Sent {
        Sent::from_bits_retain(u32::from(status as u8) << 16)
    }

    /// The status that [`Sent::failed`] has stored.
    pub(crate) fn status(self) -> Status {
        Status::from_raw(self.bits() >> 16 & 0xff)
    }

    /// The opcode for its completion.
    #[inline(always)]
    pub(crate) fn opcode(self) -> WcOpcode {
        WcOpcode::from_raw(self.bits() >> 8 & 0xff)
    }
}

/// One slot of the send queue.
#[derive(Clone, Copy)]
pub(crate) struct SqEntry {
    pub(crate) wr_id: u64,
    /// Ring position behind its last byte.
    pub(crate) end: u64,
    pub(crate) sent: Sent,
    /// Bytes of its first piece; of all pieces if it is one-sided.
    pub(crate) length: u32,
}

/// A send that did not fit the wire when it was posted.
pub(crate) struct Pending {
    pub(crate) op: SendOp,
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) length: u32,
    pub(crate) pieces: Pieces,
}

/// The send queue. Indexes count requests since creation and wrap.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct SendQueue {
    slots: Box<[MaybeUninit<SqEntry>]>,
    /// Requests posted.
    pub(crate) posted: u32,
    /// Requests that are wholly on the wire, counted from the front.
    pub(crate) sent: u32,
    mask: u32,
    /// Requests whose completion, if they ask for one, was made.
    pub(crate) completed: u32,
    /// Requests whose slot is free again: a completion behind them was polled (SQ-2).
    pub(crate) retired: u32,
    inline_max: u32,
    pub(crate) depth: u32,
    /// Bytes of request `sent` that are on the wire already.
    pub(crate) sent_bytes: u32,
    pending: Box<[MaybeUninit<Pending>]>,
    inline: Box<[MaybeUninit<u8>]>,
}

impl SendQueue {
    /// A queue for `depth` requests, with inline payloads of at most `inline_max` bytes.
    pub(crate) fn new(depth: u32, inline_max: u32) -> SendQueue {
        let size = depth.max(1).next_power_of_two();
        // Untouched until used: an idle connection costs address space, not memory.
        let slots = Box::new_uninit_slice(size as usize);
        let pending = Box::new_uninit_slice(size as usize);
        let inline = Box::new_uninit_slice(size as usize * inline_max as usize);
        SendQueue::over((slots, pending, inline), (size, depth, inline_max))
    }

    fn over(
        (slots, pending, inline): Memory,
        (size, depth, inline_max): (u32, u32, u32),
    ) -> SendQueue {
        SendQueue {
            posted: 0,
            sent: 0,
            sent_bytes: 0,
            completed: 0,
            retired: 0,
            depth,
            mask: size - 1,
            slots,
            pending,
            inline,
            inline_max,
        }
    }

    /// Prefetches the slot of the next request.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self) {
        if let Some(slot) = self.slots.get((self.posted & self.mask) as usize) {
            fetch_line(core::ptr::from_ref(slot).cast());
        }
    }

    /// An empty queue in the same memory; this one has none afterwards.
    pub(crate) fn take(&mut self) -> SendQueue {
        let memory = (
            core::mem::take(&mut self.slots),
            core::mem::take(&mut self.pending),
            core::mem::take(&mut self.inline),
        );
        SendQueue::over(memory, (self.mask + 1, self.depth, self.inline_max))
    }

    /// Free slots of the send queue.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.depth - self.posted.wrapping_sub(self.retired)
    }

    /// The longest inline payload.
    #[inline(always)]
    pub(crate) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Enters request `posted` in the send queue.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: SqEntry) {
        debug_assert_eq!(self.slots.len(), self.mask as usize + 1);
        // SAFETY: the queue has `mask + 1` slots, as `new` made it.
        unsafe { self.slots.get_unchecked_mut((self.posted & self.mask) as usize) }.write(entry);
        self.posted = self.posted.wrapping_add(1);
    }

    /// The slot of request `index`, which was pushed and not yet overwritten.
    #[inline(always)]
    pub(crate) fn entry(&mut self, index: u32) -> &mut SqEntry {
        debug_assert!(self.posted.wrapping_sub(index).wrapping_sub(1) < self.depth);
        // SAFETY: every caller's index was pushed, and its slot was not taken again (the device
        // counts them itself). The queue has `mask + 1` slots, as `new` made it.
        unsafe {
            let slot = (index & self.mask) as usize;
            self.slots.get_unchecked_mut(slot).assume_init_mut()
        }
    }

    /// Keeps what is needed to send request `posted` later; an inline payload is copied.
    pub(crate) fn keep(&mut self, pending: Pending) {
        let slot = (self.posted & self.mask) as usize;
        if pending.inline {
            let mut to = slot * self.inline_max as usize;
            for piece in pending.pieces.sources() {
                let length = piece.length() as usize;
                let target = self.inline.get_mut(to..).and_then(|to| to.get_mut(..length));
                let Some(target) = target else { break };
                // SAFETY: a source is readable; `target` has its length, checked against the inline
                // limit by the caller.
                unsafe {
                    let from = piece.as_ptr().cast::<MaybeUninit<u8>>();
                    core::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), length);
                }
                to += length;
            }
        }
        if let Some(place) = self.pending.get_mut(slot) {
            place.write(pending);
        }
    }

    /// What was kept of request `index`. An inline payload is one piece, in the device's copy.
    pub(crate) fn kept(&self, index: u32) -> Pending {
        let slot = (index & self.mask) as usize;
        // SAFETY: callers ask only for requests `sent..posted` and for READs and atomics in flight.
        // All of them went through `keep` and still have their slot. There are `mask + 1` slots, as
        // `new` made them.
        let kept = unsafe { self.pending.get_unchecked(slot).assume_init_ref() };
        let pieces = if kept.inline {
            let start = self.inline.as_ptr().wrapping_add(slot * self.inline_max as usize);
            // SAFETY: `keep` has copied the payload there, and its slot is not used again before
            // the request has completed.
            unsafe { Pieces::new(start as u64, kept.length) }
        } else {
            kept.pieces.clone()
        };
        Pending { pieces, ..*kept }
    }
}

/// The memory of a send queue: slots, waiting requests, and their inline payloads.
type Memory = (Box<[MaybeUninit<SqEntry>]>, Box<[MaybeUninit<Pending>]>, Box<[MaybeUninit<u8>]>);
