//! How the sender goes through a ring: in laps, each as long as it has to be.
//!
//! A lap begins at the start of the data area. At the end of each segment the sender looks whether
//! the front is free again: if so it writes a jump and begins the next lap, else it goes on into
//! the next segment. So a ring that is read as fast as it is written keeps to the few lines of its
//! first segment, which stay in the nearest cache of both cores; one whose reader is behind grows
//! until everything on its way has its place, and shrinks when the reader has caught up. Messages
//! that are published one by one do not make it grow: a reader so far behind is served better by
//! what is kept meanwhile and then published at once. Nor does one jump in a conversation while
//! there is a segment left: its messages are read from the slot, and a jump would make the reader
//! look into the ring.
//!
//! The receiver follows: it knows the area, and meets the jumps among the records.

use super::layout::{AREA, JUMP_BYTES, RECORD_MAX, SEGMENT};

/// Bytes of the front that must be free for a jump: so that a record fits, and no acknowledgement
/// is waited for behind the jump if all goes on as it did.
const FRONT: u64 = RECORD_MAX as u64;

/// The lap that the sender is in.
pub(super) struct WrapPolicy {
    /// The position at its start.
    base: u64,
    /// Bytes of the lap before, with the jump at its end.
    before: u64,
    /// Where the jump goes at the latest, if nothing is to go on into the next segment.
    soft: u64,
    /// Bytes that a lap shall have at least, because shorter ones were too short.
    least: u64,
}

/// What `least` loses with each jump: so many laps without a wait make it a segment less.
const LESS: u64 = SEGMENT as u64 / 8;

impl WrapPolicy {
    /// The one that begins at a position, with nothing on its way.
    pub(super) fn new(base: u64) -> WrapPolicy {
        WrapPolicy { base, before: 0, soft: base + u64::from(SEGMENT - JUMP_BYTES), least: 0 }
    }

    /// True if that position is in this lap.
    #[inline(always)]
    pub(super) fn has(&self, at: u64) -> bool {
        at >= self.base
    }

    /// True if what ends at that position lies beyond the segment.
    pub(super) fn is_over(&self, end: u64) -> bool {
        end > self.soft
    }

    /// True if the next lap may begin where the receiver has given back so much. Who could go on
    /// instead, `grow`, does where a lap was too short before.
    pub(super) fn may_jump(&self, freed: u64, grow: bool) -> bool {
        freed >= self.base + FRONT && (!grow || self.soft >= self.base + self.least)
    }

    /// Goes on into the next segment, if there is one.
    pub(super) fn go_on(&mut self) -> bool {
        let goes = self.soft + u64::from(SEGMENT) < self.base + u64::from(AREA);
        if goes {
            self.soft += u64::from(SEGMENT);
        }
        goes
    }

    /// Begins the next lap, behind a jump that ends at that position.
    pub(super) fn jump(&mut self, at: u64) {
        let (before, least) = (at - self.base, self.least.saturating_sub(LESS));
        *self = WrapPolicy { before, least, ..WrapPolicy::new(at) };
    }

    /// There was no space: the lap before was too short for what is on its way.
    pub(super) fn was_full(&mut self) {
        let longer = self.before.next_multiple_of(SEGMENT.into()) + u64::from(SEGMENT);
        self.least = longer.min(u64::from(AREA)) - u64::from(JUMP_BYTES);
    }

    /// Up to where there is space: the end of the segment, or the oldest byte that is not given
    /// back, if it lies in the lap before. In the one before that none does: `may_jump`.
    pub(super) fn limit(&self, freed: u64) -> u64 {
        if self.has(freed) { self.soft } else { self.soft.min(freed + self.before) }
    }
}
