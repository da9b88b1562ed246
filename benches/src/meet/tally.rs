//! What a side did between the begin and the end of measuring.

use doorbell::worker::Stats;
use serde::{Deserialize, Serialize};

use crate::machine::allocations::allocations;

/// What the workers of one side did between begin and end, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) completions: u64,
    /// Turns that found something.
    pub(crate) busy_turns: u64,
    pub(crate) doorbells: u64,
    pub(crate) allocations: u64,
    /// Bytes of memory that the connections took. Only the first tally of each lot has it.
    pub(crate) resident: u64,
    /// Bytes of memory of the whole process when measuring ended.
    pub(crate) process: u64,
    /// Messages that found no credit.
    pub(crate) credit_stalls: u64,
    /// Completions with an error.
    pub(crate) errors: u64,
    /// The most receives that the worker ever held at one time.
    pub(crate) receives_out_most: u64,
    /// Page size of the memory.
    pub(crate) pages: String,
    /// What the memory lacks, and the cure.
    pub(crate) notes: Vec<String>,
}

impl Tally {
    /// The sum of all of them.
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Tally>) -> Tally {
        let mut sum = Tally::default();
        all.for_each(|tally| sum.add(tally.clone()));
        sum
    }

    /// Adds what another worker of the side did.
    pub(crate) fn add(&mut self, other: Tally) {
        self.completions += other.completions;
        self.busy_turns += other.busy_turns;
        self.doorbells += other.doorbells;
        self.allocations += other.allocations;
        self.resident += other.resident;
        self.process = self.process.max(other.process);
        self.credit_stalls += other.credit_stalls;
        self.errors += other.errors;
        self.receives_out_most = self.receives_out_most.max(other.receives_out_most);
        if !other.pages.is_empty() {
            self.pages = other.pages;
        }
        self.notes.extend(other.notes);
        self.notes.sort();
        self.notes.dedup();
    }
}

/// The counters of a worker when measuring began.
pub(crate) struct Since {
    stats: Stats,
    allocations: u64,
}

impl Since {
    /// The counters now. Call it on the worker's thread.
    pub(crate) fn now(stats: &Stats) -> Since {
        Since { stats: *stats, allocations: allocations() }
    }

    /// What the worker did since then. `excluded` allocations are the control plane's and do not
    /// count.
    pub(crate) fn tally(&self, stats: &Stats, excluded: u64) -> Tally {
        let busy = |stats: &Stats| stats.turns - stats.idle_turns;
        Tally {
            completions: stats.completions - self.stats.completions,
            busy_turns: busy(stats) - busy(&self.stats),
            doorbells: stats.doorbells - self.stats.doorbells,
            allocations: (allocations() - self.allocations).saturating_sub(excluded),
            credit_stalls: stats.credit_stalls - self.stats.credit_stalls,
            errors: stats.errors - self.stats.errors,
            receives_out_most: stats.receives_out_most,
            ..Tally::default()
        }
    }
}
