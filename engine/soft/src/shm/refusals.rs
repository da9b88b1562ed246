//! Refusals of records, as the sender of the records reads them in the receiver's line.

use crate::shm::layout::Direction;
use crate::sync::Ordering;
use crate::wc::Status;

/// A record that the receiver refused: the sender's queue pair fails at this record.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    /// Ring position of the record.
    pub(crate) at: u64,
    /// The number of the queue pair that it was sent to.
    pub(crate) qp: u32,
    /// The status of the sender's completion.
    pub(crate) status: Status,
}

/// The peer's refusals of this side's records. The peer's line shows one at a time.
pub(crate) struct PeerRefusals {
    /// The direction of the records.
    dir: Direction,
    /// Number of the last refusal read.
    seen: u32,
}

impl PeerRefusals {
    pub(super) fn of(dir: Direction) -> PeerRefusals {
        PeerRefusals { dir, seen: 0 }
    }

    /// The refusal in the receiver's line, if it is new. `acked` is the position up to which every
    /// record is known to be taken. Acquire pairs with `Rx::write_refusal`; the line keeps the
    /// refusal until `Rx::settle_refusal`.
    #[inline(always)]
    pub(crate) fn read(&mut self, acked: u64) -> Option<Refusal> {
        let word = self.dir.taken(1).load(Ordering::Acquire);
        if word as u32 == self.seen {
            return None;
        }
        self.seen = word as u32;
        let rest = self.dir.taken(2).load(Ordering::Relaxed);
        let status = Status::from_raw((rest >> 32) as u32);
        // The refused record lies behind `acked`.
        let at = acked + u64::from(((word >> 32) as u32).wrapping_sub(acked as u32));
        Some(Refusal { at, qp: rest as u32, status })
    }

    /// True if there is an unread refusal.
    pub(crate) fn has_new(&self) -> bool {
        self.dir.taken(1).load(Ordering::Relaxed) as u32 != self.seen
    }

    /// The number of the refusal last read.
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    /// The number of our last refusal that the peer has settled.
    pub(crate) fn settled(&self) -> u32 {
        self.dir.taken(3).load(Ordering::Acquire) as u32
    }
}
