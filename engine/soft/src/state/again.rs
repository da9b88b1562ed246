//! The last short send of a queue pair: a program often sends from the same place again. In
//! `ib_send_lat`, a post publishes 8 bytes after 132 instructions; with all checks it took 149.

use crate::model::memory::Memory;
use crate::wr::{SendFlags, Sge};

/// The last short SEND whose piece and flags were checked. Another one with the same piece and
/// flags needs no look at the table of regions.
pub(crate) struct Again {
    sge: Sge,
    flags: SendFlags,
    /// [`Memory::removals`] when it was checked: while that is the same, its key is alive.
    /// [`NEVER`] before the first one.
    removals: u64,
}

/// No count of removals.
const NEVER: u64 = u64::MAX;

impl Again {
    /// None yet.
    pub(crate) const NONE: Again = Again {
        sge: Sge { addr: 0, length: 0, lkey: 0 },
        flags: SendFlags::empty(),
        removals: NEVER,
    };

    /// True if a SEND like this one was checked the last time.
    #[inline(always)]
    pub(crate) fn is_like(&self, memory: &Memory, sge: Sge, flags: SendFlags) -> bool {
        self.sge == sge && self.flags == flags && self.removals == memory.removals()
    }

    /// A SEND was checked. `removals` was read before that.
    #[inline(always)]
    pub(crate) fn note(&mut self, removals: u64, sge: Sge, flags: SendFlags) {
        *self = Again { sge, flags, removals };
    }
}
