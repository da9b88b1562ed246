//! How the sender goes through a ring: in laps, each as long as it needs to be.
//!
//! A lap begins at the start of the data area. At the end of each segment the sender checks whether
//! the front is free again. If so, it writes a jump and begins the next lap; else it goes on into
//! the next segment. So a ring that is read as fast as it is written uses only the lines of its
//! first segment, which stay in the nearest cache of both cores. If the reader is behind, the ring
//! grows until all bytes in flight fit; when the reader has caught up, it shrinks. Messages that
//! are published one by one do not make it grow: if the reader is that far behind, it is faster to
//! queue them and publish them together. Nor does it grow if only one side sends: a sender that has
//! nothing to receive may as well wait, and the lines of a longer ring come from a farther cache. A
//! ring that grows makes 1 KiB take 1.1 to 1.3 times as long, one way in lists of 16 on near cores.
//! If both sides send, with 512 messages of 64 bytes on their way, it halves the time. In a
//! ping-pong the sender does not jump while there is a segment left: the peer reads the messages
//! from the slot, and a jump would make it read the ring.
//!
//! The receiver needs no policy: it knows the area, and finds the jumps among the records.

use crate::shm::layout::{JUMP_BYTES, PUBLISH_EVERY, SEGMENT};

/// Bytes that must be free at the front before the sender jumps: as many as the receiver takes
/// before it acknowledges them, so a sender that goes on at the same pace need not wait. The
/// longest record is a little longer: after a jump there may still be no space for it.
const FRONT: u64 = PUBLISH_EVERY as u64;

/// The lap that the sender is in.
pub(crate) struct WrapPolicy {
    /// The position at its start.
    base: u64,
    /// Bytes of the previous lap, with the jump at its end.
    before: u64,
    /// The last position for the jump, unless the lap goes on into the next segment.
    soft: u64,
    /// A lap that may grow has at least this many bytes, because shorter ones were too short.
    least: u64,
    /// Bytes of the ring's data.
    area: u64,
}

/// Each jump takes this off `least`: eight laps without a wait make it a segment less.
const LESS: u64 = SEGMENT as u64 / 8;

impl WrapPolicy {
    /// The lap that begins at `base`, with nothing in flight, in a ring of `area` bytes.
    pub(crate) fn new(base: u64, area: u64) -> WrapPolicy {
        WrapPolicy { base, before: 0, soft: base + u64::from(SEGMENT - JUMP_BYTES), least: 0, area }
    }

    /// True if that position is in this lap.
    #[inline(always)]
    pub(crate) fn has(&self, at: u64) -> bool {
        at >= self.base
    }

    /// True if a record that ends at that position lies beyond the segment.
    pub(crate) fn is_over(&self, end: u64) -> bool {
        end > self.soft
    }

    /// True if the next lap may begin when the receiver has given back all up to `freed`. A lap
    /// that may `grow` goes on instead while it is shorter than `least`.
    pub(crate) fn may_jump(&self, freed: u64, grow: bool) -> bool {
        freed >= self.base + FRONT && (!grow || self.soft >= self.base + self.least)
    }

    /// Goes on into the next segment, if there is one.
    pub(crate) fn go_on(&mut self) -> bool {
        let goes = self.soft + u64::from(SEGMENT) < self.base + self.area;
        if goes {
            self.soft += u64::from(SEGMENT);
        }
        goes
    }

    /// Begins the next lap, behind a jump that ends at that position.
    pub(crate) fn jump(&mut self, at: u64) {
        let (before, least) = (at - self.base, self.least.saturating_sub(LESS));
        *self = WrapPolicy { before, least, ..WrapPolicy::new(at, self.area) };
    }

    /// There was no space: the previous lap was too short for the bytes in flight.
    pub(crate) fn was_full(&mut self) {
        let longer = self.before.next_multiple_of(SEGMENT.into()) + u64::from(SEGMENT);
        self.least = longer.min(self.area) - u64::from(JUMP_BYTES);
    }

    /// The position up to which there is space: the end of the segment, or the oldest byte that is
    /// not given back, if it lies in the previous lap. It never lies further back: see `may_jump`.
    pub(crate) fn limit(&self, freed: u64) -> u64 {
        if self.has(freed) { self.soft } else { self.soft.min(freed + self.before) }
    }
}
