//! What a step comes to, before it is written as records.

use crate::machine::floor::Floor;
use crate::measure::piece::Pieces;
use crate::measure::record::Figures;
use crate::meet::tally::Tally;

/// One figure of a step, as far as this side knows it. The figures of a step were measured in turn.
pub(crate) struct Outcome {
    pub(crate) pieces: Pieces,
    pub(crate) idle_qps: u32,
    /// For bandwidth the window that was used.
    pub(crate) batch: Option<u32>,
    /// What this side knows of its memory.
    pub(crate) memory: Tally,
    /// Figures that do not follow from the pieces.
    pub(crate) figures: Figures,
}

impl Outcome {
    pub(crate) fn of(pieces: Pieces) -> Outcome {
        let (memory, figures) = (pieces.tally(), Figures::default());
        Outcome { pieces, idle_qps: 0, batch: None, memory, figures }
    }
}

/// A run of both sides: the outcomes, what the other side did for each, and the floor.
pub(crate) struct Round {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) theirs: Vec<Tally>,
    pub(crate) floor: Option<Floor>,
    /// How often other programs took the core of this side, a second.
    pub(crate) switches: Option<f64>,
}
